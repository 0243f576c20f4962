"""Stacks of this process, taken while it works, by the clock of its processor time.

A timer of the kernel interrupts the process whenever it has used so much processor time, and the
interpreter then calls a function with the frame it is at. It does so between instructions: as soon
as a call of C comes back, or a function or the next turn of a loop begins. So what a call into C
took is put to the line that called, and what led to a function that has not begun is put to its
caller. Time in which the process waits is not counted.
"""

from __future__ import annotations

import dis
import json
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

RESUME = dis.opmap["RESUME"]
"""The instruction with which every function begins."""


class Frame(NamedTuple):
    """Where one call of a stack was."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""Innermost frame first."""
RawStack = tuple[tuple[CodeType, int, int], ...]
"""Code, offset of the instruction and line of each frame."""


@contextmanager
def sampled(file: Path, interval_s: float) -> Iterator[None]:
    """Take the stack each time so much processor time was used; write all to a file at the end.

    Only in the main thread, and one at a time.
    """
    seen: Counter[RawStack] = Counter()

    def note(_number: int, frame: FrameType | None) -> None:
        frames = []
        while frame is not None:
            # Instructions that the compiler adds have no line.
            line = frame.f_lineno or frame.f_code.co_firstlineno
            frames.append((frame.f_code, frame.f_lasti, line))
            frame = frame.f_back
        seen[tuple(frames)] += 1

    before = signal.signal(signal.SIGPROF, note)
    signal.setitimer(signal.ITIMER_PROF, interval_s, interval_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        stacks = merge(seen)
        file.write_text(json.dumps([[stacks[stack], stack] for stack in stacks]), encoding="utf-8")


def merge(seen: Counter[RawStack]) -> Counter[Stack]:
    """Return stacks as they are told, without functions that had not begun."""
    found: Counter[Stack] = Counter()
    for raw, count in seen.items():
        code, instruction, _ = raw[0]
        begun = raw[1:] if code.co_code[instruction] == RESUME and len(raw) > 1 else raw
        stack = tuple(Frame(code.co_filename, line, code.co_name) for code, _, line in begun)
        found[stack] += count
    return found


def read_stacks(file: Path) -> Counter[Stack]:
    """Return the stacks that `sampled` wrote, and how often each was seen."""
    return Counter(
        {
            tuple(Frame(*frame) for frame in stack): count
            for count, stack in json.loads(file.read_text(encoding="utf-8"))
        }
    )
