"""What a side does in a round of a test, as those who drive it see it; and waiting with a deadline.

A kind of test is a module with two of these, one a side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from mrc.cli.failures import PeerSilent
from mrc.units import format_ns

_T = TypeVar("_T")
_LOOKS = 4
"""How often within a time-out progress is looked at."""


class Part(Protocol):
    """One side's work in one round."""

    @property
    def lane_operations(self) -> list[int]:
        """Messages of this side that are done, by lane."""

    async def run(self) -> None:
        """Work until the round's operations are done, or it is stopped and all is placed."""

    def stop(self) -> None:
        """Begin nothing new."""


async def together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all at once; the first that fails ends the others, and its error is raised as it is."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ticks(interval_s: float, end: asyncio.Future[Any]) -> AsyncIterator[None]:
    """Yield at regular times until a future is done.

    After a pause it goes on from there, rather than make up for what was missed.
    """
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    while True:
        due_s = max(due_s + interval_s, loop.time())
        await asyncio.wait((end,), timeout=due_s - loop.time())
        if end.done():
            return
        yield


async def within(timeout_s: float, work: Awaitable[_T], what: str, peer: str) -> _T:
    """Wait for an answer.

    Raises:
        PeerSilent: it did not come in time.
    """
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            # What was waited for had a time-out of its own.
            raise
        raise PeerSilent(
            f"{peer}: {what} did not come within {timeout_s:g} s", peer=peer
        ) from error


async def while_progressing(
    work: Awaitable[_T],
    progress: Callable[[], int],
    timeout_s: float,
    *,
    what: str,
    peer: str,
) -> _T:
    """Wait for work as long as bytes move.

    Args:
        work: to be done.
        progress: bytes moved so far.
        timeout_s: how long they may stand still.
        what: is waited for.
        peer: who would have to do its part.

    Raises:
        PeerSilent: they stood still for so long.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    seen, moved_s = progress(), loop.time()
    try:
        while not (await asyncio.wait((task,), timeout=timeout_s / _LOOKS))[0]:
            now_s = loop.time()
            if progress() != seen:
                seen, moved_s = progress(), now_s
            elif now_s - moved_s >= timeout_s:
                still = format_ns((now_s - moved_s) * 1e9)
                raise PeerSilent(
                    f"{peer}: no progress for {still} in {what}; {seen:,} bytes until then",
                    peer=peer,
                )
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
