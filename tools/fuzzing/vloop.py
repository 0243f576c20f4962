"""An event loop on a virtual clock: a time-out of thirty seconds costs nothing.

For code without sockets and threads: whenever nothing can go on, the clock jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import atexit
import selectors
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

_SECONDS_MAX = 3600.0
"""Nothing that is fuzzed may wait longer for a peer that says nothing."""


class _Clock(selectors.SelectSelector):
    """A selector that lets virtual time pass instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everything waits and nothing is going to happen")
        self.now_s += max(timeout, 0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `run` is the way to use it, as often as wanted. See `virtual_loop`."""

    def __init__(self) -> None:
        self._virtual = _Clock()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual.now_s

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end; fail if that takes an hour, or if tasks are left behind."""
        problems: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: problems.append(context))
        result = self.run_until_complete(asyncio.wait_for(work, _SECONDS_MAX))
        left = asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        if left:
            self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        assert not left, f"tasks left behind: {left}"
        assert not problems, problems
        return result


@cache
def virtual_loop() -> VirtualLoop:
    """Return the one of this process."""
    made = VirtualLoop()
    atexit.register(made.close)
    return made
