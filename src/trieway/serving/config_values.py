"""From what a user wrote to a setting's value: one reader for flags, environment and files.

Keeps true: a value has its key's type and range, or there is a ConfigError of one line that names the place. Does not
know where values come from.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from trieway.serving.config import ConfigError, Key

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}
_AMOUNT = re.compile(r"([0-9][0-9_]*)\s*([kmg]i?)?b?\Z", re.IGNORECASE)
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One key of a configuration class. `kind` is the type without `None`; `optional` says whether None will do."""

    name: str
    kind: Any
    optional: bool
    default: Any
    key: Key

    @property
    def flag(self) -> str:
        """`--kv-tokens`."""
        return "--" + (self.key.flag or self.name.replace("_", "-"))

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that will do; () for other types."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()


def settings(config: type) -> dict[str, Setting]:
    """The keys of a configuration class by name; nested configurations are not among them."""
    return _settings(config)


@cache
def _settings(config: Any) -> dict[str, Setting]:
    hints = typing.get_type_hints(config, include_extras=True)
    found: dict[str, Setting] = {}
    for field in dataclasses.fields(config):
        hint = hints[field.name]
        if typing.get_origin(hint) is not Annotated:
            continue
        kind, key = typing.get_args(hint)
        optional = typing.get_origin(kind) in (types.UnionType, typing.Union)
        if optional:
            (kind,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
        found[field.name] = Setting(name=field.name, kind=kind, optional=optional, default=field.default, key=key)
    return found


def read_value(setting: Setting, value: object, where: str, folder: Path | None = None) -> Any:
    """`value`, text or what YAML and TOML give, as the setting's type. Relative paths begin at `folder`.

    `where` is the place to name in a ConfigError: a flag, an environment name, or file and key.
    """
    if value is None:
        if setting.optional:
            return None
        raise ConfigError(f"{where}: a value is needed")
    kind = setting.kind
    if kind is bool:
        return _bool(value, where)
    if kind is int or kind is float:
        return _number(setting, value, where)
    if setting.choices:
        if not isinstance(value, str) or value not in setting.choices:
            raise ConfigError(f"{where}: one of {', '.join(setting.choices)} is needed, not {_shown(value)}")
        return value
    if kind is Path:
        path = Path(_text(value, where)).expanduser()
        return folder / path if folder is not None else path
    if typing.get_origin(kind) is tuple:
        return _texts(value, where)
    assert kind is str, f"no reader for {setting.name}: {kind}"
    return _text(value, where)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: text is needed, not {_shown(value)}")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    """A list, or one string with commas or spaces between."""
    parts = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise ConfigError(f"{where}: a list is needed, not {_shown(value)}")
    return tuple(_text(part, where) for part in parts if part != "")


def _bool(value: object, where: str) -> bool:
    word = value.lower() if isinstance(value, str) else value
    if word is True or word in _TRUE:
        return True
    if word is False or word in _FALSE:
        return False
    raise ConfigError(f"{where}: true or false is needed, not {_shown(value)}")


def _number(setting: Setting, value: object, where: str) -> int | float:
    number = _whole(setting, value) if setting.kind is int else _real(value)
    if number is None:
        kind = "a whole number" if setting.kind is int else "a number"
        hint = " (such as 16MiB)" if "bytes" in setting.name else ""
        if isinstance(value, str) and value.startswith("tcp://"):
            hint = "; Kubernetes made this for a Service: set enableServiceLinks: false"
        raise ConfigError(f"{where}: {kind} is needed, not {_shown(value)}{hint}")
    least, most = setting.key.least, setting.key.most
    if (least is not None and number < least) or (most is not None and number > most):
        bounds = f"at least {least:g}" if most is None else f"from {least:g} to {most:g}"
        raise ConfigError(f"{where}: {bounds} is needed, not {number}")
    return number


def _whole(setting: Setting, value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    amount = _AMOUNT.match(text) if "bytes" in setting.name else None
    try:
        return int(amount[1]) * _UNITS[(amount[2] or "").lower()] if amount else int(text)
    except ValueError:
        return None


def _real(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
