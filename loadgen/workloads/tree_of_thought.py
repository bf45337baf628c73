"""Tree of thought: a question is thought about along branches, each of which forks again; at the end a vote.

All calls of a fork have one prompt (sampled differently), and a branch's prompt extends the one it grew from.
"""

from dataclasses import dataclass

from trieway.loadgen.errors import WorkloadError
from trieway.loadgen.vocabulary import AnswerOf, Call, Hint, Message, Part, Text
from trieway.loadgen.workloads.common import Draft, number, share, switch

CALLS_MAX = 100_000
"""Of one question: trees grow fast."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeOfThought:
    """branches + branches ** 2 + ... calls for each question, and one that votes."""

    questions: int = number(10, "questions")
    branches: int = number(2, "thoughts at each fork")
    depth: int = number(4, "forks one after the other")
    instruction_tokens: int = number(350, "instruction with examples that all questions share")
    question_tokens: int = number(60, "length of a question")
    ask_tokens: int = number(20, "length of what is asked at each level")
    output_tokens: int = number(64, "length of a thought")
    vote: bool = switch(True, "end with a call that reads the last thoughts of all branches")
    vote_thoughts: int = number(8, "how many of them it reads")
    temperature: float = share(0.8, "temperature of sampling", most=2.0)
    hints: bool = switch(False, "announce each question before its first fork")


def tree_of_thought(settings: TreeOfThought, draft: Draft) -> None:
    """A session is a question. WorkloadError: too large a tree."""
    size = sum(settings.branches**level for level in range(1, settings.depth + 1))
    if size > CALLS_MAX:
        raise WorkloadError(
            f"{settings.branches} branches of depth {settings.depth} are {size} calls, over {CALLS_MAX}"
        )
    system = Message("system", (draft.words(settings.instruction_tokens),))
    asks = [Message("user", (draft.words(settings.ask_tokens),)) for _ in range(settings.depth)]
    for number_ in range(settings.questions):
        session = f"question-{number_}"
        asked = (Text("Question:"), draft.some_words(settings.question_tokens), Text("\n"), *asks[0].parts)
        question = Message("user", asked)
        draft.sessions.append(_grow(settings, draft, session, (system, question), asks))
        if settings.hints:
            draft.hints.append(Hint(session=session, messages=(system, question)))
    draft.shuffle()


def _grow(
    settings: TreeOfThought, draft: Draft, session: str, head: tuple[Message, ...], asks: list[Message]
) -> list[Call]:
    calls: list[Call] = []
    edge: list[tuple[tuple[Message, ...], str | None]] = [(head, None)]
    for level in range(settings.depth):
        grown: list[tuple[tuple[Message, ...], str | None]] = []
        for messages, parent in edge:
            prompt = messages if parent is None else (*messages, Message("assistant", (AnswerOf(parent),)), asks[level])
            for _ in range(settings.branches):
                call = Call(
                    id=f"{session}.{len(calls)}",
                    session=session,
                    messages=prompt,
                    output_tokens=settings.output_tokens,
                    max_tokens=settings.output_tokens,
                    after=() if parent is None else (parent,),
                    temperature=settings.temperature,
                    seed=draft.rng.randrange(1 << 31),
                    share_group=session,
                )
                calls.append(call)
                grown.append((prompt, call.id))
        edge = grown
    if settings.vote:
        leaves = [leaf for _, leaf in edge if leaf is not None]
        calls.append(_vote(settings, session, head, leaves))
    return calls


def _vote(settings: TreeOfThought, session: str, head: tuple[Message, ...], leaves: list[str]) -> Call:
    read = leaves[: settings.vote_thoughts]
    thoughts: list[Part] = []
    for leaf in read:
        thoughts += [Text("\nThought:"), AnswerOf(leaf)]
    question = Message("user", (*head[-1].parts, *thoughts, Text("\nWhich is best?")))
    return Call(
        id=f"{session}.vote",
        session=session,
        messages=(*head[:-1], question),
        output_tokens=1,
        max_tokens=1,
        after=tuple(read),
        share_group=session,
    )
