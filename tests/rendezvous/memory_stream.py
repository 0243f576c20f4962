"""A connection in memory: what the other side says is known beforehand, or comes from a twin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

NAMES = {"peername": ("192.0.2.1", 1), "sockname": ("192.0.2.2", 2)}


class MemoryStream:
    """A `mrc.tls.Stream` that hands out chunks; an exception among them is raised.

    Args:
        chunks: what is heard.
        names: what the socket says it is called.

    Attributes:
        written: what was written to it, if it has no twin.
    """

    def __init__(
        self, chunks: Iterable[bytes | Exception] = (), names: Mapping[str, Any] = NAMES
    ) -> None:
        self._chunks: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        for chunk in chunks:
            self._chunks.put_nowait(chunk)
        self._twin: MemoryStream | None = None
        self.written = bytearray()
        self.name = names.get

    async def read(self) -> bytes:
        """Wait for the next chunk; nothing at the end."""
        if self._twin is None and self._chunks.empty():
            return b""
        chunk = await self._chunks.get()
        if isinstance(chunk, Exception):
            raise chunk
        return chunk

    async def write(self, data: bytes) -> None:
        """Hand it to the twin."""
        self.written += data
        if self._twin is not None:
            self._twin.put(data)

    def put(self, chunk: bytes) -> None:
        """Say this to whoever reads here."""
        self._chunks.put_nowait(chunk)

    async def close(self) -> None:
        """End what the twin reads."""
        await self.write(b"")

    def abort(self) -> None:
        """Nothing is kept open."""


def twins() -> tuple[MemoryStream, MemoryStream]:
    """Make two streams, each of which reads what is written to the other."""
    one, other = MemoryStream(), MemoryStream()
    one._twin, other._twin = other, one  # noqa: SLF001 - its own class
    return one, other
