"""Traces as they lie in files: Mooncake rows, agentic rows with sessions, runs with real text.

Keeps true: a trace that was read is whole (ids agree with lengths, every id has one parent, time does not go back), or
a TraceError names the first line at fault. An id stands for its block and everything before it. Does not know prompts
or servers: replay.py makes calls, reference.py counts hits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Literal, TypeVar

import msgspec

from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.loadgen.errors import TraceError
from trieway.loadgen.lines import TIME_MAX_S, TOKENS_MAX, numbered_lines, plain_name

Kind = Literal["mooncake", "agentic", "text"]
_BLOCK_TOKENS: Mapping[Kind, int] = {"mooncake": 512, "agentic": 64}
TEXT_BYTES_PER_TOKEN = 4
TEXT_BLOCK_TOKENS = BLOCK_BYTES // TEXT_BYTES_PER_TOKEN
ROWS_MAX = 5_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRow:
    """One request. `block_ids`: one for each started block (Mooncake, text), or each full block (agentic)."""

    line: int
    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    session: str | None = None
    head_key: str | None = None
    head_blocks: int = 0
    text: str | None = None
    """The prompt, where the trace has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Rows in order of time."""

    name: str
    kind: Kind
    block_tokens: int
    rows: tuple[TraceRow, ...]

    def with_shared_head(self) -> Trace:
        """Rows of one `head_key` share the ids of their first `head_blocks` blocks (negative, so unlike any other)."""
        heads: dict[tuple[str, int], int] = {}

        def shared(row: TraceRow) -> TraceRow:
            if row.head_key is None:
                return row
            count = min(row.head_blocks, len(row.block_ids))
            ids = tuple(heads.setdefault((row.head_key, index), -1 - len(heads)) for index in range(count))
            return replace(row, block_ids=ids + row.block_ids[count:])

        return replace(self, rows=tuple(shared(row) for row in self.rows))

    def sessions(self) -> list[int]:
        """The session of each row, numbered by first appearance. Without ids in the trace a row continues the latest
        earlier one whose full blocks (two at least) are all a prefix of it."""
        if all(row.session is not None for row in self.rows):
            numbers: dict[str, int] = {}
            return [numbers.setdefault(row.session or "", len(numbers)) for row in self.rows]
        ends: dict[int, int] = {}  # id of a row's last full block -> index of the latest such row
        found: list[int] = []
        count = 0
        for index, row in enumerate(self.rows):
            before = max((ends[block] for block in row.block_ids if block in ends), default=None)
            found.append(count if before is None else found[before])
            count += before is None
            full = row.input_tokens // self.block_tokens
            if full >= 2:
                ends[row.block_ids[full - 1]] = index
        return found


Count = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=TIME_MAX_S * 1e3)]


class _Blocks(msgspec.Struct):
    timestamp: Moment
    input_length: Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]
    output_length: Count
    hash_ids: tuple[int, ...]
    session_id: str | None = None
    head_key: str | None = None
    head_blocks: Count = 0


class _Words(msgspec.Struct):
    timestamp: Moment
    session_id: str
    step: Count
    keep_chars: Count
    append: str
    output: str = ""


def read_trace(path: str, *, block_tokens: int | None = None) -> Trace:
    """A trace file, plain or gzip. `block_tokens` overrides the format's own. TraceError: it cannot be used."""
    return parse_trace(plain_name(path), numbered_lines(path), source=path, block_tokens=block_tokens)


def parse_trace(
    name: str, lines: Iterable[tuple[int, bytes]], *, source: str | None = None, block_tokens: int | None = None
) -> Trace:
    """A trace from numbered lines. `source` is how errors call it. TraceError."""
    source = source or name
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        raise TraceError(source, "no rows")
    kind = kind_of(first[1])
    if kind is None:
        raise TraceError(source, _unlike(first[1]), first[0])
    size = TEXT_BLOCK_TOKENS if kind == "text" else block_tokens or _BLOCK_TOKENS[kind]
    every = chain([first], rest)
    rows: list[TraceRow] = []
    for row in _text_rows(every, source) if kind == "text" else _block_rows(every, source, kind, size):
        if rows and row.timestamp_ms < rows[-1].timestamp_ms:
            raise TraceError(source, "`timestamp` goes back: sort the rows by time", row.line)
        if len(rows) == ROWS_MAX:
            raise TraceError(source, f"more than {ROWS_MAX} rows: cut the file", row.line)
        rows.append(row)
    return Trace(name=name, kind=kind, block_tokens=size, rows=tuple(rows))


