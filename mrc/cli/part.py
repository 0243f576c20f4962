"""Unfinished files: written under a name of their own beside the final one, and renamed when whole.

`Part` is such a file; `MappedPart` is one of known size, mapped into memory so that remote writes
land in it, with a journal so that an interrupted transfer goes on where it stopped. Knows nothing
of the network. All of it blocks; run it in a worker thread.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat

from mrc.cli.digest import Advance, Digest, hash_prefix, matching_blocks
from mrc.cli.failures import FileTrouble, file_trouble
from mrc.cli.journal import Journal
from mrc.cli.manifest import Entry
from mrc.cli.names import journal_name, part_name
from mrc.cli.store import Folder
from mrc.cli.syscalls import make_writable, start_writeback

_OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_PRIVATE = 0o600
_OPEN_ATTEMPTS = 4
"""Each attempt after the first means that another process renamed or removed the file just then."""

_NO_FALLOCATE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_ZEROS = memoryview(bytes(1 << 20))

_PIECES_MAX = 64
"""Zeros written by one call: 64 MiB."""

AHEAD_BYTES = 80 << 20
"""How far beyond what has been hashed a sender may write: enough to keep it going, and what this
side's memory is bounded by."""


class Part:
    """One unfinished file, locked so that no other transfer writes the same one.

    Args:
        folder: the output folder.
        entry: the file it will be.

    Raises:
        FileTrouble: it cannot be made, is someone else's, or another transfer has it.
    """

    def __init__(self, folder: Folder, entry: Entry) -> None:
        self.folder = folder
        self.entry = entry
        self.shown = folder.shown(entry.parts)
        self.name = entry.parts[-1]
        self._temporary = part_name(self.name)
        self.parent_fd = folder.open_folder(entry.parts[:-1])
        self.fd = -1
        try:
            self.fd = _open_own(self._temporary, self.parent_fd, lock=True)
        except OSError as error:
            self.close()
            raise file_trouble(error, self.shown) from error

    def write(self, data: memoryview) -> None:
        """Append to the file.

        Raises:
            FileTrouble: the disk is full, or the kernel refused for another reason.
        """
        try:
            while data:
                data = data[os.write(self.fd, data) :]
        except OSError as error:
            raise file_trouble(error, self.shown) from error

    def truncate(self) -> None:
        """Forget whatever an earlier transfer left in it."""
        os.ftruncate(self.fd, 0)

    def commit(self, *, keep_time: bool = True) -> None:
        """Make the file durable, give it its mode and time, and then its name.

        Args:
            keep_time: set the entry's time of modification; a stream has none.

        Raises:
            FileTrouble: the kernel refused, or the name is taken.
        """
        try:
            os.fchmod(self.fd, self.entry.mode)
            if keep_time:
                os.utime(self.fd, ns=(self.entry.mtime_ns, self.entry.mtime_ns))
            if self.folder.flush:
                os.fsync(self.fd)
            self.folder.place(self._temporary, self.name, self.parent_fd, self.entry.parts)
        except OSError as error:
            raise file_trouble(error, self.shown) from error

    def discard(self) -> None:
        """Remove the file: nothing in it is worth keeping."""
        remove_quietly(self._temporary, self.parent_fd)

    def close(self) -> None:
        """Close the file and let go of its lock; again is harmless."""
        if self.fd >= 0:
            # A mapping keeps a descriptor of its own, and with it the lock.
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        for fd in (self.fd, self.parent_fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self.parent_fd = -1


class MappedPart:
    """An unfinished file of known size, filled block by block through its mapping.

    Space for all of it is taken at once, so that a full disk is an error here and not a signal
    when a packet is placed. Blocks are filled with zeros shortly before the peer may write them, so
    that the making of pages and the waits of a slow disk fall on a worker thread and not on the
    event loop that places packets. Blocks count as arrived in order only.

    Args:
        folder: the output folder.
        entry: the file it will be.
        block_bytes: the length of all blocks but the last, a multiple of the page size.

    Raises:
        FileTrouble: it cannot be made or there is no space for it.
    """

    def __init__(self, folder: Folder, entry: Entry, block_bytes: int) -> None:
        self.entry = entry
        self.block_bytes = block_bytes
        self.blocks = -(-entry.size // block_bytes)
        self.blocks_done = 0
        self.blocks_ready = 0
        self._blocks_ahead = max(AHEAD_BYTES // block_bytes, 2)
        self.digest = Digest()
        self.map: mmap.mmap | None = None
        self._journal: Journal | None = None
        self._part = Part(folder, entry)
        try:
            self.claimed = self._prepare()
        except OSError as error:
            if self.blocks > 1 and self._journal is None:
                # It could not be opened, so nobody knows what can be resumed: all of it stays.
                self.close()
            else:
                self.abandon()
            raise file_trouble(error, self._part.shown) from error

    def _prepare(self) -> list[bytes]:
        """Open the journal, take the space, map it; return the digests the journal claims."""
        claimed: list[bytes] = []
        if self.blocks > 1:
            name = journal_name(self._part.name)
            fd = _open_own(name, self._part.parent_fd)
            self._journal = Journal(fd, self.entry, self.block_bytes)
            if os.fstat(self._part.fd).st_size == self.entry.size:
                claimed = self._journal.load()
                self.blocks_done = len(claimed)
        if not claimed:
            self._part.truncate()
        if self.entry.size:
            _take_space(self._part.fd, self.entry.size)
            self.map = mmap.mmap(self._part.fd, self.entry.size)
        if not claimed:
            self._start_journal([])
            self.make_ready()
        return claimed

    def verify(self, advance: Advance) -> None:
        """Hash the blocks the journal claims and keep those that are what it says.

        Raises:
            FileTrouble: reading failed.
        """
        part = self._part
        self.blocks_done, self.digest = matching_blocks(
            part.fd, self.block_bytes, self.entry.size, self.claimed, part.shown, advance
        )
        self._start_journal(self.claimed[: self.blocks_done])
        self.blocks_ready = self.blocks_done

    def start_over(self) -> None:
        """Forget every block: the sender has another file than the one begun here."""
        self.blocks_done = self.blocks_ready = 0
        self.digest = Digest()
        self._start_journal([])

    def make_ready(self) -> int:
        """Prepare the next blocks to be written to, and return the number up to which they are.

        Raises:
            FileTrouble: the disk is full, or the kernel refused for another reason.
        """
        target = min(self.blocks_done + self._blocks_ahead, self.blocks)
        try:
            while self.blocks_ready < target:
                span = self.block_span(self.blocks_ready)
                if self.map is None or not make_writable(self.map, *span):
                    _write_zeros(self._part.fd, *span)
                self.blocks_ready += 1
        except OSError as error:
            raise file_trouble(error, self._part.shown) from error
        return self.blocks_ready

    def _start_journal(self, digests: list[bytes]) -> None:
        if self._journal is not None:
            self._journal.start(digests)

    def block_span(self, index: int) -> tuple[int, int]:
        """The offset and length in bytes of one block."""
        offset = index * self.block_bytes
        return offset, min(self.block_bytes, self.entry.size - offset)

    def absorb(self) -> None:
        """Take the next block as arrived: hash it, note it, let its memory go.

        Raises:
            FileTrouble: the journal cannot be written.
        """
        offset, length_bytes = self.block_span(self.blocks_done)
        if self.map is None:
            raise FileTrouble(errno.EBADF, "is closed", self._part.shown)
        with memoryview(self.map) as whole, whole[offset : offset + length_bytes] as block:
            self.digest.update(block)
        self.blocks_done += 1
        if self._journal is None:
            return
        try:
            self._journal.append(self.digest.digest())
        except OSError as error:
            raise file_trouble(error, self._part.shown) from error
        start_writeback(self._part.fd, offset, length_bytes)
        # The pages stay in the kernel's cache; only this process no longer counts them as its own.
        self.map.madvise(mmap.MADV_DONTNEED, offset, length_bytes)

    def commit(self) -> None:
        """Give the whole file its final name and remove the journal.

        Raises:
            FileTrouble: the kernel refused, or the name is taken.
        """
        self._unmap()
        self._part.commit()
        if self._journal is not None:
            remove_quietly(journal_name(self._part.name), self._part.parent_fd)
        self.close()

    def abandon(self) -> None:
        """Stop here. What can be resumed stays, a beginning without a single block goes."""
        if self.blocks_done == 0 or self.blocks == 1:
            self._part.discard()
            remove_quietly(journal_name(self._part.name), self._part.parent_fd)
        self.close()

    def discard(self) -> None:
        """Remove the file and its journal: what is in them is wrong."""
        self.blocks_done = 0
        self.abandon()

    def close(self) -> None:
        """Let go of file, mapping and journal; again is harmless."""
        self._unmap()
        if self._journal is not None:
            self._journal.close()
        self._part.close()

    def _unmap(self) -> None:
        if self.map is None:
            return
        try:
            self.map.close()
        except BufferError:
            # Someone still holds a view of it; the mapping goes when the last view does.
            pass
        finally:
            self.map = None


def _open_own(name: str, folder_fd: int, *, lock: bool = False) -> int:
    """Open a file of ours beside a final one, or make it; never through what only has its name.

    Raises:
        OSError: it is no file or someone else's, or another transfer has locked it.
    """
    for _ in range(_OPEN_ATTEMPTS):
        fd = os.open(name, _OPEN_FLAGS, _PRIVATE, dir_fd=folder_fd)
        try:
            if lock:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_own(fd, name, folder_fd):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise OSError(errno.EBUSY, "another transfer is writing this file") from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise OSError(errno.EBUSY, "another transfer is writing this file")


def _is_own(fd: int, name: str, folder_fd: int) -> bool:
    """Look at what was opened; False when its name has meanwhile become another file's."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, f"{name} beside it is not ours")
    if status.st_nlink > 1:
        # The other name is a finished file, or a trap. Either way it must not be written to.
        os.unlink(name, dir_fd=folder_fd)
        return False
    return status.st_nlink == 1


def hash_existing(folder: Folder, entry: Entry, advance: Advance) -> Digest:
    """Digest the file that stands under an entry's final name.

    Raises:
        FileTrouble: it cannot be read, or is not of the entry's size.
    """
    with folder.parent_of(entry) as (parent_fd, name):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(name, flags, dir_fd=parent_fd)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "is no file any more")
            return hash_prefix(fd, entry.size, folder.shown(entry.parts), advance)
        finally:
            os.close(fd)


def _take_space(fd: int, size: int) -> None:
    """Make sure that every byte of the file has its place on the disk."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in _NO_FALLOCATE:
            raise
        _write_zeros(fd, os.fstat(fd).st_size, size - os.fstat(fd).st_size)


def _write_zeros(fd: int, offset: int, length_bytes: int) -> None:
    """Write zeros to a range of a file."""
    end = offset + length_bytes
    while offset < end:
        pieces = min(-(-(end - offset) // len(_ZEROS)), _PIECES_MAX)
        offset += os.pwritev(
            fd, [*[_ZEROS] * (pieces - 1), _last_piece(end - offset, pieces)], offset
        )


def _last_piece(length_bytes: int, pieces: int) -> memoryview:
    """The last of so many pieces of zeros that must not go beyond the end."""
    return _ZEROS[: length_bytes - (pieces - 1) * len(_ZEROS)]


def remove_quietly(name: str, folder_fd: int) -> None:
    """Remove a file of ours that may be gone already; nothing depends on its going."""
    try:
        os.unlink(name, dir_fd=folder_fd)
    except OSError:
        return
