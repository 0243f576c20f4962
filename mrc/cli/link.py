"""What a file transfer needs of a queue pair, and nothing more.

The queue pair of `mrc.api` fits; so does the pair in memory that the tests use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Remote:
    """A memory region of the peer: where it begins there, its key, its length in bytes."""

    va: int
    r_key: int
    length: int


class RemoteRegion(Protocol):
    """A memory region as its owner names it to the peer."""

    @property
    def va(self) -> int:
        """Where the region begins at its owner."""

    @property
    def r_key(self) -> int:
        """The key without which nobody writes to it."""

    @property
    def length(self) -> int:
        """Bytes."""


class Region(Protocol):
    """Registered memory of this side."""

    @property
    def remote(self) -> RemoteRegion:
        """What the peer needs to write to it."""

    def seal(self, size: int) -> None:
        """Refuse every further write to the first `size` bytes."""

    def deregister(self) -> None:
        """Stop all writes to it at once, and let go of the buffer."""


class Immediate(Protocol):
    """One completed write-with-immediate of the peer."""

    @property
    def imm(self) -> int:
        """The 32 bits the peer gave it."""

    @property
    def region(self) -> Region | None:
        """Where it went; None when that has been deregistered meanwhile."""

    @property
    def offset(self) -> int:
        """First byte written, counted from the start of the region."""

    @property
    def length(self) -> int:
        """Bytes written."""


class Channel(Protocol):
    """Lines of JSON beside the data path."""

    async def send(self, message: dict[str, Any]) -> None:
        """Send one line."""

    async def receive(self) -> dict[str, Any]:
        """Wait for the next line; PeerLost when the peer has closed."""


class PathCounters(Protocol):
    """One path (EV) towards the peer, as `mrc` counts it; all counts are of packets."""

    @property
    def plane(self) -> int:
        """Which plane it belongs to."""

    @property
    def source_port(self) -> int:
        """The UDP source port that makes it a path."""

    @property
    def state(self) -> str:
        """good, skip, assumed_bad or denied."""

    @property
    def active(self) -> bool:
        """In use, rather than a spare."""

    @property
    def sent_packets(self) -> int:
        """Sent on it."""

    @property
    def acked_packets(self) -> int:
        """Of those, known to have arrived."""

    @property
    def lost_packets(self) -> int:
        """Of those, taken for lost."""

    @property
    def retransmitted_packets(self) -> int:
        """Sent on it because they were lost elsewhere."""

    @property
    def trimmed_packets(self) -> int:
        """Cut short by a switch on it."""

    @property
    def srtt_ns(self) -> int:
        """Smoothed round trip time; 0 before the first."""


class Link(Protocol):
    """An established connection."""

    @property
    def channel(self) -> Channel:
        """The lines of JSON."""

    @property
    def peer(self) -> str:
        """The peer's address, for messages."""

    def register(self, buffer: Any) -> Region:
        """Let the peer write to a buffer."""

    async def write_imm(
        self, data: Any, remote: RemoteRegion, offset: int = 0, *, imm: int
    ) -> None:
        """Write to the peer's memory and tell it; returns when every byte is placed."""

    async def next_immediate(self) -> Immediate:
        """Wait for the next completed write-with-immediate of the peer, in its order."""

    def moved_bytes(self) -> int:
        """About how many payload bytes have arrived: acknowledged by the peer, or placed here."""

    def final_bytes(self) -> int:
        """The same of whole blocks only: exact when the transfer is over."""

    def path_counters(self) -> Sequence[PathCounters]:
        """Every path towards the peer."""

    def counters_json(self) -> dict[str, Any]:
        """All counters of the connection in a form that JSON takes."""
