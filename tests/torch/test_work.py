"""The handle of an operation, whichever thread comes first."""

from __future__ import annotations

import threading
from types import TracebackType

import pytest
import torch

from mrc.torch import work


@pytest.mark.parametrize("over_first", [False, True])
def test_a_future_is_ended_once(monkeypatch: pytest.MonkeyPatch, *, over_first: bool) -> None:
    """The operation may be over in the moment in which its future is asked for."""
    told: list[None] = []
    tell = work.MrcWork.tell

    def count(one: work.MrcWork) -> None:
        told.append(None)
        tell(one)

    monkeypatch.setattr(work.MrcWork, "tell", count)
    tensors = [torch.ones(3)]
    handle = work.MrcWork("all_reduce", tensors)
    if over_first:
        handle.finish(None, lambda: None)
    else:
        after = _FinishAfter(handle)
        monkeypatch.setattr(handle, "_lock", after)
    future = handle.get_future()
    work.TELLERS.wait(10)
    assert future.wait()[0] is tensors[0]
    assert len(told) == 1


class _FinishAfter:
    """A lock; when it is let go for the first time, the other thread gets its turn."""

    def __init__(self, handle: work.MrcWork) -> None:
        self._lock = threading.RLock()
        self._handle: work.MrcWork | None = handle

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.finish(None, lambda: None)
