"""Packets for the switch program, runs of it without a device, and its layouts as compiled."""

from __future__ import annotations

import ctypes
import errno
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from mrc.wire.fields import BTH, IMMDT, IMMEDIATE_OPCODES, METH, RETH, TSETH, Opcode
from mrc.wire.icrc import append_icrc
from netns.bpf.libbpf import BpfError
from netns.switch import SwitchPort

FORWARDED, DROPPED, SENT_ANEW = 0, 2, 7
"""What the program answers: TC_ACT_OK, TC_ACT_SHOT, TC_ACT_REDIRECT."""

ADDRESSES = {4: ("10.0.0.1", "10.0.0.2"), 6: ("fd00::1", "fd00::2")}
MRC_PORT, EV = 4971, 50_000
TRIMMABLE, RETX, TRIMMED, LASTHOP, CONTROL = 4, 8, 12, 16, 46
NOT_ECT, ECT1, ECT0, CE = range(4)
KEPT_BYTES = BTH.size + METH.size + TSETH.size + RETH.size + IMMDT.size
"""Of the UDP payload, in a trimmed packet."""
HEADER_BYTES = {4: 14 + 20 + 8, 6: 14 + 40 + 8}
"""Ethernet, IP and UDP."""
SLOW = 100_000
"""Bits a second: only DRAINED_BYTES leave the queue while a few packets pass."""
DRAINED_BYTES = 500
MILLION = 1_000_000

_CONTEXT_BYTES = 192
_MARK, _PRIORITY, _GSO_SEGS, _GSO_SIZE = 8, 32, 164, 176
_OUT_BYTES = 65_536
_BTF_KIND_STRUCT = 4


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a packet."""

    answer: int
    packet: bytes
    priority: int
    mark: int
    nanoseconds: int
    """Of one run, the mean of all repeats."""

    @property
    def forwarded(self) -> bool:
        """Whether it goes on, from here or once more from the start of the device."""
        return self.answer in (FORWARDED, SENT_ANEW)

    @property
    def parsed(self) -> Packet:
        """The packet as scapy reads it."""
        return Ether(self.packet)


class _TestRun(ctypes.Structure):
    """`struct bpf_test_run_opts` of libbpf."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_char_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_char_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    )


def require_programs() -> None:
    """Skip where not even root may load a program, as in most containers."""
    try:
        SwitchPort.load(seed=1).close()
    except BpfError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):
            pytest.skip(str(error))
        raise


