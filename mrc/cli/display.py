"""Progress for people, on standard error: a live table on a terminal, plain lines elsewhere.

Reads `Progress` and the connection's counters four times a second; writes nothing to either.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import IO, Any, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mrc.cli.link import Link, PathCounters
from mrc.cli.messages import Phase
from mrc.cli.progress import Progress, RateMeter
from mrc.cli.stall import STALL_NS, stall_reason
from mrc.text import printable
from mrc.units import NS_PER_S, format_bps, format_bytes, format_ns

TICK_S = 0.25
PLAIN_LINE_NS = 3 * NS_PER_S
"""Between two lines of progress where there is no terminal: a log file stays short."""

PATH_ROWS_MAX = 32
"""Paths shown; the rest is counted. A table higher than the terminal cannot be redrawn."""

_STATE_STYLES = {"good": "green", "skip": "yellow", "assumed_bad": "bold red", "denied": "red"}


class Style(Enum):
    """How much is shown."""

    LIVE = auto()
    PLAIN = auto()
    QUIET = auto()


@dataclass(slots=True)
class _Watched:
    """One transfer on display."""

    link: Link
    progress: Progress
    meter: RateMeter
    seen: tuple[int, int] = (0, 0)
    base_paths: Sequence[PathCounters] = field(default_factory=tuple)
    shown_ns: int = 0
    warned_ns: int = 0


class _Screen:
    """Standard error until it refuses: full, or its reader has gone. The work goes on all the same.

    Rich would end the process.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._refused = False

    def write(self, text: str) -> None:
        """Show it."""
        self._attempt(lambda: self._file.write(text))

    def flush(self) -> None:
        """Show what has been held back."""
        self._attempt(self._file.flush)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            if not self._refused:
                action()
        except OSError:
            self._refused = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Display:
    """Shows the transfers of one command.

    Args:
        style: how much is shown.
        sending: which side this is.
        now_ns: the monotonic clock.
        console: where to; standard error unless given.
    """

    def __init__(
        self,
        style: Style,
        *,
        sending: bool,
        now_ns: Callable[[], int],
        console: Console | None = None,
    ) -> None:
        screen = cast(IO[str], _Screen(sys.stderr))
        self.console = console or Console(file=screen, highlight=False)
        self._style = style
        self._sending = sending
        self._now_ns = now_ns
        self._watched: list[_Watched] = []
        self._live: Live | None = None

    def line(self, text: str) -> None:
        """Print one line, above the live table if there is one; not when quiet."""
        if self._style is not Style.QUIET:
            self.error(text)

    def error(self, text: str) -> None:
        """Print one line that is shown even when quiet."""
        self.console.print(Text(text), soft_wrap=True)

    def paths(self, link: Link) -> None:
        """Print the table of paths once more, for whoever watched it live."""
        if self._style is Style.LIVE and self._sending:
            self.console.print(path_table(link.path_counters()))

    @contextmanager
    def watching(self, link: Link, progress: Progress) -> Iterator[None]:
        """Show one transfer for as long as the block lasts."""
        now_ns = self._now_ns()
        watched = _Watched(link, progress, RateMeter(now_ns), shown_ns=now_ns, warned_ns=now_ns)
        watched.base_paths = link.path_counters()
        self._watched.append(watched)
        try:
            yield
        finally:
            self._watched.remove(watched)

    async def run(self) -> None:
        """Redraw until cancelled."""
        if self._style is Style.LIVE:
            with Live(console=self.console, auto_refresh=False, transient=True) as self._live:
                await self._tick_for_ever()
        else:
            await self._tick_for_ever()

    async def _tick_for_ever(self) -> None:
        while True:
            self.tick()
            await asyncio.sleep(TICK_S)

    def tick(self) -> None:
        """Look at every transfer once, and show what is due."""
        now_ns = self._now_ns()
        for watched in self._watched:
            self._sample(watched, now_ns)
            self._warn(watched, now_ns)
            if self._style is Style.PLAIN and now_ns - watched.shown_ns >= PLAIN_LINE_NS:
                watched.shown_ns = now_ns
                self.line(progress_line(watched.progress, watched.meter))
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)

    def _sample(self, watched: _Watched, now_ns: int) -> None:
        progress = watched.progress
        watched.meter.sample(now_ns, progress.moved_bytes())
        # Hashing and the other side's work move no bytes, and are progress all the same.
        busy = (progress.phase_bytes, progress.peer_phase_bytes)
        if watched.meter.still_ns(now_ns) == 0 or busy != watched.seen:
            watched.seen = busy
            watched.warned_ns = now_ns
            watched.base_paths = watched.link.path_counters()

    def _warn(self, watched: _Watched, now_ns: int) -> None:
        """Say why nothing moves, if nothing has for a while."""
        if now_ns - watched.warned_ns < STALL_NS:
            return
        watched.warned_ns = now_ns
        reason = stall_reason(
            watched.progress,
            sending=self._sending,
            before=watched.base_paths,
            now=watched.link.path_counters(),
        )
        still = max(watched.meter.still_ns(now_ns), STALL_NS)
        self.line(f"no new bytes for {format_ns(still)}: {reason} (peer {watched.link.peer})")

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = [
            Text(progress_line(watched.progress, watched.meter), overflow="ellipsis", no_wrap=True)
            for watched in self._watched
        ]
        if self._sending and len(self._watched) == 1:
            parts.append(path_table(self._watched[0].link.path_counters()))
        return Group(*parts)


