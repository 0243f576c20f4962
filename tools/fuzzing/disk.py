"""A place on the disk to be attacked: an output folder, and beside it what must stay as it is."""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from fuzzing.feed import Feed
from fuzzing.vloop import virtual_loop

_DESCRIPTORS = Path("/proc/self/fd")
_KEPT = b"not for you"


class Playground:
    """`out`, which may be written to, beside `secret` with one file in it, which may not."""

    def __init__(self) -> None:
        self._top = Path(tempfile.mkdtemp(prefix="mrc-fuzz-"))
        self.out = self._top / "out"
        self.secret = self._top / "secret"
        self.secret.mkdir()
        self._kept = self.secret / "kept"
        self._kept.write_bytes(_KEPT)
        self._as_it_was = self._look()

    def _look(self) -> list[object]:
        """Everything about what must not change."""
        found: list[object] = [_names(self._top)]
        for path in (self.secret, self._kept):
            status = path.lstat()
            found.append((path, status.st_ino, status.st_mode, status.st_uid, status.st_mtime_ns))
        return [*found, (_names(self.secret), self._kept.read_bytes())]

    @contextlib.contextmanager
    def attacked(self) -> Iterator[Path]:
        """Lend an empty output folder; afterwards fail if anything was left or done elsewhere."""
        self.out.mkdir()
        virtual_loop()  # which has descriptors of its own
        descriptors = set(_names(_DESCRIPTORS))
        try:
            self._as_it_was = self._look()
            yield self.out
            assert self._look() == self._as_it_was, "something outside the folder was changed"
            left = set(_names(_DESCRIPTORS)) - descriptors
            assert not left, f"descriptors left open: {left}"
            self._check_modes()
        finally:
            _remove(self.out)

    def _check_modes(self) -> None:
        """No peer decides whose rights a program has here."""
        for folder, _, names in os.walk(self.out):
            for name in names:
                status = Path(folder, name).lstat()
                special = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
                assert not status.st_mode & special or stat.S_ISLNK(status.st_mode), name

    def plant(self, feed: Feed, name: str) -> None:
        """Put something in the way, as another user of the folder might."""
        with contextlib.suppress(FileExistsError):
            feed.pick(_PLANTS)(self.out / name, self.secret)

    def close(self) -> None:
        """Remove all of it."""
        _remove(self._top)


@cache
def playground() -> Playground:
    """Return the one of this process."""
    made = Playground()
    atexit.register(made.close)
    return made


def _remove(top: Path) -> None:
    """Remove a tree, also one with folders that their owner may not enter."""
    for folder, names, _ in os.walk(top):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(stat.S_IRWXU)
    shutil.rmtree(top)


def _names(folder: Path) -> list[str]:
    """Return what is in a folder."""
    return sorted(os.listdir(folder))  # noqa: PTH208 - four times as fast as making paths of them


def sha256(path: Path) -> str | None:
    """Return the digest of a file, None if the path leads to no file without a link in between."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ELOOP, errno.ENOTDIR}:
            return None
        raise
    with open(fd, "rb") as file:  # noqa: PTH123 - opened without following links
        return hashlib.file_digest(file, "sha256").hexdigest()


def _link_to_folder(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def _link_to_file(path: Path, secret: Path) -> None:
    path.symlink_to(secret / "kept")


def _link_to_nothing(path: Path, secret: Path) -> None:
    path.symlink_to(secret / "new")


def _second_name(path: Path, secret: Path) -> None:
    os.link(secret / "kept", path)


def _pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path, _: Path) -> None:
    path.mkdir()


def _file(path: Path, _: Path) -> None:
    with path.open("xb") as file:
        file.write(b"here before")


_PLANTS: tuple[Callable[[Path, Path], None], ...] = (
    _link_to_folder, _link_to_file, _link_to_nothing, _second_name, _pipe, _folder, _file,
)  # fmt: skip
