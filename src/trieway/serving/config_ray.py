"""What single keys of the fleet on Ray cannot show, and its NAME=VALUE pairs: labels and amounts that nodes offer.

Keeps true: what cannot be is a ConfigError of one line that names the setting. Does not know what Ray makes of it, nor
Ray.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable

from trieway.serving.config import ConfigError, RayConfig

FLEET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


def check_ray(config: RayConfig) -> None:
    """ConfigError: these settings do not go together."""
    fleet_name(config.fleet)
    labels(config.worker_labels, "worker_labels")
    amounts(config.worker_resources, "worker_resources")
    if len(set(config.models)) < len(config.models):
        raise ConfigError("models: one is named twice")
    if not config.models:
        raise ConfigError("models: at least one is needed")
    if not config.worker_cpus and not config.worker_gpus and not config.worker_resources:
        raise ConfigError("worker_cpus: above 0 is needed where a worker asks for nothing else: the head would run it")
    if config.workers_max is None:
        plain = RayConfig()
        scaling = [
            field.name for field in dataclasses.fields(config) if field.name.startswith(("scale_", "workers_min"))
        ]
        for name in scaling:
            if getattr(config, name) != getattr(plain, name):
                raise ConfigError(f"{name}: only with workers_max, which gives scaling by load")
    elif (config.workers_min or 1) > config.workers_max:
        raise ConfigError("workers_min: at most workers_max is needed")


def fleet_name(name: str, where: str = "fleet") -> str:
    """ConfigError: a name that cannot be part of a key."""
    if not FLEET_NAME.match(name):
        raise ConfigError(f"{where}: up to 63 letters, digits, dots, dashes or underscores are needed, not {name!r}")
    return name


def labels(pairs: Iterable[str], where: str) -> dict[str, str]:
    """`disk=fast`, `zone=in(a,b)`, `disk=!slow`. ConfigError: not NAME=VALUE, or a name twice."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, _, value = (part.strip() for part in pair.partition("="))
        if not name or not value:
            raise ConfigError(f"{where}: NAME=VALUE is needed, not {pair!r}")
        if name in found:
            raise ConfigError(f"{where}: {name} is named twice")
        found[name] = value
    return found


def amounts(pairs: Iterable[str], where: str) -> dict[str, float]:
    """`fast_disk=1`. ConfigError: as `labels`, no number above 0, or what has a setting of its own."""
    found = {}
    for name, text in labels(pairs, where).items():
        try:
            amount = float(text)
        except ValueError:
            amount = math.nan
        if not (math.isfinite(amount) and amount > 0):
            raise ConfigError(f"{where}: {name}: a number above 0 is needed, not {text!r}")
        if name in {"CPU", "GPU"}:
            raise ConfigError(f"{where}: {name} has a setting of its own: worker_{name.lower()}s")
        found[name] = amount
    return found
