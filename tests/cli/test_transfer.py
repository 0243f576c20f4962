"""Whole transfers of files between two links in memory: what arrives, is resumed, or fails.

Reason for the length: every test tells one story of the same two sides, made by the same helpers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import stat
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mrc.cli.conversation import Conversation
from mrc.cli.failures import AbortCode, FileTrouble, IntegrityError, PeerSilent, PeerStopped
from mrc.cli.messages import (
    Abort,
    Accept,
    Entries,
    Hello,
    Message,
    Mode,
    Offer,
    Open,
    Phase,
    Sink,
    Stored,
    to_json,
)
from mrc.cli.names import part_name
from mrc.cli.part import MappedPart
from mrc.cli.progress import Progress
from mrc.cli.sending import SendSettings
from mrc.cli.source import list_paths
from mrc.cli.transfer import FolderSink, receive, send
from mrc.errors import (
    ConfigError,
    PeerLost,
    PeerProtocolError,
    PeerVersionError,
    RemoteAccessError,
    TransportError,
)
from tests.cli.fakelink import FakeLink, linked

pytestmark = pytest.mark.asyncio

BLOCK = 64 << 10
SETTINGS = SendSettings(block_bytes=BLOCK, window_bytes=3 * BLOCK, timeout_s=5.0)


@dataclass
class Run:
    """One transfer from a path to a folder, and how each side ended."""

    source: Path
    out: Path
    overwrite: bool = False
    sender: FakeLink = field(init=False)
    receiver: FakeLink = field(init=False)
    sent: Progress = field(default_factory=Progress)
    received: Progress = field(default_factory=Progress)
    send_error: BaseException | None = None
    receive_error: BaseException | None = None

    def __post_init__(self) -> None:
        self.sender, self.receiver = linked()

    async def send(self) -> None:
        """Run the sending side to its end, and close."""
        try:
            listing = list_paths([str(self.source)], lambda _: None)
            await send(self.sender, listing, self.sent, SETTINGS)
        except Exception as error:  # noqa: BLE001 - the tests look at it
            self.send_error = error
        self.sender.cut()

    async def receive(self) -> None:
        """Run the receiving side to its end, and close."""
        sink = FolderSink(str(self.out), overwrite=self.overwrite)
        try:
            await receive(self.receiver, sink, self.received, timeout_s=5.0)
        except Exception as error:  # noqa: BLE001 - the tests look at it
            self.receive_error = error
        self.receiver.cut()

    async def both(self) -> Run:
        """Run both sides to their ends."""
        await asyncio.gather(self.send(), self.receive())
        return self

    async def well(self) -> Run:
        """Run both sides, which must both succeed."""
        await self.both()
        assert (self.send_error, self.receive_error) == (None, None)
        return self


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree of everything that travels."""
    top = tmp_path / "t"
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "hollow").mkdir()
    (top / "empty").write_text("")
    (top / "large").write_bytes(os.urandom(5 * BLOCK + 17))
    (top / "exact").write_bytes(os.urandom(2 * BLOCK))
    (top / "sub" / "deep" / "\udcff name").write_bytes(b"x")
    (top / "sub" / "l").symlink_to("../large")
    for index in range(100):
        (top / "sub" / f"f{index}").write_bytes(os.urandom(index))
    (top / "large").chmod(0o751)
    (top / "sub" / "deep").chmod(0o500)
    os.utime(top / "large", ns=(1, 1_600_000_000_123_456_789))
    return top


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """One file of ten blocks and a bit."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(10 * BLOCK + 1))
    return path


def _look(top: Path) -> dict[str, Any]:
    """Everything about a tree that must be kept."""
    found: dict[str, Any] = {}
    for path in [top, *sorted(top.rglob("*"))]:
        status = path.lstat()
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = str(path.readlink())
            continue
        content = path.read_bytes() if path.is_file() else None
        found[name] = (content, stat.S_IMODE(status.st_mode), status.st_mtime_ns)
    return found


async def test_a_tree_arrives_with_names_modes_times_and_links(tree: Path, tmp_path: Path) -> None:
    """What is in the output folder afterwards is what was sent, and nothing else."""
    run = await Run(tree, tmp_path / "out").well()
    assert _look(tmp_path / "out" / "t") == _look(tree)
    assert [item.name for item in (tmp_path / "out").iterdir()] == ["t"]
    assert len(run.sent.results) == len(run.received.results) == 104


async def test_the_reported_digest_is_the_plain_sha256(large: Path, tmp_path: Path) -> None:
    """Both sides report what sha256sum would print."""
    run = await Run(large, tmp_path / "out").well()
    expected = hashlib.sha256(large.read_bytes()).hexdigest()
    assert [result.sha256 for result in run.sent.results] == [expected]
    assert [result.sha256 for result in run.received.results] == [expected]
    assert run.sender.written_bytes == large.stat().st_size


async def test_sending_the_same_again_sends_nothing(tree: Path, tmp_path: Path) -> None:
    """Files that are there already are recognised by their digests, not sent and not refused."""
    await Run(tree, tmp_path / "out").well()
    run = await Run(tree, tmp_path / "out").well()
    assert run.sender.written_bytes == 0
    assert run.received.resumed_bytes == sum(
        path.stat().st_size for path in tree.rglob("*") if path.is_file() and not path.is_symlink()
    )


async def test_another_file_under_the_name_is_not_replaced(large: Path, tmp_path: Path) -> None:
    """Without --overwrite both sides are told, and the old file stays."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "large").write_text("old")
    run = await Run(large, tmp_path / "out").both()
    assert isinstance(run.receive_error, FileTrouble)
    assert run.receive_error.errno == errno.EEXIST
    assert isinstance(run.send_error, PeerStopped)
    assert run.send_error.code is AbortCode.FILES
    assert "already exists" in str(run.send_error)
    assert (tmp_path / "out" / "large").read_text() == "old"
    assert run.sender.written_bytes == 0


