"""How connections begin and end: refusal, closing, cancelling, a peer that vanishes."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import tracemalloc

import pytest

import mrc
from mrc.errors import (
    ConfigError,
    LocalError,
    PeerLost,
    PeerProtocolError,
    PeerRefused,
    PeerUnreachable,
    QueuePairClosed,
    RetriesExceeded,
)
from mrc.udp import FaultySockets
from tests.engine.conftest import Connect

pytestmark = pytest.mark.asyncio


async def test_nothing_listening_is_an_error_that_names_the_address() -> None:
    """Connecting to a closed port says where and what to check."""
    async with mrc.listen("127.0.0.1:0") as listener:
        url = listener.url
    with pytest.raises(PeerUnreachable, match=r"cannot reach 127\.0\.0\.1"):
        await mrc.connect(url)


async def test_a_taken_port_is_an_error_that_names_the_remedy() -> None:
    """Listening where somebody listens keeps the errno and says what to do."""
    async with mrc.listen("127.0.0.1:0") as listener:
        with pytest.raises(LocalError, match="choose another"):
            async with mrc.listen(str(listener.address)):
                pass


async def test_something_else_listening_is_told_apart() -> None:
    """A server that speaks another protocol gives a protocol error, not a hang."""

    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(PeerProtocolError, match="does not speak MRC"):
        await mrc.connect(f"127.0.0.1:{port}")
    server.close()


async def test_two_sides_that_do_not_fit_are_refused_with_the_reason() -> None:
    """The listener's reason reaches the connecting side."""
    async with mrc.listen("127.0.0.1:0", config=mrc.Config(icrc=False)) as listener:
        with pytest.raises(PeerRefused, match="iCRC"):
            await mrc.connect(listener.url)
        assert listener.refused_handshakes == 1


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"[]\n",
        b"{}\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"protocol":"mrc-rendezvous/1"}\n',
        b'{"protocol":"mrc-rendezvous/1","qp":{"qpn":"x"}}\n',
        b'{"protocol":"mrc-rendezvous/9"}\n',
        b"[" * 60_000 + b"\n",
        b"x" * 200_000,
    ],
)
async def test_a_hostile_handshake_is_refused_and_the_listener_lives(line: bytes) -> None:
    """Nonsense at the rendezvous ends that connection only."""
    async with mrc.listen("127.0.0.1:0") as listener:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(line)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        async with mrc.connect(listener.url) as qp, await listener.accept() as peer:
            await qp.send(b"alive")
            assert await peer.receive() == b"alive"


async def test_closing_ends_the_other_side_with_a_clear_error(connect: Connect) -> None:
    """Who waits when the peer closes gets PeerLost, naming the peer."""
    async with connect() as (qp, peer):
        waiting = asyncio.ensure_future(peer.receive())
        await asyncio.sleep(0)
        await qp.close()
        with pytest.raises(PeerLost, match="closed the connection"):
            await waiting


async def test_closing_waits_for_what_was_posted(connect: Connect) -> None:
    """A write posted before close is complete when close returns."""
    memory = bytearray(3_000_000)
    async with connect() as (qp, peer):
        remote = peer.register(memory).remote
        writing = asyncio.ensure_future(qp.write(b"w" * len(memory), remote))
        await asyncio.sleep(0)
        await qp.close()
        await writing
    assert bytes(memory) == b"w" * len(memory)


async def test_a_closed_queue_pair_refuses_work(connect: Connect) -> None:
    """Writing after close raises at once."""
    async with connect() as (qp, peer):
        remote = peer.register(bytearray(10)).remote
        await qp.close()
        with pytest.raises(QueuePairClosed):
            await qp.write(b"late", remote)


async def test_a_cancelled_write_leaves_nothing_and_the_queue_pair_works(connect: Connect) -> None:
    """Cancelling ends the wait only: later writes and the end are as usual."""
    async with connect() as (qp, peer):
        region = peer.register(bytearray(8_000_000))
        writing = asyncio.ensure_future(qp.write(bytes(8_000_000), region.remote))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await qp.write(b"after", region.remote)


async def test_a_timeout_around_receive_loses_no_message(connect: Connect) -> None:
    """A receive that was cancelled takes nothing."""
    async with connect() as (qp, peer):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await peer.receive()
        await qp.send(b"kept")
        assert await peer.receive() == b"kept"


