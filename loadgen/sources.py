"""Whatever a command line names, as a workload: a workload's name, a trace, a file of requests or of questions.

Keeps true: what a file is, is told by its first row, not by its name.
"""

from __future__ import annotations

import os

from trieway.loadgen.errors import TraceError, WorkloadError
from trieway.loadgen.lines import numbered_lines, plain_name
from trieway.loadgen.pairs import few_shot_of, is_pair
from trieway.loadgen.replay import replay
from trieway.loadgen.requests_file import read_requests
from trieway.loadgen.traces import kind_of, read_trace
from trieway.loadgen.vocabulary import Setting, Workload
from trieway.loadgen.workloads import RECIPES, make

REPLAY_SETTINGS = ("shrink", "share_head", "wait", "form", "rows_max", "forced", "block_tokens")
PAIR_SETTINGS = ("examples", "samples", "output_tokens", "rows_max")


def load(source: str, seed: int = 0, **settings: Setting) -> Workload:
    """A workload by name or file; `settings` are the workload's, for a trace those of REPLAY_SETTINGS, for questions
    those of PAIR_SETTINGS (text is fine). LoadError: neither, or unusable."""
    if source in RECIPES:
        return make(source, seed, **settings)
    if not os.path.exists(source):
        raise WorkloadError(f"{source!r} is neither a file nor a workload; there are {', '.join(RECIPES)}")
    first = next(iter(numbered_lines(source)), None)
    if first is None:
        raise TraceError(source, "no rows")
    if kind_of(first[1]) is not None:
        return _replayed(source, seed, settings)
    if is_pair(first[1]):
        return _asked(source, seed, settings)
    if settings:
        raise WorkloadError(f"a file of requests has no settings, but {', '.join(settings)} is given")
    return read_requests(source)


def _asked(path: str, seed: int, settings: dict[str, Setting]) -> Workload:
    _known("a file of questions", settings, PAIR_SETTINGS)
    return few_shot_of(
        plain_name(path),
        numbered_lines(path),
        source=path,
        seed=seed,
        examples=_whole(settings, "examples") or 5,
        samples=_whole(settings, "samples") or 1,
        output_tokens=_whole(settings, "output_tokens") or 96,
        rows_max=_whole(settings, "rows_max"),
    )


def _known(what: str, settings: dict[str, Setting], known: tuple[str, ...]) -> None:
    for key in settings:
        if key not in known:
            raise WorkloadError(f"{what} has no setting {key!r}; it has {', '.join(known)}")


def _replayed(path: str, seed: int, settings: dict[str, Setting]) -> Workload:
    _known("a trace", settings, REPLAY_SETTINGS)
    form = settings.get("form", "completion")
    if form not in ("completion", "chat"):
        raise WorkloadError(f"form is completion or chat, not {form!r}")
    return replay(
        read_trace(path, block_tokens=_whole(settings, "block_tokens")),
        seed=seed,
        shrink=_whole(settings, "shrink") or 1,
        share_head=_switch(settings, "share_head", False),
        wait=_switch(settings, "wait", True),
        form="chat" if form == "chat" else "completion",
        rows_max=_whole(settings, "rows_max"),
        forced=_switch(settings, "forced", True),
    )


def _whole(settings: dict[str, Setting], key: str) -> int | None:
    value = settings.get(key)
    if value is None:
        return None
    if not str(value).isdecimal() or not int(str(value)):
        raise WorkloadError(f"{key} is a whole number above 0, not {value!r}")
    return int(str(value))


def _switch(settings: dict[str, Setting], key: str, default: bool) -> bool:
    value = str(settings.get(key, default)).lower()
    if value not in ("true", "false", "yes", "no", "1", "0"):
        raise WorkloadError(f"{key} is true or false, not {value!r}")
    return value in ("true", "yes", "1")
