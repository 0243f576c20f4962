"""What the kernel really puts on the wire, taken off a loopback of its own by a packet socket."""

from __future__ import annotations

import socket
from collections import Counter
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6

from tests.interop import scapy_mrc
from tests.interop.capture import icrc_of, scapy_icrc
from tests.interop.recording import TOS_TRIMMED
from tests.interop.transfer import Transfer, run_transfer
from tests.udp.isolation import in_new_network, ip

pytestmark = [pytest.mark.root, pytest.mark.slow]

BUFFER_BYTES = 16 << 20
"""Some 230 packets of a kilobyte, each charged with the kernel's overhead, and much to spare."""

_ETH_P_ALL = 3
_SO_RCVBUFFORCE = 33
_PACKET_OUTGOING = 4


def captured_transfer(address: str, *, gso: bool) -> tuple[Transfer, list[bytes]]:
    """A transfer in a network of its own, and the IP packets that left for its loopback."""

    def run() -> tuple[Transfer, list[bytes]]:
        # The interface takes no runs, so the kernel cuts them before anyone can see them.
        ip("link set lo gso_max_segs 1")
        # Only a socket for all protocols sees packets on their way out.
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
        with tap:
            tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER_BYTES)
            tap.bind(("lo", _ETH_P_ALL))
            tap.setblocking(False)
            transfer = run_transfer(address, trims=1, gso=gso)
            return transfer, _drain(tap)

    transfer, packets = in_new_network(run)
    ports = (transfer.receiver_port, transfer.sender_port)
    packets = [packet for packet in packets if _parsed(packet)[UDP].dport in ports]
    assert len(packets) == len(transfer.sent)
    return transfer, packets


def _drain(tap: socket.socket) -> list[bytes]:
    """The UDP packets that went out; each comes in again on a loopback and is seen twice."""
    packets: list[bytes] = []
    while True:
        try:
            packet, (_, _, kind, *_) = tap.recvfrom(1 << 16)
        except BlockingIOError:
            return packets
        if kind == _PACKET_OUTGOING and UDP in _parsed(packet):
            packets.append(packet)


def _parsed(packet: bytes) -> Any:
    return IPv6(packet) if packet[0] >> 4 == 6 else IP(packet)


def _data(packet: bytes) -> bytes:
    return bytes(_parsed(packet)[UDP].payload)


@pytest.fixture(scope="module", params=[True, False], ids=["gso", "one by one"])
def over_ipv6(request: pytest.FixtureRequest) -> tuple[Transfer, list[bytes]]:
    """A transfer over IPv6, and its packets: cut by the kernel, or sent one by one."""
    return captured_transfer("::1", gso=request.param)


def test_what_was_sent_is_what_is_on_the_wire(over_ipv6: tuple[Transfer, list[bytes]]) -> None:
    """Every datagram sent is on the wire byte for byte, with its ports and TOS, and no other."""
    transfer, packets = over_ipv6
    on_the_wire = Counter(
        (header[UDP].sport, header[UDP].dport, header.tc, _data(packet))
        for packet in packets
        for header in [_parsed(packet)]
    )
    assert on_the_wire == Counter(
        (sent.source[1], sent.destination[1], sent.tos, sent.data) for sent in transfer.sent
    )


def test_the_icrc_is_exact_over_ipv6(over_ipv6: tuple[Transfer, list[bytes]]) -> None:
    """With the headers the kernel made, scapy computes the iCRC that each packet has."""
    _, packets = over_ipv6
    whole = [packet for packet in packets if _parsed(packet).tc != TOS_TRIMMED]
    assert len(whole) == len(packets) - 1
    assert all(scapy_icrc(packet) == icrc_of(packet) for packet in whole)


def test_an_answer_tells_the_path_as_it_was_on_the_wire(
    over_ipv6: tuple[Transfer, list[bytes]],
) -> None:
    """The entropy in a SACK or NACK is the flow label's low half and source port of a packet."""
    _, packets = over_ipv6
    paths = {
        (header.fl & 0xFFFF) << 16 | header[UDP].sport
        for packet in packets
        for header in [_parsed(packet)]
    }
    entropies = set()
    for packet in packets:
        mrc_packet = scapy_mrc.dissect(_data(packet))
        for layer in scapy_mrc.layers(mrc_packet):
            if layer.name in ("SETH", "NETH"):
                entropies.add(layer.entropy)
    assert entropies
    assert entropies <= paths


def test_the_icrc_is_exact_over_ipv4_when_sent_one_by_one() -> None:
    """Sent one by one, IPv4 packets have Don't Fragment, identification 0 and an exact iCRC."""
    _, packets = captured_transfer("127.0.0.1", gso=False)
    for packet in packets:
        header = _parsed(packet)
        assert (header.id, str(header.flags)) == (0, "DF")
        if header.tos != TOS_TRIMMED:
            assert scapy_icrc(packet) == icrc_of(packet)


def test_the_icrc_over_ipv4_holds_for_identification_0_when_the_kernel_cuts() -> None:
    """Cut by the kernel, IPv4 packets count up from 0: the iCRC takes all of them for the first."""
    _, packets = captured_transfer("127.0.0.1", gso=True)
    identifications = set()
    for packet in packets:
        header = _parsed(packet)
        identifications.add(header.id)
        assert str(header.flags) == "DF"
        if header.tos != TOS_TRIMMED:
            assert (scapy_icrc(packet) == icrc_of(packet)) == (header.id == 0)
            as_if_first = packet[:4] + bytes(2) + packet[6:]
            assert scapy_icrc(as_if_first) == icrc_of(packet)
    assert max(identifications) > 1
