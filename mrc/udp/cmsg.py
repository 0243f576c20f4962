"""Ancillary data of sends and receives: what to say about a run, and what the kernel says of one.

Knows the layout of control messages, and never opens a socket. A value arrives in the width the
kernel chose (IP_TOS one byte, the others four), so lengths are read, not assumed.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable

from mrc.udp.linux import (
    IP_TOS,
    IPV6_FLOWINFO,
    IPV6_TCLASS,
    SOL_IP,
    SOL_IPV6,
    SOL_UDP,
    UDP_GRO,
    UDP_SEGMENT,
)

Ancillary = list[tuple[int, int, bytes]]
"""Control messages as `socket.sendmsg` takes them: level, type, value."""

FLOW_LABEL_MASK = 0xFFFFF

RECEIVE_ANCILLARY_BYTES = 128
"""Room for all control messages of one receive: three of 24 bytes each, and some to spare."""

_LOWEST_BYTE = 0 if sys.byteorder == "little" else -1


def send_ancillary(*, ipv6: bool, tos: int, segment_bytes: int | None = None) -> Ancillary:
    """Control messages for one send.

    Args:
        ipv6: which of the two families the socket is of.
        tos: DSCP << 2 | ECN, 0 to 255.
        segment_bytes: size of a segment for UDP_SEGMENT; None for a single datagram.
    """
    value = struct.pack("=i", tos)
    ancillary = [(SOL_IPV6, IPV6_TCLASS, value) if ipv6 else (SOL_IP, IP_TOS, value)]
    if segment_bytes is not None:
        ancillary.append((SOL_UDP, UDP_SEGMENT, struct.pack("=H", segment_bytes)))
    return ancillary


def parse_received(ancillary: Iterable[tuple[int, int, bytes]]) -> tuple[int, int, int]:
    """Read the control messages of one receive; unknown ones are skipped.

    Returns:
        Size of a segment in bytes (0: a single datagram), TOS, and IPv6 flow label. A plain
        tuple, for this runs once a receive.
    """
    segment_bytes = tos = flow_label = 0
    for level, kind, value in ancillary:
        if level == SOL_UDP:
            if kind == UDP_GRO:
                segment_bytes = int.from_bytes(value, sys.byteorder)
        elif level == SOL_IPV6:
            if kind == IPV6_TCLASS:
                tos = value[_LOWEST_BYTE]
            elif kind == IPV6_FLOWINFO:
                flow_label = int.from_bytes(value, "big") & FLOW_LABEL_MASK
        elif level == SOL_IP and kind == IP_TOS:
            tos = value[_LOWEST_BYTE]
    return segment_bytes, tos, flow_label
