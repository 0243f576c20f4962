"""What a peer says of files: paths, links, the list of entries, messages, and whole transfers.

Whatever is said, nothing is made, changed or read outside the output folder, and nothing is raised
but what the functions say.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from fuzzing import odd, transfers
from fuzzing.disk import playground
from fuzzing.feed import Feed
from mrc.cli.failures import FileTrouble
from mrc.cli.manifest import Entry, Kind, ManifestReader, entry_lines, entry_untrusted
from mrc.cli.messages import (
    BATCH_MESSAGES_MAX,
    batch_to_json,
    hello_untrusted,
    message_untrusted,
    messages_untrusted,
    to_json,
)
from mrc.cli.names import path_parts_untrusted
from mrc.cli.part import MappedPart
from mrc.cli.store import Folder
from mrc.cli.streaming import stream_name_untrusted
from mrc.errors import PeerProtocolError, PeerVersionError
from mrc.text import printable

_BLOCK_BYTES = 64 << 10
_ENTRIES_MAX = 8
_TRANSFERS_MAX = 3
_PARTS: tuple[str, ...] = (
    "a", "b", "t", "A", "..", ".", "", "\0", "\udcff", "\ud800", "é", "x" * 255, "x" * 256, "-rf",
    "a\\b", "a\n", ".a.mrc-part", ".a.mrc-journal", ".b.mrc-part", "..a", "a..", " ",
)  # fmt: skip
_SIZES = (0, 1, _BLOCK_BYTES, _BLOCK_BYTES + 1, 1 << 45, (1 << 46) + 1)


def run(data: bytes) -> None:
    """Read the first byte as what the rest is."""
    feed = Feed(data)
    feed.pick((_text, _entries, _on_disk, transfers.receiver, transfers.sender))(feed)


# Text: what JSON there is, and what JSON could be.


def _text(feed: Feed) -> None:
    """Give any JSON to every reader."""
    try:
        value = json.loads(feed.rest())
    except (ValueError, RecursionError):
        return
    with suppress(PeerProtocolError):
        _check_inside(entry_untrusted(value))
    with suppress(PeerProtocolError):
        ManifestReader(2, 1).add_untrusted(value)
    if isinstance(value, str):
        assert printable(value).isprintable()
        with suppress(PeerProtocolError):
            parts = path_parts_untrusted(value)
            _check_inside(Entry(value, Kind.FILE))
            assert stream_name_untrusted(value) == value
            assert len(parts) == 1
    if isinstance(value, dict):
        _line(value)


def _line(line: dict[str, Any]) -> None:
    """Read an object as what the two ends say; what is understood can be said again."""
    with suppress(PeerProtocolError):
        messages = messages_untrusted(line)
        assert len(messages) <= BATCH_MESSAGES_MAX
        if messages:
            assert messages_untrusted(batch_to_json(messages)) == messages
    with suppress(PeerProtocolError):
        message = message_untrusted(line)
        assert message_untrusted(to_json(message)) == message
    with suppress(PeerProtocolError, PeerVersionError):
        hello_untrusted(line)


# Entries: lists that are right but for some.


def _entries(feed: Feed) -> None:
    """Read a list of entries, some of them spoilt, and hold what is accepted against the rules."""
    values = _values(feed)
    with suppress(PeerProtocolError):
        _read(feed, [odd.spoil(feed, value) if feed.flag() else value for value in values])


def _values(feed: Feed) -> list[dict[str, Any]]:
    """Make entries in the form that travels; their names and sizes are a peer's."""
    values: list[dict[str, Any]] = []
    for _ in range(feed.below(_ENTRIES_MAX)):
        kind = feed.pick(tuple(Kind))
        path = _path(feed)
        if feed.flag() and values:
            path = f"{values[feed.below(len(values))]['path']}/{path}"
        value: dict[str, Any] = {"path": path, "kind": kind.value}
        if kind is Kind.LINK:
            value["target"] = _path(feed)
        else:
            value["mode"] = feed.number(2) & 0o1777
            value["mtime_ns"] = feed.signed(8)
        if kind is Kind.FILE:
            value["size"] = feed.pick(_SIZES)
        values.append(value)
    return values


