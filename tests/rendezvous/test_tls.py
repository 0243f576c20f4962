"""TLS on buffers in memory: every way it can go wrong has a name."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.identity import Identity, fingerprint_of
from mrc.tls import NO_TLS_HERE, NoTlsError, PlainStream, TlsStream, client_context
from tests.rendezvous.memory_stream import MemoryStream, twins

IDENTITY = Identity.new()
SERVER = IDENTITY.context()
CLIENT = client_context()
FAILURES = (NoTlsError, EOFError, OSError)
TURNS = 20
"""Of the event loop, more than a handshake in memory takes."""


def tls(stream: MemoryStream, context: ssl.SSLContext = CLIENT, **options: Any) -> TlsStream:
    """Put TLS around a stream in memory."""
    plain = cast("PlainStream", stream)
    return TlsStream(plain, context, server_side=context is not CLIENT, **options)


def joined(story: Callable[[TlsStream, TlsStream], Awaitable[None]]) -> None:
    """Tell a story of a client and a server after their handshake."""

    async def tell() -> None:
        one, other = twins()
        client, server = tls(one), tls(other, SERVER)
        await asyncio.gather(client.handshake(), server.handshake())
        await story(client, server)

    asyncio.run(tell())


def test_what_is_written_is_read() -> None:
    """Bytes of any length arrive, in order, both ways."""

    async def story(client: TlsStream, server: TlsStream) -> None:
        for one, other in ((client, server), (server, client)):
            data, heard = bytes(range(256)) * 400, b""
            await one.write(data)
            while len(heard) < len(data):
                heard += await other.read()
            assert heard == data

    joined(story)


def test_the_client_sees_the_certificate() -> None:
    """Its digest is the fingerprint that the URL has."""

    async def story(client: TlsStream, server: TlsStream) -> None:
        assert fingerprint_of(client.certificate()) == IDENTITY.fingerprint()
        assert server.certificate() == b""

    joined(story)


def test_nothing_comes_after_the_handshake() -> None:
    """A server sends no tickets: whoever has proved nothing has nothing to come back with."""

    async def tell() -> None:
        one, other = twins()
        client, server = tls(one), tls(other, SERVER)
        await asyncio.gather(client.handshake(), server.handshake())
        flights = len(other.written)
        await client.write(b"x")
        await server.read()
        assert len(other.written) == flights

    asyncio.run(tell())


@pytest.mark.parametrize("goodbye", [True, False])
def test_an_end_is_an_end_with_and_without_a_goodbye(goodbye: bool) -> None:
    """Whether TLS says so or TCP just ends, the reader gets nothing, again and again."""

    async def story(client: TlsStream, server: TlsStream) -> None:
        if goodbye:
            await client.close()
        else:
            client._plain.abort()  # noqa: SLF001 - the other side of it
            await client._plain.write(b"")  # noqa: SLF001
        assert await server.read() == b""
        assert await server.read() == b""

    joined(story)


def test_what_was_altered_is_an_error() -> None:
    """A flipped bit is never data, and never an end."""

    async def tell() -> None:
        one, other = twins()
        client, server = tls(one), tls(other, SERVER)
        await asyncio.gather(client.handshake(), server.handshake())
        spoil(one, 20, 1)
        await server.write(b"x")
        with pytest.raises(ssl.SSLError, match=r"BAD_RECORD_MAC|bad record mac"):
            await client.read()

    asyncio.run(tell())


def test_a_hello_may_be_read_ahead() -> None:
    """A server can look at what comes first and hand it on, in the middle of a record too."""

    async def tell() -> None:
        one, other = twins()
        client = asyncio.ensure_future(tls(one).handshake())
        hello = await other.read()
        server = tls(other, SERVER, ahead=hello[:7])
        other.put(hello[7:])
        await asyncio.gather(client, server.handshake())

    asyncio.run(tell())


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ([], EOFError),
        ([b"220 mail.example ESMTP\r\n"], NoTlsError),
        ([b"{"], NoTlsError),
        ([NO_TLS_HERE], ssl.SSLError),
        ([b"\x16\x03\x03\x00\x04junk"], ssl.SSLError),
        ([b"\x16"], EOFError),
        ([ConnectionResetError()], ConnectionResetError),
    ],
)
def test_a_server_that_is_none_is_told_apart(
    chunks: list[bytes | Exception], error: type[Exception]
) -> None:
    """Nothing, something else, TLS that fails, and a broken connection are four things."""
    with pytest.raises(error):
        asyncio.run(tls(MemoryStream(chunks)).handshake())


@given(st.binary(min_size=1, max_size=600), st.booleans())
def test_junk_in_the_place_of_a_hello_raises_what_is_known(junk: bytes, begun: bool) -> None:
    """Whatever a stranger says to the door, the handshake ends in one of the named ways."""
    stream = MemoryStream([b"\x16\x03\x01" + junk if begun else junk])
    with pytest.raises(FAILURES):
        asyncio.run(tls(stream, SERVER).handshake())


@given(st.integers(0, 1200), st.integers(1, 255), st.booleans())
def test_a_handshake_with_one_byte_changed_is_the_same_or_none(
    place: int, change: int, upwards: bool
) -> None:
    """On either way: no two sides ever believe that they agree when they do not."""

    async def tell() -> None:
        one, other = twins()
        spoil(other if upwards else one, place, change)
        client, server = tls(one), tls(other, SERVER)
        both = asyncio.gather(client.handshake(), server.handshake())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        # One that waits for more than there is comes to its end with the connection.
        one.put(b"")
        other.put(b"")
        await both
        await client.write(b"x")
        assert await server.read() in {b"x", b""}
        assert fingerprint_of(client.certificate()) == IDENTITY.fingerprint()

    with suppress(*FAILURES):
        asyncio.run(tell())


def spoil(stream: MemoryStream, place: int, change: int) -> None:
    """Change one byte of all that is said to a stream."""
    put, passed = stream.put, 0

    def altered(chunk: bytes) -> None:
        nonlocal passed
        data = bytearray(chunk)
        if 0 <= place - passed < len(data):
            data[place - passed] ^= change
        passed += len(data)
        put(bytes(data))

    stream.put = altered  # type: ignore[method-assign]
