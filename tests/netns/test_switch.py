"""Settings, trimming, queue and marks of the switch program, run by the kernel packet by packet."""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP, IPOption_NOP
from scapy.packet import Raw

from mrc import DscpMap
from mrc.wire.fields import Opcode
from netns import switch
from netns.bpf.compile import HEADER, switch_object
from netns.bpf.libbpf import BpfError
from netns.switch import LinkSettings, SwitchPort
from tests.netns.support_switch import (
    CE,
    CONTROL,
    DRAINED_BYTES,
    DROPPED,
    ECT0,
    ECT1,
    EV,
    FORWARDED,
    HEADER_BYTES,
    KEPT_BYTES,
    LASTHOP,
    MRC_PORT,
    NOT_ECT,
    RETX,
    SENT_ANEW,
    SLOW,
    TRIMMABLE,
    TRIMMED,
    compiled_layout,
    ip_header,
    require_programs,
    run,
    tos_of,
    udp_packet,
    with_right_checksums,
    write_packet,
)

pytestmark = pytest.mark.root

TRIM_ALL = LinkSettings(rate_bps=SLOW, trim_bytes=1)


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    require_programs()


@pytest.fixture
def port() -> Iterator[SwitchPort]:
    """A port with settings that do nothing."""
    with SwitchPort.load(seed=1) as made:
        yield made


# ---- what C and Python must agree on -----------------------------------------------------------


@pytest.mark.parametrize("name", ["config", "state"])
def test_layouts_are_those_of_the_compiled_program(name: str) -> None:
    """Every member of a map's value has the same name, offset and size in C and in Python."""
    layout: dict[str, str] = getattr(switch, f"{name.upper()}_LAYOUT")
    expected, offset = {}, 0
    for member, code in layout.items():
        size = struct.calcsize(f"={code}")
        expected[member] = (offset, size)
        offset += size
    assert compiled_layout(switch_object(), f"switch_{name}") == expected


def test_numbers_of_the_header_are_those_of_python_and_of_the_wire() -> None:
    """Flags, classes, header sizes and DSCPs that C and Python both name have the same value."""
    defines = {
        name: int(value, 0)
        for name, value in re.findall(r"#define (\w+) (\w+)\n", HEADER.read_text())
    }
    ours = {name.lstrip("_"): value for name, value in vars(switch).items() if name.isupper()}
    shared = [name for name in defines if name.startswith(("FLAG_", "CLASS_", "QUEUE_"))]
    assert len(shared) == 9
    assert {name: defines[name] for name in shared} == {name: ours[name] for name in shared}
    assert defines["MRC_HEADER_BYTES"] == KEPT_BYTES
    usual = DscpMap()
    for name in (each.name for each in fields(LinkSettings) if each.name.startswith("dscp_")):
        assert getattr(LinkSettings(), name) == getattr(usual, name.removeprefix("dscp_"))


# ---- settings and life -------------------------------------------------------------------------

EVERYTHING = LinkSettings(
    rate_bps=123_456_789, queue_bytes_max=9, ecn_min_bytes=7, ecn_max_bytes=8, marks=False,
    trim_bytes=6, last_hop=True, loss_ppm=5, blackhole=True, only="control", packet_bytes_max=4,
    ev_source_port=3, ev_loss_ppm=2, corrupt_ppm=1, duplicate_ppm=10, rewrite_source_port=True,
    dscp_trimmable=62, dscp_trimmable_retx=61, dscp_trimmed=60,
    dscp_trimmed_lasthop=59, dscp_control=58,
)  # fmt: skip


