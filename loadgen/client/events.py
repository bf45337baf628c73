"""Reading answers: server-sent events out of bytes, and what an OpenAI event or body says.

Keeps true: events come out the same however the bytes are cut; a line or body is bounded; what is no OpenAI event is
`BadAnswer`, never a wrong count. Does not know sockets or times.
"""

from __future__ import annotations

import msgspec

EVENT_BYTES_MAX = 16 * 1024 * 1024
DONE = b"[DONE]"


class BadAnswer(Exception):
    """The server sent something that is no answer of the OpenAI API."""


class Details(msgspec.Struct):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Token counts; None: not told."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        """What was reused, if the server tells."""
        return None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None


class Event(msgspec.Struct):
    """A stream's event or a whole body, of chat and completions alike."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    error: object = None
    """Whatever stands there; servers differ."""

    def said(self) -> tuple[str, bool]:
        """The text that the first choice brings, and whether any came: what a model thinks aloud is none of the answer,
        but it came."""
        if not self.choices:
            return "", False
        choice = self.choices[0]
        if choice.text is not None:
            return choice.text, bool(choice.text)
        message = choice.delta or choice.message
        if message is None:
            return "", False
        text = message.content or ""
        return text, bool(text or message.reasoning_content)


_decoder = msgspec.json.Decoder(Event)


def decode_event(data: bytes) -> Event:
    """BadAnswer: no JSON, or fields of other types than OpenAI's."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadAnswer(f"an event is not OpenAI's: {error}") from None


class EventReader:
    """The `data` of each server-sent event, in order."""

    __slots__ = ("_data", "_held")

    def __init__(self) -> None:
        self._held = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Events that `chunk` completes. BadAnswer: one is over EVENT_BYTES_MAX."""
        data = self._held + chunk if self._held else chunk
        # Nearly always: whole events of one data line each, ended by LF LF.
        if not self._data and data.endswith(b"\n\n") and data.startswith(b"data:") and b"\r" not in data:
            self._held = b""
            parts = data[:-2].split(b"\n\n")
            if all(part.startswith(b"data:") and b"\n" not in part for part in parts):
                return [part[5:].lstrip(b" ") for part in parts]
            return self._lines(data.split(b"\n")[:-1])
        if b"\r" in data:
            # A CR at the very end may be the first half of CR LF.
            end = len(data) - data.endswith(b"\r")
            data = data[:end].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + data[end:]
        *lines, self._held = data.split(b"\n")
        if len(self._held) + sum(map(len, self._data)) > EVENT_BYTES_MAX:
            raise BadAnswer(f"an event is over {EVENT_BYTES_MAX} bytes")
        return self._lines(lines)

    def _lines(self, lines: list[bytes]) -> list[bytes]:
        found = []
        for line in lines:
            if not line:
                if self._data:
                    found.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return found
