"""The serving layer loads quickly and drags no model library in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FORBIDDEN = {"torch", "tokenizers", "transformers", "numpy", "gguf", "safetensors", "ray"}
FOLDER = Path(__file__).parents[2] / "src/trieway/serving"
# Modules named for Ray are imported on Ray alone.
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("ray_"))


def test_no_model_library() -> None:
    names = ["trieway.serving." + name for name in MODULES if name != "__init__"]
    program = (
        f"import importlib, json, sys; [importlib.import_module(name) for name in {names!r}];"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not FORBIDDEN & set(json.loads(run.stdout))
