"""WRITE-with-Immediate latency: a message there, one of the same size back, one pair at a time.

As perftest does it, half of the round trip is reported: one message's way from the call to the
immediate at the other side, where the processors of both sides are about equally fast.
"""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from mrc.errors import PeerProtocolError
from mrc.perf.conversation import Round
from mrc.perf.lanes import Lane

IMM_MAX = (1 << 32) - 1
SAMPLES_MAX = 1 << 22
"""Round trips kept, 8 bytes each; of more, every second, then every fourth, and so on."""


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Half round trips in nanoseconds, over all of a test."""

    samples: int
    min_ns: float
    mean_ns: float
    stdev_ns: float
    p50_ns: float
    p99_ns: float
    p999_ns: float
    max_ns: float


class Samples:
    """Round trips in nanoseconds: as many as there are in the memory of few millions.

    Least, greatest and number are exact; the rest is of the samples kept.
    """

    def __init__(self, samples_max: int = SAMPLES_MAX) -> None:
        self._kept = array("q")
        self._samples_max = samples_max
        self._step = 1
        self.count = 0
        self._min_ns, self._max_ns = 1 << 62, 0

    def add(self, rtt_ns: int) -> None:
        """Take one more."""
        if self.count % self._step == 0:
            self._kept.append(rtt_ns)
            if len(self._kept) >= self._samples_max:
                self._kept = self._kept[::2]
                self._step *= 2
        self.count += 1
        self._min_ns = min(self._min_ns, rtt_ns)
        self._max_ns = max(self._max_ns, rtt_ns)

    def figures(self) -> LatencyFigures | None:
        """Return the half round trips, or None without any."""
        if not self.count:
            return None
        half = np.sort(np.asarray(self._kept)) / 2
        # The smallest value that at least so many percent do not exceed: one that was measured.
        p50, p99, p999 = (
            float(half[min(len(half) - 1, max(0, int(np.ceil(len(half) * share)) - 1))])
            for share in (0.5, 0.99, 0.999)
        )
        return LatencyFigures(
            samples=self.count,
            min_ns=self._min_ns / 2,
            mean_ns=float(half.mean()),
            stdev_ns=float(half.std()),
            p50_ns=p50,
            p99_ns=p99,
            p999_ns=p999,
            max_ns=self._max_ns / 2,
        )


class _Paddle:
    """What both sides have: one lane, and the writes on it that are not known to be placed.

    Nobody waits for the acknowledgement of a write before going on: it is no part of a message's
    way, and comes behind the answer, or after it.
    """

    def __init__(self, lanes: Sequence[Lane], wanted: Round) -> None:
        (self._lane,) = lanes
        self._wanted = wanted
        self._posted: deque[asyncio.Future[None]] = deque()
        self.lane_operations = [0]

    def _hit(self, number: int) -> None:
        """Post one message, and look after those before."""
        imm = number & IMM_MAX
        self._posted.append(self._lane.post(number, self._wanted.message_bytes, imm))
        while self._posted[0].done():
            self._settle(self._posted[0])

    async def _settled(self) -> None:
        """Wait until all that was posted is placed."""
        while self._posted:
            await asyncio.wait((self._posted[0],))
            self._settle(self._posted[0])

    def _settle(self, oldest: asyncio.Future[None]) -> None:
        oldest.result()
        self._posted.popleft()
        self.lane_operations[0] += 1


class Ping(_Paddle):
    """The connecting side, which holds the watch.

    Attributes:
        samples: the round trips.
    """

    def __init__(self, lanes: Sequence[Lane], wanted: Round) -> None:
        super().__init__(lanes, wanted)
        self._stopped = False
        self.samples = Samples()

    async def run(self) -> None:
        """Play until the operations are done or `stop` was called."""
        operations = self._wanted.operations
        next_immediate = self._lane.qp.next_immediate
        for number in range(operations) if operations else itertools.count():
            if self._stopped:
                break
            began_ns = perf_counter_ns()
            self._hit(number)
            answer = await next_immediate()
            self.samples.add(perf_counter_ns() - began_ns)
            if answer.imm != number & IMM_MAX:
                raise PeerProtocolError(
                    f"{self._lane.qp.peer} answered message {number} with {answer.imm}"
                )
        await self._settled()

    def stop(self) -> None:
        """Play no more after the message that is on its way."""
        self._stopped = True


class Pong(_Paddle):
    """The listening side: answers whatever comes."""

    def __init__(self, lanes: Sequence[Lane], wanted: Round) -> None:
        super().__init__(lanes, wanted)
        self._answering: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Answer until `stop` is called: by then the other side has all its answers."""
        self._answering = asyncio.ensure_future(self._answer())
        try:
            await asyncio.wait((self._answering,))
            if not self._answering.cancelled():
                self._answering.result()
            await self._settled()
        finally:
            self._answering.cancel()

    def stop(self) -> None:
        """Wait for nothing more."""
        if self._answering is not None:
            self._answering.cancel()

    async def _answer(self) -> None:
        for number in itertools.count():
            await self._lane.qp.next_immediate()
            self._hit(number)
