"""The router's decisions, pure: cost, policies, the ledger of booked work, breakers, the state of every worker.

`RouterCore` in core.py is the one entrance; values.py is the vocabulary it speaks. Values and `now` come in,
values go out: no sockets, no clocks, no tasks, no metrics.
"""

from trieway.router.core.config import CoreConfig
from trieway.router.core.core import RouterCore
from trieway.router.core.policies import POLICIES
from trieway.router.core.values import (
    AskBuckets,
    Booking,
    Choice,
    CoreEffect,
    CostRow,
    Explanation,
    FirstByte,
    Outcome,
    Query,
    Readiness,
    Rejection,
    Resubscribe,
    Settled,
    WorkerRow,
    WorkerState,
)

__all__ = [
    "POLICIES",
    "AskBuckets",
    "Booking",
    "Choice",
    "CoreConfig",
    "CoreEffect",
    "CostRow",
    "Explanation",
    "FirstByte",
    "Outcome",
    "Query",
    "Readiness",
    "Rejection",
    "Resubscribe",
    "RouterCore",
    "Settled",
    "WorkerRow",
    "WorkerState",
]
