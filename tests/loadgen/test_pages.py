"""Plots and pages: well formed, self-contained, escaped, right where it can be computed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loadgen.making import context, noisy, record, report
from trieway.loadgen.oracle import Bound
from trieway.loadgen.reports import svg
from trieway.loadgen.reports.report_html import html_of
from trieway.loadgen.reports.schema import Branch, Report, Scrape, Series
from trieway.loadgen.reports.slo import parse_slo
from trieway.loadgen.reports.study import Capacity, Point, Setting, Study
from trieway.loadgen.reports.study_html import html_of_study
from trieway.loadgen.reports.summary import summarise
from trieway.loadgen.reports.table_csv import COLUMNS, csv_of
from trieway.loadgen.reports.text import lines, milliseconds, number, percent

EVIL = "<script>alert(1)</script>\"'&"
NUMBER = st.floats(-1e6, 1e6) | st.none()


def drawn(text: str) -> ET.Element:
    return ET.fromstring(text.split("</svg>")[0] + "</svg>")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "i", "rect", "line", "circle", "polyline"):
            self.open.append(tag)
        self.outside += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag, f"{tag} closes something else"


def check_page(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    assert not tags.open, f"left open: {tags.open}"
    assert "script" not in tags.seen
    assert not tags.outside
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)(?!127\.0\.0\.1)", text), "refers to something outside"
    assert "url(" not in text
    assert "@import" not in text
    return tags


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), NUMBER), max_size=30), st.booleans(), st.booleans())
def test_any_line_can_be_drawn(points: list[tuple[float, float | None]], x_log: bool, y_log: bool) -> None:
    points.sort(key=lambda point: point[0])
    text = svg.lines(
        [svg.Line(name="a", points=points, dots=True)], svg.Axis(label="x", log=x_log), svg.Axis(label="y", log=y_log)
    )
    root = drawn(text)
    for one in root.iter("{http://www.w3.org/2000/svg}polyline"):
        for pair in one.attrib["points"].split():
            x, y = map(float, pair.split(","))
            assert 57 <= x <= 609
            assert 9 <= y <= 261


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_round_and_inside(low: float, span: float) -> None:
    high = low + span
    if not high > low:
        return
    ticks = svg.nice_ticks(low, high)
    assert len(ticks) <= 12
    slack = span * 1e-6 + abs(low) * 1e-9
    assert all(low - slack <= tick <= high + slack for tick in ticks)


@pytest.mark.parametrize("draw", [
    lambda: svg.lines([], svg.Axis(label=""), svg.Axis(label="")),
    lambda: svg.bars([], high=1, show=str),
    lambda: svg.bars([("a", None)], high=1, show=str),
    lambda: svg.strips([], step_s=1, high=1, show=str),
    lambda: svg.icicle([]),
])  # fmt: skip
def test_nothing_is_said_to_be_nothing(draw: object) -> None:
    assert callable(draw)
    assert "nothing to show" in draw()


def test_children_lie_under_their_parent_and_no_wider() -> None:
    leaf = svg.Cell(tip="leaf", size=3, heat=0.5)
    text = svg.icicle([svg.Cell(tip="root", size=10, heat=1.0, below=[leaf, leaf]), svg.Cell(tip="b", size=10, heat=0)])
    rects = [one.attrib for one in drawn(text).iter("{http://www.w3.org/2000/svg}rect")]
    assert [float(one["y"]) for one in rects] == [0, 22, 22, 0]
    assert float(rects[1]["width"]) + float(rects[2]["width"]) <= float(rects[0]["width"])


def full() -> Report:
    records = [record(n, worker=f"w{n % 3}", tenant="t" + EVIL) for n in range(60)]
    records += [record(60, status="http_500" + EVIL, first_s=None), record(61, warmup=True)]
    return summarise(
        records,
        context(
            workload=EVIL, slo=parse_slo("ttft_p95=1s,itl_p95=1ms"), notes=[EVIL], partial_reason="cut " + EVIL,
            bound=Bound(prompt_tokens=100, endless_tokens=90, reuse_tokens=80),
            config={"url": "http://127.0.0.1:1", "model": EVIL, "arrivals": "poisson:1"},
            tree={"g" + EVIL: [Branch(hash="a", blocks=3, workers=["w0", "w1"], children=[
                Branch(hash="b", blocks=2, workers=["w1" + EVIL], children=[])])]},
            scrapes=[Scrape(source="w" + EVIL, scrapes=2, failed=0, deltas={"x_total": 2.0},
                            series=[Series(name='m{a="' + EVIL + '"}', times_s=[0, 1], values=[1, 2])])],
        ),
    )  # fmt: skip


def test_the_page_is_whole_and_holds_nobodys_markup() -> None:
    text = html_of(full())
    check_page(text)
    assert "<script>alert" not in text
    for said in ("Partial", "oracle bound", "Heat of the meta-tree", "Requests in flight per worker", "Tenants",
                 "Errors by kind", "Effective configuration", "What the servers said", "broken"):  # fmt: skip
        assert said in text, said


def test_a_page_of_nothing_is_whole_too() -> None:
    check_page(html_of(summarise([], context(partial_reason="interrupted"))))
    check_page(html_of(summarise([record(cached_tokens=None, prompt_tokens=None, worker=None)], context())))


def study() -> Study:
    base = report(60)
    points = [
        Point(
            setting=Setting(policy=policy, workers=2), rate=rate, repeat=repeat, seed=repeat, requests=base.requests,
            figures={name: figure.value * rate for name, figure in base.figures.items()},
            holds=rate < 4, broken=[] if rate < 4 else ["ttft p95 9 ms > 3 ms" + EVIL], bound_rate=0.9,
            lagged=rate == 8,
        )
        for policy in ("cache_aware", "round_robin") for rate in (1.0, 2.0, 4.0, 8.0) for repeat in range(2)
    ]  # fmt: skip
    capacities = [
        Capacity(
            setting=Setting(policy="cache_aware"), rate=2.0, fails_at=4.0, held=2, repeats=2, confidence=0.2, why="x"
        ),
        Capacity(setting=Setting(workers=3), rate=None, fails_at=1.0, held=0, repeats=2, confidence=0.0, why=EVIL),
    ]
    return Study(
        kind="capacity", version="0", workload="w", seed=1, slo=parse_slo("ttft_p95=3ms"), points=points,
        capacities=capacities, partial=True, partial_reason="interrupted",
    )  # fmt: skip


def test_a_study_has_a_line_per_fleet_and_leaves_out_what_lagged() -> None:
    text = html_of_study(study())
    check_page(text)
    assert "<script>alert" not in text
    first = text[text.index("<svg") :]
    root = drawn(first)
    lines_drawn = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines_drawn) == 2
    assert all(len(one.attrib["points"].split()) == 3 for one in lines_drawn), "the rate of 8 lagged"


def test_a_study_reads_back() -> None:
    assert msgspec.json.decode(msgspec.json.encode(study()), type=Study) == study()
    assert Setting().name == "server"
    assert Setting(policy="p", workers=2).name == "p, 2 workers"


def test_the_table_has_a_row_per_call_and_no_formulas() -> None:
    rows = csv_of([record(1, session="=1+1"), record(0, worker=None, tenant="x,y"), *noisy(3, seed=1)]).splitlines()
    assert rows[0].split(",") == list(COLUMNS)
    assert len(rows) == 6
    assert '"x,y"' in rows[1] or '"x,y"' in "".join(rows)
    assert "'=1+1" in "".join(rows)


def test_the_summary_says_what_matters() -> None:
    text = "\n".join(lines(full()))
    for said in ("PARTIAL", "61 requests measured: 60 ok, 1 failed", "1 warm-up", "hit rate 50.0 %", "oracle bound",
                 "SLO", "does not hold", "TTFT", "w2", "generator"):  # fmt: skip
        assert said in text, said


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "-"), (0.0, "0"), (1.0, "1.00"), (12345.6, "12,346"), (0.0123, "0.012"), (99.95, "100.0")],
)
def test_numbers_to_read(value: float | None, said: str) -> None:
    assert number(value) == said


def test_shares_and_times_to_read() -> None:
    assert percent(0.1234) == "12.3 %"
    assert percent(None) == "-"
    assert milliseconds(12_345) == "12.3 s"
    assert milliseconds(12.345) == "12.3 ms"
