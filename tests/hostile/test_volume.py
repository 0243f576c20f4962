"""Much at once: 2^32 - 1 bytes in one message, which are more than a million packets.

In virtual time, and run by run: what a packet costs the test bench would take minutes.
"""

from __future__ import annotations

import mmap
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mrc.proto.config import MESSAGE_BYTES_MAX, Config
from mrc.proto.events import ImmediateReceived, WriteDone
from mrc.proto.runs import ReceivedRun, RunToSend
from mrc.proto.work import WorkQueue
from mrc.wire.runs import RunBuffer
from tests.support.pair import US, Pair, Side

MTU = 4096
PACKETS = 1 << 20
assert -(-MESSAGE_BYTES_MAX // MTU) == PACKETS
LOST_RUN = 97
"""Every so many runs one is lost."""
MEMORY_GROWTH_BYTES_MAX = 2 << 20
MARKS = {0: b"begin", 1 << 31: b"sign bit", 3 << 30: b"quarter", MESSAGE_BYTES_MAX - 3: b"end"}
"""Where the message is not zero: at its ends, and where a length of 32 bits could be taken for a
negative one. Each lies inside one packet."""


class Sink:
    """Memory of 4 GiB that notes what is placed where, and keeps only what is marked."""

    def __init__(self) -> None:
        self.placed = np.full(PACKETS, 0, np.uint8)
        """How often each packet's place was written."""
        self._scratch = np.zeros(1 << 16, np.uint8)
        self._kept: dict[int, tuple[int, NDArray[np.uint8]]] = {}

    def __getitem__(self, where: slice) -> NDArray[np.uint8]:
        """Return what a responder copies a run into."""
        size = where.stop - where.start
        if size > len(self._scratch):
            # Nothing is written there: a whole message is looked up when its immediate comes.
            return self._scratch
        self.placed[where.start // MTU : -(-where.stop // MTU)] += 1
        for at in MARKS:
            if where.start <= at < where.stop:
                self._kept[at] = where.start, np.zeros(size, np.uint8)
                return self._kept[at][1]
        return self._scratch[:size]

    def marks(self) -> dict[int, bytes]:
        """Return what was placed where the message is marked."""
        return {
            at: memory[at - start :].tobytes()[: len(MARKS[at])]
            for at, (start, memory) in sorted(self._kept.items())
        }


class Wire:
    """Two endpoints, joined without anything that costs a packet more than the protocol does."""

    DELAY_NS = 20 * US

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._buffer = RunBuffer()
        self._sent = 0
        self.now_ns = pair.now_ns

    def round_trip(self) -> None:
        """Let A send all it may, and B answer."""
        a, b = self._pair.sides
        self._carry(a, b, loses=True)
        self.now_ns += self.DELAY_NS
        self._carry(b, a, loses=False)
        self.now_ns += self.DELAY_NS
        for side in (a, b):
            side.endpoint.advance(self.now_ns)
            side.events += side.endpoint.poll()

    def _carry(self, sender: Side, receiver: Side, *, loses: bool) -> None:
        while (run := sender.endpoint.transmit(self.now_ns)) is not None:
            self._sent += loses
            if not loses or self._sent % LOST_RUN:
                receiver.endpoint.receive(self._arrived(run, sender), self.now_ns + self.DELAY_NS)

    def _arrived(self, run: RunToSend, sender: Side) -> ReceivedRun:
        self._buffer.memory[: len(run.memory)] = run.memory
        source = (sender.hosts[run.port], run.source_port)
        return ReceivedRun(
            self._buffer, len(run.memory), run.segment_bytes, run.port, source, run.tos
        )


@dataclass
class Carried:
    """What is known when the message is there."""

    sink: Sink
    work: int
    region_va: int
    sides: list[Side]
    resident_bytes: list[int]
    """Memory of this process, each time a sixteenth of the message had been sent."""


@pytest.fixture(scope="module")
def carried() -> Iterator[Carried]:
    """Send the longest message there is, losing a run now and then, until it is complete."""
    pair, sink = Pair(Config(mtu=MTU)), Sink()
    region = pair.b.endpoint.register(bytearray(1))
    region.data, region.length = sink, MESSAGE_BYTES_MAX  # type: ignore[assignment]
    with mmap.mmap(-1, MESSAGE_BYTES_MAX, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as message:
        for at, mark in MARKS.items():
            message[at : at + len(mark)] = mark
        endpoint = pair.a.endpoint
        work = endpoint.post_write(pair.a.qp, message, region.va, region.r_key, imm=9)
        wire, resident = Wire(pair), list[int]()
        while not pair.done(work) and not pair.failed():
            wire.round_trip()
            if pair.a.requestor.statistics().packets_sent > PACKETS // 16 * (len(resident) + 1):
                resident.append(resident_bytes())
        yield Carried(sink, work, region.va, pair.sides, resident)
        endpoint.destroy_qp(pair.a.qp)
        pair.a.requestor._works = WorkQueue()  # noqa: SLF001 - lets go of the memory map


def resident_bytes() -> int:
    """Return what this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


@pytest.mark.slow
def test_longest_message_arrives_whole(carried: Carried) -> None:
    """2^32 - 1 bytes: each is placed once, where it belongs; the immediate tells the length."""
    a, b = carried.sides
    assert carried.sink.placed.tolist() == [1] * PACKETS
    assert carried.sink.marks() == MARKS
    assert [event for event in a.events if isinstance(event, WriteDone)] == [
        WriteDone(a.qp.qpn, carried.work)
    ]
    (told,) = (event for event in b.events if isinstance(event, ImmediateReceived))
    assert (told.va, told.length, told.imm) == (carried.region_va, MESSAGE_BYTES_MAX, 9)
    assert b.responder.statistics().payload_bytes_placed == MESSAGE_BYTES_MAX


@pytest.mark.slow
def test_million_packets_cost_no_memory(carried: Carried) -> None:
    """Whatever was lost and sent again on the way, nothing is kept of what is done."""
    found = carried.sides[0].requestor.statistics()
    assert found.packets_sent > PACKETS
    assert found.packets_retransmitted > 1000
    assert found.inflight_bytes == 0
    growth_bytes = max(carried.resident_bytes) - carried.resident_bytes[0]
    assert len(carried.resident_bytes) == 16
    assert growth_bytes < MEMORY_GROWTH_BYTES_MAX
