"""From a prompt as a client gives it to the token path that the engine computes.

Keeps true: the same text in the same namespace takes the same tokens as when this worker generated it, as long as the
memory holds it; what is remembered is only a path that a text would take; a prompt that cannot fit is refused before it
is tokenised. Lives on the event loop's thread (long texts are tokenised on another). Does not know HTTP or the cache.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trieway.meta_tree.chain import Chain, FleetKey
from trieway.meta_tree.ids import Namespace
from trieway.serving.errors import BadRequest
from trieway.worker.core.memory import GeneratedMemory

INLINE_TEXT_BYTES_MAX = 4096
"""A text up to this size is tokenised on the event loop: some 1.5 ms."""
CHAINS_MAX = 4096


class Codec(Protocol):
    """What is needed of a tokenizer; `trieway.worker.tokenizer.Tokenizer` is the real one."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...

    def encode_bytes_checked(self, text: str) -> tuple[list[int], int]: ...

    def canonical_of_ids(self, ids: Sequence[int]) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One prompt, ready for the engine. `text` is its bytes from the namespace's root on, which `tokens` spell.

    `canonical` counts the leading tokens that a text would take. `shown` is the text that `echo` gives back.
    """

    chain: Chain
    tokens: tuple[int, ...]
    canonical: int
    text: bytes
    shown: str


class Prompts:
    """Reads prompts. `memory` is None where no prefix cache is kept."""

    def __init__(self, codec: Codec, key: FleetKey, memory: GeneratedMemory | None, *, context_tokens: int) -> None:
        self._codec = codec
        self._table = codec.token_bytes
        self._key = key
        self._memory = memory
        self._context_tokens = context_tokens
        self._text_bytes_max = context_tokens * max(map(len, self._table))
        self._chains: OrderedDict[Namespace, Chain] = OrderedDict()

    @property
    def table(self) -> Sequence[bytes]:
        """The token -> bytes table."""
        return self._table

    def chain(self, namespace: Namespace) -> Chain:
        """The namespace's chain; the most recently used CHAINS_MAX are kept."""
        chain = self._chains.get(namespace)
        if chain is None:
            chain = self._chains[namespace] = self._key.chain(namespace)
            if len(self._chains) > CHAINS_MAX:
                self._chains.popitem(last=False)
        self._chains.move_to_end(namespace)
        return chain

    async def from_text(self, text: str, chain: Chain, *, prefix: str = "", param: str = "prompt") -> Prompt:
        """`prefix` is what the tokenizer puts before a completion's text (BOS); it is part of the key, not shown.

        Raises:
            BadRequest: empty, or surely longer than the context.
        """
        raw = (prefix + text).encode()
        if not raw:
            raise BadRequest("the prompt is empty", param=param)
        if len(raw) > self._text_bytes_max:
            raise too_long(self._context_tokens, param=param)
        if len(raw) <= INLINE_TEXT_BYTES_MAX:
            tokens, canonical = self._encode(raw, *self._recall(raw, chain))
        else:
            known, used = self._recall(raw, chain)
            tokens, canonical = await asyncio.to_thread(self._encode, raw, known, used)
        if not tokens:
            raise BadRequest("the prompt has no tokens", param=param)
        return Prompt(chain=chain, tokens=tuple(tokens), canonical=canonical, text=raw, shown=text)

    async def from_ids(self, ids: Sequence[int], chain: Chain) -> Prompt:
        """
        Raises:
            BadRequest: empty, an id outside the vocabulary, or longer than the context.
        """
        if not ids:
            raise BadRequest("the prompt is empty", param="prompt")
        if len(ids) > self._context_tokens:
            raise too_long(self._context_tokens, len(ids), param="prompt")
        if min(ids) < 0 or max(ids) >= len(self._table):
            raise BadRequest(f"token ids are 0 to {len(self._table) - 1} for this model", param="prompt")
        text = b"".join(map(self._table.__getitem__, ids))
        if len(text) <= INLINE_TEXT_BYTES_MAX:
            canonical = self._codec.canonical_of_ids(ids)
        else:
            canonical = await asyncio.to_thread(self._codec.canonical_of_ids, ids)
        return Prompt(
            chain=chain,
            tokens=tuple(ids),
            canonical=canonical,
            text=text,
            shown=text.decode(errors="replace"),
        )

    def remember(self, prompt: Prompt, answer: str, tokens: Sequence[int]) -> None:
        """Keeps the path of an answer that this worker generated, unless no text would take its prompt's path."""
        if self._memory is not None and prompt.canonical == len(prompt.tokens) and answer:
            text = prompt.text + answer.encode()
            self._memory.remember(prompt.chain, text, (*prompt.tokens, *tokens), len(prompt.text))

    def _recall(self, raw: bytes, chain: Chain) -> tuple[list[int], int]:
        if self._memory is None:
            return [], 0
        tokens, used = self._memory.recall(chain, chain.hashes(raw), raw)
        # The rest is tokenised as text of its own: it may not begin inside a character.
        while tokens and used < len(raw) and raw[used] & 0xC0 == 0x80:
            used -= len(self._table[tokens.pop()])
        return tokens, used

    def _encode(self, raw: bytes, known: list[int], used: int) -> tuple[list[int], int]:
        if used == len(raw):
            return known, len(known)
        rest, canonical = self._codec.encode_bytes_checked(raw[used:].decode())
        return known + rest, len(known) + canonical


def too_long(
    context_tokens: int, prompt_tokens: int | None = None, answer_tokens: int = 0, *, param: str = "prompt"
) -> BadRequest:
    """The error for a request that no context of this model holds."""
    size = f"{prompt_tokens} tokens" if prompt_tokens is not None else "more tokens than that"
    more = f" and {answer_tokens} more are asked for" if answer_tokens else ""
    return BadRequest(
        f"This model's maximum context length is {context_tokens} tokens; the prompt has {size}{more}. "
        "Shorten the prompt or lower max_tokens.",
        param=param,
        code="context_length_exceeded",
    )
