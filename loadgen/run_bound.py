"""The oracle bound of a run: from its calls and what became of them to the uses that oracle.py bounds.

Keeps true: two prompts share in units exactly what they share in text (fillers word by word, other text byte by byte),
so nothing that could be reused is missed; and no filler is written out, so a trace of a hundred million tokens needs a
few integers for each block. Does not know a model's template: chats are taken in the plain form of prompts.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from math import inf

from trieway.loadgen.filler import WORD_BYTES
from trieway.loadgen.oracle import Bound, Use, reuse_bound
from trieway.loadgen.prompts import laid_out
from trieway.loadgen.records import Record
from trieway.loadgen.vocabulary import AnswerOf, Call, Filler, Hint, Part, Text, Workload

KEY_WORDS = 4
"""Words that tell a filler's key."""
_BYTES = 256
"""Units below are the words of a key; from here on to twice as many, bytes; then whatever is numbered."""


def run_bound(
    workload: Workload,
    records: Iterable[Record],
    cache_tokens: float | None,
    *,
    answers: Mapping[str, str] | None = None,
    bytes_per_token: float = float(WORD_BYTES),
    tenants_apart: bool = False,
) -> Bound:
    """What caches of `cache_tokens` together (None: endless) could have reused of the calls that ended well.

    Warm-up and failed calls fill the caches but are not counted; each attempt is a use. `answers`: texts by call, so
    that equal answers count as equal; where one is missing it is taken as unlike any other. `tenants_apart`: tenants
    share nothing, as behind keys. Each call's last token is computed anyway.
    """
    units = _Units(workload, answers or {}, {r.call: r.output_tokens for r in records}, bytes_per_token, tenants_apart)
    calls = {call.id: call for call in workload.calls}
    uses = list(_hints(workload, units))
    for record in records:
        if record.sent_s is not None:
            uses += _uses(calls[record.call], record, units)
    return reuse_bound(uses, cache_tokens, unit_tokens=units.tokens)


def _uses(call: Call, record: Record, units: _Units) -> Iterator[Use]:
    assert record.sent_s is not None, "only what was sent"
    prompt = units.prompt(call)
    every = prompt + units.answer(call.id)
    last = inf if record.last_s is None else record.last_s
    first = last if record.first_s is None else record.first_s
    counts = record.ok and not record.warmup
    for attempt in range(record.attempts):
        counted = len(prompt) if counts and attempt == 0 else 0
        yield Use(
            units=every,
            prompt_units=counted,
            start=record.sent_s,
            # Where the prompt is not counted it is as if made: it was there no later than the end.
            end=first if counted else last,
            made_end=last,
            reusable_units=max(counted - 1, 0),
        )


def _hints(workload: Workload, units: _Units) -> Iterator[Use]:
    for hint in workload.hint_prefixes:
        yield Use(units=units.prompt(hint), prompt_units=0, start=-inf, end=inf, reusable_units=0)


class _Units:
    """Parts as integers, and how many tokens each of these is."""

    def __init__(
        self,
        workload: Workload,
        answers: Mapping[str, str],
        lengths: Mapping[str, int],
        bytes_per_token: float,
        tenants_apart: bool,
    ) -> None:
        self._answers = answers
        self._lengths = lengths
        self._tenants_apart = tenants_apart
        self._numbers: dict[object, int] = {}
        self._fillers: dict[Filler, tuple[int, ...]] = {}
        self._cuts = _cuts(workload)
        self.tokens: dict[int, float] = dict.fromkeys(range(_BYTES), 1.0)
        self.tokens |= dict.fromkeys(range(_BYTES, 2 * _BYTES), 1.0 / bytes_per_token)

    def prompt(self, call: Call | Hint) -> tuple[int, ...]:
        found = [self._number(("space", call.salt, call.tenant if self._tenants_apart else None), 0.0)]
        for part in laid_out(call):
            found += self._part(part)
        return tuple(found)

    def answer(self, call: str) -> tuple[int, ...]:
        text = self._answers.get(call)
        if text is None:
            return (self._number(("answer", call), float(self._lengths.get(call, 0))),)
        return tuple(_text(text))

    def _part(self, part: Part) -> Iterable[int]:
        match part:
            case Text(text):
                return _text(text)
            case AnswerOf(call):
                return self.answer(call)
            case Filler(key, words):
                known = self._fillers.get(part)
                if known is None:
                    known = self._fillers[part] = tuple(self._filler(key, words))
                return known

    def _filler(self, key: int, words: int) -> Iterator[int]:
        yield from key.to_bytes(KEY_WORDS, "little")[:words]
        cuts = self._cuts.get(key, [])
        for index in range(bisect_left(cuts, words + 1)):
            begin = KEY_WORDS if index == 0 else cuts[index - 1]
            yield self._number((key, begin), float(cuts[index] - begin))

    def _number(self, name: object, tokens: float) -> int:
        number = self._numbers.setdefault(name, 2 * _BYTES + len(self._numbers))
        self.tokens[number] = tokens
        return number


def _cuts(workload: Workload) -> dict[int, list[int]]:
    """Where fillers of each key end, beyond the words of the key; before a prompt's last word too."""
    found: dict[int, set[int]] = {}
    for prompt in (*map(laid_out, workload.calls), *map(laid_out, workload.hint_prefixes)):
        last: Part | None = None
        for part in prompt:
            if isinstance(part, Filler):
                found.setdefault(part.key, set()).add(part.words)
            last = part
        if isinstance(last, Filler):
            found[last.key].add(last.words - 1)
    return {key: sorted(cut for cut in cuts if cut > KEY_WORDS) for key, cuts in found.items()}


def _text(text: str) -> Iterator[int]:
    return (_BYTES + byte for byte in text.encode())
