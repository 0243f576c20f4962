"""What a run measures: kinds, sizes, how many, how long; and the limits of all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

MESSAGE_BYTES_MAX = (1 << 32) - 1
"""One WRITE of MRC."""
QPS_MAX = 128
"""Queue pairs of one client that carry data: 300 KiB each at the listener, and their buffers."""
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
OPERATIONS_MAX = 1 << 40
DURATION_S_DEFAULT = (5.0, 2.0)
"""Of a test: of a single one, and of one of many that are compared."""
SIZE_DEFAULT = {"bandwidth": 64 << 10, "latency": 64}
WARM_UP_OPERATIONS_MAX = 1000
"""Of a warm-up that nobody chose: enough to open the window, and soon over."""


class Kind(StrEnum):
    """What is measured."""

    BANDWIDTH = "bandwidth"
    """WRITEs, many outstanding."""
    LATENCY = "latency"
    """WRITE-with-Immediate ping-pong, one at a time."""

    @property
    def answers(self) -> bool:
        """The listening side writes to the connecting side as well."""
        return self is Kind.LATENCY


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All tests of one client: the same for each of several message sizes.

    Attributes:
        kind: of test.
        sizes: bytes of a message, one test each.
        qps: queue pairs that carry data.
        operations: messages a queue pair and test; 0: as many as the duration takes.
        duration_s: of a test, where operations do not decide.
        depth: writes outstanding a queue pair.
        warm_up: operations before each test that are not counted; None: `warm_up_operations`
            chooses.
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
        """Both sides write, and so both need memory for what they write and what they get."""
        return self.bidirectional or self.kind.answers

    @property
    def lane_bytes(self) -> int:
        """Buffer of one queue pair: at least one message."""
        return max(self.buffer_bytes, *self.sizes)

    def warm_up_operations(self, message_bytes: int) -> int:
        """Return the operations before a test: chosen, or one walk through the buffer at most."""
        if self.warm_up is not None:
            return self.warm_up
        return min(WARM_UP_OPERATIONS_MAX, max(1, self.lane_bytes // message_bytes))


@dataclass(frozen=True, slots=True)
class Round:
    """One stretch of traffic: a warm-up, or what is measured.

    Attributes:
        message_bytes: of every message.
        operations: messages a queue pair; 0: until it is stopped.
        depth: writes outstanding a queue pair.
        counts: it is no warm-up.
    """

    message_bytes: int
    operations: int
    depth: int
    counts: bool = True


def sweep(smallest: int | None, largest: int, factor: int) -> Iterator[int]:
    """Yield message sizes from the smallest to the largest, each `factor` times the one before."""
    size = largest if smallest is None else smallest
    while size < largest:
        yield size
        size *= factor
    yield largest
