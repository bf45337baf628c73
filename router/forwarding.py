"""Which headers go on, to a worker and back to the client.

Keeps true: hop-by-hop headers stop here, in both directions, those that `Connection` names too; a client can never
speak for the router (`x-trieway-*`); credentials reach nobody once the router checks keys itself, and never a Trieway
worker, which gets the fleet's token instead. Does not know the body.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trieway.router.hot_path import HeaderList
from trieway.serving import headers as names
from trieway.serving.trace_context import TRACEPARENT, TRACESTATE

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_REQUEST_DROP = _HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id"}
_RESPONSE_DROP = _HOP_BY_HOP | {b"content-length", b"date", b"server", b"x-request-id"}
_CREDENTIALS = frozenset((b"authorization", b"x-api-key", b"api-key", b"cookie", b"x-tenant-id"))
_TRACE = frozenset((TRACEPARENT, TRACESTATE))
_REQUEST_AND_CREDENTIALS_DROP = _REQUEST_DROP | _CREDENTIALS
_OURS = b"x-trieway-"
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(kw_only=True, slots=True)
class Onward:
    """What the router itself says to a worker. `fleet_token` is None for a foreign one."""

    request_id: str
    fleet_token: str | None = None
    tenant: str | None = None
    render_time_s: float | None = None
    keep_credentials: bool = False
    trace: HeaderList | None = None
    """The headers that carry the trace, in place of the client's; None: the client's own."""


def request_headers(headers: HeaderList, onward: Onward) -> HeaderList:
    """The headers of the request to a worker. Names in `headers` are lower-case."""
    keeps = onward.fleet_token is None and onward.keep_credentials
    drop = _REQUEST_DROP if keeps else _REQUEST_AND_CREDENTIALS_DROP
    named = _named_by_connection(headers)
    if named:
        drop |= named
    if onward.trace is not None:
        drop |= _TRACE
    out = [(name, value) for name, value in headers if name not in drop and not name.startswith(_OURS)]
    out.append((b"x-request-id", onward.request_id.encode()))
    out += onward.trace or ()
    if onward.fleet_token is None:
        return out
    out.append((names.FLEET.encode(), onward.fleet_token.encode()))
    if onward.tenant is not None:
        out.append((names.TENANT.encode(), onward.tenant.encode()))
    if onward.render_time_s is not None:
        out.append((names.RENDER_TIME.encode(), names.format_render_time(onward.render_time_s).encode()))
    return out


def response_headers(headers: HeaderList, ours: HeaderList) -> HeaderList:
    """The headers of the answer to the client; `ours` are added. The length is the caller's to state."""
    named = _named_by_connection(headers)
    drop = _RESPONSE_DROP | named if named else _RESPONSE_DROP
    passed = [pair for pair in headers if pair[0] not in drop and not pair[0].startswith(_OURS)]
    # What HTTP does not allow would break the whole answer. Mostly all is well, which one look at all of them tells.
    if not all(map(_NAME.fullmatch, [name for name, _ in passed])) or _CONTROL.search(b"".join([v for _, v in passed])):
        passed = [(n, v) for n, v in passed if _NAME.fullmatch(n) and not _CONTROL.search(v)]
    return passed + ours


def _named_by_connection(headers: HeaderList) -> frozenset[bytes]:
    named = [value.lower() for name, value in headers if name == b"connection"]
    if not named:
        return frozenset()
    return frozenset(token.strip() for value in named for token in value.split(b","))
