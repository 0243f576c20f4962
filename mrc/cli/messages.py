"""What the two ends of a file transfer say to each other, one JSON object a line.

The receiver greets first. A transfer of files, S for the sender and R for the receiver:

    R hello     who it is, and whether it fills a folder or its standard output
    S offer     files or a stream, how many entries, how many bytes, the block length
    S entries   the list, in as many lines as it takes
    R accept    names and space are in order
    R open      a file's memory region, and how many blocks an earlier transfer left there; once
                more, with another region, when not all of those are good
    R prefix    the digest of those blocks; S resume: from this block on
    S digest    a file's digest, while its blocks are written by write-with-immediate (imm = number)
    R credit    blocks that have been hashed, and up to which block the sender may write
    R stored    the file has its final name
    S bye       that was all;  R finished: folders and names are durable

A stream is one file whose region is a ring of blocks. Either side sends `status` every second and
may end it all with `abort`. Everything from the peer is read here and refused with one exception.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from mrc.cli.failures import AbortCode
from mrc.cli.manifest import ENTRIES_MAX, FILE_BYTES_MAX
from mrc.cli.names import COMPONENT_BYTES_MAX
from mrc.errors import PeerProtocolError, PeerVersionError
from mrc.text import printable

SERVICE = "mrc-file"
VERSION = 1

BLOCK_BYTES_MIN = 64 << 10
BLOCK_BYTES_MAX = 64 << 20
BLOCK_ALIGNMENT_BYTES = 64 << 10
"""The largest page size in use: the memory of a finished block is given back in whole pages."""

BATCH_MESSAGES_MAX = 512
"""Most messages in one line: about 100 KB."""

_BATCH = "batch"
TOTAL_BYTES_MAX = 1 << 62
TEXT_CHARACTERS_MAX = 2000
_SHA256_DIGITS = frozenset("0123456789abcdef")


class Sink(StrEnum):
    """Where a receiver puts what it gets."""

    FOLDER = "folder"
    STREAM = "stream"


class Mode(StrEnum):
    """How a sender sends."""

    FILES = "files"
    STREAM = "stream"


class Phase(StrEnum):
    """What a side is busy with, for the other side's display and for a stalled transfer."""

    LISTING = "listing"
    PREPARING = "preparing"
    HASHING = "hashing"
    MOVING = "moving"
    READING = "reading"
    """Waiting for its own input, such as a pipe."""
    WRITING = "writing"
    """Waiting for its disk, or for whoever reads its output."""
    FINISHING = "finishing"


@dataclass(frozen=True, slots=True)
class Hello:
    """The receiver's greeting."""

    TYPE: ClassVar[str] = "hello"
    sink: Sink
    service: str = SERVICE
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Offer:
    """What the sender would like to send; `name` is for a stream, `entries` and `bytes` are not."""

    TYPE: ClassVar[str] = "offer"
    mode: Mode
    block_bytes: int
    entries: int = 0
    bytes: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Entries:
    """The next entries of the list, still as they came: `ManifestReader` reads them."""

    TYPE: ClassVar[str] = "entries"
    entries: list[Any]


@dataclass(frozen=True, slots=True)
class Accept:
    """The receiver agrees to the whole list."""

    TYPE: ClassVar[str] = "accept"


@dataclass(frozen=True, slots=True)
class Open:
    """A file is ready to be written to, or (without a region) is there already, it seems.

    `blocks` are there from an earlier transfer; blocks below `ready` may be written.
    """

    TYPE: ClassVar[str] = "open"
    file: int
    blocks: int
    ready: int
    region: dict[str, int] | None


