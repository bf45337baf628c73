"""Plots as SVG text, drawn by ourselves: lines, bars, strips and an icicle.

Keeps true: whatever comes in as text is escaped; nothing outside is referred to; colours are variables of the page, so
that it can be dark. Does not know what is plotted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = 8
"""The page defines --c0 to --c7."""
POINTS_MAX = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Points in order of x; None breaks the line. `dots`: also marks each point."""

    name: str
    points: Sequence[tuple[float, float | None]]
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """`low`, `high`: None is from the data. `log`: only for values above 0."""

    label: str
    low: float | None = None
    high: float | None = None
    log: bool = False


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high, at = (map(math.log10, (self.low, self.high, value))) if self.log else (self.low, self.high, value)
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if not self.log:
            return nice_ticks(self.low, self.high)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        wide = len(powers) > 4
        every = [10.0**power * step for power in powers for step in ((1,) if wide else (1, 2, 5))]
        return [tick for tick in every if self.low <= tick <= self.high * (1 + 1e-9)]


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about so many."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number for an axis."""
    if value and abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if value and abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:.4g}"


def _scale(values: Sequence[float], axis: Axis, start: float, end: float) -> _Scale:
    usable = [value for value in values if value > 0] if axis.log else list(values)
    low = axis.low if axis.low is not None else min(usable, default=1.0 if axis.log else 0.0)
    high = axis.high if axis.high is not None else max(usable, default=low)
    if axis.log:
        low = max(low, high / 1e6, 1e-9)
    if not high > low:
        low, high = (low / 2, low * 2) if axis.log else (low - 0.5 * (low != 0), low + (abs(low) or 1.0))
    return _Scale(low, high, start, end, axis.log)


def lines(series: Sequence[Line], x: Axis, y: Axis, *, width: int = 620, height: int = 300) -> str:
    """A line chart with a legend."""
    series = [one for one in series if any(at is not None for _, at in one.points)]
    if not series:
        return _empty(width)
    left, right, top, bottom = 58, width - 12, 10, height - 40
    xs = [at for one in series for at, _ in one.points]
    ys = [at for one in series for _, at in one.points if at is not None]
    across, up = _scale(xs, x, left, right), _scale(ys, y, bottom, top)
    parts = [_open(width, height), *_grid(across, up, x.label, y.label, width, height)]
    for number, one in enumerate(series):
        colour = f"var(--c{number % COLOURS})"
        dash = ' stroke-dasharray="5 4"' if one.dashed else ""
        for piece in _pieces(one.points, across, up):
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in piece)
            parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.8"{dash} points="{path}"/>')
            if one.dots or len(piece) == 1:
                parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in piece]
    parts.append("</svg>")
    return "".join(parts) + _legend([one.name for one in series])


