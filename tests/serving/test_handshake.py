"""The model card, the group's name and the vocabulary's wire form."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.serving.handshake import (
    VOCABULARY_TOKENS_MAX,
    HandshakeError,
    ModelCard,
    decode_card,
    decode_vocabulary,
    encode_card,
    encode_vocabulary,
    group_id,
    vocabulary_digest,
)

NAMES = ("model", "weights_digest", "template_digest", "vocabulary_digest", "renderer_version")
PARTS = {name: name for name in (*NAMES, "completion_prefix", "bos_token", "eos_token")}


def card() -> ModelCard:
    return ModelCard(
        wire=1,
        block_bytes=64,
        seed_id="0" * 16,
        model="m",
        aliases=("n",),
        group=group_id(**PARTS),
        weights_digest="w",
        template="{{ x }}",
        template_digest="t",
        reads_clock=False,
        bos_token="<s>",
        eos_token="</s>",
        completion_prefix="",
        vocabulary_digest="v",
        vocabulary_size=3,
        renderer_version="1",
        epoch=2**62,
        page_size=1,
        context_tokens=8192,
        kv_tokens=4096,
    )


def test_a_card_comes_back_and_later_fields_are_ignored() -> None:
    assert decode_card(encode_card(card())) == card()
    later = json.loads(encode_card(card())) | {"from_the_future": [1]}
    assert decode_card(json.dumps(later).encode()) == card()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"wire": "one"}'])
def test_what_is_no_card(body: bytes) -> None:
    with pytest.raises(HandshakeError):
        decode_card(body)


def test_a_group_changes_with_each_part() -> None:
    whole = group_id(**PARTS)
    assert len(whole) == 16
    int(whole, 16)
    assert whole == group_id(**PARTS)
    others = {group_id(**{**PARTS, name: "other"}) for name in PARTS}
    assert len(others | {whole}) == len(PARTS) + 1


def test_parts_do_not_run_into_each_other() -> None:
    assert group_id(**{**PARTS, "bos_token": "ab", "eos_token": "c"}) != group_id(
        **{**PARTS, "bos_token": "a", "eos_token": "bc"}
    )


@given(table=st.lists(st.binary(max_size=12), max_size=60))
def test_a_vocabulary_comes_back(table: list[bytes]) -> None:
    assert decode_vocabulary(encode_vocabulary(table)) == table
    assert vocabulary_digest(table) == vocabulary_digest(list(table))
    assert vocabulary_digest(table) != vocabulary_digest([*table, b""])


@given(table=st.lists(st.binary(max_size=5), min_size=1, max_size=8), at=st.integers(0, 10**6), data=st.data())
def test_a_cut_or_changed_vocabulary_is_refused_or_well_formed(
    table: list[bytes], at: int, data: st.DataObject
) -> None:
    wire = encode_vocabulary(table)
    with pytest.raises(HandshakeError):
        decode_vocabulary(wire[: at % len(wire)])
    with pytest.raises(HandshakeError):
        decode_vocabulary(wire + b"x")
    changed = bytearray(wire)
    changed[at % len(wire)] = data.draw(st.integers(0, 255))
    try:
        again = decode_vocabulary(bytes(changed))
    except HandshakeError:
        return
    assert sum(map(len, again)) == sum(map(len, table))


def test_a_head_that_promises_too_much() -> None:
    with pytest.raises(HandshakeError, match="over"):
        decode_vocabulary(struct.pack("<4sII", b"TWV1", VOCABULARY_TOKENS_MAX + 1, 0))
    with pytest.raises(HandshakeError, match="another format"):
        decode_vocabulary(struct.pack("<4sII", b"TWV2", 0, 0))
