"""Namespaces never alias, and one secret gives one chain everywhere."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.meta_tree.chain import WIRE_VERSION, Chain, FleetKey
from trieway.meta_tree.ids import TIERS, Namespace, Reject, Tier

PART = st.one_of(st.none(), st.text(st.characters(), max_size=6))
NAMESPACES = st.builds(Namespace, tenant=PART, salt=PART, adapter=PART)


@given(one=NAMESPACES, other=NAMESPACES)
def test_namespaces_encode_alike_only_if_equal(one: Namespace, other: Namespace) -> None:
    assert (one.encode() == other.encode()) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Namespace(tenant="a"), Namespace(salt="a")),
        (Namespace(salt="a"), Namespace(adapter="a")),
        (Namespace(tenant="a", salt="bc"), Namespace(tenant="ab", salt="c")),
        (Namespace(tenant="a", adapter="b"), Namespace(tenant="a", salt="b")),
        (Namespace(tenant="as\x01\x00\x00\x00b"), Namespace(tenant="a", salt="b")),
        (Namespace(), Namespace(tenant="\x00")),
    ],
)
def test_joined_strings_would_alias_here(one: Namespace, other: Namespace) -> None:
    assert one.encode() != other.encode()
    key = FleetKey.from_secret(b"k")
    assert key.chain(one) != key.chain(other)


def test_an_empty_string_is_not_given() -> None:
    assert Namespace(tenant="", salt="", adapter="") == Namespace()
    assert hash(Namespace(salt="")) == hash(Namespace())
    assert Namespace().encode() == b""


def test_a_lone_surrogate_has_its_own_namespace() -> None:
    assert Namespace(salt="\ud800").encode() != Namespace(salt="\ud801").encode()


def test_tiers_are_numbered_from_the_computation_outwards() -> None:
    assert [Tier.DEVICE, Tier.HOST, Tier.EXTERNAL] == [0, 1, 2]
    assert TIERS == 3


def test_reject_holds_what_to_do() -> None:
    assert Reject(reason="queue is full", retry_after_s=2.0) == Reject(reason="queue is full", retry_after_s=2.0)
    assert Reject(reason="no worker").retry_after_s is None


# docs/feed.md prints these.
SECRET = b"correct horse battery staple"
VECTORS = [
    (Namespace(), "b40b5ec11a569733", "649911033c81ca46", "c2429fcecfda0920"),
    (Namespace(tenant="acme", salt="s", adapter="lora"), "f922bbabdb3be67a", "cc252e923f874f92", "935713519812c6df"),
]


def test_key_vectors() -> None:
    key = FleetKey.from_secret(SECRET)
    assert key.seed_id == "8d2c9e6d7e978ead"
    assert key.feed_token == "21b47c7c0e2986cd0a5ba049ec6c1d2028124fa0a106e239cb2cc4f7292e19a0"
    assert FleetKey.from_secret(None).seed_id == "bc7b5cad74866fb2"


@pytest.mark.parametrize(("namespace", "seed", "root", "first"), VECTORS)
def test_chain_vectors(namespace: Namespace, seed: str, root: str, first: str) -> None:
    chain = FleetKey.from_secret(SECRET).chain(namespace)
    assert (f"{chain.seed:016x}", f"{chain.root:016x}") == (seed, root)
    assert f"{chain.hashes(bytes(range(64)))[0]:016x}" == first


@given(secret=st.binary(min_size=1, max_size=80), namespace=NAMESPACES)
def test_derivation_is_hkdf_of_rfc_5869(secret: bytes, namespace: Namespace) -> None:
    """Written here a second time, from the RFC's two lines."""
    pseudorandom = hmac.new(b"trieway wire 1", secret, hashlib.sha256).digest()

    def okm(info: bytes, length: int) -> bytes:
        return hmac.new(pseudorandom, b"" + info + bytes([1]), hashlib.sha256).digest()[:length]

    key = FleetKey.from_secret(secret)
    assert key.seed_id == okm(b"seed id", 8).hex()
    assert key.feed_token == okm(b"feed token", 32).hex()
    raw = okm(b"chain" + namespace.encode(), 16)
    expected = Chain(seed=int.from_bytes(raw[:8], "little"), root=int.from_bytes(raw[8:], "little"))
    assert key.chain(namespace) == expected


def test_without_a_secret_the_published_one_serves_and_says_so() -> None:
    assert FleetKey.from_secret(None).published
    assert not FleetKey.from_secret(b"x").published
    assert FleetKey.from_secret(None) == FleetKey.from_secret(None)


def test_an_empty_secret_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="empty"):
        FleetKey.from_secret(b"")


def test_the_key_does_not_show_in_its_repr() -> None:
    key = FleetKey.from_secret(b"hush hush")
    assert key.feed_token not in repr(key)
    assert "_key" not in repr(key)
    assert key.seed_id in repr(key)


@given(text=st.binary(max_size=400), more=st.binary(max_size=200))
def test_a_longer_text_keeps_the_hashes_of_its_beginning(text: bytes, more: bytes) -> None:
    chain = FleetKey.from_secret(None).chain(Namespace())
    hashes = chain.hashes(text)
    assert len(hashes) == len(text) // 64
    assert chain.hashes(text + more)[: len(hashes)] == hashes


def test_wire_version_is_in_the_derivation_salt() -> None:
    assert WIRE_VERSION == 1, "another version needs another _EXTRACT_SALT and new vectors"