def _pieces(
    points: Sequence[tuple[float, float | None]], across: _Scale, up: _Scale
) -> Iterator[list[tuple[float, float]]]:
    """Runs of known points, thinned to what a screen can show, kept inside the plot."""
    every = max(1, len(points) // POINTS_MAX)
    piece: list[tuple[float, float]] = []
    for at, value in [*points[:-1:every], points[-1]]:
        if value is None or (up.log and value <= 0) or (across.log and at <= 0):
            if piece:
                yield piece
            piece = []
        else:
            inside = min(max(value, up.low), up.high)
            piece.append((across(min(max(at, across.low), across.high)), up(inside)))
    if piece:
        yield piece


def _grid(across: _Scale, up: _Scale, x_label: str, y_label: str, width: int, height: int) -> Iterator[str]:
    for tick in up.ticks():
        at = up(tick)
        yield f'<line class="grid" x1="{across.start}" x2="{across.end}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield f'<text x="{across.start - 6}" y="{at + 4:.1f}" text-anchor="end">{short(tick)}</text>'
    for tick in across.ticks():
        at = across(tick)
        yield f'<line class="grid" y1="{up.start}" y2="{up.end}" x1="{at:.1f}" x2="{at:.1f}"/>'
        yield f'<text x="{at:.1f}" y="{up.start + 15}" text-anchor="middle">{short(tick)}</text>'
    middle = (across.start + across.end) / 2
    yield f'<text x="{middle:.0f}" y="{height - 6}" text-anchor="middle">{escape(x_label)}</text>'
    yield (
        f'<text x="12" y="{(up.start + up.end) / 2:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 12 {(up.start + up.end) / 2:.0f})">{escape(y_label)}</text>'
    )


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2 and not any(names):
        return ""
    items = "".join(
        f'<span><i style="background:var(--c{number % COLOURS})"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f'<div class="legend">{items}</div>'


def bars(
    rows: Sequence[tuple[str, float | None]], *, high: float, show: Callable[[float], str], width: int = 620
) -> str:
    """Horizontal bars from 0 to `high`."""
    known = [(name, value) for name, value in rows if value is not None]
    if not known or high <= 0:
        return _empty(width)
    left, step = 150, 26
    parts = [_open(width, step * len(known) + 6)]
    for number, (name, value) in enumerate(known):
        top = number * step + 3
        size = max(0.0, min(value / high, 1.0)) * (width - left - 70)
        parts.append(f'<text x="{left - 8}" y="{top + 15}" text-anchor="end">{_clip(name, 22)}</text>')
        parts.append(
            f'<rect x="{left}" y="{top}" width="{size:.1f}" height="20" rx="2" fill="var(--c{number % COLOURS})"/>'
        )
        parts.append(f'<text x="{left + size + 6:.1f}" y="{top + 15}">{escape(show(value))}</text>')
    return "".join([*parts, "</svg>"])


def strips(
    rows: Sequence[tuple[str, Sequence[float | None]]],
    *,
    step_s: float,
    high: float,
    show: Callable[[float], str],
    width: int = 960,
) -> str:
    """One strip per row, time across, value as depth of colour (0 to `high`)."""
    if not rows or not rows[0][1]:
        return _empty(width)
    left, tall = 130, 18 if len(rows) <= 16 else 10
    count = len(rows[0][1])
    wide = (width - left - 10) / count
    parts = [_open(width, tall * len(rows) + 34)]
    for number, (name, values) in enumerate(rows):
        top = number * tall
        parts.append(f'<text x="{left - 6}" y="{top + tall - 5}" text-anchor="end">{_clip(name, 18)}</text>')
        for place, value in enumerate(values):
            if value is not None and value > 0:
                tip = f"{name}, {place * step_s:g} s: {show(value)}"
                parts.append(
                    f'<rect x="{left + place * wide:.1f}" y="{top}" width="{wide + 0.3:.1f}" height="{tall - 2}" '
                    f'fill="var(--heat)" fill-opacity="{_depth(value, high):.2f}"><title>{escape(tip)}</title></rect>'
                )
    base = tall * len(rows)
    for tick in nice_ticks(0.0, count * step_s, 8):
        at = left + tick / step_s * wide
        parts.append(f'<text x="{at:.1f}" y="{base + 14}" text-anchor="middle">{short(tick)}</text>')
    parts.append(f'<text x="{(width + left) / 2:.0f}" y="{base + 29}" text-anchor="middle">seconds</text>')
    return "".join([*parts, "</svg>"])


def _depth(value: float, high: float) -> float:
    return 0.08 + 0.92 * min(value / high, 1.0) if high > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A node of an icicle: as wide as `size` in its parent, as deep in colour as `heat` (0 to 1)."""

    tip: str
    size: float
    heat: float
    below: Sequence[Cell] = ()


def icicle(cells: Sequence[Cell], *, width: int = 960, tall: int = 22) -> str:
    """A tree from above: each level a row, children under their parent."""
    total = sum(cell.size for cell in cells)
    if total <= 0:
        return _empty(width)
    drawn: list[str] = []
    depth = _draw(cells, 0.0, width / total, 0, tall, drawn)
    return "".join([_open(width, (depth + 1) * tall), *drawn, "</svg>"])


def _draw(cells: Sequence[Cell], left: float, unit: float, level: int, tall: int, drawn: list[str]) -> int:
    deepest = level
    for cell in cells:
        wide = cell.size * unit
        if wide < 0.5:
            continue  # nobody could see it
        drawn.append(
            f'<rect x="{left:.1f}" y="{level * tall}" width="{max(wide - 1, 0.5):.1f}" height="{tall - 2}" '
            f'fill="var(--heat)" fill-opacity="{0.12 + 0.88 * cell.heat:.2f}"><title>{escape(cell.tip)}</title></rect>'
        )
        inside = sum(child.size for child in cell.below)
        if inside > 0:
            part = min(unit, wide / inside)
            deepest = max(deepest, _draw(cell.below, left, part, level + 1, tall, drawn))
        left += wide
    return deepest


def _open(width: int, height: int) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'


def _clip(name: str, chars: int) -> str:
    return escape(name if len(name) <= chars else "…" + name[-(chars - 1) :])


def _empty(width: int) -> str:
    return f'{_open(width, 40)}<text x="{width / 2:.0f}" y="25" text-anchor="middle">nothing to show</text></svg>'
