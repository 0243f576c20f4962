"""A listener with a lock: who is let in, who is not, and what each of them gets to see."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import mrc
from mrc import door
from mrc.errors import (
    MrcError,
    PeerLost,
    PeerNotTrusted,
    PeerProtocolError,
    PeerRefused,
    PeerUnreachable,
    TransportError,
)
from mrc.identity import Identity
from mrc.lock import Key, Lock, Verdict
from mrc.rendezvous import Address, Url
from mrc.tls import NO_TLS_HERE
from tests.engine.conftest import turns, until
from tests.engine.wiretap import wiretap

pytestmark = pytest.mark.asyncio

GIVEN = "a-token-that-was-given-before"


@contextlib.asynccontextmanager
async def locked(lock: Lock | None = None) -> AsyncIterator[mrc.Listener]:
    """Listen behind a lock."""
    async with mrc.listen("127.0.0.1:0", lock=lock or Lock.new()) as listener:
        yield listener


async def works(url: str, listener: mrc.Listener, token: str | None = None) -> None:
    """Connect, and see that data gets through."""
    async with mrc.connect(url, token=token) as qp, await listener.accept() as peer:
        memory = bytearray(100_000)
        await qp.write(b"x" * len(memory), peer.register(memory).remote)
        assert memory == b"x" * len(memory)
        await peer.send(b"back")
        assert await qp.receive() == b"back"


def key_of(listener: mrc.Listener) -> Key:
    """What opens its lock."""
    assert listener.lock is not None
    return listener.lock.key


def by_way_of(listener: mrc.Listener, address: Address) -> str:
    """The URL of a listener, at another address."""
    return str(Url(address, key_of(listener)))


# ---- who is let in -------------------------------------------------------------------------------


async def test_whoever_has_the_url_is_let_in() -> None:
    """Connecting with what the listener printed is all it takes, and works again."""
    async with locked() as listener:
        await works(listener.url, listener)
        await works(listener.url, listener)


async def test_a_token_that_was_given_lets_in() -> None:
    """A fleet's token goes with a URL that has none."""
    async with locked(Lock.new(GIVEN)) as listener:
        assert listener.url.endswith(f"/{key_of(listener).fingerprint}")
        await works(listener.url, listener, GIVEN)


async def test_endpoints_have_locks_as_well() -> None:
    """Several queue pairs of one endpoint come through one locked door."""
    async with (
        mrc.Endpoint() as server,
        mrc.Endpoint() as client,
        server.listen("127.0.0.1:0", lock=Lock.new(GIVEN)) as listener,
        client.connect(listener.url, token=GIVEN) as one,
        client.connect(listener.url, token=GIVEN) as two,
        await listener.accept() as first,
        await listener.accept() as second,
    ):
        for qp, peer in ((one, first), (two, second)):
            await qp.send(b"hello")
            assert await peer.receive() == b"hello"


async def test_nothing_on_the_wire_can_be_read() -> None:
    """Neither the token nor what the two sides tell each other stands in any packet."""
    async with locked(Lock.new(GIVEN)) as listener, wiretap(listener.address) as tap:
        await works(by_way_of(listener, tap.address), listener, GIVEN)
        for heard in tap.heard:
            assert len(heard) > 500
            assert not [word for word in (b"protocol", b"token", GIVEN.encode()) if word in heard]


# ---- who is not ----------------------------------------------------------------------------------


async def test_a_wrong_token_is_refused_and_says_so() -> None:
    """Whoever knows the fingerprint alone does not come in."""
    async with locked() as listener:
        guess = Key(key_of(listener).fingerprint, "A" * 22)
        with pytest.raises(PeerRefused, match="the token is wrong; paste the whole URL"):
            await mrc.connect(str(Url(listener.address, guess)))
        await until(lambda: listener.refused_handshakes == 1)
        await works(listener.url, listener)


async def test_a_used_token_is_refused_and_says_so() -> None:
    """A one-time lock lets in one peer, and no second one, now or later."""
    async with locked(Lock.new(one_time=True)) as listener:
        async with mrc.connect(listener.url), await listener.accept():
            with pytest.raises(PeerRefused, match="token already used"):
                await mrc.connect(listener.url)
        with pytest.raises(PeerRefused, match="token already used"):
            await mrc.connect(listener.url)


