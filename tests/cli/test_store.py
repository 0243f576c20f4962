"""The output folder: nothing outside it, nothing replaced, nothing half done."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mrc.cli.failures import FileTrouble
from mrc.cli.manifest import Entry, Kind
from mrc.cli.names import part_name
from mrc.cli.store import Folder, Standing
from mrc.cli.syscalls import rename_new


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The path of an output folder, with a forbidden neighbour."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def folder(out: Path) -> Iterator[Folder]:
    """An open output folder."""
    folder = Folder(str(out))
    yield folder
    folder.close()


def _file(path: str, size: int = 0, mtime_ns: int = 0) -> Entry:
    return Entry(path, Kind.FILE, size, 0o640, mtime_ns)


def _dir(path: str, mode: int = 0o755) -> Entry:
    return Entry(path, Kind.FOLDER, 0, mode, 5_000_000_000)


def test_a_missing_folder_is_made_but_not_its_parents(tmp_path: Path) -> None:
    """One level is made on demand; a mistyped path is an error with a name."""
    Folder(str(tmp_path / "new")).close()
    assert (tmp_path / "new").is_dir()
    with pytest.raises(FileTrouble, match=r"x/y.*No such file"):
        Folder(str(tmp_path / "x" / "y"))


def test_a_file_in_the_place_of_the_folder_is_trouble(tmp_path: Path) -> None:
    """The output folder must be one."""
    (tmp_path / "f").write_text("")
    with pytest.raises(FileTrouble):
        Folder(str(tmp_path / "f"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_folder_without_write_permission_is_trouble(out: Path) -> None:
    """A read-only folder is found out at once."""
    out.chmod(0o555)
    with pytest.raises(FileTrouble, match="Permission denied"):
        Folder(str(out))


def test_links_in_the_folder_are_not_followed(out: Path, folder: Folder) -> None:
    """A link that stands where a folder is named leads nowhere, whoever made it."""
    (out / "d").symlink_to("../outside")
    with pytest.raises(FileTrouble, match="links are not followed"):
        folder.make_folder(_dir("d/x"))
    with pytest.raises(FileTrouble, match="way of a folder"):
        folder.survey([_dir("d")])
    with pytest.raises(FileTrouble, match="links are not followed"):
        folder.make_folder(_dir("d"))
    assert not list((out.parent / "outside").iterdir())


def test_a_link_under_a_final_name_is_not_followed(out: Path, folder: Folder) -> None:
    """A link with the name of a file is a name that is taken."""
    (out / "f").symlink_to("../outside/f")
    with pytest.raises(FileTrouble, match="already exists"):
        folder.survey([_file("f")])
    assert not (out.parent / "outside" / "f").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_pipe_under_a_final_name_is_taken_for_a_name(out: Path, overwrite: bool) -> None:
    """What is no file is neither opened nor written to: it is in the way, or it is replaced."""
    os.mkfifo(out / "f")
    (out / "tmp").write_text("new")
    folder = Folder(str(out), overwrite=overwrite)
    with folder.parent_of(_file("f")) as (fd, name):
        if overwrite:
            assert folder.survey([_file("f")]) == [Standing.OTHER]
            folder.place("tmp", name, fd, ("f",))
            assert (out / "f").read_text() == "new"
        else:
            with pytest.raises(FileTrouble, match="already exists"):
                folder.survey([_file("f")])
            with pytest.raises(FileTrouble, match="already exists"):
                folder.place("tmp", name, fd, ("f",))
            assert (out / "f").is_fifo()
    folder.close()


def test_existing_names_are_refused_before_anything_is_written(out: Path, folder: Folder) -> None:
    """All conflicts are found at once, a few of them named and the rest counted."""
    for name in "abcde":
        (out / name).write_text("old")
    with pytest.raises(FileTrouble, match=r"a: already exists.*/b, .*/c and 2 more") as caught:
        folder.survey([_file(name) for name in "abcdef"])
    assert caught.value.errno == errno.EEXIST


def test_the_same_file_again_is_no_conflict(out: Path, folder: Folder) -> None:
    """A file of the same size and time may be the same one; its digest will tell."""
    (out / "a").write_text("abc")
    os.utime(out / "a", ns=(7, 7))
    found = folder.survey([_file("a", 3, 7), _file("b"), _dir("d"), _file("d/x", 5)])
    assert found == [Standing.ALIKE, Standing.ABSENT, Standing.ABSENT, Standing.ABSENT]


def test_folders_and_files_do_not_replace_each_other(out: Path) -> None:
    """Even when told to overwrite, a folder is not replaced by a file nor a file by a folder."""
    (out / "a").mkdir()
    (out / "b").write_text("")
    folder = Folder(str(out), overwrite=True)
    with pytest.raises(FileTrouble, match="in the way of a file"):
        folder.survey([_file("a")])
    with pytest.raises(FileTrouble, match="in the way of a folder"):
        folder.survey([_dir("b")])
    folder.close()


def test_too_little_space_is_found_before_the_first_byte(folder: Folder) -> None:
    """What cannot fit is refused with the kernel's words and both numbers."""
    with pytest.raises(FileTrouble, match=r"No space left on device: 64\.0 TiB needed") as caught:
        folder.survey([_file("a", 1 << 46)])
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(("inodes", "fits"), [(1000, False), (0, True)])
def test_too_few_inodes_are_found_before_the_first_byte(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, inodes: int, fits: bool
) -> None:
    """Many small files can fill a disk that has room; one that makes inodes has no such end."""
    monkeypatch.setattr(os, "fstatvfs", _disk_with_two_inodes_free(os.fstatvfs, inodes))
    entries = [_file(name, 1) for name in "abc"]
    folder.survey(entries[:2])
    if fits:
        folder.survey(entries)
    else:
        with pytest.raises(FileTrouble, match=r"No space left on device: 3 files needed, 2 free"):
            folder.survey(entries)


