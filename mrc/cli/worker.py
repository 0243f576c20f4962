"""Threads for work that blocks: disks, digests, pipes.

The threads are daemons on purpose. A disk or a pipe can block for ever; Ctrl-C must end the
command all the same, and the standard executors wait for their threads at exit.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

DRAIN_S = 5.0
"""How long work on the disk may take to end when a transfer fails; a hung disk takes for ever."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Worker:
    """Runs functions in threads of its own; with one thread, in the order they were given.

    Args:
        name: shown in stack dumps.
        threads: how many run at once.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = threads
        for index in range(threads):
            threading.Thread(
                target=_work, args=(self._jobs,), name=f"mrc-{name}-{index}", daemon=True
            ).start()

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `function` in a thread and return what it returns, or raise what it raises.

        Cancelling stops waiting: a job that has begun runs on, one still queued is skipped.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def job() -> None:
            if future.cancelled():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - belongs to whoever waits for the job
                _deliver(loop, future, future.set_exception, error)
            else:
                _deliver(loop, future, future.set_result, result)

        self._jobs.put(job)
        return await future

    def close(self, last: Callable[[], None] | None = None) -> None:
        """Let the threads end when the jobs they have are done; waits for nothing.

        Args:
            last: called behind those jobs, to let go of what they use.
        """
        if last is not None:
            self._jobs.put(last)
        for _ in range(self._threads):
            self._jobs.put(None)


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """Run jobs until told to end."""
    while (job := jobs.get()) is not None:
        job()
        # A job holds buffers; do not keep them while waiting for the next one.
        del job


def _deliver(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[_T],
    setter: Callable[[Any], object],
    value: object,
) -> None:
    """Hand a result or an exception to whoever waits, in the loop's own thread."""

    def deliver() -> None:
        if not future.done():
            setter(value)

    try:
        loop.call_soon_threadsafe(deliver)
    except RuntimeError:
        # The loop has been closed: nobody waits any more.
        return
