"""What a pod does when its worker comes or goes: prefixes pass between it and the other workers of its model.

`python -m trieway.worker.neighbours leave ...` before the worker is told to end: it gives its most valuable prefixes to
its neighbours, serving on, and then turns away what is new. `... arrive ...` after its start: neighbours give it
theirs. For platforms that run hooks beside a server; Ray's replicas do the same by themselves (ray_worker.py).

Keeps true: takes no longer than it is told to, and `leave` no less than the pause in which routers turn away; always
ends with exit code 0, since caches are only caches. Does not know what a prefix is (handover.py).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trieway.meta_tree.chain import FleetKey
from trieway.serving.auth import read_fleet_secret
from trieway.serving.config import ConfigError
from trieway.worker.core.legacy import GIVERS_MAX, SHARE_OF_NEWCOMER, SHARE_OF_TAKER, TAKERS_MAX

ANSWER_TIMEOUT_S = 3.0
"""Beyond the time that an order may take."""
POLL_S = 0.5
_FAILURES = (OSError, urllib.error.URLError, http.client.HTTPException, ValueError)


def neighbours(hosts: Iterable[str], port: int, own: str) -> list[str]:
    """URLs of all addresses behind these names, but for the own one; what does not resolve is nobody."""
    found: set[str] = set()
    for host in hosts:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            continue
        found |= {str(info[4][0]) for info in infos}
    found.discard(own)
    return [f"http://{f'[{address}]' if ':' in address else address}:{port}" for address in sorted(found)]


def order(
    giver: str,
    takers: Sequence[str],
    token: str,
    timeout_s: float,
    share: float = SHARE_OF_TAKER,
    *,
    drain: bool = False,
) -> str:
    """Has `giver` give prefixes to `takers`, up to a share of each one's pool, and `drain`, take no request from then
    on; what came of it, in words. Never raises for what the network does."""
    body = json.dumps({"to": list(takers), "share": share, "timeout_s": timeout_s, "drain": drain}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{giver}/cache/handover", body, headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=timeout_s + ANSWER_TIMEOUT_S) as answer:  # noqa: S310
            told = json.loads(answer.read(65536))
            return f"{giver} gave {sum(told['given'].values())} prefixes"
    except (*_FAILURES, KeyError, TypeError, AttributeError) as error:
        return f"{giver} gave nothing: {error}"


def leave(own_url: str, others: Sequence[str], token: str, timeout_s: float, *, drain: bool = False) -> list[str]:
    """Gives the own worker's prefixes away; with `drain` it then turns away what is new. What happened, in lines."""
    if not others:
        return ["no other worker: prefixes go with this one"]
    return [order(own_url, others[:TAKERS_MAX], token, timeout_s, drain=drain)]


def arrive(own_url: str, others: Sequence[str], token: str, timeout_s: float) -> list[str]:
    """Has others give theirs, all at once: the newcomer takes from each in turn, until it has its share. Of many, as
    many as may give, from one on that differs from newcomer to newcomer."""
    if not others:
        return ["no other worker: nothing to begin with"]
    first = zlib.crc32(own_url.encode()) % len(others)
    givers = [*others[first:], *others[:first]][:GIVERS_MAX]

    def ask(giver: str) -> str:
        return order(giver, [own_url], token, timeout_s, SHARE_OF_NEWCOMER)

    with ThreadPoolExecutor(max_workers=len(givers)) as pool:
        return list(pool.map(ask, givers))


def wait_ready(url: str, timeout_s: float) -> bool:
    """Until the own worker serves, at most `timeout_s`."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=ANSWER_TIMEOUT_S):  # noqa: S310
                return True
        except _FAILURES:
            time.sleep(POLL_S)
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one hook; 0 whatever came of it, 2 for a command line that makes no sense."""
    asked = _parser().parse_args(arguments)
    began = time.monotonic()
    host = f"[{asked.address}]" if ":" in asked.address else asked.address
    own_url = f"http://{host}:{asked.port}"
    try:
        token = FleetKey.from_secret(read_fleet_secret(asked.fleet_secret_file)).feed_token
        if asked.hook == "leave":
            others = neighbours(asked.peers, asked.port, asked.address)
            told = leave(own_url, others, token, asked.timeout_s, drain=True)
        elif wait_ready(own_url, asked.ready_timeout_s):
            others = neighbours(asked.peers, asked.port, asked.address)
            told = arrive(own_url, others, token, asked.timeout_s)
        else:
            told = [f"not ready within {asked.ready_timeout_s:g} s: not warmed"]
        print(*told, sep="\n", flush=True)
    except ConfigError as error:
        print(f"trieway: {error}", file=sys.stderr)
    finally:
        time.sleep(max(0.0, asked.pause_s - (time.monotonic() - began)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trieway.worker.neighbours", description=__doc__.splitlines()[0])
    parser.add_argument("hook", choices=("arrive", "leave"))
    parser.add_argument("--peers", nargs="+", required=True, metavar="HOST", help="names behind which the workers are")
    own = os.environ.get("POD_IP")
    parser.add_argument("--address", default=own, required=own is None, help="its own address (default: POD_IP)")
    parser.add_argument("--port", type=int, required=True, help="port of all of them")
    parser.add_argument("--fleet-secret-file", type=Path, metavar="FILE")
    parser.add_argument("--timeout-s", type=float, default=20.0, help="longest hand-over (default: 20)")
    parser.add_argument("--pause-s", type=float, default=0.0, help="take at least so long (default: 0)")
    parser.add_argument("--ready-timeout-s", type=float, default=1200.0, help="arrive: longest wait for the worker")
    return parser


if __name__ == "__main__":
    sys.exit(main())
