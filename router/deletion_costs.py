"""`python -m trieway.router.deletion_costs`: keeps the pod deletion costs of a Deployment's workers true.

Each round it lists the workers' pods, asks every worker what its cache is worth (`GET /cache/worth`), and writes the
costs that are off, so that Kubernetes takes the cheapest cache when it scales in. A process of its own, with a right
that routers, which strangers reach, need not have.
Keeps true: a round writes a bounded number of costs, whatever the fleet's size; a worker that does not answer keeps the
worth it told last for a while; two keepers at once agree and so write nothing twice; the API server's trouble ends a
round, never the process. Does not know how costs follow from worths (core/deletion_costs.py).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from trieway.meta_tree.chain import FleetKey
from trieway.router.core.deletion_costs import Cache, changes
from trieway.router.kubernetes_http import ApiError, Server, namespace_of_pod
from trieway.router.kubernetes_pods import KubernetesPods, Pod
from trieway.serving.auth import read_fleet_secret
from trieway.serving.config import ConfigError
from trieway.serving.logs import setup_logging

log = logging.getLogger(__name__)

ASKS_MAX = 32
"""Workers asked at the same time."""
ANSWER_MAX_BYTES = 65_536
BACKOFF_MAX = 8
"""After failures a round waits up to so many times its usual pause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Seconds between rounds and that a worker may take to answer; writes in a round; how long a worth is remembered.

    Kubernetes asks not to update this annotation often: at most `writes_max / every_s` writes a second, and none while
    nothing changes by a step.
    """

    every_s: float = 60.0
    answer_timeout_s: float = 5.0
    writes_max: int = 20
    remember_s: float = 600.0


class _Worth(msgspec.Struct):
    worth_tokens: float


class Keeper:
    """Open it inside the event loop; `close` ends its connections. `rng` spreads the rounds of several keepers."""

    def __init__(
        self,
        pods: KubernetesPods,
        feed_token: str,
        rng: random.Random,
        *,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods = pods
        self._headers = {"authorization": f"Bearer {feed_token}"}
        self._rng = rng
        self._pace = pace or Pace()
        self._clock = clock
        self._told: dict[str, tuple[float, float]] = {}
        """By uid: the worth a pod told last, and when."""
        self._failures = 0
        self._workers: aiohttp.ClientSession | None = None

    async def run(self) -> None:
        """Rounds for ever."""
        while True:
            try:
                await self.round()
                self._failures = 0
            except ApiError as error:
                self._failures += 1
                level = logging.ERROR if self._failures in (1, 10) or self._failures % 100 == 0 else logging.DEBUG
                log.log(level, "pod deletion costs stay as they are: %s", error)
            await asyncio.sleep(self.pause_s())

    def pause_s(self) -> float:
        """Until the next round: longer after failures, and never quite the same."""
        return self._pace.every_s * min(2.0 ** min(self._failures, 16), BACKOFF_MAX) * self._rng.uniform(0.9, 1.1)

    async def round(self) -> int:
        """Looks once, and writes what is off; how many costs were written. Raises ApiError."""
        pods = await self._pods.list()
        worths = await self._ask_all(pods)
        caches = [Cache(pod=pod.uid, model=pod.model, worth_tokens=worths[pod.uid], cost=pod.cost) for pod in pods]
        by_uid = {pod.uid: pod for pod in pods}
        written = 0
        for uid, cost in changes(caches, writes_max=self._pace.writes_max).items():
            pod = by_uid[uid]
            if await self._pods.set_cost(pod, cost):
                written += 1
                log.info("the cache of %s is worth %d of the dearest one's 1000 (was %s)", pod.name, cost, pod.cost)
            else:
                log.debug("pod %s left or changed before its cost was written", pod.name)
        return written

    async def _ask_all(self, pods: Sequence[Pod]) -> dict[str, float | None]:
        """By uid what each pod says, or said lately."""
        gate = asyncio.Semaphore(ASKS_MAX)

        async def ask(pod: Pod) -> None:
            async with gate:
                worth = await self._ask(pod)
            if worth is not None:
                self._told[pod.uid] = (worth, self._clock())

        await asyncio.gather(*(ask(pod) for pod in pods))
        oldest = self._clock() - self._pace.remember_s
        there = {pod.uid for pod in pods}
        self._told = {uid: told for uid, told in self._told.items() if uid in there and told[1] >= oldest}
        return {uid: self._told[uid][0] if uid in self._told else None for uid in there}

    async def _ask(self, pod: Pod) -> float | None:
        """None: no answer, or none that can be used (a worker of an older version)."""
        if self._workers is None:
            self._workers = aiohttp.ClientSession(trust_env=False, connector=aiohttp.TCPConnector(limit=ASKS_MAX))
        timeout = aiohttp.ClientTimeout(total=self._pace.answer_timeout_s)
        try:
            async with self._workers.get(
                f"{pod.url}/cache/worth", headers=self._headers, timeout=timeout, allow_redirects=False
            ) as answer:
                body = await answer.content.read(ANSWER_MAX_BYTES)
                if answer.status == 200:
                    worth = msgspec.json.decode(body, type=_Worth).worth_tokens
                    return worth if 0.0 <= worth < math.inf else None
                log.debug("pod %s did not say its worth: it answered %d", pod.name, answer.status)
        except (aiohttp.ClientError, msgspec.MsgspecError, TimeoutError, OSError) as error:
            log.debug("pod %s did not say its worth: %s", pod.name, error or type(error).__name__)
        return None

    async def close(self) -> None:
        """Ends its connections."""
        await self._pods.close()
        if self._workers is not None:
            await self._workers.close()
            self._workers = None


async def keep(keeper: Keeper) -> None:
    """Rounds until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(keeper.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        log.info("ends; the costs stay as they are")
    finally:
        await keeper.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until a signal; 2 for a command line that makes no sense."""
    asked = _parser().parse_args(arguments)
    try:
        namespace = asked.kubernetes_namespace or namespace_of_pod()
        if namespace is None:
            raise ConfigError("outside a pod --kubernetes-namespace is needed")
        server = Server.found(url=asked.kubernetes_api)
        token = FleetKey.from_secret(read_fleet_secret(asked.fleet_secret_file)).feed_token
    except ConfigError as error:
        print(f"trieway: {error}", file=sys.stderr)
        return 2
    setup_logging(asked.log_level, asked.log_format, process="deletion-costs")
    asyncio.run(_main(server, namespace, token, asked))
    return 0


async def _main(server: Server, namespace: str, token: str, asked: argparse.Namespace) -> None:
    pace = Pace(every_s=asked.every_s, writes_max=asked.writes_max)
    await keep(Keeper(KubernetesPods(server, namespace, asked.selector), token, random.Random(), pace=pace))


def _parser() -> argparse.ArgumentParser:
    told, usual = (__doc__ or "").splitlines()[0], Pace()
    parser = argparse.ArgumentParser(prog="python -m trieway.router.deletion_costs", description=told)
    parser.add_argument("--selector", required=True, metavar="LABELS", help="labels of the workers' pods, `a=b,c=d`")
    parser.add_argument("--kubernetes-namespace", metavar="NAME", help="their namespace (default: the pod's own)")
    parser.add_argument("--kubernetes-api", metavar="URL", help="the API server (default: the pod's own cluster)")
    parser.add_argument("--fleet-secret-file", type=Path, metavar="FILE", help="the fleet's secret")
    parser.add_argument("--every-s", type=_positive, default=usual.every_s, help="time between rounds (default: 60)")
    parser.add_argument("--writes-max", type=int, default=usual.writes_max, help="writes in a round (default: 20)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--log-format", choices=("plain", "json"), default="plain")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
