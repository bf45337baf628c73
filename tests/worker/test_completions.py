"""Text completions over HTTP: shapes, numbers, prompts in every form."""

from __future__ import annotations

import pytest

from .fakes import BOT, END, babble, encode, next_token
from .harness import Worker, running


def test_a_completion_has_openais_shape(worker: Worker) -> None:
    answer = worker.complete("tell me", max_tokens=4)
    assert answer.pop("id").startswith("cmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"index": 0, "text": babble("tell me", 4), "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": len(encode("tell me")),
            "completion_tokens": 4,
            "total_tokens": len(encode("tell me")) + 4,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_without_max_tokens_a_completion_has_sixteen(worker: Worker) -> None:
    assert worker.complete("go")["usage"]["completion_tokens"] == 16


def test_an_end_token_stops_and_is_not_shown(worker: Worker) -> None:
    choice = worker.complete("say:hello there|")["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("hello there", "stop")


def test_an_end_token_counts_as_a_generated_one(worker: Worker) -> None:
    assert worker.complete("say:abc|")["usage"]["completion_tokens"] == len(encode("abc")) + 1


def test_ignore_eos_goes_on_past_the_end_token(worker: Worker) -> None:
    answer = worker.complete("say:abc|", ignore_eos=True, max_tokens=9)
    assert answer["usage"]["completion_tokens"] == 9
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["text"] == "abc", "special tokens have no text"


def test_several_prompts_with_n_are_numbered_prompt_by_prompt(worker: Worker) -> None:
    prompts = ["say:one|", "say:two|", "say:three|"]
    answer = worker.complete(prompts, n=2)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert [choice["text"] for choice in answer["choices"]] == ["one", "one", "two", "two", "three", "three"]
    usage = answer["usage"]
    assert usage["prompt_tokens"] == sum(len(encode(prompt)) for prompt in prompts), "a prompt counts once"
    assert usage["completion_tokens"] == 2 * sum(len(encode(word)) + 1 for word in ("one", "two", "three"))


def test_samples_of_one_prompt_share_its_computation(worker: Worker) -> None:
    prompt, before = "x" * 100, worker.stats().cached_tokens_total
    answer = worker.complete(prompt, n=4, max_tokens=2)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "the first sample's hit is the prompt's"
    assert worker.stats().cached_tokens_total - before == 3 * 99
    assert len({choice["text"] for choice in answer["choices"]}) == 1


def test_token_ids_give_what_their_text_gives(worker: Worker) -> None:
    ids = encode("a token path")
    assert worker.complete(ids, max_tokens=5)["choices"][0]["text"] == babble("a token path", 5)
    answer = worker.complete([ids, encode("say:two|")], max_tokens=5)
    assert [choice["text"] for choice in answer["choices"]] == [babble("a token path", 5), "two"]


def test_the_second_time_all_but_the_last_token_is_reused(worker: Worker) -> None:
    prompt = "the same prompt, twice over, and long enough to matter"
    cold = worker.complete(prompt, max_tokens=6)
    warm = worker.complete(prompt, max_tokens=6)
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == len(encode(prompt)) - 1
    assert warm["choices"] == cold["choices"]


@pytest.mark.parametrize("page_size", [4, 16])
def test_hits_are_whole_pages(page_size: int) -> None:
    prompt = "a" * 50
    with running(page_size=page_size, batch_tokens_max=64) as worker:
        cold = worker.complete(prompt, max_tokens=5)
        warm = worker.complete(prompt, max_tokens=5)
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 49 // page_size * page_size
    assert warm["choices"] == cold["choices"]


def test_without_a_prefix_cache_nothing_is_reused_and_the_answer_is_the_same(worker: Worker) -> None:
    prompt = "no cache at all, whatever is asked"
    with running(prefix_cache=False) as bare:
        answers = [bare.complete(prompt, max_tokens=6) for _ in range(2)]
        assert bare.stats().kv_cached == 0
        assert bare.built.service.feed.publisher.number == 0
    assert [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers] == [0, 0]
    assert answers[1]["choices"] == worker.complete(prompt, max_tokens=6)["choices"]


def test_a_seed_repeats_and_its_samples_differ(worker: Worker) -> None:
    asked = {"temperature": 1.0, "seed": 11, "n": 3, "max_tokens": 12}
    first, again = worker.complete("dice", **asked), worker.complete("dice", **asked)
    texts = [choice["text"] for choice in first["choices"]]
    assert texts == [choice["text"] for choice in again["choices"]]
    assert len(set(texts)) == 3
    assert worker.complete("dice", **{**asked, "seed": 12, "n": 1})["choices"][0]["text"] == texts[1]


def test_without_a_seed_samples_vary(worker: Worker) -> None:
    texts = {worker.complete("dice", temperature=1.5, max_tokens=12)["choices"][0]["text"] for _ in range(4)}
    assert len(texts) > 1


def test_a_padded_head_never_gives_an_id_without_meaning() -> None:
    with running(width=400) as worker:
        assert worker.complete("say:fine|", logprobs=3)["choices"][0]["text"] == "fine"


def test_logprobs_have_the_completions_shape(worker: Worker) -> None:
    choice = worker.complete("say:héllo|", logprobs=2)["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9", "l", "l", "o"], "the end token is not shown"
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3, 4]
    assert all(-5 < logprob < 0 for logprob in logprobs["token_logprobs"])
    for name, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert len(top) == 2
        assert top[name] == logprob == max(top.values())


def test_logprobs_of_zero_show_the_chosen_token_alone(worker: Worker) -> None:
    logprobs = worker.complete("say:ab|", logprobs=0)["choices"][0]["logprobs"]
    assert [list(top) for top in logprobs["top_logprobs"]] == [["a"], ["b"]]


def test_echo_gives_the_prompt_back(worker: Worker) -> None:
    choice = worker.complete("say:ab|", echo=True)["choices"][0]
    assert choice["text"] == "say:ab|ab"
    assert choice["logprobs"] is None


def test_echo_with_logprobs_scores_the_prompt(worker: Worker) -> None:
    prompt = "say:the é|"
    choice = worker.complete(prompt, echo=True, logprobs=1)["choices"][0]
    logprobs, ids = choice["logprobs"], encode(prompt)
    count = len(ids)
    assert choice["text"] == prompt + "the é"
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 8, 8, 9, 10, 14, 14]
    assert len(logprobs["tokens"]) == count + len(encode("the é"))
    for position in range(1, count):
        best = next_token(ids[:position])
        named, given = next(iter(logprobs["top_logprobs"][position])), logprobs["token_logprobs"][position]
        assert named == chr(best)
        assert (ids[position] == best) == (given > -2)


