"""What can go wrong in a file transfer, which exit code that is, and what the peer is told.

The exceptions here add the file side to `mrc.errors`; nothing in this module acts on them.
"""

from __future__ import annotations

import errno
import signal
from enum import IntEnum, StrEnum

from mrc.errors import (
    ConfigError,
    LocalError,
    MrcError,
    PeerError,
    PeerProtocolError,
    PeerVersionError,
    TransportError,
)
from mrc.text import printable


class ExitCode(IntEnum):
    """How a command ends, the same with and without --json."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_REACHED = 3
    LOST = 4
    INTEGRITY = 5
    LOCAL_FILE = 6
    PROTOCOL = 7
    INTERRUPTED = 130
    TERMINATED = 143


class AbortCode(StrEnum):
    """Why one side ends a transfer, in the words that travel."""

    FILES = "files"
    """Its disk or its files: the text names the file and what the kernel said."""
    INTEGRITY = "integrity"
    INTERRUPTED = "interrupted"
    """Its user, or its system, stopped it; the transfer can be resumed."""
    OUTPUT_CLOSED = "output-closed"
    PROTOCOL = "protocol"
    REFUSED = "refused"
    """It does not want this transfer: the text says why."""
    INTERNAL = "internal"


class FileTrouble(LocalError):
    """A local file or folder refused: `errno`, `strerror`, `filename` as the kernel gave them."""

    def __str__(self) -> str:
        """Name the file first, then what the kernel said."""
        return f"{printable(str(self.filename))}: {self.strerror}"


class IntegrityError(MrcError):
    """The two ends have different digests of the same file: what arrived is not what was sent."""


class PeerStopped(PeerError):
    """The peer ended the transfer and said why.

    Attributes:
        code: the peer's reason as a word.
    """

    def __init__(self, message: str, *, code: AbortCode, peer: str = "") -> None:
        super().__init__(message, peer=peer)
        self.code = code


class PeerSilent(TransportError, TimeoutError):
    """Nothing at all came from the peer for the whole time-out."""


class OutputClosed(MrcError):
    """Whoever read our standard output went away; nothing is wrong that needs words."""


class Interrupted(MrcError):
    """A signal asked this command to end.

    Attributes:
        signal_number: SIGINT or SIGTERM.
    """

    def __init__(self, signal_number: signal.Signals) -> None:
        super().__init__(f"stopped by {signal_number.name}")
        self.signal_number = signal_number


def file_trouble(error: OSError, name: str) -> FileTrouble:
    """Turn an OSError about the file called `name` into ours; one of ours stays what it is."""
    if isinstance(error, FileTrouble):
        return error
    number = error.errno or errno.EIO
    return FileTrouble(number, error.strerror or str(error), name)


def exit_code(error: BaseException | None, *, established: bool) -> ExitCode:
    """Choose the exit code; `established` tells whether the peer had been reached."""
    if error is None:
        return ExitCode.DONE
    if isinstance(error, Interrupted):
        terminated = error.signal_number is signal.SIGTERM
        return ExitCode.TERMINATED if terminated else ExitCode.INTERRUPTED
    if isinstance(error, PeerStopped):
        return _STOPPED_EXIT[error.code]
    for family, code in _EXIT:
        if isinstance(error, family):
            return code
    if isinstance(error, PeerError | TransportError):
        return ExitCode.LOST if established else ExitCode.NOT_REACHED
    if isinstance(error, LocalError):
        # The kernel refused a socket: before the start that is a matter of set-up.
        return ExitCode.LOST if established else ExitCode.USAGE
    return ExitCode.FAILED


_EXIT: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (ConfigError, ExitCode.USAGE),
    (FileTrouble, ExitCode.LOCAL_FILE),
    (IntegrityError, ExitCode.INTEGRITY),
    (PeerVersionError, ExitCode.PROTOCOL),
    (PeerProtocolError, ExitCode.PROTOCOL),
)

_STOPPED_EXIT = {
    AbortCode.FILES: ExitCode.FAILED,
    AbortCode.INTEGRITY: ExitCode.INTEGRITY,
    AbortCode.INTERRUPTED: ExitCode.LOST,
    AbortCode.OUTPUT_CLOSED: ExitCode.FAILED,
    AbortCode.PROTOCOL: ExitCode.PROTOCOL,
    AbortCode.REFUSED: ExitCode.FAILED,
    AbortCode.INTERNAL: ExitCode.FAILED,
}


def abort_code(error: BaseException) -> AbortCode:
    """Choose the word the peer is told when this side ends with `error`."""
    for family, code in _ABORT:
        if isinstance(error, family):
            return code
    return AbortCode.INTERNAL


_ABORT: tuple[tuple[type[BaseException], AbortCode], ...] = (
    (FileTrouble, AbortCode.FILES),
    (IntegrityError, AbortCode.INTEGRITY),
    (Interrupted, AbortCode.INTERRUPTED),
    (OutputClosed, AbortCode.OUTPUT_CLOSED),
    (ConfigError, AbortCode.REFUSED),
    (PeerVersionError, AbortCode.PROTOCOL),
    (PeerProtocolError, AbortCode.PROTOCOL),
)