async def test_a_killed_peer_is_noticed_at_once() -> None:
    """When the peer's process dies, waits end with PeerLost long before any retry budget."""
    program = (
        "import asyncio, mrc\n"
        "async def main():\n"
        "    async with mrc.listen('127.0.0.1:0') as listener:\n"
        "        print(listener.url, flush=True)\n"
        "        qp = await listener.accept()\n"
        "        await qp.receive()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    async with mrc.connect(url) as qp:
        waiting = asyncio.ensure_future(qp.receive())
        await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(PeerLost, match="is gone"):
            async with asyncio.timeout(5):
                await waiting
    await process.wait()


async def test_a_silent_network_ends_with_the_retry_budget_and_names_the_paths() -> None:
    """When nothing gets through any more the error tells how long, how often, and each path."""
    faults = FaultySockets()
    config = mrc.Config(paths=2, timeout=10, retry_linear=2, retry_exponential=2)
    async with (
        mrc.listen("127.0.0.1:0") as listener,
        mrc.connect(listener.url, config=config, sockets=faults) as qp,
    ):
        peer = await listener.accept()
        remote = peer.register(bytearray(10)).remote
        await qp.write(b"first", remote)
        for index in range(len(faults.senders)):
            faults.blackhole_nth(index)
        with pytest.raises(RetriesExceeded, match=r"retry counter exceeded.*plane 0 port") as error:
            await qp.write(b"second", remote)
        assert error.value.retry_count == 5
        assert error.value.waited_ns > 1e6
        assert error.value.paths


async def test_queue_pairs_to_one_endpoint_share_its_paths() -> None:
    """The EV profile belongs to the pair of endpoints, not to the queue pair."""
    async with mrc.Endpoint() as server, mrc.Endpoint() as client:
        async with (
            server.listen("127.0.0.1:0") as listener,
            client.connect(listener.url) as one,
            client.connect(listener.url) as two,
        ):
            first, second = await listener.accept(), await listener.accept()
            await one.send(b"1")
            await two.send(b"2")
            assert await first.receive() == b"1"
            assert await second.receive() == b"2"
            ports = [[path.source_port for path in qp.statistics().paths] for qp in (one, two)]
            assert ports[0] == ports[1]
            assert client.statistics().queue_pairs == 2
            await first.close()
            await second.close()
        assert server.statistics().queue_pairs == 0


async def test_planes_of_different_ip_versions_are_refused() -> None:
    """A plane pair must be of one family; the error names both addresses."""
    async with mrc.listen("127.0.0.1:0") as listener:
        with pytest.raises((PeerRefused, ConfigError), match="different IP versions"):
            await mrc.connect(listener.url, planes=["::1"])


async def test_several_planes_carry_equal_shares() -> None:
    """With two plane addresses a side, both carry packets."""
    planes = ["127.0.0.1", "127.0.0.2"]
    async with (
        mrc.listen("127.0.0.1:0", planes=planes) as listener,
        mrc.connect(listener.url, planes=planes) as qp,
        await listener.accept() as peer,
    ):
        await qp.write(bytes(8_000_000), peer.register(bytearray(8_000_000)).remote)
        sent = [0, 0]
        for path in qp.statistics().paths:
            sent[path.plane] += path.sent_packets
    assert min(sent) > 0.4 * sum(sent)


async def test_a_second_endpoint_connects_beside_many_queue_pairs_of_another() -> None:
    """There are 256 tags for endpoint requests, and any number of queue pairs."""
    async with mrc.listen("127.0.0.1:0") as listener, mrc.Endpoint() as first:
        kept = []
        for _ in range(300):
            kept += [await first.connect(listener.url), await listener.accept()]
        async with mrc.Endpoint() as second:
            kept += [await second.connect(listener.url, timeout_s=5), await listener.accept()]
        assert len({qp._connection.qp.tag for qp in kept[1::2]}) == 2  # noqa: SLF001 - the reason


@pytest.mark.slow
async def test_an_idle_queue_pair_costs_little() -> None:
    """There may be thousands: each costs 16 KiB at either end until it is used."""
    async with mrc.listen("127.0.0.1:0") as listener, mrc.Endpoint() as endpoint:
        kept = []

        async def connect(count: int) -> None:
            for _ in range(count):
                kept.extend([await endpoint.connect(listener.url), await listener.accept()])

        await connect(10)
        tracemalloc.start()
        try:
            await connect(50)
            gc.collect()
            held_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held_bytes / 100 < 16 << 10


async def test_an_aborted_queue_pair_leaves_no_region() -> None:
    """Its memory is let go of at once, whether or not somebody closes it afterwards."""
    async with mrc.listen("127.0.0.1:0") as listener, mrc.Endpoint() as endpoint:
        qp = await endpoint.connect(listener.url)
        memory = bytearray(10)
        qp.register(memory)
        qp.abort()
        assert endpoint.statistics().regions == 0
        memory.extend(b"a buffer that is still exported cannot grow")
        (await listener.accept()).abort()
