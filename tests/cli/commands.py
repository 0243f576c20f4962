"""Starting the two commands as processes, and waiting for what they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

DEADLINE_S = 40.0
"""For anything in these tests; on two busy cores a start alone can take seconds."""

REPOSITORY = Path(__file__).parents[2]


def command(name: str, *arguments: object) -> list[str]:
    """The words that start a command of this tree."""
    own = name.removeprefix("mrc-")
    module, main = ("mrc.cli.entry", own) if own != name else (name, "main")
    code = f"from {module} import {main}; {main}()"
    return [sys.executable, "-c", code, *map(str, arguments)]


def environment() -> dict[str, str]:
    """The environment of the commands: this tree comes first."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "100"}


def eventually(predicate: Callable[[], bool], what: str) -> None:
    """Wait until something is so.

    Raises:
        AssertionError: it is not, for long.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")
        time.sleep(0.002)


class Ended:
    """A command that has ended."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.out = out
        self.err = err.decode()

    @property
    def document(self) -> dict[str, Any]:
        """Its JSON document, which must be all there is on standard output."""
        value: dict[str, Any] = json.loads(self.out, parse_constant=_refuse_constant)
        return value


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} in JSON")


def send(*arguments: object, stdin: bytes | None = None, **options: Any) -> Ended:
    """Run mrc-send to its end."""
    return running("mrc-send", *arguments, stdin=stdin, **options).end(stdin)


def running(name: str, *arguments: object, stdin: bytes | None = None, **options: Any) -> Running:
    """Start a command."""
    return Running(name, *arguments, stdin=stdin is not None, **options)


class Running:
    """A command that runs; leaving the block kills it."""

    def __init__(self, name: str, *arguments: object, stdin: bool = False, **options: Any) -> None:
        self.process = subprocess.Popen(
            command(name, *arguments),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            env=environment(),
            **options,
        )
        self._err = b""
        self.url_seen = ""

    def url(self) -> str:
        """Wait for the line with the URL, on standard output or, with --json, on the other."""
        stream = self.process.stdout
        if stream is None or "--json" in self.process.args or "-" in self.process.args:  # type: ignore[operator]
            stream = self.process.stderr
        assert stream is not None
        while line := stream.readline():
            if line.startswith(b"mrc://"):
                self.url_seen = line.decode().strip()
                return self.url_seen
            self._err += line
        raise AssertionError(f"no URL: {self.end().err}")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self, stdin: bytes | None = None) -> Ended:
        """Wait for its end."""
        try:
            out, err = self.process.communicate(stdin, timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"did not end; it said {err.decode()!r}") from None
        return Ended(self.process.returncode, out, self._err + err)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def receiver(out: object, *arguments: object, **options: Any) -> Running:
    """Start mrc-recv on a free port of the loopback."""
    return running("mrc-recv", "--listen", "127.0.0.1:0", "--out", out, *arguments, **options)
