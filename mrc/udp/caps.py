"""What this kernel does for UDP, found out by trying it once on loopback.

A version number says little: back-ports, containers and other operating systems differ. What cannot
be tried is taken as missing, and the sockets then work one datagram at a time.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mrc.udp.cmsg import RECEIVE_ANCILLARY_BYTES, parse_received, send_ancillary
from mrc.udp.linux import (
    IP_RECVTOS,
    IPV6_FLOWINFO,
    IPV6_FLOWINFO_SEND,
    IPV6_RECVTCLASS,
    SOL_IP,
    SOL_IPV6,
    SOL_UDP,
    UDP_GRO,
    UDP_SEGMENT,
    UDP_SEGMENTS_MAX,
)
from mrc.udp.options import is_out_of_descriptors, open_udp, try_option

_PROBE_SEGMENT_BYTES = 8
_PROBE_TOS = 0x2A << 2 | 2
_PROBE_FLOW_LABEL = 0x5A5A5
# Loopback delivers within the send, unless the machine is busy enough to put it off.
_PROBE_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class Caps:
    """What the sockets of one address family may use."""

    gso: bool
    """One system call sends a run, cut into datagrams by the kernel or the device."""
    gro: bool
    """One system call receives a run that the kernel put together."""
    ecn: bool
    """ECN bits can be set a run and read a run."""
    flow_label: bool
    """An IPv6 flow label can be chosen a run, without a lease; False for IPv4."""
    max_segments: int = UDP_SEGMENTS_MAX
    """Datagrams a system call sends at most with GSO; 1 without."""


NO_CAPS = Caps(gso=False, gro=False, ecn=False, flow_label=False, max_segments=1)


def probe_caps(family: int, environ: Mapping[str, str] = os.environ) -> Caps:
    """What this kernel can do for `family` (AF_INET or AF_INET6); tried once a process.

    `MRC_GSO=0`, `MRC_GRO=0` and `MRC_ECN=0` in the environment switch a feature off.

    Raises:
        LocalError: too many files are open, which says nothing of the kernel.
    """
    caps = _probe(family)
    if environ.get("MRC_GSO") == "0":
        caps = replace(caps, gso=False, max_segments=1)
    if environ.get("MRC_GRO") == "0":
        caps = replace(caps, gro=False)
    if environ.get("MRC_ECN") == "0":
        caps = replace(caps, ecn=False)
    return caps


@functools.cache
def _probe(family: int) -> Caps:
    try:
        with open_udp(family) as receiver, open_udp(family) as sender:
            return _probe_with(receiver, sender)
    except OSError as error:
        if is_out_of_descriptors(error):
            raise
        return NO_CAPS


def _probe_with(receiver: socket.socket, sender: socket.socket) -> Caps:
    ipv6 = receiver.family == socket.AF_INET6
    gro = try_option(receiver, SOL_UDP, UDP_GRO)
    flow_label = ipv6 and try_option(sender, SOL_IPV6, IPV6_FLOWINFO_SEND)
    for option in (IPV6_RECVTCLASS, IPV6_FLOWINFO) if ipv6 else (IP_RECVTOS,):
        try_option(receiver, SOL_IPV6 if ipv6 else SOL_IP, option)
    try:
        receiver.settimeout(_PROBE_TIMEOUT_S)
        receiver.bind(("::1" if ipv6 else "127.0.0.1", 0))
        _, (_, tos, label) = _exchange(receiver, sender, segment_bytes=None)
    except OSError:
        # Loopback is down, as in a fresh network namespace: trust the options. A run that the
        # kernel then refuses to segment is sent again one by one anyway.
        gso = try_option(sender, SOL_UDP, UDP_SEGMENT, _PROBE_SEGMENT_BYTES)
        return Caps(gso, gro, True, flow_label, UDP_SEGMENTS_MAX if gso else 1)
    try:
        byte_count, (merged_bytes, _, _) = _exchange(
            receiver, sender, segment_bytes=_PROBE_SEGMENT_BYTES
        )
    except OSError:
        byte_count = merged_bytes = 0
    # A kernel that does not know UDP_SEGMENT in a control message ignores it: one long datagram.
    cut = byte_count == _PROBE_SEGMENT_BYTES
    gso = cut or merged_bytes == _PROBE_SEGMENT_BYTES
    return Caps(
        gso=gso,
        gro=gro and not cut,
        ecn=tos == _PROBE_TOS,
        flow_label=label == _PROBE_FLOW_LABEL,
        max_segments=UDP_SEGMENTS_MAX if gso else 1,
    )


def _exchange(
    receiver: socket.socket, sender: socket.socket, *, segment_bytes: int | None
) -> tuple[int, tuple[int, int, int]]:
    """Send two segments' worth of bytes; the length of what comes first, and what is said of it."""
    ipv6 = receiver.family == socket.AF_INET6
    port = receiver.getsockname()[1]
    destination = ("::1", port, _PROBE_FLOW_LABEL, 0) if ipv6 else ("127.0.0.1", port)
    ancillary = send_ancillary(ipv6=ipv6, tos=_PROBE_TOS, segment_bytes=segment_bytes)
    sender.sendmsg([bytes(2 * _PROBE_SEGMENT_BYTES)], ancillary, 0, destination)
    data, received, _, _ = receiver.recvmsg(64, RECEIVE_ANCILLARY_BYTES)
    return len(data), parse_received(received)
