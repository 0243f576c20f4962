"""What torch gets for an operation under way: a `Work` that waits, and a future."""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Tellers:
    """Threads in which futures end, and so run their callbacks.

    One may wait for another operation, as PowerSGD's do, so the loop's thread is no place for them,
    nor would one other thread do for all.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._at_work: set[int] = set()
        self._starting = 0

    def start(self, tell: Callable[[], None]) -> None:
        """Begin a thread that does something; its starter does not even wait until it runs."""
        with self._changed:
            self._starting += 1
        _thread.start_new_thread(self._run, (tell,))

    def _run(self, tell: Callable[[], None]) -> None:
        with self._changed:
            self._starting -= 1
            self._at_work.add(threading.get_ident())
        try:
            tell()
        finally:
            with self._changed:
                self._at_work.remove(threading.get_ident())
                self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait for all but the thread that calls this.

        An interpreter that ends while one is in torch's C++ is aborted.
        """
        own = {threading.get_ident()}
        with self._changed:
            self._changed.wait_for(lambda: not self._starting and self._at_work <= own, timeout_s)


TELLERS = Tellers()


class MrcWork(dist.Work):
    """One operation of a process group; done, it has its tensors or what went wrong.

    Args:
        what: it is, for texts.
        tensors: what its future gets.
    """

    def __init__(self, what: str, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.what = what
        self._tensors = list(tensors)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._outcome: torch.futures.Future[Any] | None = None
        self._future: Any = None

    def finish(self, error: BaseException | None, then: Callable[[], None]) -> None:
        """Say that it is over; called in the loop's thread.

        Args:
            error: what went wrong.
            then: what is left to do if nothing did.
        """
        try:
            if error is None:
                then()
        except Exception as failed:  # noqa: BLE001 - whoever waits is told
            error = failed
        if error is not None:
            told = dist.DistBackendError(f"{self.what}: {error}")
            told.__cause__ = error
            self._error = told
        # Of this and `get_future` one finds what the other left, and ends the future.
        with self._lock:
            self._over.set()
            asked = self._outcome is not None
        if asked:
            TELLERS.start(self.tell)

    def tell(self) -> None:
        """End the future."""
        assert self._outcome is not None
        # A callback that fails is its author's concern: the future that it was to make fails.
        with contextlib.suppress(Exception):
            if self._error is None:
                self._outcome.set_result(self._tensors)
            else:
                self._outcome.set_exception(self._error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is over.

        Args:
            timeout: for this wait; none: that of the operation, which always ends it.

        Raises:
            DistBackendError: what went wrong, or it is not over yet; it then goes on.
        """
        seconds = timeout.total_seconds() if timeout is not None else 0
        if not self._over.wait(seconds if seconds > 0 else None):
            raise dist.DistBackendError(f"{self.what} is not over after {seconds:g} s; it goes on")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Wait: there is no device to do so."""
        self.wait()

    def is_completed(self) -> bool:
        """Tell whether it is over, well or not."""
        return self._over.is_set()

    def is_success(self) -> bool:
        """Tell whether it is over and nothing went wrong."""
        return self._over.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Return what went wrong."""
        return self._error

    def result(self) -> list[Tensor]:
        """Wait, and return its tensors."""
        self.wait()
        return self._tensors

    def get_future(self) -> Any:
        """Return a future of its tensors, which raises what went wrong."""
        with self._lock:
            first = self._outcome is None
            over = self._over.is_set()
            if first:
                self._outcome = torch.futures.Future()
                # `set_exception` is for Python alone: C++, as of DistributedDataParallel, takes the
                # exception for the result. What a callback raises is an error for both.
                self._future = self._outcome.then(torch.futures.Future.value)
        if first and over:
            self.tell()
        return self._future
