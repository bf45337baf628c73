"""Loading: flags over environment over one file over defaults. (Signatures first.)"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from trieway.serving.config import RouterConfig, UpConfig, WorkerConfig

C = TypeVar("C", WorkerConfig, RouterConfig, UpConfig)


def add_flags(parser: argparse.ArgumentParser, kind: type[WorkerConfig] | type[RouterConfig] | type[UpConfig]) -> None:
    """One flag for each key of `kind`, absent from the namespace unless given, and `--config FILE`."""
    raise NotImplementedError


def load(kind: type[C], *, flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None) -> C:
    """The effective configuration. `flags`: `vars(namespace)`; names that are no key of `kind` are ignored there.

    Raises ConfigError, one line, naming the key.
    """
    raise NotImplementedError


def to_flags(config: WorkerConfig | RouterConfig) -> list[str]:
    """The command-line flags that give this very configuration."""
    raise NotImplementedError


def show(config: WorkerConfig | RouterConfig | UpConfig) -> str:
    """The configuration as YAML."""
    raise NotImplementedError
