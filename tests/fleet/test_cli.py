"""The command line: exit codes, one-line errors, what a command imports, and that commands reach what they name."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.fleet.conftest import StandInServer
from trieway import __version__, cli
from trieway.fleet import mixes
from trieway.fleet.models import check_there
from trieway.serving.config import ConfigError, RouterConfig, UpConfig, WorkerConfig
from trieway.worker.models.errors import ModelNotFound

COMMANDS = ("up", "worker", "router", "calibrate", "tree", "explain", "demo", "models", "config")
Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("TRIEWAY_") and name != "TRIEWAY_CACHE_DIR"]:
        monkeypatch.delenv(name)


def complaint(capsys: Output) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, f"not one line: {err!r}"
    return err.strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: Output) -> None:
    assert cli.main([command, "--help"]) == 0
    assert f"trieway {command}" in capsys.readouterr().out


def test_the_list_of_commands_and_the_version(capsys: Output) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"trieway {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nothing"],
        ["up", "--worker-count", "2"],
        ["up", "--workers"],
        ["up", "--workers", "0"],
        ["up", "--policy", "best"],
        ["worker", "--port", "many"],
        ["worker", "--kv-tok", "9"],
        ["demo"],
        ["demo", "ftp://x"],
        ["demo", "127.0.0.1:1", "--prefix-tokens", "0"],
        ["tree", "127.0.0.1:1", "--key-file", "/no/such/file"],
        ["config"],
        ["config", "show", "--config", "/no/such/file.yaml"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str], capsys: Output) -> None:
    assert cli.main(arguments) == 2
    assert complaint(capsys).startswith("trieway: error: ")


def test_an_unknown_key_is_refused_by_name(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("kv_tokenz: 3\n")
    assert cli.main(["up", "--config", str(file)]) == 2
    assert "kv_tokenz" in complaint(capsys)
    monkeypatch.setenv("TRIEWAY_KV_TOKENZ", "3")
    assert cli.main(["worker"]) == 2
    assert "TRIEWAY_KV_TOKENZ" in complaint(capsys)


def test_config_show_merges_file_environment_and_flags(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("workers: 3\nkv_tokens: 100\nworker:\n  page_size: 4\n  running_max: 7\n")
    monkeypatch.setenv("TRIEWAY_KV_TOKENS", "200")
    assert cli.main(["config", "show", "--config", str(file), "--running-max", "9", "--model", "m"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["workers"] == 3
    assert {shown["worker"][key] for key in ("kv_tokens", "page_size", "running_max")} == {200, 4, 9}
    assert shown["worker"]["model"] == "m", "the fleet's model is every worker's"


@pytest.mark.parametrize(
    ("kind", "key"), [("up", "ready_timeout_s"), ("worker", "kv_tokens"), ("router", "tree_bytes_max")]
)
def test_config_show_of_each_process(kind: str, key: str, capsys: Output) -> None:
    assert cli.main(["config", "show", kind]) == 0
    assert key in yaml.safe_load(capsys.readouterr().out)


def test_models_are_listed(capsys: Output) -> None:
    assert cli.main(["models"]) == 0
    text = capsys.readouterr().out
    assert "smollm2-135m" in text
    assert "GGUF file" in text


# -- the servers, by stand-ins of their entry points -------------------------------------------------------------------


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, name: str, run: Callable[..., int]) -> None:
    fake = ModuleType(module)
    setattr(fake, name, run)
    monkeypatch.setitem(sys.modules, module, fake)


def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trieway.fleet.ports.check_free", lambda host, port: None)
    monkeypatch.setattr("trieway.fleet.models.check_there", lambda model: None)


def test_worker_and_router_run_with_their_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.delenv("TRIEWAY_CACHE_DIR", raising=False)
    free(monkeypatch)
    stand_in(monkeypatch, "trieway.worker.main", "run_worker", lambda config: seen.append(config) or 0)
    stand_in(monkeypatch, "trieway.router.main", "run_router", lambda config: seen.append(config) or 1)
    assert cli.main(["worker", "--model", "x", "--no-prefix-cache", "--page-size", "16"]) == 0
    assert cli.main(["router", "--worker", "http://a:1", "--worker", "http://b:2", "--policy", "round_robin"]) == 1
    assert seen == [
        WorkerConfig(model="x", prefix_cache=False, page_size=16),
        RouterConfig(workers=("http://a:1", "http://b:2"), policy="round_robin"),
    ]


def test_up_runs_with_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[UpConfig] = []
    monkeypatch.setattr("trieway.fleet.up.run_up", lambda config: seen.append(config) or 0)
    assert cli.main(["up", "--workers", "3", "--port", "8123", "--kv-tokens", "3000", "--retries-max", "1"]) == 0
    (config,) = seen
    assert (config.workers, config.port) == (3, 8123)
    assert (config.worker.kv_tokens, config.router.retries_max) == (3000, 1)


def raising(error: BaseException) -> Callable[[object], int]:
    def run(config: object) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModelNotFound("no model nope: give\nanother"), 1, "trieway: error: no model nope: give another"),
        (ConfigError("host: keys are needed"), 2, "trieway: error: host: keys are needed"),
        (KeyboardInterrupt(), 1, "trieway: error: interrupted"),
    ],
)
def test_what_the_user_can_mend_is_one_line(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    free(monkeypatch)
    stand_in(monkeypatch, "trieway.worker.main", "run_worker", raising(error))
    assert cli.main(["worker"]) == code
    assert complaint(capsys) == line


@pytest.mark.parametrize("command", ["up", "worker", "router"])
def test_a_port_in_use_is_one_line_and_exit_code_1(command: str, capsys: Output) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert cli.main([command, "--port", str(port)]) == 1
    assert complaint(capsys).startswith(f"trieway: error: port {port} on 127.0.0.1 is in use")


@pytest.mark.parametrize("command", ["up", "worker"])
def test_a_model_that_is_not_there_is_told_before_anything_starts(command: str, capsys: Output) -> None:
    assert cli.main([command, "--model", "no-such-model", "--port", "0"]) == 1
    assert complaint(capsys).startswith("trieway: error: no model no-such-model: give one of smollm2-135m")


def test_models_that_may_be_there_are_left_to_the_worker(tmp_path: Path) -> None:
    check_there(str(tmp_path))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    check_there(str(tmp_path / "model.gguf"))


# -- the commands that look, against a stand-in server -----------------------------------------------------------------


def test_tree_and_explain_print_tables_or_json(server: StandInServer, capsys: Output) -> None:
    server.canned["/tree?depth=2"] = (200, {"nodes": 5, "workers": {}, "dump": {}})
    server.canned["/explain"] = (
        200,
        {"model": "m", "prompt_tokens": 1, "blocks": 0, "rejected": {"reason": "no_worker"}},
    )
    assert cli.main(["tree", server.url, "--depth", "2"]) == 0
    assert "distinct blocks" in capsys.readouterr().out
    assert cli.main(["tree", server.url, "--depth", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == 5
    assert cli.main(["explain", server.url, "Hello"]) == 0
    assert "nobody can take it: no worker" in capsys.readouterr().out
    assert cli.main(["explain", server.url, "Hello", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] == 1


def test_a_prompt_comes_from_standard_input(
    server: StandInServer, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    server.canned["/explain"] = (200, {"model": "m", "rejected": {}})

    def typed(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    typed("naïve".encode())
    assert cli.main(["explain", server.url, "-"]) == 0
    assert server.bodies[-1][1]["prompt"] == "naïve"
    capsys.readouterr()
    typed(b"\xff\xfe")
    assert cli.main(["explain", server.url, "-"]) == 1
    assert "not UTF-8" in complaint(capsys)


def test_demo_prints_its_table_on_stdout_and_progress_on_stderr(server: StandInServer, capsys: Output) -> None:
    assert cli.main(["demo", server.url, "--prefix-tokens", "200"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("request ")
    assert "chat, turn 4 of 4" in err


def test_calibrate_prints_json_alone_on_stdout(
    server: StandInServer, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixes, "MIX_S", 0.02)
    monkeypatch.setattr(mixes, "REQUESTS_MAX", 50)
    assert cli.main(["calibrate", server.url, "--repeats", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "stand-in"
    assert found["together"] is None
    assert {"users", "prompt", "seconds", "fitted_seconds"} <= found["alone"]["points"][0].keys()


def test_nothing_there_is_one_line(capsys: Output) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert cli.main(["tree", f"127.0.0.1:{port}"]) == 1
    assert "nothing answers at" in complaint(capsys)


# -- imports -----------------------------------------------------------------------------------------------------------

HEAVY = {"torch", "tokenizers", "transformers", "numpy", "safetensors", "gguf", "ray"}


def loaded_after(code: str) -> set[str]:
    program = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(run.stdout.splitlines()[-1].split())


def test_a_router_process_never_loads_torch() -> None:
    """All that `trieway router` imports before it listens."""
    assert not HEAVY & loaded_after("import trieway.cli, trieway.fleet.ports, trieway.router.main")


def test_the_light_commands_load_neither_torch_nor_a_server() -> None:
    found = loaded_after("from trieway.cli import main\nassert main(['models']) == 0")
    assert not (HEAVY | {"fastapi", "uvicorn", "aiohttp"}) & found
    found = loaded_after("import trieway.fleet.up, trieway.fleet.demo, trieway.fleet.calibrate")
    assert not (HEAVY | {"fastapi", "uvicorn"}) & found


def test_python_m_trieway_is_the_same_command() -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-m", "trieway", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout == f"trieway {__version__}\n"


@pytest.mark.parametrize("command", ["models", "config show ray", "load workloads"])
def test_an_output_that_cannot_be_written_is_one_line(command: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trieway", *command.split()], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "trieway: error: the output cannot be written: No space left on device\n"
