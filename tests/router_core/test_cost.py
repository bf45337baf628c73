"""Cost terms: each is finite and at least 0, each means what it says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router_core.test_ledger import load
from trieway.meta_tree.frames import WorkerLoad
from trieway.meta_tree.ids import WorkerId
from trieway.router.core.config import CoreConfig
from trieway.router.core.cost import Candidate, Job, cost_rows, size_job
from trieway.router.core.ledger import Book, Ledger
from trieway.router.core.rates import Line
from trieway.router.core.values import Booking, CostRow

CONFIG = CoreConfig(seed_id="0" * 16)
PREFILL = Line(overhead_ms=20.0, ms_per_unit=1.0, error=0.05)
DECODE = Line(overhead_ms=30.0, ms_per_unit=2.0)


def candidate(name: str = "a", *, usable: int | tuple[int, int, int] = 0, **more: Any) -> Candidate:
    tiers = (usable, usable, usable) if isinstance(usable, int) else usable
    given: dict[str, Any] = {
        "worker": WorkerId(name), "usable": tiers, "speculative_tokens": 0, "book": Book(0.0, 0.0), "load": None,
        "held_tokens": 0, "prefill": PREFILL, "decode": DECODE, "page_size": 1, "running_max": None,
    }  # fmt: skip
    return Candidate(**(given | more))


def job(prompt: int = 1000, **more: Any) -> Job:
    return Job(**({"prompt_tokens": prompt, "reuse_max": prompt - 1, "output_tokens": 64} | more))


def row(made: Candidate, asked: Job | None = None, now: float = 0.0) -> CostRow:
    return cost_rows(CONFIG, asked or job(), [made], now)[0]


def busy(*uncached: int, started: int = 0, booked_at: float = 0.0) -> Book:
    """A book with pending requests, the first `started` of which have had their first byte."""
    ledger = Ledger(inflow_halflife_s=120.0)
    worker = WorkerId("a")
    ledger.add_worker(worker, 0.0)
    for tokens in uncached:
        booking = Booking(
            id=ledger.next_id(), worker=worker, uncached_tokens=tokens, predicted_tokens=0, available_tokens=0,
            prompt_tokens=tokens, predicted_ttft_ms=0.0, booked_at=booked_at,
        )  # fmt: skip
        ledger.open(booking, booked_at)
    for id in range(1, started + 1):
        ledger.first_byte(id, booked_at)
    return ledger.book_of(worker)


def sized(**more: Any) -> Job:
    given = {
        "prompt_bytes": 4000, "prompt_tokens": None, "reuse_max": None, "max_tokens": None, "matched": (0, 0),
        "heat": 0.0, "bytes_per_token": 4.0,
    }  # fmt: skip
    return size_job(CONFIG, **(given | more))


def test_a_prompts_length_is_estimated_by_its_bytes_or_known() -> None:
    assert sized().prompt_tokens == 1000
    assert sized(prompt_tokens=777).prompt_tokens == 777
    assert sized(prompt_bytes=0).prompt_tokens == 1


def test_a_match_makes_the_estimate_exact_for_its_part() -> None:
    assert sized(matched=(50, 500)).prompt_tokens == 500 + 200
    assert sized(prompt_bytes=3201, matched=(50, 900)).prompt_tokens == 901
    whole = sized(prompt_bytes=3200, matched=(50, 900))
    assert (whole.prompt_tokens, whole.reuse_max) == (900, 899)


def test_reuse_is_capped_by_the_request() -> None:
    assert sized().reuse_max == 999
    assert sized(reuse_max=0).reuse_max == 0
    assert sized(reuse_max=10**9).reuse_max == 999
    assert row(candidate(usable=5000)).cached_tokens == 999
    assert row(candidate(usable=5000), job(reuse_max=0)).cached_tokens == 0


def test_reuse_rounds_down_to_pages() -> None:
    assert row(candidate(usable=5000, page_size=16)).cached_tokens == 992


def test_an_idle_worker_costs_its_prefill() -> None:
    made = row(candidate(usable=900))
    assert (made.cached_tokens, made.uncached_tokens) == (900, 100)
    assert made.prefill_ms == pytest.approx(120.0)
    assert made.ttft_ms == made.prefill_ms
    assert made.cost_ms == made.ttft_ms + made.work_ms
    assert made.work_ms == pytest.approx(100 * CONFIG.work_weight)
    assert made.queue_ms == made.interference_ms == made.reload_ms == 0.0


def test_work_ahead_is_queueing_and_shrinks_as_it_is_done() -> None:
    book = busy(800, 400)
    first = row(candidate(book=book)).queue_ms
    assert 1200 < first < 1300
    assert row(candidate(book=book), now=0.3).queue_ms == pytest.approx(first - 300.0)
    # The head alone can have been worked on, however long ago it began.
    assert row(candidate(book=book), now=60.0).queue_ms > 400


def test_requests_past_their_first_byte_interfere_and_do_not_queue() -> None:
    made = row(candidate(book=busy(800, 800, started=2)))
    assert made.queue_ms == 0.0
    assert made.interference_ms > 0.0
    assert made.decode_ms > 0.0
    assert made.cost_ms == pytest.approx(made.ttft_ms + made.decode_ms + made.work_ms)


def test_other_routers_work_queues_too() -> None:
    book = Book(0.0, 0.0)
    book.reconcile(load(running=3, waiting=2, waiting_tokens=2000), 0, 0.0)
    assert row(candidate(book=book)).queue_ms == pytest.approx(2000.0)
    assert row(candidate(book=book), now=1.5).queue_ms == pytest.approx(500.0)
    assert row(candidate(book=book)).booked == 5


def test_full_slots_cost_the_wait_for_one_to_end() -> None:
    book = busy(10, 10, started=2)
    assert row(candidate(book=book, running_max=3)).queue_ms == 0.0
    assert row(candidate(book=book, running_max=2)).queue_ms == pytest.approx(book.residence_ms.value)


def memory(free: int, cached: int = 0, waiting: int = 0) -> WorkerLoad:
    return WorkerLoad(
        running=1, waiting=waiting, waiting_tokens=0, running_tokens=0, prefill_tokens_per_s=0.0, decode_step_ms=0.0,
        kv_free_tokens=free, kv_cached_tokens=cached, kv_total_tokens=9000,
    )  # fmt: skip


def test_a_full_cache_must_evict() -> None:
    assert row(candidate(load=memory(5000))).displaced_ms == 0.0
    assert row(candidate(load=memory(400, 8000))).displaced_ms == pytest.approx(600.0)
    assert row(candidate(load=memory(0, 8000), usable=999)).displaced_ms == pytest.approx(1.0)


def test_no_memory_left_at_all_is_a_wait() -> None:
    assert row(candidate(load=memory(0, 100, waiting=4), book=busy(10, 10, started=2))).queue_ms > 0.0


def test_other_tiers_are_reloaded() -> None:
    made = row(candidate(usable=(100, 600, 900)))
    assert made.cached_tokens == 900
    assert made.reload_ms == pytest.approx(800 / CONFIG.reload_tokens_per_s * 1e3)
    assert made.usable == (100, 600, 900)


def test_what_a_leader_is_about_to_store_counts() -> None:
    made = row(candidate(speculative_tokens=900, book=busy(1000)))
    assert made.cached_tokens == 900
    assert made.queue_ms > 900.0


def test_a_hot_prefix_is_cheaper_to_copy() -> None:
    holder, other = candidate("a", usable=900), candidate("b")
    cold = cost_rows(CONFIG, job(shared_tokens=900), [holder, other], 0.0)
    hot = cost_rows(CONFIG, job(shared_tokens=900, heat=50.0), [holder, other], 0.0)
    assert cold[1].cost_ms == pytest.approx(1020.0 + cold[1].work_ms)
    assert hot[1].cost_ms < 250.0
    assert hot[1].ttft_ms == cold[1].ttft_ms
    assert hot[0] == cold[0]


def test_new_work_in_excess_of_the_peers_costs() -> None:
    rows = cost_rows(CONFIG, job(), [candidate("a", usable=600, book=Book(0.0, 2000.0)), candidate("b")], 0.0)
    assert rows[0].spread_ms > 0.0 == rows[1].spread_ms
    capped = cost_rows(CONFIG, job(), [candidate("a", usable=600, book=Book(0.0, 1e9)), candidate("b")], 0.0)
    assert capped[0].spread_ms == pytest.approx(500.0)


def test_a_past_flow_only_tilts_a_tie() -> None:
    flooded, calm = cost_rows(CONFIG, job(), [candidate("a", book=Book(0.0, 1e9)), candidate("b")], 0.0)
    assert flooded.cost_ms - calm.cost_ms == pytest.approx(CONFIG.spread_tilt * flooded.error_ms)


@given(
    prompt=st.integers(1, 200_000),
    reuse_max=st.integers(0, 200_000),
    tiers=st.lists(st.integers(0, 200_000), min_size=3, max_size=3),
    speculative=st.integers(0, 200_000),
    heat=st.floats(0, 1e6),
    shared=st.integers(0, 200_000),
    uncached=st.lists(st.integers(1, 50_000), max_size=6),
    free=st.integers(0, 10**6),
    page=st.sampled_from([1, 16, 256]),
    now=st.floats(0, 1e6),
)
def test_terms_are_finite_and_not_negative(
    prompt: int, reuse_max: int, tiers: list[int], speculative: int, heat: float, shared: int, uncached: list[int],
    free: int, page: int, now: float,
) -> None:  # fmt: skip
    asked = job(prompt, reuse_max=min(reuse_max, prompt - 1), heat=heat, shared_tokens=min(shared, prompt - 1))
    low, middle, high = sorted(tiers)
    one = candidate(
        usable=(low, middle, high), speculative_tokens=speculative, book=busy(*uncached), load=memory(free),
        page_size=page,
    )  # fmt: skip
    rows = cost_rows(CONFIG, asked, [one, candidate("b")], now)
    for made in rows:
        terms = (
            made.queue_ms, made.prefill_ms, made.reload_ms, made.interference_ms, made.decode_ms, made.displaced_ms,
            made.work_ms, made.copied_ms, made.spread_ms, made.cost_ms, made.error_ms,
        )  # fmt: skip
        assert all(0.0 <= term < float("inf") for term in terms)
        assert made.cached_tokens + made.uncached_tokens == prompt
        assert made.cached_tokens <= asked.reuse_max


@given(less=st.integers(0, 999), more=st.integers(0, 999), heat=st.floats(0, 1e4))
def test_more_cached_never_costs_more(less: int, more: int, heat: float) -> None:
    less, more = sorted((less, more))
    asked = job(heat=heat, shared_tokens=999)
    one, two = cost_rows(CONFIG, asked, [candidate("a", usable=less), candidate("b", usable=more)], 0.0)
    assert two.cost_ms <= one.cost_ms + 1e-6
