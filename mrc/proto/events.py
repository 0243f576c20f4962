"""What `Endpoint.poll` returns: news for the application, oldest first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Random(Protocol):
    """The randomness handed in: `random.Random(seed)` or `random.SystemRandom()`."""

    def getrandbits(self, bits: int, /) -> int:
        """Return a number of that many random bits."""
        ...

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...


class EvState(Enum):
    """State of an EV; SKIP is the protocol's own and makes no event."""

    GOOD = "good"
    SKIP = "skip"
    ASSUMED_BAD = "assumed_bad"
    DENIED = "denied"


class QpFailure(Enum):
    """Why a queue pair went to ERROR."""

    RETRY_EXCEEDED = "retry counter exceeded"
    REMOTE_ACCESS = "remote access error"
    REMOTE_OPERATION = "remote operation error"
    REMOTE_INVALID_REQUEST = "remote invalid request"
    LOCAL_CLOSE = "closed on this side"


@dataclass(frozen=True, slots=True)
class WriteDone:
    """A work request is complete: every byte is placed at the peer, in order with those before."""

    qpn: int
    work_id: int


@dataclass(frozen=True, slots=True)
class ImmediateReceived:
    """A WRITE-with-Immediate arrived whole, and all writes before it."""

    qpn: int
    imm: int
    r_key: int
    va: int
    length: int


@dataclass(frozen=True, slots=True)
class QpFailed:
    """The queue pair is in ERROR; its outstanding work requests will not complete."""

    qpn: int
    failure: QpFailure
    psn: int
    retry_count: int
    silent_ns: int
    fault: str
    """What the local kernel refused last, or empty."""


@dataclass(frozen=True, slots=True)
class EvChanged:
    """An EV was withdrawn, came back, was denied or allowed again."""

    peer_id: int
    index: int
    plane: int
    source_port: int
    before: EvState
    after: EvState
    reason: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class PortStatusChanged:
    """The peer told which of its ports (planes) are up."""

    peer_id: int
    mask: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class PlaneProved:
    """The peer answered at an address where nothing had been sent to it but probes."""

    peer_id: int
    plane: int
    at_ns: int


Event = WriteDone | ImmediateReceived | QpFailed | EvChanged | PortStatusChanged | PlaneProved
