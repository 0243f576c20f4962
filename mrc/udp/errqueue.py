"""The error queue of a socket: what the network and this machine said about earlier sends.

With IP_RECVERR even an unconnected UDP socket hears of ICMP errors and local refusals, one entry
each. Entries are hints, since ICMP can be forged: nothing here decides anything.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from errno import EMSGSIZE

from mrc.udp.address import SockAddr
from mrc.udp.linux import IP_RECVERR, IPV6_RECVERR, MSG_ERRQUEUE, SOL_IP, SOL_IPV6, SOL_SOCKET

# struct sock_extended_err: errno, origin, type, code, padding, info, data. The address of the
# reporter follows as a sockaddr, its family first.
_EXTENDED_ERROR = struct.Struct("=IBBBxII")
_REPORTER = slice(_EXTENDED_ERROR.size, None)
_ADDRESS_IN_SOCKADDR: dict[int, slice] = {
    socket.AF_INET: slice(4, 8),
    socket.AF_INET6: slice(8, 24),
}
_ANCILLARY_BYTES = 256


@dataclass(frozen=True, slots=True)
class SocketError:
    """One entry of an error queue."""

    errno: int
    """What a send would have failed with, such as ECONNREFUSED or EMSGSIZE."""
    destination: SockAddr
    """Where the datagram was going; the port may be 0 when `reporter` is empty."""
    reporter: str
    """Address of the router or host whose ICMP message this was; empty if this machine refused."""
    icmp_type: int
    """As in the ICMP message, else 0."""
    icmp_code: int
    """As in the ICMP message, else 0."""
    mtu_bytes: int
    """With EMSGSIZE the largest IP packet that passes; 0 if unknown, or for any other error."""

    def __str__(self) -> str:
        """For a log line: the error, where to, and who says so."""
        who = self.reporter or "this machine"
        return f"{os.strerror(self.errno)}, sending to {self.destination[0]}, says {who}"


def read_errors(sock: socket.socket, count_max: int) -> list[SocketError]:
    """Take up to `count_max` entries off the queue, oldest first."""
    errors: list[SocketError] = []
    for _ in range(count_max):
        try:
            _, ancillary, _, destination = sock.recvmsg(0, _ANCILLARY_BYTES, MSG_ERRQUEUE)
        except BlockingIOError:
            # Empty. An error still pending has no entry, and would keep a selector awake.
            sock.getsockopt(SOL_SOCKET, socket.SO_ERROR)
            break
        except OSError:
            break
        if (error := parse_error(ancillary, destination)) is not None:
            errors.append(error)
    return errors


def parse_error(
    ancillary: Iterable[tuple[int, int, bytes]], destination: SockAddr
) -> SocketError | None:
    """Read the control messages of one entry; None if none of them tells of an error."""
    for level, kind, value in ancillary:
        if (level, kind) not in ((SOL_IP, IP_RECVERR), (SOL_IPV6, IPV6_RECVERR)):
            continue
        code, _, icmp_type, icmp_code, info, _ = _EXTENDED_ERROR.unpack_from(value)
        return SocketError(
            errno=code,
            destination=_without_flow_info(destination),
            reporter=_address(value[_REPORTER]),
            icmp_type=icmp_type,
            icmp_code=icmp_code,
            mtu_bytes=info if code == EMSGSIZE else 0,
        )
    return None


def _address(sockaddr: bytes) -> str:
    """The address in a `struct sockaddr`, or nothing if it holds none."""
    family = int.from_bytes(sockaddr[:2], sys.byteorder)
    where = _ADDRESS_IN_SOCKADDR.get(family)
    return "" if where is None else socket.inet_ntop(family, sockaddr[where])


def _without_flow_info(destination: SockAddr) -> SockAddr:
    """The destination as the sender named it, without the flow label it went with."""
    if len(destination) == 4:
        return (destination[0], destination[1], 0, destination[3])
    return destination
