"""What coroutines of one loop wait for: a signal, or the next item of a queue that can fail.

There are several of both to a queue pair, and thousands of queue pairs: they hold lists, which cost
nothing while they are empty, where those of asyncio hold a deque of 700 bytes.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Signal:
    """Is set or not, and can be waited for: an `asyncio.Event` of a tenth of the size."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        """Tell whether it was set since it was cleared last."""
        return self._is_set

    def set(self) -> None:
        """Wake all that wait, and whoever comes until it is cleared."""
        self._is_set = True
        while self._waiting:
            _wake_first(self._waiting)

    def clear(self) -> None:
        """Let whoever comes from now on wait."""
        self._is_set = False

    async def wait(self) -> None:
        """Return when it is set, or was when it woke us."""
        if not self._is_set:
            await _turn(self._waiting)


class Mailbox(Generic[T]):
    """Items in order, first come first served, until `fail` is called.

    Items already inside are still handed out after a failure.
    """

    __slots__ = ("_error", "_items", "_waiting")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item and wake one waiter."""
        self._items.append(item)
        _wake_first(self._waiting)

    def fail(self, error: BaseException) -> None:
        """Make all present and future waiters raise, once the items inside are taken."""
        if self._error is None:
            self._error = error
        while self._waiting:
            _wake_first(self._waiting)

    async def get(self) -> T:
        """Return the next item, waiting for it.

        Raises:
            BaseException: whatever `fail` was given.
        """
        while not self._items:
            if self._error is not None:
                raise self._error.with_traceback(None)
            await _turn(self._waiting)
        return self._items.pop(0)


async def _turn(waiting: list[asyncio.Future[None]]) -> None:
    """Wait for one's turn; who is cancelled when it has come leaves it to the next."""
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.append(turn)
    try:
        await turn
    except asyncio.CancelledError:
        if turn in waiting:
            waiting.remove(turn)
        elif not turn.cancelled():
            _wake_first(waiting)
        raise


def _wake_first(waiting: list[asyncio.Future[None]]) -> None:
    """Wake the first that still waits."""
    while waiting:
        waiter = waiting.pop(0)
        if not waiter.done():
            waiter.set_result(None)
            return
