"""From a call to the bytes of its HTTP request: path, headers, body.

Keeps true: what comes from workloads cannot break out of a header; keys are in the authorization header alone. Does
not know connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

import msgspec

from trieway.loadgen.client.url import Url
from trieway.loadgen.prompts import Answers, resolve, resolve_hint
from trieway.loadgen.vocabulary import Call, Hint
from trieway.serving.headers import CLIENT_TENANT, SESSION_ID, VALUE_MAX_CHARS

_PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How one server is spoken to.

    `key`: the API key, None without one. `tenant_keys`: the key of each tenant that has its own; tenants without one
    are named in a header. `extensions` False: only what is OpenAI's own.
    """

    url: Url
    model: str
    key: str | None = field(default=None, repr=False)
    tenant_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    extensions: bool = True

    def request(self, call: Call, answers: Answers) -> bytes:
        """KeyError: an answer that the call quotes is not there."""
        body = msgspec.json.encode(resolve(call, answers, model=self.model, extensions=self.extensions))
        return self._whole(_PATHS[call.form], body, call.tenant, call.session)

    def hint(self, hint: Hint) -> bytes:
        """The request that makes a prefix resident."""
        body = msgspec.json.encode(resolve_hint(hint, model=self.model))
        return self._whole("/cache/prefix", body, hint.tenant, hint.session)

    def plain(self, path: str, body: Mapping[str, object]) -> bytes:
        """Any other POST."""
        return self._whole(path, msgspec.json.encode(body), None, None)

    def _whole(self, path: str, body: bytes, tenant: str | None, session: str | None) -> bytes:
        lines = [
            f"POST {self.url.path}{path} HTTP/1.1",
            f"host: {self.url.authority}",
            "content-type: application/json",
            f"content-length: {len(body)}",
        ]
        key = self.tenant_keys.get(tenant, self.key) if tenant is not None else self.key
        if key is not None:
            lines.append(f"authorization: Bearer {key}")
        elif tenant is not None and self.extensions:
            lines.append(f"{CLIENT_TENANT}: {_value(tenant)}")
        if session is not None and self.extensions:
            lines.append(f"{SESSION_ID}: {_value(session)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + body


def _value(text: str) -> str:
    """Fit for a header, and different for different texts as far as they are not overlong."""
    return quote(text, safe="!#$&'()*+,/:;=?@[]<>^`{|}~")[:VALUE_MAX_CHARS]
