"""Figures of one side in one round: differences of counters, of processor time and of the clock."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic_ns, process_time_ns

from mrc.errors import ConfigError
from mrc.perf.lanes import Lane


@dataclass(frozen=True, slots=True)
class SenderFigures:
    """What a side sent, counted there. Packets are of the queue pairs that carry data."""

    operations: int
    """Messages that are placed at the peer."""
    bytes: int
    """Their payload: goodput, without headers and repetitions."""
    duration_ns: int
    """From the first post to the last completion."""
    cpu_ns: int
    """Processor time of the whole process meanwhile."""
    packets: int
    retransmitted_packets: int
    lost_packets: int
    spurious_packets: int
    """Given up for lost, and there after all."""
    trims: int
    timeouts: int


@dataclass(frozen=True, slots=True)
class ReceiverFigures:
    """What a side received, counted there."""

    messages: int
    bytes: int
    """Payload placed in memory."""
    duration_ns: int
    """From when this side was ready until it heard that the round was over."""
    cpu_ns: int
    packets: int
    duplicate_packets: int
    trimmed_packets: int
    marked_packets: int


@dataclass(frozen=True, slots=True)
class _Counters:
    """All counters of the lanes together, at one moment."""

    now_ns: int
    cpu_ns: int
    sent: tuple[int, ...]
    received: tuple[int, ...]


class Meter:
    """Notes where all counters stand, and tells what has come on top of that since."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._last = _Counters(0, 0, (0,) * 7, (0,) * 6)
        self._begin = self._read()

    def begin(self) -> None:
        """Count from now on."""
        self._begin = self._read()

    @property
    def began_ns(self) -> int:
        """Since when it counts, by the monotonic clock."""
        return self._begin.now_ns

    def sender(self, message_bytes: int, operations: int | None = None) -> SenderFigures:
        """Return what was sent since.

        Args:
            message_bytes: of each message.
            operations: messages that are done; None: as many as the queue pairs say.
        """
        return self._sender(self._read(), message_bytes, operations)

    def receiver(self) -> ReceiverFigures:
        """Return what was received since."""
        return self._receiver(self._read())

    def lap(self, message_bytes: int) -> tuple[SenderFigures, ReceiverFigures]:
        """Return both, and count from this same moment on."""
        now = self._read()
        figures = self._sender(now, message_bytes), self._receiver(now)
        self._begin = now
        return figures

    def _sender(
        self, now: _Counters, message_bytes: int, operations: int | None = None
    ) -> SenderFigures:
        done, *packets = _difference(now.sent, self._begin.sent)
        operations = done if operations is None else operations
        return SenderFigures(
            operations,
            operations * message_bytes,
            now.now_ns - self._begin.now_ns,
            now.cpu_ns - self._begin.cpu_ns,
            *packets,
        )

    def _receiver(self, now: _Counters) -> ReceiverFigures:
        messages, size_bytes, *packets = _difference(now.received, self._begin.received)
        return ReceiverFigures(
            messages,
            size_bytes,
            now.now_ns - self._begin.now_ns,
            now.cpu_ns - self._begin.cpu_ns,
            *packets,
        )

    def moved_bytes(self) -> int:
        """Payload sent and placed by all lanes so far: it grows as long as anything moves."""
        moved = 0
        with suppress(ConfigError):
            for lane in self._lanes:
                statistics = lane.qp.statistics()
                moved += statistics.requestor.payload_bytes_sent
                moved += statistics.responder.payload_bytes_placed
        return moved

    def _read(self) -> _Counters:
        """Look at all counters; where a queue pair has been freed, those of the last look."""
        sent, received = [], []
        with suppress(ConfigError):
            for lane in self._lanes:
                statistics = lane.qp.statistics()
                out, into = statistics.requestor, statistics.responder
                sent.append(
                    (
                        out.writes_done,
                        out.packets_sent,
                        out.packets_retransmitted,
                        out.packets_lost,
                        out.packets_spurious,
                        out.trims,
                        out.timeouts,
                    )
                )
                received.append(
                    (
                        into.messages_done,
                        into.payload_bytes_placed,
                        into.packets_received,
                        into.packets_duplicate,
                        into.packets_trimmed,
                        into.packets_marked,
                    )
                )
            self._last = _Counters(
                0,
                0,
                tuple(map(sum, zip(*sent, strict=True))),
                tuple(map(sum, zip(*received, strict=True))),
            )
        return _Counters(monotonic_ns(), process_time_ns(), self._last.sent, self._last.received)


def _difference(later: Sequence[int], earlier: Sequence[int]) -> tuple[int, ...]:
    return tuple(after - before for after, before in zip(later, earlier, strict=True))
