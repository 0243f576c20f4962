"""The link of a transfer over a real queue pair: the only module here that knows `mrc`'s api.

Adds what the display needs: how many bytes have moved, also within a block that is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import mrc
from mrc.cli.link import Immediate, PathCounters, RemoteRegion
from mrc.errors import ConfigError


class QpLink:
    """A queue pair as a transfer sees it.

    Args:
        qp: established.
        sending: which side this is: it decides what counts as moved.
    """

    def __init__(self, qp: mrc.QueuePair, *, sending: bool) -> None:
        self._qp = qp
        self._sending = sending
        self._done_bytes = 0
        self._posted_bytes = 0
        self._last = qp.statistics()
        self.channel = qp.channel
        self.peer = qp.peer

    def register(self, buffer: Any) -> mrc.MemoryRegion:
        """Let the peer write to a buffer."""
        return self._qp.register(buffer)

    async def write_imm(
        self, data: Any, remote: RemoteRegion, offset: int = 0, *, imm: int
    ) -> None:
        """Write to the peer's memory and tell it; returns when every byte is placed."""
        size_bytes = memoryview(data).nbytes
        self._posted_bytes += size_bytes
        region = mrc.RemoteRegion(remote.va, remote.r_key, remote.length)
        await self._qp.write_imm(data, region, offset, imm=imm)
        self._done_bytes += size_bytes

    async def next_immediate(self) -> Immediate:
        """Wait for the next completed write-with-immediate of the peer, in its order."""
        immediate = await self._qp.next_immediate()
        self._done_bytes += immediate.length
        return immediate

    def moved_bytes(self) -> int:
        """Payload bytes that have arrived: whole blocks, and what is known of those under way."""
        statistics = self._statistics()
        if not self._sending:
            # Messages count as well; they are few, and none of it is in the final figure.
            return max(self._done_bytes, statistics.responder.payload_bytes_placed)
        requestor = statistics.requestor
        arrived_bytes = requestor.payload_bytes_sent - max(requestor.inflight_bytes, 0)
        return max(self._done_bytes, min(arrived_bytes, self._posted_bytes))

    def final_bytes(self) -> int:
        """Payload bytes of whole blocks only: exact when the transfer is over."""
        return self._done_bytes

    def path_counters(self) -> Sequence[PathCounters]:
        """Every path towards the peer."""
        return self._statistics().paths

    def counters_json(self) -> dict[str, Any]:
        """All counters of the connection in a form that JSON takes."""
        return asdict(self._statistics())

    def _statistics(self) -> mrc.QpStatistics:
        """The counters; those of the last look once the queue pair has been freed."""
        with suppress(ConfigError):
            self._last = self._qp.statistics()
        return self._last
