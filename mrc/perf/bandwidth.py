"""WRITE bandwidth: many writes outstanding on every queue pair, each from and to the next place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from mrc.perf.conversation import Round
from mrc.perf.lanes import Lane
from mrc.perf.parts import together


class Stream:
    """Writes messages on all lanes at once.

    Attributes:
        lane_operations: messages placed at the peer, by lane.
    """

    def __init__(self, lanes: Sequence[Lane], wanted: Round) -> None:
        self._lanes = lanes
        self._wanted = wanted
        self._stopped = False
        self.lane_operations = [0] * len(lanes)

    async def run(self) -> None:
        """Write until the operations are done or `stop` was called, and all of it is placed."""
        work = []
        for index, lane in enumerate(self._lanes):
            numbers = self._numbers()
            work += [self._write(index, lane, numbers) for _ in range(self._wanted.depth)]
        await together(work)

    def stop(self) -> None:
        """Post nothing more; what is outstanding still counts."""
        self._stopped = True

    def _numbers(self) -> Iterator[int]:
        """Number the messages of one lane, until there shall be no more."""
        operations = self._wanted.operations
        for number in range(operations) if operations else itertools.count():
            if self._stopped:
                return
            yield number

    async def _write(self, index: int, lane: Lane, numbers: Iterator[int]) -> None:
        """Write one message after the other, as one of several that share the numbers."""
        for number in numbers:
            await lane.post(number, self._wanted.message_bytes)
            self.lane_operations[index] += 1


class Sink:
    """The side that is only written to: remote writes need nothing of it."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lane_operations = [0] * len(lanes)

    async def run(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""
