"""The simulator imports the two cores and the meta-tree, never a shell."""

from __future__ import annotations

import ast
from pathlib import Path

import trieway.loadgen.sim

FOLDER = Path(trieway.loadgen.sim.__file__).parent
OF_LOADGEN = {"sim", "records", "vocabulary", "flow", "filler", "prompts"}


def test_the_simulator_knows_no_shell() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("trieway."):
                _, package, *rest = node.module.split(".")
                inside = rest[0] if rest else ""
                allowed = {"meta_tree": {inside}, "kernels": {"block_hash"}, "router": {"core"}, "worker": {"core"}}
                allowed["loadgen"] = OF_LOADGEN
                assert inside in allowed.get(package, set()), f"{path.name} imports {node.module}"
