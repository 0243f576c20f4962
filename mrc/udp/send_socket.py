"""The sending socket of one EV: runs of datagrams go out, outcomes come back.

Bound to a source address and port, never connected: one socket serves every peer of its plane.
Knows nothing of what the datagrams say, and never waits.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from errno import EIO

from mrc.errors import ConfigError
from mrc.udp.address import SockAddr, family_of, local_address
from mrc.udp.caps import Caps
from mrc.udp.cmsg import FLOW_LABEL_MASK, Ancillary, send_ancillary
from mrc.udp.errqueue import SocketError, read_errors
from mrc.udp.linux import (
    IP_MTU_DISCOVER,
    IP_RECVERR,
    IPV6_AUTOFLOWLABEL,
    IPV6_DONTFRAG,
    IPV6_FLOWINFO_SEND,
    IPV6_MTU_DISCOVER,
    IPV6_RECVERR,
    PMTUDISC_PROBE,
    SOL_IP,
    SOL_IPV6,
    UDP_PAYLOAD_BYTES_MAX,
)
from mrc.udp.options import (
    bind,
    drop_all_input,
    dropped_datagrams,
    open_udp,
    set_buffer,
    try_option,
)
from mrc.udp.outcome import SendOutcome, may_be_pending, may_refuse_gso, outcome_of

SEND_BUFFER_BYTES = 1 << 20
"""Bytes a slow device may hold back for one EV: a few runs, less than a queue worth waiting in."""

# Entries taken off the error queue a call, and stray datagrams where no filter stops them: a few
# calls empty a full queue, and whoever fills it on purpose gets no more than this.
_ENTRIES_A_CALL = 64
# Sizes and TOS values are few; a caller that varies them without end must not fill the memory.
_ANCILLARY_CACHED_MAX = 256
# Enough of a run to tell it from another: its first header.
_IDENTITY_BYTES = 64


@dataclass(frozen=True, slots=True)
class SendStatistics:
    """Counters of one sending socket since it was opened."""

    calls: int
    """System calls that sent something."""
    datagrams: int
    """Datagrams sent."""
    sent_bytes: int
    """Their UDP payload."""
    outcomes: tuple[int, ...]
    """How often `send` ended other than SENT, indexed by `SendOutcome`."""
    pending_errors: int
    """Errors of earlier datagrams met while sending, cleared by repeating the system call."""
    errors: int
    """Entries taken off the error queue."""
    stray_datagrams: int
    """Datagrams that arrived at this port and were thrown away, modulo 2**32."""
    gso_off: tuple[SockAddr, ...]
    """Destinations to which the kernel would not segment: one datagram a system call there."""
    last_errno: int
    """Of the last outcome other than SENT; 0 if there was none."""
    send_buffer_asked_bytes: int
    send_buffer_granted_bytes: int
    """Less than asked for means net.core.wmem_max is too low."""


class SendSocket:
    """One EV's socket; for one thread.

    Don't Fragment is set, errors of earlier sends are collected, and the kernel drops what
    arrives at the port without waking anyone.

    Args:
        address: numeric address of this machine, a link-local one with its `%interface`.
        port: the source port; 0 lets the kernel choose.
        caps: what the kernel can do for this address family, from `probe_caps`.
        send_buffer_bytes: what a slow device may hold back before WOULD_BLOCK; the kernel may
            grant less (net.core.wmem_max).

    Raises:
        ConfigError: address or port cannot be used.
        LocalError: the port is in use or the address is not on this machine; errno kept.
    """

    def __init__(
        self, address: str, port: int, *, caps: Caps, send_buffer_bytes: int = SEND_BUFFER_BYTES
    ) -> None:
        name = local_address(address, port)
        self._ipv6 = family_of(address) == socket.AF_INET6
        self._socket = open_udp(family_of(address))
        try:
            self.send_buffer_granted_bytes = set_buffer(
                self._socket, socket.SO_SNDBUF, send_buffer_bytes
            )
            self._filtered = self._configure(caps)
            bind(self._socket, name)
        except BaseException:
            self._socket.close()
            raise
        self.address = address
        self.port: int = self._socket.getsockname()[1]
        self.send_buffer_asked_bytes = send_buffer_bytes
        self.last_errno = 0
        self._sendmsg = self._socket.sendmsg
        self._segments_max = caps.max_segments if caps.gso else 1
        self._tos_mask = 0xFF if caps.ecn else 0xFC
        self._choose_flow_label = self._ipv6 and caps.flow_label
        self._ancillary: dict[tuple[int | None, int], Ancillary] = {}
        self._gso_off: set[SockAddr] = set()
        # Which run a full send buffer cut short, and how many bytes of it went out.
        self._unfinished: tuple[object, int] | None = None
        self._calls = self._datagrams = self._sent_bytes = 0
        self._pending_errors = self._errors = self._stray_datagrams = 0
        self._outcomes = [0] * len(SendOutcome)

    def _configure(self, caps: Caps) -> bool:
        """Set all options; whether the kernel will drop what arrives."""
        sock = self._socket
        # The error queue also makes drops in this machine's own queues visible, as ENOBUFS.
        if self._ipv6:
            try_option(sock, SOL_IPV6, IPV6_RECVERR)
            try_option(sock, SOL_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_PROBE)
            try_option(sock, SOL_IPV6, IPV6_DONTFRAG)
            # The flow label is half of the EV: without one of ours it shall be 0.
            try_option(sock, SOL_IPV6, IPV6_AUTOFLOWLABEL, 0)
            if caps.flow_label:
                try_option(sock, SOL_IPV6, IPV6_FLOWINFO_SEND)
        else:
            try_option(sock, SOL_IP, IP_RECVERR)
            try_option(sock, SOL_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE)
        return drop_all_input(sock)

    def fileno(self) -> int:
        """The descriptor for a selector: readable means errors to drain. -1 once closed."""
        return self._socket.fileno()

    def send(
        self,
        buffer: memoryview,
        segment_bytes: int,
        destination: SockAddr,
        tos: int,
        flow_label: int = 0,
    ) -> SendOutcome:
        """Send a run: one system call where the kernel segments, else one a datagram.

        After WOULD_BLOCK the same call again goes on where the run was cut short; any other call
        gives up the rest of it. After another outcome than these and SENT, the rest of the run
        was not sent and will not be. Never raises OSError.

        Args:
            buffer: the datagrams back to back, contiguous, at least one byte.
            segment_bytes: size of each datagram but the last, which may be shorter.
            destination: from `peer_address`; not checked again.
            tos: DSCP << 2 | ECN, 0 to 255; ECN is left out where caps say so.
            flow_label: IPv6 flow label, 20 bits; ignored over IPv4 and by kernels that do not let
                it be chosen.

        Raises:
            ConfigError: `segment_bytes` or `tos` out of range.
        """
        if flow_label and self._choose_flow_label and len(destination) == 4:
            label = flow_label & FLOW_LABEL_MASK
            destination = (destination[0], destination[1], label, destination[3])
        byte_count = buffer.nbytes
        several = byte_count > segment_bytes
        key = (segment_bytes if several else None, tos)
        ancillary = self._ancillary.get(key) or self._new_ancillary(*key)
        datagrams = -(-byte_count // segment_bytes)
        if several and (
            datagrams > self._segments_max
            or byte_count > UDP_PAYLOAD_BYTES_MAX
            or (self._gso_off and destination in self._gso_off)
        ):
            return self._send_pieces(buffer, segment_bytes, destination, tos)
        self._unfinished = None
        try:
            self._sendmsg((buffer,), ancillary, 0, destination)
        except OSError as error:
            return self._send_pieces(buffer, segment_bytes, destination, tos, error.errno or EIO)
        self._calls += 1
        self._datagrams += datagrams
        self._sent_bytes += byte_count
        return SendOutcome.SENT

    def _send_pieces(
        self,
        buffer: memoryview,
        segment_bytes: int,
        destination: SockAddr,
        tos: int,
        failed_errno: int = 0,
    ) -> SendOutcome:
        """Send a run in several calls: too long for one, no segmenting, or one call failed.

        `failed_errno` is what the kernel said to the whole run in one call, 0 if not tried.
        """
        flat = buffer.cast("B")
        identity = run_identity(flat, segment_bytes, destination)
        offset = self._resume_offset(identity)
        piece_bytes = self._piece_bytes(segment_bytes, destination)
        code = failed_errno
        gso_refused = False
        while offset < flat.nbytes:
            piece = flat[offset : offset + piece_bytes]
            code = code or self._call(piece, segment_bytes, destination, tos)
            if may_be_pending(code):
                first_errno, code = code, self._call(piece, segment_bytes, destination, tos)
                self._pending_errors += int(code != first_errno)
            if may_refuse_gso(code) and piece.nbytes > segment_bytes:
                gso_refused = True
                piece_bytes = segment_bytes
                code = 0
                continue
            if code:
                break
            if gso_refused:
                # One datagram passed: the kernel refused to segment, not the destination.
                self._gso_off.add(destination)
            offset += piece.nbytes
        return self._outcome(code, identity, offset)

    def _call(self, piece: memoryview, segment_bytes: int, destination: SockAddr, tos: int) -> int:
        """One system call: 0, or the errno it failed with."""
        datagrams = -(-piece.nbytes // segment_bytes)
        key = (segment_bytes if datagrams > 1 else None, tos)
        ancillary = self._ancillary.get(key) or self._new_ancillary(*key)
        try:
            self._sendmsg((piece,), ancillary, 0, destination)
        except OSError as error:
            return error.errno or EIO
        self._calls += 1
        self._datagrams += datagrams
        self._sent_bytes += piece.nbytes
        return 0

    def _outcome(self, code: int, identity: object, offset: int) -> SendOutcome:
        outcome = outcome_of(code)
        if outcome is not SendOutcome.SENT:
            self.last_errno = code
            self._outcomes[outcome] += 1
        if outcome is SendOutcome.WOULD_BLOCK:
            self._unfinished = (identity, offset)
        return outcome

    def _resume_offset(self, identity: object) -> int:
        """How much of this run went out before the send buffer was full; asked once."""
        unfinished, self._unfinished = self._unfinished, None
        return unfinished[1] if unfinished is not None and unfinished[0] == identity else 0

    def _piece_bytes(self, segment_bytes: int, destination: SockAddr) -> int:
        """The most of a run that goes out in one call."""
        if destination in self._gso_off:
            return segment_bytes
        fitting = UDP_PAYLOAD_BYTES_MAX // segment_bytes
        return segment_bytes * max(1, min(fitting, self._segments_max))

    def _new_ancillary(self, segment_bytes: int | None, tos: int) -> Ancillary:
        """Control messages for runs cut into `segment_bytes`, or for one datagram; kept."""
        if not 0 <= tos <= 0xFF:
            raise ConfigError(f"tos {tos} is not between 0 and 255")
        if segment_bytes is not None and not 1 <= segment_bytes <= UDP_PAYLOAD_BYTES_MAX:
            raise ConfigError(
                f"segment of {segment_bytes} bytes is not between 1 and {UDP_PAYLOAD_BYTES_MAX}"
            )
        if len(self._ancillary) >= _ANCILLARY_CACHED_MAX:
            self._ancillary.clear()
        ancillary = send_ancillary(
            ipv6=self._ipv6, tos=tos & self._tos_mask, segment_bytes=segment_bytes
        )
        self._ancillary[segment_bytes, tos] = ancillary
        return ancillary

    def drain_errors(self) -> list[SocketError]:
        """Take what the error queue holds, oldest first, up to 64 entries a call.

        Call it when the socket is readable. Also throws away stray datagrams where the kernel
        does not.
        """
        errors = read_errors(self._socket, _ENTRIES_A_CALL)
        self._errors += len(errors)
        if not self._filtered:
            self._discard_strays()
        return errors

    def _discard_strays(self) -> None:
        scratch = bytearray(1)
        for _ in range(_ENTRIES_A_CALL):
            try:
                self._socket.recv_into(scratch)
            except BlockingIOError:
                return
            except OSError:
                continue
            self._stray_datagrams += 1

    def statistics(self) -> SendStatistics:
        """The counters so far; once closed, without what the kernel dropped."""
        return SendStatistics(
            calls=self._calls,
            datagrams=self._datagrams,
            sent_bytes=self._sent_bytes,
            outcomes=tuple(self._outcomes),
            pending_errors=self._pending_errors,
            errors=self._errors,
            stray_datagrams=self._stray_datagrams + dropped_datagrams(self._socket),
            gso_off=tuple(self._gso_off),
            last_errno=self.last_errno,
            send_buffer_asked_bytes=self.send_buffer_asked_bytes,
            send_buffer_granted_bytes=self.send_buffer_granted_bytes,
        )

    def close(self) -> None:
        """Free the port. Closing twice is fine; a send afterwards ends as FAILED."""
        self._socket.close()


def run_identity(buffer: memoryview, segment_bytes: int, destination: SockAddr) -> object:
    """What tells a repetition of a call from the next run: compare with ==."""
    start = bytes(buffer.cast("B")[:_IDENTITY_BYTES])
    return (destination, segment_bytes, buffer.nbytes, start)
