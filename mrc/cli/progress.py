"""How far a transfer has come: numbers only, for the display, the summary and the watchdog.

Has no clock of its own and prints nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mrc.cli.messages import Phase
from mrc.units import NS_PER_S

RATE_WINDOW_NS = 3 * NS_PER_S
"""The rate shown is over the last three seconds: steady enough to read, quick to show trouble."""


@dataclass(frozen=True, slots=True)
class FileResult:
    """One file or stream that is verified and stored.

    Attributes:
        path: as it travelled.
        size_bytes: its whole length.
        resumed_bytes: how many of those were there already and were not sent.
        sha256: the digest both ends agree on.
    """

    path: str
    size_bytes: int
    resumed_bytes: int
    sha256: str


@dataclass(slots=True)
class Progress:
    """The state of one transfer, written by the transfer and read by whoever shows it.

    Attributes:
        phase: what this side is busy with.
        phase_bytes: how much of it is done; 0 where that says nothing.
        offered: the sender has said what it would like to send.
        peer_phase: what the other side said it was busy with, when it last spoke.
        total_bytes: of all files; None for a stream.
        resumed_bytes: were at the receiver already and have been verified.
        verified_bytes: of files whose digests agree.
        files: how many files there are.
        current: the path being worked on.
        moved_bytes: asks the connection for the payload bytes that have arrived.
        results: the files that are stored.
        skipped: what did not travel, one line each.
    """

    phase: Phase = Phase.PREPARING
    phase_bytes: int = 0
    offered: bool = False
    peer_phase: Phase | None = None
    peer_phase_bytes: int = 0
    total_bytes: int | None = None
    resumed_bytes: int = 0
    files: int = 0
    current: str = ""
    moved_bytes: Callable[[], int] = int
    results: list[FileResult] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def done_bytes(self) -> int:
        """What the receiver has: sent now, or there before."""
        return self.resumed_bytes + self.moved_bytes()

    def enter(self, phase: Phase) -> None:
        """Begin another phase."""
        if phase is not self.phase:
            self.phase = phase
            self.phase_bytes = 0

    def advance(self, byte_count: int) -> None:
        """Count work of the present phase. Called from worker threads; one at a time does."""
        self.phase_bytes += byte_count

    def store(self, result: FileResult) -> None:
        """Note a file that is verified and stored."""
        self.results.append(result)


class RateMeter:
    """Bytes a second over a sliding window, and how long it has been standing still."""

    def __init__(self, now_ns: int) -> None:
        self._samples: deque[tuple[int, int]] = deque([(now_ns, 0)])
        self._changed_ns = now_ns

    def sample(self, now_ns: int, total_bytes: int) -> None:
        """Note the running total at a point in time."""
        if total_bytes != self._samples[-1][1]:
            self._changed_ns = now_ns
        self._samples.append((now_ns, total_bytes))
        while len(self._samples) > 2 and now_ns - self._samples[1][0] >= RATE_WINDOW_NS:
            self._samples.popleft()

    @property
    def bytes_per_second(self) -> float:
        """The rate over the window; 0 before there are two samples."""
        (first_ns, first_bytes), (last_ns, last_bytes) = self._samples[0], self._samples[-1]
        if last_ns <= first_ns:
            return 0.0
        return max(last_bytes - first_bytes, 0) * NS_PER_S / (last_ns - first_ns)

    def still_ns(self, now_ns: int) -> int:
        """For how long the total has not changed."""
        return now_ns - self._changed_ns

    def eta_s(self, remaining_bytes: int) -> float | None:
        """Seconds until so many more bytes have moved at this rate; None when nothing moves."""
        rate = self.bytes_per_second
        return remaining_bytes / rate if rate > 0 else None
