"""Peers and callers that do what they should not: each costs itself, and nobody else."""

import asyncio
import contextlib
import gc
import socket
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mrc
from mrc.errors import ConfigError, LocalError, PeerProtocolError, RemoteAccessError, TransportError
from mrc.messages import MESSAGE_BYTES_MAX, RING_BYTES, Kind
from tests.engine.conftest import Connect

pytestmark = pytest.mark.asyncio


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    "arguments", [{"offset": 1.5}, {"imm": 1.5}, {"imm": -1}, {"imm": 1 << 32}]
)
async def test_an_argument_that_is_no_integer_is_refused_at_once(
    connect: Connect, arguments: dict[str, Any]
) -> None:
    """What cannot stand in a header fails in the call, and the endpoint goes on."""
    async with connect() as (qp, peer):
        remote = peer.register(bytearray(10)).remote
        with pytest.raises((ConfigError, TypeError)):
            await qp.write_imm(b"abc", remote, **{"imm": 1, **arguments})
        offset: Any = np.int64(2)
        await qp.write_imm(b"abc", remote, offset=offset, imm=7)
        assert (await peer.next_immediate()).offset == 2


async def test_a_message_beyond_the_credit_ends_the_queue_pair(connect: Connect) -> None:
    """A peer that ignores the ring's flow control is cut off before it fills our memory."""
    async with connect() as (qp, peer):
        ring = peer._connection.ring.address  # noqa: SLF001 - a hostile peer knows where it is
        remote = mrc.RemoteRegion(ring.ring_va, ring.ring_r_key, ring.ring_bytes)

        async def flood() -> None:
            for number in range(2 * RING_BYTES // MESSAGE_BYTES_MAX):
                offset = number * MESSAGE_BYTES_MAX % RING_BYTES
                await qp.write_imm(bytes(MESSAGE_BYTES_MAX), remote, offset=offset, imm=Kind.DATA)

        with pytest.raises(TransportError):
            await flood()
        assert isinstance(peer.failure, PeerProtocolError)


async def test_an_immediate_may_not_claim_more_than_its_region(connect: Connect) -> None:
    """The length announced with an immediate lies inside the region, or the write is refused."""
    async with connect() as (qp, peer):
        region = peer.register(bytearray(100))
        outside = mrc.RemoteRegion(region.va - 50, region.r_key, 200)
        with pytest.raises(RemoteAccessError):
            await qp.write_imm(bytes(120), outside, imm=1)


async def test_sealed_bytes_cannot_be_written_again(connect: Connect) -> None:
    """What was sealed stays as it is; what lies behind may still be written."""
    memory = bytearray(100)
    async with connect() as (qp, peer):
        region = peer.register(memory)
        await qp.write(b"a" * 50, region.remote)
        region.seal(50)
        await qp.write(b"b" * 50, region.remote, offset=50)
        with pytest.raises(RemoteAccessError):
            await qp.write(b"c", region.remote, offset=49)
    assert bytes(memory) == b"a" * 50 + b"b" * 50


async def test_cancelling_a_close_leaks_no_socket() -> None:
    """A close whose waiting is cancelled still comes to its end."""

    async def once(listener: mrc.Listener) -> int:
        qp = await mrc.connect(listener.url)
        peer = await listener.accept()
        closing = asyncio.ensure_future(qp.close())
        await asyncio.sleep(0)
        closing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await closing
        await qp.close()
        await peer.close()
        return descriptors()

    async with mrc.listen("127.0.0.1:0") as listener:
        after_the_first = await once(listener)
        for _ in range(3):
            assert await once(listener) <= after_the_first


async def test_an_endpoint_can_be_opened_again_after_it_was_closed() -> None:
    """Using a closed endpoint opens it anew instead of waiting for ever."""
    endpoint = mrc.Endpoint()
    async with mrc.listen("127.0.0.1:0") as listener:
        for _ in range(2):
            async with (
                endpoint,
                endpoint.connect(listener.url) as qp,
                await listener.accept() as peer,
            ):
                await qp.send(b"again")
                assert await peer.receive() == b"again"


async def test_a_connection_reset_before_it_is_looked_at_is_no_news(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A stranger who connects and resets leaves no traceback and no trace."""
    async with mrc.listen("127.0.0.1:0") as listener:
        for _ in range(20):
            with socket.socket() as stranger:
                stranger.connect(listener.address)
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        async with mrc.connect(listener.url) as qp, await listener.accept() as peer:
            await qp.send(b"alive")
            assert await peer.receive() == b"alive"
    assert capfd.readouterr().err == ""


async def test_a_plane_that_is_not_here_is_refused_when_listening() -> None:
    """Nobody waits for peers on an address this machine does not have."""
    with pytest.raises(LocalError, match=r"10\.254\.254\.254"):
        async with mrc.listen("127.0.0.1:0", planes=["10.254.254.254"]):
            pass


@pytest.mark.parametrize("message", [[1], {"x": float("nan")}, {"x": {1, 2}}])
async def test_what_is_no_json_object_is_refused_before_it_leaves(
    connect: Connect, message: Any
) -> None:
    """The channel refuses at this side what the peer could not read."""
    async with connect() as (qp, _):
        with pytest.raises(ConfigError):
            await qp.channel.send(message)


@pytest.mark.parametrize(
    "text", ["mrc://[::1", "127.0.0.1:" + "9" * 5000, "a\0b:1", "", "http://x/"]
)
async def test_an_address_that_is_none_is_a_configuration_error(text: str) -> None:
    """Every malformed address gives the same kind of error."""
    with pytest.raises(ConfigError):
        await mrc.connect(text)