def kind_of(line: bytes) -> Kind | None:
    """The format that a row's fields speak of; None: of none here, or no JSON object."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if "hash_ids" in fields:
        return "agentic" if "session_id" in fields else "mooncake"
    return "text" if "keep_chars" in fields else None


def _unlike(line: bytes) -> str:
    """Why it is of no format."""
    try:
        msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"broken row: {error}"
    return "not a trace row: it has neither `hash_ids` nor `keep_chars`"


Row = TypeVar("Row")


def _decode(decoder: msgspec.json.Decoder[Row], line: bytes, source: str, number: int) -> Row:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(source, f"broken row: {error}", number) from None


def _block_rows(lines: Iterator[tuple[int, bytes]], source: str, kind: Kind, size: int) -> Iterator[TraceRow]:
    decoder = msgspec.json.Decoder(_Blocks)
    parents: dict[int, int | None] = {}
    for number, line in lines:
        row = _decode(decoder, line, source, number)
        ids = row.hash_ids
        counts = "started" if kind == "mooncake" else "full"
        expected = -(-row.input_length // size) if kind == "mooncake" else row.input_length // size
        if len(ids) != expected:
            text = f"{len(ids)} `hash_ids`, but {row.input_length} tokens have {expected} {counts} blocks of {size}"
            raise TraceError(source, text, number)
        if kind == "agentic" and row.session_id is None:
            raise TraceError(source, "broken row: `session_id` is missing, and other rows have it", number)
        parent: int | None = None
        for block in ids:
            if parents.setdefault(block, parent) != parent:
                text = f"block {block} follows {parent} here and {parents[block]} before: ids must stand for all before"
                raise TraceError(source, text, number)
            parent = block
        yield TraceRow(
            line=number,
            timestamp_ms=row.timestamp,
            input_tokens=row.input_length,
            output_tokens=row.output_length,
            block_ids=ids,
            session=row.session_id,
            head_key=row.head_key,
            head_blocks=row.head_blocks,
        )


def _text_rows(lines: Iterator[tuple[int, bytes]], source: str) -> Iterator[TraceRow]:
    decoder = msgspec.json.Decoder(_Words)
    latest: dict[str, tuple[int, str]] = {}
    numbers: dict[tuple[int, bytes], int] = {}
    for number, line in lines:
        row = _decode(decoder, line, source, number)
        step, before = latest.get(row.session_id, (-1, ""))
        if row.step != step + 1:
            raise TraceError(source, f"step {row.step} of session {row.session_id} comes after step {step}", number)
        if row.keep_chars > len(before):
            text = f"`keep_chars` is {row.keep_chars}, but the prompt before has {len(before)} characters"
            raise TraceError(source, text, number)
        prompt = before[: row.keep_chars] + row.append
        data = prompt.encode()
        if not data:
            raise TraceError(source, "an empty prompt", number)
        latest[row.session_id] = (row.step, prompt)
        yield TraceRow(
            line=number,
            timestamp_ms=row.timestamp,
            input_tokens=-(-len(data) // TEXT_BYTES_PER_TOKEN),
            output_tokens=-(-len(row.output.encode()) // TEXT_BYTES_PER_TOKEN),
            block_ids=tuple(_number_blocks(data, numbers)),
            session=row.session_id,
            text=prompt,
        )


def _number_blocks(data: bytes, numbers: dict[tuple[int, bytes], int]) -> Iterator[int]:
    """Ids of the started blocks of 64 bytes; `numbers` knows those of earlier prompts."""
    parent = -1
    for start in range(0, len(data), BLOCK_BYTES):
        parent = numbers.setdefault((parent, data[start : start + BLOCK_BYTES]), len(numbers))
        yield parent
