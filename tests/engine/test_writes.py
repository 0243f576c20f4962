"""Remote writes between two queue pairs on real loopback sockets."""

import mmap
import os

import numpy as np
import pytest

import mrc
from mrc.errors import ConfigError, RemoteAccessError
from tests.engine.conftest import Connect

pytestmark = pytest.mark.asyncio

SIZES = [1, 4095, 4096, 4097, 61_440, 61_441, 1_000_003]


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_written_is_there_when_write_returns(connect: Connect, size: int) -> None:
    """A write of any size is placed byte for byte before the call returns."""
    data = os.urandom(size)
    memory = bytearray(size + 2)
    async with connect() as (qp, peer):
        with peer.register(memory) as region:
            await qp.write(data, region.remote, offset=1)
    assert bytes(memory) == b"\0" + data + b"\0"


async def test_ipv6_carries_writes_as_well(connect: Connect) -> None:
    """A queue pair over ::1 behaves as one over IPv4."""
    data = os.urandom(300_000)
    memory = bytearray(len(data))
    async with connect("[::1]:0") as (qp, peer):
        await qp.write(data, peer.register(memory).remote)
    assert bytes(memory) == data


@pytest.mark.parametrize(
    "make", [bytearray, lambda n: np.zeros(n, np.uint8), lambda n: mmap.mmap(-1, n)]
)
async def test_any_writable_buffer_is_a_region(connect: Connect, make: type[bytearray]) -> None:
    """Bytearrays, numpy arrays and memory maps can be registered."""
    memory = make(8192)
    async with connect() as (qp, peer):
        await qp.write(b"x" * 8192, peer.register(memory).remote)
    assert bytes(memory) == b"x" * 8192


async def test_immediates_arrive_in_order_and_exactly_once(connect: Connect) -> None:
    """Each WRITE-with-Immediate is reported once, in the order of the calls, with its place."""
    async with connect() as (qp, peer):
        region = peer.register(bytearray(100_000))
        for number in range(50):
            await qp.write_imm(b"y" * 1999, region.remote, offset=number * 2000, imm=number)
        got = [await peer.next_immediate() for _ in range(50)]
    assert [(each.imm, each.offset, each.length) for each in got] == [
        (number, number * 2000, 1999) for number in range(50)
    ]
    assert got[0].region is region


async def test_a_read_only_buffer_is_refused(connect: Connect) -> None:
    """Memory that cannot be written cannot be registered; the error says what to pass."""
    async with connect() as (_, peer):
        with pytest.raises(ConfigError, match="read-only"):
            peer.register(b"abc")


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, 101), (100, 1)])
async def test_a_write_outside_the_region_is_refused_here(
    connect: Connect, offset: int, size: int
) -> None:
    """What does not fit the remote region never leaves this side."""
    async with connect() as (qp, peer):
        remote = peer.register(bytearray(100)).remote
        with pytest.raises(ConfigError, match="100 bytes"):
            await qp.write(bytes(size), remote, offset=offset)


async def test_an_empty_write_is_refused(connect: Connect) -> None:
    """MRC has no message of 0 bytes."""
    async with connect() as (qp, peer):
        with pytest.raises(ConfigError, match="1 byte"):
            await qp.write(b"", peer.register(bytearray(8)).remote)


async def test_a_deregistered_region_refuses_writes(connect: Connect) -> None:
    """After deregistration the writer's queue pair fails and nothing is placed."""
    memory = bytearray(4096)
    async with connect() as (qp, peer):
        region = peer.register(memory)
        region.deregister()
        with pytest.raises(RemoteAccessError, match="refused a write"):
            await qp.write(b"z" * 4096, region.remote)
        assert isinstance(qp.failure, RemoteAccessError)
    assert not any(memory)


async def test_a_forged_remote_region_reaches_no_other_memory(connect: Connect) -> None:
    """Writing past a region's end with a forged length is refused by the peer."""
    memory = bytearray(8192)
    async with connect() as (qp, peer):
        remote = peer.register(memoryview(memory)[:4096]).remote
        forged = mrc.RemoteRegion(remote.va, remote.r_key, 8192)
        with pytest.raises(RemoteAccessError):
            await qp.write(b"z" * 8192, forged)
    assert not any(memory[4096:])


async def test_statistics_name_every_path_and_balance(connect: Connect) -> None:
    """What was sent was acknowledged, spread over the active paths, and nothing was resent."""
    data = bytes(4_000_000)
    async with connect(config=mrc.Config(paths=8, backup_paths=2)) as (qp, peer):
        await qp.write(data, peer.register(bytearray(len(data))).remote)
        sent = qp.statistics()
        received = peer.statistics().responder
    assert sent.state == "RTS"
    assert sent.requestor.writes_done == 1
    assert sent.requestor.payload_bytes_sent == len(data) == received.payload_bytes_placed
    assert len(sent.paths) == 10
    assert sum(path.sent_packets > 0 for path in sent.paths) >= 4
    assert sum(path.acked_packets for path in sent.paths) == sent.requestor.packets_sent
    assert sent.requestor.packets_retransmitted == 0