async def test_another_file_is_replaced_when_told_to(large: Path, tmp_path: Path) -> None:
    """With --overwrite the new file takes its place, whole."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "large").write_text("old")
    await Run(large, tmp_path / "out", overwrite=True).well()
    assert (tmp_path / "out" / "large").read_bytes() == large.read_bytes()


@pytest.mark.parametrize("overwrite", [False, True])
async def test_a_file_that_only_looks_the_same(
    large: Path, tmp_path: Path, overwrite: bool
) -> None:
    """Same size and time are no proof: the digest decides, and --overwrite what follows."""
    (tmp_path / "out").mkdir()
    twin = tmp_path / "out" / "large"
    twin.write_bytes(bytes(large.stat().st_size))
    os.utime(twin, ns=(0, large.stat().st_mtime_ns))
    run = await Run(large, tmp_path / "out", overwrite=overwrite).both()
    if overwrite:
        assert (run.send_error, run.receive_error) == (None, None)
        assert twin.read_bytes() == large.read_bytes()
    else:
        assert isinstance(run.receive_error, FileTrouble)
        assert set(twin.read_bytes()) == {0}


async def _cut_at(run: Run, block: int) -> None:
    """Run a transfer whose connection breaks when a block is about to be written."""

    def cut(imm: int) -> None:
        if imm == block:
            run.sender.cut()

    run.sender.on_write = cut
    await run.both()
    assert isinstance(run.send_error, TransportError)
    assert isinstance(run.receive_error, TransportError)


async def test_a_broken_transfer_goes_on_where_it_stopped(large: Path, tmp_path: Path) -> None:
    """Run again, it sends only the blocks that had not been noted, and verifies the whole."""
    first = Run(large, tmp_path / "out")
    await _cut_at(first, 6)
    assert not (tmp_path / "out" / "large").exists()
    second = await Run(large, tmp_path / "out").well()
    assert (tmp_path / "out" / "large").read_bytes() == large.read_bytes()
    assert second.received.resumed_bytes >= 3 * BLOCK
    sent = second.sender.written_bytes
    assert sent == large.stat().st_size - second.received.resumed_bytes
    assert second.sent.results[0].resumed_bytes == second.received.resumed_bytes


async def test_a_source_that_is_another_now_is_sent_from_the_start(
    large: Path, tmp_path: Path
) -> None:
    """If the beginning differs although size and time do not, nothing old is kept."""
    await _cut_at(Run(large, tmp_path / "out"), 6)
    status = large.stat()
    large.write_bytes(b"\1" + large.read_bytes()[1:])
    os.utime(large, ns=(0, status.st_mtime_ns))
    run = await Run(large, tmp_path / "out").well()
    assert run.received.resumed_bytes == 0
    assert (tmp_path / "out" / "large").read_bytes() == large.read_bytes()


async def test_blocks_lost_at_the_receiver_are_sent_again(large: Path, tmp_path: Path) -> None:
    """When the receiver has less than its journal says both sides agree on that."""
    await _cut_at(Run(large, tmp_path / "out"), 6)
    with (tmp_path / "out" / part_name("large")).open("r+b") as file:
        file.seek(BLOCK)
        file.write(b"\0" * 8)
    run = await Run(large, tmp_path / "out").well()
    assert run.received.resumed_bytes == BLOCK
    assert (tmp_path / "out" / "large").read_bytes() == large.read_bytes()


async def test_a_file_that_was_whole_but_not_renamed(large: Path, tmp_path: Path) -> None:
    """If only the final name was missing, no byte is sent again."""
    await _cut_at(Run(large, tmp_path / "out"), 10)
    part = tmp_path / "out" / part_name("large")
    run = await Run(large, tmp_path / "out").well()
    first_sent = run.sender.written_bytes
    assert first_sent <= 4 * BLOCK
    assert not part.exists()


async def test_what_arrives_damaged_gets_no_name(large: Path, tmp_path: Path) -> None:
    """A flipped bit is an integrity error on both sides, and what is wrong is removed."""
    run = Run(large, tmp_path / "out")
    run.sender.corrupt_at = 4
    await run.both()
    assert isinstance(run.receive_error, IntegrityError)
    assert isinstance(run.send_error, PeerStopped)
    assert run.send_error.code is AbortCode.INTEGRITY
    assert list((tmp_path / "out").iterdir()) == []


async def test_a_source_that_changes_gets_no_name(large: Path, tmp_path: Path) -> None:
    """A file written to while it is sent is an error at its end, told to the receiver."""
    run = Run(large, tmp_path / "out")

    def touch(imm: int) -> None:
        if imm == 2:
            with large.open("r+b") as file:
                file.write(b"changed")
            os.utime(large, ns=(5, 5))

    run.sender.on_write = touch
    await run.both()
    assert isinstance(run.send_error, FileTrouble)
    assert isinstance(run.receive_error, PeerStopped)
    assert "changed while it was being sent" in str(run.receive_error)
    assert not (tmp_path / "out" / "large").exists()


async def test_a_full_disk_is_told_to_both(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender learns the receiver's errno text."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    run = await Run(large, tmp_path / "out").both()
    assert isinstance(run.receive_error, FileTrouble)
    assert run.receive_error.errno == errno.ENOSPC
    assert "No space left on device" in str(run.send_error)


async def test_stopping_one_side_ends_the_other(large: Path, tmp_path: Path) -> None:
    """Ctrl-C is told to the peer, which can say that the transfer may be resumed."""
    run = Run(large, tmp_path / "out")
    started = asyncio.Event()

    def note(imm: int) -> None:
        if imm == 2:
            started.set()

    run.sender.on_write = note
    sending = asyncio.ensure_future(run.send())
    receiving = asyncio.ensure_future(run.receive())
    await started.wait()
    sending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sending
    run.sender.cut()
    await receiving
    assert isinstance(run.receive_error, PeerStopped)
    assert run.receive_error.code is AbortCode.INTERRUPTED
    assert (tmp_path / "out" / part_name("large")).exists()


# ---- peers that do not behave --------------------------------------------------------------------


class Script:
    """A peer that says and writes what it is told to."""

    def __init__(self, link: FakeLink) -> None:
        self.link = link
        self.heard: list[dict[str, Any]] = []

    async def say(self, message: Message) -> None:
        """Say one well-formed message."""
        await self.link.channel.send(to_json(message))

    async def hear(self, kind: str) -> dict[str, Any]:
        """Wait for a message of a kind."""
        while True:
            if not self.heard:
                line = await self.link.channel.receive()
                self.heard = line.get("messages", [line])
            message = self.heard.pop(0)
            if message.get("type") in {kind, "abort"}:
                return message


async def _receive_from(
    tmp_path: Path, script: Coroutine[Any, Any, None], link: FakeLink
) -> BaseException | None:
    """Receive from a scripted sender, and return what the receiver thinks of it."""
    sink = FolderSink(str(tmp_path / "out"))
    receiving = asyncio.ensure_future(receive(link, sink, Progress(), timeout_s=2.0))
    with contextlib.suppress(PeerLost):
        await script
    await asyncio.wait([receiving])
    return receiving.exception()


async def _offer(script: Script, entries: list[dict[str, Any]], total: int) -> dict[str, Any]:
    await script.hear("hello")
    await script.say(Offer(Mode.FILES, BLOCK, len(entries), total))
    await script.say(Entries(entries))
    return await script.hear("open")


@pytest.mark.parametrize(
    "path", ["../evil", "/evil", "a/../../evil", "", "a\0b", "x/y", ".x.mrc-part"]
)
async def test_a_hostile_name_ends_the_transfer(tmp_path: Path, path: str) -> None:
    """Whatever the peer calls a file, nothing is written outside; it is a protocol error."""
    sender, receiver = linked()
    entry = {"path": path, "kind": "file", "size": 1, "mode": 0o644, "mtime_ns": 0}
    script = Script(sender)

    async def act() -> None:
        line = await _offer(script, [entry], 1)
        assert line["code"] == AbortCode.PROTOCOL
        sender.cut()

    assert isinstance(await _receive_from(tmp_path, act(), receiver), PeerProtocolError)
    assert list((tmp_path / "out").iterdir()) == []


FILE = {"path": "f", "kind": "file", "size": 2 * BLOCK, "mode": 0o644, "mtime_ns": 0}


@pytest.mark.parametrize(
    ("imm", "offset", "length"), [(1, BLOCK, BLOCK), (0, 0, 5), (0, 7, BLOCK), (7, 0, BLOCK)]
)
async def test_blocks_out_of_order_end_the_transfer(
    tmp_path: Path, imm: int, offset: int, length: int
) -> None:
    """Blocks come whole, in order and under their own number."""
    sender, receiver = linked()
    script = Script(sender)

    async def act() -> None:
        line = await _offer(script, [FILE], 2 * BLOCK)
        region = receiver.regions[line["region"]["r_key"]]
        await sender.write_imm(bytes(length), region.remote, offset, imm=imm)
        assert (await script.hear("abort"))["code"] == AbortCode.PROTOCOL
        sender.cut()

    assert isinstance(await _receive_from(tmp_path, act(), receiver), PeerProtocolError)
    assert list((tmp_path / "out").iterdir()) == []


async def test_a_block_that_has_been_hashed_cannot_be_written_again(tmp_path: Path) -> None:
    """What was verified is what gets the final name: its memory is sealed before it is hashed."""
    sender, receiver = linked()
    script = Script(sender)

    async def act() -> None:
        line = await _offer(script, [FILE], 2 * BLOCK)
        region = receiver.regions[line["region"]["r_key"]]
        await sender.write_imm(bytes(BLOCK), region.remote, 0, imm=0)
        await script.hear("credit")
        with pytest.raises(RemoteAccessError):
            await sender.write_imm(b"x", region.remote, BLOCK - 1, imm=0)
        sender.cut()

    assert isinstance(await _receive_from(tmp_path, act(), receiver), PeerLost)


async def test_blocks_of_an_earlier_transfer_cannot_be_written_while_they_are_hashed(
    large: Path, tmp_path: Path
) -> None:
    """The memory of a resumed file is sealed up to where its journal says it has come."""
    await _cut_at(Run(large, tmp_path / "out"), 6)
    sender, receiver = linked()
    script = Script(sender)
    entry = list_paths([str(large)], lambda _: None).entries[0].to_json()

    async def act() -> None:
        line = await _offer(script, [entry], large.stat().st_size)
        assert line["blocks"] >= 3
        assert receiver.regions[line["region"]["r_key"]].sealed == line["blocks"] * BLOCK
        sender.cut()

    assert isinstance(await _receive_from(tmp_path, act(), receiver), PeerLost)


async def test_a_slow_disk_locks_a_file_no_longer_than_it_takes(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that outlives its transfer lets the file go when it ends, and keeps what arrived."""
    monkeypatch.setattr("mrc.cli.receiving.DRAIN_S", 0.01)
    loop, disk, absorb = asyncio.get_running_loop(), threading.Event(), MappedPart.absorb
    first = Run(large, tmp_path / "out")

    def slowly(part: MappedPart) -> None:
        if part.blocks_done == 2:
            loop.call_soon_threadsafe(first.sender.cut)
            disk.wait(10)
        absorb(part)

    monkeypatch.setattr(MappedPart, "absorb", slowly)
    assert isinstance((await first.both()).receive_error, PeerLost)
    assert isinstance((await Run(large, tmp_path / "out").both()).receive_error, FileTrouble)
    monkeypatch.setattr(MappedPart, "absorb", absorb)
    disk.set()
    again = Run(large, tmp_path / "out")
    for _ in range(1000):
        again = await Run(large, tmp_path / "out").both()
        if again.receive_error is None:
            break
    assert (again.send_error, again.receive_error) == (None, None)
    assert again.received.resumed_bytes == 3 * BLOCK


