"""The output folder: the only place where a transfer writes.

Every path is walked from the folder's own descriptor, one name at a time, and never through a
symbolic link, so that neither what a peer sends nor what stands in the folder leads outside. Knows
nothing of the network. All of it blocks; run it in a worker thread.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import NoReturn

from mrc.cli.failures import FileTrouble, file_trouble
from mrc.cli.manifest import Entry, Kind
from mrc.cli.names import PART_SUFFIX, part_name
from mrc.cli.syscalls import rename_new
from mrc.units import format_bytes

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_ACCESS = 0o700
_CONFLICTS_NAMED_MAX = 3
_KIND_WORD = {Kind.FILE: "file", Kind.FOLDER: "folder", Kind.LINK: "link"}


class Standing(Enum):
    """What stands under the final name of a file before it is received."""

    ABSENT = auto()
    ALIKE = auto()
    """A file of the same size and time: perhaps the same file, which its digest will tell."""
    OTHER = auto()


class Folder:
    """The output folder, opened for one transfer.

    Args:
        path: made when it is missing, if the folder above it exists.
        overwrite: replace files and links that exist.
        flush: make files and names durable before they are reported as stored.

    Raises:
        FileTrouble: it cannot be made, is no folder, or cannot be written to.
    """

    def __init__(self, path: str, *, overwrite: bool = False, flush: bool = True) -> None:
        self.path = path
        self.overwrite = overwrite
        self.flush = flush
        self._placed: set[tuple[int, int]] = set()
        self._unsynced: set[tuple[str, ...]] = set()
        self._made: set[str] = set()
        with _naming(path):
            if not os.path.isdir(path):
                os.mkdir(path)
            if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
                # access() keeps its errno to itself; the folder is either read-only or not ours.
                number = errno.EROFS if _is_read_only(path) else errno.EACCES
                raise OSError(number, os.strerror(number))
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the folder; again is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def open_folder(self, parts: tuple[str, ...]) -> int:
        """Open a folder below this one, name by name; the caller closes the descriptor.

        Raises:
            FileTrouble: one of the names is missing, is a link, or is no folder.
        """
        fd = os.dup(self._fd)
        for index, part in enumerate(parts):
            try:
                below = os.open(part, _FOLDER_FLAGS, dir_fd=fd)
            except OSError as error:
                raise self._not_a_folder(error, parts[: index + 1]) from error
            finally:
                os.close(fd)
            fd = below
        return fd

    def _not_a_folder(self, error: OSError, parts: tuple[str, ...]) -> FileTrouble:
        name = self.shown(parts)
        if error.errno in {errno.ENOTDIR, errno.ELOOP}:
            return FileTrouble(errno.ENOTDIR, "is not a folder (links are not followed)", name)
        return file_trouble(error, name)

    @contextmanager
    def parent_of(self, entry: Entry) -> Iterator[tuple[int, str]]:
        """Lend the descriptor of the folder an entry is in, and its last name."""
        parts = entry.parts
        fd = self.open_folder(parts[:-1])
        try:
            with _naming(self.shown(parts)):
                yield fd, parts[-1]
        finally:
            os.close(fd)

    def shown(self, parts: tuple[str, ...]) -> str:
        """Name something below this folder for a person."""
        return os.path.join(self.path, *parts)

    # ---- before anything is written ----------------------------------------------------------

    def survey(self, entries: Iterable[Entry]) -> list[Standing]:
        """Look at everything in the way of a transfer, before the first byte of it.

        Returns:
            For each entry what stands under its name.

        Raises:
            FileTrouble: names are taken and must not or cannot be replaced, or there is too little
                space.
        """
        found: list[Standing] = []
        conflicts: list[str] = []
        needed_bytes = needed_names = 0
        missing: set[str] = set()
        for entry in entries:
            standing = self._standing(entry, missing)
            found.append(standing)
            needed_names += standing is Standing.ABSENT
            if standing is Standing.OTHER and not self.overwrite:
                conflicts.append(self.shown(entry.parts))
            elif entry.kind is Kind.FILE and standing is not Standing.ALIKE:
                needed_bytes += self._missing_bytes(entry, missing)
        if conflicts:
            raise _taken(conflicts)
        self._check_space(needed_bytes, needed_names)
        return found

    def _standing(self, entry: Entry, missing: set[str]) -> Standing:
        """Look at what stands under one name; `missing` collects folders that are not there yet."""
        above = entry.path.rpartition("/")[0]
        if above in missing:
            if entry.kind is Kind.FOLDER:
                missing.add(entry.path)
            return Standing.ABSENT
        with self.parent_of(entry) as (fd, name):
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                if entry.kind is Kind.FOLDER:
                    missing.add(entry.path)
                return Standing.ABSENT
            if stat.S_ISDIR(status.st_mode) != (entry.kind is Kind.FOLDER):
                raise OSError(errno.EEXIST, f"is in the way of a {_KIND_WORD[entry.kind]}")
            return Standing.ALIKE if _alike(entry, status, name, fd) else Standing.OTHER

    def _missing_bytes(self, entry: Entry, missing: set[str]) -> int:
        """How much of a file has no space on the disk yet; an unfinished file has its own."""
        if entry.path.rpartition("/")[0] in missing:
            return entry.size
        with self.parent_of(entry) as (fd, name):
            try:
                status = os.stat(part_name(name), dir_fd=fd, follow_symlinks=False)
            except OSError:
                return entry.size
            return max(entry.size - 512 * status.st_blocks, 0)

    def _check_space(self, needed_bytes: int, needed_names: int) -> None:
        """Make sure that so many bytes, and so many new files, folders and links, would fit now."""
        with _naming(self.path):
            status = os.fstatvfs(self._fd)
        free_bytes = status.f_bavail * status.f_frsize
        if needed_bytes > free_bytes:
            self._refuse_space(format_bytes(needed_bytes), format_bytes(free_bytes))
        # A disk that makes inodes as they are needed says that it has none at all.
        if status.f_files and needed_names > status.f_favail:
            self._refuse_space(f"{needed_names} files", str(status.f_favail))

    def _refuse_space(self, needed: str, free: str) -> NoReturn:
        full = os.strerror(errno.ENOSPC)
        raise FileTrouble(errno.ENOSPC, f"{full}: {needed} needed, {free} free", self.path)

    def forbid_replacing(self, entry: Entry) -> None:
        """Refuse to replace what stands under a name, unless told to.

        Raises:
            FileTrouble: it must not be replaced (EEXIST).
        """
        if not self.overwrite:
            raise _taken([self.shown(entry.parts)])

    # ---- folders and links -------------------------------------------------------------------

    def make_folder(self, entry: Entry) -> None:
        """Make a folder, or use the one that is there.

        Raises:
            FileTrouble: it cannot be made, or something else has its name.
        """
        with self.parent_of(entry) as (fd, name):
            try:
                os.mkdir(name, _OWNER_ACCESS, dir_fd=fd)
            except FileExistsError:
                os.close(self.open_folder(entry.parts))
                return
            made_fd = os.open(name, _FOLDER_FLAGS, dir_fd=fd)
            try:
                # The owner can work in it until its own mode is set, when all is stored.
                os.fchmod(made_fd, entry.mode | _OWNER_ACCESS)
            finally:
                os.close(made_fd)
        self._made.add(entry.path)
        self._unsynced.add(entry.parts[:-1])

    def make_link(self, entry: Entry) -> None:
        """Make a symbolic link; one that is there and says the same is left alone.

        Raises:
            FileTrouble: it cannot be made, or its name is taken.
        """
        with self.parent_of(entry) as (fd, name):
            if _reads(name, fd) == entry.target:
                return
            if self.overwrite:
                temporary = f".{secrets.token_hex(8)}{PART_SUFFIX}"
                os.symlink(entry.target, temporary, dir_fd=fd)
                try:
                    os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
                except BaseException:
                    os.unlink(temporary, dir_fd=fd)
                    raise
            else:
                os.symlink(entry.target, name, dir_fd=fd)
            self._unsynced.add(entry.parts[:-1])

    # ---- giving files their final names ------------------------------------------------------

    def place(self, temporary: str, name: str, folder_fd: int, parts: tuple[str, ...]) -> None:
        """Give a finished file its final name, at once and whole.

        Raises:
            FileTrouble: the name is taken and must not be replaced.
        """
        with _naming(self.shown(parts)):
            if self.overwrite:
                self._guard_case(name, folder_fd)
                os.rename(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
                status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                self._placed.add((status.st_dev, status.st_ino))
            else:
                try:
                    rename_new(temporary, name, folder_fd)
                except FileExistsError:
                    raise _taken([self.shown(parts)]) from None
        self._unsynced.add(parts[:-1])

    def _guard_case(self, name: str, folder_fd: int) -> None:
        """Refuse to replace a file of this same transfer: this disk takes two names for one."""
        try:
            status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        if (status.st_dev, status.st_ino) in self._placed:
            raise OSError(errno.EEXIST, "is the same name as another of this transfer, here")

    def finish(self, entries: Iterable[Entry]) -> None:
        """Give folders their modes and times, innermost first, and make all names durable.

        A folder that was there before keeps its own, unless it looks as an interrupted transfer
        left it.

        Raises:
            FileTrouble: the kernel refused.
        """
        folders = [entry for entry in entries if entry.kind is Kind.FOLDER]
        for entry in sorted(folders, key=lambda entry: entry.path.count("/"), reverse=True):
            self._finish_folder(entry)
        if self.flush:
            for parts in self._unsynced:
                self._sync(parts)
        self._unsynced.clear()
        self._made.clear()
        self._placed.clear()

    def _finish_folder(self, entry: Entry) -> None:
        fd = self.open_folder(entry.parts)
        try:
            with _naming(self.shown(entry.parts)):
                mode = stat.S_IMODE(os.fstat(fd).st_mode)
                if entry.path in self._made or mode == entry.mode | _OWNER_ACCESS:
                    os.fchmod(fd, entry.mode)
                    os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)

    def _sync(self, parts: tuple[str, ...]) -> None:
        fd = self.open_folder(parts)
        try:
            with _naming(self.shown(parts)):
                os.fsync(fd)
        finally:
            os.close(fd)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Turn an OSError of the block into trouble with the file called `name`."""
    try:
        yield
    except OSError as error:
        raise file_trouble(error, name) from error


def _is_read_only(path: str) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _alike(entry: Entry, status: os.stat_result, name: str, folder_fd: int) -> bool:
    """Tell whether what stands under a name may be what the entry describes."""
    if entry.kind is Kind.FOLDER:
        return stat.S_ISDIR(status.st_mode)
    if entry.kind is Kind.LINK:
        return _reads(name, folder_fd) == entry.target
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size == entry.size
        and status.st_mtime_ns == entry.mtime_ns
    )


def _reads(name: str, folder_fd: int) -> str | None:
    """Read a symbolic link; None when there is no such link."""
    try:
        return os.readlink(name, dir_fd=folder_fd)
    except OSError:
        return None


def _taken(names: list[str]) -> FileTrouble:
    """Say which names are in the way."""
    more = len(names) - _CONFLICTS_NAMED_MAX
    rest = "".join(f", {name}" for name in names[1:_CONFLICTS_NAMED_MAX])
    also = f" (so do {rest[2:]}{f' and {more} more' if more > 0 else ''})" if rest else ""
    return FileTrouble(
        errno.EEXIST, f"already exists{also}; mrc-recv --overwrite would replace it", names[0]
    )
