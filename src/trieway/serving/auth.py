"""Keys, tenants, the fleet's token, and what may listen where.

Keeps true: secrets are compared in constant time and never appear in messages, logs or reprs; a header that only the
fleet may set counts only beside the fleet's token. Does not know quotas.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trieway.serving import headers as names
from trieway.serving.config import ConfigError
from trieway.serving.errors import Forbidden, Unauthorized

KEYS_MAX = 100_000
KEY_FILE_BYTES_MAX = 16 * 1024 * 1024
KEY_CHARS_MAX = 512
SECRET_BYTES_MIN = 16
_TENANT = re.compile(r"[A-Za-z0-9._@/-]{1,128}\Z")
_KEY = re.compile(r"[\x21-\x7e]{1,512}\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Principal:
    """Who asks: a tenant (None: the common one), and whether admin routes are open to them."""

    tenant: str | None = None
    admin: bool = False


@dataclass(frozen=True, slots=True)
class KeyRing:
    """API keys (key -> tenant, None: the common one; no dict at all: everybody may ask) and the admin key."""

    keys: Mapping[str, str | None] | None = field(default=None, repr=False)
    admin_key: str | None = field(default=None, repr=False)

    @classmethod
    def from_files(cls, api_keys_file: Path | None, admin_key_file: Path | None) -> KeyRing:
        """Raises ConfigError for files that cannot be read, are empty, or repeat a key."""
        keys = None if api_keys_file is None else _parse_keys(_read(api_keys_file, "api_keys_file"), api_keys_file)
        admin = None
        if admin_key_file is not None:
            admin = _read(admin_key_file, "admin_key_file").strip()
            if not _KEY.match(admin):
                raise ConfigError(
                    f"admin_key_file {admin_key_file}: one key of 1 to {KEY_CHARS_MAX} visible characters"
                )
        return cls(keys, admin)

    @property
    def open(self) -> bool:
        """Whether no API keys exist."""
        return self.keys is None

    @property
    def admin_open(self) -> bool:
        """Whether no admin key exists."""
        return self.admin_key is None

    def principal(self, headers: Mapping[str, str]) -> Principal:
        """Who asks, by lower-case `headers`. Raises Unauthorized. The admin key may also complete."""
        shown = bearer(headers)
        admin = self.admin_open or _equal(shown, self.admin_key)
        if self.keys is None:
            return Principal(tenant=tenant_name(headers.get(names.CLIENT_TENANT)), admin=admin)
        if shown is not None and len(shown) <= KEY_CHARS_MAX:
            # A dictionary finds the candidate; the comparison that decides takes constant time.
            for key in (shown,) if shown in self.keys else ():
                if _equal(shown, key):
                    return Principal(tenant=self.keys[key], admin=admin)
            if self.admin_key is not None and admin:
                return Principal(admin=True)
        raise Unauthorized("A valid API key is needed: Authorization: Bearer KEY.")

    def require_admin(self, headers: Mapping[str, str]) -> None:
        """Raises Unauthorized or Forbidden unless the admin key is shown, or none exists."""
        if self.admin_key is None:
            return
        shown = bearer(headers)
        if shown is None:
            raise Unauthorized("The admin key is needed: Authorization: Bearer KEY.")
        if not _equal(shown, self.admin_key):
            raise Forbidden("This needs the admin key.")


def tenant_name(value: str | None) -> str | None:
    """A tenant's name out of a header: 1 to 128 of A-Z a-z 0-9 . _ @ / -, else None."""
    return value if value and _TENANT.match(value) else None


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of `authorization: Bearer ...`, or None."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token else None


def shows_fleet_token(headers: Mapping[str, str], feed_token: str) -> bool:
    """Whether `x-trieway-fleet` is the fleet's token: then its tenant and render-time headers count."""
    return _equal(headers.get(names.FLEET), feed_token)


def require_fleet(headers: Mapping[str, str], feed_token: str) -> None:
    """Guards the feed and the handshake: raises Unauthorized unless the bearer token is the fleet's."""
    if not _equal(bearer(headers), feed_token):
        raise Unauthorized("The fleet's token is needed: give router and worker the same fleet_secret_file.")


def read_fleet_secret(path: Path | None) -> bytes | None:
    """The fleet secret's bytes, stripped; None without a path. Raises ConfigError."""
    if path is None:
        return None
    secret = _read(path, "fleet_secret_file").strip().encode()
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"fleet_secret_file {path}: at least {SECRET_BYTES_MIN} bytes are needed")
    return secret


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(host: str, ring: KeyRing, *, allow_open: bool, published_secret: bool) -> None:
    """Raises ConfigError where `host` is beyond loopback without keys or with the published fleet secret.

    `allow_open` permits no keys. The published secret is refused all the same: with it anybody could read the feed,
    pass for a router, and guess what others have asked.
    """
    if is_loopback(host):
        return
    if ring.open and not allow_open:
        raise ConfigError(f"host {host} is beyond loopback: give api_keys_file, or say --allow-open")
    if published_secret:
        raise ConfigError(f"host {host} is beyond loopback: give fleet_secret_file (a file of random characters)")


def _equal(shown: str | None, secret: str | None) -> bool:
    if shown is None or secret is None:
        return False
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), secret.encode())


def _read(path: Path, what: str) -> str:
    try:
        if path.stat().st_size > KEY_FILE_BYTES_MAX:
            raise ConfigError(f"{what} {path}: larger than {KEY_FILE_BYTES_MAX} bytes")
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path}: not UTF-8 text") from None
    if not text.strip():
        raise ConfigError(f"{what} {path}: the file is empty")
    return text


def _parse_keys(text: str, path: Path) -> dict[str, str | None]:
    """Lines `key`, `tenant:key` or `tenant key`; # begins a comment at a line's start."""
    keys: dict[str, str | None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        tenant, key = _parse_key_line(words)
        if key is None:
            raise ConfigError(f"api_keys_file {path}, line {number}: `key`, `tenant:key` or `tenant key` is needed")
        if key in keys:
            raise ConfigError(f"api_keys_file {path}, line {number}: this key is there already")
        if len(keys) >= KEYS_MAX:
            raise ConfigError(f"api_keys_file {path}: more than {KEYS_MAX} keys")
        keys[key] = tenant
    if not keys:
        raise ConfigError(f"api_keys_file {path}: no key in it")
    return keys


def _parse_key_line(words: list[str]) -> tuple[str | None, str | None]:
    """(tenant, key); the key is None where the line makes no sense."""
    if len(words) == 2:
        tenant, key = words[0].removesuffix(":"), words[1]
    elif len(words) == 1 and ":" in words[0]:
        tenant, _, key = words[0].partition(":")
    elif len(words) == 1:
        return None, words[0] if _KEY.match(words[0]) else None
    else:
        return None, None
    return (tenant, key) if _TENANT.match(tenant) and _KEY.match(key) else (None, None)
