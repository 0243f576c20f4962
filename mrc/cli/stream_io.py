"""Where a stream comes from and where it goes: pipes, terminals, files, the output folder.

All of it blocks; run it in a worker thread.
"""

from __future__ import annotations

import errno
import os
import select
from typing import Protocol

from mrc.cli.failures import FileTrouble, OutputClosed, file_trouble
from mrc.cli.manifest import Entry, Kind
from mrc.cli.part import Part
from mrc.cli.source import SourceFile
from mrc.cli.store import Folder


class Input(Protocol):
    """Where a stream comes from."""

    name: str

    def read(self, buffer: memoryview) -> int:
        """Read up to a buffer full, at least one byte unless it is at its end. May block."""

    def close(self) -> None:
        """Let go of it."""


class DescriptorInput:
    """A pipe, a terminal or anything else that can be read from front to back."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self.name = name
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def read(self, buffer: memoryview) -> int:
        """Wait for bytes, then take what is there: what is at hand goes out without delay.

        Raises:
            FileTrouble: the kernel refused.
        """
        filled = 0
        try:
            while filled < buffer.nbytes and (not filled or self._poll.poll(0)):
                count = os.readv(self._fd, [buffer[filled:]])
                if not count:
                    break
                filled += count
        except OSError as error:
            raise file_trouble(error, self.name) from error
        return filled

    def close(self) -> None:
        """Nothing: the descriptor is the process's own."""


class FileInput:
    """A file that must stay the same while it is read."""

    def __init__(self, path: str, entry: Entry) -> None:
        self.name = path
        self._source = SourceFile(path, entry)
        self._offset = 0

    def read(self, buffer: memoryview) -> int:
        """Read the next bytes.

        Raises:
            FileTrouble: the file changed, or cannot be read.
        """
        wanted = min(buffer.nbytes, self._source.entry.size - self._offset)
        if wanted:
            self._source.read(buffer[:wanted], self._offset)
        else:
            self._source.check_unchanged()
        self._offset += wanted
        return wanted

    def close(self) -> None:
        """Close the file."""
        self._source.close()


class Output(Protocol):
    """Where a stream goes."""

    name: str

    def write(self, data: memoryview) -> None:
        """Write all of it. May block."""

    def finish(self) -> None:
        """All is there and verified."""

    def close(self) -> None:
        """Let go; what is not finished is gone."""


class DescriptorOutput:
    """Standard output, or another descriptor of this process."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self.name = name

    def write(self, data: memoryview) -> None:
        """Write all of it.

        Raises:
            OutputClosed: the reader has gone.
            FileTrouble: the kernel refused for another reason.
        """
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except BrokenPipeError:
            raise OutputClosed("the reader of its output went away") from None
        except OSError as error:
            raise file_trouble(error, self.name) from error

    def finish(self) -> None:
        """Nothing: it has been written."""

    def close(self) -> None:
        """Nothing: the descriptor is the process's own."""


class FolderOutput:
    """A file in the output folder, of a length yet unknown.

    Raises:
        FileTrouble: it cannot be made, or its name is taken.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        entry = Entry(name, Kind.FILE, 0, 0o666 & ~_umask(), 0)
        self._folder = folder
        if not folder.overwrite and os.path.lexists(folder.shown(entry.parts)):
            folder.forbid_replacing(entry)
        self._part: Part | None = Part(folder, entry)
        self._part.truncate()
        self.name = self._part.shown

    def write(self, data: memoryview) -> None:
        """Append.

        Raises:
            FileTrouble: the disk is full, or the kernel refused for another reason.
        """
        if self._part is None:
            raise FileTrouble(errno.EBADF, "is closed", self.name)
        self._part.write(data)

    def finish(self) -> None:
        """Give the file its name.

        Raises:
            FileTrouble: the name is taken.
        """
        if self._part is not None:
            self._part.commit(keep_time=False)
            self._folder.finish([])
            self._part.close()
            self._part = None

    def close(self) -> None:
        """Remove what is not finished."""
        if self._part is not None:
            self._part.discard()
            self._part.close()
            self._part = None


def _umask() -> int:
    """Read the process's umask, which can only be read by setting it.

    For a moment it is zero; everything this package creates has explicit, narrow modes.
    """
    mask = os.umask(0)
    os.umask(mask)
    return mask
