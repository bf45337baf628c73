"""The paper's benchmarks as workloads of generated text, and what its frontend does with them.

Shapes follow the paper's section 6.1 and the benchmark scripts that its authors published: 64 programs at a time, turns
of a chat one after the other without a pause, trees of two branches and four levels, MMLU subject by subject. What the
data alone decides (how long an instruction is against what follows it) is set so that the optimum lies near the
published one: what is reproduced is how much of it is reached, not the data. Keeps true: one seed, one workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trieway.loadgen.vocabulary import Call, Message, Part, Setting, Workload
from trieway.loadgen.workloads import make

HINT = "/hint"
"""Ends the id of a call that only makes a prefix resident."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """One of the paper's benchmarks. `quick`: settings for a run of seconds. `users`: programs at a time."""

    name: str
    recipe: str
    settings: Mapping[str, Setting]
    quick: Mapping[str, Setting]
    users: int = 64
    repeats: int = 1
    """Runs with other seeds that are added up, where one is small."""
    by_group: bool = False
    """Group by group, as the benchmark's script asks; a group's common prefix is sent with its first program."""
    select: bool = False
    """All calls of a session score endings of one prompt: the frontend sends that prompt first."""
    published: bool = True
    """Whether the paper's figures have it."""

    def workload(self, seed: int, *, quick: bool = False) -> Workload:
        """With the frontend's hints as calls (see `hinted`)."""
        made = make(self.recipe, seed, **{**self.settings, **(self.quick if quick else {})})
        if self.by_group:
            made = group_by_group(made)
        if self.select:
            made = with_select(made)
        return hinted(made)


BENCHMARKS: tuple[Benchmark, ...] = (
    Benchmark(
        name="MMLU",
        recipe="few-shot-5",
        settings={"subjects": 10, "questions": 2000, "example_tokens": 100, "question_tokens": 100, "hints": True},
        quick={"subjects": 4, "questions": 200},
        by_group=True,
    ),
    Benchmark(
        name="ReAct agents",
        recipe="react-agent",
        settings={"tasks": 100, "instruction_tokens": 1700, "tool_time": "none"},
        quick={"tasks": 20},
    ),
    Benchmark(
        name="Generative agents",
        recipe="generative-agents",
        settings={
            "agents": 100, "steps": 10, "template_tokens": 1200, "person_tokens": 60, "memory_tokens": 60,
            "pause": "none",
        },
        quick={"agents": 25, "steps": 4},
    ),
    Benchmark(
        name="Tree of thought",
        recipe="tree-of-thought",
        settings={
            "questions": 64, "instruction_tokens": 80, "question_tokens": 60, "ask_tokens": 20, "output_tokens": 160,
            "vote": False, "hints": True,
        },
        quick={"questions": 8},
    ),
    Benchmark(
        name="Self-consistency",
        recipe="self-consistency",
        settings={"questions": 100, "hints": True},
        quick={"questions": 16},
        published=False,
    ),
    Benchmark(
        name="HellaSwag",
        recipe="few-shot-20",
        settings={"questions": 200},
        quick={"questions": 50},
        select=True,
    ),
    Benchmark(
        name="Multi-turn chat (short)",
        recipe="chat-short",
        settings={"conversations": 20, "pause": "none"},
        quick={},
        repeats=8,
    ),
    Benchmark(
        name="Multi-turn chat (long)",
        recipe="chat-long",
        settings={"conversations": 20, "pause": "none"},
        quick={},
        repeats=8,
    ),
    Benchmark(
        name="DSPy RAG pipeline",
        recipe="rag",
        settings={"questions": 200, "instruction_tokens": 1800, "document_tokens": 80},
        quick={"questions": 50},
    ),
)  # fmt: skip


def benchmark(name: str) -> Benchmark:
    """By the name that the paper gives it."""
    return next(one for one in BENCHMARKS if one.name == name)


def is_hint(call_id: str) -> bool:
    """Whether the call only made a prefix resident."""
    return call_id.endswith(HINT)


def hinted(workload: Workload) -> Workload:
    """With each session's hint as a call of one token that the session's free calls wait for: the frontend sends a
    fork's prefix, and the branches when it is there. Hints of no session stay: clients wait for those anyway."""
    hints = {hint.session: hint for hint in workload.hint_prefixes if hint.session is not None}
    sent: set[str] = set()
    calls: list[Call] = []
    for call in workload.calls:
        hint = hints.get(call.session)
        if hint is not None:
            first = _resident(call, hint.messages, hint.prompt)
            if first.id not in sent:
                sent.add(first.id)
                calls.append(first)
            if not call.after:
                call = replace(call, after=(first.id,))
        calls.append(call)
    common = tuple(hint for hint in workload.hint_prefixes if hint.session is None)
    return replace(workload, calls=tuple(calls), hint_prefixes=common)


def unhinted(workload: Workload) -> Workload:
    """Without any: calls that waited for a hint are free."""
    gone = {call.id for call in workload.calls if is_hint(call.id)}
    calls = tuple(
        replace(call, after=tuple(name for name in call.after if name not in gone))
        for call in workload.calls
        if call.id not in gone
    )
    return replace(workload, calls=calls, hint_prefixes=())


def one_by_one(workload: Workload) -> Workload:
    """Without parallelism inside a program: each call waits for the session's call before it."""
    last: dict[str, str] = {}
    calls = []
    for call in workload.calls:
        before = last.get(call.session)
        calls.append(call if before is None or before in call.after else replace(call, after=(*call.after, before)))
        last[call.session] = call.id
    return replace(workload, calls=tuple(calls))


def group_by_group(workload: Workload) -> Workload:
    """Calls in the order of their groups' numbers. Hints of no session belong to the groups in turn, and go with the
    first session of each."""
    calls = sorted(workload.calls, key=lambda call: int(call.share_group.rsplit("-", 1)[1]))
    first: dict[str, str] = {}
    for call in calls:
        first.setdefault(call.share_group, call.session)
    assert len(workload.hint_prefixes) in (0, len(first)), "a hint for each group, or none"
    hints = tuple(
        replace(hint, session=session) for hint, session in zip(workload.hint_prefixes, first.values(), strict=False)
    )
    return replace(workload, calls=tuple(calls), hint_prefixes=hints)


def with_select(workload: Workload) -> Workload:
    """Sessions whose calls differ in their last part: what they share is sent first."""
    sessions: dict[str, list[Call]] = {}
    for call in workload.calls:
        sessions.setdefault(call.session, []).append(call)
    calls: list[Call] = []
    for group in sessions.values():
        first = _resident(group[0], (), _shared(group))
        calls += [first, *(replace(call, after=(first.id,)) for call in group)]
    return replace(workload, calls=tuple(calls))


def _resident(call: Call, messages: tuple[Message, ...], prompt: tuple[Part, ...]) -> Call:
    return replace(
        call, id=call.session + HINT, messages=messages, prompt=prompt, output_tokens=1, max_tokens=1, after=(),
        think_s=0.0,
    )  # fmt: skip


def _shared(group: Sequence[Call]) -> tuple[Part, ...]:
    prompt = group[0].prompt[:-1]
    assert all(call.prompt[:-1] == prompt for call in group), "these calls score no endings of one prompt"
    return prompt
