"""Retrieval: a program's instruction, the passages found, the question. What is shared depends on the passages' order.

With two hops the first call writes the query, the second reads what was found for it.
"""

from dataclasses import dataclass

from trieway.loadgen.errors import WorkloadError
from trieway.loadgen.vocabulary import AnswerOf, Call, Part, Text
from trieway.loadgen.workloads.common import Draft, Popularity, choice, number, share


@dataclass(frozen=True, kw_only=True, slots=True)
class Rag:
    """Questions over documents of which some are asked about far more often."""

    questions: int = number(80, "questions")
    documents: int = number(40, "documents that may be found")
    found: int = number(3, "documents found for a question")
    popularity: float = share(1.0, "exponent of Zipf's law over documents (0: all alike)", most=5.0)
    order: str = choice(
        "ranked", "ranked: as found; sorted: always in one order, which shares more", "ranked", "sorted"
    )
    hops: int = number(1, "2: a call that writes the query comes before", most=2)
    instruction_tokens: int = number(400, "instruction with demonstrations that all share")
    document_tokens: int = number(220, "length of a document")
    question_tokens: int = number(30, "length of a question")
    output_tokens: int = number(48, "length of an answer")


def rag(settings: Rag, draft: Draft) -> None:
    """A session is a question. WorkloadError: more to be found than there is."""
    if settings.found > settings.documents:
        raise WorkloadError(f"{settings.found} documents cannot be found among {settings.documents}")
    instruction, ask = draft.words(settings.instruction_tokens), draft.words(settings.instruction_tokens)
    documents = [draft.some_words(settings.document_tokens) for _ in range(settings.documents)]
    popularity = Popularity(settings.documents, settings.popularity)
    for index in range(settings.questions):
        session = f"question-{index}"
        question: tuple[Part, ...] = (Text("\nQuestion:"), draft.some_words(settings.question_tokens))
        calls: list[Call] = []
        if settings.hops == 2:
            calls.append(_call(settings, f"{session}.query", session, (ask, *question, Text("\nQuery:")), ()))
            question += (Text("\nQuery:"), AnswerOf(calls[0].id))
        found = popularity.distinct(draft.rng, settings.found)
        passages: list[Part] = []
        for document in sorted(found) if settings.order == "sorted" else found:
            passages += [Text("\nPassage:"), documents[document]]
        prompt = (instruction, *passages, *question, Text("\nAnswer:"))
        calls.append(_call(settings, f"{session}.answer", session, prompt, tuple(call.id for call in calls)))
        draft.sessions.append(calls)


def _call(settings: Rag, name: str, session: str, prompt: tuple[Part, ...], after: tuple[str, ...]) -> Call:
    return Call(
        id=name,
        session=session,
        form="completion",
        prompt=prompt,
        output_tokens=settings.output_tokens,
        max_tokens=settings.output_tokens,
        after=after,
        share_group="rag",
    )
