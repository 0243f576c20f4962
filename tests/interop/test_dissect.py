"""The command that prints a capture, on the capture of a transfer and on files that are none."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from pcapfile import NotACaptureError, UdpDatagram, udp_datagrams

from mrc.proto.config import Config
from tests.interop.capture import ip_packet
from tests.interop.recording import TOS_TRIMMED, Sent
from tests.interop.transfer import Transfer
from tests.support.filters import Tap
from tests.support.pair import UDP_PORT, Pair

ROOT = Path(__file__).resolve().parent.parent.parent

SIX = Sent(("2001:db8::1", 50000), ("2001:db8::2", 4971), 0x2E, b"six" * 5)
FOUR = Sent(("192.0.2.1", 50001), ("192.0.2.2", 4791), 0x12, b"four" * 5)

HEADERS = {
    "little, us": (b"\xd4\xc3\xb2\xa1", "little", 1000),
    "big, us": (b"\xa1\xb2\xc3\xd4", "big", 1000),
    "little, ns": (b"\x4d\x3c\xb2\xa1", "little", 1),
    "big, ns": (b"\xa1\xb2\x3c\x4d", "big", 1),
}


def dissect(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "dissect", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def ports(transfer: Transfer) -> list[str]:
    """The options that name the receiving ports of a transfer."""
    return [f"--port={transfer.receiver_port}", f"--port={transfer.sender_port}"]


def capture_of(
    *packets: bytes, form: str = "little, us", link_type: int = 101, fraction: int = 5
) -> io.BytesIO:
    """A capture file with these packets, all at one second and a fraction."""
    magic, order, _ = HEADERS[form]

    def number(value: int) -> bytes:
        return value.to_bytes(4, "little" if order == "little" else "big")

    file = magic + bytes(16) + number(link_type)
    for packet in packets:
        size = number(len(packet))
        file += number(1) + number(fraction) + size + size + packet
    return io.BytesIO(file)


def one(file: io.BytesIO) -> UdpDatagram:
    """The only datagram of a capture."""
    (found,) = udp_datagrams(file)
    return found


@pytest.mark.slow
def test_a_transfer_is_printed_and_every_icrc_is_right(transfer: Transfer, capture: Path) -> None:
    """Each datagram has its headers and a right iCRC; the trimmed ones have none."""
    result = dissect(capture, *ports(transfer))
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[-1] == f"{len(transfer.sent) - 2} right, 2 trimmed"
    assert sum(line.startswith("  BTH ") for line in lines) == len(transfer.sent)
    first = transfer.sent[0]
    assert lines[0] == (
        f"1 0.000000 [::1]:{first.source[1]} > [::1]:{first.destination[1]}"
        f" tos={first.tos:#04x} iCRC right"
    )


@pytest.mark.slow
@pytest.mark.parametrize("icrc", [True, False])
def test_sealed_packets_show_their_headers(tmp_path: Path, *, icrc: bool) -> None:
    """Of a locked connection all but the payload is readable, and the iCRC is right, or off."""
    pair = Pair(Config(mtu=1024, paths=1, icrc=icrc), sealed=True, ipv6=True)
    tap = Tap(lambda datagram: True)
    pair.filters.append(tap)
    pair.transfer(b"secret" * 500, imm=1)
    sent = []
    for each in tap.datagrams:
        here, there = pair.sides[each.sender].hosts[0], pair.sides[1 - each.sender].hosts[0]
        source, destination = (here, each.source_port), (there, UDP_PORT)
        sent.append(Sent(source, destination, each.tos, bytes(each.data)))
    path = tmp_path / "sealed.pcap"
    path.write_bytes(capture_of(*map(ip_packet, sent)).getvalue())
    result = dissect(path, "--sealed")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[-1] == f"{len(sent)} {'right' if icrc else 'off'}"
    assert sum(line.startswith("  seal ") for line in lines) == len(sent)
    assert not any(line.startswith("  surplus") for line in lines)


@pytest.mark.slow
def test_a_spoilt_datagram_is_called_wrong(transfer: Transfer, tmp_path: Path) -> None:
    """One flipped bit is a wrong iCRC, and the exit status says that there was one."""
    sent = next(each for each in transfer.sent if each.tos != TOS_TRIMMED)
    packet = bytearray(ip_packet(sent))
    packet[-9] ^= 1
    path = tmp_path / "spoilt.pcap"
    path.write_bytes(capture_of(ip_packet(sent), bytes(packet)).getvalue())
    result = dissect(path, *ports(transfer))
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "1 right, 1 wrong"


@pytest.mark.slow
def test_what_is_not_mrc_is_told(tmp_path: Path) -> None:
    """A datagram to our port that no header fits is unreadable; one to another port is not ours."""
    path = tmp_path / "other.pcap"
    elsewhere = SIX._replace(destination=("2001:db8::2", 53))
    path.write_bytes(capture_of(ip_packet(SIX), ip_packet(elsewhere)).getvalue())
    result = dissect(path)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-2:] == [
        "  opcode 0x73 is not one of MRC 1.0",
        "1 unreadable",
    ]


@pytest.mark.slow
def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    """A file that is not there is one line on standard error, and status 2."""
    result = dissect(tmp_path / "nothing.pcap")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.endswith("nothing.pcap: No such file or directory\n")


@pytest.mark.parametrize("form", HEADERS)
def test_every_form_of_capture_is_read(form: str) -> None:
    """Both byte orders and both units of time give the same datagram at the right time."""
    unit_ns = HEADERS[form][2]
    found = one(capture_of(ip_packet(SIX), form=form))
    assert found == UdpDatagram(
        1, 10**9 + 5 * unit_ns, SIX.source, SIX.destination, 0x2E, 0, 0, SIX.data, whole=True
    )


@pytest.mark.parametrize("sent", [SIX, FOUR], ids=["ipv6", "ipv4"])
@pytest.mark.parametrize(
    ("link_type", "lead"),
    [
        (0, "18000000"),
        (1, "ffffffffffff000000000000{}"),
        (1, "ffffffffffff00000000000081000005{}"),
        (1, "ffffffffffff0000000000008100000581000006{}"),
        (101, ""),
        (113, "0000000100060000000000000000{}"),
        (228, ""),
        (229, ""),
        (276, "{}000000000002000104060000000000000000"),
    ],
)
def test_every_link_type_is_read(sent: Sent, link_type: int, lead: str) -> None:
    """Whatever stands before the IP header, the datagram behind it is found."""
    ethertype = "86dd" if sent is SIX else "0800"
    packet = bytes.fromhex(lead.format(ethertype)) + ip_packet(sent)
    found = one(capture_of(packet, link_type=link_type))
    assert (found.source, found.destination, found.tos, found.payload) == sent


def test_what_a_capture_left_out_is_told() -> None:
    """A packet of which the capture kept only the start is not whole."""
    found = one(capture_of(ip_packet(SIX)[:-1]))
    assert (found.payload, found.whole) == (SIX.data[:-1], False)


def test_what_is_no_udp_datagram_is_passed_over() -> None:
    """Other protocols, fragments, packets cut in their headers and empty ones are not shown."""
    six, four = ip_packet(SIX), ip_packet(FOUR)
    tcp_6 = six[:6] + b"\x06" + six[7:]
    tcp_4 = four[:9] + b"\x06" + four[10:]
    fragment = four[:6] + b"\x20\x00" + four[8:]
    file = capture_of(tcp_6, tcp_4, fragment, six[:30], four[:15], b"", b"\x00" * 40, six)
    assert one(file).number == 8


def test_ip_is_told_from_other_protocols_on_ethernet() -> None:
    """On Ethernet a frame that is not IP, or cut in its header, is not read as IP."""
    arp = bytes(12) + b"\x08\x06" + ip_packet(SIX)
    assert list(udp_datagrams(capture_of(arp, bytes(9), link_type=1))) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a pcap file"),
        (b"GIF89a" + bytes(40), "not a pcap file"),
        (b"\x0a\x0d\x0d\x0a" + bytes(40), "pcapng: convert it"),
        (capture_of(link_type=147).getvalue(), "link type 147"),
        (capture_of(ip_packet(SIX)).getvalue()[:-1], "breaks off in packet 1"),
        (capture_of().getvalue() + bytes(5), "breaks off in packet 1"),
        (capture_of().getvalue() + b"\xff" * 16, "breaks off in packet 1"),
    ],
)
def test_a_file_that_is_no_capture_is_refused(content: bytes, reason: str) -> None:
    """A file of another format, or a damaged one, is an error that says what is wrong."""
    with pytest.raises(NotACaptureError, match=reason):
        list(udp_datagrams(io.BytesIO(content)))