@pytest.mark.parametrize(
    "message",
    [
        {"type": "resume", "file": 0, "blocks": 1},
        {"type": "resume", "file": 9, "blocks": 0},
        {"type": "digest", "file": 0, "bytes": 1, "sha256": "0" * 64},
        {"type": "digest", "file": 7, "bytes": 1, "sha256": "0" * 64},
        {"type": "stored", "file": 0, "sha256": "x"},
        {"type": "nonsense"},
        {},
    ],
)
async def test_a_sender_out_of_place_is_refused(tmp_path: Path, message: dict[str, Any]) -> None:
    """Messages about nothing, twice, or of no known kind end the transfer cleanly."""
    sender, receiver = linked()
    script = Script(sender)

    async def act() -> None:
        await _offer(script, [FILE], 2 * BLOCK)
        await sender.channel.send(message)
        await sender.channel.send(message)
        if message.get("type") == "resume" and message["file"] == 0:
            # One is kept for the moment when it is due, a second one is too many.
            await sender.channel.send(message)
        assert (await script.hear("abort"))["code"] == AbortCode.PROTOCOL
        sender.cut()

    assert isinstance(await _receive_from(tmp_path, act(), receiver), PeerProtocolError)


async def test_a_silent_sender_is_given_up(tmp_path: Path) -> None:
    """A peer that connects and says nothing is an error with its name and the time waited."""
    _, receiver = linked()
    sink = FolderSink(str(tmp_path / "out"))
    with pytest.raises(PeerSilent, match=r"no word from sender for 0\.05 s"):
        await receive(receiver, sink, Progress(), timeout_s=0.05)


