"""One request and what came back: times, text, usage, and one word for how it ended.

Keeps true: it ends once; times are in order; an answer counts as ok only if it was whole (a stream: with its end
marked). Does not know connections, due times or calls.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import msgspec

from trieway.loadgen.client.events import DONE, EVENT_BYTES_MAX, BadAnswer, Event, EventReader, Usage, decode_event
from trieway.loadgen.records import INTERRUPTED, OK
from trieway.serving.headers import ATTEMPTS, CACHED_TOKENS, PREDICTED_TOKENS, WORKER, token_count

MESSAGE_CHARS_MAX = 200
_ERROR_BYTES_MAX = 64 * 1024

# Ways to end beside OK; each is a label in reports.
CONNECT = "connect"
BROKEN = "broken"
CUT = "cut"
TIMEOUT = "timeout"
BAD_ANSWER = "bad_answer"
STREAM_ERROR = "stream_error"


class Exchange:
    """A wire.Listener. `ended` is called once, with status set. Times are time.monotonic()."""

    __slots__ = (
        *("_body", "_ended", "_finished", "_pieces", "_previous", "_reader", "_size", "attempts", "cached_tokens"),
        *("deadline_s", "events", "first_s", "gaps", "last_s", "message", "predicted_tokens", "request", "sent_s"),
        *("status", "tries", "usage", "worker", "http"),
    )

    def __init__(self, request: bytes, deadline_s: float, ended: Callable[[Exchange], None]) -> None:
        """`request`: the whole of it, head and body. `deadline_s`: when to give up."""
        self.request = request
        self.deadline_s = deadline_s
        self.status: str | None = None
        self.message = ""
        """What the server said of an error, in part."""
        self.sent_s: float | None = None
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.gaps: list[tuple[float, int]] = []
        self.events = 0
        """Arrivals of text."""
        self.usage: Usage | None = None
        self.worker: str | None = None
        self.predicted_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.attempts = 1
        """How many workers the router tried."""
        self.tries = 0
        """How many connections we tried."""
        self._ended = ended
        self.http = 0
        """The response's status; 0 before it."""
        self._reader: EventReader | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._pieces: list[str] = []
        self._previous = 0.0
        self._finished = False

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(self._pieces)

    @property
    def output_tokens(self) -> int:
        """As the server counts, else arrivals of text."""
        told = None if self.usage is None else self.usage.completion_tokens
        return self.events if told is None else told

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status is not None

    # wire.Listener

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """The response begins."""
        self.http = status
        self.worker = _text(headers, WORKER)
        self.predicted_tokens = token_count(_text(headers, PREDICTED_TOKENS))
        self.cached_tokens = token_count(_text(headers, CACHED_TOKENS))
        self.attempts = token_count(_text(headers, ATTEMPTS)) or 1
        if status == 200 and headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._reader = EventReader()

    def body(self, data: bytes, now: float) -> None:
        """A piece of the body."""
        if self.status is not None:
            return
        if self._reader is None:
            self._size += len(data)
            if self._size <= (EVENT_BYTES_MAX if self.http == 200 else _ERROR_BYTES_MAX):
                self._body.append(data)
            return
        try:
            for event in self._reader.feed(data):
                if event == DONE:
                    self._finished = True
                else:
                    self._take(decode_event(event), now)
        except BadAnswer as error:
            self.end(BAD_ANSWER, now, str(error))

    def _take(self, event: Event, now: float) -> None:
        if event.error is not None:
            self.end(STREAM_ERROR, now, _message(event.error))
            return
        if event.usage is not None:
            self.usage = event.usage
        if not event.choices:
            return
        text, came = event.said()
        if came:
            self.events += 1
            if self.first_s is None:
                self.first_s = now
            else:
                self.gaps.append((now - self._previous, 1))
            self._previous = now
            self._pieces.append(text)
        if any(choice.finish_reason for choice in event.choices):
            self._finished = True

    def done(self, now: float) -> None:
        """The response is whole."""
        if self.status is not None:
            return
        if self.http != 200:
            self.end(f"http_{self.http}", now, _body_message(b"".join(self._body)))
        elif self._reader is not None:
            if not self._finished:
                self.end(CUT, now, "the stream ended without its end mark")
            else:
                # The last token's arrival; a model may have said nothing that shows.
                self.end(OK, now if self.first_s is None else self._previous)
        else:
            self._whole(now)

    def _whole(self, now: float) -> None:
        try:
            event = decode_event(b"".join(self._body))
            if event.error is not None:
                self.end(BAD_ANSWER, now, _message(event.error))
            elif not event.choices:
                self.end(BAD_ANSWER, now, "an answer without choices")
            else:
                self.usage = event.usage
                self.events = 1
                self._pieces.append(event.said()[0])
                self.end(OK, now)
        except BadAnswer as error:
            self.end(BAD_ANSWER, now, str(error))

    def broke(self, reason: str, now: float, *, heard: bool) -> None:
        """There will be no whole response."""
        if self.status is None:
            # A stream that was marked as ended is whole, whatever the connection did then.
            if self._reader is not None and self._finished:
                self.done(now)
            else:
                self.end(CUT if heard else BROKEN, now, reason)

    def end(self, status: str, now: float | None = None, message: str = "") -> None:
        """The end, once."""
        assert self.status is None, "an exchange ends once"
        now = monotonic() if now is None else now
        self.status = status
        self.message = message[:MESSAGE_CHARS_MAX]
        if self.sent_s is not None:
            self.last_s = now
            if status == OK and self.first_s is None:
                self.first_s = now
        self._body = []
        self._ended(self)

    def interrupt(self) -> None:
        """The run is cut short."""
        if self.status is None:
            self.end(INTERRUPTED)


def _text(headers: dict[bytes, bytes], name: str) -> str | None:
    value = headers.get(name.encode())
    return None if value is None else value.decode("latin-1")


def _body_message(data: bytes) -> str:
    """What an error body says, in one line."""
    try:
        return _message(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return " ".join(data.decode(errors="replace").split())[:MESSAGE_CHARS_MAX]


def _message(told: object) -> str:
    """The message within OpenAI's error, FastAPI's detail, or whatever it is."""
    while isinstance(told, dict):
        inner = next((told[key] for key in ("error", "message", "detail") if told.get(key)), None)
        if inner is None:
            break
        told = inner
    return " ".join(str(told).split())[:MESSAGE_CHARS_MAX]
