"""Messages cut into packets: which opcodes, addresses and lengths, and what may be posted."""

from __future__ import annotations

import mmap
from typing import Any

import pytest

from mrc.errors import ConfigError
from mrc.proto.config import MTUS, Config
from mrc.proto.work import WorkQueue
from mrc.wire.fields import Opcode
from mrc.wire.icrc import check_icrc_untrusted
from tests.support.filters import Tap
from tests.support.pair import UDP_PORT, Pair

MTU = 256
ONLY, ONLY_IMM = Opcode.WRITE_ONLY, Opcode.WRITE_ONLY_IMMEDIATE
FIRST, MIDDLE = Opcode.WRITE_FIRST, Opcode.WRITE_MIDDLE
LAST, LAST_IMM = Opcode.WRITE_LAST, Opcode.WRITE_LAST_IMMEDIATE


def tapped(mtu: int = MTU) -> tuple[Pair, Tap]:
    """Pair on one EV, whose packets leave in order, and the tap on it."""
    tap = Tap()
    return Pair(Config(mtu=mtu, paths=1, backup_paths=0), filters=[tap]), tap


@pytest.mark.parametrize("imm", [None, 7])
@pytest.mark.parametrize(
    ("size", "opcodes"),
    [
        (1, [ONLY]),
        (MTU - 1, [ONLY]),
        (MTU, [ONLY]),
        (MTU + 1, [FIRST, LAST]),
        (2 * MTU - 3, [FIRST, LAST]),
        (2 * MTU, [FIRST, LAST]),
        (4 * MTU, [FIRST, MIDDLE, MIDDLE, LAST]),
        (4 * MTU + 1, [FIRST, MIDDLE, MIDDLE, MIDDLE, LAST]),
        (5 * MTU - 1, [FIRST, MIDDLE, MIDDLE, MIDDLE, LAST]),
    ],
)
def test_opcodes_and_fields(size: int, opcodes: list[Opcode], imm: int | None) -> None:
    """Position in the message gives the opcode; each packet says its own address (MRC 1.0 §6.2.2).

    An immediate changes the last packet only.
    """
    pair, tap = tapped()
    data = pair.rng.randbytes(size)
    assert pair.transfer(data, imm=imm) == data

    writes = tap.writes()
    ending = {ONLY: ONLY_IMM, LAST: LAST_IMM}
    expected = opcodes if imm is None else [*opcodes[:-1], ending[opcodes[-1]]]
    assert [write.opcode for write in writes] == expected
    assert [write.imm for write in writes] == [None] * (len(writes) - 1) + [imm]
    first_psn, first_va = pair.a.qp.first_psn, writes[0].va
    assert [write.psn for write in writes] == [first_psn + i for i in range(len(writes))]
    assert [write.va for write in writes] == [first_va + i * MTU for i in range(len(writes))]
    assert {write.dma_length for write in writes} == {size}
    assert {(write.msn, write.rqmsn) for write in writes} == {(1, int(imm is not None))}
    assert [write.pad for write in writes] == [0] * (len(writes) - 1) + [-size & 3]


@pytest.mark.parametrize("size", [1, 2, 3, 4, MTU + 1, 3 * MTU])
def test_every_packet_ends_on_four_bytes_and_a_right_icrc(size: int) -> None:
    """Payloads are padded to four bytes and each packet carries the iCRC of its own flow."""
    pair, tap = tapped()
    pair.transfer(bytes(size))
    for datagram in tap.datagrams:
        assert len(datagram.data) % 4 == 0
        source = (pair.a.hosts[0], datagram.source_port)
        check_icrc_untrusted(datagram.data, source, (pair.b.hosts[0], UDP_PORT))


@pytest.mark.parametrize("mtu", MTUS)
@pytest.mark.parametrize("around", [-1, 0, 1])
def test_all_mtus(mtu: int, around: int) -> None:
    """Whatever the path MTU, a message of whole packets or one byte off arrives as it was."""
    pair, tap = tapped(mtu)
    data = pair.rng.randbytes(3 * mtu + around)
    assert pair.transfer(data) == data
    assert len(tap.datagrams) == 3 + (around == 1)


def test_no_payload_is_longer_than_the_peers_mtu() -> None:
    """The smaller MTU of both sides counts."""
    tap = Tap()
    pair = Pair(Config(mtu=4096), config_b=Config(mtu=1024), filters=[tap])
    assert pair.transfer(b"\x05" * 4096) == b"\x05" * 4096
    assert len(tap.datagrams) == 4


def test_numbers_of_messages_go_on() -> None:
    """Msn counts all messages of a queue pair, rqmsn those with immediate up to this one."""
    pair, tap = tapped()
    for imm in (None, 1, None, 2):
        pair.transfer(b"x", imm=imm)
    assert [(write.msn, write.rqmsn) for write in tap.writes()] == [(1, 0), (2, 1), (3, 1), (4, 2)]


