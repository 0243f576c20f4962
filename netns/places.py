"""What a lab may be called, where it keeps things, and who may change it."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from pathlib import Path
from typing import Self, TextIO

from netns.errors import LabError

STATES = Path("/run/mrc-lab")
"""What is up, for other processes."""
FILES = Path("/var/cache/mrc-lab")
"""Large files: of what runs in a lab, and the compiled switch."""
RUN = "run"
"""Scenarios run in labs of their own, called after the one named with this behind it."""
NAME = re.compile(rf"[a-z0-9]{{1,13}}({RUN})?")


def checked_name(name: str) -> str:
    """Return the name of a lab: it becomes a part of names and patterns that root removes.

    Raises:
        LabError: it is none.
    """
    if not NAME.fullmatch(name):
        raise LabError(f"{name!r} is no name for a lab: 1 to 13 lower-case letters and digits")
    return name


def free_name(name: str) -> str:
    """Return a name that people may give a lab of theirs.

    Raises:
        LabError: it is none, or belongs to the lab of a scenario.
    """
    if checked_name(name).endswith(RUN):
        raise LabError(f"{name}: labs of scenarios end in {RUN!r}; choose another --name")
    return name


def prefix(name: str) -> str:
    """Return what the names of everything of a lab begin with."""
    return f"mrclab-{checked_name(name)}-"


def own_folder(path: Path, mode: int) -> Path:
    """Make a folder unless it is there, and return it if nobody else can put things into it.

    Raises:
        LabError: others can.
        OSError: it cannot be made.
    """
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise LabError(
            f"{path} is not a folder that only user {os.geteuid()} writes"
            f" (owner {found.st_uid}, mode {stat.filemode(found.st_mode)}): remove it"
        )
    return path


class Claim:
    """The right to make, change and remove a lab: one process has it, and loses it when it ends.

    Args:
        name: of the lab.
    """

    def __init__(self, name: str) -> None:
        self.name = checked_name(name)
        self._file: TextIO | None = None

    def take(self) -> None:
        """Take it; twice is once.

        Raises:
            LabError: another process has it.
        """
        while self._file is None:
            path = own_folder(STATES, 0o755) / f"{self.name}.lock"
            file = path.open("a+", encoding="ascii")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read() or "another"
                file.close()
                raise LabError(
                    f"lab {self.name} is in use by process {holder}:"
                    " end that process first, or choose another --name"
                ) from None
            # Whoever had it before may have removed the file after we opened it.
            if os.fstat(file.fileno()).st_nlink:
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                self._file = file
            else:
                file.close()

    def release(self) -> None:
        """Let others have it. Twice is once."""
        if self._file is not None:
            Path(self._file.name).unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
