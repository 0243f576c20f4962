"""What people see: progress, paths, reasons for standing still, summaries, JSON."""

from __future__ import annotations

import asyncio
import io
import json
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from rich.console import Console

from mrc.cli.display import PATH_ROWS_MAX, Display, Style, path_table, progress_line
from mrc.cli.failures import ExitCode, FileTrouble
from mrc.cli.messages import Phase
from mrc.cli.progress import FileResult, Progress, RateMeter
from mrc.cli.report import TransferReport, document, failure, summary
from mrc.cli.stall import STALL_NS, stall_reason
from mrc.units import NS_PER_S
from tests.cli.fakelink import FakeLink

MIB = 1 << 20


@dataclass(frozen=True)
class Path:
    """Counters of one path."""

    plane: int = 0
    source_port: int = 50_000
    state: str = "good"
    active: bool = True
    sent_packets: int = 10
    acked_packets: int = 10
    lost_packets: int = 0
    retransmitted_packets: int = 0
    trimmed_packets: int = 0
    srtt_ns: int = 0


class LinkWithPaths(FakeLink):
    """A link that has paths."""

    paths: tuple[Path, ...] = (Path(), Path(source_port=50_001))

    def path_counters(self) -> tuple[Path, ...]:
        """The paths."""
        return self.paths


@dataclass
class Screen:
    """A display with a clock that stands until it is moved, and what it has shown."""

    display: Display
    shown: io.StringIO
    link: LinkWithPaths
    clock: list[int]

    def after(self, seconds: float) -> str:
        """Let time pass, tick, and return what has been printed so far."""
        self.clock[0] += int(seconds * NS_PER_S)
        self.display.tick()
        return self.shown.getvalue()


@pytest.fixture
def screen() -> Callable[[Style], Screen]:
    """Make a screen of a style."""

    def make(style: Style) -> Screen:
        shown = io.StringIO()
        clock = [0]
        console = Console(file=shown, width=100, force_terminal=style is Style.LIVE)
        display = Display(style, sending=True, now_ns=lambda: clock[0], console=console)
        return Screen(display, shown, LinkWithPaths("there"), clock)

    return make


def _moving(total: int | None, moved: list[int]) -> Progress:
    progress = Progress(phase=Phase.MOVING, total_bytes=total, current="f\x1b[2J", files=2)
    progress.moved_bytes = lambda: moved[0]
    return progress


def test_the_rate_is_over_the_last_seconds() -> None:
    """A slow beginning is forgotten after the window, and standing still shows at once."""
    meter = RateMeter(0)
    assert meter.bytes_per_second == 0
    assert meter.eta_s(5) is None
    for second in range(1, 11):
        meter.sample(second * NS_PER_S, second * 100)
    assert meter.bytes_per_second == pytest.approx(100)
    assert meter.eta_s(1000) == pytest.approx(10)
    for second in range(11, 15):
        meter.sample(second * NS_PER_S, 1000)
    assert meter.bytes_per_second == 0
    assert meter.still_ns(14 * NS_PER_S) == 4 * NS_PER_S


def test_a_progress_line_has_everything_and_nothing_dangerous() -> None:
    """Name, amount, percentage, rate, time left and files; control codes of a name are spelled."""
    meter = RateMeter(0)
    meter.sample(NS_PER_S, 10 * MIB)
    line = progress_line(_moving(40 * MIB, [10 * MIB]), meter)
    assert line == (
        "transferring f\\x1b[2J: 10.0 MiB of 40.0 MiB (25 %), 83.9 Mbit/s, 0:03 left, 0 of 2 files"
    )
    assert "10.0 MiB, 83.9 Mbit/s" in progress_line(_moving(None, [10 * MIB]), meter)
    hashing = Progress(phase=Phase.HASHING, current="f", phase_bytes=MIB)
    assert progress_line(hashing, meter) == "verifying what is there of f: 1.0 MiB hashed"


def test_plain_lines_come_every_few_seconds(screen: Callable[[Style], Screen]) -> None:
    """A log gets a line each three seconds, not four a second."""
    plain = screen(Style.PLAIN)
    moved = [0]
    with plain.display.watching(plain.link, _moving(MIB, moved)):
        for _ in range(27):
            moved[0] += 1000
            shown = plain.after(0.25)
    assert shown.count("\n") == 2


def test_a_stall_is_explained_and_not_every_tick(screen: Callable[[Style], Screen]) -> None:
    """After five seconds without a byte the reason is given, then again each five seconds."""
    plain = screen(Style.PLAIN)
    progress = _moving(MIB, [0])
    with plain.display.watching(plain.link, progress):
        for _ in range(47):
            shown = plain.after(0.25)
    assert shown.count("no new bytes") == 2
    assert "no acknowledgement on any of 2 paths (2 good; 0 packets sent)" in shown
    assert "(peer there)" in shown


def test_hashing_is_no_stall(screen: Callable[[Style], Screen]) -> None:
    """While either side makes progress with something else nothing is wrong."""
    plain = screen(Style.PLAIN)
    progress = _moving(MIB, [0])
    with plain.display.watching(plain.link, progress):
        for tick in range(60):
            progress.peer_phase, progress.peer_phase_bytes = Phase.HASHING, tick
            shown = plain.after(0.25)
    assert "no new bytes" not in shown


def test_quiet_shows_errors_only(screen: Callable[[Style], Screen]) -> None:
    """Neither progress nor stalls, but what went wrong."""
    quiet = screen(Style.QUIET)
    with quiet.display.watching(quiet.link, _moving(MIB, [0])):
        quiet.after(60)
    quiet.display.line("news")
    assert quiet.shown.getvalue() == ""
    quiet.display.error("trouble")
    assert quiet.shown.getvalue() == "trouble\n"


