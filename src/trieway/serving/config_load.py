"""The effective configuration: flags over environment over one file over OpenTelemetry's own environment over defaults.

A file has keys at its top, which reach every process that knows them, and sections `up`, `ray`, `worker` and `router`,
which reach only that one and win. The environment likewise: `TRIEWAY_PORT`, `TRIEWAY_WORKER_PORT`. In `up` and `ray`,
the fleet's own keys (host, port, policy, workers, ...) at the top do not reach the processes behind it.

Keeps true: a key that no process knows is refused by name; a ConfigError is one line.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from trieway.serving.config import ConfigError, RayConfig, RouterConfig, UpConfig, WorkerConfig
from trieway.serving.config_flags import FLEETS, AnyConfig, add_flags, to_flags
from trieway.serving.config_otel import otel_environment
from trieway.serving.config_ray import check_ray
from trieway.serving.config_values import read_value, settings

__all__ = ["add_flags", "load", "show", "to_flags"]

C = TypeVar("C", WorkerConfig, RouterConfig, UpConfig, RayConfig)

PREFIX = "TRIEWAY_"
_ENVIRONMENT = "environment {env}"
FILE_BYTES_MAX = 1024 * 1024
_SECTIONS: dict[str, type[AnyConfig]] = {
    "up": UpConfig,
    "ray": RayConfig,
    "worker": WorkerConfig,
    "router": RouterConfig,
}
_TOP = frozenset().union(*(settings(kind) for kind in _SECTIONS.values()))
# Not settings: the file's own name, and what builds and tests read.
_OTHER_ENVIRONMENT = frozenset({"config", "pure", "scale", "sim_seeds"})
# What Kubernetes sets in every pod for a Service whose name begins with "trieway".
_SERVICE_LINK = re.compile(r"\w*_(service_host|service_port(_\w+)?|port_\d+_(tcp|udp)(_\w+)?)\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """Raw values of one place, from least to most particular: `top` for all, `sections` for one process each."""

    top: Mapping[str, object]
    sections: Mapping[str, Mapping[str, object]]
    place: str
    """How to name a key of it, with `{key}`."""
    folder: Path | None = None
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Environment names of keys that are not made of the key's own."""

    def value(self, section: str, key: str, *, own: bool) -> tuple[object, str] | None:
        """The raw value and its place. `own` False: keys at the top that are the fleet's are not looked at."""
        if key in self.sections.get(section, {}):
            return self.sections[section][key], self._named(f"{section}.{key}")
        if key in self.top and own:
            return self.top[key], self._named(key)
        return None

    def _named(self, path: str) -> str:
        return self.place.format(key=path, env=self.names.get(path, PREFIX + path.replace(".", "_").upper()))


def load(
    kind: type[C], *, flags: Mapping[str, object], environ: Mapping[str, str], file: str | Path | None = None
) -> C:
    """The effective configuration. `flags`: `vars(namespace)`; names that are no key of `kind` are ignored there.

    Without `file`, TRIEWAY_CONFIG names it. Raises ConfigError, one line, naming the key.
    """
    named = file if file is not None else environ.get(PREFIX + "CONFIG")
    sources = [_environment(environ)]
    if named is not None:
        sources.append(_file(Path(named)))
    standard = otel_environment(environ, traced="otlp_endpoint" in flags or any(map(_names_endpoint, sources)))
    sources.append(_Source(top=standard.values, sections={}, place=_ENVIRONMENT, names=standard.names))
    return _build(kind, flags, sources, inside=None)


def _names_endpoint(source: _Source) -> bool:
    return any("otlp_endpoint" in keys for keys in (source.top, *source.sections.values()))


