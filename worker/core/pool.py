"""The page pool: who owns each page of KV memory.

Keeps true: every page is free, running (private to one request) or cached (the radix cache's), exactly one of them;
free + running + cached = total. Does not know tokens, requests or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

FREE, RUNNING, CACHED = 0, 1, 2


class PagePool:
    """Page ids 0 .. pages - 1. Last freed is first reused, which keeps a small working set warm."""

    def __init__(self, pages: int, page_size: int) -> None:
        assert pages > 0
        assert page_size > 0
        self.pages = pages
        self.page_size = page_size
        self.running = 0
        self.cached = 0
        self._free = list(range(pages - 1, -1, -1))
        self._state = bytearray(pages)

    @property
    def free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free pages as running ones. The caller made sure that there are so many."""
        assert 0 <= count <= len(self._free), f"asked for {count} pages, {len(self._free)} are free"
        if not count:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        for page in taken:
            self._state[page] = RUNNING
        self.running += count
        return taken

    def adopt(self, pages: Sequence[int]) -> None:
        """Running pages become the cache's."""
        self._move(pages, RUNNING, CACHED)
        self.running -= len(pages)
        self.cached += len(pages)

    def free_running(self, pages: Sequence[int]) -> None:
        self._move(pages, RUNNING, FREE)
        self.running -= len(pages)
        self._free.extend(pages)

    def free_cached(self, pages: Sequence[int]) -> None:
        self._move(pages, CACHED, FREE)
        self.cached -= len(pages)
        self._free.extend(pages)

    def _move(self, pages: Sequence[int], before: int, after: int) -> None:
        state = self._state
        for page in pages:
            assert state[page] == before, f"page {page} is in state {state[page]}, not {before}"
            state[page] = after

    def owner(self, page: int) -> int:
        """FREE, RUNNING or CACHED."""
        return self._state[page]

    def check(self) -> None:
        assert len(self._free) + self.running + self.cached == self.pages
        assert len(set(self._free)) == len(self._free)
        assert all(self._state[page] == FREE for page in self._free)
        assert self._state.count(FREE) == len(self._free)
        assert self._state.count(RUNNING) == self.running
        assert self._state.count(CACHED) == self.cached