@dataclass(frozen=True, slots=True)
class Prefix:
    """The digest of the first blocks of a file at the receiver."""

    TYPE: ClassVar[str] = "prefix"
    file: int
    blocks: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Resume:
    """The block from which the sender goes on."""

    TYPE: ClassVar[str] = "resume"
    file: int
    blocks: int


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The digest of a whole file at the sender, and its length, which a stream learns last."""

    TYPE: ClassVar[str] = "digest"
    file: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Credit:
    """How many blocks of a file have been hashed at the receiver; those below `ready` may come."""

    TYPE: ClassVar[str] = "credit"
    file: int
    blocks: int
    ready: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A file is verified and has its final name."""

    TYPE: ClassVar[str] = "stored"
    file: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender has nothing more to send."""

    TYPE: ClassVar[str] = "bye"


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything is stored and durable."""

    TYPE: ClassVar[str] = "finished"


@dataclass(frozen=True, slots=True)
class Status:
    """A sign of life, and what the side is busy with; `bytes` counts what that has done."""

    TYPE: ClassVar[str] = "status"
    phase: Phase
    bytes: int


@dataclass(frozen=True, slots=True)
class Abort:
    """The transfer is over, and why."""

    TYPE: ClassVar[str] = "abort"
    code: AbortCode
    text: str


Message = (
    Hello
    | Offer
    | Entries
    | Accept
    | Open
    | Prefix
    | Resume
    | FileDigest
    | Credit
    | Stored
    | Bye
    | Finished
    | Status
    | Abort
)


def to_json(message: Message) -> dict[str, Any]:
    """The form that travels."""
    line: dict[str, Any] = {field.name: getattr(message, field.name) for field in fields(message)}
    return {"type": message.TYPE, **line}


def batch_to_json(messages: Sequence[Message]) -> dict[str, Any]:
    """The form in which messages that are said together travel: one line."""
    if len(messages) == 1:
        return to_json(messages[0])
    return {"type": _BATCH, "messages": [to_json(message) for message in messages]}


def messages_untrusted(line: Mapping[str, Any]) -> list[Message]:
    """Read one line of the peer: a message, or several together.

    Raises:
        PeerProtocolError: one of them is none of ours, or out of bounds, or there are too many.
    """
    if line.get("type") != _BATCH:
        return [message_untrusted(line)]
    items = line.get("messages")
    if not isinstance(items, list) or len(items) > BATCH_MESSAGES_MAX:
        raise PeerProtocolError(f"a batch that is no list of at most {BATCH_MESSAGES_MAX} messages")
    if not all(isinstance(item, dict) for item in items):
        raise PeerProtocolError("a batch of other things than messages")
    return [message_untrusted(item) for item in items]


def message_untrusted(line: Mapping[str, Any]) -> Message:
    """Read one message of the peer.

    Raises:
        PeerProtocolError: it is none of ours, or a field is missing or out of bounds.
    """
    kind = line.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise PeerProtocolError(f"a message of unknown type {printable(repr(kind))}")
    return reader(_Fields(kind or "", line))


def hello_untrusted(line: Mapping[str, Any]) -> Hello | Abort:
    """Read the receiver's first line, which may be a refusal.

    Raises:
        PeerVersionError: the peer is no receiver of files, or one of another version.
        PeerProtocolError: it greets as one, but wrongly.
    """
    if line.get("type") == Abort.TYPE:
        return _abort(_Fields(Abort.TYPE, line))
    if line.get("service") != SERVICE:
        raise PeerVersionError(
            f"the peer is not an mrc-recv: it says {printable(repr(line.get('service')))}"
        )
    if line.get("version") != VERSION:
        raise PeerVersionError(
            f"the peer speaks version {printable(repr(line.get('version')))} of file transfer,"
            f" this is version {VERSION}"
        )
    return _hello(_Fields(Hello.TYPE, line))


