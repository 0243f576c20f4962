"""What is to be sent: the walk over files and folders, and reading a file that must not change.

Reads into buffers rather than mapping the file: a file cut short while it is mapped kills the
process that touches it, one cut short while it is read is an error with a name.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mrc.cli.digest import Advance, Digest, hash_prefix, read_full
from mrc.cli.failures import FileTrouble, file_trouble
from mrc.cli.manifest import (
    ENTRIES_MAX,
    FILE_BYTES_MAX,
    MODE_MASK,
    MTIME_NS_LIMIT,
    Entry,
    Kind,
)
from mrc.cli.names import is_reserved, link_objection, path_objection
from mrc.errors import ConfigError
from mrc.text import printable


@dataclass(slots=True)
class Listing:
    """Everything found below the given paths.

    Attributes:
        entries: in the order they are sent; a folder comes before what is in it.
        local_paths: for each entry, where it is here.
        skipped: one line for each thing that does not travel, and why.
    """

    entries: list[Entry] = field(default_factory=list)
    local_paths: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        """The sum of the sizes of all files."""
        return sum(entry.size for entry in self.entries)

    def add(self, entry: Entry, local_path: str) -> None:
        """Append one entry.

        Raises:
            ConfigError: there are more than one transfer can carry.
            FileTrouble: its path is too long, or too deep.
        """
        reason = path_objection(entry.path)
        if reason:
            raise FileTrouble(errno.ENAMETOOLONG, f"has a path {reason}", local_path)
        if len(self.entries) == ENTRIES_MAX:
            raise ConfigError(
                f"more than {ENTRIES_MAX} files and folders; send them in parts or as a stream"
                " (tar c . | mrc-send - URL)"
            )
        self.entries.append(entry)
        self.local_paths.append(local_path)


def list_paths(paths: Sequence[str], on_entry: Callable[[int], None]) -> Listing:
    """Walk over everything the user named. A link given by name is followed; others are not.

    Args:
        paths: files and folders of this machine.
        on_entry: told the number of entries so far, now and then; raises to stop.

    Raises:
        FileTrouble: a path does not exist or cannot be read.
        ConfigError: two paths have the same last name, or a path has none, or is neither file nor
            folder.
    """
    listing = Listing()
    seen: dict[str, str] = {}
    for path in paths:
        name = _top_name(path)
        if name in seen:
            raise ConfigError(
                f"{printable(seen[name])} and {printable(path)} would both arrive as"
                f" {printable(name)}; send them one after the other"
            )
        seen[name] = path
        _add_top(listing, path, name)
        on_entry(len(listing.entries))
        if listing.entries and listing.entries[-1].kind is Kind.FOLDER:
            _walk(listing, path, name, on_entry)
    return listing


def _top_name(path: str) -> str:
    """Find the name under which a path arrives: its own last part, not that of what it links to."""
    name = os.path.basename(os.path.abspath(path))
    if not name:
        raise ConfigError(f"{printable(path)} has no name to arrive under; send a folder below it")
    if is_reserved(name):
        raise ConfigError(f"{printable(name)} is an unfinished file of an earlier transfer")
    return name


def _add_top(listing: Listing, path: str, name: str) -> None:
    try:
        status = os.stat(path)
    except OSError as error:
        raise file_trouble(error, path) from error
    entry = _entry(name, status)
    if entry is None:
        raise _better_read(path, "is neither a file nor a folder")
    if entry.kind is Kind.FILE and not entry.size and _has_bytes(path):
        raise _better_read(path, "has bytes although its size is 0")
    listing.add(entry, path)


def _better_read(path: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{printable(path)} {reason}; to send what it says: mrc-send - URL < {printable(path)}"
    )


def _has_bytes(path: str) -> bool:
    """Tell whether a file of size 0 has something to read all the same, as those of /proc do."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return bool(os.read(fd, 1))
    except OSError:
        return False
    finally:
        os.close(fd)


