"""What the two sides of a measurement say to each other, and a listener that hears it.

Whatever is said, it is understood as what it would be said again as, within all bounds, or refused
with the one exception. Whatever clients do, a listener allocates no more than it may, and serves
the next one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple, Self, cast
from unittest.mock import patch

import mrc
from fuzzing import odd
from fuzzing.feed import Feed
from fuzzing.vloop import virtual_loop
from mrc.errors import MrcError, PeerError, PeerLost
from mrc.perf import memory, probe
from mrc.perf.conversation import (
    ITEMS_MAX,
    TEXT_CHARACTERS_MAX,
    Accept,
    Bye,
    Finding,
    Join,
    Message,
    Offer,
    Ready,
    Reason,
    Refuse,
    Result,
    Round,
    Stop,
    Target,
    Working,
    message_untrusted,
    offer_untrusted,
    to_json,
)
from mrc.perf.kernel import HostCounters
from mrc.perf.latency import IMM_MAX
from mrc.perf.measures import ReceiverFigures, SenderFigures
from mrc.perf.serving import GREETING_TIMEOUT_S, Service
from mrc.perf.settings import BUFFER_BYTES_MAX, DEPTH_MAX, QPS_MAX, Kind
from mrc.proto.statistics import RequestorStatistics, ResponderStatistics

_SENT = SenderFigures(*range(1, 11))
_RECEIVED = ReceiverFigures(*range(1, 9))
_REGION = mrc.RemoteRegion(1 << 40, 7, 1 << 26)
_FINDING = Finding(90, "the processor is the limit")

MESSAGES: tuple[Message, ...] = (
    Offer(Kind.BANDWIDTH, 2, 1 << 26, 1 << 16, bidirectional=True, verify=False, seed=1),
    Accept("0" * 32),
    Refuse(Reason.UNWANTED, "busy"),
    Working(),
    Join("0" * 32, 1, _REGION),
    Join("0" * 32, 0, None),
    Target(_REGION),
    Round(1 << 16, 0, 128),
    Ready(),
    Stop((1, 2)),
    Result(_RECEIVED, _SENT, (1, 2), 0, (_FINDING, _FINDING)),
    Result(_RECEIVED, None, (), None, ()),
    Bye(),
)
"""One of each kind, all of it as it should be."""


def run(data: bytes) -> None:
    """Read the first byte as what the rest is."""
    feed = Feed(data)
    feed.pick((_text, _spoilt, _listener))(feed)


def _line(message: Message) -> dict[str, Any]:
    """Return a message as it arrives."""
    line: dict[str, Any] = json.loads(json.dumps(to_json(message)))
    return line


def _text(feed: Feed) -> None:
    """Give any JSON object to every reader."""
    try:
        value = json.loads(feed.rest())
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        _read(value)


def _spoilt(feed: Feed) -> None:
    """Give messages that are right but for a few places to every reader."""
    line: Any = _line(feed.pick(MESSAGES))
    for _ in range(feed.below(4)):
        line = odd.spoil(feed, line)
        if not isinstance(line, dict):
            return
    _read(line)


def _read(line: dict[str, Any]) -> None:
    with suppress(PeerError):
        _check(offer_untrusted(line))
    for kind in {type(message) for message in MESSAGES}:
        with suppress(PeerError):
            _check(message_untrusted(line, kind))


def _check(message: Message) -> None:
    """Hold what was understood against the bounds, and say it again."""
    assert message_untrusted(_line(message), type(message)) == message
    match message:
        case Offer():
            assert 1 <= message.message_bytes_max <= BUFFER_BYTES_MAX
            assert message.qps <= QPS_MAX
        case Round():
            assert 1 <= message.depth <= DEPTH_MAX
        case Target(region=region) | Join(region=mrc.RemoteRegion() as region):
            assert region.va + region.length <= 1 << 64
        case Result():
            assert len(message.findings) <= ITEMS_MAX
            assert all(len(each.text) <= TEXT_CHARACTERS_MAX for each in message.findings)
        case _:
            pass


# A listener, and clients that know how to do it right and sometimes do.

_FREE_BYTES = 1 << 20
"""What the listener's machine has: it may spend half."""
_CLIENTS_MAX = 3
_SECOND = 2
_STEP_S = 0.01
_TIMEOUT_S = 5.0
_FACTS = mrc.QpFacts(None, True, 4096, 1, 1 << 24, 1 << 20, 1 << 20)
_NOTHING = mrc.QpStatistics(
    1, "RTS", RequestorStatistics(*[0] * 16), ResponderStatistics(*[0] * 10), ()
)


class _Channel:
    """What a scripted peer says, and what it is told."""

    def __init__(self, lines: Sequence[dict[str, Any]]) -> None:
        self._lines = list(lines)
        self._received = 0
        self.pause_s = 0.0
        """Before the second line."""
        self.heard: list[dict[str, Any]] = []

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        self.heard.append(json.loads(json.dumps(message, allow_nan=False)))

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(_STEP_S)
        if not self._lines:
            raise PeerLost("the script is over")
        self._received += 1
        if self._received == _SECOND:
            await asyncio.sleep(self.pause_s)
        return self._lines.pop(0)


