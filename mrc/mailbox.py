"""A queue for one event loop that can fail: who waits on it gets the reason instead of hanging."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items in order, first come first served, until `fail` is called.

    Items already inside are still handed out after a failure.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item and wake one waiter."""
        self._items.append(item)
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Make all present and future waiters raise, once the items inside are taken."""
        if self._error is None:
            self._error = error
        while self._waiting:
            self._wake()

    async def get(self) -> T:
        """Return the next item, waiting for it.

        Raises:
            BaseException: whatever `fail` was given.
        """
        while not self._items:
            if self._error is not None:
                raise self._error
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()
                raise
        return self._items.popleft()

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
