"""An event loop in a thread of its own, for callers that have none.

It computes nothing of the caller's, and so keeps this rank alive for the others meanwhile.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mrc.collectives.failures import CommunicatorClosed

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0
"""For what is under way at the end of the process; then it ends all the same."""


class LoopThread:
    """An event loop in a thread, which ends with `stop`, or with the process."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name="mrc-collectives", daemon=True)
        self._lock = threading.Lock()
        self._stopped = False
        """What is handed over before, under the lock, is begun before the loop ends."""
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def call(self, doing: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine there, and wait for what it returns.

        Raises:
            CommunicatorClosed: the thread has ended, or does so meanwhile.
            TimeoutError: it is not over within `timeout_s`; it is cancelled.
        """
        with self._lock:
            if self._stopped:
                doing.close()
                raise CommunicatorClosed("the communicator is closed")
            future = asyncio.run_coroutine_threadsafe(doing, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError as error:
            raise CommunicatorClosed("the communicator was closed meanwhile") from error
        except BaseException:
            # Whoever presses Ctrl-C waits no longer.
            future.cancel()
            raise

    def soon(self, what: Callable[[], None]) -> None:
        """Call something there without waiting for it, in the order of these calls.

        Raises:
            CommunicatorClosed: the thread has ended.
        """
        with self._lock:
            if self._stopped:
                raise CommunicatorClosed("the communicator is closed")
            self._loop.call_soon_threadsafe(what)

    def stop(self) -> None:
        """End the loop and the thread. Twice is once."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's where it can be imported, asyncio's where not."""
    try:
        import uvloop  # noqa: PLC0415 - optional: everything works without it
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
