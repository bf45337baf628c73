"""What became of each call: the one form of result that the HTTP runner and the simulator both write.

Keeps true: times are seconds from the run's start on one clock (for the simulator, the virtual one), in the order due,
sent, first, last; latency counts from `due_s`, so a generator that lags hides nothing. Does not know how the calls were
sent, nor what a report says of them. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
"""The status of a call that was answered to its end; any other status is the kind of its error, fit for a label."""
ABANDONED = "abandoned"
"""Never sent: a call that it waits for had failed."""
INTERRUPTED = "interrupted"
"""In flight or not yet sent when the run was cut short; left out of every figure."""

Gaps = tuple[tuple[float, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One call. What nobody said (a server without usage fields, an error before the first byte) is None."""

    call: str
    session: str
    worker: str | None
    """As the router named it; None: no worker, or a server that does not say."""
    due_s: float
    """When the workload wanted it sent."""
    sent_s: float | None
    first_s: float | None
    """First token."""
    last_s: float | None
    """Last token, or the moment of the error."""
    prompt_tokens: int | None
    cached_tokens: int | None
    """Reported by the worker."""
    predicted_tokens: int | None
    """What the router expected to be reused."""
    output_tokens: int
    gaps: Gaps = ()
    """Waits between tokens as (seconds, how many tokens came after such a wait), in order; the first token has none."""
    status: str = OK
    tenant: str | None = None
    attempts: int = 1
    warmup: bool = False
    """Left out of every figure."""

    @property
    def ok(self) -> bool:
        """Answered to its end."""
        return self.status == OK

    @property
    def ttft_s(self) -> float | None:
        """From the due time to the first token."""
        return None if self.first_s is None else self.first_s - self.due_s

    @property
    def e2e_s(self) -> float | None:
        """From the due time to the end."""
        return None if self.last_s is None else self.last_s - self.due_s

    @property
    def lag_s(self) -> float | None:
        """How late the generator itself was."""
        return None if self.sent_s is None else self.sent_s - self.due_s

    def check(self) -> None:
        """Prove what the module promises."""
        times = [time for time in (self.due_s, self.sent_s, self.first_s, self.last_s) if time is not None]
        assert times == sorted(times), f"{self.call}: times run backwards: {times}"
        assert self.output_tokens >= 0
        assert all(gap >= 0.0 and count > 0 for gap, count in self.gaps), f"{self.call}: a wait is negative"
        assert not self.ok or (self.first_s is not None and self.last_s is not None), f"{self.call}: ok without times"
