"""Hosts with a bad clock or a bad kernel: between an endpoint and the network of a `Pair`."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from mrc.proto.endpoint import Endpoint
from mrc.proto.runs import PathFault, ReceivedRun, RunToSend
from mrc.wire.runs import RunBuffer
from tests.support.pair import RECEIVE_BUFFER_BYTES, Side


class Host:
    """The five calls of an endpoint, as a host makes them on which something is wrong.

    Attributes:
        ahead_ns: what its clock is ahead of the time of the network.
        stands_at_ns: what its clock says all the time, None for one that goes.
        stopped: its process does not run; what arrives waits in its socket's buffer.
        refuses: what its kernel says to every run of data, None when it sends them.
    """

    def __init__(self, side: Side) -> None:
        self._endpoint: Endpoint = side.endpoint
        self.ahead_ns = 0
        self.stands_at_ns: int | None = None
        self.stopped = False
        self.refuses: PathFault | None = None
        self._waiting: deque[ReceivedRun] = deque()
        self._waiting_bytes = 0
        side.endpoint = self  # type: ignore[assignment] # all that a pair calls is here

    def __getattr__(self, name: str) -> Any:
        """Everything without a time in it is the endpoint's own."""
        return getattr(self._endpoint, name)

    def _clock(self, now_ns: int) -> int:
        return now_ns + self.ahead_ns if self.stands_at_ns is None else self.stands_at_ns

    def receive(self, run: ReceivedRun, now_ns: int) -> None:
        """Take a run that arrived, or let it wait as far as the buffer goes."""
        if not self.stopped:
            self._endpoint.receive(run, self._clock(now_ns))
        elif self._waiting_bytes + run.byte_count <= RECEIVE_BUFFER_BYTES:
            kept = RunBuffer()
            kept.bytes[: run.byte_count] = run.buffer.bytes[: run.byte_count]
            self._waiting.append(replace(run, buffer=kept))
            self._waiting_bytes += run.byte_count

    def transmit(self, now_ns: int) -> RunToSend | None:
        """Return the next run that the kernel sends."""
        while not self.stopped:
            run = self._endpoint.transmit(self._clock(now_ns))
            if run is None or self.refuses is None or not run.qpn:
                return run
            self._endpoint.path_fault(run, self.refuses, self._clock(now_ns))
        return None

    def advance(self, now_ns: int) -> None:
        """Run the timers that are due."""
        if not self.stopped:
            self._endpoint.advance(self._clock(now_ns))

    def next_deadline_ns(self) -> int | None:
        """Return when to advance, in the time of the network."""
        if self.stopped or self.stands_at_ns is not None:
            return None
        deadline_ns = self._endpoint.next_deadline_ns()
        return deadline_ns and deadline_ns - self.ahead_ns

    def go_on(self, now_ns: int) -> None:
        """Run again: as the engine does, hear all that waits before looking at the timers."""
        self.stopped = False
        while self._waiting:
            self.receive(self._waiting.popleft(), now_ns)
        self._waiting_bytes = 0
