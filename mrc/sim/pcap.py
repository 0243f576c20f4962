"""Writes classic pcap files, with nanoseconds and raw IP packets (link type 101).

The IP and UDP headers are what a kernel would have written: Don't Fragment, identification 0, right
checksums. So analysers that check the iCRC find it right.
"""

from __future__ import annotations

import ipaddress
import struct
from functools import lru_cache
from typing import BinaryIO

from mrc.sim.addresses import UDP_PORT, address
from mrc.sim.datagram import Datagram
from mrc.units import NS_PER_S

MAGIC_NS = 0xA1B23C4D
LINKTYPE_RAW = 101
_HEAD = struct.Struct("<IHHiIII")
_RECORD = struct.Struct("<IIII")
_IPV4 = struct.Struct(">BBHHHBBH4s4s")
_IPV6 = struct.Struct(">IHBB16s16s")
_UDP = struct.Struct(">HHHH")
_DONT_FRAGMENT = 0x4000
_PROTOCOL_UDP = 17
_SNAP_BYTES = 65535


class PcapWriter:
    """Writes datagrams of one simulation to an open binary file."""

    def __init__(self, file: BinaryIO, *, ipv6: bool) -> None:
        self._file = file
        self._ipv6 = ipv6
        file.write(_HEAD.pack(MAGIC_NS, 2, 4, 0, 0, _SNAP_BYTES, LINKTYPE_RAW))

    def write(self, now_ns: int, datagram: Datagram, *, ttl: int) -> None:
        """Add one datagram."""
        from_to = (datagram.sender, datagram.plane), (datagram.receiver, datagram.plane)
        source, destination = (packed(host, plane, ipv6=self._ipv6) for host, plane in from_to)
        udp = _udp(datagram, source, destination)
        if self._ipv6:
            first = 6 << 28 | datagram.tos << 20 | datagram.flow_label
            ip = _IPV6.pack(first, len(udp), _PROTOCOL_UDP, ttl, source, destination)
        else:
            ip = _ipv4(datagram.tos, len(udp), ttl, source, destination)
        length = len(ip) + len(udp)
        seconds, rest_ns = divmod(now_ns, NS_PER_S)
        self._file.write(_RECORD.pack(seconds, rest_ns, length, length) + ip + udp)


@lru_cache(maxsize=256)
def packed(host: int, plane: int, *, ipv6: bool) -> bytes:
    """Return the address of a host's port as bytes."""
    return ipaddress.ip_address(address(host, plane, ipv6=ipv6)).packed


def _udp(datagram: Datagram, source: bytes, destination: bytes) -> bytes:
    length = _UDP.size + len(datagram.data)
    head = _UDP.pack(datagram.source_port, UDP_PORT, length, 0)
    pseudo = source + destination + struct.pack(">II", length, _PROTOCOL_UDP)
    checksum = _checksum(pseudo + head + datagram.data) or 0xFFFF
    return _UDP.pack(datagram.source_port, UDP_PORT, length, checksum) + datagram.data


def _ipv4(tos: int, length: int, ttl: int, source: bytes, destination: bytes) -> bytes:
    fields = (0x45, tos, _IPV4.size + length, 0, _DONT_FRAGMENT, ttl, _PROTOCOL_UDP)
    checksum = _checksum(_IPV4.pack(*fields, 0, source, destination))
    return _IPV4.pack(*fields, checksum, source, destination)


def _checksum(data: bytes) -> int:
    """Return the internet checksum of RFC 1071."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data[: len(data) & ~1]))
    total += data[-1] << 8 if len(data) & 1 else 0
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
