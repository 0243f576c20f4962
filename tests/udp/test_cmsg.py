"""Control messages are read in whatever width the kernel chose, and unknown ones are skipped."""

import struct

from mrc.udp.cmsg import parse_received, send_ancillary

IP, UDP, IPV6 = 0, 17, 41


def test_nothing_said_means_zero() -> None:
    """A single datagram on a plain socket has no segment size, no TOS and no label."""
    assert parse_received([]) == (0, 0, 0)


def test_tos_is_read_in_one_byte_and_in_four() -> None:
    """IP_TOS comes as a byte and IPV6_TCLASS as an int; either may come in the other's width."""
    for level, kind in ((IP, 1), (IPV6, 67)):
        assert parse_received([(level, kind, b"\xab")])[1] == 0xAB
        assert parse_received([(level, kind, struct.pack("=i", 0xAB))])[1] == 0xAB


def test_segment_size_is_read_in_two_bytes_and_in_four() -> None:
    """UDP_GRO is an int in Linux, though the option to set it is a short."""
    assert parse_received([(UDP, 104, struct.pack("=i", 4136))])[0] == 4136
    assert parse_received([(UDP, 104, struct.pack("=H", 4136))])[0] == 4136


def test_flow_label_is_cut_out_of_the_flow_info() -> None:
    """The flow info is big-endian and holds the traffic class above the label."""
    assert parse_received([(IPV6, 11, bytes.fromhex("02aabcde"))])[2] == 0xABCDE


def test_types_are_told_apart_by_their_level() -> None:
    """The same number on another level is another message, and is skipped."""
    strangers = [(IP, 104, b"\x01"), (UDP, 1, b"\x01"), (IPV6, 1, b"\x01"), (1, 67, b"\x01")]
    assert parse_received(strangers) == (0, 0, 0)


def test_a_single_datagram_is_sent_without_a_segment_size() -> None:
    """UDP_SEGMENT goes with runs only."""
    assert send_ancillary(ipv6=False, tos=2) == [(IP, 1, struct.pack("=i", 2))]
    assert send_ancillary(ipv6=True, tos=2, segment_bytes=9) == [
        (IPV6, 67, struct.pack("=i", 2)),
        (UDP, 103, struct.pack("=H", 9)),
    ]
