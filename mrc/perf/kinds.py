"""Which module does which kind of test, on each side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mrc.perf.bandwidth import Sink, Stream
from mrc.perf.lanes import Lane
from mrc.perf.latency import Ping, Pong
from mrc.perf.parts import Part
from mrc.perf.settings import Kind, Round

MakePart = Callable[[Sequence[Lane], Round], Part]


class Sides(NamedTuple):
    """The two sides of a kind of test."""

    connecting: MakePart
    listening: MakePart


def sides(kind: Kind, *, bidirectional: bool) -> Sides:
    """Return what the two sides do."""
    if kind is Kind.LATENCY:
        return Sides(Ping, Pong)
    return Sides(Stream, Stream if bidirectional else Sink)