def test_settings_come_back_as_they_were_given_also_in_another_process(port: SwitchPort) -> None:
    """What `configure` writes `settings` reads, by the maps' ids as well; none is forgotten."""
    changed = {f.name for f in fields(LinkSettings) if getattr(EVERYTHING, f.name) != f.default}
    assert changed == {f.name for f in fields(LinkSettings)}
    assert port.settings() == LinkSettings()
    port.configure(EVERYTHING)
    assert port.settings() == EVERYTHING
    with SwitchPort.open(json.loads(json.dumps(port.map_ids))) as other:
        assert other.program_fd is None
        assert other.settings() == EVERYTHING
        other.configure(replace(EVERYTHING, only="data"))
        assert other.counters() == port.counters()
    assert port.settings().only == "data"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate_bps": 99_999}, "rate_bps = 99999 is outside 100000..1000000000000"),
        ({"loss_ppm": -1}, "loss_ppm = -1 is outside 0..1000000"),
        ({"corrupt_ppm": 1_000_001}, "packets of a million"),
        ({"ev_source_port": 65_536}, "0..65535"),
        ({"ev_loss_ppm": 5}, "needs an ev_source_port"),
        ({"dscp_control": 64}, "0..63"),
        ({"dscp_control": 4}, "same DSCP"),
        ({"trim_bytes": 1}, "rate_bps is 0"),
        ({"rate_bps": SLOW, "ecn_min_bytes": 2, "ecn_max_bytes": 1}, "above ecn_max_bytes"),
        ({"rate_bps": SLOW, "queue_bytes_max": 1 << 32}, "0..4294967295 .bytes"),
        ({"only": "some"}, "none of all, data, control"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    """A value outside its limits is named, with unit and limits."""
    with pytest.raises(ValueError, match=message):
        LinkSettings(**wrong)


def open_again_and_again(map_ids: dict[str, int]) -> None:
    """Open a port for some seconds: the kernel frees maps a moment after they are closed."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        SwitchPort.open(map_ids).close()
        time.sleep(0.01)


def test_a_closed_port_says_so_and_its_maps_are_gone() -> None:
    """After `close` nothing is left that could be opened or read."""
    port = SwitchPort.load(seed=1)
    ids = port.map_ids
    port.close()
    port.close()
    with pytest.raises(BpfError, match="closed"):
        port.counters()
    with pytest.raises(BpfError, match="no map with id"):
        open_again_and_again(ids)


# ---- trimming ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("dscp", [TRIMMABLE, RETX])
@pytest.mark.parametrize("opcode", [Opcode.WRITE_MIDDLE, Opcode.WRITE_ONLY_IMMEDIATE])
@pytest.mark.parametrize("last_hop", [False, True])
def test_a_trimmed_packet_is_its_headers_with_right_lengths_checksums_and_dscp(
    port: SwitchPort, version: int, dscp: int, opcode: Opcode, last_hop: bool
) -> None:
    """Cut behind 40 bytes of UDP payload; it goes on in the control class, without a mark."""
    port.configure(replace(TRIM_ALL, last_hop=last_hop, ecn_min_bytes=1, ecn_max_bytes=1))
    whole = write_packet(version=version, dscp=dscp, opcode=opcode)
    ran = run(port, whole)
    assert ran.answer == SENT_ANEW
    assert ran.priority == switch.CLASS_CONTROL
    size = HEADER_BYTES[version] + KEPT_BYTES
    assert len(ran.packet) == size
    assert ran.packet == with_right_checksums(ran.packet)
    assert ran.packet[-KEPT_BYTES:] == whole[size - KEPT_BYTES : size]
    assert ran.parsed[UDP].len == 8 + KEPT_BYTES
    assert tos_of(ran.packet) == (LASTHOP if last_hop else TRIMMED) << 2 | ECT0
    counters = port.counters()
    assert (counters.trimmed, counters.control_packets, counters.bytes) == (1, 1, size)


def test_a_trimmed_packet_passes_untouched_when_it_comes_to_the_device_anew(
    port: SwitchPort,
) -> None:
    """Its second pass, for HTB to charge the short length, counts nothing and ends the mark."""
    port.configure(TRIM_ALL)
    first = run(port, write_packet(), mark=0x1234)
    counters = port.counters()
    second = run(port, first.packet, mark=first.mark)
    assert (second.answer, second.packet, second.mark) == (FORWARDED, first.packet, 0x1234)
    assert replace(port.counters(), queue_bytes_now=0) == replace(counters, queue_bytes_now=0)


def test_trimming_knows_ipv4_options_and_fills_in_a_checksum_that_was_left_out(
    port: SwitchPort,
) -> None:
    """The UDP header is looked for behind the options; a checksum of 0 becomes a right one."""
    port.configure(TRIM_ALL)
    header = ip_header(4, TRIMMABLE, ECT0)
    header[IP].options = [IPOption_NOP()] * 8
    packet = header / UDP(sport=EV, dport=MRC_PORT, chksum=0) / Raw(bytes(range(200)))
    ran = run(port, packet)
    assert len(ran.packet) == HEADER_BYTES[4] + 8 + KEPT_BYTES
    assert ran.parsed[UDP].chksum != 0
    assert ran.packet == with_right_checksums(ran.packet)


def test_nothing_is_trimmed_up_to_the_threshold(port: SwitchPort) -> None:
    """A queue that a packet fills to the threshold exactly trims nothing; one byte more does."""
    packet = write_packet()
    port.configure(replace(TRIM_ALL, trim_bytes=len(packet)))
    assert run(port, packet).packet == packet
    assert run(port, packet).answer == SENT_ANEW
    most = len(packet) + HEADER_BYTES[4] + KEPT_BYTES
    assert most - DRAINED_BYTES <= port.counters().queue_bytes_max <= most


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(write_packet(dscp=0), id="NO_TRIM"),
        pytest.param(write_packet(0), id="short"),
        pytest.param(udp_packet(bytes(79)), id="79 bytes"),
        pytest.param(bytes(ip_header(4, TRIMMABLE, ECT0) / TCP() / bytes(500)), id="TCP"),
    ],
)
def test_data_that_cannot_be_trimmed_is_forwarded_until_the_queue_is_full(
    port: SwitchPort, packet: bytes
) -> None:
    """Beyond trim_bytes it goes on whole; beyond queue_bytes_max it is dropped and counted."""
    port.configure(replace(TRIM_ALL, queue_bytes_max=2 * len(packet)))
    for _ in range(2):
        ran = run(port, packet)
        assert (ran.answer, ran.packet) == (FORWARDED, packet)
        assert ran.priority == switch.CLASS_DATA
    assert run(port, packet).answer == DROPPED
    counters = port.counters()
    assert (counters.packets, counters.tail_dropped, counters.trimmed) == (2, 1, 0)


def test_a_queue_may_be_filled_to_its_last_byte(port: SwitchPort) -> None:
    """queue_bytes_max itself still fits; a byte more does not."""
    packet = write_packet(dscp=0)
    port.configure(LinkSettings(rate_bps=SLOW, queue_bytes_max=len(packet) - 1))
    assert run(port, packet).answer == DROPPED
    port.configure(LinkSettings(rate_bps=SLOW, queue_bytes_max=len(packet)))
    assert run(port, packet).answer == FORWARDED


def test_the_shortest_payload_that_is_trimmed(port: SwitchPort) -> None:
    """80 bytes, of which half stays."""
    port.configure(TRIM_ALL)
    assert run(port, udp_packet(bytes(79))).answer == FORWARDED
    assert run(port, udp_packet(bytes(80))).answer == SENT_ANEW


@pytest.mark.parametrize("dscp", [CONTROL, TRIMMED, LASTHOP])
def test_control_is_never_trimmed_or_tail_dropped_and_counts_in_the_queue(
    port: SwitchPort, dscp: int
) -> None:
    """Whatever the queue, control goes on whole, in its class."""
    packet = udp_packet(bytes(500), dscp=dscp)
    port.configure(replace(TRIM_ALL, queue_bytes_max=1))
    for _ in range(3):
        ran = run(port, packet)
        assert (ran.answer, ran.packet) == (FORWARDED, packet)
        assert ran.priority == switch.CLASS_CONTROL
    assert port.counters().control_packets == 3
    most = 3 * len(packet)
    assert most - DRAINED_BYTES <= port.counters().queue_bytes_max <= most


def test_other_code_points_may_be_chosen(port: SwitchPort) -> None:
    """All DSCPs come from the settings."""
    settings = replace(TRIM_ALL, dscp_trimmable=20, dscp_trimmed=21, dscp_control=22)
    port.configure(settings)
    assert run(port, write_packet(dscp=TRIMMABLE)).answer == FORWARDED
    assert tos_of(run(port, write_packet(dscp=20)).packet) >> 2 == 21
    assert run(port, udp_packet(b"", dscp=22)).priority == switch.CLASS_CONTROL


# ---- the queue ---------------------------------------------------------------------------------


def test_the_queue_drains_at_its_rate(port: SwitchPort) -> None:
    """What is left is what came less what the rate took since; an idle queue is empty."""
    rate_bps = 800_000
    bytes_per_ns = rate_bps / 8e9
    packet = write_packet(dscp=0)
    sent = 40 * len(packet)
    port.configure(LinkSettings(rate_bps=rate_bps, trim_bytes=sent))
    start = time.monotonic_ns()
    run(port, packet)
    first = time.monotonic_ns()
    for _ in range(39):
        run(port, packet)
    time.sleep(0.02)
    before = time.monotonic_ns()
    left = port.counters().queue_bytes_now
    after = time.monotonic_ns()
    # Half a thousandth for the rounding of the rate, a byte for that of the answer.
    most_drained, least_drained = (after - start) * bytes_per_ns, (before - first) * bytes_per_ns
    assert sent - 1.0005 * most_drained - 1 <= left <= sent - 0.9995 * least_drained + 1

    port.configure(LinkSettings(rate_bps=switch.RATE_BPS_MAX, trim_bytes=sent))
    assert run(port, packet).forwarded
    assert port.counters().queue_bytes_now <= len(packet)


def test_the_longest_queue_is_remembered(port: SwitchPort) -> None:
    """When it has drained as well."""
    port.configure(LinkSettings(rate_bps=switch.RATE_BPS_MAX))
    packet = udp_packet(bytes(1000))
    run(port, packet)
    run(port, packet[:-1])
    assert port.counters().queue_bytes_max == len(packet)


def marked_of(port: SwitchPort, packets: int, packet: bytes) -> int:
    """How many of some packets come out CE marked, with right checksums."""
    marked = 0
    for _ in range(packets):
        ran = run(port, packet)
        if tos_of(ran.packet) & CE == CE:
            marked += 1
            assert ran.packet == with_right_checksums(ran.packet)
            assert ran.packet[34:] == packet[34:]
    assert port.counters().marked == marked
    return marked


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("ecn", [ECT0, ECT1])
def test_marks_start_at_kmin_and_are_certain_from_kmax(
    port: SwitchPort, version: int, ecn: int
) -> None:
    """Up to ecn_min_bytes probability 0, from ecn_max_bytes 1."""
    packet = write_packet(dscp=0, version=version, ecn=ecn)
    limit = 10 * len(packet)
    port.configure(LinkSettings(rate_bps=SLOW, ecn_min_bytes=limit, ecn_max_bytes=limit + 1))
    assert marked_of(port, 10, packet) == 0
    assert marked_of(port, 10, packet) == 10


def test_a_step_marks_at_the_threshold_itself(port: SwitchPort) -> None:
    """Kmin = Kmax: the packet that fills the queue to it exactly is the first that is marked."""
    packet = write_packet(dscp=0)
    limit = len(packet)
    port.configure(LinkSettings(rate_bps=SLOW, ecn_min_bytes=limit, ecn_max_bytes=limit))
    assert tos_of(run(port, packet[:-1]).packet) == ECT0
    with SwitchPort.load(seed=1) as fresh:
        fresh.configure(port.settings())
        assert tos_of(run(fresh, packet).packet) == CE


def test_marks_rise_linearly_between_the_thresholds() -> None:
    """Half-way half of the packets are marked: 500 of 1000 at a queue that stands still."""
    with SwitchPort.load(seed=3) as port:
        packet = write_packet(20, dscp=0)
        port.configure(
            LinkSettings(
                rate_bps=switch.RATE_BPS_MAX, ecn_min_bytes=1, ecn_max_bytes=2 * len(packet)
            )
        )
        assert 430 <= marked_of(port, 1000, packet) <= 570


@pytest.mark.parametrize(
    ("changes", "packet"),
    [
        pytest.param({}, write_packet(dscp=0, ecn=NOT_ECT), id="not ECN-capable"),
        pytest.param({}, write_packet(dscp=CONTROL), id="control"),
        pytest.param({}, write_packet(dscp=0, ecn=CE), id="marked already"),
        pytest.param({"marks": False}, write_packet(dscp=0), id="marks off, as on the last hop"),
        pytest.param({"ecn_min_bytes": 0, "ecn_max_bytes": 0}, write_packet(dscp=0), id="off"),
    ],
)
def test_what_is_never_marked(port: SwitchPort, changes: dict[str, Any], packet: bytes) -> None:
    """Only ECN-capable data where marks are wanted; trimming marks nothing either (see above)."""
    settings = LinkSettings(rate_bps=SLOW, ecn_min_bytes=1, ecn_max_bytes=1)
    port.configure(replace(settings, **changes))
    assert run(port, packet).packet == packet
    assert port.counters().marked == 0
