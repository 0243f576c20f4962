"""What the switch program takes away, changes and leaves alone, one packet at a time."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, ICMPv6ND_NS, IPv6, IPv6ExtHdrFragment
from scapy.layers.l2 import ARP, Dot1Q
from scapy.packet import Packet, Raw

from mrc.wire.fields import BadPacket
from mrc.wire.icrc import check_icrc_untrusted
from netns import switch
from netns.switch import LinkSettings, SwitchPort
from tests.netns.support_switch import (
    ADDRESSES,
    CE,
    CONTROL,
    DROPPED,
    EV,
    FORWARDED,
    HEADER_BYTES,
    KEPT_BYTES,
    MILLION,
    MRC_PORT,
    NOT_ECT,
    SENT_ANEW,
    SLOW,
    TRIMMED,
    ethernet,
    ip_header,
    require_programs,
    run,
    tos_of,
    udp_packet,
    with_right_checksums,
    write_packet,
)

pytestmark = pytest.mark.root


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    require_programs()


@pytest.fixture
def port() -> Iterator[SwitchPort]:
    """A port with settings that do nothing."""
    with SwitchPort.load(seed=1) as made:
        yield made


# ---- faults ------------------------------------------------------------------------------------


def predicted_losses(seed: int, packets: int, ppm: int) -> list[bool]:
    """Which packets are lost: output 8n of SplitMix64 decides about packet n."""
    mask, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15
    lost = []
    for number in range(packets):
        z = (seed + (8 * number + 1) * golden) & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        z ^= z >> 31
        lost.append((z >> 32) * MILLION >> 32 < ppm)
    return lost


@pytest.mark.parametrize("seed", [0, 1, (1 << 64) - 1])
def test_the_same_seed_loses_the_same_packets(seed: int) -> None:
    """Losses follow SplitMix64 from the seed, packet by packet."""
    packet = udp_packet(b"")
    with SwitchPort.load(seed=seed) as port:
        port.configure(LinkSettings(loss_ppm=300_000))
        lost = [run(port, packet).answer == DROPPED for _ in range(300)]
        assert lost == predicted_losses(seed, 300, 300_000)
        assert port.counters().lost == sum(lost)
        assert port.counters().packets == 300 - sum(lost)


@pytest.mark.parametrize("ppm", [100, 10_000, 500_000, MILLION])
def test_losses_are_as_frequent_as_asked(port: SwitchPort, ppm: int) -> None:
    """Within four standard deviations in 100 000 packets; a million of a million is all."""
    port.configure(LinkSettings(loss_ppm=ppm))
    packets = 100_000
    run(port, udp_packet(b""), repeat=packets)
    share = ppm / MILLION
    margin = 4 * (packets * share * (1 - share)) ** 0.5
    assert abs(port.counters().lost - packets * share) <= margin


DATA = {
    "write": write_packet(),
    "TCP with payload": bytes(ip_header(4, 0, 0) / TCP(flags="PA") / b"x"),
    "ping": bytes(ip_header(4, 0, 0) / ICMP()),
    "ping over IPv6": bytes(ip_header(6, 0, 0) / ICMPv6EchoRequest()),
}
CONTROLS = {
    "SACK": udp_packet(bytes(52), dscp=CONTROL, ecn=0),
    "trimmed": udp_packet(bytes(40), dscp=TRIMMED),
    "TCP without payload": bytes(ip_header(6, 0, 0) / TCP(flags="A")),
}
SPARED = {
    "ARP": bytes(ethernet() / ARP()),
    "neighbour": bytes(ip_header(6, 0, 0) / ICMPv6ND_NS()),
}


@pytest.mark.parametrize("fault", [{"blackhole": True}, {"loss_ppm": MILLION}])
@pytest.mark.parametrize("only", ["all", "data", "control"])
def test_faults_take_only_the_kind_they_are_for(
    port: SwitchPort, fault: dict[str, Any], only: switch.Kind
) -> None:
    """Data, control or both; ARP and neighbour discovery are taken by the blackhole alone."""
    port.configure(LinkSettings(only=only, **fault))
    for kind, packets in (("data", DATA), ("control", CONTROLS), ("spared", SPARED)):
        taken = only in ("all", kind if kind != "spared" else "control")
        if kind == "spared" and "blackhole" not in fault:
            taken = False
        for name, packet in packets.items():
            assert (run(port, packet).answer == DROPPED) is taken, name
    counters = port.counters()
    assert counters.packets + counters.blackholed + counters.lost == 9
    assert (counters.blackholed > 0) is ("blackhole" in fault)


def test_longer_packets_than_allowed_vanish(port: SwitchPort) -> None:
    """packet_bytes_max counts from the IP header on, whatever the class; for GSO, one segment."""
    port.configure(LinkSettings(packet_bytes_max=1500))
    for version, header in HEADER_BYTES.items():
        fits = udp_packet(bytes(1514 - header), version=version)
        assert run(port, fits).packet == fits
        assert run(port, udp_packet(bytes(1515 - header), version=version)).answer == DROPPED
    assert port.counters().oversized == 2
    train = udp_packet(bytes(2944))
    assert run(port, train, gso_size=1472).answer == FORWARDED
    assert run(port, train, gso_size=1473).answer == DROPPED


def test_one_ev_loses_packets_and_no_other_does(port: SwitchPort) -> None:
    """Only the UDP source port that was named, with its own probability."""
    port.configure(LinkSettings(ev_source_port=EV, ev_loss_ppm=500_000))
    for version in (4, 6):
        run(port, write_packet(version=version), repeat=10_000)
        assert run(port, write_packet(port=EV + 1, version=version)).forwarded
    assert 9_600 <= port.counters().ev_dropped <= 10_400
    assert port.counters().lost == 0


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("payload_bytes", [1024, 1021, 4, 2])
def test_corruption_is_seen_by_the_icrc_and_by_nothing_else(
    port: SwitchPort, version: int, payload_bytes: int
) -> None:
    """One bit behind the MRC headers is flipped; lengths and all other checksums stay right."""
    port.configure(LinkSettings(corrupt_ppm=MILLION))
    packet = write_packet(payload_bytes, version=version)
    source, destination = ADDRESSES[version]
    places = set()
    for _ in range(50):
        ran = run(port, packet)
        assert ran.packet == with_right_checksums(ran.packet)
        changed = int.from_bytes(packet) ^ int.from_bytes(ran.packet)
        start = HEADER_BYTES[version]
        payload = changed & (1 << 8 * (len(packet) - start - KEPT_BYTES)) - 1
        assert payload.bit_count() == 1
        places.add(payload)
        datagram = ran.packet[start:]
        with pytest.raises(BadPacket, match="iCRC"):
            check_icrc_untrusted(datagram, (source, EV), (destination, MRC_PORT))
    assert len(places) > 1
    assert port.counters().corrupted == 50


@pytest.mark.parametrize(
    "packet", [write_packet(dscp=CONTROL), udp_packet(bytes(41)), DATA["TCP with payload"]]
)
def test_control_short_datagrams_and_tcp_are_not_corrupted(port: SwitchPort, packet: bytes) -> None:
    """Corruption is for UDP data with something behind the MRC headers."""
    port.configure(LinkSettings(corrupt_ppm=MILLION))
    assert run(port, packet).packet == packet
    assert port.counters().corrupted == 0


@pytest.mark.parametrize("version", [4, 6])
def test_a_middlebox_rewrites_the_source_port_of_data(port: SwitchPort, version: int) -> None:
    """The port changes as documented, the UDP checksum follows, nothing else changes."""
    port.configure(LinkSettings(rewrite_source_port=True))
    packet = write_packet(version=version)
    ran = run(port, packet)
    assert ran.parsed[UDP].sport == EV ^ 0x0155
    assert ran.packet == with_right_checksums(ran.packet)
    assert ran.packet[HEADER_BYTES[version] :] == packet[HEADER_BYTES[version] :]
    control = write_packet(version=version, dscp=CONTROL)
    assert run(port, control).packet == control
    assert port.counters().rewritten == 1


def test_a_checksum_that_was_left_out_stays_so_when_data_changes(port: SwitchPort) -> None:
    """UDP over IPv4 may carry a checksum of 0, which means none."""
    port.configure(LinkSettings(rewrite_source_port=True, corrupt_ppm=MILLION))
    packet = ip_header(4, 0, 0) / UDP(sport=EV, chksum=0) / Raw(bytes(100))
    ran = run(port, packet)
    assert ran.parsed[UDP].chksum == 0
    assert ran.parsed[UDP].sport == EV ^ 0x0155


# ---- everything else passes --------------------------------------------------------------------

EVERY_CHANGE = LinkSettings(
    rate_bps=SLOW, trim_bytes=1, ecn_min_bytes=1, ecn_max_bytes=1, corrupt_ppm=MILLION,
    rewrite_source_port=True, ev_source_port=EV, ev_loss_ppm=MILLION,
)  # fmt: skip


def mangled(packet: bytes, *, at: int, value: bytes) -> bytes:
    """The packet with some bytes replaced."""
    return packet[:at] + value + packet[at + len(value) :]


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(ethernet() / Dot1Q(vlan=5) / IP() / UDP(sport=EV) / bytes(200), id="VLAN"),
        pytest.param(ethernet() / ARP(), id="ARP"),
        pytest.param(bytes(ethernet())[:12] + b"\x88\xcc" + bytes(100), id="LLDP"),
        pytest.param(ethernet() / IP(tos=16, flags="MF") / UDP(sport=EV) / bytes(200), id="first"),
        pytest.param(ethernet() / IP(tos=16, frag=9, proto=17) / bytes(200), id="fragment"),
        pytest.param(
            ethernet() / IPv6(tc=16) / IPv6ExtHdrFragment(nh=17) / UDP() / bytes(200),
            id="IPv6 fragment",
        ),
        pytest.param(mangled(write_packet(), at=14, value=b"\x44"), id="IPv4 header too short"),
        pytest.param(mangled(write_packet(), at=14, value=b"\x65"), id="version 6 in IPv4"),
        pytest.param(write_packet(ecn=NOT_ECT)[:60], id="truncated"),
        pytest.param(
            mangled(write_packet(ecn=NOT_ECT, port=EV + 1), at=38, value=b"\0\x30"),
            id="UDP length not that of IP",
        ),
        pytest.param(write_packet(version=6, ecn=NOT_ECT)[:60], id="IPv6 truncated"),
    ],
)
def test_what_is_no_whole_udp_datagram_is_never_changed(port: SwitchPort, packet: Packet) -> None:
    """Tags, fragments and malformed headers pass as they are, though every change is asked for."""
    # scapy's checksums of unusual packets are its own business: bytes in, the same bytes out.
    port.configure(EVERY_CHANGE)
    data = bytes(packet)
    ran = run(port, data)
    assert (ran.answer, ran.packet) == (FORWARDED, data)


def test_a_gso_train_is_lost_or_marked_as_a_whole_but_never_cut_or_changed(
    port: SwitchPort,
) -> None:
    """What the kernel has yet to segment keeps its bytes, but for the mark."""
    train = udp_packet(bytes(2800), port=EV + 1)
    port.configure(EVERY_CHANGE)
    ran = run(port, train, gso_size=1400)
    assert ran.answer == FORWARDED
    assert tos_of(ran.packet) & CE == CE
    assert ran.packet == with_right_checksums(ran.packet)
    assert ran.packet[26:] == train[26:]
    port.configure(LinkSettings(loss_ppm=MILLION))
    assert run(port, train, gso_size=1400).answer == DROPPED


def test_no_bytes_crash_it(port: SwitchPort) -> None:
    """Noise, and real packets with noise in them or cut anywhere, get an answer every time."""
    port.configure(replace(EVERY_CHANGE, ev_loss_ppm=500_000, packet_bytes_max=3000))
    source = random.Random(4)
    kinds = [source.randbytes(200), *DATA.values(), *CONTROLS.values(), *SPARED.values()]
    answers = set()
    for _ in range(1000):
        packet = bytearray(source.choice(kinds))
        for _ in range(source.randrange(4)):
            packet[source.randrange(12, min(80, len(packet)))] = source.randrange(256)
        cut = bytes(packet[: source.randrange(15, len(packet) + 1)])
        with contextlib.suppress(OSError):  # the kernel's own idea of what is no packet at all
            answers.add(run(port, cut).answer)
            answers.add(run(port, bytes(packet)).answer)
    assert answers == {FORWARDED, DROPPED, SENT_ANEW}
