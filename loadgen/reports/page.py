"""The frame of a report's page: one HTML file that refers to nothing outside, light or dark as the reader's system is.

Keeps true: text is escaped; no script. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#59636e;--rule:#d8dee4;--card:#f6f8fa;--bad:#c62828;
--good:#1a7f37;--heat:#0b62c4;--c0:#0b62c4;--c1:#d9730d;--c2:#1a8a5a;--c3:#a23bb3;--c4:#b8860b;--c5:#c2334d;--c6:#2b8ea6;
--c7:#6b7280}
@media(prefers-color-scheme:dark){:root{--bg:#0f1318;--fg:#e6edf3;--dim:#9aa5b1;--rule:#2d353e;--card:#171d24;
--bad:#ff7b72;--good:#57c27a;--heat:#5aa9ff;--c0:#5aa9ff;--c1:#f0a05a;--c2:#57c27a;--c3:#d18ae0;--c4:#e0bd5a;
--c5:#ff8095;--c6:#6cc9e0;--c7:#9aa5b1}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1320px;margin:0 auto;padding:24px}h1{font-size:24px;margin:0}h2{font-size:18px;margin:32px 0 8px}
h3{font-size:14px;margin:0 0 6px;font-weight:600}p{margin:6px 0;max-width:90ch}.dim{color:var(--dim)}
.warn{border-left:4px solid var(--bad);background:var(--card);padding:8px 12px;margin:8px 0}
.note{border-left:4px solid var(--rule);background:var(--card);padding:6px 12px;margin:6px 0}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:10px;margin:16px 0}
.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 12px}
.card b{display:block;font-size:21px;font-variant-numeric:tabular-nums}
.card small{color:var(--dim);overflow-wrap:anywhere}
.good b{color:var(--good)}.bad b{color:var(--bad)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,560px),1fr));gap:18px}
.plot{border:1px solid var(--rule);border-radius:8px;padding:12px;overflow-x:auto;min-width:0}.wide{grid-column:1/-1}
svg{max-width:100%;height:auto;display:block}svg text{font:11px system-ui,sans-serif;fill:var(--dim)}
.grid{stroke:var(--rule);stroke-width:1}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;font-size:12px;color:var(--dim);margin-top:4px}
.legend i{display:inline-block;width:12px;height:3px;margin-right:5px;vertical-align:middle}
.scroll{overflow-x:auto;margin-top:14px}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:3px 12px 3px 0;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--dim);font-weight:500}th:first-child,td:first-child{text-align:left}
details{margin-top:24px}pre{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:12px;
overflow-x:auto;font-size:12px}
"""


def page(title: str, subtitle: str, body: Sequence[str]) -> str:
    """The whole file. `body`: HTML pieces."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head>'
        f'<body><main><h1>{escape(title)}</h1><p class="dim">{escape(subtitle)}</p>'
        f"{''.join(body)}</main></body></html>\n"
    )


def section(title: str) -> str:
    """A heading."""
    return f"<h2>{escape(title)}</h2>"


def card(value: str, name: str, *, good: bool | None = None) -> str:
    """One number to see first."""
    tone = "" if good is None else " good" if good else " bad"
    return f'<div class="card{tone}"><b>{escape(value)}</b><small>{escape(name)}</small></div>'


def cards(pieces: Sequence[str]) -> str:
    """A row of them."""
    return f'<div class="cards">{"".join(pieces)}</div>'


def plot(title: str, drawing: str, *, wide: bool = False, caption: str = "") -> str:
    """A plot with its title. `drawing`: SVG."""
    below = f'<p class="dim">{escape(caption)}</p>' if caption else ""
    return f'<div class="plot{" wide" if wide else ""}"><h3>{escape(title)}</h3>{drawing}{below}</div>'


def plots(pieces: Sequence[str]) -> str:
    """A grid of them."""
    return f'<div class="plots">{"".join(pieces)}</div>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Numbers in columns."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def warning(text: str) -> str:
    """What must be read."""
    return f'<p class="warn">{escape(text)}</p>'


def note(text: str) -> str:
    """What should be read."""
    return f'<p class="note">{escape(text)}</p>'


def details(title: str, text: str) -> str:
    """Folded away."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
