"""Faults that no network may have: what the checkers must notice, or they are good for nothing.

Each canary changes datagrams behind the protocol's back, with an iCRC that fits, so that endpoints
believe them, where queue pairs are not sealed. Of a few simulations with a canary some must fail;
if all pass, nobody looks.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from mrc.sim.addresses import UDP_PORT, address
from mrc.sim.datagram import Datagram
from mrc.wire.fields import BTH, METH, TSETH, WRITE_OPCODES, Opcode
from mrc.wire.icrc import ICRC_BYTES, append_icrc

EVERY = 16
"""One in so many datagrams that can be changed is."""
_PSN_LOW = BTH.size - 1
_CACK_LOW = BTH.size + 15
_VA_LOW = BTH.size + METH.size + TSETH.size + 7


class Canary(Enum):
    """What is changed."""

    PAYLOAD = "payload"
    """A byte of the data."""
    ADDRESS = "address"
    """Where the data goes: a few bytes away from where it belongs."""
    ACKNOWLEDGEMENT = "acknowledgement"
    """SACKs tell of one packet more than has arrived."""


def tamper(canary: Canary, *, ipv6: bool) -> Callable[[Datagram], None]:
    """Return what changes datagrams as they leave their host."""
    count = 0

    def change(datagram: Datagram) -> None:
        nonlocal count
        data = bytearray(datagram.data)
        if not _CHANGES[canary](data):
            return
        count += 1
        if count % EVERY == 0:
            source = address(datagram.sender, datagram.plane, ipv6=ipv6), datagram.source_port
            destination = address(datagram.receiver, datagram.plane, ipv6=ipv6), UDP_PORT
            datagram.data = append_icrc(bytes(data[:-ICRC_BYTES]), source, destination)

    return change


def _payload(data: bytearray) -> bool:
    if data[0] not in WRITE_OPCODES:
        return False
    data[-ICRC_BYTES - 4] ^= 0x01
    return True


def _address(data: bytearray) -> bool:
    if data[0] not in WRITE_OPCODES:
        return False
    data[_VA_LOW] ^= 0x10
    return True


def _acknowledgement(data: bytearray) -> bool:
    if data[0] != Opcode.SACK or data[_CACK_LOW] == 0xFF:
        return False
    data[_CACK_LOW] += 1
    data[_PSN_LOW] += 1
    return True


_CHANGES: dict[Canary, Callable[[bytearray], bool]] = {
    Canary.PAYLOAD: _payload,
    Canary.ADDRESS: _address,
    Canary.ACKNOWLEDGEMENT: _acknowledgement,
}
