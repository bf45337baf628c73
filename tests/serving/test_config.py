"""Settings: flags over environment over one file, unknown keys refused by name, one line for each mistake."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trieway.serving import config_values
from trieway.serving.config import MIB, ConfigError, RouterConfig, UpConfig, WorkerConfig
from trieway.serving.config_load import add_flags, load, show, to_flags
from trieway.serving.config_values import Setting

KINDS: tuple[Any, ...] = (WorkerConfig, RouterConfig, UpConfig)


def flags(kind: Any, *words: str) -> dict[str, object]:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser, kind)
    return vars(parser.parse_args(words))


def written(tmp_path: Path, text: str, name: str = "fleet.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def mistake(kind: Any = WorkerConfig, **given_values: Any) -> str:
    """The message of the ConfigError that these give."""
    with pytest.raises(ConfigError) as caught:
        load(kind, **{"flags": {}, "environ": {}, **given_values})
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", KINDS)
def test_without_any_source_the_defaults(kind: Any) -> None:
    assert load(kind, flags=flags(kind), environ={}) == kind()


def test_every_key_is_declared_with_help_and_a_sound_default() -> None:
    for kind in KINDS:
        for name, setting in config_values.settings(kind).items():
            assert setting.key.help
            assert (
                setting.default is None or config_values.read_value(setting, setting.default, name) == setting.default
            )


def test_flags_over_environment_over_file_over_default(tmp_path: Path) -> None:
    path = written(tmp_path, "page_size: 2\nkv_tokens: 200\nrunning_max: 20\n")
    environ = {"TRIEWAY_PAGE_SIZE": "3", "TRIEWAY_KV_TOKENS": "300"}
    config = load(WorkerConfig, flags=flags(WorkerConfig, "--page-size", "4"), environ=environ, file=path)
    assert (config.page_size, config.kv_tokens, config.running_max, config.waiting_max) == (4, 300, 20, 512)


def test_sections_win_over_the_top(tmp_path: Path) -> None:
    path = written(tmp_path, "port: 1\nlog_level: error\nworker:\n  port: 2\nrouter:\n  policy: round_robin\n")
    assert load(WorkerConfig, flags={}, environ={}, file=path).port == 2
    assert load(RouterConfig, flags={}, environ={}, file=path).port == 1
    environ = {"TRIEWAY_PORT": "3", "TRIEWAY_ROUTER_PORT": "4"}
    assert load(WorkerConfig, flags={}, environ=environ, file=path).port == 3
    assert load(RouterConfig, flags={}, environ=environ, file=path).port == 4
    assert load(RouterConfig, flags={}, environ={}, file=path).log_level == "error"


def test_toml_and_json_are_the_same(tmp_path: Path) -> None:
    for name, text in (
        ("a.toml", 'kv_tokens = 64\n[worker]\npolicy = "fcfs"\n'),
        ("a.json", '{"kv_tokens": 64, "worker": {"policy": "fcfs"}}'),
        ("a.yml", "kv_tokens: 64\nworker: {policy: fcfs}\n"),
    ):
        config = load(WorkerConfig, flags={}, environ={}, file=written(tmp_path, text, name))
        assert (config.kv_tokens, config.policy) == (64, "fcfs")
    assert load(WorkerConfig, flags={}, environ={}, file=written(tmp_path, "")) == WorkerConfig()


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "kv_tokens: 64\n")
    assert load(WorkerConfig, flags={}, environ={"TRIEWAY_CONFIG": str(path)}).kv_tokens == 64


def test_up_passes_on_what_is_not_its_own(tmp_path: Path) -> None:
    text = "workers: 3\nport: 9\npolicy: least_loaded\nkv_tokens: 64\nbody_max_bytes: 1MiB\nworker:\n  policy: fcfs\n"
    config = load(UpConfig, flags={}, environ={"TRIEWAY_TREE_BYTES_MAX": "2MiB"}, file=written(tmp_path, text))
    assert (config.workers, config.port, config.policy) == (3, 9, "least_loaded")
    assert (config.worker.kv_tokens, config.worker.policy) == (64, "fcfs")
    assert config.worker.port == WorkerConfig().port
    assert config.router.workers == ()
    assert config.worker.body_max_bytes == config.router.body_max_bytes == MIB
    assert config.router.tree_bytes_max == 2 * MIB


def test_up_s_flags_reach_the_processes_behind_it() -> None:
    words = ("--workers", "3", "--kv-tokens", "64", "--body-max-bytes", "1MiB", "--policy", "round_robin")
    config = load(UpConfig, flags=flags(UpConfig, *words), environ={})
    assert (config.workers, config.policy, config.worker.policy) == (3, "round_robin", "lpm")
    assert config.worker.kv_tokens == 64
    assert config.worker.body_max_bytes == config.router.body_max_bytes == MIB


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("kv_token: 5\n", "kv_token: no such key; did you mean kv_tokens?"),
        ("worker: {kv_token: 5}\n", "worker.kv_token: no such key; did you mean kv_tokens?"),
        ("worker: {tree_bytes_max: 5}\n", "worker.tree_bytes_max: no such key"),
        ("wroker: {}\n", "wroker: no such key; did you mean worker?"),
        ("worker: 5\n", "worker: a section"),
        ("- 1\n", "keys and values"),
        ("a: [\n", "fleet.yaml: "),
        ("kv_tokens: lots\n", "kv_tokens: a whole number is needed, not 'lots'"),
        ("kv_tokens: 1.5\n", "kv_tokens: a whole number"),
        ("kv_tokens: true\n", "kv_tokens: a whole number"),
        ("kv_tokens: 1\n", "kv_tokens: at least 16"),
        ("kv_tokens: null\n", "kv_tokens: a value is needed"),
        ("port: 70000\n", "port: from 0 to 65535"),
        ("policy: best\n", "policy: one of lpm, fcfs, random"),
        ("prefix_cache: maybe\n", "prefix_cache: true or false"),
        ("wait_max_s: .nan\n", "wait_max_s: a number"),
        ("wait_max_s: soon\n", "wait_max_s: a number"),
        ("model: 5\n", "model: text is needed"),
        ("model: ''\n", "model: text is needed"),
        ("chat_template: 5\n", "chat_template: text"),
        ("body_max_bytes: 5 apples\n", "16MiB"),
        ("page_size: 64\nkv_tokens: 32\n", "at least one page"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, text: str, wanted: str) -> None:
    assert wanted in mistake(file=written(tmp_path, text))


def test_files_that_will_not_do(tmp_path: Path) -> None:
    assert "No such file" in mistake(file=tmp_path / "missing.yaml")
    assert "ends in" in mistake(file=written(tmp_path, "a=1", "fleet.ini"))
    assert "UTF-8" in mistake(file=_bytes(tmp_path, b"\xff"))
    assert "larger" in mistake(file=written(tmp_path, "#" * (MIB + 1)))
    assert "a.toml" in mistake(file=written(tmp_path, "x = [", "a.toml"))
    strange = written(tmp_path, "kv_tokens: lots\n", "{odd}.yaml")
    assert "{odd}.yaml: kv_tokens" in mistake(file=strange)


def _bytes(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "bytes.yaml"
    path.write_bytes(content)
    return path


def test_mistakes_in_the_environment() -> None:
    assert "TRIEWAY_KV_TOKNS: no such key; did you mean kv_tokens?" in mistake(environ={"TRIEWAY_KV_TOKNS": "5"})
    assert "TRIEWAY_KV_TOKENS: a whole" in mistake(environ={"TRIEWAY_KV_TOKENS": "x"})
    assert "TRIEWAY_WORKER_PORT: from" in mistake(environ={"TRIEWAY_WORKER_PORT": "-1"})


def test_other_environment_passes() -> None:
    environ = {
        "PATH": "/bin",
        "TRIEWAY_PURE": "1",
        "TRIEWAY_TREE_BYTES_MAX": "nonsense for a router, which this is not",
        "TRIEWAY_ROUTER_SERVICE_HOST": "10.0.0.1",
        "TRIEWAY_ROUTER_SERVICE_PORT_HTTP": "80",
        "TRIEWAY_WORKER_0_PORT_8000_TCP_ADDR": "10.0.0.2",
    }
    assert load(WorkerConfig, flags={}, environ=environ) == WorkerConfig()


def test_a_service_link_in_place_of_a_port_is_explained() -> None:
    assert "enableServiceLinks" in mistake(RouterConfig, environ={"TRIEWAY_ROUTER_PORT": "tcp://10.0.0.1:80"})


def test_mistakes_in_flags() -> None:
    assert mistake(flags={"kv_tokens": "x"}).startswith("--kv-tokens: ")
    assert mistake(RouterConfig, flags={"total_timeout_s": "1"}).startswith("total_timeout_s: ")
    with pytest.raises(argparse.ArgumentError):
        flags(WorkerConfig, "--policy", "best")


def test_flags_of_the_contract() -> None:
    config = load(WorkerConfig, flags=flags(WorkerConfig, "--no-prefix-cache", "--allow-open"), environ={})
    assert not config.prefix_cache
    assert config.allow_open
    words = ("--worker", "http://a", "http://b", "--worker", "http://c", "--policy", "least_loaded")
    router = load(RouterConfig, flags=flags(RouterConfig, *words), environ={})
    assert router.workers == ("http://a", "http://b", "http://c")


def test_lists_in_environment_and_file(tmp_path: Path) -> None:
    environ = {"TRIEWAY_ROUTER_WORKERS": "http://a, http://b http://c"}
    assert load(RouterConfig, flags={}, environ=environ).workers == ("http://a", "http://b", "http://c")
    path = written(tmp_path, "router:\n  workers: [http://a, http://b]\n")
    assert load(RouterConfig, flags={}, environ={}, file=path).workers == ("http://a", "http://b")
    assert "workers: a list" in mistake(RouterConfig, file=written(tmp_path, "router: {workers: 3}\n"))


def test_paths_begin_at_the_file_that_names_them(tmp_path: Path) -> None:
    path = written(tmp_path, "chat_template: chat.jinja\napi_keys_file: /etc/keys\n")
    config = load(WorkerConfig, flags={}, environ={"TRIEWAY_CACHE_DIR": "cache"}, file=path)
    assert config.chat_template == tmp_path / "chat.jinja"
    assert config.api_keys_file == Path("/etc/keys")
    assert config.cache_dir == Path("cache")
    assert load(WorkerConfig, flags={"cache_dir": "~/x"}, environ={}).cache_dir == Path("~/x").expanduser()


@pytest.mark.parametrize(
    ("text", "number"),
    [("1024", 1024), ("16MiB", 16 * MIB), ("16 mib", 16 * MIB), ("2k", 2000), ("1_000_000", 10**6), ("1GB", 10**9)],
)
def test_amounts_of_bytes(text: str, number: int) -> None:
    assert load(WorkerConfig, flags={"body_max_bytes": text}, environ={}).body_max_bytes == number


@pytest.mark.parametrize(("word", "value"), [("true", True), ("ON", True), ("1", True), ("no", False), ("0", False)])
def test_words_for_yes_and_no(word: str, value: bool) -> None:
    assert load(WorkerConfig, flags={}, environ={"TRIEWAY_PREFIX_CACHE": word}).prefix_cache is value


def values_for(setting: Setting) -> st.SearchStrategy[Any]:
    if setting.kind is bool:
        return st.booleans()
    if setting.kind in (int, float):
        least = int(setting.key.least or 0) + 1
        most = int(setting.key.most or least + 10**6)
        number = st.integers(min(least, most), most)
        return number if setting.kind is int else number.map(float)
    if setting.choices:
        return st.sampled_from(setting.choices)
    word = st.from_regex(r"-{0,2}[a-z0-9][a-z0-9/.:= %]{0,11}", fullmatch=True)
    if setting.kind is Path:
        return word.map(Path)
    if setting.kind is str:
        return word
    return st.lists(st.sampled_from(["http://a:1", "http://[::1]:2"]), min_size=1, max_size=3).map(tuple)


@pytest.mark.parametrize("kind", [WorkerConfig, RouterConfig])
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
def test_to_flags_gives_the_same_configuration_back(kind: Any, data: st.DataObject) -> None:
    found = config_values.settings(kind)
    names = data.draw(st.sets(st.sampled_from(sorted(found))))
    names -= {"page_size", "kv_tokens", "total_timeout_s", "first_byte_timeout_s"}
    config = dataclasses.replace(kind(), **{name: data.draw(values_for(found[name]), label=name) for name in names})
    hostile = {"TRIEWAY_PORT": "nonsense", "TRIEWAY_POLICY": "nonsense"}
    assert load(kind, flags=flags(kind, *to_flags(config)), environ=hostile) == config


def test_show_is_yaml_that_loads_again_and_hides_credentials(tmp_path: Path) -> None:
    config = RouterConfig(workers=("http://user:hush@host:1/x", "http://b"), api_keys_file=Path("/etc/keys"))
    shown = show(config)
    assert "hush" not in shown
    content = yaml.safe_load(shown)
    assert content["workers"] == ["http://***@host:1/x", "http://b"]
    assert content["api_keys_file"] == "/etc/keys"
    path = written(tmp_path, yaml.safe_dump({"router": content}))
    again = load(RouterConfig, flags={}, environ={}, file=path)
    assert again == dataclasses.replace(config, workers=tuple(content["workers"]))
    up = yaml.safe_load(show(UpConfig()))
    assert up["worker"]["kv_tokens"] == WorkerConfig().kv_tokens
    assert load(UpConfig, flags={}, environ={}, file=written(tmp_path, yaml.safe_dump({"workers": 4}))).workers == 4


def test_help_names_every_flag_and_default() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, WorkerConfig)
    text = " ".join(parser.format_help().split())
    for setting in config_values.settings(WorkerConfig).values():
        assert setting.flag in text
    assert "(default: 512)" in text
    assert "SUPPRESS" not in text
