"""What the commands that look at a running server are given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Where a server is and with whose key to ask it. `url`: the root, as `client.base_url` gives it."""

    url: str
    key_file: Path | None = None
