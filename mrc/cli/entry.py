"""Where the commands begin: imports nothing but what it takes to end well.

All that a command needs takes a moment to import. Ctrl-C in that moment is answered here, until the
event loop of `session` takes the signals over.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from importlib import import_module
from types import FrameType
from typing import NamedTuple

_ERROR = """\
{{"kind": "Interrupted", "message": "stopped by {name}", "errno": null, "exit_code": {code}}}"""
_DOCUMENT = """\
{{"schema": "{command}/1", "start": {{}}, "end": null, "error": {error}{more}}}
"""
"""What `report.document` would make of it."""
_EVENT = """\
{{"event": "error", "data": {error}}}
"""


class Output(Enum):
    """What goes to standard output."""

    WORDS = "for people"
    DOCUMENT = "one JSON document at the end"
    STREAM = "JSON, an object a line"


class Command(NamedTuple):
    """What has to be known of a command before it is imported.

    Attributes:
        name: as people type it.
        module: that has its `main`.
        more: further members of its empty document.
        json: the words that ask for a document.
        stream: the word that asks for a stream.
    """

    name: str
    module: str
    more: str = ""
    json: re.Pattern[str] = re.compile("--json")
    stream: str | None = None

    def output(self, words: Sequence[str]) -> Output:
        """Tell what is asked for, whether all of the words can be understood or not."""
        options = list(words[: words.index("--")] if "--" in words else words)
        if self.stream in options:
            return Output.STREAM
        return Output.DOCUMENT if any(map(self.json.fullmatch, options)) else Output.WORDS


SEND = Command("mrc-send", "mrc.cli.send")
RECV = Command("mrc-recv", "mrc.cli.recv", ', "transfers": []')
PERF = Command(
    *("mrc-perf", "mrc.perf.command", ', "intervals": []'),
    # Behind flags without a value, before whatever comes.
    json=re.compile("--json|-b*J.*"),
    stream="--json-stream",
)


def send() -> None:
    """Run mrc-send and exit with its code."""
    _run(SEND)


def recv() -> None:
    """Run mrc-recv and exit with its code."""
    _run(RECV)


def perf() -> None:
    """Run mrc-perf and exit with its code."""
    _run(PERF)


def _run(command: Command) -> None:
    def leave(number: int, _: FrameType | None) -> None:
        name, code = signal.Signals(number).name, 128 + number
        error = _ERROR.format(name=name, code=code)
        output = command.output(sys.argv[1:])
        with suppress(OSError):
            if output is Output.DOCUMENT:
                text = _DOCUMENT.format(command=command.name, error=error, more=command.more)
                os.write(1, text.encode())
            elif output is Output.STREAM:
                os.write(1, _EVENT.format(error=error).encode())
        with suppress(OSError):
            os.write(2, f"{command.name}: stopped by {name}\n".encode())
        os._exit(code)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)
    import_module(command.module).main()
