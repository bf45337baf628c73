"""The worker's own speed, measured from plan to commit.

Keeps true: a rate is 0 until it has been measured, and forgets with each step, so that it follows the machine. Does not
know clocks: durations come in.
"""

from __future__ import annotations

FORGET_PREFILL = 0.9
"""What of the past stays with each prefill step: about ten steps count."""
FORGET_DECODE = 0.95


class StepRates:
    def __init__(self) -> None:
        self.decode_step_s = 0.0
        self._prefill_tokens = 0.0
        self._prefill_s = 0.0

    def observe(self, prefill_tokens: int, decode_tokens: int, duration_s: float) -> None:
        """One step. In a mixed one the decodes are taken at their known cost, the rest is prefill."""
        if duration_s <= 0.0:
            return
        if prefill_tokens:
            alone = duration_s - (self.decode_step_s if decode_tokens else 0.0)
            spent = max(alone, duration_s * 0.1)
            self._prefill_tokens = self._prefill_tokens * FORGET_PREFILL + prefill_tokens
            self._prefill_s = self._prefill_s * FORGET_PREFILL + spent
        elif decode_tokens:
            if not self.decode_step_s:
                self.decode_step_s = duration_s
            self.decode_step_s += (duration_s - self.decode_step_s) * (1.0 - FORGET_DECODE)

    @property
    def prefill_tokens_per_s(self) -> float:
        return self._prefill_tokens / self._prefill_s if self._prefill_s else 0.0

    def seconds_for(self, prefill_tokens: int) -> float | None:
        """How long so many tokens take; None before any was measured."""
        rate = self.prefill_tokens_per_s
        return prefill_tokens / rate if rate else None
