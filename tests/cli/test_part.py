"""Unfinished files: locks, journals, resuming, final names."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mrc.cli.digest import EMPTY_SHA256
from mrc.cli.failures import FileTrouble
from mrc.cli.manifest import Entry, Kind
from mrc.cli.names import journal_name, part_name
from mrc.cli.part import MappedPart, Part, hash_existing
from mrc.cli.store import Folder

BLOCK = 64 << 10
DATA = os.urandom(3 * BLOCK + 100)
ENTRY = Entry("f", Kind.FILE, len(DATA), 0o640, 1_234_567_890_123_456_789)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """An open output folder."""
    folder = Folder(str(tmp_path))
    yield folder
    folder.close()


def _nothing(_: int) -> None:
    pass


def _fill(part: MappedPart, blocks: int, data: bytes = DATA) -> None:
    """Land and absorb the next blocks."""
    for _ in range(blocks):
        offset, length = part.block_span(part.blocks_done)
        assert part.map is not None
        part.map[offset : offset + length] = data[offset : offset + length]
        part.absorb()


def _names(path: Path) -> list[str]:
    return sorted(item.name for item in path.iterdir())


def _begun(folder: Folder, blocks: int) -> None:
    """Leave an unfinished file behind, as an interrupted transfer does."""
    part = MappedPart(folder, ENTRY, BLOCK)
    _fill(part, blocks)
    part.abandon()


def test_a_whole_file_gets_name_mode_and_time(folder: Folder, tmp_path: Path) -> None:
    """When all blocks are there the file appears, complete, and nothing else stays."""
    part = MappedPart(folder, ENTRY, BLOCK)
    assert not (tmp_path / "f").exists()
    _fill(part, 4)
    part.commit()
    status = (tmp_path / "f").stat()
    assert (tmp_path / "f").read_bytes() == DATA
    assert part.digest.hex() == hashlib.sha256(DATA).hexdigest()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o640, ENTRY.mtime_ns)
    assert _names(tmp_path) == ["f"]


def test_an_empty_file_needs_no_memory(folder: Folder, tmp_path: Path) -> None:
    """A file of no bytes is complete when it is made."""
    part = MappedPart(folder, Entry("e", Kind.FILE, 0, 0o600, 1), BLOCK)
    part.commit()
    assert part.digest.hex() == EMPTY_SHA256
    assert (tmp_path / "e").read_bytes() == b""


def test_an_interrupted_file_goes_on_where_it_stopped(folder: Folder, tmp_path: Path) -> None:
    """The blocks of an earlier transfer are verified and kept."""
    _begun(folder, 2)
    part = MappedPart(folder, ENTRY, BLOCK)
    assert len(part.claimed) == 2
    hashed: list[int] = []
    part.verify(hashed.append)
    assert (part.blocks_done, sum(hashed)) == (2, 2 * BLOCK)
    _fill(part, 2)
    part.commit()
    assert (tmp_path / "f").read_bytes() == DATA


def test_blocks_that_a_crash_of_the_machine_lost_are_not_believed(
    folder: Folder, tmp_path: Path
) -> None:
    """A journal that promises more than the disk kept is followed up to the first wrong block."""
    _begun(folder, 3)
    with (tmp_path / part_name("f")).open("r+b") as file:
        file.seek(BLOCK + 5)
        file.write(b"\0\0\0")
    part = MappedPart(folder, ENTRY, BLOCK)
    part.verify(_nothing)
    assert part.blocks_done == 1
    assert part.digest.hex() == hashlib.sha256(DATA[:BLOCK]).hexdigest()
    _fill(part, 3)
    part.commit()
    assert (tmp_path / "f").read_bytes() == DATA


@pytest.mark.parametrize(
    "other",
    [
        Entry("f", Kind.FILE, len(DATA), 0o640, 5),
        Entry("f", Kind.FILE, len(DATA) + 1, 0o640, ENTRY.mtime_ns),
    ],
)
def test_a_journal_of_another_source_is_not_used(folder: Folder, other: Entry) -> None:
    """A file of another size or time has nothing in common with the one that was begun."""
    _begun(folder, 2)
    part = MappedPart(folder, other, BLOCK)
    assert part.claimed == []
    part.discard()


def test_a_journal_of_other_blocks_is_not_used(folder: Folder) -> None:
    """The block length is part of what a journal says."""
    _begun(folder, 2)
    part = MappedPart(folder, ENTRY, 2 * BLOCK)
    assert part.claimed == []
    part.discard()


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"\0" * 300, b"x" * 5000])
def test_a_damaged_journal_is_an_empty_one(folder: Folder, tmp_path: Path, damage: bytes) -> None:
    """Whatever is in the journal's place, the worst it does is start from zero."""
    _begun(folder, 2)
    (tmp_path / journal_name("f")).write_bytes(damage)
    part = MappedPart(folder, ENTRY, BLOCK)
    assert part.claimed == []
    part.discard()


