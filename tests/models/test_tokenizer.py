"""The packaged model's tokenizer against a second implementation, and what the worker builds on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from tests.models.bpe_oracle import Oracle
from tests.models.strings import FIXED, generated
from trieway.worker.models.byte_level import byte_alphabet
from trieway.worker.models.catalog import CATALOG
from trieway.worker.models.errors import ModelBroken, ModelUnsupported
from trieway.worker.tokenizer import Tokenizer, vocabulary_digest

pytestmark = pytest.mark.model

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    path = CATALOG[0].packaged_file()
    assert path is not None
    return Oracle(path)


def test_equals_the_second_implementation(tokenizer: Tokenizer, oracle: Oracle) -> None:
    strings = [*FIXED, *generated(700)]
    assert len(strings) >= 500
    for text in strings:
        assert tokenizer.encode(text) == oracle.encode(text), ascii(text)


@pytest.mark.verify
def test_equals_the_second_implementation_on_many(tokenizer: Tokenizer, oracle: Oracle) -> None:
    for text in generated(20_000, seed=99):
        assert tokenizer.encode(text) == oracle.encode(text), ascii(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2024", ["2", "0", "2", "4"]),
        ("a1b", ["a", "1", "b"]),
        (" 42", [" ", "4", "2"]),
        ("it's", ["it", "'s"]),
        ("hi  there", ["hi", " ", " there"]),
        ("<|im_start|>user\n", ["<|im_start|>", "user", "\n"]),
    ],
)
def test_splits_a_reader_can_check(tokenizer: Tokenizer, text: str, wanted: list[str]) -> None:
    assert [tokenizer.decode([token]) for token in tokenizer.encode(text)] == wanted


def test_text_comes_back_from_the_table(tokenizer: Tokenizer) -> None:
    whole = 0
    for text in [*FIXED, *generated(400, seed=5)]:
        ids, canonical = tokenizer.encode_bytes_checked(text)
        assert ids == tokenizer.encode(text)
        assert text.encode().startswith(tokenizer.bytes_of(ids[:canonical]))
        if canonical == len(ids) and tokenizer.bytes_of(ids) == text.encode():
            whole += 1
            assert tokenizer.decode(ids) == text
    assert whole > 350


def test_a_dropped_byte_ends_what_is_canonical(tokenizer: Tokenizer) -> None:
    ids, canonical = tokenizer.encode_bytes_checked("fine\x04not")
    assert ids == tokenizer.encode("fine") + tokenizer.encode("not")
    assert ids[:canonical] == tokenizer.encode("fine")
    ids, canonical = tokenizer.encode_bytes_checked("fine\x04")
    assert (ids, canonical) == (tokenizer.encode("fine"), 1)


@settings(max_examples=200, deadline=None)
@given(text=texts)
def test_ids_of_a_text_are_its_own_canonical_path(tokenizer: Tokenizer, text: str) -> None:
    ids, canonical = tokenizer.encode_bytes_checked(text)
    if canonical == len(ids):
        assert tokenizer.canonical_of_ids(ids) == len(ids)


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=12))
def test_canonical_of_any_ids_by_definition(tokenizer: Tokenizer, ids: list[int]) -> None:
    canonical = tokenizer.canonical_of_ids(ids)
    assert 0 <= canonical <= len(ids)
    data = tokenizer.bytes_of(ids)
    valid = data.decode("utf-8", errors="ignore") if _valid(data) else data[: _valid_bytes(data)].decode()
    again = tokenizer.encode(valid)
    assert ids[:canonical] == again[:canonical]
    assert canonical in (len(ids), len(again)) or ids[canonical] != again[canonical]


def _valid(data: bytes) -> bool:
    return _valid_bytes(data) == len(data)


def _valid_bytes(data: bytes) -> int:
    for size in range(len(data), -1, -1):
        try:
            data[:size].decode()
        except UnicodeDecodeError:
            continue
        return size
    raise AssertionError


def test_a_path_that_no_text_takes_stops_being_canonical(tokenizer: Tokenizer) -> None:
    letters = [tokenizer.encode(letter)[0] for letter in "hello"]
    assert tokenizer.encode("hello") != letters
    assert tokenizer.canonical_of_ids(letters) == 0
    assert tokenizer.canonical_of_ids(tokenizer.encode("well, ") + letters) <= 3
    assert tokenizer.canonical_of_ids([]) == 0


def test_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids == frozenset(range(17))
    assert tokenizer.eos_ids == {2, 0}
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.bos_text) == ("<|im_start|>", "<|im_end|>", "")
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>")
    assert ids[0] == 1
    assert ids[-1] == 2
    assert tokenizer.decode(ids) == "<|im_start|>user\nhi<|im_end|>"
    assert tokenizer.decode(ids, skip_special=True) == "user\nhi"
    assert tokenizer.token_bytes[2] == b"<|im_end|>"


def test_the_table_covers_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocabulary_size == 49152
    assert all(tokenizer.token_bytes)
    assert len(set(tokenizer.token_bytes)) == 49152
    assert tokenizer.chat_template is not None
    assert "<|im_start|>" in tokenizer.chat_template
    with pytest.raises(IndexError):
        tokenizer.bytes_of([49152])


def test_the_digest_tells_tables_apart() -> None:
    tables = [([b"a", b"bc"], []), ([b"ab", b"c"], []), ([b"a", b"bc"], [1]), ([b"a", b"bc", b""], [])]
    digests = [vocabulary_digest(table, special) for table, special in tables]
    assert len(set(digests)) == 4
    assert vocabulary_digest([b"a", b"bc"], iter([])) == digests[0]


def test_the_byte_alphabet_is_a_bijection() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["Ġ"], alphabet["Ċ"], alphabet["A"]) == (0x20, 0x0A, 0x41)


def write(tmp_path: Path, backend: Backend, tokenizer_config: dict[str, Any], **others: dict[str, Any]) -> Path:
    backend.save(str(tmp_path / "tokenizer.json"))
    for name, value in {"tokenizer_config": tokenizer_config, **others}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return tmp_path


def byte_level_backend() -> Backend:
    """Bytes as tokens, with a BOS that the post-processor adds."""
    backend = Backend(models.BPE(vocab={char: index for index, char in enumerate(byte_alphabet())}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True, normalized=False), "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 256), ("</s>", 257)]
    )
    return backend


def test_what_the_model_wants_in_front_is_text_not_ids(tmp_path: Path) -> None:
    made = Tokenizer(write(tmp_path, byte_level_backend(), {"eos_token": {"content": "</s>"}, "bos_token": "<s>"}))
    assert made.bos_text == "<s>"
    assert (made.bos_token, made.eos_token, made.eos_ids) == ("<s>", "</s>", {257})
    assert made.encode("ab") == made.encode("<s>ab")[1:]
    assert made.encode("<s>ab")[0] == 256


def test_where_end_ids_come_from(tmp_path: Path) -> None:
    named = {"eos_token": "</s>"}
    assert Tokenizer(write(tmp_path, byte_level_backend(), named)).eos_ids == {257}
    assert Tokenizer(write(tmp_path, byte_level_backend(), named, config={"eos_token_id": 7})).eos_ids == {7}
    both = {"config": {"eos_token_id": 7}, "generation_config": {"eos_token_id": [8, 9]}}
    assert Tokenizer(write(tmp_path, byte_level_backend(), named, **both)).eos_ids == {8, 9}
    (tmp_path / "config.json").unlink()
    (tmp_path / "generation_config.json").unlink()
    assert Tokenizer(write(tmp_path, byte_level_backend(), {})).eos_ids == frozenset()


def test_where_the_chat_template_comes_from(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert Tokenizer(write(tmp_path, byte_level_backend(), {"chat_template": named})).chat_template == "D"
    assert Tokenizer(write(tmp_path, byte_level_backend(), {})).chat_template is None
    (tmp_path / "chat_template.jinja").write_text("F")
    assert Tokenizer(tmp_path).chat_template == "F"


def test_sentencepiece_tables_with_byte_fallback(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "<0x41>": 1, "▁": 2, "a": 3, "▁a": 4, "b": 5, "<0xE4>": 6}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<unk>"])
    made = Tokenizer(write(tmp_path, backend, {}))
    assert made.token_bytes == [b"<unk>", b"A", b" ", b"a", b" a", b"b", b"\xe4"]
    assert made.encode_bytes_checked("b a") == ([5, 4], 2)
    ids, canonical = made.encode_bytes_checked("b▁a")  # the mark itself reads as a space: the table is no guide here
    assert (ids, canonical) == ([5, 4], 1)


def test_unusable_tokenizers_are_named(tmp_path: Path) -> None:
    backend = Backend(models.WordLevel(vocab={"a": 0}, unk_token="a"))
    with pytest.raises(ModelUnsupported, match="neither"):
        Tokenizer(write(tmp_path, backend, {}))
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ModelBroken, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)
