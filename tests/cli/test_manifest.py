"""The list of files, as sent and as read from a peer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.cli.manifest import (
    ENTRIES_MAX,
    FILE_BYTES_MAX,
    Entry,
    Kind,
    ManifestReader,
    entry_lines,
    entry_untrusted,
)
from mrc.errors import PeerProtocolError

FILE = {"path": "a", "kind": "file", "size": 3, "mode": 0o600, "mtime_ns": 5}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "change",
    [
        {"path": None},
        {"path": 7},
        {"path": "../a"},
        {"kind": "device"},
        {"kind": None},
        {"kind": ["file"]},
        {"size": -1},
        {"size": FILE_BYTES_MAX + 1},
        {"size": 1.0},
        {"size": True},
        {"size": "3"},
        {"size": None},
        {"mode": 0o4755},
        {"mode": -1},
        {"mtime_ns": 1 << 63},
        {"mtime_ns": None},
        {"uid": 0},
        {"kind": "symlink", "target": "/etc/passwd"},
        {"kind": "symlink", "target": "../x"},
        {"kind": "symlink"},
    ],
)
def test_malformed_entries_are_refused(change: dict[str, Any]) -> None:
    """Each field is checked for type and bounds, and unknown ones are refused."""
    with pytest.raises(PeerProtocolError):
        entry_untrusted(FILE | change)


@pytest.mark.parametrize("value", [None, 1, "a", [], [FILE]])
def test_an_entry_is_an_object(value: object) -> None:
    """Any other JSON value in the place of an entry is refused."""
    with pytest.raises(PeerProtocolError):
        entry_untrusted(value)


@given(JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(FILE, JSON) | {"target": JSON}))
def test_no_other_exception_leaves_the_reader(value: object) -> None:
    """Whatever JSON a peer sends, reading it returns an entry or raises the one exception."""
    try:
        entry = entry_untrusted(value)
    except PeerProtocolError:
        return
    assert entry_untrusted(entry.to_json()) == entry


def test_entries_survive_the_journey() -> None:
    """What is sent is what is read, for every kind, also for names that are no text."""
    entries = [
        Entry("t", Kind.FOLDER, 0, 0o750, 10),
        Entry("t/\udcff", Kind.FILE, 12, 0o644, -3),
        Entry("t/s", Kind.FOLDER, 0, 0o700, 0),
        Entry("t/s/l", Kind.LINK, 0, 0o777, 0, "../x"),
    ]
    reader = ManifestReader(4, 12)
    for line in entry_lines(entries):
        reader.add_untrusted(json.loads(json.dumps(line)))
    assert reader.complete
    assert reader.entries == entries


def test_lines_stay_short() -> None:
    """A list of any length is cut into lines far below the channel's limit."""
    entries = [Entry(f"\udcff{'é' * 100}{i}", Kind.FILE) for i in range(5000)]
    lines = list(entry_lines(entries))
    assert sum(len(line) for line in lines) == 5000
    assert max(len(json.dumps(line)) for line in lines) < 256 << 10


def _reader(*entries: dict[str, Any], count: int, total: int) -> ManifestReader:
    reader = ManifestReader(count, total)
    reader.add_untrusted(list(entries))
    return reader


FOLDER = {"path": "d", "kind": "dir", "mode": 0o755, "mtime_ns": 0}
BELOW = FILE | {"path": "d/f"}


@pytest.mark.parametrize(
    ("entries", "count", "total"),
    [
        ([FILE, FILE], 2, 6),
        ([FOLDER, FOLDER], 2, 0),
        ([FILE, FOLDER | {"path": "a"}], 2, 3),
        ([BELOW], 1, 3),
        ([BELOW, FOLDER], 2, 3),
        ([FILE, FILE | {"path": "a/b"}], 2, 6),
        ([{"path": "l", "kind": "symlink", "target": "x"}, FILE | {"path": "l/b"}], 2, 3),
        ([FILE], 1, 4),
        ([FOLDER, BELOW], 1, 3),
    ],
)
def test_entries_must_agree_with_each_other(
    entries: list[dict[str, Any]], count: int, total: int
) -> None:
    """Doubled names, names below no listed folder, and wrong totals end the transfer."""
    with pytest.raises(PeerProtocolError):
        _reader(*entries, count=count, total=total)


def test_names_that_differ_in_case_are_two_names() -> None:
    """Trees such as the kernel's hold both; a disk that takes them for one refuses by itself."""
    reader = _reader(FILE, FILE | {"path": "A"}, count=2, total=6)
    assert [entry.path for entry in reader.entries] == ["a", "A"]


@pytest.mark.parametrize("values", [None, {}, [], "x", 5])
def test_a_line_of_entries_is_a_list_that_is_not_empty(values: object) -> None:
    """A peer cannot keep the reader busy with lines that bring it no further."""
    with pytest.raises(PeerProtocolError):
        ManifestReader(ENTRIES_MAX, 0).add_untrusted(values)


def test_names_have_a_limit_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many entries are allowed, the text of their names and targets stays bounded."""
    link = {"path": "l", "kind": "symlink", "target": "t" * 8}
    monkeypatch.setattr("mrc.cli.manifest.NAMES_CHARACTERS_MAX", 10)
    _reader(FILE, link, count=2, total=3)
    monkeypatch.setattr("mrc.cli.manifest.NAMES_CHARACTERS_MAX", 9)
    with pytest.raises(PeerProtocolError, match="characters of names"):
        _reader(FILE, link, count=2, total=3)
