"""What crosses the seam between protocol and sockets: a run that came in, a run to send.

And what a queue pair has built of the latter, before its endpoint adds the addresses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mrc.proto.ev import Path
from mrc.wire.runs import RunBuffer

ECN_NOT_ECT, ECN_ECT0, ECN_CE = 0, 2, 3

SockAddr = tuple[str, int] | tuple[str, int, int, int]


@dataclass(slots=True)
class ReceivedRun:
    """Datagrams of one flow that arrived together: all of `segment_bytes`, the last may be shorter.

    Where several such trains came from one host right behind each other, equally long, of whole
    segments and with the same TOS, they may be one run: what is checked once is checked for all.

    The buffer belongs to the caller and may be reused as soon as `Endpoint.receive` returns.
    """

    buffer: RunBuffer
    byte_count: int
    segment_bytes: int
    port: int
    """Index of the local port (plane) it came to."""
    source: SockAddr
    tos: int
    """IPv4 TOS or IPv6 traffic class: DSCP above two bits of ECN."""
    flow_label: int = 0
    sources: list[SockAddr] = field(default_factory=list)
    """Of each train, where there are several; they differ in the port."""

    def begin(
        self, byte_count: int, segment_bytes: int, tos: int, source: SockAddr, flow_label: int
    ) -> bool:
        """Hold a train that was received into the buffer; tell whether others may join it."""
        self.byte_count, self.segment_bytes, self.tos = byte_count, segment_bytes, tos
        self.source, self.flow_label = source, flow_label
        self.sources = []
        return segment_bytes < byte_count and not byte_count % segment_bytes

    def join(
        self, byte_count: int, segment_bytes: int, tos: int, source: SockAddr, flow_label: int
    ) -> bool:
        """Take a train that lies behind those here, if it is like them; tell whether."""
        sources = self.sources or [self.source]
        alike = (
            byte_count * len(sources) == self.byte_count
            and segment_bytes == self.segment_bytes
            and tos == self.tos
            and source[0] == self.source[0]
            and flow_label == self.flow_label
        )
        if alike:
            self.byte_count += byte_count
            self.sources = [*sources, source]
        return alike

    @property
    def trains(self) -> int:
        """How many there are."""
        return len(self.sources) or 1

    @property
    def train_packets(self) -> int:
        """How many packets each of several trains has."""
        return self.byte_count // self.segment_bytes // self.trains

    def turn_to(self, row: int) -> None:
        """Let `source` be where this row came from."""
        if self.sources:
            self.source = self.sources[row // self.train_packets]


class RunToSend(NamedTuple):
    """Datagrams for one EV: `memory` cut into `segment_bytes`, the last may be shorter.

    The memory belongs to the endpoint and is valid until the next call of `Endpoint.transmit`.
    """

    memory: memoryview
    segment_bytes: int
    port: int
    """Index of the local port (plane) it leaves from."""
    source_port: int
    flow_label: int
    destination: SockAddr
    tos: int
    peer_id: int
    ev_index: int
    qpn: int = 0
    """Queue pair whose data packets these are; 0 for a control packet."""
    psn: int = 0
    """Of the first data packet, not cut to 24 bits."""
    packets: int = 1


class DataRun(NamedTuple):
    """A run of data packets just built: where it goes and what it is."""

    byte_count: int
    segment_bytes: int
    path: Path
    psn: int
    packets: int
    retransmission: bool


class PathFault(Enum):
    """What the local kernel said about a path when a run was sent on it."""

    TOO_BIG = "larger than the path MTU"
    UNREACHABLE = "no route or interface"
    BLOCKED = "blocked by a local rule"
    FAILED = "send failed"
