"""What the receiving side of a measurement counts, alike for every transport.

Knows bytes and times, not who moved them.
"""

from __future__ import annotations

from time import monotonic_ns

from mrc.units import NS_PER_S

WARM_UP_NS = 200_000_000
"""Not measured after the first arrival: windows open, memory is touched for the first time."""
WARM_UP_S = WARM_UP_NS / NS_PER_S
WALK_BYTES = 64 << 20
"""Payloads walk through so much memory on both sides: more than any cache holds."""


class Meter:
    """Counts what arrives, from `WARM_UP_NS` after the first arrival on.

    Attributes:
        total_bytes: all that arrived.
    """

    def __init__(self) -> None:
        self.total_bytes = 0
        self._first_ns = 0
        self._start: tuple[int, int] | None = None
        self._last_ns = 0

    def add(self, byte_count: int) -> None:
        """Count so many bytes, which have arrived just now."""
        now_ns = self._last_ns = monotonic_ns()
        self.total_bytes += byte_count
        if self._start is not None:
            return
        if not self._first_ns:
            self._first_ns = now_ns
        elif now_ns >= self._first_ns + WARM_UP_NS:
            self._start = now_ns, self.total_bytes

    def report(self) -> dict[str, float]:
        """Return bytes and seconds after the warm-up: both 0 if it never ended."""
        if self._start is None:
            return {"bytes": 0, "seconds": 0.0}
        start_ns, start_bytes = self._start
        return {
            "bytes": self.total_bytes - start_bytes,
            "seconds": (self._last_ns - start_ns) / NS_PER_S,
        }


def touched(byte_count: int) -> bytearray:
    """Return memory whose pages are all there: zeroed pages of the kernel would cost no reading."""
    memory = bytearray(byte_count)
    for offset in range(0, byte_count, 4096):
        memory[offset] = 1
    return memory
