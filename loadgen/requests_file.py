"""The user's own requests: JSON lines with messages or a prompt, also in the form of OpenAI's batch files.

A line: {"messages": [...]} or {"prompt": "..."}, and where wanted: id, session_id, after (ids), timestamp (ms),
think_s, max_tokens, output_tokens, ignore_eos, temperature, seed, stream, priority, cache_salt, tenant. A batch line
has custom_id and body. A message is {"role", "content"}, or {"role", "answer_of": id} where an earlier answer belongs.
Lines of one session wait for each other in order, unless `after` says otherwise.

Keeps true: the workload passes its check, or a TraceError names the line at fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from trieway.loadgen.errors import TraceError
from trieway.loadgen.lines import TIME_MAX_S, TOKENS_MAX, numbered_lines, plain_name
from trieway.loadgen.vocabulary import AnswerOf, Call, Message, Part, Text, Workload, quoted_in_vain

CALLS_MAX = 5_000_000
OUTPUT_TOKENS = 16
"""Where a line says nothing, as OpenAI's completions."""

Positive = Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=TIME_MAX_S)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=TIME_MAX_S * 1e3)]


class _Piece(msgspec.Struct):
    type: str
    text: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Piece] | None = None
    answer_of: str | None = None


class _Line(msgspec.Struct):
    messages: list[_Message] | None = None
    prompt: str | None = None
    id: str | None = None
    custom_id: str | None = None
    body: msgspec.Raw = msgspec.Raw()
    session_id: str | None = None
    after: list[str] | None = None
    timestamp: Moment | None = None
    think_s: Seconds = 0.0
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    output_tokens: Positive | None = None
    ignore_eos: bool = False
    temperature: float = 0.0
    seed: int | None = None
    stream: bool = True
    priority: int = 0
    cache_salt: str | None = None
    tenant: str | None = None


def read_requests(path: str) -> Workload:
    """A file of requests, plain or gzip. TraceError: it cannot be used."""
    return parse_requests(plain_name(path), numbered_lines(path), source=path)


def parse_requests(name: str, lines: Iterable[tuple[int, bytes]], *, source: str | None = None) -> Workload:
    """Requests from numbered lines. TraceError."""
    source = source or name
    calls: dict[str, Call] = {}
    latest: dict[str, str] = {}
    for number, line in lines:
        if len(calls) == CALLS_MAX:
            raise TraceError(source, f"more than {CALLS_MAX} requests: cut the file", number)
        try:
            call = _call(_decode(line), len(calls), latest, calls)
            if unknown := quoted_in_vain(call, calls):
                raise ValueError(f"`answer_of` names {unknown.pop()!r}, for which this request does not wait")
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise TraceError(source, f"broken request: {error}", number) from None
        calls[call.id], latest[call.session] = call, call.id
    if not calls:
        raise TraceError(source, "no requests")
    return Workload(name=name, seed=0, calls=tuple(calls.values()), settings={"file": name})


def _decode(line: bytes) -> _Line:
    found = _LINES.decode(line)
    if found.body:
        inner = _LINES.decode(found.body)
        inner.id = found.custom_id or found.id or inner.id
        return inner
    return found


_LINES = msgspec.json.Decoder(_Line)


def _call(line: _Line, index: int, latest: dict[str, str], calls: dict[str, Call]) -> Call:
    name = line.id or f"line-{index}"
    if name in calls:
        raise ValueError(f"a request named {name!r} came before")
    if (line.messages is None) == (line.prompt is None):
        raise ValueError("it needs `messages` or `prompt`, and not both")
    if line.prompt == "" or line.messages == []:
        raise ValueError("an empty prompt")
    after = line.after
    if after is None:
        after = [latest[line.session_id]] if line.session_id in latest else []
    for other in after:
        if other not in calls:
            raise ValueError(f"`after` names {other!r}, which does not come before")
    session = line.session_id or (calls[after[0]].session if after else f"alone-{name}")
    if any(calls[other].session != session for other in after):
        raise ValueError("`after` names a request of another session")
    length = line.output_tokens or line.max_tokens or line.max_completion_tokens or OUTPUT_TOKENS
    return Call(
        id=name,
        session=session,
        form="completion" if line.messages is None else "chat",
        messages=tuple(Message(one.role, (_part(one),)) for one in line.messages or ()),
        prompt=() if line.prompt is None else (Text(line.prompt),),
        output_tokens=length,
        max_tokens=max(length, line.max_tokens or line.max_completion_tokens or 0),
        forced=line.ignore_eos,
        after=tuple(dict.fromkeys(after)),
        think_s=line.think_s if after else 0.0,
        due_s=None if line.timestamp is None else line.timestamp / 1000,
        temperature=line.temperature,
        seed=line.seed,
        salt=line.cache_salt,
        tenant=line.tenant,
        stream=line.stream,
        priority=line.priority,
    )


def _part(message: _Message) -> Part:
    if message.answer_of is not None:
        return AnswerOf(message.answer_of)
    if message.content is None:
        raise ValueError("a message needs `content` or `answer_of`")
    if isinstance(message.content, str):
        return Text(message.content)
    if any(piece.type != "text" for piece in message.content):
        raise ValueError("content parts other than text are not sent")
    return Text("".join(piece.text for piece in message.content))
