"""What crosses the seam between protocol and sockets: a run that came in, a run to send.

And what a queue pair has built of the latter, before its endpoint adds the addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mrc.proto.ev import Path
from mrc.wire.runs import RunBuffer

ECN_NOT_ECT, ECN_ECT0, ECN_CE = 0, 2, 3

SockAddr = tuple[str, int] | tuple[str, int, int, int]


@dataclass(slots=True)
class ReceivedRun:
    """Datagrams of one flow that arrived together: all of `segment_bytes`, the last may be shorter.

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