def test_a_torn_last_line_costs_one_block(folder: Folder, tmp_path: Path) -> None:
    """A journal that ends in the middle of a line is good up to that line."""
    _begun(folder, 3)
    path = tmp_path / journal_name("f")
    path.write_bytes(path.read_bytes()[:-10])
    part = MappedPart(folder, ENTRY, BLOCK)
    assert len(part.claimed) == 2
    part.discard()


def test_a_beginning_without_a_block_is_removed(folder: Folder, tmp_path: Path) -> None:
    """What cannot be resumed does not keep disk space."""
    MappedPart(folder, ENTRY, BLOCK).abandon()
    assert _names(tmp_path) == []


def test_too_many_open_files_do_not_cost_an_unfinished_one(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the journal cannot be opened, nobody knows what there is, and all of it stays."""
    _begun(folder, 2)
    real = os.open

    def refuse(path: str, *words: Any, **names: Any) -> int:
        if path == journal_name("f"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *words, **names)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(FileTrouble, match="Too many open files"):
            MappedPart(folder, ENTRY, BLOCK)
    again = MappedPart(folder, ENTRY, BLOCK)
    assert len(again.claimed) == 2
    again.discard()


def test_stopping_while_verifying_keeps_what_was_there(folder: Folder) -> None:
    """Ctrl-C during the hashing of a resumed file must not cost the file."""
    _begun(folder, 2)
    part = MappedPart(folder, ENTRY, BLOCK)

    def stop(_: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        part.verify(stop)
    part.abandon()
    again = MappedPart(folder, ENTRY, BLOCK)
    assert len(again.claimed) == 2
    again.discard()


def test_two_transfers_do_not_write_one_file(folder: Folder) -> None:
    """The second one is told so; when the first is over the file is free."""
    first = MappedPart(folder, ENTRY, BLOCK)
    with pytest.raises(FileTrouble, match="another transfer"):
        MappedPart(folder, ENTRY, BLOCK)
    assert first.map is not None
    with memoryview(first.map):
        # Even while somebody still looks at the memory, the lock goes with the part.
        first.abandon()
        MappedPart(folder, ENTRY, BLOCK).abandon()


@pytest.mark.parametrize("beside", [part_name("f"), journal_name("f")])
def test_an_unfinished_file_that_is_a_link_is_not_written_through(
    folder: Folder, tmp_path: Path, beside: str
) -> None:
    """A symbolic link in its place, or its journal's, is trouble and not a way out."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / beside).symlink_to("victim")
    with pytest.raises(FileTrouble):
        MappedPart(folder, ENTRY, BLOCK)
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("beside", [part_name("f"), journal_name("f")])
def test_an_unfinished_file_with_a_second_name_is_not_written_to(
    folder: Folder, tmp_path: Path, beside: str
) -> None:
    """A hard link in its place, or its journal's, is another file's content; it is begun anew."""
    (tmp_path / "victim").write_text("precious")
    os.link(tmp_path / "victim", tmp_path / beside)
    part = MappedPart(folder, ENTRY, BLOCK)
    _fill(part, 4)
    part.commit()
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "f").read_bytes() == DATA


@pytest.mark.parametrize("beside", [part_name("f"), journal_name("f")])
def test_a_pipe_in_the_place_of_an_unfinished_file_does_not_hang(
    folder: Folder, tmp_path: Path, beside: str
) -> None:
    """Opening never waits for the other end of a pipe."""
    os.mkfifo(tmp_path / beside)
    with pytest.raises(FileTrouble, match="not ours"):
        MappedPart(folder, ENTRY, BLOCK)


@pytest.mark.root
@pytest.mark.parametrize("beside", [part_name("f"), journal_name("f")])
def test_a_device_in_the_place_of_an_unfinished_file_is_not_written_to(
    folder: Folder, tmp_path: Path, beside: str
) -> None:
    """Nobody gets a peer's bytes onto a disk or a terminal by giving it such a name."""
    os.mknod(tmp_path / beside, stat.S_IFCHR | 0o600, os.makedev(1, 7))
    with pytest.raises(FileTrouble, match="not ours"):
        MappedPart(folder, ENTRY, BLOCK)


