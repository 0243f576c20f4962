"""A relay in the middle of a rendezvous connection that can end it at any step, in any manner."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from enum import Enum

import mrc

_CHUNK_BYTES = 1 << 16


class Death(Enum):
    """How an end of a connection dies, as the other one sees it."""

    CLOSES = "its process ended: end of file"
    RESETS = "its machine was restarted: reset"
    FALLS_SILENT = "its cable was cut: nothing"


class Relay:
    """Passes on what is said on one rendezvous connection, until the step at which one end dies.

    A step is a piece that has been passed on, in either direction, the first of them numbered 1;
    at step 0 the connection is there and nothing was said. Without TLS a piece is a message.

    Attributes:
        pieces: how many were passed on so far.
    """

    def __init__(self, url: str) -> None:
        where, _, self._key = url.removeprefix("mrc://").partition("/")
        host, _, port = where.rpartition(":")
        self._target = (host, int(port))
        self._dies_at: int | None = None
        self._manner = Death.CLOSES
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.pieces = 0

    async def open(self) -> str:
        """Listen; return the URL that leads through the relay."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"mrc://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/{self._key}"

    def dies_at(self, step: int, manner: Death) -> None:
        """Let both ends see the other die when so many pieces were passed on."""
        self._dies_at, self._manner = step, manner

    def dies_now(self, manner: Death) -> None:
        """Let both ends see the other die."""
        self.dies_at(self.pieces, manner)
        self._die()

    def is_dead(self) -> bool:
        """Whether the step was reached."""
        return self._dies_at is not None and self.pieces >= self._dies_at

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, there_writer]
        if self.is_dead():
            self._die()
        for here, there in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.ensure_future(self._pass_on(here, there))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_CHUNK_BYTES):
                if self.is_dead():
                    continue
                writer.write(piece)
                await writer.drain()
                self.pieces += 1
                if self.is_dead():
                    self._die()
        if not self.is_dead():
            writer.close()

    def _die(self) -> None:
        if self._manner is Death.FALLS_SILENT:
            return
        for writer in self._writers:
            if self._manner is Death.RESETS:
                reset_on_close(writer)
                writer.transport.abort()
            else:
                writer.close()

    async def close(self) -> None:
        """End everything."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def reset_on_close(writer: asyncio.StreamWriter) -> None:
    """Let the end of a connection be a reset and not an end of file."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.asynccontextmanager
async def relayed(listener: mrc.Listener) -> AsyncIterator[tuple[Relay, str]]:
    """Yield a relay to a listener, and the URL that leads through it."""
    relay = Relay(listener.url)
    try:
        yield relay, await relay.open()
    finally:
        await relay.close()
