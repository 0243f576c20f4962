"""One run of a command, from its event loop to its exit code, whatever happens in between.

Knows signals, standard output and the clock, so that nothing else in the commands has to.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

import click

from mrc.cli.display import Display, Style
from mrc.cli.failures import ExitCode, Interrupted, OutputClosed, exit_code, file_trouble
from mrc.cli.link import Link
from mrc.cli.progress import Progress
from mrc.cli.report import TransferReport, document, failure, summary
from mrc.errors import ConfigError, MrcError
from mrc.text import printable

DISTRIBUTION = "mrc-transport"
LINE_CHARACTERS_MAX = 2000
"""Longest error line; every path tried is named in some."""

_STDERR_FD = 2

REPORTS_MAX = 100
"""Transfers of a long-lived receiver that its JSON document tells of: the last ones, since each
carries its list of files."""


class Session:
    """One run of mrc-send or mrc-recv.

    Args:
        command: its name.
        sending: which side this is.
        as_json: print a document at the end, and nothing else to standard output.
        quiet: show errors only.
        start: what the document's `start` says beyond version and time.

    Attributes:
        established: the peer has been reached.
        lost_hint: what to do when the peer or all paths are lost, behind the line that says so.
        reports: the transfers so far, the oldest of very many forgotten.
    """

    def __init__(
        self, command: str, *, sending: bool, as_json: bool, quiet: bool, start: dict[str, Any]
    ) -> None:
        self.command = command
        self.sending = sending
        self.as_json = as_json
        self.established = False
        self.lost_hint = ""
        self.reports: list[TransferReport] = []
        self._start = {
            "version": package_version(),
            "time_unix_s": time.time(),
            **start,
        }
        self._stop_signal: signal.Signals | None = None
        style = Style.QUIET if quiet else Style.LIVE if sys.stderr.isatty() else Style.PLAIN
        self.display = Display(style, sending=sending, now_ns=time.monotonic_ns)

    def run(self, main: Callable[[], Coroutine[Any, Any, ExitCode]]) -> ExitCode:
        """Run the command's main coroutine and return the exit code.

        Everything that goes wrong becomes one line on standard error, and part of the document.
        """
        error: BaseException | None = None
        code = ExitCode.FAILED
        try:
            code = run_loop(self._guarded(main))
        except KeyboardInterrupt:
            # A signal before the loop's own handler stood.
            error = Interrupted(signal.SIGINT)
        except BrokenPipeError:
            error = OutputClosed("the reader of standard output went away")
        except Exception as caught:  # noqa: BLE001 - the last stop: one line, one exit code
            error = caught
        if error is not None:
            code = exit_code(error, established=self.established)
            self._complain(error)
        if self.as_json:
            try:
                self._print_document(error, code)
            except OSError as refused:
                self._complain(file_trouble(refused, "standard output"))
                code = code or ExitCode.LOCAL_FILE
        return code

    async def _guarded(self, main: Callable[[], Coroutine[Any, Any, ExitCode]]) -> ExitCode:
        """Run main so that a signal cancels it once, and a second one ends the process."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(self._displayed(main))

        def stop(number: signal.Signals) -> None:
            if self._stop_signal is not None:
                os._exit(128 + number)
            self._stop_signal = number
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        try:
            return await task
        except asyncio.CancelledError:
            if self._stop_signal is None:
                raise
            raise Interrupted(self._stop_signal) from None

    async def _displayed(self, main: Callable[[], Coroutine[Any, Any, ExitCode]]) -> ExitCode:
        drawing = asyncio.ensure_future(self.display.run())
        try:
            return await main()
        finally:
            drawing.cancel()
            with suppress(asyncio.CancelledError):
                await drawing

    @contextmanager
    def transfer(self, link: Link, progress: Progress) -> Iterator[TransferReport]:
        """Show and report one transfer; what ends it is noted and passed on."""
        report = TransferReport(link.peer, time.time(), progress)
        kept = REPORTS_MAX if self.as_json else 1
        self.reports = [*self.reports, report][-kept:]
        began_ns = time.monotonic_ns()
        try:
            with self.display.watching(link, progress):
                yield report
        except BaseException as error:
            stopped = isinstance(error, asyncio.CancelledError) and self._stop_signal is not None
            cause = Interrupted(self._stop_signal or signal.SIGINT) if stopped else error
            report.exit_code = exit_code(cause, established=True)
            report.error = failure(cause, report.exit_code)
            raise
        finally:
            report.duration_ns = time.monotonic_ns() - began_ns
            report.counters = link.counters_json()
            # The number, not the method: a report must not keep the connection and its memory.
            done_bytes = link.final_bytes()
            progress.moved_bytes = lambda: done_bytes

    def conclude(self, report: TransferReport, link: Link) -> None:
        """Print the summary of a transfer that went well."""
        self.display.line(summary(report, sending=self.sending))
        self.display.paths(link)

    def complain(self, error: BaseException) -> None:
        """Print one line about what went wrong."""
        self._complain(error)

    def _complain(self, error: BaseException) -> None:
        if isinstance(error, OutputClosed):
            return
        if os.environ.get("MRC_LOG_LEVEL", "").upper() == "DEBUG":
            traceback.print_exception(error)
        text = str(error) or type(error).__name__
        if not isinstance(error, MrcError):
            # Not one of ours: without its type the text of a KeyError says nothing.
            text = f"{type(error).__name__}: {text}"
        text = printable(text, LINE_CHARACTERS_MAX)
        if exit_code(error, established=self.established) is ExitCode.LOST:
            text += self.lost_hint
        self.display.error(f"{self.command}: {text}")

    def _print_document(self, error: BaseException | None, code: ExitCode) -> None:
        what = failure(error, code)
        if what is None and self.reports and code is not ExitCode.DONE:
            what = self.reports[-1].error
        print_document(document(self.command, self._start, self.reports, what))


def print_document(body: dict[str, Any]) -> None:
    """Print one JSON document to standard output; a reader that left is not an error.

    Raises:
        OSError: it is closed or full.
    """
    if sys.stdout is None:
        raise OSError(errno.EBADF, "is closed")
    try:
        sys.stdout.write(json.dumps(body, allow_nan=False, indent=1) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()


def silence_stdout() -> None:
    """Let the interpreter's last flush of a broken standard output go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def fill_standard_descriptors() -> None:
    """Put /dev/null where standard input, output or error are closed.

    Otherwise the next socket or file would get that number, and be written to as if it were the
    missing one. `sys.stdin` and `sys.stdout` stay None, which tells that they are missing.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR_FD:
        pass
    os.close(fd)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process


def leave(code: ExitCode) -> NoReturn:
    """End the process with a code, without waiting for threads that wait for a disk or a pipe."""
    with suppress(OSError):
        if sys.stdout is not None:
            sys.stdout.flush()
    os._exit(code)


def package_version() -> str:
    """The installed version, or unknown when it runs from a tree that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def run_loop(main: Coroutine[Any, Any, ExitCode]) -> ExitCode:
    """Run a coroutine on uvloop where it can be imported, on asyncio where not."""
    try:
        import uvloop  # noqa: PLC0415 - optional: everything works without it
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def run_click(command: click.Command, name: str) -> ExitCode:
    """Let click read the arguments and run the command; usage errors keep --json's promise."""
    try:
        code = command.main(prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        if "--json" in sys.argv:
            refusal = ConfigError(error.format_message())
            with suppress(OSError):
                print_document(document(name, {}, [], failure(refusal, ExitCode.USAGE)))
        return ExitCode.USAGE
    except click.Abort:
        return ExitCode.INTERRUPTED
    return ExitCode(code or 0)
