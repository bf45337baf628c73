"""Flags read as times, keys and settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from trieway.loadgen.errors import LoadError
from trieway.loadgen.runs.options import key_of, seconds, settings_of, tenant_keys_of


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("5", 5), ("500ms", 0.5), ("1.5s", 1.5), ("2m", 120), ("2 min", 120), (".5h", 1800)]
)
def test_times_have_units(text: str, value: float) -> None:
    assert seconds(text, "duration") == value


@pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "1e3", "nan", "inf", "5s5s"])
def test_what_is_no_time_is_a_line(text: str) -> None:
    with pytest.raises(LoadError, match=r"--duration .* is no time"):
        seconds(text, "duration")


def test_settings_are_pairs() -> None:
    assert settings_of(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for bad in ("a", "=1", ""):
        with pytest.raises(LoadError, match="KEY=VALUE"):
            settings_of([bad])


def test_keys_come_from_files(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# mine\n\n  sk-1  \nsk-2\n")
    assert key_of(path) == "sk-1"
    assert key_of(None) is None
    path.write_text("a sk-a\nb:sk-b\n# c sk-c\n")
    assert tenant_keys_of(path) == {"a": "sk-a", "b": "sk-b"}
    assert tenant_keys_of(None) == {}


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "holds no key"), (b"a\x00b", "cannot be sent"), (b"\xff", "not text")]
)
def test_a_key_file_that_cannot_be_used_is_a_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=says) as caught:
        key_of(path)
    assert "\x00" not in str(caught.value), "no key is shown"


def test_a_tenant_without_a_key_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("lonely\n")
    with pytest.raises(LoadError, match="not `tenant key`"):
        tenant_keys_of(path)