def run(
    port: SwitchPort, packet: bytes | Packet, *, repeat: int = 1, mark: int = 0, gso_size: int = 0
) -> Ran:
    """Let the program judge a packet, as a device would that it is attached to.

    Raises:
        OSError: the kernel takes these bytes for no packet at all.
    """
    data = bytes(packet)
    context = bytearray(_CONTEXT_BYTES)
    struct.pack_into("=I", context, _MARK, mark)
    if gso_size:
        struct.pack_into("=I", context, _GSO_SEGS, -(-len(data) // gso_size))
        struct.pack_into("=I", context, _GSO_SIZE, gso_size)
    out = ctypes.create_string_buffer(_OUT_BYTES)
    context_out = ctypes.create_string_buffer(_CONTEXT_BYTES)
    options = _TestRun(
        sz=ctypes.sizeof(_TestRun),
        data_in=data,
        data_size_in=len(data),
        data_out=ctypes.addressof(out),
        data_size_out=_OUT_BYTES,
        ctx_in=bytes(context),
        ctx_size_in=_CONTEXT_BYTES,
        ctx_out=ctypes.addressof(context_out),
        ctx_size_out=_CONTEXT_BYTES,
        repeat=repeat,
    )
    library = ctypes.CDLL("libbpf.so.1")
    status = library.bpf_prog_test_run_opts(port.program_fd, ctypes.byref(options))
    if status < 0:
        raise OSError(-status, "test run")
    return Ran(
        options.retval,
        out.raw[: options.data_size_out],
        struct.unpack_from("=I", context_out.raw, _PRIORITY)[0],
        struct.unpack_from("=I", context_out.raw, _MARK)[0],
        options.duration,
    )


def ethernet() -> Packet:
    """An Ethernet header with addresses: without, scapy asks the network for them."""
    return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")


def ip_header(version: int, dscp: int, ecn: int) -> Packet:
    """An Ethernet and IP header of a packet from the first address to the second."""
    source, destination = ADDRESSES[version]
    tos = dscp << 2 | ecn
    if version == 4:
        return ethernet() / IP(src=source, dst=destination, tos=tos, id=0, flags="DF")
    return ethernet() / IPv6(src=source, dst=destination, tc=tos)


def udp_packet(
    payload: bytes, *, version: int = 4, dscp: int = TRIMMABLE, ecn: int = ECT0, port: int = EV
) -> bytes:
    """A UDP datagram to the port of MRC, whole and with right checksums."""
    header = ip_header(version, dscp, ecn)
    return bytes(header / UDP(sport=port, dport=MRC_PORT) / Raw(payload))


def write_packet(
    payload_bytes: int = 1024,
    *,
    version: int = 4,
    dscp: int = TRIMMABLE,
    ecn: int = ECT0,
    opcode: Opcode = Opcode.WRITE_MIDDLE,
    port: int = EV,
) -> bytes:
    """One packet of a remote write, with its iCRC."""
    datagram = BTH.pack(opcode=opcode, p_key=0xFFFF, dqp=7, ts=1, psn=99)
    datagram += METH.pack(msn=3) + TSETH.pack(tx_timestamp=5, ftype=1)
    datagram += RETH.pack(va=0x7F00_0000_1000, r_key=11, dma_length=1 << 20)
    if opcode in IMMEDIATE_OPCODES:
        datagram += IMMDT.pack(imm=42)
    datagram += bytes(i * 7 & 0xFF for i in range(payload_bytes))
    source, destination = ADDRESSES[version]
    datagram = append_icrc(datagram, (source, port), (destination, MRC_PORT))
    return udp_packet(datagram, version=version, dscp=dscp, ecn=ecn, port=port)


def tos_of(packet: bytes) -> int:
    """DSCP and ECN of a packet."""
    parsed = Ether(packet)
    return int(parsed[IP].tos if IP in parsed else parsed[IPv6].tc)


def with_right_checksums(packet: bytes) -> bytes:
    """The packet with its IPv4 and UDP checksums and lengths worked out anew, by scapy."""
    parsed = Ether(packet)
    for layer, names in ((IP, ("chksum", "len")), (IPv6, ("plen",)), (UDP, ("chksum", "len"))):
        if layer in parsed:
            for name in names:
                delattr(parsed[layer], name)
    return bytes(parsed)


def compiled_layout(path: Path, name: str) -> dict[str, tuple[int, int]]:
    """Offset and size of each member of a struct, in bytes, from the type information (BTF)."""
    library = ctypes.CDLL("libbpf.so.1")
    library.btf__parse.restype = ctypes.c_void_p
    library.btf__parse.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    library.btf__type_by_id.restype = ctypes.POINTER(ctypes.c_uint32)
    library.btf__type_by_id.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    library.btf__name_by_offset.restype = ctypes.c_char_p
    library.btf__name_by_offset.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    library.btf__resolve_size.restype = ctypes.c_int64
    library.btf__resolve_size.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    library.btf__find_by_name_kind.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32]
    library.btf__free.argtypes = [ctypes.c_void_p]
    btf = library.btf__parse(str(path).encode(), None)
    try:
        words = library.btf__type_by_id(
            btf, library.btf__find_by_name_kind(btf, name.encode(), _BTF_KIND_STRUCT)
        )
        layout = {}
        for member in range(words[1] & 0xFFFF):
            name_offset, type_id, bit = words[3 + 3 * member : 6 + 3 * member]
            member_name = library.btf__name_by_offset(btf, name_offset).decode()
            layout[member_name] = (bit // 8, library.btf__resolve_size(btf, type_id))
        return layout
    finally:
        library.btf__free(btf)
