"""docs/feed.md prints what the code does: every vector of the tests, every bound it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels import test_block_hash
from tests.meta_tree import test_digest, test_ids_and_chain
from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.meta_tree import frames, publisher, subscriber
from trieway.meta_tree.chain import WIRE_VERSION, FleetKey
from trieway.meta_tree.events import Stored

PAGE = (Path(__file__).parents[2] / "docs" / "feed.md").read_text(encoding="utf-8")


def words(*values: int) -> list[str]:
    return [f"`{value:016x}`" for value in values]


@pytest.mark.parametrize(
    "said",
    [
        *(word for _, _, hashes in test_block_hash.VECTORS for word in words(*hashes)),
        *(word for _, mixed in test_digest.VECTORS for word in words(mixed)),
        *(f"`{word}`" for vector in test_ids_and_chain.VECTORS for word in vector[1:]),
        f"`{FleetKey.from_secret(test_ids_and_chain.SECRET).seed_id}`",
        f"`{FleetKey.from_secret(test_ids_and_chain.SECRET).feed_token}`",
        f"`{FleetKey.from_secret(None).seed_id}`",
        f"Wire version {WIRE_VERSION}.",
        f"blocks of {BLOCK_BYTES} bytes",
        f'`"{frames.MAGIC.decode()}"`',
        f"1 to {frames.FRAME_BYTES_MAX >> 20} MiB",
        f"cut at {publisher.RUN_BLOCKS_MAX:,} blocks",
        f"at most {subscriber.ASKED_BUCKETS_MAX} at once",
        f"at most one in {subscriber.SNAPSHOT_WAIT_S:.0f} s",
    ],
)
def test_the_page_says(said: str) -> None:
    assert said in PAGE


def test_the_printed_frame_is_the_frame() -> None:
    stored = Stored(namespace_id=0x11, parent=0x22, hashes=(0x33, 0x44), usable=(5, 6))
    printed = bytes.fromhex(PAGE.split("stores two blocks:")[1].split("## Events")[0])
    assert frames.encode(frames.Delta(number=7, event=stored)) == printed
