"""Configurations as command-line flags, both ways.

Keeps true: `load` of what `to_flags` gives is the same configuration. Does not read environment or files.
"""

from __future__ import annotations

import argparse
import os

from trieway.serving.config import RayConfig, RouterConfig, UpConfig, WorkerConfig
from trieway.serving.config_values import Setting, settings

AnyConfig = WorkerConfig | RouterConfig | UpConfig | RayConfig
FLEETS: tuple[type[UpConfig] | type[RayConfig], ...] = (UpConfig, RayConfig)
"""Configurations that hold those of the processes behind them."""


def add_flags(parser: argparse.ArgumentParser, kind: type[AnyConfig]) -> None:
    """One flag for each key of `kind`, absent from the namespace unless given, and `--config FILE`.

    Values stay text: `load` reads them, so that all sources give the same errors.
    """
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="YAML or TOML file with settings")
    for setting in settings(kind).values():
        _add_flag(parser, setting)
    if kind in FLEETS:
        _add_flags_behind(parser, kind)


def _add_flags_behind(parser: argparse.ArgumentParser, fleet: type[AnyConfig]) -> None:
    """The flags of the processes behind a fleet; its own keys are its own, and a key of both processes reaches both."""
    own = settings(fleet)
    taken = {*own, *(setting.flag for setting in own.values())}
    for title, kind in (("every worker", WorkerConfig), ("the router", RouterConfig)):
        group = parser.add_argument_group(f"of {title}")
        for name, setting in settings(kind).items():
            if taken.isdisjoint((name, setting.flag)):
                taken |= {name, setting.flag}
                _add_flag(group, setting)


def _add_flag(parser: argparse._ActionsContainer, setting: Setting) -> None:
    shown = "" if setting.default in (None, ()) else f" (default: {_word(setting.default)})"
    help_text = (setting.key.help + shown).replace("%", "%%")
    flag = {"dest": setting.name, "default": argparse.SUPPRESS, "help": help_text}
    if setting.kind is bool:
        parser.add_argument(setting.flag, action=argparse.BooleanOptionalAction, **flag)  # type: ignore[arg-type]
    elif setting.choices:
        parser.add_argument(setting.flag, choices=setting.choices, **flag)  # type: ignore[arg-type]
    elif isinstance(setting.default, tuple):
        parser.add_argument(setting.flag, action="extend", nargs="+", metavar=_metavar(setting), **flag)  # type: ignore[arg-type]
    else:
        parser.add_argument(setting.flag, metavar=_metavar(setting), **flag)  # type: ignore[arg-type]


def _metavar(setting: Setting) -> str:
    if isinstance(setting.default, tuple):
        return {"workers": "URL"}.get(setting.name, setting.name.removesuffix("s").upper())
    if setting.name.endswith(("_file", "_template")):
        return "FILE"
    return "SECONDS" if setting.name.endswith("_s") else setting.name.rsplit("_", 1)[-1].upper()


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def to_flags(config: WorkerConfig | RouterConfig) -> list[str]:
    """The command-line flags that give this very configuration, whatever environment or file says otherwise.

    Keys that are None have no flag: the environment decides them, as it did for `config`.
    """
    flags: list[str] = []
    for setting in settings(type(config)).values():
        value = getattr(config, setting.name)
        if value is None or value == ():
            continue
        if setting.kind is bool:
            flags.append(setting.flag if value else "--no-" + setting.flag.removeprefix("--"))
        elif isinstance(value, tuple):
            flags += [setting.flag, *value]
        else:
            # One word, so that a value which begins with a dash is no flag.
            flags.append(f"{setting.flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return flags