def test_prompt_scores_are_the_same_in_one_chunk_in_many_and_when_cached(worker: Worker) -> None:
    prompt = "a prompt longer than a chunk of sixteen tokens, cut many times over"
    scored = {"echo": True, "logprobs": 3, "max_tokens": 3}
    worker.complete(prompt)
    whole = worker.complete(prompt, **scored)
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "a cached prefix has no logits to score"
    with running(batch_tokens_max=16, running_max=2) as chunked:
        assert chunked.complete(prompt, **scored)["choices"] == whole["choices"]


def test_echo_without_a_token_scores_the_prompt_alone(worker: Worker) -> None:
    answer = worker.complete("score me", echo=True, logprobs=0, max_tokens=0)
    choice = answer["choices"][0]
    assert choice["text"] == "score me"
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == len(encode("score me"))
    assert answer["usage"]["completion_tokens"] == 0


def test_a_prompt_of_one_token_can_be_scored(worker: Worker) -> None:
    logprobs = worker.complete("x", echo=True, logprobs=1, max_tokens=1)["choices"][0]["logprobs"]
    assert logprobs["tokens"][0] == "x"
    assert logprobs["token_logprobs"][0] is None
    assert len(logprobs["tokens"]) == 2


def test_a_first_token_of_the_tokenizers_own_is_computed_and_not_shown() -> None:
    with running(bos_text="<|bot|>") as worker:
        choice = worker.complete("ab", echo=True, logprobs=0, max_tokens=1)["choices"][0]
        ids = worker.complete([BOT, *encode("ab")], max_tokens=1)["choices"][0]
    assert choice["text"][:-1] == "ab"
    assert choice["logprobs"]["tokens"][:3] == ["<|bot|>", "a", "b"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]
    assert choice["text"][-1] == ids["text"]


def test_an_alias_is_answered_under_its_own_name(worker: Worker) -> None:
    assert worker.complete("x", model="tiny-alias", max_tokens=1)["model"] == "tiny-alias"


def test_literal_special_tokens_are_special(worker: Worker) -> None:
    usage = worker.complete("<|end|><|user|>", max_tokens=1)["usage"]
    assert usage["prompt_tokens"] == 2
    assert encode("<|end|>") == [END]


def test_penalties_change_the_choice(worker: Worker) -> None:
    plain = worker.complete("say:aaaaaaaaaaaa|", max_tokens=12)["choices"][0]["text"]
    assert plain == "a" * 12
    for penalty in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 5.0}):
        assert worker.complete("say:aaaaaaaaaaaa|", max_tokens=12, **penalty)["choices"][0]["text"] != plain
