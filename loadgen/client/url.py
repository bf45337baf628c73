"""Where a server is: a URL as a person types it, taken apart."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from trieway.loadgen.errors import LoadError


@dataclass(frozen=True, kw_only=True, slots=True)
class Url:
    """`path` is the root's path without a trailing slash and without `/v1`: mostly empty."""

    tls: bool
    host: str
    port: int
    path: str = ""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """True if the host is this machine by name or address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.path}"


def parse_url(text: str) -> Url:
    """The scheme may be missing, `/v1` may follow. LoadError: it is no HTTP URL."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise LoadError(f"{text!r} is no URL: {error}") from None
    if port == 0:
        raise LoadError(f"{text!r} is no URL: there is no port 0")
    if parts.scheme not in ("http", "https") or not parts.hostname or not _plain(parts.hostname):
        raise LoadError(f"{text!r} is no HTTP URL; give one like http://127.0.0.1:8000")
    if parts.username is not None or parts.query or parts.fragment or not _plain(parts.path):
        raise LoadError(f"{text!r} holds more than host, port and path; keys come by --key-file")
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Url(tls=tls, host=parts.hostname, port=port or (443 if tls else 80), path=path)


def _plain(text: str) -> bool:
    return all("!" <= char <= "~" for char in text)