class _Fields:
    """Reads typed and bounded fields of one line."""

    def __init__(self, kind: str, line: Mapping[str, Any]) -> None:
        self._kind = kind
        self._line = line

    def number(self, key: str, high: int, low: int = 0) -> int:
        value = self._line.get(key)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(key, f"a whole number from {low} to {high}")
        return value

    def text(self, key: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
        value = self._line.get(key)
        if not isinstance(value, str) or len(value) > characters_max:
            raise self._wrong(key, f"text of at most {characters_max} characters")
        return value

    def sha256(self) -> str:
        value = self._line.get("sha256")
        if not isinstance(value, str) or len(value) != 64 or not _SHA256_DIGITS.issuperset(value):
            raise self._wrong("sha256", "64 hexadecimal digits")
        return value

    def region(self) -> dict[str, int] | None:
        value = self._line.get("region")
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong("region", "an object")
        inner = _Fields(f"{self._kind} region", value)
        length = inner.number("length", FILE_BYTES_MAX, 1)
        return {
            "va": inner.number("va", (1 << 64) - length),
            "r_key": inner.number("r_key", (1 << 32) - 1),
            "length": length,
        }

    def items(self, key: str) -> list[Any]:
        value = self._line.get(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list")
        return value

    def file(self) -> int:
        return self.number("file", ENTRIES_MAX - 1)

    def blocks(self, key: str = "blocks") -> int:
        return self.number(key, TOTAL_BYTES_MAX // BLOCK_BYTES_MIN)

    def block_bytes(self) -> int:
        value = self.number("block_bytes", BLOCK_BYTES_MAX, BLOCK_BYTES_MIN)
        if value % BLOCK_ALIGNMENT_BYTES:
            raise self._wrong("block_bytes", f"a multiple of {BLOCK_ALIGNMENT_BYTES}")
        return value

    def _wrong(self, key: str, wanted: str) -> PeerProtocolError:
        value = printable(repr(self._line.get(key)))
        return PeerProtocolError(f"{self._kind} message: {key} is not {wanted}: {value}")


def _hello(f: _Fields) -> Hello:
    sink = _word(f, "sink", Sink)
    return Hello(sink, f.text("service"), f.number("version", 1 << 16))


def _abort(f: _Fields) -> Abort:
    return Abort(_word(f, "code", AbortCode), f.text("text"))


def _offer(f: _Fields) -> Offer:
    mode = _word(f, "mode", Mode)
    block_bytes = f.block_bytes()
    if mode is Mode.STREAM:
        return Offer(mode, block_bytes, name=f.text("name", COMPONENT_BYTES_MAX))
    entries = f.number("entries", ENTRIES_MAX, 1)
    return Offer(mode, block_bytes, entries, f.number("bytes", TOTAL_BYTES_MAX))


_Word = TypeVar("_Word", bound=StrEnum)


def _word(f: _Fields, key: str, words: type[_Word]) -> _Word:
    text = f.text(key)
    try:
        return words(text)
    except ValueError:
        raise PeerProtocolError(f"unknown {key} {printable(text)!r}") from None


_READERS: dict[str, Callable[[_Fields], Message]] = {
    Hello.TYPE: _hello,
    Offer.TYPE: _offer,
    Entries.TYPE: lambda f: Entries(f.items("entries")),
    Accept.TYPE: lambda _: Accept(),
    Open.TYPE: lambda f: Open(f.file(), f.blocks(), f.blocks("ready"), f.region()),
    Prefix.TYPE: lambda f: Prefix(f.file(), f.blocks(), f.sha256()),
    Resume.TYPE: lambda f: Resume(f.file(), f.blocks()),
    FileDigest.TYPE: lambda f: FileDigest(f.file(), f.number("bytes", TOTAL_BYTES_MAX), f.sha256()),
    Credit.TYPE: lambda f: Credit(f.file(), f.blocks(), f.blocks("ready")),
    Stored.TYPE: lambda f: Stored(f.file(), f.sha256()),
    Bye.TYPE: lambda _: Bye(),
    Finished.TYPE: lambda _: Finished(),
    Status.TYPE: lambda f: Status(_word(f, "phase", Phase), f.number("bytes", TOTAL_BYTES_MAX)),
    Abort.TYPE: _abort,
}
