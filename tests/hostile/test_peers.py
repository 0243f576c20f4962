"""Peers that die at every step, and closing at the worst moment.

Peers that never read are in tests/engine/test_messages and tests/engine/test_faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable

import pytest

import mrc
from mrc.errors import (
    MrcError,
    PeerError,
    PeerLost,
    QueuePairClosed,
    RetriesExceeded,
    TransportError,
)
from mrc.udp import FaultySockets
from tests.engine.conftest import (
    Connect,
    nothing_left,  # noqa: F401 - looks after each test
    turns,
    until,
)
from tests.hostile.relay import Death, Relay, relayed

pytestmark = pytest.mark.asyncio

SIZE = 8_000_000
TIMEOUT_S = 1.0
"""Longer than a busy machine keeps anybody from its turn."""
PIECES_OF_A_HANDSHAKE = 3
"""Hello, its answer, and that one is ready."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait long for a word of the peer."""
    monkeypatch.setattr("mrc.api.CONNECT_TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr("mrc.door.PROOF_TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr("mrc.connection.BYE_TIMEOUT_S", TIMEOUT_S)


@contextlib.asynccontextmanager
async def through_a_relay(
    **client: object,
) -> AsyncIterator[tuple[mrc.QueuePair, mrc.QueuePair, Relay]]:
    """Yield connected queue pairs, and the relay on the rendezvous connection between them."""
    async with (
        mrc.listen("127.0.0.1:0") as listener,
        relayed(listener) as (relay, url),
        mrc.connect(url, **client) as qp,  # type: ignore[arg-type]
        await listener.accept() as peer,
    ):
        yield qp, peer, relay


# In the handshake.


@pytest.mark.parametrize("manner", list(Death), ids=lambda manner: manner.name)
@pytest.mark.parametrize("step", range(PIECES_OF_A_HANDSHAKE - 1))
async def test_death_in_the_handshake_is_told_and_leaves_nothing(step: int, manner: Death) -> None:
    """Who connects is told whom and why, in time; who listens is rid of it, and takes the next."""
    async with (
        mrc.Endpoint() as server,
        server.listen("127.0.0.1:0") as listener,
        relayed(listener) as (relay, url),
        mrc.Endpoint() as client,
    ):
        relay.dies_at(step, manner)
        with pytest.raises(PeerError) as told:
            async with asyncio.timeout(10):
                await client.connect(url, timeout_s=TIMEOUT_S)
        assert told.value.peer in url
        assert str(told.value).startswith(told.value.peer)
        await until(lambda: listener.refused_handshakes == 1)
        await until(lambda: nothing_in(client) and nothing_in(server))
        async with client.connect(listener.url) as qp, await listener.accept() as peer:
            await qp.send(b"alive")
            assert await peer.receive() == b"alive"


@pytest.mark.parametrize("manner", list(Death), ids=lambda manner: manner.name)
async def test_death_before_the_last_word_of_the_handshake(manner: Death) -> None:
    """Who said it may think that all is well; it is told when it waits for anything."""
    config = mrc.Config(timeout=10, retry_linear=2, retry_exponential=2)
    async with (
        mrc.Endpoint() as server,
        server.listen("127.0.0.1:0") as listener,
        relayed(listener) as (relay, url),
        mrc.Endpoint(config) as client,
    ):
        relay.dies_at(PIECES_OF_A_HANDSHAKE - 1, manner)
        with pytest.raises((PeerError, TransportError), match=url.removeprefix("mrc://")[:-1]):
            await connect_and_talk(client, url)
        await until(lambda: listener.refused_handshakes == 1)
        await until(lambda: nothing_in(client) and nothing_in(server))


@pytest.mark.slow
@pytest.mark.parametrize("manner", [Death.CLOSES, Death.RESETS], ids=lambda manner: manner.name)
async def test_death_at_every_step_of_a_locked_handshake(manner: Death) -> None:
    """TLS or not: until there is a queue pair each end is told, and has nothing left of it."""
    async with (
        mrc.Endpoint() as server,
        server.listen("127.0.0.1:0", lock=mrc.Lock.new()) as listener,
        mrc.Endpoint() as client,
    ):
        for step in itertools.count():
            async with relayed(listener) as (relay, url), accepted_by(listener):
                relay.dies_at(step, manner)
                with contextlib.suppress(PeerError, TransportError):
                    await connect_and_talk(client, url, relay.is_dead)
                    break
                assert relay.pieces == step
            await until(lambda: nothing_in(client) and nothing_in(server))
        assert step > PIECES_OF_A_HANDSHAKE + 3
        async with client.connect(listener.url) as qp, await listener.accept() as peer:
            await qp.send(b"alive")
            assert await peer.receive() == b"alive"


def nothing_in(endpoint: mrc.Endpoint) -> bool:
    """Whether an endpoint holds neither queue pairs nor memory regions."""
    found = endpoint.statistics()
    return found.queue_pairs == found.regions == 0


@contextlib.asynccontextmanager
async def accepted_by(listener: mrc.Listener) -> AsyncIterator[None]:
    """Accept what comes to a listener as long as the block runs, and close it then."""
    accepting = asyncio.ensure_future(listener.accept())
    try:
        yield
    finally:
        await turns(3)
        if not accepting.cancel():
            await accepting.result().close()


async def connect_and_talk(
    client: mrc.Endpoint, url: str, goes_on: Callable[[], bool] = lambda: True
) -> None:
    """Connect and send messages until something fails."""
    async with asyncio.timeout(10), client.connect(url, timeout_s=TIMEOUT_S) as qp:
        while goes_on():
            await qp.send(b"anybody?")


@pytest.mark.parametrize("manner", [Death.CLOSES, Death.RESETS], ids=lambda manner: manner.name)
async def test_death_right_after_the_handshake_is_a_lost_peer(manner: Death) -> None:
    """Both ends have a queue pair by then, and are told at the first thing they wait for."""
    async with (
        mrc.listen("127.0.0.1:0") as listener,
        relayed(listener) as (relay, url),
    ):
        relay.dies_at(PIECES_OF_A_HANDSHAKE, manner)
        async with mrc.connect(url) as qp, await listener.accept() as peer:
            for side in (qp, peer):
                with pytest.raises(PeerLost, match="is gone"):
                    async with asyncio.timeout(5):
                        await side.receive()


# In a transfer.


@pytest.mark.parametrize("manner", [Death.CLOSES, Death.RESETS], ids=lambda manner: manner.name)
async def test_death_in_a_transfer_ends_every_wait_at_once(manner: Death) -> None:
    """Writes, immediates and messages under way raise the same, naming the peer."""
    async with through_a_relay() as (qp, peer, relay):
        remote = peer.register(bytearray(SIZE)).remote
        waits = [
            asyncio.ensure_future(wait)
            for wait in (
                qp.write(bytes(SIZE), remote),
                qp.next_immediate(),
                qp.receive(),
                qp.channel.receive(),
                peer.next_immediate(),
            )
        ]
        await until(lambda: peer.statistics().responder.payload_bytes_placed > 0)
        relay.dies_now(manner)
        async with asyncio.timeout(5):
            told = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(each) for each in told] == [PeerLost] * len(waits)
        assert all(str(each).startswith(qp.peer) for each in told[:4])
        with pytest.raises(PeerLost):
            await qp.write(b"more", remote)


