"""Text out of tokens, as they come: whole characters only, and stop strings found wherever they fall.

Keeps true: what `Detokenizer` gave so far is a prefix of the whole text, and the pieces together are the bytes of all
tokens decoded at once. What `StopMatcher` gave never holds a part of a stop string, and does not depend on how the text
was cut into pieces. Does not know requests, or which model made the tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass


class Detokenizer:
    """One sequence's tokens to text. `skip` are ids that leave no text (special tokens)."""

    def __init__(self, token_bytes: Sequence[bytes], skip: Collection[int] = frozenset()) -> None:
        self._token_bytes = token_bytes
        self._skip = skip
        # Holds back an unfinished character; bytes that can be no character become U+FFFD.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Text that is certain once `token` follows; may be empty."""
        return "" if token in self._skip else self._decoder.decode(self._token_bytes[token])

    def finish(self) -> str:
        """What is left: U+FFFD if the tokens end within a character, else nothing."""
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    """`text` may be shown; `stop` is the stop string that ended it, or None."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Lets text through up to the first stop string.

    First is the one that ends first, as it would be found letter by letter; of those that end together, the longest.
    Text that may yet become a stop string is held back, at most the length of the longest one less a character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """An empty stop string would match at once: it is refused with ValueError."""
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._held_max = max((len(stop) for stop in stops), default=1) - 1
        self._held = ""
        self._stopped = False

    @property
    def held(self) -> str:
        """Text that waits for what follows it."""
        return self._held

    def push(self, text: str) -> Matched:
        """Add text; must not be called after a stop."""
        assert not self._stopped
        if not self._stops:
            return Matched(text=text)
        text = self._held + text
        found = self._first(text)
        if found:
            start, stop = found
            self._held, self._stopped = "", True
            return Matched(text=text[:start], stop=stop)
        keep = self._open_suffix(text)
        self._held = text[len(text) - keep :]
        return Matched(text=text[: len(text) - keep])

    def finish(self) -> str:
        """The text held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        places = [(text.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in places if start >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _open_suffix(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._held_max, len(text)), 0, -1):
            suffix = text[len(text) - length :]
            if any(stop.startswith(suffix) for stop in self._stops):
                return length
        return 0