def _entry(path: str, status: os.stat_result) -> Entry | None:
    """Describe a file or a folder, or return None for what does not travel."""
    mode = stat.S_IMODE(status.st_mode) & MODE_MASK
    mtime_ns = _mtime_ns(status)
    if stat.S_ISDIR(status.st_mode):
        return Entry(path, Kind.FOLDER, 0, mode, mtime_ns)
    if stat.S_ISREG(status.st_mode) and status.st_size <= FILE_BYTES_MAX:
        return Entry(path, Kind.FILE, status.st_size, mode, mtime_ns)
    return None


def _mtime_ns(status: os.stat_result) -> int:
    return max(-MTIME_NS_LIMIT, min(status.st_mtime_ns, MTIME_NS_LIMIT))


def _walk(listing: Listing, top: str, name: str, on_entry: Callable[[int], None]) -> None:
    """List everything below one folder, each folder's names in order."""
    pending = [(top, name, 0)]
    while pending:
        local, remote, depth = pending.pop()
        below: list[tuple[str, str, int]] = []
        for item in _scan(local):
            path = f"{remote}/{item.name}"
            entry = _walked_entry(listing, item, path, depth)
            if entry is not None:
                listing.add(entry, item.path)
                if entry.kind is Kind.FOLDER:
                    below.append((item.path, path, depth + 1))
        on_entry(len(listing.entries))
        pending.extend(reversed(below))


def _scan(local: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(local) as items:
            return sorted(items, key=lambda item: item.name)
    except OSError as error:
        raise file_trouble(error, local) from error


def _walked_entry(listing: Listing, item: os.DirEntry[str], path: str, depth: int) -> Entry | None:
    """Describe one thing found; `depth` is how many folders its own folder is below the top."""
    if is_reserved(item.name):
        listing.skipped.append(f"{printable(item.path)}: unfinished file of an earlier transfer")
        return None
    try:
        if item.is_symlink():
            return _link_entry(listing, item, path, depth)
        entry = _entry(path, item.stat(follow_symlinks=False))
    except OSError as error:
        raise file_trouble(error, item.path) from error
    if entry is None:
        listing.skipped.append(f"{printable(item.path)}: not a file, folder or link")
    return entry


def _link_entry(listing: Listing, item: os.DirEntry[str], path: str, depth: int) -> Entry | None:
    target = os.readlink(item.path)
    objection = link_objection(target, depth)
    if objection:
        listing.skipped.append(f"{printable(item.path)}: a symbolic link {objection}")
        return None
    return Entry(path, Kind.LINK, 0, MODE_MASK, 0, target)


class SourceFile:
    """One file, open for reading, held against what the listing said about it.

    Args:
        path: where it is here.
        entry: what the receiver has been told.

    Raises:
        FileTrouble: it vanished, cannot be read, or is no longer what was listed.
    """

    def __init__(self, path: str, entry: Entry) -> None:
        self.name = path
        self.entry = entry
        try:
            # Not blocking: should a pipe have taken the file's place, opening it must not hang.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _vanished(error, path) from error
        try:
            self.check_unchanged()
        except BaseException:
            self.close()
            raise

    def read(self, buffer: memoryview, offset: int) -> None:
        """Fill the whole buffer from `offset`.

        Raises:
            FileTrouble: the kernel refused, or the file has become shorter.
        """
        if read_full(self._fd, buffer, offset, self.name) < buffer.nbytes:
            raise FileTrouble(errno.ESTALE, "became shorter while it was being sent", self.name)

    def hash_prefix(self, length_bytes: int, advance: Advance) -> Digest:
        """Digest the first bytes, which the receiver has already."""
        return hash_prefix(self._fd, length_bytes, self.name, advance)

    def check_unchanged(self) -> None:
        """Hold the open file against the listing: before the first read and after the last one.

        Raises:
            FileTrouble: its size or its time of modification is another.
        """
        status = os.fstat(self._fd)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_size != self.entry.size
            or _mtime_ns(status) != self.entry.mtime_ns
        ):
            raise FileTrouble(errno.ESTALE, "changed while it was being sent", self.name)

    def close(self) -> None:
        """Close the file; again is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _vanished(error: OSError, path: str) -> FileTrouble:
    if error.errno == errno.ENOENT:
        return FileTrouble(errno.ENOENT, "vanished before it was sent", path)
    return file_trouble(error, path)
