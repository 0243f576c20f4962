"""What the two sides say beside the data: JSON objects over a queue pair of their own.

C connects, L listens; a client's first queue pair is for talking only, so that what is counted on
the others is data and nothing else.

    C offer     what will be measured, and the memory it takes;  L accept
    C join      on each further queue pair: which lane it is;    L target: where to write
    C run       a round: size, how many, how many at once;       L ready
    C stop      it is over, and how many messages there were;    L result: what L saw
    C bye

Either may say `working` as often as it likes while the other waits for it, and `refuse`, with the
reason, as its last word.

Everything from a peer is read here, against one table of types and bounds, and refused with one
exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from types import UnionType
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import mrc
from mrc.errors import PeerError, PeerProtocolError, PeerRefused, PeerVersionError
from mrc.perf.measures import ReceiverFigures, SenderFigures
from mrc.perf.settings import (
    BUFFER_BYTES_MAX,
    DEPTH_MAX,
    MESSAGE_BYTES_MAX,
    OPERATIONS_MAX,
    QPS_MAX,
    Kind,
)
from mrc.text import printable

SERVICE = "mrc-perf"
VERSION = 1
TEXT_CHARACTERS_MAX = 1000
_SHOWN_CHARACTERS_MAX = 500
ITEMS_MAX = QPS_MAX
NUMBER_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Offer:
    """What a client will measure."""

    TYPE: ClassVar[str] = "offer"
    kind: Kind
    qps: int
    buffer_bytes: int
    message_bytes_max: int
    bidirectional: bool
    verify: bool
    seed: int
    service: str = SERVICE
    version: int = VERSION

    @property
    def both_ways(self) -> bool:
        """Both sides write."""
        return self.kind.both_ways(bidirectional=self.bidirectional)

    @property
    def memory_bytes(self) -> int:
        """Buffers that each side has to have, all queue pairs together."""
        return self.qps * self.buffer_bytes * (2 if self.both_ways else 1)


@dataclass(frozen=True, slots=True)
class Accept:
    """The listener agrees; `session` is what the client's other queue pairs say."""

    TYPE: ClassVar[str] = "accept"
    session: str


class Reason(StrEnum):
    """Why one side does not go on: the word that the other side's exit code depends on."""

    VERSION = "version"
    PROTOCOL = "protocol"
    UNWANTED = "unwanted"
    """It is busy, has not the memory, or has waited for too long: the text says what."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """One side does not want it, or cannot, and says why."""

    TYPE: ClassVar[str] = "refuse"
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class Working:
    """What the peer waits for takes long, and is being done."""

    TYPE: ClassVar[str] = "working"


@dataclass(frozen=True, slots=True)
class Join:
    """A queue pair that will carry data; `region` is for what the listener writes."""

    TYPE: ClassVar[str] = "join"
    session: str
    lane: int
    region: mrc.RemoteRegion | None


@dataclass(frozen=True, slots=True)
class Target:
    """Where to write."""

    TYPE: ClassVar[str] = "target"
    region: mrc.RemoteRegion


@dataclass(frozen=True, slots=True)
class Round:
    """One stretch of traffic; it begins when the listener is ready for it."""

    TYPE: ClassVar[str] = "run"
    message_bytes: int
    """Of every message."""
    operations: int
    """Messages a queue pair; 0: until it is stopped."""
    depth: int
    """Writes outstanding a queue pair."""
    counts: bool = True
    """It is no warm-up."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The listener has looked at its counters and its clock."""

    TYPE: ClassVar[str] = "ready"


@dataclass(frozen=True, slots=True)
class Stop:
    """A round is over: messages of the client by lane."""

    TYPE: ClassVar[str] = "stop"
    operations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about what limits a run; those of greater weight come first."""

    weight: int
    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """What the listener saw in a round."""

    TYPE: ClassVar[str] = "result"
    received: ReceiverFigures
    sent: SenderFigures | None
    operations: tuple[int, ...]
    """Messages of the listener, by lane."""
    wrong_bytes: int | None
    """Of the client's messages, as the listener found them; None where nobody looked."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Bye:
    """That was all."""

    TYPE: ClassVar[str] = "bye"


Message = Offer | Accept | Refuse | Working | Join | Target | Round | Ready | Stop | Result | Bye

_BOUNDS: dict[str, tuple[int, int]] = {
    "qps": (1, QPS_MAX),
    "lane": (0, QPS_MAX - 1),
    "buffer_bytes": (1, BUFFER_BYTES_MAX),
    "message_bytes": (1, MESSAGE_BYTES_MAX),
    "message_bytes_max": (1, MESSAGE_BYTES_MAX),
    "operations": (0, OPERATIONS_MAX),
    "depth": (1, DEPTH_MAX),
    "version": (0, 1 << 16),
    "weight": (0, 100),
}
"""Bounds of numbers by their name, whatever message they are in; of all others 0 to 2^63 - 1."""

