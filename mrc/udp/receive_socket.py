"""The receiving socket of one plane: whole trains of datagrams, and what the kernel says of them.

Bound to an address and port of its plane. Knows nothing of what the datagrams say, and never
waits. Every datagram is hostile: what cannot be taken whole is dropped here, and counted.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import NamedTuple

from mrc.udp.address import SockAddr, family_of, local_address
from mrc.udp.caps import Caps
from mrc.udp.cmsg import RECEIVE_ANCILLARY_BYTES, parse_received
from mrc.udp.linux import (
    IP_RECVTOS,
    IPV6_FLOWINFO,
    IPV6_RECVTCLASS,
    IPV6_V6ONLY,
    SOL_IP,
    SOL_IPV6,
    SOL_UDP,
    UDP_GRO,
)
from mrc.udp.options import bind, dropped_datagrams, open_udp, set_buffer, try_option

RECEIVE_BUFFER_BYTES = 4 << 20
"""What a plane asks for: a few milliseconds at 10 Gbit/s while the process does something else."""

TRAIN_BYTES_MAX = 1 << 16
"""A receive buffer this large holds any train; in a smaller one the tail of some is lost."""

# A plain int: the operators of enum flags cost a microsecond.
_CUT_SHORT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
# Datagrams to drop in one call before giving the caller its turn back.
_DROPS_A_CALL = 16


class Datagrams(NamedTuple):
    """A train of datagrams from one source, back to back in the caller's buffer."""

    byte_count: int
    """Bytes of the whole train, 1 to 65,535."""
    segment_bytes: int
    """Size of each datagram but the last, which may be shorter; `byte_count` for a single one."""
    tos: int
    """DSCP << 2 | ECN, the same for the whole train."""
    source: SockAddr
    """Address and port it came from."""
    flow_label: int
    """IPv6 flow label, the same for the whole train; 0 over IPv4."""


@dataclass(frozen=True, slots=True)
class ReceiveStatistics:
    """Counters of one receiving socket since it was opened."""

    calls: int
    """System calls that received something."""
    datagrams: int
    """Datagrams handed on."""
    received_bytes: int
    """Their UDP payload."""
    truncated: int
    """Trains dropped because they, or their control messages, did not fit."""
    empty: int
    """Datagrams without a byte of payload, dropped."""
    errors: int
    """Errors the kernel reported and that were passed over."""
    kernel_drops: int
    """Datagrams the kernel dropped, nearly always for a full receive buffer; modulo 2**32."""
    receive_buffer_asked_bytes: int
    receive_buffer_granted_bytes: int
    """Less than asked for means net.core.rmem_max is too low."""


class ReceiveSocket:
    """One plane's socket; for one thread.

    Args:
        address: numeric address of this machine, a link-local one with its `%interface`; over
            IPv6 it takes no IPv4 traffic.
        port: 0 lets the kernel choose.
        caps: what the kernel can do for this address family, from `probe_caps`.
        receive_buffer_bytes: kernel memory for what was not yet received. Too little and bursts
            are lost while the process is busy; the kernel grants up to net.core.rmem_max, more
            to the privileged.

    Raises:
        ConfigError: address or port cannot be used.
        LocalError: the port is in use or the address is not on this machine; errno kept.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        caps: Caps,
        receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
    ) -> None:
        name = local_address(address, port)
        self._socket = open_udp(family_of(address))
        try:
            self.receive_buffer_granted_bytes = self._configure(caps, receive_buffer_bytes)
            bind(self._socket, name)
        except BaseException:
            self._socket.close()
            raise
        self.address = address
        self.port: int = self._socket.getsockname()[1]
        self.receive_buffer_asked_bytes = receive_buffer_bytes
        self._recvmsg_into = self._socket.recvmsg_into
        self._tos_mask = 0xFF if caps.ecn else 0xFC
        self._calls = self._datagrams = self._received_bytes = 0
        self._truncated = self._empty = self._errors = 0

    def _configure(self, caps: Caps, receive_buffer_bytes: int) -> int:
        """Set all options; the receive buffer granted."""
        sock = self._socket
        if caps.gro:
            try_option(sock, SOL_UDP, UDP_GRO)
        if sock.family == socket.AF_INET6:
            try_option(sock, SOL_IPV6, IPV6_V6ONLY)
            try_option(sock, SOL_IPV6, IPV6_RECVTCLASS)
            try_option(sock, SOL_IPV6, IPV6_FLOWINFO)
        else:
            try_option(sock, SOL_IP, IP_RECVTOS)
        return set_buffer(sock, socket.SO_RCVBUF, receive_buffer_bytes)

    def fileno(self) -> int:
        """The descriptor, for a selector; -1 once closed."""
        return self._socket.fileno()

    def receive_into(self, buffer: memoryview) -> Datagrams | None:
        """Receive the next train into `buffer`.

        Args:
            buffer: writable, `TRAIN_BYTES_MAX` long, so that no train is cut.

        Returns:
            The train, or None when nothing waits, or after 16 drops in a row: then the socket
            is still readable. Never raises OSError.
        """
        for _ in range(_DROPS_A_CALL):
            try:
                byte_count, ancillary, flags, source = self._recvmsg_into(
                    (buffer,), RECEIVE_ANCILLARY_BYTES
                )
            except BlockingIOError:
                return None
            except OSError:
                self._errors += 1
                continue
            if flags & _CUT_SHORT:
                self._truncated += 1
                continue
            if not byte_count:
                self._empty += 1
                continue
            segment_bytes, tos, flow_label = parse_received(ancillary)
            self._calls += 1
            self._received_bytes += byte_count
            if 0 < segment_bytes < byte_count:
                self._datagrams += -(-byte_count // segment_bytes)
            else:
                segment_bytes = byte_count
                self._datagrams += 1
            return Datagrams(byte_count, segment_bytes, tos & self._tos_mask, source, flow_label)
        return None

    def statistics(self) -> ReceiveStatistics:
        """The counters so far; once closed, without what the kernel dropped."""
        return ReceiveStatistics(
            calls=self._calls,
            datagrams=self._datagrams,
            received_bytes=self._received_bytes,
            truncated=self._truncated,
            empty=self._empty,
            errors=self._errors,
            kernel_drops=dropped_datagrams(self._socket),
            receive_buffer_asked_bytes=self.receive_buffer_asked_bytes,
            receive_buffer_granted_bytes=self.receive_buffer_granted_bytes,
        )

    def close(self) -> None:
        """Free the port. Closing twice is fine; a receive afterwards returns None."""
        self._socket.close()