@pytest.mark.root
def test_an_unfinished_file_of_somebody_else_is_not_written_to(
    folder: Folder, tmp_path: Path
) -> None:
    """Its owner could read, and change, what was verified."""
    (tmp_path / part_name("f")).write_bytes(b"")
    os.chown(tmp_path / part_name("f"), 12345, 12345)
    with pytest.raises(FileTrouble, match="not ours"):
        MappedPart(folder, ENTRY, BLOCK)


def test_a_folder_that_is_swapped_for_a_link_leads_nowhere(folder: Folder, tmp_path: Path) -> None:
    """What was opened as a folder stays that folder, whatever its name comes to mean."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "d").mkdir()
    part = MappedPart(folder, replace(ENTRY, path="d/f"), BLOCK)
    (tmp_path / "d").rename(tmp_path / "moved")
    (tmp_path / "d").symlink_to("outside")
    _fill(part, 4)
    part.commit()
    assert _names(tmp_path / "outside") == []
    assert (tmp_path / "moved" / "f").read_bytes() == DATA
    with pytest.raises(FileTrouble, match="links are not followed"):
        MappedPart(folder, replace(ENTRY, path="d/f"), BLOCK)


def test_a_full_disk_is_an_error_before_the_first_byte(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Space is taken at once, and what was begun in vain is removed."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FileTrouble, match="f: No space left on device") as caught:
        MappedPart(folder, ENTRY, BLOCK)
    assert caught.value.errno == errno.ENOSPC
    assert _names(tmp_path) == []


def test_space_is_taken_by_writing_where_the_disk_cannot_reserve_it(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without fallocate zeros are written, so that placing a packet never meets a full disk."""

    def unsupported(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    part = MappedPart(folder, ENTRY, BLOCK)
    assert (tmp_path / part_name("f")).stat().st_blocks * 512 >= len(DATA)
    _fill(part, 4)
    part.commit()
    assert (tmp_path / "f").read_bytes() == DATA


def test_a_name_taken_meanwhile_keeps_the_unfinished_file(folder: Folder, tmp_path: Path) -> None:
    """The work of a whole transfer is not thrown away because of a name."""
    part = MappedPart(folder, ENTRY, BLOCK)
    _fill(part, 4)
    (tmp_path / "f").write_text("theirs")
    with pytest.raises(FileTrouble, match="already exists"):
        part.commit()
    part.abandon()
    assert (tmp_path / "f").read_text() == "theirs"
    assert (tmp_path / part_name("f")).stat().st_size == len(DATA)


def test_finished_blocks_leave_the_memory_of_the_process(folder: Folder) -> None:
    """Pages of a block that has been hashed are given back, so that large files stay small."""
    block = 4 << 20
    entry = Entry("big", Kind.FILE, 4 * block, 0o600, 1)
    part = MappedPart(folder, entry, block)
    assert part.map is not None
    view = memoryview(part.map)
    for index in range(4):
        view[index * block : (index + 1) * block] = b"x" * block
        part.absorb()
    assert _resident_bytes(part.map) < block
    view.release()
    part.discard()


def _resident_bytes(mapping: mmap.mmap) -> int:
    """What this process counts as its own of one mapping."""
    size_kb = f"Size: {len(mapping) // 1024} kB".split()
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if words[0] == "Size:":
            found = words == size_kb
        if found and words[0] == "Rss:":
            return int(words[1]) * 1024
    raise AssertionError("mapping not found")


def test_a_plain_part_is_written_from_front_to_back(folder: Folder, tmp_path: Path) -> None:
    """A stream goes the same way: a name of its own first, the final one when whole."""
    part = Part(folder, ENTRY)
    part.truncate()
    part.write(memoryview(b"hello "))
    part.write(memoryview(b"world"))
    assert not (tmp_path / "f").exists()
    part.commit(keep_time=False)
    part.close()
    assert (tmp_path / "f").read_bytes() == b"hello world"


def test_a_file_that_is_there_can_be_compared(folder: Folder, tmp_path: Path) -> None:
    """What stands under the final name is hashed without following a link."""
    (tmp_path / "f").write_bytes(DATA)
    assert hash_existing(folder, ENTRY, _nothing).hex() == hashlib.sha256(DATA).hexdigest()
    (tmp_path / "f").unlink()
    (tmp_path / "f").symlink_to("/etc/passwd")
    with pytest.raises(FileTrouble):
        hash_existing(folder, ENTRY, _nothing)
    (tmp_path / "f").unlink()
    os.mkfifo(tmp_path / "f")
    with pytest.raises(FileTrouble, match="is no file any more"):
        hash_existing(folder, ENTRY, _nothing)