async def _send_to(
    path: Path, script: Coroutine[Any, Any, None], link: FakeLink
) -> BaseException | None:
    """Send to a scripted receiver, and return what the sender thinks of it."""
    listing = list_paths([str(path)], lambda _: None)
    settings = SendSettings(block_bytes=BLOCK, window_bytes=BLOCK, timeout_s=2.0)
    sending = asyncio.ensure_future(send(link, listing, Progress(), settings))
    await script
    await asyncio.wait([sending])
    return sending.exception()


async def test_something_else_at_the_other_end_is_named(large: Path) -> None:
    """A queue pair of another program is a version error, not a riddle."""
    sender, receiver = linked()

    async def act() -> None:
        await receiver.channel.send({"service": "mrc-perf", "version": 1})

    assert isinstance(await _send_to(large, act(), sender), PeerVersionError)


async def test_a_refusal_instead_of_a_greeting_is_passed_on(large: Path) -> None:
    """A receiver that is busy says so first, and the user reads it."""
    sender, receiver = linked()

    async def act() -> None:
        await Script(receiver).say(Abort(AbortCode.REFUSED, "busy"))

    error = await _send_to(large, act(), sender)
    assert isinstance(error, PeerStopped)
    assert "busy" in str(error)


@pytest.mark.parametrize(
    "message",
    [
        Open(0, 0, 1, {"va": 0, "r_key": 1, "length": 5}),
        Open(0, 12, 0, None),
        Open(0, 0, 0, None),
        Open(3, 0, 0, None),
        Stored(0, "0" * 64),
        Offer(Mode.STREAM, BLOCK),
    ],
)
async def test_a_receiver_out_of_place_is_refused(large: Path, message: Message) -> None:
    """What the receiver says is held against what it was asked."""
    sender, receiver = linked()
    script = Script(receiver)

    async def act() -> None:
        await script.say(Hello(Sink.FOLDER))
        await script.hear("entries")
        await script.say(message if isinstance(message, Offer) else Accept())
        await script.say(message)
        assert (await script.hear("abort"))["code"] == AbortCode.PROTOCOL
        receiver.cut()

    assert isinstance(await _send_to(large, act(), sender), PeerProtocolError)


