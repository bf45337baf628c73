"""A trace made into calls: block ids become text that shares exactly what the trace shares.

Keeps true: two prompts share their leading blocks with equal ids, word for word, and part within four words after the
last of them; lengths in tokens are the trace's (divided by `shrink`). Needs no memory for the text: it is made when a
call is sent. Does not know when to send: times are the trace's, or an arrival process replaces them.
"""

from __future__ import annotations

from random import Random

from trieway.loadgen.errors import WorkloadError
from trieway.loadgen.filler import KEY_MAX
from trieway.loadgen.traces import Trace, TraceRow
from trieway.loadgen.vocabulary import Call, Filler, Form, Message, Part, Setting, Text, Workload

WORDS_MIN = 4
"""Of a block: fewer could not tell all blocks apart."""


def replay(
    trace: Trace,
    *,
    seed: int = 0,
    shrink: int = 1,
    share_head: bool = False,
    wait: bool = True,
    form: Form = "completion",
    rows_max: int | None = None,
    forced: bool = True,
) -> Workload:
    """The trace as a workload.

    `shrink`: blocks and answers so many times shorter, for models with less context. `share_head`: see
    Trace.with_shared_head. `wait`: a call of a session waits for the answer to the one before (and for its own time).
    WorkloadError: unusable options.
    """
    if shrink < 1:
        raise WorkloadError(f"shrink is 1 or more, not {shrink}")
    if trace.kind == "text" and shrink > 1:
        raise WorkloadError("a trace of real text cannot shrink")
    if rows_max is not None and rows_max < 1:
        raise WorkloadError(f"at least one row is replayed, not {rows_max}")
    if share_head:
        trace = trace.with_shared_head()
    pieces = _Pieces(trace, seed, shrink)
    latest: dict[str, str] = {}
    calls = []
    for number, row in enumerate(trace.rows[:rows_max]):
        name = f"row-{number}"
        session = name if row.session is None or not wait else f"session-{row.session}"
        before = latest.get(session)
        latest[session] = name
        prompt = pieces.prompt(row)
        length = max(1, row.output_tokens // shrink)
        calls.append(
            Call(
                id=name,
                session=session,
                form=form,
                messages=(Message("user", prompt),) if form == "chat" else (),
                prompt=prompt if form == "completion" else (),
                output_tokens=length,
                max_tokens=length,
                forced=forced,
                after=() if before is None else (before,),
                due_s=row.timestamp_ms / 1000,
                share_group=row.head_key or row.session or "",
                prompt_tokens=_words(prompt) if row.text is None else row.input_tokens,
            )
        )
    settings: dict[str, Setting] = {
        "trace": trace.name,
        "kind": trace.kind,
        "shrink": shrink,
        "share_head": share_head,
        "wait": wait,
    }
    return Workload(name=trace.name, seed=seed, calls=tuple(calls), settings=settings)


class _Pieces:
    """One filler for each block id, and new ones for what no block covers."""

    def __init__(self, trace: Trace, seed: int, shrink: int) -> None:
        self._kind = trace.kind
        self._block_tokens = trace.block_tokens
        self._words = max(WORDS_MIN, trace.block_tokens // shrink)
        self._key = Random(seed).randrange(KEY_MAX)
        self._whole: dict[int, Filler] = {}

    def prompt(self, row: TraceRow) -> tuple[Part, ...]:
        if row.text is not None:
            return (Text(row.text),)
        found: list[Part] = []
        for block in row.block_ids:
            whole = self._whole.get(block)
            if whole is None:
                whole = self._whole[block] = self._new(self._words)
            found.append(whole)
        rest = row.input_tokens - len(row.block_ids) * self._block_tokens
        if rest < 0:  # the last block is only begun
            last = self._whole[row.block_ids[-1]]
            found[-1] = Filler(last.key, self._scaled(self._block_tokens + rest))
        elif rest and (words := self._scaled(rest)):
            found.append(self._new(words))
        return tuple(found)

    def _scaled(self, tokens: int) -> int:
        return -(-tokens * self._words // self._block_tokens)

    def _new(self, words: int) -> Filler:
        self._key = (self._key + 1) % KEY_MAX
        return Filler(self._key, words)


def _words(prompt: tuple[Part, ...]) -> int:
    return sum(part.words for part in prompt if isinstance(part, Filler))
