"""What a transfer says about itself: the summary in words, and the JSON document.

Builds values from numbers; prints nothing and has no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mrc.cli.failures import ExitCode
from mrc.cli.progress import FileResult, Progress
from mrc.text import printable
from mrc.units import NS_PER_S, format_bps, format_bytes

SCHEMA_VERSION = 1
MESSAGE_CHARACTERS_MAX = 2000


@dataclass(slots=True)
class TransferReport:
    """Everything about one transfer that is told at its end.

    Attributes:
        peer: who the other side was.
        began_unix_s: wall-clock time of its beginning.
        duration_ns: from the greeting to the last word.
        progress: how far it came.
        counters: of the connection, in JSON's types.
        error: what ended it, as `failure` tells it, or nothing.
        exit_code: what that means.
    """

    peer: str
    began_unix_s: float
    progress: Progress
    duration_ns: int = 0
    counters: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    exit_code: ExitCode = ExitCode.DONE

    @property
    def moved_bytes(self) -> int:
        """Payload that crossed the network."""
        return self.progress.moved_bytes()

    @property
    def goodput_bps(self) -> float | None:
        """Payload bits a second, without headers, retransmissions and what was resumed."""
        if self.duration_ns <= 0:
            return None
        return self.moved_bytes * 8 * NS_PER_S / self.duration_ns


def summary(report: TransferReport, *, sending: bool) -> str:
    """Sum up a transfer that went well in one line."""
    progress = report.progress
    verb = "sent" if sending else "received"
    done = progress.results
    what = printable(done[0].path) if len(done) == 1 else f"{len(done)} files"
    line = f"{verb} {what}: {format_bytes(report.moved_bytes)} in {_seconds(report.duration_ns)}"
    if report.moved_bytes and report.goodput_bps:
        line += f", {format_bps(report.goodput_bps)} goodput"
    if progress.resumed_bytes:
        line += f"; {format_bytes(progress.resumed_bytes)} were there already"
    if len(done) == 1:
        line += f"; sha256 {done[0].sha256}"
    elif done:
        line += "; all verified"
    return line


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / NS_PER_S:.2f} s"


def document(
    command: str,
    start: dict[str, Any],
    reports: Sequence[TransferReport],
    error: dict[str, Any] | None,
) -> dict[str, Any]:
    """Build the one JSON document of a command, whatever became of it.

    Args:
        command: mrc-send or mrc-recv.
        start: what was known at the beginning: version, addresses, settings.
        reports: the transfers; a sender has at most one, a receiver may have had many.
        error: what ended the command, as `failure` tells it, or nothing.

    Returns:
        A document of plain values without NaN or infinities. The last transfer is also `end`.
    """
    ends = [_end(report) for report in reports]
    body: dict[str, Any] = {
        "schema": f"{command}/{SCHEMA_VERSION}",
        "start": start,
        "end": ends[-1] if ends else None,
        "error": error,
    }
    if command == "mrc-recv":
        body["transfers"] = ends
    plain: dict[str, Any] = _plain(body)
    return plain


def _end(report: TransferReport) -> dict[str, Any]:
    progress = report.progress
    return {
        "peer": report.peer,
        "began_unix_s": report.began_unix_s,
        "bytes": report.moved_bytes,
        "resumed_bytes": progress.resumed_bytes,
        "total_bytes": progress.total_bytes,
        "seconds": report.duration_ns / NS_PER_S,
        "goodput_bits_per_second": report.goodput_bps,
        "files": [_file(result) for result in progress.results],
        "skipped": list(progress.skipped),
        "paths": report.counters.get("paths", []),
        "counters": {key: value for key, value in report.counters.items() if key != "paths"},
        "error": report.error,
    }


def _file(result: FileResult) -> dict[str, Any]:
    return {
        "path": result.path,
        "bytes": result.size_bytes,
        "resumed_bytes": result.resumed_bytes,
        "sha256": result.sha256,
    }


def failure(error: BaseException | None, code: ExitCode) -> dict[str, Any] | None:
    """Tell of an exception in plain values, which keep nothing of what it happened in."""
    if error is None:
        return None
    return {
        "kind": type(error).__name__,
        "message": printable(str(error), MESSAGE_CHARACTERS_MAX),
        "errno": getattr(error, "errno", None),
        "exit_code": int(code),
    }


def _plain(value: Any) -> Any:
    """Reduce to what every JSON reader takes: no NaN, no infinities, no enums, no odd keys."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        # A file name may hold bytes that are no text; other readers refuse lone surrogates.
        return value.encode("utf-8", "backslashreplace").decode()
    if value is None or isinstance(value, bool | int):
        return value
    return str(value)