_M = TypeVar("_M")


def to_json(message: Message) -> dict[str, Any]:
    """Return the form in which a message travels."""
    return {"type": message.TYPE, **asdict(message)}


def message_untrusted(line: Mapping[str, Any], expected: type[_M]) -> _M:
    """Read a message that must be of one type.

    Raises:
        PeerRefused: the peer does not want to go on, and says why.
        PeerVersionError: it does not go on with a peer of this version.
        PeerProtocolError: it does not go on because of something this side said; or it is another
            message, or a field is missing or out of bounds.
    """
    kind = line.get("type")
    if kind == Refuse.TYPE and expected is not Refuse:
        refusal = _read_untrusted(Refuse, line)
        text = f"the peer refused: {printable(refusal.text, _SHOWN_CHARACTERS_MAX)}"
        raise _REFUSED[refusal.reason](text)
    wanted = getattr(expected, "TYPE", "")
    if kind != wanted:
        raise PeerProtocolError(f"the peer said {printable(repr(kind))} in place of {wanted}")
    return _read_untrusted(expected, line)


_REFUSED: dict[Reason, type[PeerError]] = {
    Reason.VERSION: PeerVersionError,
    Reason.PROTOCOL: PeerProtocolError,
    Reason.UNWANTED: PeerRefused,
}


def offer_untrusted(line: Mapping[str, Any]) -> Offer:
    """Read a client's first message.

    Raises:
        PeerVersionError: it is no mrc-perf, or one of another version.
        PeerProtocolError: it is one, and says something impossible.
    """
    for name, ours in (("service", SERVICE), ("version", VERSION)):
        if line.get(name) != ours:
            theirs = printable(repr(line.get(name)))
            raise PeerVersionError(f"the peer's {name} is {theirs}, ours is {ours}")
    offer = message_untrusted(line, Offer)
    if offer.message_bytes_max > offer.buffer_bytes:
        raise PeerProtocolError(
            f"messages of {offer.message_bytes_max} bytes in buffers of {offer.buffer_bytes}"
        )
    if offer.kind is Kind.LATENCY and offer.qps > 1:
        raise PeerProtocolError(f"latency of {offer.qps} queue pairs; it is of one")
    return offer


def _types(shape: type) -> dict[str, Any]:
    hints = get_type_hints(shape)
    return {field.name: hints[field.name] for field in fields(shape)}


def _read_untrusted(shape: type[_M], line: Mapping[str, Any]) -> _M:
    """Make a dataclass of what should be its fields."""
    return shape(
        **{
            name: _value_untrusted(f"{shape.__name__.lower()}: {name}", name, kind, line.get(name))
            for name, kind in _types(shape).items()
        }
    )


def _value_untrusted(where: str, name: str, kind: Any, value: object) -> Any:
    """Check one value against a field's type and the bounds of its name."""
    if isinstance(kind, UnionType):
        inner, _ = get_args(kind)
        return None if value is None else _value_untrusted(where, name, inner, value)
    if get_origin(kind) is tuple:
        if not isinstance(value, list) or len(value) > ITEMS_MAX:
            raise PeerProtocolError(f"{where} is not a list of at most {ITEMS_MAX}")
        return tuple(_value_untrusted(where, name, get_args(kind)[0], item) for item in value)
    if kind is int:
        low, high = _BOUNDS.get(name, (0, NUMBER_MAX))
        if type(value) is not int or not low <= value <= high:
            raise PeerProtocolError(
                f"{where} is not a whole number from {low} to {high}: {printable(repr(value))}"
            )
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise PeerProtocolError(f"{where} is neither true nor false: {printable(repr(value))}")
        return value
    if isinstance(kind, type) and issubclass(kind, str):
        return _text_untrusted(where, kind, value)
    if kind is mrc.RemoteRegion:
        return mrc.RemoteRegion.from_json_untrusted(value)
    if not isinstance(value, Mapping):
        raise PeerProtocolError(f"{where} is not an object: {printable(repr(value), 60)}")
    return _read_untrusted(kind, value)


def _text_untrusted(where: str, kind: type[str], value: object) -> str:
    if not isinstance(value, str) or len(value) > TEXT_CHARACTERS_MAX:
        raise PeerProtocolError(f"{where} is no text of at most {TEXT_CHARACTERS_MAX} characters")
    try:
        return kind(value)
    except ValueError:
        raise PeerProtocolError(f"{where} is unknown: {printable(repr(value))}") from None
