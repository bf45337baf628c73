"""Text that was generated comes back as the tokens that were generated."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.worker_core.support import chain
from trieway.meta_tree.chain import Chain
from trieway.worker.core.memory import BRANCHES_MAX, GeneratedMemory

# Several ways to spell the same bytes, as a tokenizer's merges have.
TABLE = [b"a", b"b", b"aa", b"ab", b"ba", b"aab", b"", b"a" * 40]


def text_of(tokens: Sequence[int]) -> bytes:
    return b"".join(TABLE[token] for token in tokens)


def recall(memory: GeneratedMemory, text: bytes, namespace: Chain | None = None) -> tuple[list[int], int]:
    namespace = namespace or chain()
    return memory.recall(namespace, namespace.hashes(text), text)


def remembering(prompt: list[int], answer: list[int], shown: bytes | None = None) -> GeneratedMemory:
    memory = GeneratedMemory(1 << 20, TABLE)
    text = text_of(prompt + answer) if shown is None else shown
    memory.remember(chain(), text, prompt + answer, len(text_of(prompt)))
    memory.check()
    return memory


def test_the_same_text_gives_the_same_tokens() -> None:
    memory = remembering([0, 1, 2], [5, 3, 4])
    text = text_of([0, 1, 2, 5, 3, 4])
    assert recall(memory, text) == ([0, 1, 2, 5, 3, 4], len(text))


def test_a_longer_text_takes_the_tokens_and_leaves_the_rest() -> None:
    memory = remembering([0] * 100, [5, 3, 4])
    text = text_of([0] * 100 + [5, 3, 4])
    assert recall(memory, text + b"bbb") == ([0] * 100 + [5, 3, 4], len(text))


def test_text_that_was_only_prompt_is_not_recalled() -> None:
    memory = remembering([0] * 10, [1, 1])
    assert recall(memory, b"a" * 10) == ([], 0)
    assert recall(memory, b"a" * 11) == ([], 0)


def test_a_part_of_the_answer_is_used_up_to_a_token_that_agrees() -> None:
    memory = remembering([0], [3, 5, 1])  # a|ab|aab|b
    assert recall(memory, b"aabaabb" + b"a") == ([0, 3, 5, 1], 7)
    assert recall(memory, b"aab" + b"aa") == ([0, 3], 3)  # inside aab
    assert recall(memory, b"aab" + b"bb") == ([0, 3], 3)
    assert recall(memory, b"aa" + b"a") == ([], 0)  # not one whole generated token


def test_the_longest_record_wins() -> None:
    memory = remembering([0], [1])
    memory.remember(chain(), b"abab", [0, 1, 3], 2)
    memory.remember(chain(), b"ab", [3], 1)
    assert recall(memory, b"ababa") == ([0, 1, 3], 4)


def test_the_latest_of_equals_wins() -> None:
    memory = remembering([0], [0, 0])
    memory.remember(chain(), b"aaa", [0, 2], 1)
    assert recall(memory, b"aaa") == ([0, 2], 3)


def test_a_conversation_is_recalled_turn_by_turn() -> None:
    memory = GeneratedMemory(1 << 20, TABLE)
    path: list[int] = []
    for turn in range(5):
        prompt = path + [7, 7, turn % 2]
        memory.remember(chain(), text_of(prompt + [5, 3]), prompt + [5, 3], len(text_of(prompt)))
        path = prompt + [5, 3]
        assert recall(memory, text_of(path) + b"a" * 200) == (path, len(text_of(path)))
    # An earlier turn that is continued otherwise is known as well.
    other = [7, 7, 0, 5, 3]
    assert recall(memory, text_of(other) + b"bbbb") == (other, len(text_of(other)))


def test_namespaces_are_apart() -> None:
    memory = remembering([0], [1])
    assert recall(memory, b"ab", chain("other")) == ([], 0)


@pytest.mark.parametrize(
    ("shown", "tokens"),
    [
        (b"aab", [0, 3]),  # a stop string cut the rest away
        (b"aaba", [0, 3]),  # cut inside a token
        (b"aab\xef\xbf\xbd", [0, 3]),  # bytes that were no text
        (b"aabaab" + b"</end>", [0, 3, 5]),  # what the table does not say
    ],
)
def test_tokens_that_disagree_with_what_was_shown_are_left_out(shown: bytes, tokens: list[int]) -> None:
    memory = remembering([0], [3, 5, 1], shown)
    assert recall(memory, shown) == (tokens, len(text_of(tokens)))


@pytest.mark.parametrize("shown", [b"", b"a", b"ax", b"x"])
def test_nothing_is_kept_without_a_generated_token(shown: bytes) -> None:
    assert len(remembering([0], [3], shown)) == 0


def test_a_forced_hash_collision_gives_no_wrong_token() -> None:
    memory = remembering([7, 7], [5])
    other = b"b" * 80 + b"aab"
    hashes = chain().hashes(text_of([7, 7]))
    assert memory.recall(chain(), hashes, other) == ([], 0)


def test_a_record_that_is_said_again_is_kept_once() -> None:
    memory = remembering([0], [1])
    memory.remember(chain(), b"ab", [0, 1], 1)
    assert len(memory) == 1
    memory.check()


def test_bytes_are_bounded_and_the_least_recently_used_goes() -> None:
    memory = GeneratedMemory(2200, TABLE)
    for number in range(3):
        prompt = [7, 7, *([1] * (number + 1))]
        memory.remember(chain(), text_of([*prompt, 5]), [*prompt, 5], len(text_of(prompt)))
    assert len(memory) == 3
    first = text_of([7, 7, 1, 5])
    assert recall(memory, first)[1] == len(first)
    prompt = [7, 7, 1, 1, 1, 1]
    memory.remember(chain(), text_of([*prompt, 5]), [*prompt, 5], len(text_of(prompt)))
    memory.check()
    assert recall(memory, first)[1] == len(first)
    assert recall(memory, text_of([7, 7, 1, 1, 5])) == ([], 0)


def test_a_record_beyond_the_bound_is_not_kept() -> None:
    memory = GeneratedMemory(600, TABLE)
    memory.remember(chain(), b"a" * 500, [0] * 500, 10)
    assert len(memory) == 0
    memory.check()


def test_answers_to_one_prompt_are_bounded() -> None:
    memory = GeneratedMemory(1 << 20, TABLE)
    for number in range(BRANCHES_MAX + 5):
        answer = [0, 1] if not number else [1] * number
        memory.remember(chain(), text_of([0, *answer]), [0, *answer], 1)
    assert len(memory) == BRANCHES_MAX
    memory.check()


def test_clear_forgets_all() -> None:
    memory = remembering([0], [1])
    memory.clear()
    memory.check()
    assert recall(memory, b"ab") == ([], 0)
    assert memory.bytes == 0


TOKENS = st.lists(st.integers(0, 7), max_size=12)


@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=6), TOKENS, st.binary(max_size=4))
def test_recalled_tokens_spell_the_text_and_none_is_longer(
    records: list[tuple[list[int], list[int]]], asked: list[int], rest: bytes
) -> None:
    memory = GeneratedMemory(1 << 20, TABLE)
    for prompt, answer in records:
        memory.remember(chain(), text_of(prompt + answer), prompt + answer, len(text_of(prompt)))
    memory.check()
    text = text_of(asked) + rest
    tokens, used = recall(memory, text)
    assert text_of(tokens) == text[:used]
    best = 0
    for prompt, answer in records:
        path = prompt + answer
        for end in range(len(path) + 1):
            spelt = text_of(path[:end])
            if text.startswith(spelt) and len(spelt) > len(text_of(prompt)):
                best = max(best, len(spelt))
    assert used == best


class MemoryMachine(RuleBasedStateMachine):
    @initialize(bytes_max=st.sampled_from([0, 600, 1500, 4000]))
    def begin(self, bytes_max: int) -> None:
        self.memory = GeneratedMemory(bytes_max, TABLE)

    @rule(prompt=TOKENS, answer=TOKENS, salt=st.sampled_from(["", "s"]), cut=st.integers(0, 4))
    def remember(self, prompt: list[int], answer: list[int], salt: str, cut: int) -> None:
        text = text_of(prompt + answer)
        self.memory.remember(chain(salt), text[: len(text) - cut], prompt + answer, len(text_of(prompt)))

    @rule(asked=TOKENS, salt=st.sampled_from(["", "s"]))
    def recall(self, asked: list[int], salt: str) -> None:
        text = text_of(asked)
        tokens, used = recall(self.memory, text, chain(salt))
        assert text_of(tokens) == text[:used]

    @invariant()
    def sums(self) -> None:
        if hasattr(self, "memory"):
            self.memory.check()


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