async def test_a_token_is_not_used_up_by_a_handshake_that_fails() -> None:
    """Who was let in and then did not fit may come back with other settings."""
    async with locked(Lock.new(one_time=True)) as listener:
        with pytest.raises(PeerRefused, match="iCRC"):
            await mrc.connect(listener.url, config=mrc.Config(icrc=False))
        await works(listener.url, listener)


async def test_another_listener_is_not_trusted() -> None:
    """Whoever answers in the place of the one in the URL is told no token."""
    async with locked(Lock.new(GIVEN)) as right, locked(Lock.new(GIVEN)) as wrong:
        with pytest.raises(PeerNotTrusted, match="somebody else answers"):
            await mrc.connect(by_way_of(right, wrong.address), token=GIVEN)
        await until(lambda: wrong.refused_handshakes == 1)


async def test_a_listener_that_is_not_trusted_hears_nothing() -> None:
    """Not a byte leaves after the handshake."""
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            heard.extend(await reader.read())
        writer.close()
        over.set()

    over = asyncio.Event()
    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=Identity.new().context())
    with pytest.raises(PeerNotTrusted):
        await mrc.connect(f"mrc://127.0.0.1:{server.sockets[0].getsockname()[1]}/{Lock.new().key}")
    await over.wait()
    server.close()
    assert heard == b""


async def test_a_url_without_a_key_is_told_that_there_is_a_lock() -> None:
    """A peer that speaks no TLS learns what is missing."""
    async with locked() as listener:
        with pytest.raises(PeerRefused, match="has a lock on its door: paste the whole URL"):
            await mrc.connect(str(listener.address))


async def test_a_url_with_a_key_does_not_open_a_door_without_a_lock() -> None:
    """Nobody is downgraded: who expects TLS speaks nothing else."""
    async with mrc.listen("127.0.0.1:0") as listener:
        with pytest.raises(PeerProtocolError, match="does not speak TLS"):
            await mrc.connect(f"{listener.url}{Lock.new().key}")
        await works(listener.url, listener)


