"""Sockets that note every datagram they send, with a switch in between that trims and loses some.

Opcodes and offsets are written out here, as everything in this folder that reads packets: it must
not lean on the code under test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mrc.udp import Caps, KernelSockets, SendOutcome, SendSocket, SockAddr
from mrc.udp.factory import Sender

TOS_TRIMMED = 12 << 2
TRIMMED_BYTES = 36
"""UDP payload left of a trimmed write: BTH, METH, TSETH and RETH."""

WRITE_MIDDLE, WRITE_LAST_IMMEDIATE = 0xC7, 0xC9
RTX_BIT = 0x20


class Sent(NamedTuple):
    """One datagram as it travels."""

    source: tuple[str, int]
    destination: tuple[str, int]
    tos: int
    data: bytes


@dataclass
class RecordingSockets(KernelSockets):
    """The kernel's sockets, and a list of all that goes out through them.

    Attributes:
        gso: whether the kernel may be handed whole runs.
        trims: how many of the next middle packets the switch cuts behind their headers.
        losses: how many of the next last packets with immediate data the switch loses.
        sent: every datagram that gets through, in order.
    """

    gso: bool = True
    trims: int = 0
    losses: int = 0
    sent: list[Sent] = field(default_factory=list)

    def sender(self, address: str, port: int, caps: Caps) -> Sender:
        """Open the sending socket of one EV."""
        return RecordingSender(self, address, port, replace(caps, gso=caps.gso and self.gso))


class RecordingSender(SendSocket):
    """A sending socket that notes what it sends."""

    def __init__(self, network: RecordingSockets, address: str, port: int, caps: Caps) -> None:
        super().__init__(address, port, caps=caps)
        self._network = network

    def send(
        self,
        buffer: memoryview,
        segment_bytes: int,
        destination: SockAddr,
        tos: int,
        flow_label: int = 0,
    ) -> SendOutcome:
        """Send a run as the switch lets it through."""
        for piece, piece_tos in self._through_switch(buffer.cast("B"), segment_bytes, tos):
            outcome = super().send(piece, segment_bytes, destination, piece_tos, flow_label)
            if outcome is not SendOutcome.SENT:
                return outcome
            self._network.sent += (
                Sent((self.address, self.port), (destination[0], destination[1]), piece_tos, data)
                for data in _datagrams(piece, segment_bytes)
            )
        return SendOutcome.SENT

    def _through_switch(
        self, run: memoryview, segment_bytes: int, tos: int
    ) -> Iterator[tuple[memoryview, int]]:
        """Whole runs while the switch has nothing to do, else one datagram after the other."""
        network = self._network
        if not network.trims and not network.losses:
            yield run, tos
            return
        for data in _datagrams(run, segment_bytes):
            if data[0] == WRITE_MIDDLE and network.trims:
                network.trims -= 1
                yield memoryview(data)[:TRIMMED_BYTES], TOS_TRIMMED
            elif data[0] == WRITE_LAST_IMMEDIATE and network.losses and not data[8] & RTX_BIT:
                network.losses -= 1
            else:
                yield memoryview(data), tos


def _datagrams(run: memoryview, segment_bytes: int) -> Iterator[bytes]:
    for at in range(0, run.nbytes, segment_bytes):
        yield bytes(run[at : at + segment_bytes])
