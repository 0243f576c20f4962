"""Memory regions: a peer writes where it was told it may, and nowhere else."""

from __future__ import annotations

import mmap
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.errors import ConfigError
from mrc.proto.config import Config
from mrc.proto.events import QpFailed, QpFailure
from mrc.proto.memory import MemoryTable, bytes_of
from mrc.wire.control import Ack, Syndrome
from mrc.wire.fields import Opcode
from tests.support.packets import Forger
from tests.support.pair import Pair

PAGE = 4096


def table() -> MemoryTable:
    """Table with seeded keys."""
    return MemoryTable(random.Random(1))


@pytest.mark.parametrize(
    "buffer", [bytearray(8), memoryview(bytearray(8)), mmap.mmap(-1, 8), np.zeros((2, 4), np.uint8)]
)
def test_any_writable_buffer_is_a_region(buffer: Any) -> None:
    """A bytearray, a memory map or an array of any shape can be registered, without a copy."""
    regions = table()
    region = regions.register(buffer)
    found = regions.find(region.r_key, region.va, 8, 3)
    assert found is not None
    found[:] = 7
    assert bytes(memoryview(buffer).cast("B")) == b"\x07" * 8
    del found
    regions.deregister(region)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (b"12345678", "read-only"),
        (bytearray(), "empty"),
        (memoryview(bytearray(8))[::2], "not contiguous"),
        (np.array([b"x", 1], object), "Python objects"),
    ],
)
def test_what_cannot_be_a_region(buffer: Any, message: str) -> None:
    """A buffer nobody can write to, an empty one and one with gaps are refused with the reason."""
    with pytest.raises(ConfigError, match=message):
        table().register(buffer)


def test_number_of_regions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table refuses more regions than it may hold."""
    monkeypatch.setattr(MemoryTable, "REGIONS_MAX", 2)
    regions = table()
    first = regions.register(bytearray(1))
    regions.register(bytearray(1))
    with pytest.raises(ConfigError, match="2 memory regions"):
        regions.register(bytearray(1))
    regions.deregister(first)
    regions.register(bytearray(1))
    assert len(regions) == 2


def test_keys_are_random_and_never_zero() -> None:
    """An r_key in use or of zero is not given out."""

    class Scripted(random.Random):
        keys = iter((5, 0, 5, 0, 6))

        def getrandbits(self, bits: int, /) -> int:
            return next(self.keys) if bits == 32 else 0

    regions = MemoryTable(Scripted())
    assert [regions.register(bytearray(1)).r_key for _ in range(2)] == [5, 6]


def test_addresses_are_aligned_to_pages() -> None:
    """A region begins at a multiple of 4096, so that its address says nothing of this process."""
    assert table().register(bytearray(1)).va % PAGE == 0


@given(offset=st.integers(-20, 30), length=st.integers(0, 40))
def test_bounds(offset: int, length: int) -> None:
    """[va, va + length) is found exactly when all of it lies in the region."""
    regions = table()
    region = regions.register(bytearray(range(16)))
    found = regions.find(region.r_key, region.va + offset, length, 3)
    inside = offset >= 0 and offset + length <= 16
    assert (found is not None) == inside
    if found is not None:
        assert bytes(found) == bytes(range(16))[offset : offset + length]


def test_unknown_key() -> None:
    """A key that was never given out opens nothing."""
    regions = table()
    region = regions.register(bytearray(16))
    assert regions.find(region.r_key ^ 1, region.va, 1, 3) is None
    assert regions.region(region.r_key) is region
    assert regions.region(region.r_key ^ 1) is None


def test_region_of_one_queue_pair_is_closed_to_others() -> None:
    """Registered for a queue pair, a region opens for it alone; registered for none, for all."""
    regions = table()
    own, anyones = regions.register(bytearray(16), qpn=7), regions.register(bytearray(16))
    assert regions.find(own.r_key, own.va, 1, 7) is not None
    assert regions.find(own.r_key, own.va, 1, 8) is None
    assert regions.find(anyones.r_key, anyones.va, 1, 8) is not None


def test_deregistered_region_is_closed_at_once() -> None:
    """After deregistering the key opens nothing and the buffer is let go; twice is once."""
    regions = table()
    buffer = mmap.mmap(-1, 16)
    region = regions.register(buffer)
    regions.deregister(region)
    regions.deregister(region)
    assert regions.find(region.r_key, region.va, 1, 3) is None
    buffer.close()


def test_read_only_data_can_be_sent() -> None:
    """What is sent need not be writable."""
    assert bytes(bytes_of(b"abc")) == b"abc"


# On the wire.


class Victim:
    """B with one region of 4096 bytes, and A's name to write to it."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.buffer = bytearray(PAGE)
        self.region = self.pair.b.endpoint.register(self.buffer)
        self.forger = Forger(self.pair, 1)

    def nothing_was_written(self) -> bool:
        """Whether the region is untouched and the peer's first packet still awaited."""
        untouched = self.buffer == bytes(PAGE)
        return untouched and self.pair.b.responder.window.cack == self.pair.a.qp.first_psn - 1


