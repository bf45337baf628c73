"""A Dockerfile as stages of instructions, and a run of its install steps under another root.

Knows the forms that our Dockerfile uses: ARG with a default, FROM with a name, COPY, RUN in shell form, ENV, WORKDIR.
Does not build images.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    """`base` is an image or another stage, arguments filled in."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def words(self, instruction: str) -> list[str]:
        """What each instruction of this kind says."""
        return [text for kind, text in self.steps if kind == instruction]


def read(path: Path) -> dict[str, Stage]:
    """Stages by name, in order."""
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for kind, text in _instructions(path.read_text()):
        if kind == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", text).groups()  # type: ignore[union-attr]
            stage = stages[name] = Stage(name, fill(base, arguments))
        elif stage is None:
            assert kind == "ARG", f"{kind} before the first FROM"
            key, _, value = text.partition("=")
            arguments[key] = value
        else:
            stage.steps.append((kind, text))
    return stages


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [(kind, rest.strip()) for kind, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def fill(text: str, values: Mapping[str, str]) -> str:
    """`${NAME}` and `$NAME` replaced where known."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found[1], found[0]), text)


def perform(stages: Mapping[str, Stage], name: str, context: Path, root: Path, environ: Mapping[str, str]) -> None:
    """Runs a stage's install steps, and those of the stages below it, with `root` in place of `/`.

    Only folders that these steps themselves make are looked up under `root`. Raises CalledProcessError.
    """
    workdir = root / "build"
    variables = dict(environ)
    for stage in _chain(stages, name):
        for kind, text in stage.steps:
            if kind == "WORKDIR":
                workdir = root / text.lstrip("/")
                workdir.mkdir(parents=True, exist_ok=True)
            elif kind in {"ENV", "ARG"}:
                for pair in re.findall(r"(\w+)=(\S+)", text):
                    variables.setdefault(pair[0], fill(pair[1], variables))
            elif kind == "COPY":
                _copy(text, context, root, workdir)
            elif kind == "RUN":
                command = re.sub(r"(?<![\w.:/])/(src|wheels|opt/trieway|build)\b", rf"{root}/\1", text)
                subprocess.run(
                    ["sh", "-euc", command], cwd=workdir, env=variables, check=True, capture_output=True, text=True,
                    timeout=900,
                )  # fmt: skip


def _chain(stages: Mapping[str, Stage], name: str) -> list[Stage]:
    chain = [stages[name]]
    while chain[0].base in stages:
        chain.insert(0, stages[chain[0].base])
    return chain


def _copy(text: str, context: Path, root: Path, workdir: Path) -> None:
    *sources, target = text.split()
    if sources[0].startswith("--from="):
        return  # what another stage made lies under the same root already
    for source in sources:
        for found in glob.glob(str(context / source)):
            path = Path(found)
            into = workdir / target if path.is_dir() else workdir / target / path.name
            if path.is_dir():
                shutil.copytree(path, into, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, into)


def clean_environment(path: str) -> dict[str, str]:
    """What a build has, and where the package registry is; nothing that points into a checkout."""
    kept = {key: value for key, value in os.environ.items() if key.startswith("PIP_") or key.endswith("_proxy")}
    return kept | {"PATH": path, "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}
