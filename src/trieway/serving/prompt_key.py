"""From a peeked body to the bytes that are hashed. (Signatures first.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trieway.serving.chat_template import ChatTemplate
from trieway.serving.peek import Messages, Peeked


@dataclass(frozen=True, kw_only=True, slots=True)
class KeySource:
    """What a group's handshake gives for making keys. No template: chats key on their raw messages.

    `vocabulary` is the token -> bytes table, None until it has been fetched.
    """

    template: ChatTemplate | None = None
    completion_prefix: bytes = b""
    vocabulary: Sequence[bytes] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptKey:
    """One prompt's key: `text` is hashed in blocks; `tokens` is its length where the body states it (token ids).

    `complete` False: the key ends before the prompt does (no vocabulary yet, or an id outside it).
    """

    text: bytes
    tokens: int | None = None
    complete: bool = True


def prompt_keys(peeked: Peeked, source: KeySource, now: float) -> list[PromptKey]:
    """The keys of a body, one for each prompt (a chat has one). Raises BadRequest where the template refuses."""
    raise NotImplementedError


def raw_messages_key(messages: Messages) -> bytes:
    """The key of a chat for engines without a known template: a longer chat's key begins with a shorter one's."""
    raise NotImplementedError