def test_a_full_standard_error_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be shown is not shown, and nothing after it is tried."""
    full = pathlib.Path("/dev/full").open("w")  # noqa: SIM115 - closing it fails
    monkeypatch.setattr(sys, "stderr", full)
    display = Display(Style.PLAIN, sending=True, now_ns=lambda: 0)
    for _ in range(2):
        display.error("trouble")
    with pytest.raises(OSError, match="No space left"):
        full.close()


async def _run_shortly(display: Display) -> None:
    running = asyncio.ensure_future(display.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_terminal_gets_the_table(screen: Callable[[Style], Screen]) -> None:
    """On a terminal the paths are shown live, and once more at the end."""
    live = screen(Style.LIVE)
    with live.display.watching(live.link, _moving(MIB, [0])):
        await _run_shortly(live.display)
    assert "50001" in live.shown.getvalue()
    live.shown.truncate(0)
    live.display.paths(live.link)
    assert "50001" in live.shown.getvalue()


def test_the_table_of_paths_has_an_end() -> None:
    """Shares add up, idle spares are left out, and what does not fit is counted."""
    paths = [Path(source_port=port, sent_packets=1, srtt_ns=1500) for port in range(40)]
    paths.append(Path(active=False, sent_packets=0, state="denied"))
    table = path_table(paths)
    assert table.row_count == PATH_ROWS_MAX + 1
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2.5" in shown
    assert "1.5 us" in shown
    assert "and 8 more paths" in shown
    assert "denied" not in shown


@pytest.mark.parametrize(
    ("sending", "phase", "peer_phase", "expected"),
    [
        (True, Phase.READING, None, "waiting for input"),
        (True, Phase.MOVING, Phase.WRITING, "the receiver waits for its disk"),
        (True, Phase.FINISHING, Phase.FINISHING, "flushing"),
        (False, Phase.WRITING, Phase.MOVING, "this side's disk is slow"),
        (False, Phase.MOVING, Phase.READING, "the sender waits for its own input"),
        (False, Phase.MOVING, Phase.MOVING, "nothing arrives from the sender"),
    ],
)
def test_the_side_that_waits_is_named(
    sending: bool, phase: Phase, peer_phase: Phase | None, expected: str
) -> None:
    """What either side says it does comes before what the network looks like."""
    progress = Progress(phase=phase, peer_phase=peer_phase)
    reason = stall_reason(progress, sending=sending, before=[Path()], now=[Path()])
    assert expected in reason


def test_a_slow_network_is_told_from_a_dead_one() -> None:
    """Acknowledgements that arrive mean slow; none on any path means dead, with the states."""
    progress = Progress(phase=Phase.MOVING)
    before = [Path(), Path(state="assumed_bad")]
    dead = [Path(sent_packets=15), Path(state="assumed_bad")]
    reason = stall_reason(progress, sending=True, before=before, now=dead)
    assert reason == (
        "no acknowledgement on any of 2 paths (1 good, 1 assumed_bad; 5 packets sent)"
    )
    slow = [Path(acked_packets=11), Path(state="assumed_bad")]
    assert "acknowledgements arrive" in stall_reason(
        progress, sending=True, before=before, now=slow
    )
    assert stall_reason(progress, sending=True, before=[], now=[]) == "no path is known"
    assert STALL_NS == 5 * NS_PER_S


def _report(*results: FileResult, moved: int = 4 * MIB, resumed: int = 0) -> TransferReport:
    progress = Progress(total_bytes=moved + resumed, resumed_bytes=resumed)
    progress.moved_bytes = lambda: moved
    progress.results = list(results)
    return TransferReport("there", 1.5, progress, duration_ns=2 * NS_PER_S)


ONE = FileResult("a\n", 4 * MIB, 0, "0" * 64)


def test_a_summary_says_what_rate_and_digest() -> None:
    """One file is named with its digest, many are counted, what was resumed is said."""
    assert summary(_report(ONE), sending=True) == (
        f"sent a\\x0a: 4.0 MiB in 2.00 s, 16.8 Mbit/s goodput; sha256 {'0' * 64}"
    )
    assert summary(_report(ONE, ONE, moved=0, resumed=8 * MIB), sending=False) == (
        "received 2 files: 0 B in 2.00 s; 8.0 MiB were there already; all verified"
    )


def test_the_document_is_strict_json() -> None:
    """No NaN, no lone surrogates, integers stay integers, and the error has its numbers."""
    report = _report(FileResult("\udcff", 1, 0, "0" * 64))
    report.duration_ns = 0
    report.counters = {"paths": [{"share": float("nan")}], "x": {1: ExitCode.DONE}}
    trouble = FileTrouble(28, "No space left on device", "f")
    report.error = failure(trouble, ExitCode.LOCAL_FILE)
    body = document("mrc-recv", {"version": "1"}, [report], report.error)
    text = json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    read = json.loads(text)
    assert read["end"]["goodput_bits_per_second"] is None
    assert read["end"]["paths"] == [{"share": None}]
    assert read["end"]["files"][0]["path"] == "\\udcff"
    assert read["error"] == {
        "kind": "FileTrouble",
        "message": "f: No space left on device",
        "errno": 28,
        "exit_code": 6,
    }
    assert read["transfers"] == [read["end"]]


def test_a_document_without_a_transfer() -> None:
    """A command that ended before anything began has one too."""
    body = document("mrc-send", {}, [], None)
    assert body == {"schema": "mrc-send/1", "start": {}, "end": None, "error": None}
