"""The source is held to its own rules: purity of the cores, imports, size, docstrings, links, no local traces."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE_FOLDERS = ("meta_tree", "router", "worker", "kernels", "loadgen", "src/trieway/serving", "src/trieway/fleet")
PURE_FOLDERS = ("meta_tree", "router/core", "worker/core", "loadgen/sim", "loadgen/workloads")
LINES_MAX = 450
IMPURE = {
    *("asyncio", "threading", "multiprocessing", "concurrent", "socket", "ssl", "selectors", "subprocess", "logging"),
    *("os", "pathlib", "io", "tempfile", "shutil", "time", "datetime", "secrets", "sys"),
    *("torch", "ray", "prometheus_client", "httpx", "aiohttp", "fastapi", "starlette", "uvicorn", "numpy"),
}


@cache
def tracked() -> tuple[Path, ...]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = (ROOT / line for line in listing.stdout.splitlines())
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


def sources(*folders: str) -> list[Path]:
    roots = [ROOT / folder for folder in folders]
    return [path for path in tracked() if path.suffix == ".py" and any(root in path.parents for root in roots)]


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", sources(*PURE_FOLDERS), ids=relative)
def test_a_core_touches_nothing_outside_itself(path: Path) -> None:
    tree = ast.parse(path.read_text())
    impure = {name for name in imports(tree) if name.split(".")[0] in IMPURE or name.startswith("trieway.serving")}
    assert not impure, f"{relative(path)} imports {sorted(impure)}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input"}, f"{relative(path)}:{node.lineno} does IO"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
            assert node.attr == "Random", f"{relative(path)}:{node.lineno}: randomness comes in as an argument"


@pytest.mark.parametrize("path", sources(*SOURCE_FOLDERS), ids=relative)
def test_libraries_stay_where_they_belong(path: Path) -> None:
    where = relative(path)
    for name in imports(ast.parse(path.read_text())):
        package = name.split(".")[0]
        if package == "torch":
            inside_worker = where.startswith("worker/") and not where.startswith("worker/core/")
            assert inside_worker or (where.startswith("kernels/") and "native" not in where), f"{where} imports torch"
        if package == "ray":
            assert "ray" in path.stem, f"{where} imports ray"
        if package == "prometheus_client":
            assert path.name == "metrics.py", f"{where} imports prometheus_client"


@pytest.mark.parametrize("path", sources(*SOURCE_FOLDERS), ids=relative)
def test_a_file_tells_one_thing(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LINES_MAX, f"{relative(path)} is over {LINES_MAX} lines: split it"
    assert ast.get_docstring(ast.parse(text)), f"{relative(path)} has no module docstring"


def test_nothing_local_is_in_the_tree() -> None:
    traces = re.compile(r"/(?:work|farm|root|home)/\w|index-url|--registry[= ]|\.pythonhosted|pypi\.org/simple")
    allowed = {"tests/test_tidy.py"}
    for path in tracked():
        if relative(path) in allowed or path.suffix in {".png", ".gz"}:
            continue
        found = traces.search(path.read_text(errors="replace"))
        assert found is None, f"{relative(path)} holds {found.group() if found else ''}"


def test_markdown_links_lead_somewhere() -> None:
    for path in tracked():
        if path.suffix == ".md":
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
                if "://" not in target:
                    assert (path.parent / target).exists(), f"{relative(path)} links to {target}"


def test_decision_records_are_short() -> None:
    for path in (ROOT / "docs/decisions").glob("*.md"):
        assert len(path.read_text().splitlines()) <= 40, f"{path.name} is over 40 lines"


def test_make_targets_named_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert named, "README names its commands"
    assert named <= targets, f"README names {sorted(named - targets)}, which the Makefile lacks"