def _disk_with_two_inodes_free(
    real: Callable[[int], os.statvfs_result], inodes: int
) -> Callable[[int], os.statvfs_result]:
    def look(fd: int) -> os.statvfs_result:
        fields = list(real(fd))
        # f_files, f_ffree, f_favail.
        fields[5:8] = [inodes, 2, 2] if inodes else [0, 0, 0]
        return os.statvfs_result(fields)

    return look


def test_space_that_an_unfinished_file_has_already_counts(out: Path, folder: Folder) -> None:
    """Resuming needs room for the rest only."""
    with (out / part_name("a")).open("wb") as part:
        os.posix_fallocate(part.fileno(), 0, 1 << 20)
    free = os.statvfs(out).f_bavail * os.statvfs(out).f_frsize
    # The rest of the machine writes too: leave it half of what the unfinished file holds.
    folder.survey([_file("a", free + (1 << 19))])


def test_modes_and_times_of_folders_are_set_at_the_end(out: Path, folder: Folder) -> None:
    """A read-only folder can be filled, and is read-only when all is done."""
    entries = [_dir("d", 0o555), _dir("d/e", 0o500)]
    for entry in entries:
        folder.make_folder(entry)
    (out / "d" / "e" / "f").write_text("x")
    folder.finish(entries)
    assert stat.S_IMODE((out / "d").stat().st_mode) == 0o555
    assert stat.S_IMODE((out / "d" / "e").stat().st_mode) == 0o500
    assert (out / "d").stat().st_mtime_ns == 5_000_000_000


def test_folders_that_were_there_keep_their_modes(out: Path, folder: Folder) -> None:
    """Receiving into an existing folder changes what is in it, not the folder itself."""
    (out / "d").mkdir(mode=0o700)
    entries = [_dir("d", 0o555)]
    folder.make_folder(entries[0])
    folder.finish(entries)
    assert stat.S_IMODE((out / "d").stat().st_mode) == 0o700


def test_folders_of_an_interrupted_transfer_are_finished(out: Path, folder: Folder) -> None:
    """A folder left as we leave them gets its mode when the transfer is run again."""
    (out / "d").mkdir()
    (out / "d").chmod(0o755)
    entries = [_dir("d", 0o555)]
    folder.make_folder(entries[0])
    folder.finish(entries)
    assert stat.S_IMODE((out / "d").stat().st_mode) == 0o555


def test_a_final_name_that_appears_meanwhile_is_not_replaced(out: Path, folder: Folder) -> None:
    """Between the survey and the end somebody else may take the name; theirs stays."""
    (out / "tmp").write_text("new")
    (out / "a").write_text("theirs")
    with folder.parent_of(_file("a")) as (fd, name), pytest.raises(FileTrouble, match="already"):
        folder.place("tmp", name, fd, ("a",))
    assert (out / "a").read_text() == "theirs"


def test_renaming_works_where_the_kernel_lacks_the_call(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without renameat2 the same promise is kept by a hard link."""
    monkeypatch.setattr("mrc.cli.syscalls._rename_noreplace", lambda *_: errno.ENOSYS)
    (out / "tmp").write_text("new")
    fd = os.open(out, os.O_RDONLY)
    try:
        rename_new("tmp", "a", fd)
        (out / "tmp").write_text("newer")
        with pytest.raises(FileExistsError):
            rename_new("tmp", "a", fd)
    finally:
        os.close(fd)
    assert (out / "a").read_text() == "new"


def test_two_names_that_the_disk_takes_for_one_are_refused(out: Path) -> None:
    """With --overwrite the second of two names must not replace the first of the same transfer."""
    folder = Folder(str(out), overwrite=True)
    for content in ("one", "two"):
        (out / "tmp").write_text(content)
        with folder.parent_of(_file("a")) as (fd, name):
            if content == "one":
                folder.place("tmp", name, fd, ("a",))
            else:
                with pytest.raises(FileTrouble, match="same name as another"):
                    folder.place("tmp", name, fd, ("a",))
    folder.close()
    assert (out / "a").read_text() == "one"


def test_links_are_made_and_remade(out: Path, folder: Folder) -> None:
    """A link is made once, left alone when it says the same, replaced only when told to."""
    folder.make_link(Entry("l", Kind.LINK, target="a"))
    folder.make_link(Entry("l", Kind.LINK, target="a"))
    with pytest.raises(FileTrouble, match="File exists"):
        folder.make_link(Entry("l", Kind.LINK, target="b"))
    replacing = Folder(str(out), overwrite=True)
    replacing.make_link(Entry("l", Kind.LINK, target="b"))
    replacing.close()
    assert [(item.name, str(item.readlink())) for item in out.iterdir()] == [("l", "b")]
