"""Files of question and answer, as grade-school-math: few-shot prompts of real text.

The first pairs are the examples that all prompts share, the others are asked, each as often as `samples` says. Keeps
true: a TraceError names the line at fault. Does not know what is right.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec

from trieway.loadgen.errors import TraceError, WorkloadError
from trieway.loadgen.vocabulary import Call, Setting, Text, Workload


class _Pair(msgspec.Struct):
    question: str
    answer: str


def is_pair(line: bytes) -> bool:
    """Whether a line is a question with its answer."""
    try:
        msgspec.json.decode(line, type=_Pair)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def few_shot_of(
    name: str,
    lines: Iterable[tuple[int, bytes]],
    *,
    source: str,
    seed: int = 0,
    examples: int = 5,
    samples: int = 1,
    output_tokens: int = 96,
    rows_max: int | None = None,
) -> Workload:
    """Few-shot completions from numbered lines. TraceError: a broken line. WorkloadError: too few pairs."""
    pairs: list[_Pair] = []
    for number, line in lines:
        if rows_max is not None and len(pairs) == examples + rows_max:
            break
        try:
            pairs.append(msgspec.json.decode(line, type=_Pair))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(source, f"broken pair: {error}", number) from None
    if len(pairs) <= examples:
        raise WorkloadError(f"{source} has {len(pairs)} pairs: {examples} examples leave nothing to ask")
    head = Text("".join(f"Question: {one.question}\nAnswer: {one.answer}\n\n" for one in pairs[:examples]))
    rng = Random(seed)
    calls = [
        Call(
            id=f"question-{index}.{sample}",
            session=f"question-{index}",
            form="completion",
            prompt=(head, Text(f"Question: {pair.question}\nAnswer:")),
            output_tokens=output_tokens,
            max_tokens=output_tokens,
            temperature=0.7 if samples > 1 else 0.0,
            seed=rng.randrange(1 << 31) if samples > 1 else None,
            share_group=name,
        )
        for index, pair in enumerate(pairs[examples:])
        for sample in range(samples)
    ]
    settings: dict[str, Setting] = {"file": name, "examples": examples, "samples": samples}
    return Workload(name=name, seed=seed, calls=tuple(calls), settings=settings)
