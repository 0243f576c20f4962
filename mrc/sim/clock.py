"""Virtual time: what happens next, and what a host's own clock makes of it.

True time is integer nanoseconds from 0 and only goes forward, from event to event. A host never
sees it: it reads a clock of its own that has another origin, can stand still, and can jump.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]


class Timeline:
    """The events to come, in order of time and, within one moment, of their entry."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._heap: list[tuple[int, int, Action, Any]] = []
        self._count = 0

    def at(self, at_ns: int, action: Action, argument: Any = None) -> None:
        """Call `action(argument)` at that time, which is not in the past."""
        self._count += 1
        heappush(self._heap, (at_ns, self._count, action, argument))

    def run_until(self, end_ns: int) -> None:
        """Let everything happen that is due up to and at that time."""
        heap = self._heap
        while heap and heap[0][0] <= end_ns:
            self.now_ns, _, action, argument = heappop(heap)
            action(argument)
        self.now_ns = end_ns

    @property
    def events_done(self) -> int:
        """How many events have happened."""
        return self._count - len(self._heap)

    @property
    def next_ns(self) -> int | None:
        """When the next event is due; None when nothing is left to happen."""
        return self._heap[0][0] if self._heap else None


class HostClock:
    """The monotonic clock of one host, as far as it can be trusted."""

    def __init__(self, origin_ns: int) -> None:
        self._offset_ns = origin_ns
        self._stopped_at_ns: int | None = None

    def read(self, now_ns: int) -> int:
        """Return what the clock shows at a true time."""
        if self._stopped_at_ns is not None:
            return self._stopped_at_ns
        return now_ns + self._offset_ns

    def when(self, reading_ns: int, now_ns: int) -> int | None:
        """Return the true time, now or later, at which it will show that; None while stopped."""
        if self._stopped_at_ns is not None:
            return now_ns if reading_ns <= self._stopped_at_ns else None
        return max(now_ns, reading_ns - self._offset_ns)

    def stop(self, now_ns: int) -> None:
        """Stand still from now on."""
        self._stopped_at_ns = self.read(now_ns)

    def go_on(self, now_ns: int) -> None:
        """Run again, from what it shows; the time it stood still is lost to it."""
        if self._stopped_at_ns is not None:
            self._offset_ns = self._stopped_at_ns - now_ns
            self._stopped_at_ns = None

    def jump(self, by_ns: int) -> None:
        """Show that much more, or less, at once."""
        self._offset_ns += by_ns
        if self._stopped_at_ns is not None:
            self._stopped_at_ns += by_ns