def test_message_numbers_wrap_at_16_bits() -> None:
    """What travels of the message numbers is their low half."""
    pair, tap = tapped()
    pair.a.requestor._counters.posted = 0xFFFF  # noqa: SLF001 - 65535 messages on
    pair.a.requestor._rqmsn = 0xFFFF  # noqa: SLF001
    pair.a.requestor._rqmsn_done = 0xFFFF  # noqa: SLF001 - all of them done
    pair.transfer(b"x", imm=1)
    assert [(write.msn, write.rqmsn) for write in tap.writes()] == [(0, 0)]


@pytest.mark.parametrize("offset", [0, MTU, 3 * MTU - 1, 64 * MTU - 5])
def test_low_half_of_the_address_wraps(offset: int) -> None:
    """Where bits 0 to 31 of the address run over inside a message, bits 32 to 63 go up by one."""
    pair, tap = tapped()
    data = pair.rng.randbytes(80 * MTU)
    target = bytearray(len(data))
    region = pair.b.endpoint.register(target)
    region.va = (5 << 32) - offset
    work = pair.a.endpoint.post_write(pair.a.qp, data, region.va, region.r_key)
    pair.run(lambda: pair.done(work))
    assert target == data
    assert [write.va for write in tap.writes()] == [region.va + i * MTU for i in range(80)]


@pytest.mark.parametrize("packets_before", [7, 15, 16, 37])
def test_low_half_of_the_address_wraps_among_runs_chosen_at_once(packets_before: int) -> None:
    """Whichever run it falls into, every packet says its own address."""
    pair, tap = tapped(mtu=4096)
    pair.transfer(bytes(4 << 20))  # the ring has grown
    tap.datagrams.clear()
    pair.a.requestor.nscc.cwnd = 1e6
    data = pair.rng.randbytes(200 * 4096)
    target = bytearray(len(data))
    region = pair.b.endpoint.register(target)
    region.va = (5 << 32) - packets_before * 4096
    work = pair.a.endpoint.post_write(pair.a.qp, data, region.va, region.r_key)
    pair.run(lambda: pair.done(work))
    assert target == data
    assert [write.va for write in tap.writes()] == [region.va + i * 4096 for i in range(200)]


def test_a_buffer_of_any_shape_is_sent_byte_by_byte() -> None:
    """What is posted may be any contiguous buffer; it is read where it lies."""
    pair, _ = tapped()
    words = memoryview(bytearray(range(16))).cast("I")
    assert pair.transfer(words) == bytes(range(16))


# What may be posted.


def test_a_message_may_have_all_of_32_bits() -> None:
    """2^32 - 1 bytes are one message; its packets and length are counted without a wrap."""
    pair, tap = tapped(4096)
    with mmap.mmap(-1, (1 << 32) - 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as untouched:
        pair.a.endpoint.post_write(pair.a.qp, untouched, 0, 1)
        pair.flush()
        write = tap.writes()[0]
        assert (write.opcode, write.dma_length) == (FIRST, (1 << 32) - 1)
        work = pair.a.requestor._works.find(pair.a.qp.first_psn)  # noqa: SLF001 - its last PSN
        assert work.packets == 1 << 20
        pair.a.endpoint.destroy_qp(pair.a.qp)
        pair.a.requestor._works = WorkQueue()  # noqa: SLF001 - lets go of the memory map
        del work


def test_a_message_of_33_bits() -> None:
    """One byte more than 2^32 - 1 is too much, and is told before anything is sent."""
    pair, tap = tapped()
    with (
        mmap.mmap(-1, 1 << 32, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as untouched,
        pytest.raises(ConfigError, match="4294967296 bytes; one message holds at most 4294967295"),
    ):
        pair.a.endpoint.post_write(pair.a.qp, untouched, 0, 1)
    pair.flush()
    assert tap.datagrams == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("va", -1),
        ("va", (1 << 64) - 1),
        ("va", 1.0),
        ("r_key", -1),
        ("r_key", 1 << 32),
        ("r_key", None),
        ("imm", -1),
        ("imm", 1 << 32),
        ("imm", "7"),
    ],
)
def test_what_may_not_be_posted(name: str, value: object) -> None:
    """An address, key or immediate that no header can hold is refused at once, by its name."""
    pair, tap = tapped()
    arguments: dict[str, Any] = {"va": 0, "r_key": 1, "imm": 2} | {name: value}
    with pytest.raises(ConfigError, match=f"{name} = .*; must be an integer from 0 to 0x"):
        pair.a.endpoint.post_write(pair.a.qp, b"xy", **arguments)
    pair.flush()
    assert tap.datagrams == []


def test_nothing_cannot_be_sent() -> None:
    """A message of 0 bytes does not exist in MRC."""
    pair, _ = tapped()
    with pytest.raises(ConfigError, match="empty"):
        pair.a.endpoint.post_write(pair.a.qp, b"", 0, 1)
