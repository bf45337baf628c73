"""What a watcher sees, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest

from tests.loadgen.making import record
from trieway.loadgen.records import Record
from trieway.loadgen.runs import progress
from trieway.loadgen.runs.once import Now
from trieway.loadgen.runs.progress import PlainWatcher, Recent, RichWatcher, watcher


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def now(elapsed_s: float, recent: list[Record], sent: int = 5) -> Now:
    return Now(elapsed_s=elapsed_s, sent=sent, in_flight=1, total=9, records=recent, recent=recent)


def test_the_window_forgets_and_the_counts_do_not() -> None:
    recent = Recent()
    recent.add(now(1.0, [record(0), record(1, status="http_500")]))
    recent.add(now(20.0, [record(2)]))
    assert [one.call for one in recent.records] == ["c2"]
    assert recent.ok == 2
    assert recent.errors == {"http_500": 1}


def test_a_new_run_begins_anew() -> None:
    recent = Recent()
    recent.add(now(5.0, [record(0)]))
    recent.add(now(0.5, [record(1)]))
    assert recent.ok == 1
    assert [one.call for one in recent.records] == ["c1"]


def test_a_line_says_how_it_stands() -> None:
    recent = Recent()
    at = now(3.0, [record(0), record(1, status="timeout", first_s=None), record(2, sent_s=2.09)])
    recent.add(at)
    line = recent.line(at)
    for said in ("5 of 9 sent", "1 in flight", "2 ok, 1 failed", "TTFT p50 100 ms", "hit 50.0 %", "LAG 89 ms"):
        assert said in line, said


def test_elsewhere_lines_come_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: clock[0])
    out = io.StringIO()
    watching = PlainWatcher(out)
    for number in range(20):
        clock[0] = number * 0.5
        watching.update(now(clock[0], [record(number)]))
    watching.line("done")
    watching.close()
    text = out.getvalue()
    assert text.count("sent") == 2
    assert text.endswith("done\n")
    assert "\r" not in text


def test_on_a_terminal_the_line_overwrites_itself() -> None:
    out = Terminal()
    watching = PlainWatcher(out)
    watching.update(now(1.0, [record(0)]))
    watching.line("done")
    watching.close()
    assert "\r\x1b[Kdone\n" in out.getvalue()


def test_nobody_reading_does_not_end_the_run() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    watching = PlainWatcher(Gone())
    watching.update(now(1.0, [record(0)]))
    watching.line("x")
    watching.close()


def test_rich_shows_a_table_where_it_is_installed() -> None:
    pytest.importorskip("rich")
    out = Terminal()
    watching = watcher(out)
    assert isinstance(watching, RichWatcher)
    watching.update(now(1.0, [record(0), record(1), record(2, status="http_503")]))
    watching.line("said")
    watching.close()
    text = out.getvalue()
    for said in ("w0", "w1", "http_503", "said"):
        assert said in text


def test_without_a_terminal_it_is_plain() -> None:
    assert isinstance(watcher(io.StringIO()), PlainWatcher)