async def test_a_false_digest_of_the_receiver_is_an_integrity_error(
    tmp_path: Path, large: Path
) -> None:
    """The sender checks what the receiver says it has stored."""
    large.write_bytes(b"x")
    sender, receiver = linked()
    script = Script(receiver)

    async def act() -> None:
        await script.say(Hello(Sink.FOLDER))
        await script.hear("entries")
        await script.say(Accept())
        region = receiver.register(bytearray(1)).remote
        await script.say(Open(0, 0, 1, {"va": region.va, "r_key": region.r_key, "length": 1}))
        await script.hear("digest")
        await script.say(Stored(0, "0" * 64))
        await script.hear("abort")
        receiver.cut()

    assert isinstance(await _send_to(large, act(), sender), IntegrityError)


async def test_many_files_need_a_folder(tree: Path, tmp_path: Path) -> None:
    """A receiver that writes to its standard output takes one file; the refusal says what to do."""
    sender, receiver = linked()
    script = Script(receiver)

    async def act() -> None:
        await script.say(Hello(Sink.STREAM))
        assert (await script.hear("abort"))["code"] == AbortCode.REFUSED
        receiver.cut()

    error = await _send_to(tree, act(), sender)
    assert isinstance(error, ConfigError)
    assert "tar c" in str(error)


async def test_signs_of_life_carry_the_phase(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a beat each side says what it is busy with, and hears the other."""
    monkeypatch.setattr("mrc.cli.conversation.BEAT_S", 0.01)
    sender, receiver = linked()
    heard = asyncio.Event()

    async def wait() -> None:
        await heard.wait()

    class Listening(Progress):
        """Tells when the other side has said what it does."""

        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "peer_phase_bytes" and value:
                heard.set()

    here, there = Listening(), Progress(phase=Phase.HASHING, phase_bytes=7)
    first = Conversation(sender, here, timeout_s=5)
    second = Conversation(receiver, there, timeout_s=5)
    await asyncio.gather(first.carry_out(wait(), {}), second.carry_out(wait(), {}))
    assert (here.peer_phase, here.peer_phase_bytes) == (Phase.HASHING, 7)