@pytest.mark.slow
async def test_silence_of_the_rendezvous_alone_stops_no_transfer() -> None:
    """It has one path, and nothing that a transfer waits for goes over it."""
    async with through_a_relay() as (qp, peer, relay):
        memory, data = bytearray(SIZE), os.urandom(SIZE)
        relay.dies_now(Death.FALLS_SILENT)
        await qp.write_imm(data, peer.register(memory).remote, imm=4)
        assert (await peer.next_immediate()).imm == 4
        assert memory == data


RECEIVER = """
import asyncio, sys, mrc
async def main():
    async with mrc.listen("127.0.0.1:0") as listener:
        print(listener.url, flush=True)
        qp = await listener.accept()
        memory = bytearray(1 << 22)
        await qp.channel.send(qp.register(memory).remote.to_json())
        await qp.receive()
asyncio.run(main())
"""


@pytest.mark.slow
async def test_process_killed_in_a_transfer_is_noticed_at_once() -> None:
    """SIGKILL under a full window: the write ends with PeerLost long before any retry budget."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RECEIVER, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        async with mrc.connect(url) as qp:
            remote = mrc.RemoteRegion.from_json_untrusted(await qp.channel.receive())
            await qp.write(bytes(remote.length), remote)
            writing = asyncio.ensure_future(write_again_and_again(qp, remote))
            await until(lambda: qp.statistics().requestor.writes_posted > 1)
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(PeerLost, match="is gone"):
                async with asyncio.timeout(5):
                    await writing
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def write_again_and_again(qp: mrc.QueuePair, remote: mrc.RemoteRegion) -> None:
    """Write until it fails."""
    while True:
        await qp.write(bytes(remote.length), remote)


# In closing.


@pytest.mark.slow
@pytest.mark.parametrize("manner", list(Death), ids=lambda manner: manner.name)
@pytest.mark.parametrize("step", [0, 1])
async def test_death_in_closing_is_no_error(step: int, manner: Death) -> None:
    """Whether the goodbye gets through or not, and its answer or not: close returns, in time."""
    async with through_a_relay() as (qp, peer, relay):
        relay.dies_at(relay.pieces + step, manner)
        if step == 0:
            relay.dies_now(manner)
        async with asyncio.timeout(5):
            await qp.close()
        with pytest.raises(TransportError):
            await qp.send(b"late")
        if manner is not Death.FALLS_SILENT or step == 1:
            with pytest.raises(PeerLost):
                async with asyncio.timeout(5):
                    await peer.receive()


async def test_both_close_at_once() -> None:
    """Two goodbyes that cross are as good as one and its answer."""
    async with through_a_relay() as (qp, peer, _):
        async with asyncio.timeout(5):
            await asyncio.gather(qp.close(), peer.close())
        assert isinstance(qp.failure, TransportError)
        assert isinstance(peer.failure, TransportError)


# Under a full window.


async def fill_the_window(
    qp: mrc.QueuePair, data: bytes, remote: mrc.RemoteRegion
) -> asyncio.Task[None]:
    """Begin a write, and wait until as much is in flight as may be."""
    writing = asyncio.ensure_future(qp.write(data, remote))
    await until(lambda: 2 * in_flight(qp)[0] > in_flight(qp)[1])
    assert not writing.done()
    return writing


def in_flight(qp: mrc.QueuePair) -> tuple[int, int]:
    """Return what is in flight and what may be, in bytes."""
    found = qp.statistics().requestor
    return found.inflight_bytes, found.cwnd_bytes


async def test_close_under_a_full_window_waits_for_every_byte(connect: Connect) -> None:
    """What was posted is placed when close returns, and the write has not failed."""
    memory, data = bytearray(SIZE), os.urandom(SIZE)
    async with connect() as (qp, peer):
        writing = await fill_the_window(qp, data, peer.register(memory).remote)
        await qp.close()
        await writing
    assert memory == data


async def test_close_under_a_full_window_ends_with_the_retry_budget(connect: Connect) -> None:
    """Where nothing gets through any more close waits no longer than the write does."""
    faults = FaultySockets()
    config = mrc.Config(paths=2, timeout=10, retry_linear=2, retry_exponential=2)
    async with connect(config=config, sockets=faults) as (qp, peer):
        writing = await fill_the_window(qp, bytes(SIZE), peer.register(bytearray(SIZE)).remote)
        for index in range(len(faults.senders)):
            faults.blackhole_nth(index)
        async with asyncio.timeout(10):
            await qp.close()
        with pytest.raises(RetriesExceeded):
            await writing


async def test_abort_under_a_full_window_is_immediate(connect: Connect) -> None:
    """Nothing is waited for: the write raises, and the peer learns that this end is over."""
    async with connect() as (qp, peer):
        writing = await fill_the_window(qp, bytes(SIZE), peer.register(bytearray(SIZE)).remote)
        qp.abort()
        with pytest.raises(QueuePairClosed):
            await writing
        with pytest.raises(PeerLost):
            async with asyncio.timeout(5):
                await peer.receive()


async def test_receiver_that_closes_under_a_full_window_ends_the_write(connect: Connect) -> None:
    """Either everything still arrives or the write raises: it never returns without its bytes."""
    memory, data = bytearray(SIZE), os.urandom(SIZE)
    async with connect() as (qp, peer):
        writing = await fill_the_window(qp, data, peer.register(memory).remote)
        async with asyncio.timeout(10):
            await peer.close()
            (outcome,) = await asyncio.gather(writing, return_exceptions=True)
    if outcome is None:
        assert memory == data
    else:
        assert isinstance(outcome, MrcError)
        assert str(outcome).startswith(qp.peer)
