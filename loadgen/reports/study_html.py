"""A sweep or a capacity search as a page. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator

from trieway.loadgen.reports import page, svg
from trieway.loadgen.reports.study import Point, Setting, Study
from trieway.loadgen.reports.text import milliseconds, number, percent


def html_of_study(study: Study) -> str:
    """The whole file."""
    title = f"{study.workload}: {'capacity' if study.kind == 'capacity' else 'sweep'}"
    said = [str(study.config[key]) for key in ("url", "model") if study.config.get(key)]
    subtitle = " · ".join([*said, f"seed {study.seed}", *filter(None, [study.started])])
    body = [
        *([page.warning(f"Partial: {study.partial_reason}")] if study.partial else []),
        *map(page.note, study.notes),
        page.cards([_capacity_card(one.setting.name, one.rate) for one in study.capacities]),
        page.plots(list(_plots(study))),
        *_capacities(study),
        page.section("Points"),
        _points(study),
        page.details(
            "Effective configuration", json.dumps({"workload": study.settings, "study": study.config}, indent=1)
        ),
    ]
    return page.page(title, subtitle, body)


def _capacity_card(name: str, rate: float | None) -> str:
    return page.card("none" if rate is None else f"{number(rate)}/s", f"capacity, {name}", good=rate is not None)


_Figure = Callable[[Point], float | None]


def _plots(study: Study) -> Iterator[str]:
    for title, name, label, scale in (
        ("Rate and time to first token, p50", "ttft_p50_ms", "ms (logarithmic)", 1.0),
        ("Rate and time to first token, p95", "ttft_p95_ms", "ms (logarithmic)", 1.0),
        ("Rate and wait between tokens, p95", "itl_p95_ms", "ms (logarithmic)", 1.0),
        ("Rate and hit rate", "hit_rate", "% of prompt tokens", 100.0),
        ("Rate and requests answered", "requests_per_s", "answered per second", 1.0),
    ):
        hits = name == "hit_rate"
        lines = list(_lines(study, _figure(name, scale)))
        if hits:
            bound = _lines(study, lambda point: _scaled(point.bound_rate, 100.0))
            lines += [
                svg.Line(name=f"{line.name}: oracle bound", points=line.points, dashed=True, dots=True)
                for line in bound
            ]
        y = svg.Axis(label=label, low=0.0, high=100.0) if hits else svg.Axis(label=label, log=name.endswith("_ms"))
        yield page.plot(title, svg.lines(lines, svg.Axis(label="requests per second offered"), y))


def _figure(name: str, scale: float) -> _Figure:
    return lambda point: _scaled(point.figures.get(name), scale)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _lines(study: Study, figure: _Figure) -> Iterator[svg.Line]:
    """One line per fleet through the mean of its repeats at each rate; without points of a generator that lagged."""
    groups: defaultdict[Setting, defaultdict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in study.points:
        value = figure(point)
        if value is not None and not point.lagged:
            groups[point.setting][point.rate].append(value)
    for setting in groups:
        points = [(rate, sum(values) / len(values)) for rate, values in sorted(groups[setting].items())]
        yield svg.Line(name=setting.name, points=points, dots=True)


def _capacities(study: Study) -> Iterator[str]:
    if study.capacities:
        yield page.section(f"Highest rate at which {study.slo} holds")
        rows = [
            (
                one.setting.name,
                "none" if one.rate is None else number(one.rate),
                number(one.fails_at),
                f"{one.held} of {one.repeats}",
                percent(one.confidence),
                one.why,
            )
            for one in study.capacities
        ]
        header = ("fleet", "holds at /s", "fails at /s", "repeats that held", "share that holds, at least", "")
        yield page.table(header, rows)


def _points(study: Study) -> str:
    rows = [
        (
            point.setting.name,
            number(point.rate),
            str(point.repeat + 1),
            f"{point.requests.ok} of {point.requests.measured}",
            milliseconds(point.figures.get("ttft_p50_ms")),
            milliseconds(point.figures.get("ttft_p95_ms")),
            milliseconds(point.figures.get("itl_p95_ms")),
            percent(point.figures.get("hit_rate")),
            percent(point.bound_rate),
            number(point.figures.get("work_imbalance")),
            {None: "-", True: "holds", False: "; ".join(point.broken) or "broken"}[point.holds]
            + ("; generator lagged" if point.lagged else ""),
        )
        for point in study.points
    ]
    header = ("fleet", "rate /s", "repeat", "answered", "TTFT p50", "TTFT p95", "ITL p95", "hit rate", "bound")
    return page.table((*header, "imbalance", "SLO"), rows)
