"""Adds up where the time of a run went, and tells it in words, bars and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mrc.units import NS_PER_US
from profiling.parts import ABOUT, ROOT, Part, place
from profiling.stacks import Frame, Stack
from profiling.worker import RUN_BYTES

BAR_COLUMNS = 40


@dataclass(frozen=True, slots=True)
class Spot:
    """A line or a function (its line is 0 then), and what a run spends in it."""

    frame: Frame
    us: float

    @property
    def name(self) -> str:
        """File, below the root of the repository if it is there, line and function."""
        file = self.frame.file
        ours = file.startswith(f"{ROOT}/")
        name = file.removeprefix(f"{ROOT}/") if ours else "/".join(file.split("/")[-2:])
        return f"{name}{f':{self.frame.line}' if self.frame.line else ''} {self.frame.function}"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the work, and what a run spends in it; its spots, the costliest first."""

    part: Part
    us: float
    spots: tuple[Spot, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """What a run costs one side.

    Attributes:
        name: sender or receiver.
        us: processor time of a run without the profiler.
        profiled_us: the same with it.
        busy: share of the time in which the process had work, without the profiler.
        samples: stacks taken.
        shares: parts of `us`.
    """

    name: str
    us: float
    profiled_us: float
    busy: float
    samples: int
    shares: tuple[Share, ...]

    @property
    def overhead(self) -> float:
        """What the profiler adds to a run, as a share of it."""
        return self.profiled_us / self.us - 1


def side_of(
    name: str,
    stacks: Counter[Stack],
    bare: Mapping[str, float],
    profiled: Mapping[str, float],
    *,
    by_line: bool = False,
) -> Side:
    """Divide what a run costs without the profiler as the stacks of the profiled runs say.

    Args:
        name: sender or receiver.
        stacks: of that side.
        bare: what was measured without the profiler.
        profiled: what was measured with it.
        by_line: let each line be a spot of its own, not each function.
    """
    us = run_us(name, bare)
    samples = stacks.total()
    parts: dict[Part, Counter[Frame]] = {}
    for stack, count in stacks.items():
        part, frame = place(stack)
        spot = frame if by_line else frame._replace(line=0)
        parts.setdefault(part, Counter())[spot] += count
    shares = tuple(
        Share(
            part,
            frames.total() * us / samples,
            tuple(Spot(frame, count * us / samples) for frame, count in frames.most_common()),
        )
        for part, frames in parts.items()
    )
    busy = bare[f"{name}_cpu_ns"] / bare["ns"]
    return Side(name, us, run_us(name, profiled), busy, samples, shares)


def run_us(name: str, window: Mapping[str, float]) -> float:
    """Return the processor time of a side for one run, or one round trip."""
    return window[f"{name}_cpu_ns"] / window["count"] / NS_PER_US


def rate_line(window: Mapping[str, float], *, ping_pong: bool) -> str:
    """Return how fast it went, in words."""
    if ping_pong:
        return f"{window['ns'] / window['count'] / NS_PER_US:.1f} us a round trip"
    return f"{window['count'] * RUN_BYTES * 8 / window['ns']:.2f} Gbit/s"


def sort_shares(shares: tuple[Share, ...], order: str) -> list[Share]:
    """Sort by `time`, or by the `path` of a run."""
    if order == "time":
        return sorted(shares, key=lambda share: -share.us)
    path = list(Part)
    return sorted(shares, key=lambda share: path.index(share.part))


def text_of(side: Side, what: str, order: str, spots: int) -> Iterator[str]:
    """Yield what a person reads of a side; `what` is what was counted."""
    yield (
        f"{side.name}: {side.us:.1f} us of processor time for {what},"
        f" {side.busy:.0%} of a core; {side.samples:,} stacks"
    )
    largest = max((share.us for share in side.shares), default=1.0)
    for share in sort_shares(side.shares, order):
        bar = "#" * round(share.us / largest * BAR_COLUMNS)
        yield f"  {share.part.value:<13}{share.us:6.1f} us {share.us / side.us:4.0%}  {bar}"
        for spot in share.spots[:spots]:
            yield f"      {spot.us:5.1f}  {spot.name}"
    yield (
        f"  taking the stacks: {side.overhead:+.1%} ({side.profiled_us:.1f} us);"
        " what is told above is without it"
    )


def document_of(side: Side, order: str) -> dict[str, Any]:
    """Return a side for JSON."""
    return {
        "us": side.us,
        "profiled_us": side.profiled_us,
        "overhead_ratio": side.overhead,
        "busy_ratio": side.busy,
        "samples": side.samples,
        "parts": [
            {
                "name": share.part.value,
                "about": ABOUT[share.part],
                "us": share.us,
                "ratio": share.us / side.us,
                "spots": [{"name": spot.name, "us": spot.us} for spot in share.spots],
            }
            for share in sort_shares(side.shares, order)
        ],
    }