# ---- servers that are none of ours ---------------------------------------------------------------

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def answers(serve: Serve, timeout_s: float = 10, tls: ssl.SSLContext | None = None) -> None:
    """Connect with a key to a server that behaves as told."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        await mrc.connect(f"mrc://127.0.0.1:{port}/{Lock.new().key}", timeout_s=timeout_s)
    finally:
        server.close()


async def _close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


async def _alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(NO_TLS_HERE)
    writer.close()


async def _shout(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example ESMTP\r\n")
    writer.close()


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("serve", "error", "words"),
    [
        (_close, PeerUnreachable, "closed the connection during the TLS handshake"),
        (_reset, PeerUnreachable, "closed the connection during the TLS handshake"),
        (_alert, PeerProtocolError, "no TLS 1.3 connection to .*ALERT_UNEXPECTED_MESSAGE"),
        (_shout, PeerProtocolError, "does not speak TLS"),
    ],
)
async def test_what_is_no_locked_listener_is_told_apart(
    serve: Serve, error: type[MrcError], words: str
) -> None:
    """Something else at that port gives an error that says what it did."""
    with pytest.raises(error, match=words):
        await answers(serve)


async def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    """The handshake has a deadline."""
    with pytest.raises(
        PeerProtocolError, match=r"said nothing for 0\.1 s during the TLS handshake"
    ):
        await answers(_say_nothing, timeout_s=0.1)


async def test_a_server_with_an_older_tls_is_not_talked_to() -> None:
    """TLS 1.3 it is, or nothing."""
    context = Identity.new().context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((PeerProtocolError, PeerUnreachable), match="TLS"):
        await answers(_say_nothing, tls=context)


# ---- strangers at the door -----------------------------------------------------------------------


async def talk(listener: mrc.Listener, words: bytes) -> bytes:
    """Say something at the door, and return what comes back before it is closed."""
    reader, writer = await asyncio.open_connection(*listener.address)
    writer.write(words)
    writer.write_eof()
    heard = b""
    with contextlib.suppress(ConnectionError):
        heard = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return heard


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"protocol":"mrc-rendezvous/1"}\n',
        b'{"token":"x"}\n',
        b"x" * 200_000,
        b"\x16",
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x01" + b"\xff" * 100_000,
        b"\x16" * 200_000,
        bytes(1000),
    ],
    ids=lambda words: repr(words[:12]),
)
async def test_junk_gets_less_than_it_brought_and_the_door_stands(words: bytes) -> None:
    """Whatever a stranger says, an alert of seven bytes is all there is to hear."""
    async with locked() as listener:
        heard = await talk(listener, words)
        assert len(heard) <= len(NO_TLS_HERE)
        assert heard[:1] in {b"", NO_TLS_HERE[:1]}
        await works(listener.url, listener)


class Stranger:
    """Somebody who can speak TLS, and does not know the token."""

    def __init__(self, listener: mrc.Listener) -> None:
        self._listener = listener
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    async def say(self, words: bytes) -> bytes:
        """Say something inside TLS, and return what comes back before it is closed."""
        host, port = self._listener.address
        reader, writer = await asyncio.open_connection(host, port, ssl=self._context)
        writer.write(words)
        try:
            return await reader.read()
        except OSError:
            return b""
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.mark.parametrize(
    "words",
    [
        b"\n",
        b"{}\n",
        b'{"token":7}\n',
        b'{"token":null}\n',
        b'{"token":"wrong"}\n',
        b'{"token":"\\ud800"}\n',
        b'{"token":["wrong"]}\n',
        b'{"protocol":"mrc-rendezvous/1","qp":{}}\n',
        b"[" * 5000 + b"\n",
        b'{"token":"' + b"x" * 7000 + b'"}\n',
        b'{"token":"' + b"x" * 100_000,
    ],
    ids=lambda words: repr(words[:24]),
)
async def test_inside_tls_a_stranger_hears_one_line_at_most(words: bytes) -> None:
    """What is no token ends the connection; nothing is made for it, nothing told of this side."""
    async with locked() as listener:
        heard = await Stranger(listener).say(words)
        assert heard in {b"", b'{"refused":"%b"}\n' % door._REFUSALS[Verdict.WRONG].encode()}  # noqa: SLF001
        await until(lambda: listener.refused_handshakes == 1)
        await works(listener.url, listener)


async def test_nothing_is_made_for_who_has_not_said_the_token() -> None:
    """Inside TLS, before the token, there is neither a queue pair nor a ring in memory."""
    async with mrc.Endpoint() as server, server.listen("127.0.0.1:0", lock=Lock.new()) as listener:
        stranger = asyncio.ensure_future(Stranger(listener).say(b""))
        await until(lambda: bool(listener._door._unproven))  # noqa: SLF001 - no news of it
        await turns(100)
        assert (server.statistics().queue_pairs, server.statistics().regions) == (0, 0)
        await listener.close()
        assert await stranger == b""


@pytest.mark.parametrize("begin", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
async def test_who_takes_too_long_is_let_go(monkeypatch: pytest.MonkeyPatch, begin: bytes) -> None:
    """A connection that proves nothing in time is closed, whether it is silent or slow."""
    monkeypatch.setattr(door, "PROOF_TIMEOUT_S", 0.1)
    async with locked() as listener:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(begin)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        await until(lambda: listener.refused_handshakes == 1)


async def test_who_drips_its_hello_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is for all of the handshake, not for each byte of it."""
    monkeypatch.setattr(door, "PROOF_TIMEOUT_S", 0.1)
    async with locked() as listener:
        _, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"\x16\x03\x01\xff\xff")
        async with asyncio.timeout(20):
            while not listener.refused_handshakes:
                writer.write(b"\x00")
                await asyncio.sleep(0.001)
        writer.close()


