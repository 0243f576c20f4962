"""Work requests: messages waiting to be sent or acknowledged, and how they are cut into packets."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrc.errors import ConfigError


@dataclass(slots=True, eq=False)
class WorkRequest:
    """One WRITE or WRITE-with-Immediate: a message of 1 to 2^32 - 1 bytes."""

    work_id: int
    data: NDArray[np.uint8]
    va: int
    r_key: int
    imm: int | None
    first_psn: int
    packets: int
    msn: int
    """Message number of the queue pair, counted from 1."""
    rqmsn: int
    """WRITE-with-Immediate messages of the queue pair up to and including this one."""

    @property
    def last_psn(self) -> int:
        """PSN of its last packet."""
        return self.first_psn + self.packets - 1


class WorkQueue:
    """Messages in PSN order, from the oldest not acknowledged to the newest posted."""

    def __init__(self) -> None:
        self._queue: list[WorkRequest] = []
        self._recent: WorkRequest | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def clear(self) -> None:
        """Forget all messages."""
        self._queue.clear()
        self._recent = None

    def append(self, work: WorkRequest) -> None:
        """Add the newest message."""
        self._queue.append(work)

    def find(self, psn: int) -> WorkRequest:
        """Return the message that a PSN in flight, or the next new one, belongs to."""
        recent = self._recent
        if recent is not None and recent.first_psn <= psn <= recent.last_psn:
            return recent
        low, high = 0, len(self._queue)
        while low < high:
            middle = (low + high) // 2
            if self._queue[middle].last_psn < psn:
                low = middle + 1
            else:
                high = middle
        self._recent = self._queue[low]
        return self._recent

    def pop_done(self, psn: int) -> list[WorkRequest]:
        """Remove and return the messages that end at or below a PSN."""
        count = 0
        for work in self._queue:
            if work.last_psn > psn:
                break
            count += 1
        if not count:
            return []
        done = self._queue[:count]
        del self._queue[:count]
        self._recent = None
        return done


def checked_integer(name: str, value: Any, highest: int) -> int:
    """Return an integer of any kind, refusing what would only fail later, inside a header."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number <= highest:
        raise ConfigError(f"{name} = {value!r}; must be an integer from 0 to {highest:#x}")
    return number