def _path(feed: Feed) -> str:
    """Make a path of parts, each of them likely one that has a meaning."""
    parts = []
    for _ in range(1 + feed.below(4)):
        kind = feed.below(len(_PARTS) + 1)
        if kind < len(_PARTS):
            parts.append(_PARTS[kind])
        else:
            parts.append(feed.take(feed.below(12)).decode("utf-8", "surrogateescape"))
    return "/".join(parts)


def _read(feed: Feed, values: list[Any]) -> list[Entry]:
    """Read a list as a receiver does, and check what it must be."""
    sizes = [value.get("size") for value in values if isinstance(value, dict)]
    announced_bytes = sum(size for size in sizes if type(size) is int)
    reader = ManifestReader(len(values), announced_bytes + (feed.below(4) == 3))
    reader.add_untrusted(values)
    assert reader.complete
    folders = {""}
    for entry in reader.entries:
        _check_inside(entry)
        assert entry.path.rpartition("/")[0] in folders, entry
        if entry.kind is Kind.FOLDER:
            folders.add(entry.path)
    assert len({entry.path for entry in reader.entries}) == len(values)
    again = ManifestReader(len(values), sum(entry.size for entry in reader.entries))
    for line in entry_lines(reader.entries):
        again.add_untrusted(json.loads(json.dumps(line)))
    assert again.entries == reader.entries
    return reader.entries


def _check_inside(entry: Entry) -> None:
    """Fail if a path, or what a link says, leads out by its spelling."""
    assert os.path.normpath(f"/out/{entry.path}") == f"/out/{entry.path}", entry
    assert 0 <= entry.mode <= 0o777, entry
    assert printable(entry.path).isprintable()
    if entry.kind is Kind.LINK:
        above = f"/out/{entry.path}".rpartition("/")[0]
        top = "/out" if above == "/out" else f"/out/{entry.parts[0]}"
        led = os.path.normpath(f"{above}/{entry.target}")
        assert f"{led}/".startswith(f"{top}/"), entry


# The disk: what is accepted is made, in a folder full of traps.


def _on_disk(feed: Feed) -> None:
    """Store lists of entries one after the other in one folder."""
    with playground().attacked() as out:
        for _ in range(feed.below(4)):
            playground().plant(feed, feed.pick(("a", "b", "t", ".a.mrc-part", ".a.mrc-journal")))
        for _ in range(1 + feed.below(_TRANSFERS_MAX)):
            with suppress(PeerProtocolError, FileTrouble):
                entries = _read(feed, _values(feed))
                _store(Folder(str(out), overwrite=feed.flag(), flush=False), entries, feed)


def _store(folder: Folder, entries: list[Entry], feed: Feed) -> None:
    """Do what the receiver does with a list, without a network; some files stay unfinished."""
    try:
        folder.survey(entries)
        for entry in entries:
            if entry.kind is Kind.FOLDER:
                folder.make_folder(entry)
            elif entry.kind is Kind.FILE:
                _store_file(folder, entry, cut=feed.below(4) == 1)
        for entry in entries:
            if entry.kind is Kind.LINK:
                folder.make_link(entry)
        folder.finish(entries)
    finally:
        folder.close()


def _store_file(folder: Folder, entry: Entry, *, cut: bool) -> None:
    """Fill one file with zeros, to its final name or, when cut, not quite."""
    part = MappedPart(folder, entry, _BLOCK_BYTES)
    try:
        if part.claimed:
            part.verify(lambda _: None)
        while part.blocks_done < part.blocks - cut:
            part.absorb()
        if not cut:
            part.commit()
    except BaseException:
        part.abandon()
        raise
    if cut:
        part.abandon()
