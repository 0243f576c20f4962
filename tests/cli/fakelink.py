"""Two connected links in memory: remote writes become copies, lines of JSON become queues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mrc.cli.link import PathCounters, Remote, RemoteRegion
from mrc.errors import PeerLost, RemoteAccessError


class FakeChannel:
    """One end of the lines of JSON. What is sent has really been JSON on its way."""

    def __init__(self) -> None:
        self.peer: FakeChannel | None = None
        self.lines: asyncio.Queue[str | None] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self.lost = False

    async def send(self, message: dict[str, Any]) -> None:
        """Give one line to the other end."""
        if self.lost or self.peer is None:
            raise PeerLost("channel closed")
        self.sent.append(message)
        self.peer.lines.put_nowait(json.dumps(message))
        await asyncio.sleep(0)

    async def receive(self) -> dict[str, Any]:
        """Wait for the other end's next line."""
        line = await self.lines.get()
        if line is None:
            self.lines.put_nowait(None)
            raise PeerLost("peer closed")
        value: dict[str, Any] = json.loads(line)
        return value


class FakeRegion:
    """Registered memory."""

    def __init__(self, link: FakeLink, buffer: Any, r_key: int) -> None:
        self._link = link
        self.buffer: memoryview | None = memoryview(buffer)
        self.remote = Remote(0x1000 * r_key, r_key, self.buffer.nbytes)
        self.sealed = 0

    def seal(self, size: int) -> None:
        """Refuse writes to the beginning."""
        self.sealed = max(self.sealed, size)

    def deregister(self) -> None:
        """Let go."""
        self._link.regions.pop(self.remote.r_key, None)
        if self.buffer is not None:
            self.buffer.release()
            self.buffer = None


@dataclass(frozen=True)
class FakeImmediate:
    """One completed write."""

    imm: int
    region: FakeRegion
    offset: int
    length: int


class FakeLink:
    """One end of a connection; `on_write` may raise or wait before a write is carried out."""

    def __init__(self, peer: str) -> None:
        self.channel = FakeChannel()
        self.peer = peer
        self.other: FakeLink | None = None
        self.regions: dict[int, FakeRegion] = {}
        self.immediates: asyncio.Queue[FakeImmediate | None] = asyncio.Queue()
        self.written_bytes = 0
        self.on_write: Callable[[int], None] = lambda _: None
        self.corrupt_at = -1
        self._moved = 0
        self._next_key = 1

    def register(self, buffer: Any) -> FakeRegion:
        """Let the other end write to a buffer."""
        region = FakeRegion(self, buffer, self._next_key)
        self._next_key += 1
        self.regions[region.remote.r_key] = region
        return region

    async def write_imm(
        self, data: Any, remote: RemoteRegion, offset: int = 0, *, imm: int
    ) -> None:
        """Copy into the other end's memory."""
        view = memoryview(data).cast("B")
        self.on_write(imm)
        if self.other is None or self.channel.lost:
            raise PeerLost("link cut")
        region = self.other.regions.get(remote.r_key)
        if region is None or region.buffer is None or offset + view.nbytes > remote.length:
            raise RemoteAccessError("no such memory")
        if offset < region.sealed:
            raise RemoteAccessError("sealed")
        region.buffer[offset : offset + view.nbytes] = view
        if imm == self.corrupt_at:
            region.buffer[offset] ^= 1
        self.written_bytes += view.nbytes
        self._moved += view.nbytes
        self.other._moved += view.nbytes  # noqa: SLF001 - its own class
        self.other.immediates.put_nowait(FakeImmediate(imm, region, offset, view.nbytes))
        await asyncio.sleep(0)

    async def next_immediate(self) -> FakeImmediate:
        """Wait for the other end's next write."""
        immediate = await self.immediates.get()
        if immediate is None:
            self.immediates.put_nowait(None)
            raise PeerLost("peer closed")
        return immediate

    def moved_bytes(self) -> int:
        """Payload bytes so far."""
        return self._moved

    def final_bytes(self) -> int:
        """Payload bytes of whole blocks."""
        return self._moved

    def path_counters(self) -> Sequence[PathCounters]:
        """No paths: this is memory."""
        return ()

    def counters_json(self) -> dict[str, Any]:
        """No counters."""
        return {}

    def cut(self) -> None:
        """End the connection, as a killed process does: no last words in either direction."""
        for link in (self, self.other):
            if link is not None:
                link.channel.lost = True
                link.channel.lines.put_nowait(None)
                link.immediates.put_nowait(None)


def linked() -> tuple[FakeLink, FakeLink]:
    """Make a sender's and a receiver's end."""
    sender, receiver = FakeLink("receiver"), FakeLink("sender")
    sender.other, receiver.other = receiver, sender
    sender.channel.peer, receiver.channel.peer = receiver.channel, sender.channel
    return sender, receiver
