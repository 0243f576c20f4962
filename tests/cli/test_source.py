"""What is sent: the walk, and files that change under the reader's hands."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mrc.cli.failures import FileTrouble
from mrc.cli.manifest import Entry, Kind, ManifestReader, entry_lines
from mrc.cli.names import DEPTH_MAX, part_name
from mrc.cli.source import Listing, SourceFile, list_paths
from mrc.errors import ConfigError


def _list(*paths: Path | str) -> Listing:
    return list_paths([str(path) for path in paths], lambda _: None)


def _one(path: Path) -> Entry:
    return _list(path).entries[0]


def test_a_tree_is_listed_folders_first_and_in_order(tmp_path: Path) -> None:
    """Every receiver's rules are met: parents before children, totals right, names in order."""
    top = tmp_path / "t"
    (top / "b" / "c").mkdir(parents=True)
    (top / "a").write_text("12345")
    (top / "b" / "c" / "x").write_text("1")
    (top / "b" / "empty").write_text("")
    (top / "b" / "c" / "l").symlink_to("../../a")
    listing = _list(top)
    paths = [entry.path for entry in listing.entries]
    assert paths == ["t", "t/a", "t/b", "t/b/c", "t/b/empty", "t/b/c/l", "t/b/c/x"]
    reader = ManifestReader(len(listing.entries), listing.total_bytes)
    for line in entry_lines(listing.entries):
        reader.add_untrusted(line)
    assert reader.entries == listing.entries
    assert listing.local_paths[1] == str(top / "a")


def test_what_does_not_travel_is_named(tmp_path: Path) -> None:
    """Pipes, sockets, links that lead out and leftovers are skipped with one line each."""
    top = tmp_path / "t"
    top.mkdir()
    os.mkfifo(top / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(top / "socket"))
    (top / "out").symlink_to("../x")
    (top / "absolute").symlink_to("/etc")
    (top / part_name("x")).write_text("")
    listing = _list(top)
    assert [entry.path for entry in listing.entries] == ["t"]
    assert len(listing.skipped) == 5
    assert any("leads out" in line for line in listing.skipped)


def test_a_link_given_by_name_is_followed(tmp_path: Path) -> None:
    """Whoever names a link means what it points to, under the link's own name."""
    (tmp_path / "real").write_text("abc")
    (tmp_path / "alias").symlink_to("real")
    entry = _one(tmp_path / "alias")
    assert (entry.path, entry.kind, entry.size) == ("alias", Kind.FILE, 3)


def test_dots_and_slashes_at_the_end_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder arrives under its own name however it was spelled."""
    (tmp_path / "t").mkdir()
    monkeypatch.chdir(tmp_path / "t")
    for spelling in (".", "../t", "./", str(tmp_path / "t") + "/"):
        assert _list(spelling).entries[0].path == "t"


def test_paths_that_cannot_be_sent_are_refused(tmp_path: Path) -> None:
    """Missing ones are file trouble; the root, pipes and doubled names are mistakes of the user."""
    with pytest.raises(FileTrouble, match="No such file"):
        _list(tmp_path / "missing")
    with pytest.raises(ConfigError, match="no name"):
        _list("/")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        _list(tmp_path / "pipe")
    for name in ("p", "q"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same").write_text("")
    with pytest.raises(ConfigError, match="both arrive as same"):
        _list(tmp_path / "p" / "same", tmp_path / "q" / "same")


def test_a_tree_too_deep_for_any_receiver_is_named_here(tmp_path: Path) -> None:
    """It is trouble with a folder of this side, found before anything is sent."""
    (tmp_path / "/".join("d" * DEPTH_MAX)).mkdir(parents=True)
    assert len(_list(tmp_path / "d").entries) == DEPTH_MAX
    (tmp_path / "/".join("d" * (DEPTH_MAX + 1))).mkdir()
    with pytest.raises(FileTrouble, match="more than 128 deep"):
        _list(tmp_path / "d")


def test_a_file_that_says_it_is_empty_and_is_not_is_refused() -> None:
    """The kernel's own files have no size; the user is told how to send what they say."""
    with pytest.raises(ConfigError, match="mrc-send - URL < /proc/self/status"):
        _list("/proc/self/status")


def _read(source: SourceFile, size: int) -> bytes:
    buffer = bytearray(size)
    source.read(memoryview(buffer), 0)
    return bytes(buffer)


def test_a_file_that_stays_the_same_is_read(tmp_path: Path) -> None:
    """Reading and checking an undisturbed file gives its bytes and no complaint."""
    path = tmp_path / "f"
    path.write_text("hello")
    source = SourceFile(str(path), _one(path))
    assert _read(source, 5) == b"hello"
    source.check_unchanged()
    source.close()


def test_a_file_that_vanished_is_named(tmp_path: Path) -> None:
    """Between listing and sending a file may go."""
    path = tmp_path / "f"
    path.write_text("hello")
    entry = _one(path)
    path.unlink()
    with pytest.raises(FileTrouble, match="vanished"):
        SourceFile(str(path), entry)


def test_a_file_that_changed_before_it_was_opened_is_refused(tmp_path: Path) -> None:
    """The receiver was told another size or time."""
    path = tmp_path / "f"
    path.write_text("hello")
    entry = _one(path)
    path.write_text("hello!")
    with pytest.raises(FileTrouble, match="changed"):
        SourceFile(str(path), entry)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileTrouble, match="changed"):
        SourceFile(str(path), entry)


def test_a_file_cut_short_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """A shrinking file must not kill the process or send zeros."""
    path = tmp_path / "f"
    path.write_text("hello")
    source = SourceFile(str(path), _one(path))
    os.truncate(path, 2)
    with pytest.raises(FileTrouble, match="became shorter"):
        _read(source, 5)
    source.close()


def test_a_file_written_to_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """What was read must have been one state of the file."""
    path = tmp_path / "f"
    path.write_text("hello")
    os.utime(path, ns=(1, 1))
    source = SourceFile(str(path), _one(path))
    _read(source, 5)
    path.write_text("HELLO")
    with pytest.raises(FileTrouble, match="changed"):
        source.check_unchanged()
    source.close()
