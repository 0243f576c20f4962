"""TLS 1.3 over an asyncio stream, with the standard library's `ssl` on buffers in memory.

Not asyncio's own TLS: that takes 256 KiB a connection before anyone has proved anything, can only
begin before the first byte was looked at, and ends differently on uvloop. Here the bytes go through
our hands: what comes first can be looked at, what is kept has a bound, and both loops behave alike.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from functools import cache
from typing import Any, Protocol

CHUNK_BYTES = 16 * 1024
"""Read at once: a full TLS record is little more."""
RECORD_HANDSHAKE = 0x16
"""First byte of what a TLS client says first (RFC 8446 §5.1)."""
RECORD_ALERT = 0x15
NO_TLS_HERE = bytes((RECORD_ALERT, 3, 3, 0, 2, 2, 10))
"""A fatal alert, unexpected_message (RFC 8446 §6): what a client that speaks no TLS is told."""


@cache
def client_context() -> ssl.SSLContext:
    """Return the connecting side of TLS 1.3; whom it reached is left to a `mrc.lock.Key`.

    One for all connections: it knows nothing of any, and takes 50 KiB.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def reason_of(error: ssl.SSLError) -> str:
    """Say what OpenSSL found, in its own words and without the line of its source."""
    return getattr(error, "reason", None) or str(error)


class NoTlsError(Exception):
    """The other side speaks, and it is not TLS."""


class Stream(Protocol):
    """Bytes both ways, bare or inside TLS."""

    async def read(self) -> bytes:
        """Wait for bytes; nothing at the end."""

    async def write(self, data: bytes) -> None:
        """Write all of it, waiting while too much is on its way."""

    async def close(self) -> None:
        """Send what is on its way, then close; never raises."""

    def abort(self) -> None:
        """Close at once."""

    def name(self, of: str) -> Any:
        """Return what the socket calls its `peername` or `sockname`."""


class PlainStream:
    """A TCP connection as it is."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """Wait for bytes; nothing at the end.

        Raises:
            OSError: the connection broke.
        """
        return await self._reader.read(CHUNK_BYTES)

    async def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            OSError: the connection broke.
        """
        if self._writer.is_closing():
            # Of the two loops one would raise RuntimeError here, the other nothing.
            raise ConnectionResetError("the connection is closed")
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """Send what is on its way, then close; never raises."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Close at once, without sending what is on its way."""
        self._writer.transport.abort()

    def name(self, of: str) -> Any:
        """Return what the socket calls its `peername` or `sockname`; None when it is gone."""
        return self._writer.get_extra_info(of)


class TlsStream:
    """TLS around a plain stream; `handshake` comes first.

    Args:
        plain: the connection.
        context: whose side this is, and what is asked of the other.
        server_side: this side waits for the other to begin.
        ahead: what was read from the connection already.
    """

    def __init__(
        self,
        plain: PlainStream,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        ahead: bytes = b"",
    ) -> None:
        self._plain = plain
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._incoming.write(ahead)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._unheard = not ahead
        self.name = plain.name
        self.abort = plain.abort

    async def handshake(self) -> None:
        """Agree on keys.

        Raises:
            NoTlsError: the other side speaks something else.
            EOFError: it closed the connection meanwhile.
            ssl.SSLError: it speaks TLS, and nothing came of it.
            OSError: the connection broke.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                # The alert says why; whether it arrives is not ours to care for.
                with suppress(OSError):
                    await self._flush()
                raise
            else:
                await self._flush()
                return
            await self._flush()
            chunk = await self._plain.read()
            if not chunk:
                raise EOFError("closed during the TLS handshake")
            if self._unheard and chunk[0] not in {RECORD_HANDSHAKE, RECORD_ALERT}:
                raise NoTlsError
            self._unheard = False
            self._incoming.write(chunk)

    def certificate(self) -> bytes:
        """Return the other side's certificate (DER), which it has proved to have the key of."""
        return self._tls.getpeercert(binary_form=True) or b""

    async def read(self) -> bytes:
        """Wait for bytes; nothing at the end, whether or not TLS said goodbye.

        Raises:
            ssl.SSLError: what came was not sent by the other side.
            OSError: the connection broke.
        """
        while True:
            try:
                return self._tls.read(CHUNK_BYTES)
            except ssl.SSLWantReadError:
                pass
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            # A change of keys by the other side wants an answer.
            await self._flush()
            chunk = await self._plain.read()
            if chunk:
                self._incoming.write(chunk)
            else:
                self._incoming.write_eof()

    async def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            OSError: the connection broke, or is closed.
        """
        self._tls.write(data)
        await self._flush()

    async def close(self) -> None:
        """Say goodbye, send what is on its way, then close; never raises."""
        # It has said goodbye when it wants to hear the other side's, which nobody waits for.
        with suppress(ssl.SSLError, OSError):
            self._tls.unwrap()
        with suppress(OSError):
            await self._flush()
        await self._plain.close()

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._plain.write(self._outgoing.read())
