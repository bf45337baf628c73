"""Few-shot questions (as MMLU with 5 examples, HellaSwag with 20): examples shared by many, a question by its choices.

Two levels of sharing: the instruction and a subject's examples are shared by its questions; a question is shared by its
answer choices, which arrive together. Self-consistency asks one question several times and samples.
"""

from dataclasses import dataclass, replace

from trieway.loadgen.vocabulary import Call, Hint, Part, Text
from trieway.loadgen.workloads.common import Draft, number, share, switch


@dataclass(frozen=True, kw_only=True, slots=True)
class FewShot5:
    """Five examples for each of several subjects, one short answer for each question."""

    subjects: int = number(8, "sets of examples")
    questions: int = number(160, "questions over all subjects")
    examples: int = number(5, "examples before each question", least=0)
    choices: int = number(1, "answer choices scored for each question")
    instruction_tokens: int = number(32, "instruction that all share")
    example_tokens: int = number(80, "length of an example")
    question_tokens: int = number(60, "length of a question")
    choice_tokens: int = number(20, "length of an answer choice")
    output_tokens: int = number(1, "length of an answer")
    hints: bool = switch(False, "announce each subject's examples beforehand")


@dataclass(frozen=True, kw_only=True, slots=True)
class FewShot20(FewShot5):
    """Twenty examples that all share, four choices for each question."""

    subjects: int = number(1, "sets of examples")
    questions: int = number(60, "questions over all subjects")
    examples: int = number(20, "examples before each question", least=0)
    choices: int = number(4, "answer choices scored for each question")
    example_tokens: int = number(60, "length of an example")


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfConsistency:
    """Several sampled chains of thought for each question, after examples that all share."""

    questions: int = number(24, "questions")
    samples: int = number(8, "sampled answers for each question")
    examples: int = number(8, "examples before each question", least=0)
    instruction_tokens: int = number(32, "instruction that all share")
    example_tokens: int = number(110, "length of an example with its reasoning")
    question_tokens: int = number(60, "length of a question")
    output_tokens: int = number(96, "length of a chain of thought")
    temperature: float = share(0.7, "temperature of sampling", most=2.0)
    hints: bool = switch(False, "announce each question before its samples")


def few_shot(settings: FewShot5, draft: Draft) -> None:
    """A session is a question with its choices."""
    instruction = (draft.words(settings.instruction_tokens), Text("\n\n"))
    heads = [
        instruction + _examples(draft, settings.examples, settings.example_tokens) for _ in range(settings.subjects)
    ]
    if settings.hints:
        draft.hints += [Hint(session=None, form="completion", prompt=head) for head in heads]
    for index in range(settings.questions):
        subject = index % settings.subjects
        asked = (*heads[subject], Text("Question:"), draft.some_words(settings.question_tokens), Text("\nAnswer:"))
        session = f"question-{index}"
        plain = Call(
            id=session,
            session=session,
            form="completion",
            prompt=asked,
            output_tokens=settings.output_tokens,
            max_tokens=settings.output_tokens,
            share_group=f"subject-{subject}",
        )
        if settings.choices == 1:
            draft.sessions.append([plain])
            continue
        ends = [draft.some_words(settings.choice_tokens) for _ in range(settings.choices)]
        draft.sessions.append([replace(plain, id=f"{session}.{n}", prompt=(*asked, end)) for n, end in enumerate(ends)])
    draft.shuffle()


def self_consistency(settings: SelfConsistency, draft: Draft) -> None:
    """A session is a question with its samples."""
    instruction = (draft.words(settings.instruction_tokens), Text("\n\n"))
    head = instruction + _examples(draft, settings.examples, settings.example_tokens)
    for index in range(settings.questions):
        session = f"question-{index}"
        asked = (*head, Text("Question:"), draft.some_words(settings.question_tokens), Text("\nLet us think:"))
        draft.sessions.append(
            [
                Call(
                    id=f"{session}.{sample}",
                    session=session,
                    form="completion",
                    prompt=asked,
                    output_tokens=settings.output_tokens,
                    max_tokens=settings.output_tokens,
                    temperature=settings.temperature,
                    seed=draft.rng.randrange(1 << 31),
                    share_group=session,
                )
                for sample in range(settings.samples)
            ]
        )
        if settings.hints:
            draft.hints.append(Hint(session=session, form="completion", prompt=asked))
    draft.shuffle()


def _examples(draft: Draft, count: int, tokens: int) -> tuple[Part, ...]:
    found: list[Part] = []
    for _ in range(count):
        found += [Text("Question:"), draft.some_words(tokens), Text("\n\n")]
    return tuple(found)
