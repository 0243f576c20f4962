"""Somebody on the way between two ends of a TCP connection, who reads, alters and cuts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from mrc.rendezvous import Address

Alter = Callable[[bytes], bytes]


class Wiretap:
    """Forwards what comes to it, and remembers it.

    Attributes:
        address: where it is to be reached.
        heard: all bytes from the connecting side, and all to it.
        alter: what becomes of bytes to the connecting side; may be changed at any time.
    """

    def __init__(self, address: Address) -> None:
        self._target = address
        self._writers: list[asyncio.StreamWriter] = []
        self.address = address
        self.heard = (bytearray(), bytearray())
        self.alter: Alter = bytes

    def cut(self) -> None:
        """End all connections, in both directions, without a word."""
        for writer in self._writers:
            writer.close()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect one connection to the target."""
        there, target = await asyncio.open_connection(*self._target)
        self._writers += [writer, target]
        upwards = self._forward(reader, target, self.heard[0], bytes)
        downwards = self._forward(there, writer, self.heard[1], self._altered)
        await asyncio.gather(upwards, downwards)

    def _altered(self, data: bytes) -> bytes:
        return self.alter(data)

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: bytearray,
        alter: Alter,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                heard += data
                writer.write(alter(data))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def wiretap(address: Address) -> AsyncIterator[Wiretap]:
    """Stand between those who connect to `wiretap.address` and an address."""
    tap = Wiretap(address)
    server = await asyncio.start_server(tap.connected, "127.0.0.1", 0)
    tap.address = Address(*server.sockets[0].getsockname()[:2])
    try:
        yield tap
    finally:
        server.close()
        tap.cut()
