"""Names of the headers that router, worker and clients exchange, and the parsers of their values.

Keeps true: names are lower case; parsers of headers from outside never raise, they give None (or a fresh value) for
what they cannot use. Does not know who may be trusted: `trusted` is decided by auth.py.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

# Both ways
REQUEST_ID = "x-request-id"
SESSION_ID = "x-session-id"

# To a worker, from a router that shows the fleet's token
FLEET = "x-trieway-fleet"
TENANT = "x-trieway-tenant"
RENDER_TIME = "x-trieway-render-time"

# From a worker
RECEIPT = "x-trieway-receipt"
CACHED_TOKENS = "x-trieway-cached-tokens"
SERVER_WORKER = "trieway-worker"
"""Value of the `server` header by which a router knows a worker of ours before it sends any token."""
SERVER_ROUTER = "trieway-router"

# To a client
WORKER = "x-trieway-worker"
PREDICTED_TOKENS = "x-trieway-predicted-tokens"
ATTEMPTS = "x-trieway-attempts"
TRACE_ID = "x-trieway-trace-id"
"""Of a request that is traced, router or worker, as 32 hex digits."""

# From a client; counts only while no keys exist
CLIENT_TENANT = "x-tenant-id"

VALUE_MAX_CHARS = 256
"""Longest request id, session id or tenant taken from a header."""

_ids = random.Random()
"""Seeded by the system: ids need no secrecy, and the system's own numbers cost a call each."""
_VISIBLE = re.compile(r"[\x21-\x7e]{1,256}\Z")
_RECEIPT = re.compile(
    r"prompt=([0-9]{1,18});cached=([0-9]{1,18});epoch=([0-9]{1,20});number=([0-9]{1,20});"
    r"queue_ms=([0-9]{1,18}\.[0-9]{3});prefill_ms=([0-9]{1,18}\.[0-9]{3});waiting=([0-9]{1,18})\Z"
)
"""As `Receipt.encode` writes it: what our workers send, read in one go."""


@dataclass(kw_only=True, slots=True)
class Receipt:
    """What a worker really did for one request; all counts are tokens, times are milliseconds.

    `epoch` and `number` name the last cache event of that worker when it answered; `waiting` is its queue's length.
    """

    prompt: int
    cached: int
    epoch: int
    number: int
    queue_ms: float
    prefill_ms: float
    waiting: int

    def encode(self) -> str:
        """The value of the `x-trieway-receipt` header."""
        return (
            f"prompt={self.prompt};cached={self.cached};epoch={self.epoch};number={self.number};"
            f"queue_ms={self.queue_ms:.3f};prefill_ms={self.prefill_ms:.3f};waiting={self.waiting}"
        )

    @classmethod
    def parse(cls, value: str | bytes | None) -> Receipt | None:
        """The receipt in a header's value, None where there is none or it makes no sense. Unknown parts are skipped."""
        if not value or len(value) > 512:
            return None
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        usual = _RECEIPT.match(text)
        if usual is not None:
            prompt, cached, epoch, number, queue_ms, prefill_ms, waiting = usual.groups()
            return cls(
                prompt=int(prompt),
                cached=int(cached),
                epoch=int(epoch),
                number=int(number),
                queue_ms=float(queue_ms),
                prefill_ms=float(prefill_ms),
                waiting=int(waiting),
            )
        fields = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
        try:
            receipt = cls(
                prompt=int(fields["prompt"]),
                cached=int(fields["cached"]),
                epoch=int(fields["epoch"]),
                number=int(fields["number"]),
                queue_ms=float(fields["queue_ms"]),
                prefill_ms=float(fields["prefill_ms"]),
                waiting=int(fields["waiting"]),
            )
        except (KeyError, ValueError):
            return None
        return receipt if receipt._sane() else None

    def _sane(self) -> bool:
        counts = (self.prompt, self.cached, self.epoch, self.number, self.waiting)
        times = (self.queue_ms, self.prefill_ms)
        return all(c >= 0 for c in counts) and all(math.isfinite(t) and t >= 0 for t in times)


def request_id(value: str | None) -> str:
    """The client's request id where it is 1 to 256 visible ASCII characters, else a fresh one."""
    return value if value and _VISIBLE.match(value) else f"req-{_ids.getrandbits(128):032x}"


def session_id(value: str | None) -> str | None:
    """A session id out of a header: 1 to 256 visible ASCII characters, else None."""
    return value if value and _VISIBLE.match(value) else None


def render_time(value: str | None) -> float | None:
    """Seconds since 1970 out of `x-trieway-render-time`, within years 1970 to 9999, else None."""
    try:
        seconds = float(value) if value else math.nan
    except ValueError:
        return None
    return seconds if 0.0 <= seconds < 253_402_300_800.0 else None


def format_render_time(now: float) -> str:
    """The value of `x-trieway-render-time`: whole seconds are enough for a date, and both sides then agree exactly."""
    return str(int(now))


def token_count(value: str | None) -> int | None:
    """A count of tokens out of a header, else None."""
    return int(value) if value and value.isascii() and value.isdigit() and len(value) < 16 else None
