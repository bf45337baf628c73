"""Every command that docs, examples and notes tell people to type is one that its program takes.

kubectl and helm are run against a server that is not there: what they object to before they miss it is our mistake.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from trieway.cli import build_parser

from . import tools
from .chart import CHART, EXAMPLES, HELMS, VALUES, install, rendered, template
from .dockerfile import read
from .fake_api import fake_api

ROOT = tools.ROOT
PAGES = [ROOT / "docs" / "operations.md", CHART / "README.md", *EXAMPLES]
PROGRAMS = ("kubectl", "helm", "docker", "trieway", "openssl")
NOWHERE = "http://127.0.0.1:9"
FILLED = {"POD": "pod-1", "FILE": "/dev/null", "URL": "http://127.0.0.1:9", "PROMPT": "why", "M": "smollm2-135m"}


def commands(text: str) -> Iterator[str]:
    """The commands of a page: whole lines of its blocks (also in an example's comments), and spans of code; of a
    command, more than its name must be there."""
    text = re.sub(r"<<'END'\n.*?\nEND\n", "\n", text, flags=re.DOTALL)
    lines = [re.sub(r"^(# {1,3}|\s+)", "", line) for line in text.splitlines()]
    spans = re.findall(r"`([^`]+)`", re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.DOTALL | re.MULTILINE))
    for one in [*lines, *(span.replace("\n", " ") for span in spans)]:
        for part in one.split(";"):
            words = part.split("#")[0].split("|")[0].split(">")[0].strip()
            if words.split(" ")[0] in PROGRAMS and len(words.split()) > 2:
                yield words


@cache
def told() -> dict[str, str]:
    """Command -> the page that tells it."""
    found = {command: page.name for page in PAGES for command in commands(page.read_text())}
    readme = (ROOT / "README.md").read_text().partition("## On Kubernetes")[2].partition("\n## ")[0]
    return found | dict.fromkeys(commands(readme), "README.md")


def of(program: str) -> list[str]:
    return sorted(command for command in told() if command.split()[0] == program)


def words_of(command: str) -> list[str]:
    return [FILLED.get(word, word) for word in shlex.split(command)]


def misses_only_the_server(run: subprocess.CompletedProcess[str]) -> bool:
    return run.returncode != 0 and bool(re.search(r"127\.0\.0\.1:9[:/ ].*refused|unreachable", run.stderr))


def test_the_pages_tell_commands_of_every_kind() -> None:
    assert len(of("kubectl")) >= 12
    assert len(of("helm")) >= 7
    assert len(of("docker")) == 2
    assert len(of("trieway")) >= 2


@pytest.mark.helm
@pytest.mark.parametrize("command", of("kubectl"))
def test_kubectl_takes_it(kubectl: Path, command: str, tmp_path: Path) -> None:
    for name in ("client-key", "admin-key", "fleet-secret", "my-hub-token.txt", "my-redis-password.txt"):
        (tmp_path / name).write_text("x")
    run = subprocess.run(
        [kubectl, f"--server={NOWHERE}", *words_of(command)[1:]],
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path, input=POD,
        env={"PATH": "", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert misses_only_the_server(run), f"{told()[command]}: {command}: {run.stderr}"


@pytest.mark.helm
@pytest.mark.parametrize("command", of("helm"))
def test_helm_takes_it(helm: str, command: str, tmp_path: Path) -> None:
    words = words_of(command)[1:]
    run = subprocess.run(
        [tools.helm(helm), f"--kube-apiserver={NOWHERE}", *words],
        capture_output=True, text=True, timeout=300, check=False, cwd=ROOT, env={"PATH": "", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert misses_only_the_server(run), f"{told()[command]}: {command}: {run.stderr}"
    if "install" in words or "upgrade" in words:
        # What it would install renders.
        flags = [
            word
            for word in words[words.index("helm/trieway") + 1 :]
            if word not in ("--create-namespace", "--reuse-values")
        ]
        assert template(helm, *(str(ROOT / flag) if flag.startswith("helm/") else flag for flag in flags))


@pytest.mark.parametrize("command", of("trieway"))
def test_trieway_takes_it(command: str) -> None:
    build_parser().parse_args(words_of(command)[1:])


@pytest.mark.parametrize("command", of("docker"))
def test_docker_is_told_a_target_that_there_is(command: str) -> None:
    words = words_of(command)
    target, tag = words[words.index("--target") + 1], words[words.index("-t") + 1]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert target in read(ROOT / "Dockerfile")
    assert tag.endswith(f":{version}-{target}"), "the name that the chart looks for"


def manifests_in_docs() -> list[dict[str, Any]]:
    text = (ROOT / "docs" / "operations.md").read_text()
    return [yaml.safe_load(found) for found in re.findall(r"<<'END'\n(.*?)\nEND\n", text, re.DOTALL)]


POD = yaml.safe_dump(manifests_in_docs()[0])


@pytest.mark.helm
@pytest.mark.usefixtures("validators", "helms")
def test_the_pod_that_fetches_reports_is_valid_and_finds_the_charts_claim() -> None:
    import kubernetes_validate

    (pod,) = manifests_in_docs()
    kubernetes_validate.validate(pod, "1.37", strict=True)
    (volume,) = pod["spec"]["volumes"]
    text = template(HELMS[-1], "--set=fullnameOverride=trieway,load.enabled=true", "--show-only=templates/load.yaml")
    assert f"name: {volume['persistentVolumeClaim']['claimName']}\n" in text
    assert f"mountPath: {pod['spec']['containers'][0]['volumeMounts'][0]['mountPath']}\n" in text


@pytest.mark.helm
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_notes_tell_commands_that_kubectl_and_helm_take(
    kubectl: Path, helms: None, values: Path, tmp_path: Path
) -> None:
    with fake_api() as api:
        notes = install(HELMS[-1], api, "--values", str(values)).partition("NOTES:")[2]
    names = {one["metadata"]["name"] for one in rendered(HELMS[-1], values)}
    found = list(commands(notes))
    assert len(found) >= 3
    for command in found:
        program, *words = shlex.split(command)
        binary, server = (kubectl, "--server") if program == "kubectl" else (tools.helm(HELMS[-1]), "--kube-apiserver")
        run = subprocess.run(
            [binary, f"{server}={NOWHERE}", *words],
            capture_output=True, text=True, timeout=300, check=False, env={"PATH": "", "HOME": str(tmp_path)},
        )  # fmt: skip
        assert misses_only_the_server(run), f"{command}: {run.stderr}"
        for kind, name in re.findall(r"\b(deployment|service|rayservice|job)/([\w-]+)", command):
            assert name in names, f"the notes name {kind} {name}"
