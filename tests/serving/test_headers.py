"""Header values: round trips, and nothing from outside raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.serving import headers
from trieway.serving.headers import Receipt

counts = st.integers(0, 2**63)
times = st.floats(0, 1e9).map(lambda value: round(value, 3))
receipts = st.builds(
    Receipt, prompt=counts, cached=counts, epoch=counts, number=counts, queue_ms=times, prefill_ms=times, waiting=counts
)


@given(receipt=receipts)
def test_a_receipt_comes_back(receipt: Receipt) -> None:
    assert Receipt.parse(receipt.encode()) == receipt
    assert Receipt.parse(receipt.encode().encode()) == receipt
    assert Receipt.parse(receipt.encode() + ";later=1") == receipt


GOOD = "prompt=80;cached=64;epoch=123;number=57;queue_ms=1.2;prefill_ms=33.1;waiting=2"


def test_the_documented_receipt() -> None:
    receipt = Receipt(prompt=80, cached=64, epoch=123, number=57, queue_ms=1.2, prefill_ms=33.1, waiting=2)
    assert Receipt.parse(GOOD) == receipt


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        b"",
        "nonsense",
        GOOD.replace("prompt=80", "prompt=-1"),
        GOOD.replace("queue_ms=1.2", "queue_ms=nan"),
        GOOD.replace("queue_ms=1.2", "queue_ms=inf"),
        GOOD.replace("cached=64", "cached=x"),
        GOOD.replace("waiting=2", ""),
        GOOD + ";" + "x" * 600,
        "\xff\xfe=1",
    ],
)
def test_other_values_are_no_receipt(value: str | bytes | None) -> None:
    assert Receipt.parse(value) is None


@given(value=st.text(max_size=80) | st.binary(max_size=80))
def test_no_value_raises(value: str | bytes) -> None:
    Receipt.parse(value)
    if isinstance(value, str):
        headers.render_time(value)
        headers.token_count(value)
        headers.session_id(value)
        assert headers.request_id(value)


def test_request_ids() -> None:
    assert headers.request_id("abc-1") == "abc-1"
    for value in (None, "", "a b", "a\nb", "é", "x" * 257):
        made = headers.request_id(value)
        assert made.startswith("req-")
        assert made != headers.request_id(value)
    assert headers.session_id("s" * 256) == "s" * 256
    assert headers.session_id("s" * 257) is None


def test_render_time_is_whole_seconds() -> None:
    assert headers.format_render_time(1_767_225_599.9) == "1767225599"
    assert headers.render_time("1767225599") == 1_767_225_599.0
    for value in (None, "", "x", "-1", "nan", "inf", "1e300"):
        assert headers.render_time(value) is None


def test_token_counts() -> None:
    assert headers.token_count("64") == 64
    for value in (None, "", "-1", "1.5", "x", "9" * 20, "٣"):
        assert headers.token_count(value) is None


def test_names_are_lower_case() -> None:
    names = [value for name, value in vars(headers).items() if name.isupper() and isinstance(value, str)]
    assert names
    assert all(value == value.lower() for value in names)
