"""Keys, tenants and what may listen where. (Signatures first.)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Principal:
    """Who asks: a tenant (None: the common one), and whether admin routes are open to them."""

    tenant: str | None = None
    admin: bool = False


class KeyRing:
    """API keys and the admin key, compared in constant time."""

    def __init__(self, keys: Mapping[str, str | None] | None = None, admin_key: str | None = None) -> None:
        """`keys`: key -> tenant (None: the common one); None: no keys exist and everybody may ask."""

    @classmethod
    def from_files(cls, api_keys_file: Path | None, admin_key_file: Path | None) -> KeyRing:
        """Raises ConfigError for files that cannot be read, are empty, or repeat a key."""
        raise NotImplementedError

    @property
    def open(self) -> bool:
        """Whether no API keys exist."""
        raise NotImplementedError

    @property
    def admin_open(self) -> bool:
        """Whether no admin key exists."""
        raise NotImplementedError

    def principal(self, headers: Mapping[str, str]) -> Principal:
        """Who asks, by lower-case `headers`. Raises Unauthorized."""
        raise NotImplementedError

    def require_admin(self, headers: Mapping[str, str]) -> None:
        """Raises Unauthorized or Forbidden unless the admin key is shown, or none exists."""
        raise NotImplementedError


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of `authorization: Bearer ...`, or None."""
    raise NotImplementedError


def shows_fleet_token(headers: Mapping[str, str], feed_token: str) -> bool:
    """Whether `x-trieway-fleet` is the fleet's token: then its tenant and render-time headers count."""
    raise NotImplementedError


def require_fleet(headers: Mapping[str, str], feed_token: str) -> None:
    """Guards the feed and the handshake: raises Unauthorized unless the bearer token is the fleet's."""
    raise NotImplementedError


def read_fleet_secret(path: Path | None) -> bytes | None:
    """The fleet secret's bytes, stripped; None without a path. Raises ConfigError."""
    raise NotImplementedError


def check_bind(host: str, ring: KeyRing, *, allow_open: bool, published_secret: bool) -> None:
    """Raises ConfigError where `host` is beyond loopback without keys or with the published fleet secret."""
    raise NotImplementedError