async def test_strangers_take_no_more_than_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """When all places are taken the oldest has to go, and who was invited comes in."""
    monkeypatch.setattr(door, "UNPROVEN_MAX", 4)
    async with locked() as listener:
        strangers = [await asyncio.open_connection(*listener.address) for _ in range(10)]
        await until(lambda: listener.refused_handshakes == 6)
        assert [await reader.read() for reader, _ in strangers[:6]] == [b""] * 6
        await works(listener.url, listener)
        assert listener.refused_handshakes == 7
        for _, writer in strangers:
            writer.close()


async def test_closing_a_listener_lets_go_of_all_at_the_door() -> None:
    """Nobody is left waiting, and nothing of ours is left running."""
    listener = mrc.listen("127.0.0.1:0", lock=Lock.new())
    async with listener:
        waiting = [await asyncio.open_connection(*listener.address) for _ in range(3)]
        await until(lambda: len(listener._door._unproven) == 3)  # noqa: SLF001 - no news of it
    for reader, writer in waiting:
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


# ---- on the way ----------------------------------------------------------------------------------


async def test_a_connection_that_is_cut_is_a_lost_peer() -> None:
    """The end of TCP without TLS's goodbye means the same as with it: both sides know at once."""
    async with locked() as listener, wiretap(listener.address) as tap:
        url = by_way_of(listener, tap.address)
        async with mrc.connect(url) as qp, await listener.accept() as peer:
            tap.cut()
            for side in (qp, peer):
                with pytest.raises(PeerLost, match="is gone"):
                    await side.receive()


async def test_a_goodbye_is_heard_through_tls() -> None:
    """Closing ends the other side as it does without a lock."""
    async with (
        locked() as listener,
        mrc.connect(listener.url) as qp,
        await listener.accept() as peer,
    ):
        await qp.close()
        with pytest.raises(PeerLost, match="closed the connection"):
            await peer.receive()


@pytest.mark.parametrize("spoil", [lambda data: data[:-1] + bytes([data[-1] ^ 1]), bytes.upper])
async def test_what_is_altered_on_the_way_is_never_believed(
    spoil: Callable[[bytes], bytes],
) -> None:
    """A byte changed at any point of the handshake ends it; no queue pair comes of it."""
    async with locked() as listener, wiretap(listener.address) as tap:
        tap.alter = spoil
        url = by_way_of(listener, tap.address)
        with pytest.raises((PeerProtocolError, PeerUnreachable, PeerNotTrusted)):
            await mrc.connect(url, timeout_s=2)


async def test_what_is_altered_later_ends_the_queue_pair() -> None:
    """After the handshake too: what comes is from the peer, or the connection is over."""
    async with locked() as listener, wiretap(listener.address) as tap:
        url = by_way_of(listener, tap.address)
        async with mrc.connect(url) as qp, await listener.accept() as peer:
            tap.alter = lambda data: data[:-1] + bytes([data[-1] ^ 1])
            waiting = asyncio.ensure_future(qp.receive())
            await turns(2)
            await peer.close()
            with pytest.raises((PeerProtocolError, TransportError)):
                await waiting
            assert "altered on its way" in str(qp.failure)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
async def test_connecting_can_be_cancelled_at_any_time(count: int) -> None:
    """However far it came, nothing of it is left, and the door stands."""
    async with locked() as listener:
        connecting = asyncio.ensure_future(_connect(listener.url))
        await turns(count)
        connecting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await connecting).close()
        await (await mrc.connect(listener.url)).close()


async def _connect(url: str) -> mrc.QueuePair:
    qp: mrc.QueuePair = await mrc.connect(url)
    return qp


@pytest.mark.parametrize("lock", [True, False], ids=["locked", "open"])
async def test_a_byte_of_tls_after_the_handshake_ends_the_queue_pair(*, lock: bool) -> None:
    """What can be no control message is the end, and not that of the watching alone."""
    async with (
        mrc.listen("127.0.0.1:0", lock=Lock.new() if lock else None) as listener,
        mrc.connect(listener.url) as qp,
        await listener.accept() as peer,
    ):
        await qp._connection._channel._stream.write(b"\x15\n")  # noqa: SLF001
        with pytest.raises(MrcError, match="lock on its door"):
            await peer.receive()
