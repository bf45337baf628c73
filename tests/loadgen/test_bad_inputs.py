"""The command line as an attacker types it: whatever the flags and files, one clear line, exit code 2, no traceback.

What needs a server is in test_load_cli.py; here nothing is sent, and nothing simulated.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.cli import main
from trieway.loadgen.errors import LoadError
from trieway.loadgen.sources import load

Output = pytest.CaptureFixture[str]
URL = "127.0.0.1:9"
ROW = '{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[0]}'
TEXT = '{"timestamp":0,"session_id":"a","step":0,"keep_chars":0,"append":"x","output":""}'
REQUEST = '{"messages":[{"role":"user","content":"hi"}]}'


def refused(capsys: Output, *arguments: str, code: int = 2) -> str:
    """The one line."""
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith("trieway: error: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error.removeprefix("trieway: error: ").rstrip("\n")


# Files. Each is tried by everything that reads such a file; the line at fault is named wherever there is one.

BROKEN_TRACES = {
    "nothing": (b"", "no rows"),
    "blank lines": (b"\n\n \n", "no rows"),
    "half a gzip": (gzip.compress((ROW + "\n").encode() * 50)[:40], "broken gzip"),
    "a negative time": (ROW.replace(":0,", ":-1,", 1), ":1: broken row"),
    "not a number": (ROW.replace(":0,", ":NaN,", 1), ":1: broken"),
    "an endless time": (ROW.replace(":0,", ":1e999,", 1), ":1: broken row"),
    "a time of another age": (ROW.replace(":0,", ":1e18,", 1), ":1: broken row"),
    "more tokens than can be": (ROW.replace("512", "9" * 23), ":1: broken row"),
    "an answer without end": (ROW.replace('"output_length":1', '"output_length":1000000000'), ":1: broken row"),
    "a negative answer": (ROW.replace('"output_length":1', '"output_length":-1'), ":1: broken row"),
    "no prompt": (ROW.replace("512", "0").replace("[0]", "[]"), ":1: broken row"),
    "time that goes back": (ROW.replace(":0,", ":9,", 1) + "\n" + ROW, ":2: `timestamp` goes back"),
    "too many ids": (ROW.replace("[0]", "[0,1]"), ":1: 2 `hash_ids`"),
    "ids of text": (ROW.replace("[0]", '["a"]'), ":1: broken row"),
    "two parents": (
        "\n".join(ROW.replace("512", "1024").replace("[0]", ids) for ids in ("[0,1]", "[2,1]")),
        ":2: block 1 follows 2",
    ),
    "another kind of row later": (ROW + "\n" + REQUEST, ":2: broken row"),
    "no session": (ROW.replace("512", "64").replace("}", ',"session_id":null}'), ":1: broken row"),
    "a step that is left out": (TEXT.replace('"step":0', '"step":1'), ":1: step 1"),
    "text kept of nothing": (TEXT.replace('"keep_chars":0', '"keep_chars":5'), ":1: `keep_chars` is 5"),
    "an empty text": (TEXT.replace('"append":"x"', '"append":""'), ":1: an empty prompt"),
    "half a character": (TEXT.replace('"append":"x"', '"append":"\\ud800"'), ":1: broken"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_TRACES)
def test_a_broken_trace_is_named_with_its_line(name: str, tmp_path: Path, capsys: Output) -> None:
    data, says = BROKEN_TRACES[name]
    path = tmp_path / "t.jsonl"
    path.write_bytes(data if isinstance(data, bytes) else data.encode() + b"\n")
    for arguments in (
        ("load", "replay", str(path), URL),
        ("load", "replay", str(path), "--rules", "reference"),
        ("load", "sweep", URL, "--workload", str(path), "--rates", "1"),
        ("sim", "run", "--workload", str(path), "--arrivals", "trace"),
        ("sim", "replay", str(path)),
    ):
        line = refused(capsys, *arguments)
        assert line.startswith(str(path)), arguments
        assert says in line, arguments


BROKEN_REQUESTS = {
    "null": ("null", ":1: "),
    "a number": ("5", ":1: "),
    "a list": ("[1]", ":1: "),
    "no UTF-8": (b"\x00\xff\xfe", ":1: "),
    "a deep hole": ("[" * 100_000, ":1: "),
    "no messages": ('{"messages":[]}', ":1: "),
    "messages of text": ('{"messages":"x"}', ":1: "),
    "both": ('{"prompt":"x","messages":[{"role":"user","content":"hi"}]}', ":1: "),
    "an empty prompt": ('{"prompt":""}', ":1: "),
    "a prompt that is none": ('{"prompt":5}', ":1: "),
    "no tokens": (REQUEST.replace("}]", '}],"max_tokens":0', 1), ":1: "),
    "tokens without end": (REQUEST.replace("}]", '}],"max_tokens":99999999999', 1), ":1: "),
    "waiting for nobody": (REQUEST.replace("}]", '}],"after":["zz"]', 1), ":1: "),
    "a negative time": (REQUEST.replace("}]", '}],"timestamp":-5', 1), ":1: "),
    "a hot temperature": (REQUEST.replace("}]", '}],"temperature":"hot"', 1), ":1: "),
    "one name twice": ("\n".join([REQUEST.replace("}]", '}],"id":"a"', 1)] * 2), ":2: "),
    "half a pair": ('{"question":"q"}', ":1: "),
}


@pytest.mark.parametrize("name", BROKEN_REQUESTS)
def test_a_broken_request_is_named_with_its_line(name: str, tmp_path: Path, capsys: Output) -> None:
    data, says = BROKEN_REQUESTS[name]
    path = tmp_path / "mine.jsonl"
    path.write_bytes(data if isinstance(data, bytes) else data.encode() + b"\n")
    for arguments in (("load", "replay", str(path), URL), ("sim", "run", "--workload", str(path))):
        line = refused(capsys, *arguments)
        assert f"{path}{says}" in line, arguments


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"nope", b"\xff\xfe", b'{"schema":"trieway.report/1"}', b"[]", b"[" * 9999]
)
def test_what_is_no_report_is_said_to_be_none(content: bytes, tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    for command in ("load", "sim"):
        assert "no report" in refused(capsys, command, "compare", str(path), str(path))


def test_files_that_are_not_there_or_no_files(tmp_path: Path, capsys: Output) -> None:
    missing, folder = str(tmp_path / "no.jsonl"), str(tmp_path)
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 200_000)
    for arguments, says in (
        (("load", "replay", missing, URL), "neither a file nor a workload"),
        (("load", "replay", missing, "--rules", "reference"), "No such file"),
        (("load", "replay", folder, URL), "directory"),
        (("load", "replay", folder, "--rules", "reference"), "no traces"),
        (("sim", "run", "--workload", folder), "directory"),
        (("sim", "replay", missing), "No such file"),
        (("sim", "replay", folder), "no traces"),
        (("load", "compare", folder, folder), "cannot read"),
        (("load", "compare", "a\0b", "a\0b"), "cannot read"),
        (("sim", "run", "--calibration", folder), "cannot read"),
        (("sim", "run", "--calibration", "/dev/null"), "no JSON"),
        (("sim", "run", "--calibration", str(deep)), "no JSON"),
    ):
        assert says in refused(capsys, *arguments), arguments


# Flags of load and of sim that mean the same are refused alike.

COMMON: list[tuple[Sequence[str], str]] = [
    (("--arrivals", "poisson:nan"), "above 0"),
    (("--arrivals", "poisson:inf"), "above 0"),
    (("--arrivals", "poisson:"), "no arrival process"),
    (("--arrivals", "poisson:fast"), "number that is none"),
    (("--arrivals", "poisson:1:2"), "no arrival process"),
    (("--arrivals", ""), "no arrival process"),
    (("--arrivals", "ramp:0:0:5"), "above 0"),
    (("--arrivals", "ramp:1:2:0"), "times above 0"),
    (("--arrivals", "steps:1x0"), "times above 0"),
    (("--arrivals", "steps:"), "no arrival process"),
    (("--arrivals", "steps:1x"), "number that is none"),
    (("--arrivals", "gamma:1:0"), "burstiness"),
    (("--arrivals", "gamma:1:nan"), "burstiness"),
    (("--arrivals", "closed:-1"), "users are"),
    (("--arrivals", "closed:99999999999"), "users are"),
    (("--arrivals", "trace:0"), "above 0"),
    (("--arrivals", "trace:nan"), "above 0"),
    (("--duration=-1s",), "no time"),
    (("--duration", ""), "no time"),
    (("--warmup", "nan"), "no time"),
    (("--repeats", "1000000"), "1000"),
    (("--set", "conversations=0"), "conversations is"),
    (("--set", "conversations=1e3"), "whole number"),
    (("--set", "conversations=999999999999"), "conversations is"),
    (("--set", "scale=nan"), "scale is"),
    (("--set", "scale=1e9"), "scale is"),
    (("--set", "=1"), "KEY=VALUE"),
    (("--set", "turns="), "whole number"),
    (("--slo", ""), "the SLO is empty"),
    (("--slo", "ttft_p95=nan"), "not understood"),
    (("--slo", "ttft_p95=0"), "above zero"),
    (("--slo", "ttft_p200=1s"), "names no metric"),
    (("--slo", "ttft_p95=1s,ttft_p95=2s"), "twice"),
    (("--slo", "errors=200%"), "0 to 100 %"),
    (("--json", "/dev/null/r.json"), "cannot write"),
    (("--json", "a\0b"), "cannot write"),
    (("--json", "x" * 300), "cannot write"),
    (("--json", "/proc/r.json"), "cannot write"),
    (("--report", "/proc/r.html"), "cannot write"),
    (("--csv", "/proc/r.csv"), "cannot write"),
    (("--json", "same.out", "--csv", "./same.out"), "two reports"),
]


@pytest.mark.parametrize(
    ("flags", "says"), COMMON, ids=lambda value: " ".join(value)[:40] if type(value) is tuple else None
)
def test_what_both_take_both_refuse(
    flags: Sequence[str], says: str, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (("load", "run", URL), ("sim", "run")):
        assert says in refused(capsys, *command, *flags)
    assert not list(tmp_path.iterdir()), "a refusal leaves nothing behind"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *((("run", url), says) for url, says in (
            ("", "no HTTP URL"), ("http://", "no HTTP URL"), ("http://:80", "no HTTP URL"), ("//x", "no HTTP URL"),
            ("http://x:99999", "no URL"), ("http://x:-1", "no URL"), ("http://x:0", "no port 0"),
            ("http://x:abc", "no URL"), ("http://[::1", "no URL"), ("http://a b", "no HTTP URL"),
            ("http://u:p@127.0.0.1:9", "more than host"), ("http://127.0.0.1:9/?q", "more than host"),
            ("http://127.0.0.1:9#f", "more than host"), ("unix:///tmp/x", "no HTTP URL"),
        )),
        (("run", URL, "--timeout", "nan"), "no time"),
        (("run", URL, "--processes", "-1"), "at least 1"),
        (("run", URL, "--scrape", "soon"), "no time"),
        (("run", URL, "--key-file", "/"), "cannot read the key file"),
        (("run", URL, "--key-file", "/dev/null"), "holds no key"),
        (("run", URL, "--tenant-keys", "/nowhere"), "cannot read the key file"),
        (("run", URL, "--admin-key-file", "/nowhere"), "cannot read the key file"),
        (("replay", "mixed", URL, "--rules", "reference"), "leave the URL out"),
        (("replay", "mixed", "--rules", "mine"), "invalid choice"),
        (("sweep", URL, "--rates", ","), "no list of numbers"),
        (("sweep", URL, "--rates", "nan"), "above 0"),
        (("sweep", URL, "--rates", "-1"), "above 0"),
        (("sweep", URL, "--rates", "1", "--process", "gamma"), "no arrival process"),
        (("sweep", URL, "--rates", "1", "--process", "gamma:0"), "burstiness"),
        (("sweep", URL, "--rates", "1", "--repeats", "0"), "at least 1"),
        (("sweep", URL, "--slo", "ttft_p95=1s", "--rate-min", "0"), "above zero"),
        (("sweep", URL, "--slo", "ttft_p95=1s", "--rate-min", "nan"), "above zero"),
        (("sweep", URL, "--slo", "ttft_p95=1s", "--precision", "0"), "precision"),
        (("sweep", URL, "--slo", "ttft_p95=1s", "--precision", "nan"), "precision"),
        (("sweep", "--rates", "1", "--workers", "1", "--up-args", "'"), "--up-args"),
        (("sweep", "--rates", "1", "--policies", "best"), "no policy named 'best'"),
        (("sweep", URL, "--rates", "1", "--state", "/"), "cannot"),
        (("sweep", URL, "--rates", "1", "--state", "/proc/state"), "cannot"),
    ],
)  # fmt: skip
def test_load_refuses_in_one_line(arguments: Sequence[str], says: str, capsys: Output) -> None:
    assert says in refused(capsys, "load", *arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *((("run", f"--{name}", value), f"--{name} is 1 to") for name in (
            "kv-tokens", "page-size", "batch-tokens", "running-max", "gpus", "routers",
        ) for value in ("0", "-5", "99999999999999")),
        (("run", "--workers", "-1"), "1 to 4096 workers"),
        (("run", "--workers", "99999"), "1 to 4096 workers"),
        (("run", "--kv-tokens", "1"), "at least one page"),
        (("run", "--delay=-1ms"), "no time"),
        (("run", "--delay", "100h"), "at most 1 s"),
        (("run", "--jitter", "2s"), "at most 1 s"),
        (("compare", "--policies", ""), "names none"),
        (("compare", "--policies", ","), "names none"),
        (("compare", "--policies", "best"), "no policy named 'best'"),
        (("compare", "--workers", "4,"), "no list of whole numbers"),
        (("compare", "a", "b", "c"), "two reports"),
        (("scale", "--workers", "99999999"), "1 to 4096 workers"),
        (("scale", "--rate", "nan"), "above 0"),
        (("scale", "--rate", "-1"), "a rate above 0"),
        (("seeds", "--first", "-1"), "no negative seed"),
        (("seeds", "--processes", "0"), "one process"),
        (("replay",), "required"),
        (("replay", "x", "--cache", ""), "no size of a cache"),
        (("replay", "x", "--cache", "0"), "no size of a cache"),
        (("replay", "x", "--cache", "-1"), "no size of a cache"),
        (("replay", "x", "--cache", "1G"), "no size of a cache"),
        (("replay", "x", "--cache", "256k,"), "no size of a cache"),
        (("replay", "x", "--cache", "99999999999M"), "no size of a cache"),
        (("replay", "x", "--workers", "5000"), "1 to 4096 workers"),
        (("replay", "x", "--policies", "best"), "no policy named 'best'"),
        (("replay", "x", "--policies", ""), "no policy named ''"),
        (("replay", "x", "--rows", "1"), "at least two rows"),
        (("replay", "x", "--speed", "0"), "--speed is 0.001 to"),
        (("replay", "x", "--speed", "nan"), "--speed is 0.001 to"),
        (("replay", "x", "--speed", "1e-300"), "--speed is 0.001 to"),
        (("replay", "x", "--processes", "0"), "at least 1"),
        (("replay", "x", "--gpu", "tpu"), "no GPU named"),
        (("replay", "x", "--gpus", "0"), "needs a GPU"),
        (("replay", "x", "--json", "/proc/x"), "cannot write"),
    ],
)  # fmt: skip
def test_sim_refuses_in_one_line(arguments: Sequence[str], says: str, capsys: Output) -> None:
    assert says in refused(capsys, "sim", *arguments)


# Where reports go.


def test_a_device_is_written_to_and_never_replaced(tmp_path: Path, capsys: Output) -> None:
    small = ("--set", "conversations=1", "--set", "groups=1", "--set", "turns=1", "--no-bound")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main(["sim", "run", *small, "--json", str(pipe), "--report", "/dev/null"]) == 0
        said = os.read(reader, 1 << 16)
    finally:
        os.close(reader)
    assert said.startswith(b"{")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    capsys.readouterr()


def test_a_link_stays_a_link(tmp_path: Path, capsys: Output) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    assert main(["sim", "run", "--set", "conversations=1", "--set", "groups=1", "--no-bound", "--json", str(link)]) == 0
    assert link.is_symlink()
    assert json.loads(target.read_bytes())["kind"] == "sim"


def test_what_cannot_be_written_at_the_end_loses_nothing_else(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up during the run: the summary is printed, the other files are written, exit code 1."""
    from trieway.loadgen.reports import files

    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if "r.json" in self.name and len(data) != files.TRIAL_BYTES:
            write(self, data[:10])
            raise OSError(28, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    page = tmp_path / "r.html"
    small = ("--set", "conversations=1", "--set", "groups=1", "--no-bound")
    assert main(["sim", "run", *small, "--json", str(tmp_path / "r.json"), "--report", str(page)]) == 1
    told = capsys.readouterr()
    assert "requests measured" in told.out
    assert "No space left on device" in told.err
    assert f"{page} was written" in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_a_full_disk_is_told_before_the_run(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    for command in (("load", "run", URL), ("sim", "run"), ("sim", "compare")):
        assert "No space left on device" in refused(capsys, *command, "--json", str(tmp_path / "r.json"))


# Anything at all.

GOOD = (
    "\n".join(ROW.replace(":0,", f":{at},", 1).replace("[0]", f"[{at}]") for at in range(3)).encode(),
    "\n".join(TEXT.replace('"step":0', f'"step":{at}') for at in range(3)).encode(),
    "\n".join([REQUEST, '{"prompt":"x","session_id":"s"}', '{"custom_id":"a","body":{"prompt":"y"}}']).encode(),
    b'{"question":"one?","answer":"1"}\n{"question":"two?","answer":"2"}',
)


@given(
    data=st.sampled_from(GOOD),
    changes=st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 3), st.binary(max_size=4)), max_size=4),
    packed=st.booleans(),
)
def test_no_file_brings_it_down(data: bytes, changes: list[tuple[int, int, bytes]], packed: bool) -> None:
    """Bytes overwritten, cut out and put in: a workload comes out that keeps its promises, or one line."""
    for place, cut, put in changes:
        at = place % (len(data) + 1)
        data = data[:at] + put + data[at + cut :]
    with NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(gzip.compress(data, 1) if packed else data)
        file.flush()
        said = ""
        try:
            load(file.name).check()
        except LoadError as error:
            said = str(error)
    assert not said or (file.name in said and "\n" not in said)
