"""From a request's bytes to the question put to the core: who asks, which model, which prefix.

Keeps true: every prompt is hashed in its caller's namespace and no other; whatever cannot be keyed (a template that
refuses, an unknown vocabulary) is still routed, only without a prefix: the worker itself says what is wrong with it.
Does not know what is cached where.
"""

from __future__ import annotations

import struct
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from trieway.meta_tree.chain import Chain, FleetKey
from trieway.meta_tree.ids import Namespace
from trieway.router.core import Query
from trieway.router.hot_path import HeaderList, HotRequest, Kind
from trieway.router.links import Group, Links
from trieway.serving import headers as names
from trieway.serving import http
from trieway.serving.auth import KeyRing, Principal
from trieway.serving.errors import BadRequest
from trieway.serving.peek import Peeked, peek
from trieway.serving.prompt_key import PromptKey, prompt_keys

CHAINS_MAX = 4096
KEY_BYTES_MAX = 8 << 20
"""A prompt is keyed by its first so many bytes; what comes after is beyond any context there is."""
Vocabulary = Callable[[Group], Awaitable[None]]


@dataclass(kw_only=True, slots=True)
class Question:
    """A request that is understood. `queries`: one for each group that serves the model, alike but for the hashes."""

    target: str
    headers: HeaderList
    body: bytes
    request_id: str
    tenant: str | None
    keep_credentials: bool
    render_time_s: float
    model: str
    queries: tuple[Query, ...]


class Asker:
    """Understands requests. `vocabulary` is awaited where a prompt of token ids needs a group's table."""

    def __init__(
        self,
        *,
        links: Links,
        ring: KeyRing,
        key: FleetKey,
        vocabulary: Vocabulary,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._links = links
        self._ring = ring
        self._key = key
        self._vocabulary = vocabulary
        self._wall = wall
        self._chains: OrderedDict[Namespace, Chain] = OrderedDict()

    async def ask(self, request: HotRequest, identity: str) -> Question:
        """Raises ApiError: no valid key, or a body that is no completion request."""
        headers = header_map(request.headers)
        principal = self._ring.principal(headers)
        refuse_encoded(headers)
        peeked = peek(request.body, request.kind or kind_of(request.body))
        model = peeked.model or self._only_model()
        render_time_s = float(names.format_render_time(self._wall()))
        session = peeked.session_id or names.session_id(headers.get(names.SESSION_ID))
        queries = await self._queries(peeked, principal, model, session, render_time_s)
        return Question(
            target=request.target,
            headers=request.headers,
            body=request.body,
            request_id=identity,
            tenant=principal.tenant,
            keep_credentials=self._ring.open,
            render_time_s=render_time_s,
            model=model,
            queries=queries,
        )

    async def _queries(
        self, peeked: Peeked, principal: Principal, model: str, session: str | None, render_time_s: float
    ) -> tuple[Query, ...]:
        groups = self._links.groups_of(model)
        if not groups:
            return (Query(model=model),)
        prompts = peeked.prompts
        by_ids = bool(prompts) and not isinstance(prompts[0], str)
        queries = []
        for group in groups:
            if by_ids and not group.foreign and group.source.vocabulary is None:
                await self._vocabulary(group)
            chain = self.chain(namespace_of(principal, peeked, model if group.foreign else None))
            keys = _keys(peeked, group, render_time_s, prompts if by_ids else ())
            queries.append(_query(peeked, keys, group, chain, model, session, max(1, len(prompts))))
        return tuple(queries)

    def _only_model(self) -> str:
        """A body may leave the model out where there is only one."""
        models = {link.model for link in self._links if link.model}
        if len(models) == 1:
            return models.pop()
        raise BadRequest("say which model: GET /v1/models lists those that are here", param="model")

    def chain(self, namespace: Namespace) -> Chain:
        """The namespace's hash chain; the last `CHAINS_MAX` ones are remembered."""
        chain = self._chains.get(namespace)
        if chain is None:
            chain = self._chains[namespace] = self._key.chain(namespace)
            if len(self._chains) > CHAINS_MAX:
                self._chains.popitem(last=False)
        else:
            self._chains.move_to_end(namespace)
        return chain


def _query(
    peeked: Peeked,
    keys: list[PromptKey],
    group: Group,
    chain: Chain,
    model: str,
    session: str | None,
    prompts: int,
) -> Query:
    longest = keys[0].text if len(keys) == 1 else max((key.text for key in keys), key=len, default=b"")
    tokens = [key.tokens for key in keys if key.tokens is not None]
    bound = peeked.answer_tokens_max
    return Query(
        model=model,
        group=group.id,
        hashes=chain.hashes(longest[:KEY_BYTES_MAX]),
        prompt_bytes=sum(len(key.text) for key in keys),
        prompt_tokens=sum(tokens) if keys and len(tokens) == len(keys) else None,
        reuse_max=0 if peeked.echo_logprobs else None,
        priority=peeked.priority or 0,
        session=session,
        max_tokens=None if bound is None else bound * (peeked.n or 1) * prompts,
    )


def _keys(
    peeked: Peeked, group: Group, render_time_s: float, ids_lists: Sequence[Sequence[int]] | Sequence[str]
) -> list[PromptKey]:
    if group.foreign and ids_lists:
        # No table of a foreign engine is known: the ids themselves are the text.
        return [PromptKey(text=struct.pack(f"<{len(ids)}q", *ids), tokens=len(ids)) for ids in ids_lists]
    try:
        return prompt_keys(peeked, group.source, render_time_s)
    except BadRequest:
        return []


def namespace_of(principal: Principal, peeked: Peeked, adapter: str | None = None) -> Namespace:
    """The namespace in which a caller's prompts are hashed."""
    return Namespace(tenant=principal.tenant, salt=peeked.cache_salt, adapter=adapter)


class _Shape(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw(b"")


def kind_of(body: bytes) -> Kind:
    """What kind of request `body` is, for endpoints that take both. Raises BadRequest."""
    try:
        shape = msgspec.json.decode(body, type=_Shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadRequest("the body is not a JSON object") from None
    return "chat" if bytes(shape.messages) else "completion"


def header_map(headers: HeaderList) -> dict[str, str]:
    """Names to values; the first of repeated ones."""
    return http.header_map({"headers": headers})


def request_id(headers: HeaderList) -> str:
    """The client's request id where it is usable, else a fresh one."""
    for name, value in headers:
        if name == b"x-request-id":
            return names.request_id(value.decode("latin-1"))
    return names.request_id(None)


def refuse_encoded(headers: dict[str, str]) -> None:
    """A compressed body cannot be read here, and would not be read by an engine either. Raises BadRequest."""
    if headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        raise BadRequest("send the body without a content-encoding", param="content-encoding")
