"""Plain asyncio and uvloop alike: whatever happens ends the same way, in the same words.

Nearly all tests of connections run on both loops; here what comes out is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict

import pytest
import uvloop

import mrc
from mrc.errors import MrcError
from tests.engine.conftest import connected, until

SIZE = 300_000
Scenario = Callable[[], Awaitable[object]]


async def transfer() -> object:
    """What a transfer both ways leaves in the counters that no scheduling changes."""
    async with connected() as (qp, peer):
        for writer, reader in ((qp, peer), (peer, qp)):
            memory = bytearray(SIZE)
            await writer.write_imm(b"x" * SIZE, reader.register(memory).remote, imm=5)
            told = await reader.next_immediate()
            assert memory == b"x" * SIZE
            assert (told.imm, told.length) == (5, SIZE)
        steady = "writes_posted", "writes_done", "payload_bytes_sent", "packets_lost", "timeouts"
        return [
            {name: asdict(side.statistics().requestor)[name] for name in steady}
            for side in (qp, peer)
        ]


async def messages() -> object:
    """What a conversation sounds like."""
    async with connected() as (qp, peer):
        await qp.channel.send({"hello": 1})
        await peer.send(b"there")
        return await peer.channel.receive(), await qp.receive()


async def nobody_listens() -> object:
    """Connect to a port that has just been closed."""
    async with mrc.listen("127.0.0.1:0") as listener:
        url = listener.url
    return await mrc.connect(url)


async def name_that_does_not_exist() -> object:
    """Connect to a host that nobody can resolve."""
    return await mrc.connect("mrc://nowhere.invalid:18515/")


@contextlib.asynccontextmanager
async def server_that_says(greeting: bytes) -> AsyncIterator[str]:
    """Yield the address of a server that says one thing to each connection and waits."""
    ends: list[asyncio.StreamWriter] = []

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        writer.write(greeting)

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in ends:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def something_else_listens() -> object:
    """Connect to a server that greets in another language."""
    async with server_that_says(b"220 mail.example ESMTP\r\n") as address:
        return await mrc.connect(address)


async def nobody_answers() -> object:
    """Connect to a server that says nothing."""
    async with server_that_says(b"") as address:
        return await mrc.connect(address, timeout_s=0.1)


async def port_in_use() -> object:
    """Listen where somebody listens."""
    async with mrc.listen("127.0.0.1:0") as listener, mrc.listen(str(listener.address)) as second:
        return second


async def address_of_another_machine() -> object:
    """Listen at an address that is not here."""
    async with mrc.listen("192.0.2.1:0") as listener:
        return listener


async def sides_that_do_not_fit() -> object:
    """Connect with another setting of the iCRC."""
    async with mrc.listen("127.0.0.1:0", config=mrc.Config(icrc=False)) as listener:
        return await mrc.connect(listener.url)


async def region_that_is_closed() -> object:
    """Write to memory that was deregistered."""
    async with connected() as (qp, peer):
        region = peer.register(bytearray(SIZE))
        region.deregister()
        await qp.write(bytes(SIZE), region.remote)
        return "written"


async def peer_that_closes() -> object:
    """Wait for a message when the peer says goodbye."""
    async with connected() as (qp, peer):
        waiting = asyncio.ensure_future(peer.receive())
        await qp.close()
        return await waiting


async def peer_that_vanishes() -> object:
    """Wait for a message when the peer's sockets are gone without a word."""
    async with connected() as (qp, peer):
        waiting = asyncio.ensure_future(peer.receive())
        qp.abort()
        return await waiting


async def write_after_close() -> object:
    """Use a queue pair that was closed."""
    async with connected() as (qp, peer):
        remote = peer.register(bytearray(8)).remote
        await qp.close()
        await qp.write(b"late", remote)
        return "written"


async def timeout_of_the_application() -> object:
    """Give up waiting, then go on."""
    async with connected() as (qp, peer):
        try:
            async with asyncio.timeout(0.01):
                await peer.receive()
        except TimeoutError:
            await qp.send(b"kept")
        return await peer.receive()


async def write_that_is_cancelled() -> object:
    """Cancel a write under way; what comes after it is placed after it."""
    async with connected() as (qp, peer):
        memory = bytearray(SIZE)
        remote = peer.register(memory).remote
        writing = asyncio.ensure_future(qp.write(os.urandom(SIZE), remote))
        await until(lambda: qp.statistics().requestor.writes_posted > 0)
        writing.cancel()
        await qp.write(bytes(SIZE), remote)
        return writing.cancelled(), not any(memory)


SCENARIOS = [
    transfer,
    messages,
    nobody_listens,
    name_that_does_not_exist,
    something_else_listens,
    nobody_answers,
    port_in_use,
    address_of_another_machine,
    sides_that_do_not_fit,
    region_that_is_closed,
    peer_that_closes,
    peer_that_vanishes,
    write_after_close,
    timeout_of_the_application,
    write_that_is_cancelled,
]


async def outcome(scenario: Scenario) -> str:
    """Return what came of it in words, each number in them a 0."""
    try:
        async with asyncio.timeout(20):
            came = repr(await scenario())
    except MrcError as error:
        came = f"{type(error).__name__}: {error}"
    return re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?( ms| us| s)?\b", "0", came)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_both_loops_come_to_the_same_end(scenario: Scenario) -> None:
    """Results, kinds of errors and their texts do not depend on the loop."""
    outcomes = []
    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            outcomes.append(runner.run(outcome(scenario)))
    assert outcomes[0] == outcomes[1]
