"""From flags to a plan: times, keys, settings, each refused in one line where it cannot be used."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping
from pathlib import Path

from trieway.loadgen.arrivals import Arrivals, parse
from trieway.loadgen.client.loop import files_max
from trieway.loadgen.client.target import Access
from trieway.loadgen.client.url import Url
from trieway.loadgen.errors import LoadError
from trieway.loadgen.reports.slo import parse_slo
from trieway.loadgen.runs.plan import CONNECTIONS, Plan
from trieway.loadgen.sources import load
from trieway.loadgen.vocabulary import Setting, Workload

_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|min|h)?\Z")
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, None: 1.0}
FILES_SPARE = 64
REPEATS_MAX = 1000


def seconds(text: str, name: str) -> float:
    """`500ms`, `60s`, `5m`, `1h`; a bare number is seconds. LoadError: no time."""
    found = _TIME.match(text.strip())
    value = math.nan if found is None else float(found[1]) * _UNITS_S[found[2]]
    if not math.isfinite(value):
        raise LoadError(f"--{name} {text!r} is no time; give one like 500ms, 60s or 5m")
    return value


def whole_numbers(text: str, name: str) -> list[int]:
    """Of `10,100`. LoadError: not such a list."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise LoadError(f"--{name} {text!r} is no list of whole numbers; give one like 4,8")
    return list(dict.fromkeys(found))


def settings_of(pairs: list[str]) -> dict[str, Setting]:
    """Of `--set KEY=VALUE`."""
    found: dict[str, Setting] = {}
    for pair in pairs:
        key, given, value = pair.partition("=")
        if not given or not key:
            raise LoadError(f"--set {pair!r} is not KEY=VALUE")
        found[key] = value
    return found


def key_of(path: Path | None) -> str | None:
    """The first line of a key file that says anything."""
    if path is None:
        return None
    keys = _said(path)
    if not keys:
        raise LoadError(f"the key file {path} holds no key")
    return _fit(keys[0], path)


def tenant_keys_of(path: Path | None) -> Mapping[str, str]:
    """Lines `tenant key` or `tenant:key`, as the servers' own key files."""
    found = {}
    for line in _said(path) if path is not None else ():
        tenant, _, key = line.replace(":", " ", 1).partition(" ")
        if not tenant or not key.strip():
            raise LoadError(f"{path} has a line that is not `tenant key`")
        found[tenant] = _fit(key.strip(), path)
    return found


def _said(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise LoadError(f"cannot read the key file {path}: {reason}") from None
    return [line for line in lines if line and not line.startswith("#")]


def _fit(key: str, path: Path | None) -> str:
    if not all("!" <= char <= "~" for char in key):
        raise LoadError(f"a key in {path} cannot be sent in a header")
    return key


def workload_of(asked: argparse.Namespace, seed: int) -> Workload:
    """As the flags name it."""
    return load(asked.workload, seed, **settings_of(asked.set))


def plan_of(asked: argparse.Namespace, url: Url, arrivals_text: str) -> Plan:
    """LoadError: something in it cannot be used."""
    arrivals: Arrivals = parse(arrivals_text)
    for name, least in (("repeats", 1), ("warmup_requests", 0), ("processes", 1)):
        if getattr(asked, name) < least:
            raise LoadError(f"--{name.replace('_', '-')} is at least {least}")
    if asked.repeats > REPEATS_MAX:
        raise LoadError(f"--repeats is at most {REPEATS_MAX}")
    if asked.cache_tokens is not None and asked.cache_tokens < 1:
        raise LoadError("--cache-tokens is at least 1")
    duration = None if asked.duration is None else seconds(asked.duration, "duration")
    if duration == 0:
        raise LoadError("--duration is above 0")
    timeout = seconds(asked.timeout, "timeout")
    if not timeout:
        raise LoadError("--timeout is above 0")
    return Plan(
        access=Access(url=url, key=key_of(asked.key_file), admin_key=key_of(asked.admin_key_file)),
        workload=workload_of(asked, asked.seed),
        arrivals=arrivals,
        arrivals_text=arrivals_text,
        seed=asked.seed,
        per_session=asked.per_session,
        model=asked.model,
        tenant_keys=tenant_keys_of(asked.tenant_keys),
        extensions=not asked.plain,
        duration_s=duration,
        warmup_s=seconds(asked.warmup, "warmup"),
        warmup_requests=asked.warmup_requests,
        timeout_s=timeout,
        processes=asked.processes,
        connections=max(16, min(CONNECTIONS, files_max() - FILES_SPARE)),
        flush=asked.flush,
        hints=asked.hints,
        usage_needed=asked.usage,
        slo=None if asked.slo is None else parse_slo(asked.slo),
        cache_tokens=asked.cache_tokens,
        bound=asked.bound,
        scrape_s=seconds(asked.scrape, "scrape"),
    )
