"""Messages and control objects on top of remote writes."""

import asyncio
import os
import random
from typing import Any

import pytest

from mrc.errors import ConfigError, PeerProtocolError
from mrc.messages import MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN, RING_BYTES, Kind, MessageRing
from mrc.proto.config import Config
from mrc.proto.endpoint import Endpoint
from tests.engine.conftest import Connect, turns, until

pytestmark = pytest.mark.asyncio


async def test_messages_keep_their_boundaries_and_order(connect: Connect) -> None:
    """Messages of any size, none included, arrive as they were sent."""
    messages = [os.urandom(size) for size in (1, 0, 5, 4096, 100_000, 0, MESSAGE_BYTES_MAX)]
    async with connect() as (qp, peer):
        for message in messages:
            await qp.send(message)
        assert [await peer.receive() for _ in messages] == messages


async def test_a_receiver_that_does_not_read_stops_the_sender(connect: Connect) -> None:
    """At most one ring of bytes is in flight or untaken; taking them lets the sender go on."""
    size = 1 << 20
    async with connect() as (qp, peer):
        sending = [asyncio.ensure_future(qp.send(bytes(size))) for _ in range(6)]
        await until(lambda: sum(each.done() for each in sending) == RING_BYTES // size)
        await turns(200)
        assert sum(each.done() for each in sending) == RING_BYTES // size
        for _ in sending:
            assert len(await peer.receive()) == size
        await asyncio.gather(*sending)


async def test_messages_flow_for_many_rings(connect: Connect) -> None:
    """Sizes that never fit the ring evenly go round it again and again, both ways at once."""
    sizes = [(index * 77_773) % 300_000 + 1 for index in range(120)]

    async with connect() as (qp, peer):

        async def talk(one: object, other: object) -> None:
            for size in sizes:
                await qp.send(bytes([size & 0xFF]) * size)

        async def listen() -> None:
            for size in sizes:
                assert await peer.receive() == bytes([size & 0xFF]) * size

        async def back() -> None:
            for size in sizes:
                await peer.send(bytes(size))

        async def hear() -> None:
            for size in sizes:
                assert len(await qp.receive()) == size

        await asyncio.gather(talk(qp, peer), listen(), back(), hear())


async def test_a_message_over_the_limit_is_refused(connect: Connect) -> None:
    """The error names the size, the limit and what to use instead."""
    async with connect() as (qp, _):
        with pytest.raises(ConfigError, match=r"at most 1048576.*write"):
            await qp.send(bytes(MESSAGE_BYTES_MAX + 1))


async def test_control_objects_do_not_wait_behind_data_messages(connect: Connect) -> None:
    """JSON objects have their own queue: untaken data messages do not hide them."""
    async with connect() as (qp, peer):
        await qp.send(b"data")
        await qp.channel.send({"what": "control", "number": 1})
        assert await peer.channel.receive() == {"what": "control", "number": 1}
        assert await peer.receive() == b"data"


async def test_a_message_may_not_run_over_the_end_of_the_ring() -> None:
    """What lies behind it is the credit, which a message must not change."""

    async def nothing(*_: Any) -> None:
        """Take a credit."""

    ring = MessageRing(Endpoint(Config(), random.Random(1)).register, nothing)
    ring.connect(ring.address)
    va, r_key = ring.address.ring_va, ring.address.ring_r_key
    at = 0
    for length in (MESSAGE_BYTES_MAX,) * 3 + (MESSAGE_BYTES_MAX - MESSAGE_BYTES_MIN,):
        assert ring.on_immediate_untrusted(r_key, va + at, length, Kind.DATA)
        await ring.take(ring.data)
        await asyncio.sleep(0)
        at += length
    with pytest.raises(PeerProtocolError):
        ring.on_immediate_untrusted(r_key, va + at, MESSAGE_BYTES_MIN + 4, Kind.DATA)
