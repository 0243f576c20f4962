"""One datagram on its way through the virtual network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrc.proto.config import DscpMap
from mrc.proto.runs import ECN_CE, ECN_NOT_ECT
from mrc.sim.options import Kind
from mrc.wire.fields import IMMDT, IMMEDIATE_OPCODES, WRITE_OPCODES
from mrc.wire.writes import HEADER_BYTES

if TYPE_CHECKING:
    from mrc.sim.link import Link

DSCP = DscpMap()
"""Code points that the switches know; the endpoints have the same."""
_TRIMMABLE = (DSCP.trimmable, DSCP.trimmable_retx)
_TRIMMED = (DSCP.trimmed, DSCP.trimmed_lasthop)
_REWRITTEN_BITS = 0x0FFF
_HASTY = (DSCP.control, *_TRIMMED)


class Datagram:
    """UDP payload with what its headers say, the way it takes, and what was done to it."""

    __slots__ = (
        "corrupted",
        "data",
        "flow_label",
        "hop",
        "links",
        "number",
        "plane",
        "receiver",
        "rewritten",
        "sender",
        "source_port",
        "tos",
    )

    def __init__(
        self,
        *,
        number: int,
        data: bytes,
        sender: int,
        receiver: int,
        plane: int,
        source_port: int,
        flow_label: int,
        tos: int,
        links: tuple[Link, ...],
    ) -> None:
        self.number = number
        """Counts all datagrams of a simulation; a copy has a number of its own."""
        self.data = data
        self.sender = sender
        self.receiver = receiver
        """Indexes of the hosts."""
        self.plane = plane
        self.source_port = source_port
        self.flow_label = flow_label
        self.tos = tos
        self.links = links
        self.hop = 0
        """Place in `links` of the one it is on."""
        self.corrupted = False
        self.rewritten = False
        """Its source port is another than the one it left with."""

    def copy(self, number: int) -> Datagram:
        """Return another datagram that is the same, at the same place."""
        twin = Datagram(
            number=number,
            data=self.data,
            sender=self.sender,
            receiver=self.receiver,
            plane=self.plane,
            source_port=self.source_port,
            flow_label=self.flow_label,
            tos=self.tos,
            links=self.links,
        )
        twin.hop = self.hop
        twin.corrupted = self.corrupted
        twin.rewritten = self.rewritten
        return twin

    @property
    def is_data(self) -> bool:
        """Whether it is a write of any kind, as far as its first byte can be trusted."""
        return self.data[0] in WRITE_OPCODES

    @property
    def kind(self) -> Kind:
        """Whether it is data or control."""
        return Kind.DATA if self.is_data else Kind.CONTROL

    @property
    def is_hasty(self) -> bool:
        """Whether switches forward it before data."""
        return self.tos >> 2 in _HASTY

    @property
    def is_trimmed(self) -> bool:
        """Whether a switch has cut it to its headers."""
        return self.tos >> 2 in _TRIMMED

    @property
    def flow(self) -> tuple[int, int, int, int]:
        """What must be equal for datagrams to be read together."""
        return self.sender, self.source_port, self.tos, self.flow_label

    def trim(self, *, last_hop: bool) -> bool:
        """Cut it to its headers as a congested MRC switch does; False when it may not be cut."""
        if self.tos >> 2 not in _TRIMMABLE or not self.is_data:
            return False
        immediate = IMMDT.size if self.data[0] in IMMEDIATE_OPCODES else 0
        self.data = self.data[: HEADER_BYTES + immediate]
        dscp = DSCP.trimmed_lasthop if last_hop else DSCP.trimmed
        self.tos = dscp << 2 | self.tos & 3
        return True

    def rewrite_port(self) -> None:
        """Give it another source port; a second time gives the first one back."""
        self.source_port ^= _REWRITTEN_BITS
        self.rewritten = not self.rewritten

    def mark(self) -> bool:
        """Mark it as having met congestion (ECN CE); False when it is not ECN-capable."""
        if self.tos & 3 == ECN_NOT_ECT:
            return False
        self.tos |= ECN_CE
        return True

    def flip(self, bits: list[int]) -> None:
        """Flip bits of the payload, counted from the first one."""
        data = bytearray(self.data)
        for bit in bits:
            data[bit >> 3] ^= 1 << (bit & 7)
        self.data = bytes(data)
        self.corrupted = True
