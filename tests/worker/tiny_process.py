"""A worker process with the tiny model: `python -m tests.worker.tiny_process STEP_MS [fail] [drain=S]`.

Prints what the real one prints. With `fail` every step raises.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from trieway.serving.chat_template import ChatTemplate
from trieway.serving.config import WorkerConfig
from trieway.serving.config_load import load as effective
from trieway.worker.assembly import Model
from trieway.worker.core.sequence import Work
from trieway.worker.main import run_worker

from .fakes import TEMPLATE, FakeCodec, FakeRunner


def load(config: WorkerConfig) -> Model:
    runner = FakeRunner(config.kv_tokens)
    step_s = float(sys.argv[1]) / 1000

    def slow(work: Sequence[Work]) -> Exception | None:
        time.sleep(step_s)
        return RuntimeError("lost device") if "fail" in sys.argv else None

    runner.fault = slow
    return Model(
        name="tiny",
        codec=FakeCodec(),
        runner=runner,
        template=ChatTemplate(TEMPLATE, "", "<|end|>"),
        weights_digest="none",
        context_tokens=4096,
    )


if __name__ == "__main__":
    drain = next((float(word[6:]) for word in sys.argv if word.startswith("drain=")), 20.0)
    settings = {"port": "0", "kv_tokens": "4096", "drain_timeout_s": str(drain)}
    sys.exit(run_worker(effective(WorkerConfig, flags=settings, environ=os.environ), load))