def _build(kind: type[C], flags: Mapping[str, object], sources: list[_Source], *, inside: type[AnyConfig] | None) -> C:
    section = next(name for name, each in _SECTIONS.items() if each is kind)
    values: dict[str, Any] = {}
    for name, setting in settings(kind).items():
        if name in flags:
            values[name] = read_value(setting, flags[name], setting.flag)
            continue
        own = inside is None or name not in settings(inside)
        for source in sources:
            found = source.value(section, name, own=own)
            if found is not None:
                values[name] = read_value(setting, found[0], found[1], source.folder)
                break
    if kind in FLEETS:
        behind = {name: value for name, value in flags.items() if name not in settings(kind)}
        values["worker"] = _build(WorkerConfig, behind, sources, inside=kind)
        values["router"] = _build(RouterConfig, behind, sources, inside=kind)
    config = kind(**values)
    _check(config)
    return config


def _check(config: AnyConfig) -> None:
    """What single keys cannot show."""
    if isinstance(config, WorkerConfig) and config.kv_tokens < config.page_size:
        raise ConfigError(f"kv_tokens: at least one page ({config.page_size} tokens) is needed")
    if isinstance(config, RayConfig):
        check_ray(config)
    if isinstance(config, RouterConfig) and config.total_timeout_s < config.first_byte_timeout_s:
        raise ConfigError("total_timeout_s: at least first_byte_timeout_s is needed")


def _environment(environ: Mapping[str, str]) -> _Source:
    top: dict[str, object] = {}
    sections: dict[str, dict[str, object]] = {name: {} for name in _SECTIONS}
    for name, value in environ.items():
        if not name.startswith(PREFIX):
            continue
        key = name.removeprefix(PREFIX).lower()
        section, _, rest = key.partition("_")
        if key in _TOP:
            top[key] = value
        elif section in _SECTIONS and rest in settings(_SECTIONS[section]):
            sections[section][rest] = value
        elif key not in _OTHER_ENVIRONMENT and not _SERVICE_LINK.match(key):
            raise ConfigError(f"environment {name}: no such key{_near(key, _TOP)}")
    return _Source(top=top, sections=sections, place=_ENVIRONMENT)


def _file(path: Path) -> _Source:
    content = _parse(path)
    sections: dict[str, Mapping[str, object]] = {}
    for name in _SECTIONS.keys() & content.keys():
        section = content.pop(name)
        if section is not None and not isinstance(section, dict):
            raise ConfigError(f"{path}: {name}: a section of keys is needed")
        sections[name] = section or {}
        known = settings(_SECTIONS[name]).keys()
        for key in sections[name]:
            if key not in known:
                raise ConfigError(f"{path}: {name}.{key}: no such key{_near(key, known)}")
    for key in content:
        if key not in _TOP:
            raise ConfigError(f"{path}: {key}: no such key{_near(key, [*_TOP, *_SECTIONS])}")
    place = str(path).replace("{", "{{").replace("}", "}}") + ": {key}"
    return _Source(top=content, sections=sections, place=place, folder=path.parent)


def _parse(path: Path) -> dict[Any, Any]:
    """The file's content. Raises ConfigError for what is no YAML or TOML table."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes")
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix not in {".yaml", ".yml", ".json"}:
            raise ConfigError(f"{path}: a name that ends in .yaml, .yml, .json or .toml is needed")
        content = yaml.safe_load(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    if content is not None and not isinstance(content, dict):
        raise ConfigError(f"{path}: keys and values are needed at the top")
    return content or {}


def _near(key: object, known: Any) -> str:
    close = difflib.get_close_matches(str(key), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


def show(config: AnyConfig) -> str:
    """The configuration as YAML. Secrets are files, of which only the paths show; credentials in URLs are hidden."""
    text = yaml.safe_dump(dict(_plain(config)), sort_keys=False, allow_unicode=True, default_flow_style=False)
    return _CREDENTIALS.sub("***@", text)


def _plain(config: AnyConfig) -> Iterator[tuple[str, object]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, WorkerConfig | RouterConfig):
            yield field.name, dict(_plain(value))
        elif isinstance(value, tuple):
            yield field.name, list(value)
        else:
            yield field.name, str(value) if isinstance(value, Path) else value
