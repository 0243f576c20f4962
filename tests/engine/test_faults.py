"""The protocol on real sockets that lose, corrupt, double and swallow datagrams."""

import asyncio
import contextlib
import os
import random
import socket

import pytest

import mrc
from mrc.errors import MrcError
from mrc.udp import FaultySockets
from tests.engine.conftest import Connect, turns, until

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    "faults",
    [
        {"loss": 0.01},
        {"loss": 0.1},
        {"corruption": 0.02},
        {"duplication": 0.05},
        {"inbound_loss": 0.1},
    ],
    ids=str,
)
async def test_every_byte_arrives_whatever_is_lost(
    connect: Connect, faults: dict[str, float]
) -> None:
    """Loss, corruption, duplication and lost acknowledgements cost retransmissions, not data."""
    data = os.urandom(3_000_001)
    memory = bytearray(len(data))
    async with connect(sockets=FaultySockets(seed=4, **faults)) as (qp, peer):
        await qp.write_imm(data, peer.register(memory).remote, imm=9)
        assert (await peer.next_immediate()).imm == 9
    assert bytes(memory) == data


async def test_a_dead_path_is_withdrawn_alone_and_comes_back(connect: Connect) -> None:
    """One black-holed source port is the only one blamed, and is used again after it heals."""
    faults = FaultySockets()
    changes: list[mrc.EvChanged] = []
    async with connect(sockets=faults) as (qp, peer):

        async def watch() -> None:
            async for event in qp.events():
                if isinstance(event, mrc.EvChanged):
                    changes.append(event)
                    if event.after is mrc.EvState.GOOD:
                        return

        watching = asyncio.ensure_future(watch())
        remote = peer.register(bytearray(1_000_000)).remote
        port = faults.blackhole_nth(3)
        while not changes:
            await qp.write(bytes(1_000_000), remote)
        faults.heal_nth(3)
        async with asyncio.timeout(5):
            await watching
    assert [(each.source_port, each.after) for each in changes] == [
        (port, mrc.EvState.ASSUMED_BAD),
        (port, mrc.EvState.GOOD),
    ]


async def test_junk_at_the_receiving_port_moves_nothing_but_counters(connect: Connect) -> None:
    """Random and half-right datagrams during a transfer are dropped, counted and unanswered."""
    rng = random.Random(7)
    data = os.urandom(6_000_000)
    memory = bytearray(len(data))
    async with (
        mrc.Endpoint() as server,
        mrc.Endpoint() as client,
        server.listen("127.0.0.1:0") as listener,
        client.connect(listener.url) as qp,
        await listener.accept() as peer,
    ):
        target = ("127.0.0.1", server.engine.endpoint.ports[0].udp_port)
        remote = peer.register(memory).remote
        writing = asyncio.ensure_future(qp.write(data, remote))
        opcodes = [*range(0xC6, 0xCC), 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE, 0, 0xFF]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
            attacker.bind(("127.0.0.1", 0))
            attacker.setblocking(False)
            for number in range(10_000):
                junk = bytearray(rng.randbytes(rng.randrange(0, 120)))
                if junk and number % 2:
                    junk[0] = rng.choice(opcodes)
                    junk[5:8] = peer.statistics().qpn.to_bytes(3, "big")
                with contextlib.suppress(BlockingIOError):
                    attacker.sendto(junk, target)
                if number % 100 == 0:
                    await asyncio.sleep(0)
            await writing
            await qp.write(b"end", peer.register(bytearray(3)).remote)
            with pytest.raises(BlockingIOError):
                attacker.recv(100)
        drops = server.statistics().drops
        responder = peer.statistics().responder
        assert responder.payload_bytes_placed == len(data) + 3
        assert responder.nacks == 0
    assert bytes(memory) == data
    assert sum(drops.values()) > 1000
    assert {"icrc", "short"} <= set(drops)


async def test_an_unread_immediate_queue_slows_the_peer_and_stays_bounded(connect: Connect) -> None:
    """A peer that never takes immediates holds the sender, not its own memory."""
    config = mrc.Config(immediates_held_max=64, timeout=12, retry_exponential=25)
    async with connect(config=config) as (qp, peer):
        remote = peer.register(bytearray(64)).remote
        writing = [asyncio.ensure_future(qp.write_imm(b"i", remote, imm=i)) for i in range(100)]
        await until(lambda: sum(each.done() for each in writing) == 64)
        await turns(200)
        assert sum(each.done() for each in writing) == 64
        got = [(await peer.next_immediate()).imm for _ in range(100)]
        await asyncio.gather(*writing)
    assert got == list(range(100))


async def test_uninterested_waiters_see_no_unretrieved_exception(connect: Connect) -> None:
    """Failing a queue pair with writes nobody waits for any more is silent."""
    async with connect() as (qp, peer):
        remote = peer.register(bytearray(1000)).remote
        writing = asyncio.ensure_future(qp.write(bytes(1000), remote))
        await asyncio.sleep(0)
        qp.abort()
        with pytest.raises(MrcError):
            await writing
