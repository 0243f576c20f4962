"""The iCRC a second time, from its description, byte by byte and with nothing of ours."""

import ipaddress
import zlib


def description_icrc(
    datagram: bytes,
    source: tuple[str, int],
    destination: tuple[str, int],
    *,
    identification: int = 0,
) -> int:
    """The iCRC of a UDP payload given without it.

    CRC-32 over eight bytes of ones, the IP header with its mutable fields (v4: TOS, TTL, checksum;
    v6: traffic class, flow label, hop limit) as ones, the UDP header with its checksum as ones, the
    BTH with byte 4 as ones, and the rest.
    """
    source_ip, destination_ip = (ipaddress.ip_address(name) for name, _ in (source, destination))
    udp_bytes = 8 + len(datagram) + 4
    udp = b"".join(
        number.to_bytes(2, "big") for number in (source[1], destination[1], udp_bytes, 0xFFFF)
    )
    if source_ip.version == 4:
        ip = (
            b"\x45\xff"
            + (20 + udp_bytes).to_bytes(2, "big")
            + identification.to_bytes(2, "big")
            + b"\x40\x00"  # Don't Fragment
            + b"\xff\x11\xff\xff"
        )
    else:
        ip = b"\x6f\xff\xff\xff" + udp_bytes.to_bytes(2, "big") + b"\x11\xff"
    ip += source_ip.packed + destination_ip.packed
    return zlib.crc32(b"\xff" * 8 + ip + udp + datagram[:4] + b"\xff" + datagram[5:])
