"""Tables, numbers and progress as a person sees them; text made up for measurements."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.fleet.console import Console, count, milliseconds, table
from trieway.fleet.prose import prose


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_is_aligned() -> None:
    text = table(("who", "ms", "worker"), [("cold", "1,234", "a"), ("warm one", "7", "bcd")])
    assert text.splitlines() == [
        "who          ms  worker",
        "--------  -----  ------",
        "cold      1,234       a",
        "warm one      7     bcd",
    ]


def test_a_ragged_table_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        table(("a", "b"), [("1",)])


def test_numbers_to_read() -> None:
    assert count(1234567) == "1,234,567"
    assert count(None) == "-"
    assert milliseconds(1.5) == "1,500 ms"
    assert milliseconds(0.0042) == "4.2 ms"


def test_elsewhere_progress_is_plain_lines() -> None:
    out = io.StringIO()
    console = Console(out)
    console.show("starting 1 s")
    console.step("measuring")
    console.line("ready")
    console.clear()
    assert out.getvalue() == "measuring\nready\n"


def test_on_a_terminal_a_state_is_replaced() -> None:
    out = Terminal()
    console = Console(out)
    console.show("starting 1 s")
    console.show("starting 2 s")
    console.line("ready")
    wipe = "\r\x1b[K"
    assert out.getvalue() == f"starting 1 s{wipe}starting 2 s{wipe}ready\n"


def test_a_closed_stream_stops_no_work() -> None:
    out = io.StringIO()
    console = Console(out)
    out.close()
    console.line("nobody reads this")


@given(st.integers(0, 2**48), st.integers(1, 3000))
def test_prose_is_as_long_as_asked_and_repeatable(seed: int, chars: int) -> None:
    text = prose(seed, chars)
    assert chars - 1 <= len(text) <= chars or len(text) == len(text.rstrip())
    assert text == prose(seed, chars)
    assert text.isascii()


def test_prose_differs_by_seed_from_the_first_words_on() -> None:
    assert len({prose(seed, 40) for seed in range(200)}) == 200
