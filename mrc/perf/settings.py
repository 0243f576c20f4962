"""What a run measures: kinds, sizes, how many, how long; and the limits of all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

MESSAGE_BYTES_MAX = (1 << 32) - 1
"""One WRITE of MRC."""
QPS_MAX = 128
"""Queue pairs of one client that carry data: 16 KiB each at the listener, behind a lock what
OpenSSL keeps as well, and their buffers."""
BUFFER_BYTES_DEFAULT = 64 << 20
"""More than the caches of most processors, so that figures are of memory, not of one message."""
BUFFER_BYTES_MAX = 16 << 30
"""Of one queue pair; a listener also looks at the memory it has: `memory.check_room`."""
DEPTH_MAX = 4096
"""Writes outstanding a queue pair: about 2 KiB each at the side that posts them."""
WRITES_MAX = 1 << 16
"""The same of all queue pairs together: 128 MiB."""
DEPTH_DEFAULT = 128
"""As perftest's."""
OUTSTANDING_BYTES_MAX = 64 << 20
"""Of all queue pairs together: many windows. What is outstanding when the time of a test is up has
to be carried all the same, so more of it would make the test longer than it was to be."""
_DEPTH_MIN = 2
"""One write under way and the next behind it, however large they are."""
OPERATIONS_MAX = 1 << 40
DURATION_S_DEFAULT = (5.0, 2.0)
"""Of a test: of a single one, and of one of many that are compared."""
SIZE_DEFAULT = {"bandwidth": 64 << 10, "latency": 64}
WARM_UP_OPERATIONS_MAX = 1000
"""Of a warm-up that nobody chose, all queue pairs together: enough to open the window, and soon
over."""
TESTS_MAX = 64
"""Of one client: twice as many as a sweep can have."""


class Kind(StrEnum):
    """What is measured."""

    BANDWIDTH = "bandwidth"
    """WRITEs, many outstanding."""
    LATENCY = "latency"
    """WRITE-with-Immediate ping-pong, one at a time."""

    def both_ways(self, *, bidirectional: bool) -> bool:
        """Both sides write, and so both need memory for what they write and what they get."""
        return bidirectional or self is Kind.LATENCY


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All tests of one client: the same for each of several message sizes.

    Attributes:
        kind: of test.
        sizes: bytes of a message, one test each.
        qps: queue pairs that carry data.
        operations: messages a queue pair and test; 0: as many as the duration takes.
        duration_s: of a test, where operations do not decide.
        depth: writes outstanding a queue pair, at most; `depth_for` says how many there are.
        warm_up: operations a queue pair before each test that are not counted; None:
            `warm_up_operations` chooses.
        buffer_bytes: that messages walk through, a queue pair, at both ends.
        bidirectional: both sides write.
        verify: the receiving side compares what arrived with what was sent.
        seed: of the contents.
        interval_s: between two interim figures; 0: none.
        timeout_s: without any progress after which the peer counts as lost.
    """

    kind: Kind
    sizes: tuple[int, ...]
    qps: int = 1
    operations: int = 0
    duration_s: float = DURATION_S_DEFAULT[0]
    depth: int = DEPTH_DEFAULT
    warm_up: int | None = None
    buffer_bytes: int = BUFFER_BYTES_DEFAULT
    bidirectional: bool = False
    verify: bool = False
    seed: int = 0
    interval_s: float = 1.0
    timeout_s: float = 30.0

    @property
    def both_ways(self) -> bool:
        """Both sides write."""
        return self.kind.both_ways(bidirectional=self.bidirectional)

    @property
    def lane_bytes(self) -> int:
        """Buffer of one queue pair: at least one message."""
        return max(self.buffer_bytes, *self.sizes)

    def depth_for(self, message_bytes: int) -> int:
        """Return the writes outstanding a queue pair: as wished, but no more than is of use."""
        if self.kind is Kind.LATENCY:
            return 1
        places = self.lane_bytes // message_bytes
        bounded = min(places, OUTSTANDING_BYTES_MAX // (message_bytes * self.qps))
        return min(self.depth, max(_DEPTH_MIN, bounded))

    def warm_up_operations(self, message_bytes: int) -> int:
        """Return the operations before a test: chosen, or one walk at most, shared by the lanes."""
        if self.warm_up is not None:
            return self.warm_up
        places = self.lane_bytes // message_bytes
        return max(1, min(WARM_UP_OPERATIONS_MAX, places) // self.qps)


def sweep(smallest: int | None, largest: int, factor: int) -> Iterator[int]:
    """Yield message sizes from the smallest to the largest, each `factor` times the one before."""
    size = largest if smallest is None else smallest
    while size < largest:
        yield size
        size *= factor
    yield largest
