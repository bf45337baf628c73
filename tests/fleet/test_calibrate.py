"""Calibration: costs found again in made-up mixes, counts from records, and runs against stand-in servers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fleet.conftest import StandInServer
from trieway.fleet import mixes
from trieway.fleet.calibrate import POINTS_MIN, Calibration, Measured, calibrate, latency_ms_of
from trieway.fleet.console import Console
from trieway.fleet.errors import CommandError
from trieway.fleet.fitting import Costs, fit, least_squares
from trieway.fleet.mixes import MIXES, Mix, Work, moments, work_of
from trieway.fleet.options import Access
from trieway.loadgen.errors import RunFailed
from trieway.loadgen.records import Record
from trieway.loadgen.sim.cost import Rates, SharedMachine, calibrated

COSTS = Costs(
    step_ms=12.0, request_us=2000.0, prefill_token_us=600.0, prefill_pair_ns=400.0, prefill_context_us=8.0,
    decode_us=900.0, decode_context_us=3.0, error=0.0,
)  # fmt: skip


def work(mix: Mix, costs: Costs, factor: float = 1.0) -> Work:
    """What 20 requests of a mix would take, a batch being half of the users."""
    prompts = 20 * mix.prompt
    decodes = 20 * (mix.output - 1)
    batch = max(mix.users // 2, 1)
    made = Work(
        mix=mix, seconds=1.0, steps=20 // min(batch, 4) + decodes // batch + 1, requests=20, prefill_tokens=prompts,
        prefill_pairs=prompts * mix.shared + prompts * mix.prompt // 2, prefill_context=20 * mix.shared,
        decodes=decodes, decode_context=decodes * (mix.shared + mix.prompt + mix.output // 2),
    )  # fmt: skip
    return replace(made, seconds=factor * costs.seconds(made))


costs = st.builds(
    Costs,
    step_ms=st.floats(1, 50), request_us=st.floats(100, 5000), prefill_token_us=st.floats(10, 2000),
    prefill_pair_ns=st.floats(1, 1000), prefill_context_us=st.floats(0.1, 20), decode_us=st.floats(10, 2000),
    decode_context_us=st.floats(0.1, 10), error=st.just(0.0),
)  # fmt: skip


@settings(max_examples=50)
@given(costs)
def test_costs_are_found_again_from_the_mixes(true: Costs) -> None:
    """So the mixes tell every kind of work apart."""
    points = [work(mix, true) for mix in MIXES]
    found = fit(points)
    assert found.error < 1e-6
    for name, value in asdict(true).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-3, abs=1e-6), name


@settings(max_examples=50)
@given(costs, st.lists(st.floats(0.9, 1.1), min_size=2 * len(MIXES), max_size=2 * len(MIXES)))
def test_no_cost_is_negative_whatever_the_noise(true: Costs, noise: Sequence[float]) -> None:
    points = [work(mix, true, factor) for mix, factor in zip(MIXES * 2, noise, strict=True)]
    found = fit(points)
    assert min(asdict(found).values()) >= 0.0
    assert found.error <= 0.25
    assert sum(map(found.seconds, points)) == pytest.approx(sum(point.seconds for point in points), rel=0.15)


def test_a_mix_that_somebody_disturbed_hardly_counts() -> None:
    points = [work(mix, COSTS) for mix in MIXES * 2]
    points[3] = replace(points[3], seconds=4.0 * points[3].seconds)
    found = fit(points)
    assert found.step_ms == pytest.approx(COSTS.step_ms, rel=0.1)
    assert found.prefill_token_us == pytest.approx(COSTS.prefill_token_us, rel=0.1)


def test_columns_that_cannot_be_told_apart_get_one_value() -> None:
    assert least_squares([(1.0, 2.0), (2.0, 4.0)], [3.0, 6.0]) == pytest.approx([3.0, 0.0])


# -- counting ----------------------------------------------------------------------------------------------------------


def record(**changes: object) -> Record:
    known: dict[str, object] = {
        "call": "c", "session": "c", "worker": None, "due_s": 1.0, "sent_s": 1.0, "first_s": 1.5, "last_s": 1.7,
        "prompt_tokens": 110, "cached_tokens": 100, "predicted_tokens": None, "output_tokens": 3,
        "gaps": ((0.1, 2),),
    }  # fmt: skip
    return Record(**{**known, **changes})  # type: ignore[arg-type]


def test_counts_are_those_of_the_answers() -> None:
    mix = Mix(users=2, prompt=10, shared=100, output=3)
    found = work_of(mix, [record(), record(sent_s=1.2, last_s=2.5, prompt_tokens=40, cached_tokens=None)], 9)
    assert found.seconds == pytest.approx(1.5)
    assert (found.steps, found.requests) == (9, 2)
    assert (found.prefill_tokens, found.prefill_context) == (10 + 40, 100)
    # Each new token attends to all before it and to itself.
    assert found.prefill_pairs == sum(range(101, 111)) + sum(range(1, 41))
    # A decode attends to the prompt, the answer so far and itself.
    assert (found.decodes, found.decode_context) == (4, (111 + 112) + (41 + 42))


def lone(ttft_ms: float, prompt: int = 64, cached: int = 0) -> Record:
    done = 1.0 + ttft_ms / 1e3
    return record(first_s=done, last_s=done, prompt_tokens=prompt, cached_tokens=cached, output_tokens=1, gaps=())


def test_a_lone_requests_latency_is_the_way_and_what_is_not_explained() -> None:
    # A step, a request, 64 tokens and their pairs.
    explained = 12.0 + 2.0 + 64 * 0.6 + 64 * 65 / 2 * 4e-4
    pairs = [(lone(explained + way + 1.5), lone(explained + 1.5)) for way in (2.0, 3.0, 40.0)]
    assert latency_ms_of(pairs, COSTS) == pytest.approx(3.0 + 1.5)
    # A head that was cached is no work; costs that explain too much take nothing off the way.
    head = 10 * 54 * 4e-4 + 10 * 11 / 2 * 4e-4 + 54 * 8e-3
    cached = [(lone(12.0 + 2.0 + 6.0 + head + 2.5, 64, 54), lone(12.0 + 2.0 + 6.0 + head - 4.0, 64, 54))]
    assert latency_ms_of(cached, COSTS) == pytest.approx(6.5)
    assert latency_ms_of([], COSTS) == 0.0


def test_steps_are_the_moments_of_text_where_nobody_counts_them() -> None:
    one = record(first_s=1.0, gaps=((0.1, 2),), last_s=1.2)
    beside = record(first_s=1.0011, gaps=((0.1, 1), (0.15, 1)), last_s=1.2511)
    assert moments([one, beside]) == 4
    assert moments([]) == 0
    assert work_of(Mix(users=2, prompt=1), [one, beside], None).steps == 4


# -- against a server --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixes, "MIX_S", 0.05)
    monkeypatch.setattr(mixes, "REQUESTS_MAX", 60)


def measured(url: str) -> Calibration:
    return asyncio.run(calibrate(Access(url=url), None, 1, Console(io.StringIO())))


def plain(calibration: Calibration) -> dict[str, object]:
    told = json.loads(json.dumps(calibration.as_json()))
    assert isinstance(told, dict)
    return told


def test_a_lone_server_is_measured_alone_with_new_prompts(server: StandInServer) -> None:
    found = measured(server.url)
    assert (found.model, found.workers, found.together) == ("stand-in", 1, None)
    assert len(found.alone.points) == len(MIXES)
    assert all(point.steps > 0 and point.seconds > 0.0 for point in found.alone.points)
    asked = [json.dumps(body.get("prompt") or body["messages"]) for _, body in server.bodies]
    assert len(set(asked)) == len(asked)
    assert {path for path, _ in server.bodies} == {"/v1/completions", "/v1/chat/completions"}
    told = plain(found)
    assert told["version"] == 2
    assert told["together"] is None


def test_the_simulator_reads_what_is_printed() -> None:
    slower = replace(COSTS, step_ms=18.0)
    measured = Measured(costs=COSTS, points=tuple(work(mix, COSTS) for mix in MIXES))
    found = Calibration(
        model="m", workers=2, repeats=1, latency_ms=4.0, alone=measured, together=replace(measured, costs=slower)
    )
    shared = calibrated(plain(found))
    assert isinstance(shared, SharedMachine)
    assert shared.request_s == pytest.approx(0.004)
    for mix in MIXES:
        one = work(mix, COSTS)
        counts = (one.prefill_tokens, one.prefill_pairs, one.decodes, one.decode_context, one.prefill_context)
        # As one step of the same sums: the other steps' fixed costs are missing.
        rest_s = COSTS.seconds(one) - (one.steps - 1) * COSTS.step_ms / 1e3
        assert shared.step_s(*counts, one.requests) == pytest.approx(rest_s)
        assert shared.step_s(*counts, one.requests, 1.0) == pytest.approx(rest_s + 0.006)
    alone = calibrated(plain(replace(found, together=None, workers=1)))
    assert isinstance(alone, Rates)


def test_a_model_without_a_template_is_asked_for_completions_alone(server: StandInServer) -> None:
    server.canned["/v1/chat/completions"] = (400, {"error": {"message": "no template"}})
    assert len(measured(server.url).alone.points) == len(MIXES)
    assert [path for path, _ in server.bodies].count("/v1/chat/completions") == 1


def test_a_server_that_counts_its_steps_is_believed(server: StandInServer) -> None:
    server.counts_steps = True
    points = measured(server.url).alone.points
    # The stand-in counts a step for each token.
    assert all(point.steps >= point.requests + point.decodes for point in points)


def test_workers_behind_a_router_are_measured_alone_and_together(server: StandInServer) -> None:
    rows = [{"id": name, "url": server.url} for name in ("w0", "w1")]
    server.canned["/workers"] = (200, {"workers": rows})
    server.names = ("w0", "w1")
    found = measured(server.url)
    assert found.workers == 2
    assert found.together is not None
    assert len(found.together.points) > len(MIXES), "a point for each worker"


def test_mixes_beyond_the_context_are_left_out(server: StandInServer) -> None:
    server.context_tokens_max = 700
    points = measured(server.url).alone.points
    assert POINTS_MIN <= len(points) < len(MIXES)
    assert max(point.mix.shared for point in points) == 600


def test_a_context_too_short_for_nearly_all_is_an_error(server: StandInServer) -> None:
    server.context_tokens_max = 20
    with pytest.raises(CommandError, match="context is too short"):
        measured(server.url)


def test_a_server_that_fails_is_an_error_in_its_own_words(server: StandInServer) -> None:
    server.fails_after = 30
    with pytest.raises(CommandError, match=r"http_500.*broken"):
        measured(server.url)


def test_a_server_that_serves_nothing_is_an_error(server: StandInServer) -> None:
    server.canned["/v1/completions"] = (500, {"error": {"message": "broken"}})
    with pytest.raises(RunFailed, match="broken"):
        measured(server.url)
