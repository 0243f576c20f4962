"""How a command that holds a lab ends when it is told to: it removes the lab on the way out."""

from __future__ import annotations

import os
import signal
from types import FrameType

SIGNALLED = 128
"""And the number of the signal: the exit status that a shell would give."""


class Ending:
    """Makes SIGTERM do as Ctrl-C does: raise KeyboardInterrupt, or cancel what asyncio runs.

    Attributes:
        status: the exit status that is right once that has happened.
    """

    def __init__(self) -> None:
        self.status = SIGNALLED + signal.SIGINT
        signal.signal(signal.SIGTERM, self._leave)
        # pyroute2 forks children of a moment: one that is ended shall not clean up as if it were us
        os.register_at_fork(after_in_child=_just_end_when_told)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        self.status = SIGNALLED + number
        signal.signal(number, signal.SIG_IGN)
        interrupt = signal.getsignal(signal.SIGINT)
        # A shell's background job ignores SIGINT; asyncio has a handler that cancels what it runs.
        (interrupt if callable(interrupt) else signal.default_int_handler)(signal.SIGINT, frame)


def _just_end_when_told() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
