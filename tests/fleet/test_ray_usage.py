"""Settings of a fleet on Ray that cannot be, refused before Ray is looked for; and why a replica waits for a node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trieway import cli
from trieway.fleet.ray_pending import PLACING, Offer, Wish, matches, why_waiting, wish
from trieway.fleet.ray_reports import outline
from trieway.fleet.ray_view import cause
from trieway.serving.config import ConfigError
from trieway.serving.config_ray import amounts, labels

Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--fleet", "a/b"], "fleet: up to 63 letters"),
        (["--fleet", "-"], "fleet: up to 63 letters"),
        (["--model", "a", "a"], "models: one is named twice"),
        (["--workers", "0"], "--workers: from 1 to 4096"),
        (["--workers-min", "3"], "workers_min: only with workers_max"),
        (["--workers-min", "3", "--workers-max", "2"], "workers_min: at most workers_max"),
        (["--scale-calm-s", "3"], "scale_calm_s: only with workers_max"),
        (["--scale-ttft-ms", "fast", "--workers-max", "2"], "--scale-ttft-ms: a number"),
        (["--worker-labels", "disk"], "worker_labels: NAME=VALUE is needed, not 'disk'"),
        (["--worker-labels", "a=b", "a=c"], "worker_labels: a is named twice"),
        (["--worker-resources", "fast=no"], "worker_resources: fast: a number above 0"),
        (["--worker-resources", "fast=0"], "worker_resources: fast: a number above 0"),
        (["--worker-resources", "GPU=1"], "worker_gpus"),
        (["--model", "nosuch"], "models: no model 'nosuch'; give one of smollm2-135m, or a path"),
        (["--model", "\udcff"], "models: no model"),
        (["--roll", "\udcff\udcfe"], "--roll: text is needed"),
        (["--worker-cpus", "0"], "worker_cpus: above 0 is needed"),
        (["--worker-gpus", "-1"], "--worker-gpus: at least 0"),
        (["--port", "0"], "--port: from 1 to 65535"),
        (["--config", "/no/such/file.yaml"], "/no/such/file.yaml"),
        (["--workers-maximum", "3"], "unrecognized arguments"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings_that_cannot_be(flags: list[str], says: str, capsys: Output) -> None:
    assert cli.main(["ray", "up", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err


def test_a_file_may_hold_them_all(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("ray:\n  workers_max: 3\n  worker_labels: ['zone=in(a,b)', disk=fast]\n  scale_calm_s: 30\n")
    assert cli.main(["config", "show", "ray", "--config", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "- zone=in(a,b)" in shown
    file.write_text("ray:\n  worker_label: [a=b]\n")
    assert cli.main(["ray", "up", "--config", str(file)]) == 2
    assert "did you mean worker_labels?" in capsys.readouterr().err


def test_without_ray_a_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['ray'] = None; from trieway.cli import main; sys.exit(main(['ray', 'status']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "trieway: error: `trieway ray` needs Ray: pip install 'trieway[ray]'\n"


def test_pairs_are_read() -> None:
    assert labels(["zone=in(a,b)", " disk = !slow "], "x") == {"zone": "in(a,b)", "disk": "!slow"}
    assert amounts(["fast=0.5", "other=2"], "x") == {"fast": 0.5, "other": 2.0}
    for bad in ("=a", "a=", "a=nan", "a=inf", "CPU=1"):
        with pytest.raises(ConfigError, match=r"^x: "):
            amounts([bad], "x")


@pytest.mark.parametrize(
    ("wanted", "value", "fits"),
    [
        *(("a", "a", True), ("a", "b", False), ("a", None, False)),
        *(("!a", "b", True), ("!a", "a", False), ("!a", None, True)),
        *(("in(a, b)", "b", True), ("in(a,b)", "c", False), ("!in(a,b)", "c", True), ("!in(a,b)", "a", False)),
    ],
)
def test_labels_are_selected_as_ray_does(wanted: str, value: str | None, fits: bool) -> None:
    assert matches(wanted, value) is fits


def node(address: str, cpus: float, gpus: float, *, free_gpus: float | None = None, **found: str) -> Offer:
    free = {"CPU": cpus, "GPU": gpus if free_gpus is None else free_gpus}
    return Offer(address=address, amounts={"CPU": cpus, "GPU": gpus}, free=free, labels=found)


NODES = [node("a", 8, 4, free_gpus=1, disk="fast"), node("b", 64, 0, disk="slow", zone="x"), node("head", 0, 0)]


@pytest.mark.parametrize(
    ("amounts_", "labels_", "why"),
    [
        ({"GPU": 9}, {}, "no node offers 9 GPU; the most is 4"),
        ({"CPU": 1}, {"disk": "wide"}, "no node has the label disk=wide; disk is fast, slow"),
        ({"CPU": 1}, {"rack": "7"}, "no node has the label rack=7; none has rack at all"),
        ({"CPU": 1}, {"disk": "fast", "zone": "x"}, "no node has all the labels disk=fast, zone=x"),
        ({"GPU": 1}, {"disk": "slow"}, "no node with disk=slow offers 1 GPU; the most is 0"),
        ({"CPU": 32, "GPU": 1}, {}, "no node offers all of 32 CPU, 1 GPU at once"),
        ({"GPU": 2}, {}, "2 GPU asked for, nodes that could are full; free: a (1 GPU)"),
        ({"GPU": 1}, {}, PLACING),
    ],
)
def test_why_a_replica_waits(amounts_: dict[str, float], labels_: dict[str, str], why: str) -> None:
    assert why_waiting(Wish(amounts=amounts_, labels=labels_), NODES) == why


def test_a_wish_is_read_from_an_actors_options() -> None:
    options = {"num_cpus": 1.0, "num_gpus": 0, "resources": {"node:a": 0.001}, "label_selector": {"disk": "fast"}}
    assert wish(options) == Wish(amounts={"CPU": 1.0, "node:a": 0.001}, labels={"disk": "fast"})
    assert wish({}) == Wish(amounts={}, labels={})


def test_many_full_nodes_are_not_all_named() -> None:
    nodes = [node(f"n{number}", 8, 1, free_gpus=0) for number in range(9)]
    said = why_waiting(Wish(amounts={"GPU": 1}, labels={}), nodes)
    assert said.endswith("n3 (0 GPU) and 5 more")


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("Traceback ...\n  File x\nChildFailed: it ended: no model nope\n", "it ended: no model nope"),
        ("ModuleNotFoundError: No module named 'trieway'", "install it there, or submit this as a job"),
        ("Traceback " + "x" * 5000 + " the end", "the end"),
        ("", ""),
    ],
)
def test_of_a_traceback_the_cause_is_told(message: str, says: str) -> None:
    told = cause(message)
    assert says in told
    assert len(told) <= 600
    assert "\n" not in told


def test_a_report_in_a_line() -> None:
    run = (
        b'{"schema":"trieway.report/1","kind":"load","workload":"w","partial":true,"requests":{"measured":7,"failed":1},'
        b'"rates":{"achieved_per_s":2.5},"latency":{"ttft_ms":{"p95":12000.0}}}'
    )
    assert outline("a", run)["found"] == "partial: 2.50/s, 1 failed, TTFT p95 12.0 s"
    study = (
        b'{"schema":"trieway.study/1","kind":"capacity","workload":"w","partial":false,'
        b'"points":[{"requests":{"measured":3}},{"requests":{"measured":4}}],"capacities":[{"why":"held at 4/s"}]}'
    )
    assert outline("b", study) == {
        "name": "b", "kind": "capacity", "workload": "w", "requests": 7, "found": "held at 4/s",
    }  # fmt: skip
