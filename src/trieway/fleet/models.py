"""`trieway models`: the models that can be named, and whether this machine has them."""

from __future__ import annotations

from trieway.fleet.console import table
from trieway.worker.models.catalog import CATALOG


def models() -> str:
    """A table of the catalogue, and what else may be given."""
    rows = [
        (entry.name, entry.title, "installed" if entry.packaged_file() else f"run `{entry.install}`")
        for entry in CATALOG
    ]
    listing = table(("name", "model", "here"), rows, left=3)
    return f"{listing}\n\nAlso: a directory with config.json, *.safetensors and tokenizer.json, or a GGUF file."
