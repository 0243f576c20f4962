"""The list of what is sent: entries, their JSON form, and reading them from a peer.

A manifest arrives in pieces. `ManifestReader` holds what has been accepted so far and refuses the
whole transfer at the first entry that is malformed, doubled, out of order or out of bounds. It
knows nothing of disks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mrc.cli.names import link_target_untrusted, path_parts_untrusted
from mrc.errors import PeerProtocolError
from mrc.text import printable

ENTRIES_MAX = 1 << 18
"""Most files, folders and links in one transfer: about 100 MB of names and bookkeeping a side."""

NAMES_CHARACTERS_MAX = 128 << 20
"""Most characters of all paths and link targets together."""

FILE_BYTES_MAX = 1 << 46
"""Largest file: 64 TiB, half of what one process can map."""

MODE_MASK = 0o777
"""The permission bits that travel. Never set-user-id, set-group-id or sticky: a peer does not
decide whose rights a program here gets."""

MTIME_NS_LIMIT = 1 << 62
"""Times beyond about the year 2116, or before 1824, are nonsense."""

LINE_BYTES_TARGET = 128 << 10
"""Entries are sent in lines of about this size, well under the channel's limit."""

_ENTRY_KEYS = frozenset({"path", "kind", "size", "mode", "mtime_ns", "target"})


class Kind(StrEnum):
    """What an entry is. Devices, pipes and sockets do not travel."""

    FILE = "file"
    FOLDER = "dir"
    LINK = "symlink"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing to be made in the output folder.

    Attributes:
        path: relative, parts separated by `/`.
        kind: file, folder or symbolic link.
        size: bytes of a file, 0 for the others.
        mode: permission bits, 0 to 0o777.
        mtime_ns: modification time in nanoseconds since 1970.
        target: where a link points, empty for the others.
    """

    path: str
    kind: Kind
    size: int = 0
    mode: int = 0o644
    mtime_ns: int = 0
    target: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names along the path, outermost first."""
        return tuple(self.path.split("/"))

    def to_json(self) -> dict[str, Any]:
        """The form that travels; what is zero or empty stays at home."""
        line: dict[str, Any] = {"path": self.path, "kind": self.kind.value}
        if self.kind is Kind.LINK:
            line["target"] = self.target
            return line
        line["mode"] = self.mode
        line["mtime_ns"] = self.mtime_ns
        if self.kind is Kind.FILE:
            line["size"] = self.size
        return line


def entry_lines(entries: Iterable[Entry]) -> Iterator[list[dict[str, Any]]]:
    """Group entries into lists that fit one line of the channel."""
    line: list[dict[str, Any]] = []
    line_bytes = 0
    for entry in entries:
        # A character of a path takes up to twelve bytes in ASCII JSON.
        line_bytes += 12 * (len(entry.path) + len(entry.target)) + 120
        line.append(entry.to_json())
        if line_bytes >= LINE_BYTES_TARGET:
            yield line
            line = []
            line_bytes = 0
    if line:
        yield line


def entry_untrusted(value: object) -> Entry:
    """Read one entry a peer sent.

    Raises:
        PeerProtocolError: anything at all is wrong with it.
    """
    if not isinstance(value, dict):
        raise PeerProtocolError("an entry of the list of files is not an object")
    unknown = value.keys() - _ENTRY_KEYS
    if unknown:
        raise PeerProtocolError(f"an entry with an unknown field {printable(str(min(unknown)))!r}")
    path = _text(value, "path")
    parts = path_parts_untrusted(path)
    kind = _kind(value, path)
    if kind is Kind.LINK:
        # A link may climb as far as the top folder it came with, never to that folder's own level.
        target = link_target_untrusted(_text(value, "target"), max(len(parts) - 2, 0))
        return Entry(path, kind, 0, MODE_MASK, 0, target)
    mode = _number(value, "mode", path, 0, MODE_MASK)
    mtime_ns = _number(value, "mtime_ns", path, -MTIME_NS_LIMIT, MTIME_NS_LIMIT)
    size = _number(value, "size", path, 0, FILE_BYTES_MAX) if kind is Kind.FILE else 0
    return Entry(path, kind, size, mode, mtime_ns)


def _text(value: dict[Any, Any], key: str) -> str:
    text = value.get(key)
    if not isinstance(text, str):
        raise PeerProtocolError(f"an entry whose {key} is not text")
    return text


def _kind(value: dict[Any, Any], path: str) -> Kind:
    try:
        return Kind(_text(value, "kind"))
    except ValueError:
        raise PeerProtocolError(f"an entry of unknown kind: {printable(path)}") from None


def _number(value: dict[Any, Any], key: str, path: str, low: int, high: int) -> int:
    number = value.get(key)
    # bool is an int to Python, and not to anyone else.
    if type(number) is not int or not low <= number <= high:
        raise PeerProtocolError(
            f"{printable(path)}: {key} is not a whole number from {low} to {high}"
        )
    return number


class ManifestReader:
    """Collects the entries of one transfer and holds each against those before it.

    Args:
        count: how many entries were announced.
        total_bytes: the announced sum of the sizes of all files.
    """

    def __init__(self, count: int, total_bytes: int) -> None:
        self.entries: list[Entry] = []
        self._count = count
        self._total_bytes = total_bytes
        self._sum_bytes = 0
        self._names_characters = 0
        self._paths: set[str] = set()
        self._folders: set[str] = {""}

    @property
    def complete(self) -> bool:
        """True when every announced entry is here."""
        return len(self.entries) == self._count

    def add_untrusted(self, values: object) -> None:
        """Take the next line of entries.

        Raises:
            PeerProtocolError: an entry is malformed, doubled, below something that is not a folder
                listed before it, more than announced; all names together are too long; or the sum
                of sizes is not as announced.
        """
        if not isinstance(values, list) or not values:
            raise PeerProtocolError("a line of entries without entries")
        if len(self.entries) + len(values) > self._count:
            raise PeerProtocolError(f"more than the {self._count} entries announced")
        for value in values:
            self._add(entry_untrusted(value))
        if self.complete and self._sum_bytes != self._total_bytes:
            raise PeerProtocolError(
                f"files of {self._sum_bytes} bytes together, {self._total_bytes} announced"
            )

    def _add(self, entry: Entry) -> None:
        self._names_characters += len(entry.path) + len(entry.target)
        if self._names_characters > NAMES_CHARACTERS_MAX:
            raise PeerProtocolError(f"over {NAMES_CHARACTERS_MAX} characters of names")
        if entry.path in self._paths:
            raise PeerProtocolError(f"the same name twice: {printable(entry.path)}")
        parent = entry.path.rpartition("/")[0]
        if parent not in self._folders:
            raise PeerProtocolError(f"a name below no folder of the list: {printable(entry.path)}")
        self._paths.add(entry.path)
        if entry.kind is Kind.FOLDER:
            self._folders.add(entry.path)
        self._sum_bytes += entry.size
        self.entries.append(entry)
