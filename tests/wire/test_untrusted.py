"""Whatever bytes the network brings, a decoder raises BadPacket or nothing."""

import ast
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mrc.wire
from mrc.wire.dump import dump_untrusted
from mrc.wire.fields import HEADERS, BadPacket, Buffer, Opcode
from mrc.wire.icrc import append_icrc, check_icrc_untrusted
from mrc.wire.runs import RunBuffer
from mrc.wire.seal import Cipher, Opener, make_seal
from tests.wire.packets import ANY_PACKET, DECODERS, Packet

Reader = Callable[[Buffer], object]

FLOW = (("192.0.2.1", 49152), ("192.0.2.2", 4971))


def _dump_trimmed(data: Buffer) -> list[str]:
    return dump_untrusted(data, trimmed=True)


def _check_icrc(data: Buffer) -> None:
    check_icrc_untrusted(data, *FLOW)


def _opener() -> Opener:
    return make_seal(Cipher.AES_256_GCM, (bytes(32), bytes(32)), connecting=True).opener


def _open(data: Buffer) -> None:
    _opener().open_untrusted(data, 36)


def _open_rows(data: Buffer) -> None:
    run = RunBuffer()
    head = bytes(data[: run.SIZE])
    run.bytes[: len(head)] = head
    _opener().open_rows_untrusted(run.views(128, sealed=True), 0, 2)


READERS: dict[str, Reader] = {
    **{f"{kind.__name__}.decode_untrusted": decode for kind, decode in DECODERS.items()},
    **{f"{header.name}.unpack_untrusted": header.unpack_untrusted for header in HEADERS},
    "dump_untrusted": dump_untrusted,
    "dump_untrusted, trimmed": _dump_trimmed,
    "check_icrc_untrusted": _check_icrc,
    "open_untrusted": _open,
    "open_rows_untrusted": _open_rows,
}

# Half of the time the first byte leads deeper than a random one would.
DATAGRAMS = st.binary(max_size=120) | st.builds(
    lambda opcode, rest: bytes((opcode,)) + rest,
    st.sampled_from(sorted(Opcode)),
    st.binary(max_size=120),
)


def test_every_public_reader_of_bytes_is_tried_here() -> None:
    """No function that ends in _untrusted is left out of these tests."""
    found = set()
    for path in Path(mrc.wire.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_untrusted"):
                found.add(node.name)
    public = {name for name in found if not name.startswith("_")}
    assert public == {name.partition(",")[0].rpartition(".")[2] for name in READERS}


def read_all(data: Buffer, readers: Iterable[Reader] = READERS.values()) -> None:
    """Give the bytes to every reader."""
    for read in readers:
        with contextlib.suppress(BadPacket):
            read(data)


@given(data=DATAGRAMS)
@example(data=b"")
def test_arbitrary_bytes_raise_only_bad_packet(data: bytes) -> None:
    """Bytes of any length and content are read, or are a bad packet: nothing else can happen."""
    for form in (data, bytearray(data), memoryview(data)):
        read_all(form)


@given(packet=ANY_PACKET, flips=st.lists(st.integers(0, 1 << 12), max_size=4), data=st.data())
def test_a_spoilt_packet_raises_only_bad_packet(
    packet: Packet, flips: list[int], data: st.DataObject
) -> None:
    """A real packet with flipped bits, cut anywhere, is read or is a bad packet."""
    spoilt = bytearray(append_icrc(packet.encode(), *FLOW))
    for flip in flips:
        bit = flip % (8 * len(spoilt))
        spoilt[bit // 8] ^= 1 << bit % 8
    read_all(spoilt)
    read_all(memoryview(spoilt)[: data.draw(st.integers(0, len(spoilt)))])


@pytest.mark.parametrize("opcode", sorted(Opcode))
def test_an_oversized_datagram_raises_only_bad_packet(opcode: Opcode) -> None:
    """More bytes than a datagram can have are no reason for another exception."""
    read_all(bytes((opcode,)) + bytes(70_000))


def test_another_exception_would_be_noticed() -> None:
    """A reader that fails in any other way fails these tests."""

    def careless(data: Buffer) -> object:
        return data[0]

    with pytest.raises(IndexError):
        read_all(b"", [*READERS.values(), careless])
