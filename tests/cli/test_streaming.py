"""Streams between two links in memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from mrc.cli.failures import AbortCode, FileTrouble, IntegrityError, OutputClosed, PeerStopped
from mrc.cli.messages import Accept, Credit, Hello, Mode, Offer, Open, Sink, to_json
from mrc.cli.progress import Progress
from mrc.cli.sending import SendSettings
from mrc.cli.source import list_paths
from mrc.cli.stream_io import DescriptorInput, DescriptorOutput, Output
from mrc.cli.streaming import RING_BYTES, STREAM_BLOCK_BYTES
from mrc.cli.transfer import FolderSink, StreamSource, receive, send
from mrc.errors import PeerProtocolError
from tests.cli.fakelink import FakeLink, linked

pytestmark = pytest.mark.asyncio

SETTINGS = SendSettings(timeout_s=5)


class Bytes:
    """An input of given bytes, in pieces of a given length."""

    name = "bytes"

    def __init__(self, data: bytes, piece: int = STREAM_BLOCK_BYTES) -> None:
        self._data = memoryview(data)
        self._piece = piece
        self.closed = False

    def read(self, buffer: memoryview) -> int:
        """Read the next piece."""
        piece = self._data[: min(self._piece, buffer.nbytes)]
        buffer[: piece.nbytes] = piece
        self._data = self._data[piece.nbytes :]
        return piece.nbytes

    def close(self) -> None:
        """Note it."""
        self.closed = True


class Kept:
    """An output that keeps what it gets."""

    name = "kept"

    def __init__(self, error: Exception | None = None) -> None:
        self.data = bytearray()
        self.ends: list[str] = []
        self._error = error

    def write(self, data: memoryview) -> None:
        """Keep it, or fail."""
        if self._error is not None:
            raise self._error
        self.data += data

    def finish(self) -> None:
        """Note it."""
        self.ends.append("finish")

    def close(self) -> None:
        """Note it."""
        self.ends.append("close")


async def _pass(
    source: Bytes, sink: Output | FolderSink, link: tuple[FakeLink, FakeLink] | None = None
) -> tuple[list[BaseException | None], Progress, Progress]:
    """Send a stream into an output, and return how both sides ended."""
    sender, receiver = link or linked()
    sent, received = Progress(), Progress()

    async def sending() -> None:
        try:
            await send(sender, StreamSource(source, "s"), sent, SETTINGS)
        finally:
            sender.cut()

    async def receiving() -> None:
        target = sink if isinstance(sink, FolderSink) else lambda: sink
        try:
            await receive(receiver, target, received, timeout_s=5)
        finally:
            receiver.cut()

    ends = await asyncio.gather(sending(), receiving(), return_exceptions=True)
    return list(ends), sent, received


@pytest.mark.parametrize(
    ("size", "piece"),
    [(0, 1), (1, 1), (100_000, 999), (RING_BYTES + 5, STREAM_BLOCK_BYTES)],
    ids=["empty", "one byte", "small pieces", "longer than the ring"],
)
async def test_a_stream_arrives_whole(size: int, piece: int) -> None:
    """Whatever the pieces it comes in, both sides agree on length and digest."""
    data = os.urandom(size)
    output = Kept()
    ends, sent, received = await _pass(Bytes(data, piece), output)
    assert ends == [None, None]
    assert output.data == data
    assert output.ends == ["finish", "close"]
    assert sent.results == received.results
    assert sent.results[0].sha256 == hashlib.sha256(data).hexdigest()


async def test_a_damaged_stream_is_an_integrity_error(tmp_path: Path) -> None:
    """Nothing appears in the folder when what arrived is not what was sent."""
    sender, receiver = linked()
    sender.corrupt_at = 1
    source = Bytes(os.urandom(5000), 1000)
    ends, _, _ = await _pass(source, FolderSink(str(tmp_path)), (sender, receiver))
    assert isinstance(ends[0], PeerStopped)
    assert ends[0].code is AbortCode.INTEGRITY
    assert isinstance(ends[1], IntegrityError)
    assert list(tmp_path.iterdir()) == []


async def test_what_is_written_is_what_was_hashed() -> None:
    """A sender that writes to the ring again, after a block was hashed, changes nothing."""
    sender, receiver = linked()

    class Late(Kept):
        """An output that is written to after the ring has changed."""

        def write(self, data: memoryview) -> None:
            for region in receiver.regions.values():
                assert region.buffer is not None
                region.buffer[: data.nbytes] = bytes(data.nbytes)
            super().write(data)

    output = Late()
    ends, _, _ = await _pass(Bytes(b"as it was"), output, (sender, receiver))
    assert ends == [None, None]
    assert output.data == b"as it was"


async def test_an_output_that_fails_is_told_to_the_sender() -> None:
    """A full disk and a reader that left look different to both sides."""
    full = FileTrouble(28, "No space left on device", "f")
    ends, _, _ = await _pass(Bytes(b"x"), Kept(full))
    assert ends[1] is full
    assert "No space left on device" in str(ends[0])
    ends, _, _ = await _pass(Bytes(b"x"), Kept(OutputClosed("the reader went away")))
    assert isinstance(ends[0], PeerStopped)
    assert ends[0].code is AbortCode.OUTPUT_CLOSED


async def test_the_name_of_a_stream_must_be_free(tmp_path: Path) -> None:
    """A stream does not replace a file either."""
    (tmp_path / "s").write_text("old")
    ends, _, _ = await _pass(Bytes(b"x"), FolderSink(str(tmp_path)))
    assert isinstance(ends[1], FileTrouble)
    assert (tmp_path / "s").read_text() == "old"


async def test_the_input_is_closed_whatever_happens() -> None:
    """An open file does not outlive its transfer."""
    source = Bytes(b"x")
    await _pass(source, Kept(FileTrouble(28, "full", "f")))
    for _ in range(1000):
        if source.closed:
            break
        await asyncio.sleep(0.001)
    assert source.closed


async def test_one_file_goes_to_an_output_as_a_stream(tmp_path: Path) -> None:
    """A receiver that writes to its standard output takes a file by name as well."""
    path = tmp_path / "f"
    path.write_bytes(os.urandom(STREAM_BLOCK_BYTES + 3))
    sender, receiver = linked()
    output = Kept()

    async def sending() -> None:
        listing = list_paths([str(path)], lambda _: None)
        await send(sender, listing, Progress(), SETTINGS)
        sender.cut()

    await asyncio.gather(sending(), receive(receiver, lambda: output, Progress(), timeout_s=5))
    assert output.data == path.read_bytes()


async def test_no_more_is_sent_than_the_ring_holds() -> None:
    """A receiver that takes nothing stops the sender at the blocks it has said are ready."""
    sender, receiver = linked()
    source = Bytes(bytes(4 * STREAM_BLOCK_BYTES))
    sending = asyncio.ensure_future(send(sender, StreamSource(source, "s"), Progress(), SETTINGS))
    ring = receiver.register(bytearray(2 * STREAM_BLOCK_BYTES)).remote
    place = {"va": ring.va, "r_key": ring.r_key, "length": ring.length}
    for message in (Hello(Sink.STREAM), Accept(), Open(0, 0, 2, place)):
        await receiver.channel.send(to_json(message))
    for count in (2, 3):
        for _ in range(count if count == 2 else 1):
            await receiver.next_immediate()
        await asyncio.sleep(0.01)
        assert sender.written_bytes == count * STREAM_BLOCK_BYTES
        assert receiver.immediates.empty()
        await receiver.channel.send(to_json(Credit(0, count - 1, count + 1)))
    sending.cancel()
    receiver.cut()
    await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("imm", [1, 0xFFFFFFFF])
async def test_blocks_of_a_stream_come_in_order(imm: int) -> None:
    """A block under another number ends the transfer."""
    sender, receiver = linked()
    receiving = asyncio.ensure_future(receive(receiver, Kept, Progress(), timeout_s=5))
    await sender.channel.receive()
    await sender.channel.send(to_json(Offer(Mode.STREAM, STREAM_BLOCK_BYTES, name="s")))
    place: dict[str, int] = {}
    while not place:
        line = await sender.channel.receive()
        for message in line.get("messages", [line]):
            place = message.get("region") or place
    region = receiver.regions[place["r_key"]]
    await sender.write_imm(b"x", region.remote, 0, imm=imm)
    await sender.channel.receive()
    sender.cut()
    with pytest.raises(PeerProtocolError):
        await receiving


async def test_a_pipe_is_read_as_it_comes() -> None:
    """What is at hand goes out at once, a full pipe fills the buffer, its end is the end."""
    read_fd, write_fd = os.pipe()
    try:
        source = DescriptorInput(read_fd, "pipe")
        buffer = memoryview(bytearray(100))
        os.write(write_fd, b"abc")
        assert source.read(buffer) == 3
        os.write(write_fd, b"x" * 150)
        assert source.read(buffer) == 100
        assert source.read(buffer) == 50
        os.close(write_fd)
        assert source.read(buffer) == 0
    finally:
        os.close(read_fd)


async def test_a_closed_pipe_is_a_reader_that_left() -> None:
    """Writing to it is no trouble with a file."""
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    try:
        with pytest.raises(OutputClosed):
            DescriptorOutput(write_fd, "pipe").write(memoryview(b"x"))
    finally:
        os.close(write_fd)