class _Qp:
    """A queue pair whose writes all arrive, to a peer with a script."""

    peer = "192.0.2.9:1"

    def __init__(self, lines: Sequence[dict[str, Any]], registered: list[int]) -> None:
        self.channel = _Channel(lines)
        self._registered = registered

    def register(self, buffer: Any) -> Any:
        self._registered.append(memoryview(buffer).nbytes)
        return _Registered(mrc.RemoteRegion(1 << 20, 5, memoryview(buffer).nbytes))

    def post(
        self, data: Any, remote: mrc.RemoteRegion, offset: int = 0, *, imm: int | None = None
    ) -> asyncio.Future[None]:
        assert offset + memoryview(data).nbytes <= remote.length
        assert imm is None or 0 <= imm <= IMM_MAX
        return asyncio.ensure_future(asyncio.sleep(_STEP_S))

    async def next_immediate(self) -> mrc.Immediate:
        await asyncio.sleep(_STEP_S)
        return mrc.Immediate(0, None, 0, 1)

    def facts(self) -> mrc.QpFacts:
        return _FACTS

    def statistics(self) -> mrc.QpStatistics:
        return _NOTHING

    def abort(self) -> None:
        """Nothing: it is memory."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing: it is memory."""


class _Registered(NamedTuple):
    """A registered buffer."""

    remote: mrc.RemoteRegion

    def deregister(self) -> None:
        """Nothing: it is memory."""


class _Door:
    """A listener to which queue pairs come as they are put in."""

    def __init__(self) -> None:
        self.coming: asyncio.Queue[_Qp] = asyncio.Queue()

    async def accept(self) -> _Qp:
        return await self.coming.get()


class _Endpoint:
    """An endpoint without sockets."""

    def port_facts(self) -> tuple[mrc.PortFacts, ...]:
        return ()


def _listener(feed: Feed) -> None:
    """Have hostile clients come and go, then one that is right, which must get its results."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(memory, "available_bytes", lambda: _FREE_BYTES))
        stack.enter_context(patch.object(asyncio, "to_thread", _at_once))
        stack.enter_context(patch.object(probe, "host_counters", lambda: HostCounters({}, {})))
        virtual_loop().run(_serve(feed))


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    await asyncio.sleep(0)
    return function(*arguments)


async def _serve(feed: Feed) -> None:
    door, registered = _Door(), list[int]()
    ended: list[BaseException | None] = []
    service = Service(
        cast("mrc.Endpoint", _Endpoint()), _TIMEOUT_S, lambda _, error: ended.append(error)
    )
    serving = asyncio.ensure_future(service.serve(cast("mrc.Listener", door), once=False))
    try:
        for _ in range(feed.below(_CLIENTS_MAX + 1)):
            await _client(feed, door, registered)
        await asyncio.sleep(2 * _TIMEOUT_S + 2 * GREETING_TIMEOUT_S)
        for error in ended:
            assert error is None or isinstance(error, MrcError), error
        await _greedy(door, registered)
        await _honest(door, registered)
        assert ended[-1] is None, ended[-1]
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _client(feed: Feed, door: _Door, registered: list[int]) -> None:
    """Let one client come, with as many queue pairs as it likes; some of what it says is wrong."""
    before = sum(registered)
    both = feed.flag()
    kind = feed.pick(tuple(Kind))
    offer = Offer(kind, 1 + feed.below(2), 8192, 4096, both, feed.flag(), 1)
    rounds: list[Message] = []
    for _ in range(feed.below(3)):
        rounds += [Round(4096, feed.below(4), 1 + feed.below(3), feed.flag()), Stop((1, 1))]
    control = _Qp(_said(feed, (offer, *rounds, Bye())), registered)
    # Its other queue pairs come between the offer and the first round.
    control.channel.pause_s = 1.0
    await door.coming.put(control)
    await asyncio.sleep(0.1)
    session = next((line["session"] for line in control.channel.heard if "session" in line), "")
    for lane in range(feed.below(4)):
        join = Join(session, lane, None if feed.flag() else _REGION)
        await door.coming.put(_Qp(_said(feed, (join,)), registered))
    await asyncio.sleep(feed.pick((0.0, 2.0, 2 * _TIMEOUT_S)))
    assert sum(registered) - before <= _FREE_BYTES // 2
    for line in control.channel.heard:
        assert line["type"] in {"accept", "refuse", "working", "ready", "result"}, line


def _said(feed: Feed, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the lines of a script, one of them perhaps spoilt."""
    lines = [_line(message) for message in messages]
    if feed.flag():
        at = feed.below(len(lines))
        spoilt = odd.spoil(feed, lines[at])
        lines[at : at + 1] = [spoilt] if isinstance(spoilt, dict) else []
    return lines


async def _greedy(door: _Door, registered: list[int]) -> None:
    """Come as a client that wants more than there is, and be told so."""
    offer = replace(cast("Offer", MESSAGES[0]), qps=1, buffer_bytes=_FREE_BYTES)
    control = _Qp([_line(offer)], registered)
    await door.coming.put(control)
    await asyncio.sleep(_TIMEOUT_S)
    assert [line["type"] for line in control.channel.heard] == ["refuse"]


async def _honest(door: _Door, registered: list[int]) -> None:
    """Come as a client that does everything right, and get everything."""
    offer = replace(cast("Offer", MESSAGES[0]), qps=1, buffer_bytes=8192, message_bytes_max=4096)
    told = (offer, Round(4096, 1, 1), Stop((1,)), Bye())
    control = _Qp([_line(message) for message in told], registered)
    control.channel.pause_s = 1.0
    await door.coming.put(control)
    await asyncio.sleep(0.1)
    session = control.channel.heard[0]["session"]
    await door.coming.put(_Qp([_line(Join(session, 0, _REGION))], registered))
    await asyncio.sleep(4 * _TIMEOUT_S)
    said = [line["type"] for line in control.channel.heard]
    assert said == ["accept", "ready", "result"], control.channel.heard