def progress_line(progress: Progress, meter: RateMeter) -> str:
    """Say in one line what is going on, how far it is, how fast and for how long yet."""
    done = progress.done_bytes
    total = progress.total_bytes
    line = _PHASE_WORDS[progress.phase]
    if progress.current:
        line += f" {printable(progress.current)}"
    if progress.phase is Phase.HASHING:
        return f"{line}: {format_bytes(progress.phase_bytes)} hashed"
    if total is None:
        line += f": {format_bytes(done)}"
    else:
        percent = 100 * done // total if total else 100
        line += f": {format_bytes(done)} of {format_bytes(total)} ({min(percent, 100)} %)"
    line += f", {format_bps(meter.bytes_per_second * 8)}"
    eta_s = meter.eta_s(max(total - done, 0)) if total is not None else None
    if eta_s is not None:
        line += f", {_clock(eta_s)} left"
    if progress.files > 1:
        line += f", {len(progress.results)} of {progress.files} files"
    return line


_PHASE_WORDS = {
    Phase.LISTING: "listing",
    Phase.PREPARING: "preparing",
    Phase.HASHING: "verifying what is there of",
    Phase.MOVING: "transferring",
    Phase.READING: "reading",
    Phase.WRITING: "writing",
    Phase.FINISHING: "finishing",
}


def _clock(seconds: float) -> str:
    """Print a duration as people read clocks."""
    whole = min(int(seconds + 0.5), 359_999)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def path_table(paths: Sequence[PathCounters]) -> Table:
    """Draw one row a path: where it is, how it is, what it carried and what it lost."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("plane", justify="right")
    table.add_column("port", justify="right")
    table.add_column("state")
    for name in ("share %", "retransmits", "lost", "trims", "RTT"):
        table.add_column(name, justify="right")
    total = sum(path.sent_packets for path in paths) or 1
    shown = [path for path in paths if path.active or path.sent_packets]
    for path in shown[:PATH_ROWS_MAX]:
        table.add_row(
            str(path.plane),
            str(path.source_port),
            Text(path.state, style=_STATE_STYLES.get(path.state, "")),
            f"{100 * path.sent_packets / total:.1f}",
            str(path.retransmitted_packets),
            str(path.lost_packets),
            str(path.trimmed_packets),
            format_ns(path.srtt_ns) if path.srtt_ns else "-",
        )
    if len(shown) > PATH_ROWS_MAX:
        table.add_row("", "", f"and {len(shown) - PATH_ROWS_MAX} more paths")
    return table
