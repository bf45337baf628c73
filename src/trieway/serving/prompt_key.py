"""From a peeked body to the bytes that are hashed: one key for each prompt.

Keeps true: a key is what the worker's cache is announced under, so text prompts have the completion prefix, chats are
rendered, token ids go through the token -> bytes table. Where the table is missing the key is empty: a miss, never a
wrong hit. Does not know hashes or namespaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from trieway.serving.chat_template import ChatTemplate, render_prompt
from trieway.serving.peek import Messages, Peeked


@dataclass(frozen=True, kw_only=True, slots=True)
class KeySource:
    """What a group's handshake gives for making keys. No template: chats key on their raw messages.

    `vocabulary` is the token -> bytes table, None until it has been fetched.
    """

    template: ChatTemplate | None = None
    completion_prefix: bytes = b""
    vocabulary: Sequence[bytes] | None = None


@dataclass(kw_only=True, slots=True)
class PromptKey:
    """One prompt's key: `text` is hashed in blocks; `tokens` is its length where the body states it (token ids).

    `complete` False: the key ends before the prompt does (no vocabulary yet, or an id outside it).
    """

    text: bytes
    tokens: int | None = None
    complete: bool = True


def prompt_keys(peeked: Peeked, source: KeySource, now: float) -> list[PromptKey]:
    """The keys of a body, one for each prompt (a chat has one). Raises BadRequest where the template refuses."""
    if peeked.messages is not None:
        if source.template is None:
            return [PromptKey(text=raw_messages_key(peeked.messages))]
        return [PromptKey(text=render_prompt(peeked, source.template, now).encode())]
    return [
        PromptKey(text=source.completion_prefix + prompt.encode())
        if isinstance(prompt, str)
        else ids_key(prompt, source.vocabulary)
        for prompt in peeked.prompts
    ]


def ids_key(ids: Sequence[int], vocabulary: Sequence[bytes] | None) -> PromptKey:
    """The key of token ids (none negative): their table bytes, up to the first id that the table lacks."""
    if vocabulary is None:
        return PromptKey(text=b"", tokens=len(ids), complete=False)
    size = len(vocabulary)
    if max(ids, default=0) < size:
        return PromptKey(text=b"".join([vocabulary[each] for each in ids]), tokens=len(ids))
    known = next(at for at, each in enumerate(ids) if each >= size)
    return PromptKey(text=b"".join([vocabulary[each] for each in ids[:known]]), tokens=len(ids), complete=False)


def raw_messages_key(messages: Messages) -> bytes:
    """The key of a chat for engines without a known template: a longer chat's key begins with a shorter one's.

    Spaces between JSON tokens do not matter; the order of fields does.
    """
    return b"".join([msgspec.json.encode(message) + b"\n" for message in messages])
