"""Captures as other programs read them, and the iCRC as scapy computes it from a whole packet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scapy.contrib import roce
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw
from scapy.utils import RawPcapWriter

from tests.interop.recording import Sent

LINK_TYPE_RAW_IP = 101
ROCE_PORT = 4791
BTH_BYTES, ICRC_BYTES = 12, 4


def ip_packet(sent: Sent, *, destination_port: int | None = None) -> bytes:
    """The IP packet that carried a datagram, over IPv6 or IPv4, made by scapy."""
    (source, source_port), (destination, port) = sent.source, sent.destination
    ip: Any = (
        IPv6(src=source, dst=destination, tc=sent.tos)
        if ":" in source
        else IP(src=source, dst=destination, tos=sent.tos, id=0, flags="DF")
    )
    udp = UDP(sport=source_port, dport=port if destination_port is None else destination_port)
    return bytes(ip / udp / Raw(sent.data))


def write_capture(path: Path, sent: Iterable[Sent], *, destination_port: int | None = None) -> None:
    """Write datagrams as a capture of IP packets, if wished with another destination port."""
    with RawPcapWriter(str(path), linktype=LINK_TYPE_RAW_IP) as writer:
        writer.write_header(None)
        for index, each in enumerate(sent):
            packet = ip_packet(each, destination_port=destination_port)
            writer.write_packet(packet, sec=0, usec=index)


def scapy_icrc(packet: bytes) -> int:
    """The iCRC that an IP packet with a RoCE datagram should end with, by scapy's RoCE layers."""
    ip: Any = IPv6(packet) if packet[0] >> 4 == 6 else IP(packet)
    data = bytes(ip[UDP].payload)
    bth = roce.BTH(data[:BTH_BYTES] + bytes(ICRC_BYTES))
    bth.icrc = None
    ip[UDP].remove_payload()
    built = bytes(ip / bth / Raw(data[BTH_BYTES:-ICRC_BYTES]))
    return int.from_bytes(built[-ICRC_BYTES:], "little")


def icrc_of(data: bytes) -> int:
    """The iCRC that a datagram does end with."""
    return int.from_bytes(data[-ICRC_BYTES:], "little")
