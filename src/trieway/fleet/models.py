"""`trieway models`: the models that can be named, and whether this machine has them."""

from __future__ import annotations

from pathlib import Path

from trieway.fleet.console import table
from trieway.fleet.errors import CommandError
from trieway.worker.models.catalog import CATALOG, resolve
from trieway.worker.models.errors import ModelError


def models() -> str:
    """A table of the catalogue, and what else may be given."""
    rows = [
        (entry.name, entry.title, "installed" if entry.packaged_file() else f"run `{entry.install}`")
        for entry in CATALOG
    ]
    listing = table(("name", "model", "here"), rows, left=3)
    return f"{listing}\n\nAlso: a directory with config.json, *.safetensors and tokenizer.json, or a GGUF file."


def check_there(model: str) -> None:
    """Return if there is a model to try under this name or path, before any process loads what it needs to read one.

    Raises CommandError with what to do.
    """
    packaged = {entry.name: entry.packaged_file() for entry in CATALOG}
    if packaged.get(model) or (model not in packaged and Path(model).expanduser().exists()):
        return
    try:
        resolve(model)  # nothing is there to read: this only says so
    except ModelError as error:
        raise CommandError(str(error)) from None
