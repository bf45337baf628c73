"""Rows and readiness: what the control plane shows of the core's state. Reads only."""

from collections.abc import Iterable

from trieway.meta_tree.view import View
from trieway.router.core.config import CoreConfig
from trieway.router.core.ledger import Ledger
from trieway.router.core.members import UNGROUPED, Member
from trieway.router.core.values import Readiness, WorkerRow, WorkerState


def worker_row(config: CoreConfig, member: Member, ledger: Ledger, view: View, now: float) -> WorkerRow:
    """One worker, as of now."""
    book = ledger.book_of(member.worker)
    subscriber = member.subscriber
    line = member.prefill(now)
    drift: int | None = None
    if subscriber is not None and subscriber.drift is not None:
        drift = max(member.differing, 1) if subscriber.drift else 0
    return WorkerRow(
        worker=member.worker,
        url=member.url,
        model=member.model,
        aliases=member.aliases,
        group=None if member.group == UNGROUPED else member.group,
        state=member.state(now, config.heartbeat_timeout_s),
        has_feed=member.has_feed,
        synced=subscriber is not None and subscriber.synced,
        approximate=not member.has_feed,
        epoch=None if subscriber is None else subscriber.epoch,
        number=None if subscriber is None else subscriber.number,
        lag_events=0 if subscriber is None else subscriber.lag_events,
        gaps=member.gaps_before + (0 if subscriber is None else subscriber.gaps),
        resyncs=member.resyncs_before + (0 if subscriber is None else subscriber.resyncs),
        drift_blocks=drift,
        blocks=view.blocks(member.worker),
        booked=len(book.open),
        booked_tokens=book.open_tokens,
        pending_tokens=book.pending_tokens,
        load=member.load,
        load_age_s=None if member.load is None else max(now - member.load_at, 0.0),
        prefill_tokens_per_s=1e3 / line.ms_per_unit,
        overhead_ms=line.overhead_ms,
        breaker=member.breaker.state(now).value,
        errors=member.breaker.errors,
    )


def readiness(config: CoreConfig, members: Iterable[Member], began_at: float | None, now: float) -> Readiness:
    """Ready: some worker may be chosen, and enough of the fleet's feeds are loaded or have had their time."""
    states = [(member, member.state(now, config.heartbeat_timeout_s)) for member in members]
    up = sum(state in (WorkerState.UP, WorkerState.SUSPECT) for _, state in states)
    fed = [member for member, state in states if member.has_feed and state is not WorkerState.GONE]
    loaded = sum(member.subscriber is not None and member.subscriber.synced for member in fed)
    share = loaded / len(fed) if fed else 1.0
    waited = began_at is not None and now - began_at >= config.ready_wait_s
    ready = up > 0 and (share >= config.ready_share or waited)
    if not states:
        reason = "no worker is registered"
    elif not up:
        reason = "no worker is up"
    elif ready:
        reason = "ready"
    else:
        reason = f"{loaded} of {len(fed)} feeds are loaded"
    return Readiness(ready=ready, share=share, workers=len(states), up=up, reason=reason)
