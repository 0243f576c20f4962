"""One run of mrc-perf, from its event loop to its exit code: what is printed where, and when."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import click

import mrc
from mrc.cli.failures import ExitCode, OutputClosed, file_trouble
from mrc.cli.report import failure
from mrc.cli.session import Session, print_document, silence_stdout
from mrc.perf.report import Report, document, event_line, size_json
from mrc.perf.table import explained, header, heading, row
from mrc.units import format_bps

COMMAND = "mrc-perf"


class PerfSession(Session):
    """A `Session` whose document is that of a benchmark.

    Args:
        as_json: print one document at the end, and nothing else to standard output.
        as_stream: print its parts as they come up instead, a line each.
        start: what the document's `start` says beyond version and time.
        explain: print what limited the run.
        lively: print interim figures for people.

    Attributes:
        report: of the client that is served, or was the last one.
        more: further members of the document.
        in_turns: runs are compared, and have no rows of their own.
    """

    def __init__(
        self,
        *,
        as_json: bool,
        as_stream: bool,
        start: dict[str, Any],
        explain: bool = False,
        lively: bool = False,
    ) -> None:
        # Its display would redraw while this measures; a line now and then is all there is to show.
        as_json = as_json or as_stream
        super().__init__(COMMAND, sending=True, as_json=as_json, quiet=True, start=start)
        self._as_stream = as_stream
        self.report = Report(start=self._start)
        self.more: dict[str, Any] = {}
        self.in_turns = False
        self._explain = explain
        self._lively = lively
        self._output_lost = False

    def say(self, text: str) -> None:
        """Print a line for people: in JSON mode there is nobody who would read it."""
        if not self.as_json:
            self._print(text)

    def announce(self, url: mrc.Url) -> None:
        """Print where a listener is, where it can be found by a person and by a script."""
        if self.as_json:
            self.display.error(str(url))
        else:
            self.say(str(url))

    # What a client tells.

    def began(self, report: Report) -> None:
        """Print what is measured, and the names of the columns."""
        first, self.established = not self.established, True
        self._event("start", report.start)
        if report.plan is None or (self.in_turns and not first):
            return
        for line in header(report):
            self.say(line)
        if not self.in_turns:
            self.say(heading(report.plan.kind))

    def interval(self, report: Report) -> None:
        """Print the latest interim figures."""
        last = report.intervals[-1]
        self._event("interval", last)
        if self._lively:
            self.display.error(
                f"{last['start_seconds']:.1f}-{last['end_seconds']:.1f} s"
                f" {format_bps(last['bits_per_second'] or 0)}"
                f" {last['retransmitted_packets']} resent"
            )

    def tested(self, report: Report) -> None:
        """Print the row of the latest test."""
        self._event("test", size_json(report.tests[-1]))
        if not self.in_turns:
            self.say(row(report.tests[-1]))

    def explained(self) -> None:
        """Print what limited the run."""
        if self._explain:
            for side, findings in self.report.findings.items():
                for finding in findings:
                    self.say(explained(side, finding.text))

    def _event(self, name: str, data: Any) -> None:
        if self._as_stream:
            self._print(event_line(name, data))

    def _print(self, text: str) -> None:
        """Print a line to standard output.

        Raises:
            OutputClosed: its reader went away.
            FileTrouble: it is full, or closed.
        """
        try:
            if sys.stdout is None:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            click.echo(text)
        except BrokenPipeError as error:
            self._output_lost = True
            silence_stdout()
            raise OutputClosed("the reader of standard output went away") from error
        except OSError as error:
            self._output_lost = True
            raise file_trouble(error, "standard output") from error

    def _print_document(self, error: BaseException | None, code: ExitCode) -> None:
        if self._output_lost:
            return
        body = self._document(error, code)
        if not self._as_stream:
            print_document(body)
            return
        for name in ("end", *self.more, "error"):
            if body[name] is not None:
                self._event(name, body[name])

    def _document(self, error: BaseException | None, code: ExitCode) -> dict[str, Any]:
        """Return everything that the run came to."""
        return document(self.report, failure(error, code), self.more)
