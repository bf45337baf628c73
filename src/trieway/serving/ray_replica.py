"""What a router's and a worker's replica on Ray Serve have in common: a server process, its entry on the board, health.

Keeps true: requests never pass the replica, only its child's port; the entry says `ready` only while the child serves
and leaves the board when the replica does; a child that dies takes the replica with it at once, so that Serve starts
another; while Ray's head is away the child serves on. Does not know what is served.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence

import aiohttp
import msgspec
import ray
from ray import serve

from trieway.serving.ray_board import Board, BoardAway
from trieway.serving.ray_child import Child
from trieway.serving.ray_entries import Entry, EntryTable, Role, State

BEAT_S = 1.0
HEALTH_TIMEOUT_S = 5.0
LEAVE_GRACE_S = 5.0
"""Longer than the child's own drain timeout, before it is killed."""


def node_address() -> str:
    """The address of this node, as Ray knows it."""
    return str(ray.util.get_node_ip_address())


def _reachable(url: str) -> str:
    """A server that listens on every address is reached at its node's."""
    address = node_address()
    host = f"[{address}]" if ":" in address else address
    return url.replace("//0.0.0.0:", f"//{host}:").replace("//[::]:", f"//{host}:")


class Replica:
    """Base of both. Created by Serve in the replica's process."""

    def __init__(
        self,
        role: Role,
        fleet: str,
        model: str,
        version: str,
        drain_timeout_s: float,
        heard: Callable[[EntryTable], None] | None = None,
        token: str = "",
    ) -> None:
        context = serve.get_replica_context()
        self.board = Board(fleet)
        self.table = EntryTable()
        self._drain_timeout_s = drain_timeout_s
        self._heard = heard
        self.token = token
        self._leaving = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._read = threading.Event()
        self.child: Child | None = None
        self.entry = Entry(
            role=role,
            replica=context.replica_id.unique_id,
            state="starting",
            url="",
            probe_url="",
            model=model,
            node=node_address(),
            pid=0,
            born=int(time.time()),
            beat=0,
            version=version,
        )
        self._beater = threading.Thread(target=self._beat, name="trieway-board", daemon=True)
        self._beater.start()

    def start(
        self, command: Sequence[str], *, ready_timeout_s: float, before_ready: Callable[[], None] = lambda: None
    ) -> None:
        """Starts the server, waits until it serves, does `before_ready`, and says so. Raises ChildFailed."""
        self.child = Child(command, ended=self._child_ended)
        self.child.wait_ready(ready_timeout_s)
        self.child.url, self.child.own_url = _reachable(self.child.url), _reachable(self.child.own_url)
        before_ready()
        self.say("ready", url=self.child.url, probe_url=self.child.own_url, pid=self.child.pid)

    def say(self, state: State, **fields: str | int) -> None:
        """Changes the entry and publishes it soon."""
        with self._lock:
            self.entry = msgspec.structs.replace(self.entry, state=state, **fields)
        self._wake.set()

    def wait_read(self, timeout_s: float) -> bool:
        """Blocks until the board was read once."""
        return self._read.wait(timeout_s)

    async def check_health(self) -> None:
        """Asks the child's own port. Raises where it does not answer well: Serve then replaces the replica."""
        child = self.child
        assert child is not None, "a replica is asked only once it serves"
        if not child.alive:
            raise RuntimeError("the server process has ended")
        timeout = aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(child.own_url + "/livez") as answer:
            if answer.status != 200:
                raise RuntimeError(f"/livez answered {answer.status}")

    async def ask(self, path: str) -> dict[str, float]:
        """What the child answers to a GET that needs the fleet's token or none. Raises aiohttp.ClientError."""
        assert self.child is not None
        timeout = aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S)
        headers = {"authorization": f"Bearer {self.token}"}
        session = aiohttp.ClientSession(timeout=timeout, headers=headers)
        async with session as http, http.get(self.child.own_url + path) as answer:
            answer.raise_for_status()
            found: dict[str, float] = await answer.json()
            return found

    async def leave(self, before: Callable[[], None] = lambda: None) -> None:
        """Does `before` (in a thread), says on the board that it drains, lets the child end its requests, and ends
        it."""
        self._leaving = True
        await asyncio.to_thread(self._leave, before)

    def _leave(self, before: Callable[[], None]) -> None:
        child = self.child
        try:
            before()
        finally:
            self.say("draining")
            if child is not None:
                child.ask_to_leave()
                if not child.wait_gone(self._drain_timeout_s + LEAVE_GRACE_S):
                    child.kill()
                    child.wait_gone(LEAVE_GRACE_S)
            self._closed.set()
            self._wake.set()
            self._beater.join(2 * BEAT_S)

    def _child_ended(self, code: int) -> None:
        ready = self.entry.state != "starting"
        if ready and not self._leaving:
            print(f"trieway: the server process ended with {code}: this replica ends too", flush=True)
            os._exit(1)

    def _beat(self) -> None:
        """The board's thread: writes this replica's entry, reads all others."""
        while not self._closed.is_set():
            with self._lock:
                self.entry = msgspec.structs.replace(self.entry, beat=self.entry.beat + 1)
                entry = self.entry
            self._wake.clear()
            try:
                self.board.put(entry)
                self.table.read(self.board.entries(), time.monotonic())
                self._sweep()
                self._read.set()
                if self._heard is not None:
                    self._heard(self.table)
            except BoardAway as error:
                print(f"trieway: the board is away, what was read last stays: {error}", flush=True)
            self._wake.wait(BEAT_S)
        try:
            self.board.remove(self.entry)
        except BoardAway:
            pass  # readers see that it no longer beats

    def _sweep(self) -> None:
        """The oldest of the living removes what the dead left."""
        living = self.table.alive()
        if living and living[0].replica == self.entry.replica:
            for entry in self.table.dead():
                self.board.remove(entry)
