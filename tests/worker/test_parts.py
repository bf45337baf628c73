"""Small parts on their own: tallies, token names, transcripts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trieway.worker.core.sequence import Work
from trieway.worker.generation import Begun, Output, ScoredToken
from trieway.worker.logprobs import LOGPROB_MIN, TokenNames, chat_logprobs, completion_logprobs
from trieway.worker.sampling import Sampled
from trieway.worker.transcript import PromptScores, Transcript, Vocabulary
from trieway.worker.usage import Tally

from .fakes import END, TABLE, USER, encode

VOCABULARY = Vocabulary(token_bytes=TABLE, special_ids=frozenset({256, 257, 258}))


def begun(prompt: int, cached: int, queue_ms: float = 1.0, prefill_ms: float = 2.0) -> Begun:
    return Begun(prompt_tokens=prompt, cached_tokens=cached, queue_ms=queue_ms, prefill_ms=prefill_ms)


def test_a_prompt_counts_once_with_the_hit_of_the_sample_that_began_first() -> None:
    tally = Tally([10, 20], n=2)
    assert not tally.began
    tally.add([Output(sample=1, begun=begun(10, 0, queue_ms=3.0), generated=1)])
    tally.add([Output(sample=0, begun=begun(10, 9), generated=1), Output(sample=1, generated=2)])
    receipt = tally.receipt(epoch=5, number=6, waiting=7)
    assert (receipt.prompt, receipt.cached, receipt.queue_ms, receipt.prefill_ms) == (10, 0, 3.0, 2.0)
    assert (receipt.epoch, receipt.number, receipt.waiting) == (5, 6, 7)
    tally.add([Output(sample=2, begun=begun(20, 8), generated=1), Output(sample=3, begun=begun(20, 19), generated=4)])
    assert tally.usage() == {
        "prompt_tokens": 30,
        "completion_tokens": 8,
        "total_tokens": 38,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    assert tally.receipt(epoch=5, number=6, waiting=7).prompt == 30


def test_names_of_tokens() -> None:
    names = TokenNames(TABLE)
    assert names.name(ord("a")) == "a"
    assert names.name(0xC3) == "bytes:\\xc3"
    assert names.name(END) == "<|end|>"
    assert len({names.name(token) for token in range(len(TABLE))}) == len(TABLE)


def test_minus_infinity_is_a_number_that_json_has() -> None:
    scored = ScoredToken(token=97, offset=0, logprob=float("-inf"), top=((98, -0.5), (97, float("-inf"))))
    names = TokenNames(TABLE)
    chat = chat_logprobs([scored], names)["content"][0]
    assert (chat["logprob"], chat["top_logprobs"][1]["logprob"]) == (LOGPROB_MIN, LOGPROB_MIN)
    text = completion_logprobs([scored], names)
    assert text["token_logprobs"] == [LOGPROB_MIN]
    assert text["top_logprobs"] == [{"b": -0.5, "a": LOGPROB_MIN}]


def test_the_chosen_token_is_among_its_alternatives_and_a_first_one_has_none() -> None:
    names = TokenNames(TABLE)
    told = completion_logprobs(
        [
            ScoredToken(token=97, offset=0, logprob=None),
            ScoredToken(token=99, offset=1, logprob=-3.0, top=((98, -0.5),)),
        ],
        names,
    )
    assert told["top_logprobs"] == [None, {"b": -0.5, "c": -3.0}]


TOKENS = st.lists(st.integers(0, len(TABLE) - 1), max_size=30)
STOPS = st.lists(st.text(alphabet="thea\ufffd!", min_size=1, max_size=3), max_size=2)


@given(tokens=TOKENS, stops=STOPS, looks=st.sets(st.integers(0, 29)), start=st.integers(0, 5))
def test_a_transcript_gives_the_whole_text_whenever_it_is_looked_at(
    tokens: list[int], stops: list[str], looks: set[int], start: int
) -> None:
    transcript = Transcript(VOCABULARY, stop=stops, text_start=start, scored=True)
    text, shown = "", list[ScoredToken]()
    for index, token in enumerate(tokens):
        stopped = transcript.append(Sampled(token=token, logprob=-1.0), ends=False)
        if index in looks and not stopped:
            piece, scored = transcript.take(last=False)
            text, shown = text + piece, [*shown, *scored]
        if stopped:
            break
    piece, scored = transcript.take(last=True)
    text, shown = text + piece, [*shown, *scored]
    used = transcript.path
    raw = b"".join(TABLE[token] for token in used if token not in VOCABULARY.special_ids)
    whole = raw.decode(errors="replace")
    assert whole.startswith(text)
    assert not any(stop in text for stop in stops)
    assert used == tuple(tokens[: len(used)])
    if not transcript.stopped:
        assert text == whole
        assert tuple(one.token for one in shown) == used
    assert [one.token for one in shown] == list(used[: len(shown)])
    assert all(one.offset < start + len(text) for one in shown) or not transcript.stopped
    offsets = [one.offset for one in shown]
    assert offsets == sorted(offsets)
    assert not offsets or offsets[0] == start


def test_an_end_token_leaves_neither_text_nor_score() -> None:
    transcript = Transcript(VOCABULARY, stop=(), text_start=0, scored=True)
    transcript.append(Sampled(token=97, logprob=-1.0), ends=False)
    transcript.append(Sampled(token=END, logprob=-1.0), ends=True)
    text, tokens = transcript.take(last=True)
    assert (text, [one.token for one in tokens]) == ("a", [97])
    assert transcript.path == (97, END)
    assert transcript.generated == 2


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 3))
def test_prompt_scores_come_together_from_any_chunks(sizes: list[int], replays: int) -> None:
    tokens = (encode("ab é the ") * 5)[: sum(sizes)]
    scores = PromptScores(VOCABULARY, tokens)
    chunks, start = [], 0
    for size in sizes:
        work = Work(id="x", tokens=tuple(tokens[start : start + size]), start=start, pages=(), samples=False)
        chunks.append(work)
        start += size
    for work in [*chunks[:replays], *chunks]:
        targets = scores.targets(work)
        scores.take(work, [Sampled(token=token, logprob=-float(token)) for token in targets])
    assert scores.complete
    told = scores.all()
    assert [one.token for one in told] == list(tokens)
    assert told[0].logprob is None
    assert [one.logprob for one in told[1:]] == [-float(token) for token in tokens[1:]]


def test_a_hidden_beginning_takes_no_room() -> None:
    tokens = [USER, *encode("abc")]
    scores = PromptScores(VOCABULARY, tokens, hidden_chars=len("<|user|>"))
    work = Work(id="x", tokens=tuple(tokens), start=0, pages=(), samples=False)
    scores.take(work, [Sampled(token=token, logprob=-1.0) for token in scores.targets(work)])
    assert [one.offset for one in scores.all()] == [0, 0, 1, 2]
