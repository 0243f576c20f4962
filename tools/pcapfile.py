"""Reads UDP datagrams out of a capture file in the classic pcap format.

Takes what tcpdump writes: both byte orders, microseconds and nanoseconds, and the link types of
Ethernet, Linux "any" captures, loopback and raw IP. Fragments are passed over.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN = 0x0800, 0x86DD, 0x8100
PROTOCOL_UDP = 17
PACKET_BYTES_MAX = 1 << 18
"""The largest snapshot length that capture programs use; a longer packet is a damaged file."""

# Magic number as the file's first four bytes: byte order, units of the fraction in a second.
_MAGIC = {
    b"\xd4\xc3\xb2\xa1": ("<", 10**6),
    b"\xa1\xb2\xc3\xd4": (">", 10**6),
    b"\x4d\x3c\xb2\xa1": ("<", 10**9),
    b"\xa1\xb2\x3c\x4d": (">", 10**9),
}
_PCAPNG = b"\x0a\x0d\x0d\x0a"

# Link type: bytes before the IP header, and where in them the EtherType stands; None where the
# version field of the IP header has to tell.
_LINKS: dict[int, tuple[int, int | None]] = {
    0: (4, None),  # BSD loopback
    1: (14, 12),  # Ethernet
    101: (0, None),  # raw IP
    113: (16, 14),  # Linux cooked
    228: (0, None),  # raw IPv4
    229: (0, None),  # raw IPv6
    276: (20, 0),  # Linux cooked, version 2
}


class NotACaptureError(ValueError):
    """The file is none, or one of a format or link type that is not read here."""


@dataclass(frozen=True, slots=True)
class UdpDatagram:
    """One UDP datagram with what its headers say."""

    number: int
    """Place of its packet in the file, from 1, as capture programs count."""
    time_ns: int
    source: tuple[str, int]
    destination: tuple[str, int]
    tos: int
    """IPv4 TOS or IPv6 traffic class."""
    identification: int
    """IPv4 identification; 0 over IPv6."""
    flow_label: int
    """IPv6 flow label; 0 over IPv4."""
    payload: bytes
    whole: bool
    """Whether the capture holds all of the payload."""


def udp_datagrams(file: BinaryIO) -> Iterator[UdpDatagram]:
    """Yield the UDP datagrams of a capture, in its order.

    Raises:
        NotACaptureError: at the start, or where the file breaks off or makes no sense.
    """
    head = file.read(24)
    if head[:4] == _PCAPNG:
        raise NotACaptureError("pcapng: convert it with 'editcap -F pcap'")
    if len(head) < 24 or head[:4] not in _MAGIC:
        raise NotACaptureError("not a pcap file")
    order, units = _MAGIC[head[:4]]
    link_type = struct.unpack(f"{order}I", head[20:])[0] & 0xFFFF
    if link_type not in _LINKS:
        raise NotACaptureError(f"link type {link_type} is not known here")
    record = struct.Struct(f"{order}4I")
    number = 0
    while head := file.read(record.size):
        number += 1
        if len(head) < record.size:
            raise NotACaptureError(f"breaks off in packet {number}")
        seconds, fraction, size, _ = record.unpack(head)
        packet = file.read(size) if size <= PACKET_BYTES_MAX else b""
        if len(packet) < size:
            raise NotACaptureError(f"breaks off in packet {number}")
        time_ns = seconds * 10**9 + fraction * (10**9 // units)
        try:
            datagram = _datagram(number, time_ns, _network(packet, *_LINKS[link_type]))
        except (struct.error, IndexError):
            continue  # cut off inside its headers
        if datagram is not None:
            yield datagram


def _network(packet: bytes, link_bytes: int, ethertype_at: int | None) -> bytes:
    """Return a packet from its IP header on; nothing where it is not IP."""
    if ethertype_at is not None:
        (ethertype,) = struct.unpack_from(">H", packet, ethertype_at)
        while ethertype == ETHERTYPE_VLAN:
            (ethertype,) = struct.unpack_from(">H", packet, link_bytes + 2)
            link_bytes += 4
        if ethertype not in (ETHERTYPE_IPV4, ETHERTYPE_IPV6):
            return b""
    return packet[link_bytes:]


def _datagram(number: int, time_ns: int, ip: bytes) -> UdpDatagram | None:
    """Read IP and UDP headers; None for what is not an unfragmented UDP datagram."""
    version = ip[0] >> 4 if ip else 0
    tos = identification = flow_label = 0
    if version == 4:
        tos, identification, fragment = struct.unpack_from(">xBxxHH", ip)
        if fragment & 0x3FFF or ip[9] != PROTOCOL_UDP:
            return None
        addresses = struct.unpack_from(">12x4s4s", ip)
        udp_at = (ip[0] & 0x0F) * 4
    elif version == 6:
        (word,) = struct.unpack_from(">I", ip)
        tos, flow_label = word >> 20 & 0xFF, word & 0xFFFFF
        if ip[6] != PROTOCOL_UDP:
            return None
        addresses = struct.unpack_from(">8x16s16s", ip)
        udp_at = 40
    else:
        return None
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    source, destination = (socket.inet_ntop(family, packed) for packed in addresses)
    source_port, destination_port, udp_bytes = struct.unpack_from(">HHH", ip, udp_at)
    return UdpDatagram(
        number,
        time_ns,
        (source, source_port),
        (destination, destination_port),
        tos,
        identification,
        flow_label,
        ip[udp_at + 8 : udp_at + udp_bytes],
        len(ip) >= udp_at + udp_bytes,
    )
