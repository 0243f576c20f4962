"""Processes that may have few descriptors: an EV costs one, and so does all else."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import mrc
from mrc.errors import LocalError, PeerRefused
from mrc.udp import caps, probe_caps
from tests.cli.commands import receiver, send
from tests.engine.conftest import (
    nothing_left,  # noqa: F401 - looks after each test
    until,
)

FEW = 64
REMEDY = r"Too many open files; this process may have {}: raise `ulimit -n`, or use fewer paths"


def open_descriptors() -> set[int]:
    """Return which descriptors this process has open."""
    gc.collect()
    listed = list(Path("/proc/self/fd").iterdir())
    # The one for the list itself is closed by now.
    return {int(each.name) for each in listed if each.is_symlink()}


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[int]:
    """Let this process open that many more; yield its limit meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken, limit = open_descriptors(), 0
    while count:
        count -= limit not in taken
        limit += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def few() -> None:
    """Allow this process sixty-four descriptors."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, FEW))


# The commands.


@pytest.mark.slow
def test_sixty_four_are_enough_for_a_transfer_with_the_default_paths(tmp_path: Path) -> None:
    """Both commands, each with so few, move a file."""
    source, data = tmp_path / "source", os.urandom(3_000_000)
    source.write_bytes(data)
    with receiver(tmp_path / "out", "--once", preexec_fn=few) as recv:
        sent = send(source, recv.url(), preexec_fn=few)
        received = recv.end()
    assert (sent.code, received.code) == (0, 0), sent.err + received.err
    assert (tmp_path / "out" / "source").read_bytes() == data


@pytest.mark.slow
def test_more_paths_than_descriptors_is_told_with_limit_and_remedy(tmp_path: Path) -> None:
    """It is a matter of local set-up, exit code 2, in one line."""
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with receiver(tmp_path / "out") as recv:
        sent = send("--paths", FEW, source, recv.url(), preexec_fn=few)
    assert sent.code == 2
    (line,) = sent.err.splitlines()
    assert f"this process may have {FEW}: raise `ulimit -n`, or use fewer paths" in line
    assert not (tmp_path / "out" / "source").exists()


# The interface.


@pytest.mark.asyncio
async def test_connecting_without_enough_descriptors_leaves_none_open() -> None:
    """All EVs or none: the error names the limit, and what was opened for nothing is closed."""
    async with mrc.listen("127.0.0.1:0") as listener, mrc.Endpoint(mrc.Config(paths=32)) as client:
        # The listening side has opened all it needs when the first peer has been there.
        async with mrc.connect(listener.url) as qp, await listener.accept():
            pass
        with descriptors_left(30) as limit:
            before = len(open_descriptors())
            with pytest.raises(LocalError, match=REMEDY.format(limit)) as told:
                await client.connect(listener.url)
            assert told.value.errno == errno.EMFILE
            # What stays is its port: a socket that receives, and one that watches links.
            await until(lambda: len(open_descriptors()) == before + 2)
        async with client.connect(listener.url) as qp, await listener.accept() as peer:
            await qp.send(b"there are enough now")
            assert await peer.receive() == b"there are enough now"


@pytest.mark.asyncio
async def test_listener_without_enough_descriptors_refuses_and_goes_on() -> None:
    """The peer is told what is wrong and where; when there are enough again the next one is in."""
    server = mrc.Endpoint(mrc.Config(paths=32))
    async with server, server.listen("127.0.0.1:0") as listener:
        few_paths = mrc.Config(paths=4)
        with descriptors_left(40) as limit:
            for _ in range(2):
                with pytest.raises(PeerRefused, match=f"refused: .*{REMEDY.format(limit)}"):
                    await mrc.connect(listener.url, config=few_paths)
        assert listener.refused_handshakes == 2
        async with mrc.connect(listener.url, config=few_paths) as qp, await listener.accept():
            assert qp.failure is None


# What the machine can do.


def test_what_this_kernel_can_do_is_not_judged_without_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Capabilities are tried once a process: a try for which there was no socket is none."""
    known = probe_caps(socket.AF_INET)
    caps._probe.cache_clear()  # noqa: SLF001 - as in a process that has not tried yet
    with descriptors_left(1), pytest.raises(LocalError, match="Too many open files"):
        probe_caps(socket.AF_INET)
    assert probe_caps(socket.AF_INET) == known
