"""Calibration: the fits on made-up points, the timing rules, and a run against a stand-in server."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fleet.conftest import StandInServer
from trieway.fleet.calibrate import Calibration, calibrate, step_seconds
from trieway.fleet.client import Streamed
from trieway.fleet.console import Console
from trieway.fleet.errors import CommandError
from trieway.fleet.fitting import DecodePoint, PrefillPoint, fit_decode, fit_prefill, least_squares
from trieway.fleet.options import Access


@given(st.floats(0.1, 100), st.floats(100, 100_000))
def test_a_straight_line_is_found_again(overhead_ms: float, rate: float) -> None:
    points = [PrefillPoint(tokens=tokens, ms=overhead_ms + tokens / rate * 1e3) for tokens in (64, 256, 1024)]
    fitted = fit_prefill(points)
    assert fitted.tokens_per_s == pytest.approx(rate, rel=1e-6)
    assert fitted.overhead_ms == pytest.approx(overhead_ms, rel=1e-6, abs=1e-6)
    assert fitted.points == tuple(points)


@given(st.floats(1, 100), st.floats(0.01, 5), st.floats(0.1, 50))
def test_a_plane_is_found_again(base_ms: float, each_ms: float, context_us: float) -> None:
    points = [
        DecodePoint(batch=b, context_tokens=c, step_ms=base_ms + each_ms * b + context_us / 1e3 * b * c)
        for b, c in ((1, 48), (2, 48), (4, 48), (8, 48), (1, 1040), (8, 528))
    ]
    fitted = fit_decode(points)
    assert fitted.step_ms == pytest.approx(base_ms, rel=1e-4)
    assert fitted.per_sequence_ms == pytest.approx(each_ms, rel=1e-4, abs=1e-4)
    assert fitted.per_context_token_us == pytest.approx(context_us, rel=1e-4, abs=1e-4)


def test_noise_never_makes_more_work_faster() -> None:
    points = [DecodePoint(batch=b, context_tokens=48, step_ms=20.0 - b) for b in (1, 2, 4)]
    fitted = fit_decode(points)
    assert fitted.per_sequence_ms == 0.0
    assert fitted.per_context_token_us == 0.0
    assert fitted.step_ms == pytest.approx(sum(point.step_ms for point in points) / 3)
    assert fit_prefill([PrefillPoint(tokens=10, ms=5), PrefillPoint(tokens=20, ms=4)]).tokens_per_s == 1e9


def test_one_point_is_a_constant() -> None:
    fitted = fit_decode([DecodePoint(batch=1, context_tokens=48, step_ms=30.0)])
    assert (fitted.step_ms, fitted.per_sequence_ms, fitted.per_context_token_us) == (pytest.approx(30.0), 0.0, 0.0)


def test_columns_that_say_the_same_are_counted_once() -> None:
    values = least_squares([(1.0, 2.0, 4.0), (1.0, 3.0, 6.0), (1.0, 4.0, 8.0)], [5.0, 7.0, 9.0])
    assert values == [pytest.approx(1.0), pytest.approx(2.0), 0.0]


def answer(start_s: float, step_s: float, pieces: int, tokens: int | None = None) -> Streamed:
    return Streamed(
        text="x" * pieces,
        arrivals_s=tuple(start_s + number * step_s for number in range(pieces)),
        sent_at_s=100.0,
        prompt_tokens=32,
        completion_tokens=tokens if tokens is not None else pieces,
        cached_tokens=0,
        predicted_tokens=None,
        worker=None,
    )


def test_a_step_is_timed_while_all_streams_run() -> None:
    assert step_seconds([answer(0.0, 0.02, 33)]) == pytest.approx(0.02)
    together = [answer(0.0, 0.03, 33), answer(0.3, 0.03, 33)]
    assert step_seconds(together) == pytest.approx(0.03)


def test_pieces_of_several_tokens_count_as_such() -> None:
    assert step_seconds([answer(0.0, 0.06, 11, tokens=31)]) == pytest.approx(0.02)


def test_streams_that_did_not_run_together_tell_nothing() -> None:
    assert step_seconds([answer(0.0, 0.01, 5), answer(10.0, 0.01, 5)]) is None
    assert step_seconds([answer(0.0, 0.01, 1)]) is None


def measured(server: StandInServer) -> Calibration:
    return asyncio.run(calibrate(Access(url=server.url), None, 1, Console(io.StringIO())))


def test_a_run_measures_several_lengths_with_new_prompts(server: StandInServer) -> None:
    found = measured(server)
    assert found.model == "stand-in"
    assert len(found.prefill.points) == 4
    assert found.prefill.tokens_per_s > 0
    assert len(found.decode.points) >= 1
    prompts = [body["prompt"] for _, body in server.bodies]
    assert len(set(prompts)) == len(prompts)
    plain = json.loads(json.dumps(found.as_json()))
    assert plain["version"] == 1
    assert set(plain["decode"]) == {"step_ms", "per_sequence_ms", "per_context_token_us", "points"}


def test_lengths_beyond_the_context_are_left_out(server: StandInServer) -> None:
    server.context_tokens_max = 700
    assert max(point.tokens for point in measured(server).prefill.points) < 700


def test_a_server_that_takes_nothing_is_an_error(server: StandInServer) -> None:
    server.context_tokens_max = 100
    with pytest.raises(CommandError, match="context is too short"):
        measured(server)
    server.canned["/v1/completions"] = (500, {"error": {"message": "broken"}})
    with pytest.raises(CommandError, match="answered 500: broken"):
        measured(server)
