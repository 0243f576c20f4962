"""A hostile peer: packets as B could send them to A, or A to B, with whatever is asked for wrong.

They go past the virtual network, straight into the endpoint; the sender's own state knows nothing
of them.
"""

from __future__ import annotations

from typing import Any

from mrc.proto.config import DscpMap
from mrc.wire.control import Ack, Nack, NackReason, Probe, Sack, Syndrome
from mrc.wire.fields import Opcode
from mrc.wire.icrc import append_icrc
from mrc.wire.psn import to_wire
from mrc.wire.writes import Write
from tests.support.pair import FIRST_EV_PORT, UDP_PORT, Pair

_DSCP = DscpMap()


class Forger:
    """Forges packets to one side of a pair in the other's name."""

    def __init__(self, pair: Pair, receiver: int) -> None:
        """Make a forger.

        Args:
            pair: the test bench.
            receiver: 0 forges packets to A (acknowledgements), 1 packets to B (data, probes).
        """
        self._pair = pair
        self._receiver = receiver
        self._victim = pair.sides[receiver]
        self._name = pair.sides[1 - receiver]
        self._ids = {
            "dqp": self._victim.qp.qpn,
            "spdcid": self._name.qp.qpn & 0xFFFF,
            "dpdcid": self._victim.qp.qpn & 0xFFFF,
        }

    def deliver(
        self,
        packet: bytes,
        *,
        host: str | None = None,
        icrc: bool = True,
        dscp: int = _DSCP.control,
        ecn: int = 0,
    ) -> None:
        """Deliver headers and payload, with a right iCRC unless told otherwise.

        Args:
            packet: everything before the iCRC; everything at all with `icrc` off.
            host: source address, that of the peer when None.
            icrc: append it.
            dscp: code point it arrives with.
            ecn: ECN bits it arrives with.
        """
        source = (host or self._name.hosts[0], FIRST_EV_PORT)
        if icrc:
            packet = append_icrc(packet, source, (self._victim.hosts[0], UDP_PORT))
        self._pair.inject(self._receiver, packet, source=source, tos=dscp << 2 | ecn)

    # To A: what a responder says. PSNs are counted from A's first one.

    def sack(self, cack: int, **fields: Any) -> None:
        """Acknowledge everything up to this place in the sequence of PSNs (-1 for nothing)."""
        psn = to_wire(self._victim.qp.first_psn + cack)
        self.deliver(Sack(cack_psn=psn, **self._ids | fields).encode())

    def nack(self, place: int, reason: int = NackReason.TRIMMED, **fields: Any) -> None:
        """Refuse the packet at this place."""
        psn = to_wire(self._victim.qp.first_psn + place)
        self.deliver(Nack(nack_psn=psn, reason=reason, **self._ids | fields).encode())

    def ack(self, place: int, syndrome: int = Syndrome.ACK, msn: int = 0) -> None:
        """Send a Transport ACK or NAK for this place."""
        psn = to_wire(self._victim.qp.first_psn + place)
        self.deliver(Ack(self._victim.qp.qpn, psn, syndrome, msn).encode())

    # To B: what a requestor says. PSNs are counted from A's first one, which B expects.

    def write(
        self,
        place: int,
        payload: bytes,
        va: int,
        r_key: int,
        *,
        dscp: int = _DSCP.trimmable,
        ecn: int = 0,
        **fields: Any,
    ) -> None:
        """Send one data packet, a message of its own unless fields say otherwise."""
        plain: dict[str, Any] = {
            "opcode": Opcode.WRITE_ONLY,
            "dqp": self._victim.qp.qpn,
            "psn": to_wire(self._name.qp.first_psn + place),
            "va": va,
            "r_key": r_key,
            "dma_length": len(payload),
            "pad": -len(payload) & 3,
        }
        header = Write(**plain | fields).encode()
        self.deliver(header + payload + bytes(-len(payload) & 3), dscp=dscp, ecn=ecn)

    def probe(self, probe_id: int) -> None:
        """Send a reliability probe."""
        self.deliver(Probe(probe_id=probe_id, **self._ids).encode())
