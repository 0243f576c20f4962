"""Immutable snapshots of counters, one class per level; command lines print the same names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum


class DropReason(Enum):
    """Why a datagram was dropped without an answer."""

    SHORT = "shorter than its headers, or they are none of MRC's"
    ICRC = "iCRC does not match"
    OPCODE = "unknown opcode"
    VERSION = "transport version is not 0"
    UNKNOWN_QP = "no such queue pair"
    NOT_PEER = "source is not the peer of that queue pair"
    QP_STATE = "queue pair not ready to receive"
    UNAUTHENTIC = "does not open with the key of its queue pair"
    REPLAYED = "sealed packet seen before, or too late to tell"
    MALFORMED = "fields contradict each other"
    UNKNOWN_ENDPOINT = "endpoint operation from an unknown peer"
    UNKNOWN_REQUEST = "answer to no outstanding request"
    IMPOSSIBLE_ACK = "acknowledges what was never sent"
    STALE_ACK = "acknowledges less than is known"
    OUT_OF_WINDOW = "PSN beyond the window"


Drops = Counter[DropReason]


@dataclass(frozen=True, slots=True)
class PathStatistics:
    """One EV towards a peer; `confirmed_ns` is -1 until something sent on it has arrived."""

    index: int
    plane: int
    source_port: int
    flow_label: int
    state: str
    active: bool
    sent_packets: int
    acked_packets: int
    lost_packets: int
    retransmitted_packets: int
    trimmed_packets: int
    marked_packets: int
    spurious_packets: int
    srtt_ns: int
    state_changes: int
    confirmed_ns: int


@dataclass(frozen=True, slots=True)
class RequestorStatistics:
    """The sending half of a queue pair."""

    writes_posted: int
    writes_done: int
    payload_bytes_sent: int
    packets_sent: int
    packets_retransmitted: int
    packets_lost: int
    packets_spurious: int
    nacks: int
    trims: int
    timeouts: int
    probes: int
    sacks: int
    cwnd_bytes: int
    inflight_bytes: int
    srtt_ns: int
    rtt_min_ns: int


@dataclass(frozen=True, slots=True)
class ResponderStatistics:
    """The receiving half of a queue pair."""

    payload_bytes_placed: int
    packets_received: int
    packets_duplicate: int
    packets_trimmed: int
    packets_marked: int
    messages_done: int
    immediates: int
    sacks: int
    nacks: int
    out_of_order_max: int


@dataclass(frozen=True, slots=True)
class QpStatistics:
    """One queue pair; `paths` belong to its peer and are shared with other queue pairs to it."""

    qpn: int
    state: str
    requestor: RequestorStatistics
    responder: ResponderStatistics
    paths: tuple[PathStatistics, ...]


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    """One endpoint. `drops` maps the reason to the number of datagrams."""

    queue_pairs: int
    regions: int
    datagrams_received: int
    datagrams_sent: int
    drops: dict[str, int] = field(default_factory=dict)