@pytest.mark.parametrize(
    "form",
    [{}, {"opcode": Opcode.WRITE_ONLY_IMMEDIATE, "imm": 1}],
    ids=["plain", "with immediate"],
)
@pytest.mark.parametrize(
    ("va_offset", "key_change", "fields"),
    [
        (0, 1, {}),
        (-1, 0, {}),
        (PAGE - 63, 0, {}),
        (PAGE, 0, {}),
        (1 << 60, 0, {}),
        (0, 0, {"dma_length": 63}),
        (0, 0, {"dma_length": 0}),
    ],
    ids=["key", "before", "over the end", "behind", "far", "longer than told", "length zero"],
)
def test_write_outside_is_refused(
    va_offset: int, key_change: int, fields: dict[str, int], form: dict[str, int]
) -> None:
    """A wrong key, address or length places no byte and is answered by one access NAK."""
    victim = Victim()
    va, r_key = victim.region.va + va_offset, victim.region.r_key ^ key_change
    victim.forger.write(0, b"\xff" * 64, va, r_key, **fields | form)
    assert victim.nothing_was_written()
    (reply,) = victim.pair.b.responder.replies()
    assert Ack.decode_untrusted(reply).syndrome == Syndrome.NAK_REMOTE_ACCESS


def test_run_outside_is_refused_as_a_whole() -> None:
    """A run that leaves the region is not placed in part."""
    pair = Pair(Config(spray_run=4))
    buffer = bytearray(3 * 4096)
    region = pair.b.endpoint.register(buffer)
    pair.a.endpoint.post_write(pair.a.qp, bytes(range(256)) * 64, region.va, region.r_key)
    pair.run(pair.failed)
    assert buffer == bytes(len(buffer))


def test_deregistering_during_a_transfer_ends_it() -> None:
    """Packets that come after deregistering are refused, and the writer is told."""
    pair = Pair(link_bps=1e9)
    target = bytearray(1 << 20)
    region = pair.b.endpoint.register(target)
    pair.a.endpoint.post_write(pair.a.qp, b"\x01" * len(target), region.va, region.r_key)
    pair.run_for(3_000_000)
    pair.b.endpoint.deregister(region)
    placed = target.count(1)
    assert 0 < placed < len(target)
    pair.run(pair.failed)
    assert target.count(1) == placed
    failure = next(e for e in pair.a.events if isinstance(e, QpFailed))
    assert failure.failure is QpFailure.REMOTE_ACCESS


@pytest.mark.parametrize("opcode", [Opcode.WRITE_ONLY, Opcode.WRITE_MIDDLE])
def test_last_byte_of_a_region_may_be_written(opcode: Opcode) -> None:
    """A write up to the last byte of a region is inside it."""
    victim = Victim()
    victim.forger.write(
        0, b"\xff" * 64, victim.region.va + PAGE - 64, victim.region.r_key, opcode=opcode
    )
    assert victim.buffer == bytes(PAGE - 64) + b"\xff" * 64
