"""Where the commands begin: imports nothing but what it takes to end well.

All that a command needs takes a moment to import. Ctrl-C in that moment is answered here, until the
event loop of `session` takes the signals over.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from types import FrameType

_DOCUMENT = """\
{{"schema": "{command}/1", "start": {{}}, "end": null, "error": {{"kind": "Interrupted",
 "message": "stopped by {name}", "errno": null, "exit_code": {code}}}{more}}}
"""
"""What `report.document` would make of it."""


def send() -> None:
    """Run mrc-send and exit with its code."""
    _run("mrc-send", "mrc.cli.send", more="")


def recv() -> None:
    """Run mrc-recv and exit with its code."""
    _run("mrc-recv", "mrc.cli.recv", more=', "transfers": []')


def perf() -> None:
    """Run mrc-perf and exit with its code."""
    _run("mrc-perf", "mrc.perf.command", more=', "intervals": []')


def _run(command: str, module: str, *, more: str) -> None:
    def leave(number: int, _: FrameType | None) -> None:
        name, code = signal.Signals(number).name, 128 + number
        with suppress(OSError):
            if {"--json", "-J"} & {*sys.argv}:
                text = _DOCUMENT.format(command=command, name=name, code=code, more=more)
                os.write(1, text.encode())
            os.write(2, f"{command}: stopped by {name}\n".encode())
        os._exit(code)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)
    import_module(module).main()
