"""Policies for comparison that know neither costs nor caches: by a key of the request, or by load and chance.

Keeps true: a key's place is a function of the key and the names of the workers (rendezvous hashing, Thaler and
Ravishankar 1998), so routers agree without talking and only the keys of a worker that leaves move. Remembers nothing.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import ceil

from trieway.meta_tree.ids import WorkerId
from trieway.router.core.values import CostRow, Query

KEY_BLOCKS = 4
"""A prompt's key is its first 256 bytes: a longer one would change while a chat is short, shorter tells less apart."""
LOAD_MAX = 1.25
"""No worker is given more than this many times the mean of open requests (Mirrokni et al. 2018, bounded loads)."""
_MASK = (1 << 64) - 1


class PowerOfTwo:
    """Of two workers drawn at random the one with fewer open requests (Mitzenmacher 2001)."""

    name = "power_of_two"
    weighs_all = True

    def chances(self, rows: Sequence[CostRow], query: Query) -> list[float]:
        count = len(rows)
        if count == 1:
            return [1.0]
        # It wins the pairs with those that have more, and half of those with its equals.
        loads = [row.booked for row in rows]
        wins = [
            sum(0.5 * (other == load) + (other > load) for at, other in enumerate(loads) if at != mine)
            for mine, load in enumerate(loads)
        ]
        return [2.0 * won / (count * (count - 1)) for won in wins]


class ConsistentHash:
    """The worker of the session, or of the prompt's head where there is none; the key's next worker if that is full."""

    name = "consistent_hash"
    weighs_all = True

    def chances(self, rows: Sequence[CostRow], query: Query) -> list[float]:
        most = ceil(LOAD_MAX * (sum(row.booked for row in rows) + 1) / len(rows))
        ranks = _ranks(rows, _session_key(query.session) if query.session is not None else _prompt_key(query))
        return _one(rows, next(at for at in ranks if rows[at].booked < most))


class Session:
    """A session stays with its worker, whatever the load; what has no session goes to the fewest open requests."""

    name = "session"
    weighs_all = True

    def chances(self, rows: Sequence[CostRow], query: Query) -> list[float]:
        if query.session is None:
            least = min(range(len(rows)), key=lambda at: (rows[at].booked, rows[at].last_booked, at))
            return _one(rows, least)
        return _one(rows, _ranks(rows, _session_key(query.session))[0])


def _one(rows: Sequence[CostRow], chosen: int) -> list[float]:
    return [1.0 if at == chosen else 0.0 for at in range(len(rows))]


def _ranks(rows: Sequence[CostRow], key: int) -> list[int]:
    """The rows in the key's own order of workers."""
    return sorted(range(len(rows)), key=lambda at: _mixed(_worker_key(rows[at].worker) ^ key), reverse=True)


def _prompt_key(query: Query) -> int:
    """A chain hash names all the text before it. Prompts of less than a block have one key together."""
    return query.hashes[min(len(query.hashes), KEY_BLOCKS) - 1] if query.hashes else 0


def _session_key(session: str) -> int:
    return _hashed(session.encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=4096)
def _worker_key(worker: WorkerId) -> int:
    return _hashed(worker.encode())


def _hashed(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def _mixed(value: int) -> int:
    """A bijection whose output bits all depend on all input bits (the finaliser of splitmix64, Steele et al. 2014)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
