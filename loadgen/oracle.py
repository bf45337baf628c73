"""The oracle bound: how many prompt tokens any fleet could have reused, whatever its placement, order and eviction.

Keeps true: no routing of these requests over caches of `cache_tokens` in total reuses more (proof:
docs/oracle-bound.md; brute force in tests/loadgen/test_oracle.py). For one cache and requests one after the other it is
reached. Does not know workers, policies or engines.

The two things it needs of a request: what it reads and writes, and when it may have looked into the cache. A request
that was served twice (retried) is two uses; a prefix hint is a use with nothing reusable.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from trieway.loadgen.segments import Segment, Segments, Units
from trieway.loadgen.traces import Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """A request as the caches see it. Times are any one clock's; for requests one by one, their index."""

    units: Units
    """Prompt, then what was generated: token ids, block ids, or bytes (of all uses alike)."""
    prompt_units: int
    """How many of them are prompt."""
    start: float
    """It looked up no earlier (sent)."""
    end: float
    """Its prompt was looked up and computed no later (first token)."""
    made_end: float | None = None
    """What it generated was in the cache no later (last token); None: at `end`."""
    reusable_units: int | None = None
    """Leading units that could be reused at all: engines compute the last token of a prompt. None: the whole prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Tokens. `endless` is what caches without end could reuse, in any order; `reuse` what these can."""

    prompt_tokens: float
    endless_tokens: float
    reuse_tokens: float

    @property
    def share(self) -> float:
        """Of all prompt tokens; 0 if there are none."""
        return self.reuse_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(slots=True)
class _Life:
    """What happens to one segment: the windows of its uses, and how many of them could be hits."""

    tokens: float
    starts: list[float]
    ends: list[float]
    reusable: int = 0


Interval = tuple[float, float, float]
"""(from, to, tokens): between the two moments these tokens must lie in some cache, for the next use to hit them."""


def reuse_bound(
    uses: Sequence[Use], cache_tokens: float | None, *, unit_tokens: float | Mapping[int, float] = 1.0
) -> Bound:
    """The bound for caches of `cache_tokens` together (None: endless). `unit_tokens`: tokens per unit (bytes: about
    1/4), or of each unit by its id."""
    lives = _lives(uses, unit_tokens)
    prompts = sum(_weight(use.units[: use.prompt_units], unit_tokens) for use in uses)
    endless = sum(life.tokens * min(len(life.starts) - 1, life.reusable) for life in lives if life.reusable)
    if cache_tokens is None:
        return Bound(prompt_tokens=prompts, endless_tokens=endless, reuse_tokens=endless)
    free, intervals = 0.0, []
    for life in lives:
        if life.reusable:
            # The m-th use in true order is no later than the m-th end, the next no earlier than the next start.
            for begin, until in zip(sorted(life.ends), sorted(life.starts)[1:], strict=False):
                if begin < until:
                    intervals.append((begin, until, life.tokens))
                else:
                    free += life.tokens
    reuse = free + most_kept(intervals, cache_tokens)
    return Bound(prompt_tokens=prompts, endless_tokens=endless, reuse_tokens=min(reuse, endless))


def trace_bound(trace: Trace, cache_tokens: float | None) -> Bound:
    """The bound for a trace served row by row. Mooncake's and text's last block counts for as much as is started, the
    most of it where rows disagree."""
    tokens: dict[int, float] = {}
    uses = []
    for index, row in enumerate(trace.rows):
        ids = row.block_ids
        uses.append(Use(units=ids, prompt_units=len(ids), start=index, end=index))
        for depth, block in enumerate(ids):
            started = min(trace.block_tokens, row.input_tokens - depth * trace.block_tokens)
            tokens[block] = max(started, tokens.get(block, 0))
    found = reuse_bound(uses, cache_tokens, unit_tokens=tokens)
    total = sum(row.input_tokens for row in trace.rows)
    return Bound(prompt_tokens=total, endless_tokens=found.endless_tokens, reuse_tokens=found.reuse_tokens)


def most_kept(intervals: Iterable[Interval], capacity: float) -> float:
    """The most tokens of (open) intervals that can be kept with at most `capacity` at any moment; an interval may be
    kept in part. Greedy: in order of start, and when too much is open, give up what ends last."""
    kept = open_tokens = 0.0
    ending: list[tuple[float, int]] = []
    lasting: list[tuple[float, int]] = []
    left: list[float] = []
    for number, (start, end, tokens) in enumerate(sorted(intervals)):
        while ending and ending[0][0] <= start:
            open_tokens -= left[heappop(ending)[1]]
        left.append(tokens)
        kept += tokens
        open_tokens += tokens
        heappush(ending, (end, number))
        heappush(lasting, (-end, number))
        while open_tokens > capacity and lasting:
            last = lasting[0][1]
            given_up = min(left[last], open_tokens - capacity)
            left[last] -= given_up
            kept -= given_up
            open_tokens -= given_up
            if not left[last]:
                heappop(lasting)
    return kept


def _lives(uses: Sequence[Use], unit_tokens: float | Mapping[int, float]) -> list[_Life]:
    tree = Segments()
    for use in uses:
        tree.insert(use.units, _reusable(use))
        tree.insert(use.units)
    lives: dict[int, _Life] = {}
    for use in uses:
        at = 0
        for segment in tree.read(use.units):
            life = lives.get(segment.number)
            if life is None:
                life = lives[segment.number] = _Life(_segment_tokens(segment, unit_tokens), [], [])
            at += segment.length
            made = at > use.prompt_units and use.made_end is not None
            life.starts.append(use.start)
            life.ends.append(use.made_end if made and use.made_end is not None else use.end)
            life.reusable += at <= _reusable(use)
        assert at == len(use.units), "an inserted sequence is read whole"
    return list(lives.values())


def _reusable(use: Use) -> int:
    return use.prompt_units if use.reusable_units is None else use.reusable_units


def _segment_tokens(segment: Segment, unit_tokens: float | Mapping[int, float]) -> float:
    if not isinstance(unit_tokens, Mapping):
        return segment.length * unit_tokens
    return _weight(segment.source[segment.start : segment.start + segment.length], unit_tokens)


def _weight(units: Units, unit_tokens: float | Mapping[int, float]) -> float:
    return sum(unit_tokens[unit] for unit in units) if isinstance(unit_tokens, Mapping) else len(units) * unit_tokens
