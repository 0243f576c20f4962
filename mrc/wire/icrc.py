"""The RoCEv2 invariant CRC that ends every MRC datagram.

CRC-32 (Ethernet) over eight bytes of ones, the IP header and UDP header with what routers may
change set to ones, the BTH with byte 4 set to ones, and the rest up to the iCRC itself; sent least
significant byte first. What comes before the BTH is the same for all packets of one flow and
length, so its CRC is worked out once (`flow_seed`) and handed to the CRC of the datagram as start
value.

Byte 4 is zero in every packet we send, so it need not be rewritten: CRC-32 is affine, and setting a
byte changes the result by a constant that depends only on how many bytes follow (`byte4_delta`).

The IPv4 identification is covered, and a UDP socket cannot see it: it is taken as 0, which is what
Linux sends from an unconnected socket with Don't Fragment set (segments that the kernel cuts from
one send count up from there). Over IPv6 the iCRC is always exact.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from functools import lru_cache
from itertools import repeat

from isal.isal_zlib import crc32

from mrc.wire.fields import BTH, BadPacket, Buffer

ICRC_BYTES = 4
_UDP_BYTES = 8
_IPV4 = struct.Struct(">BBHHHBBH4s4s")
_IPV6 = struct.Struct(">IHBB16s16s")
_UDP = struct.Struct(">HHHH")
_LITTLE = struct.Struct("<I")
_ONES = b"\xff" * 8
_DONT_FRAGMENT = 0x4000
_BYTE4 = 4

FLOWS_MAX = 16384
"""Seeds kept, at 340 bytes each: 4096 EVs with a few lengths. A flood from many strange sources
fills it and makes it useless for as long as it lasts, but costs no more than these 5 MiB."""
PAYLOAD_BYTES_MAX = 65507
"""Largest UDP payload over IPv4; no packet of MRC comes near it."""

Address = tuple[str, int]
"""Numeric IP address (an IPv6 scope after % is ignored) and UDP port."""


def packed_address(host: str) -> bytes:
    """Return the 4 or 16 bytes of a numeric address; IPv4-mapped IPv6 becomes IPv4.

    Raises:
        ValueError: not a numeric address.
    """
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed


@lru_cache(maxsize=FLOWS_MAX)
def flow_seed(source: Address, destination: Address, payload_bytes: int) -> int:
    """Return the CRC of all that precedes the BTH.

    Args:
        source: sender's address and UDP source port (the EV's low 16 bits).
        destination: receiver's address and UDP port.
        payload_bytes: UDP payload, the iCRC included.
    """
    src, dst = packed_address(source[0]), packed_address(destination[0])
    udp_bytes = _UDP_BYTES + payload_bytes
    if len(src) == 4:
        ip = _IPV4.pack(
            0x45, 0xFF, _IPV4.size + udp_bytes, 0, _DONT_FRAGMENT, 0xFF, 17, 0xFFFF, src, dst
        )
    else:
        ip = _IPV6.pack(0x6FFFFFFF, udp_bytes, 17, 0xFF, src, dst)
    return crc32(_ONES + ip + _UDP.pack(source[1], destination[1], udp_bytes, 0xFFFF))


@lru_cache(maxsize=4096)
def byte4_delta(covered_bytes: int) -> int:
    """Return what setting a zero BTH byte 4 to ones changes in a CRC over `covered_bytes`."""
    plain = bytes(covered_bytes)
    ones = plain[:_BYTE4] + b"\xff" + plain[_BYTE4 + 1 :]
    return crc32(plain) ^ crc32(ones)


def icrcs(rows: Iterable[Buffer], seed: int) -> list[int]:
    """Return the CRCs of datagrams given without their iCRC, before `byte4_delta` is applied."""
    return list(map(crc32, rows, repeat(seed)))


def icrc(datagram: Buffer, seed: int) -> int:
    """Return the iCRC of a datagram given without it, of whatever length and BTH byte 4."""
    if len(datagram) > _BYTE4 and not datagram[_BYTE4]:
        return crc32(datagram, seed) ^ byte4_delta(len(datagram))
    head = bytes(datagram[:_BYTE4]) + b"\xff"
    return crc32(memoryview(datagram)[_BYTE4 + 1 :], crc32(head, seed))


def append_icrc(datagram: bytes, source: Address, destination: Address) -> bytes:
    """Return a control datagram with its iCRC behind it."""
    seed = flow_seed(source, destination, len(datagram) + ICRC_BYTES)
    return datagram + _LITTLE.pack(icrc(datagram, seed))


def check_icrc_untrusted(datagram: Buffer, source: Address, destination: Address) -> None:
    """Check the last four bytes of a whole datagram.

    Raises:
        BadPacket: too short, longer than a datagram can be, or the iCRC is not the one of these
            bytes on this flow.
        ValueError: an address is not numeric: the caller's mistake.
    """
    if not BTH.size + ICRC_BYTES <= len(datagram) <= PAYLOAD_BYTES_MAX:
        raise BadPacket(f"{len(datagram)} bytes are no BTH and iCRC in a UDP datagram")
    end = len(datagram) - ICRC_BYTES
    seed = flow_seed(source, destination, len(datagram))
    if icrc(memoryview(datagram)[:end], seed) != _LITTLE.unpack_from(datagram, end)[0]:
        raise BadPacket("iCRC does not match")
