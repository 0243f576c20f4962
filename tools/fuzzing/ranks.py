"""What the ranks of a job say to each other: joining, the store, hearts, links and messages.

Whatever a peer says that was let in, a rank takes it or raises the one exception; it holds no more
than its limits, and what it was told of a failure it can tell others.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import mrc
from fuzzing import odd
from fuzzing.feed import Feed
from fuzzing.vloop import virtual_loop
from mrc.collectives import Bootstrap, health, joining, point_to_point
from mrc.collectives.failures import Obituary
from mrc.collectives.health import Health
from mrc.collectives.mesh import Membership, Mesh
from mrc.collectives.point_to_point import PointToPoint
from mrc.collectives.store import LocalStore, RemoteStore
from mrc.collectives.transfer import SEGMENT_BYTES, SLOTS, Link
from mrc.errors import MrcError, PeerError

_RANKS = 4
_TOKEN = "of this start"  # noqa: S105 - no secret
_URLS = tuple((f"mrc://127.0.0.1:{4000 + rank}/",) for rank in range(_RANKS))
_GONE = Obituary(2, "127.0.0.1:4002", "silent", 5, ("plane 0: dead",), "1 dead")
_PLACE = {"va": 1 << 40, "r_key": 7, "length": 64}

_HELLOS: tuple[Any, ...] = (
    {"token": _TOKEN, "context": "world", "rank": 1},
    {"join": joining.PROTOCOL, "rank": 1, "size": _RANKS, "run": ""},
)
_WELCOMES: tuple[Any, ...] = ({"joined": _TOKEN}, {"refused": "rank 1 is here already"})
_SET_UP = {
    "slots": {"va": 1 << 40, "r_key": 7, "length": SEGMENT_BYTES * SLOTS},
    "segment_bytes": SEGMENT_BYTES,
}
_REQUESTS: tuple[Any, ...] = (
    {"id": 1, "set": "a", "value": "b"},
    {"id": 2, "get": "a"},
    {"id": 3, "add": "n", "amount": 5},
    {"id": 4, "delete": "a"},
    {"id": 5, "set": "n", "value": "9" * sys.get_int_max_str_digits()},
)
_ANSWERS: tuple[Any, ...] = ({"id": 1, "value": "7"}, {"id": 1, "error": "no"})
_NEWS: tuple[Any, ...] = (
    {"beat": True},
    {"failed": _GONE.to_json()},
    {"left": True},
    {"broken": "world", "why": "late"},
    {"agree": "world+0", "ranks": [0, 1, 3]},
    {"agreed": "world+0", "ranks": [0, 1, 3]},
)
_MESSAGES: tuple[Any, ...] = (
    {"receive": 1, "tag": 3, "length": 64, "place": _PLACE},
    {"receive": 2, "tag": 3, "length": 0, "place": None},
    {"empty": 1},
    {"refused": 1, "why": "too long"},
)


def run(data: bytes) -> None:
    """Read the first byte as what the rest is."""
    feed = Feed(data)
    part = feed.pick((_urls, _meet, _store, _ask, _hearts, _messages, _link, _welcome, _set_up))
    virtual_loop().run(part(feed))


def _said(feed: Feed, right: tuple[Any, ...]) -> dict[str, Any]:
    """Return a message that is right but for a few places, as it arrives."""
    line: Any = feed.pick(right)
    for _ in range(feed.below(4)):
        line = odd.spoil(feed, line)
    try:
        arrived = json.loads(json.dumps(line))
    except (ValueError, RecursionError):
        return {}
    return arrived if isinstance(arrived, dict) else {}


async def _urls(feed: Feed) -> None:
    """Where a rank listens, by its own words."""
    text = feed.rest().decode("utf-8", "surrogateescape")
    with suppress(PeerError):
        urls = joining.urls_untrusted(1, text)
        assert urls
        assert all(str(mrc.Url.parse(url)) == url for url in urls)


class _Channel:
    """Notes what it is told, and says what it is given, if anything."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.says: deque[Any] = deque()

    async def send(self, message: Any) -> None:
        self.told.append(json.loads(json.dumps(message)))

    async def receive(self) -> Any:
        if not self.says:
            await asyncio.Event().wait()
        return self.says.popleft()


class _QueuePair:
    """Stands for a queue pair to a peer."""

    peer = "127.0.0.1:4001"
    failure = None

    def __init__(self) -> None:
        self.channel = _Channel()
        self.said: deque[bytes] = deque()
        self.registered: list[int] = []

    def register(self, memory: Any) -> Any:
        self.registered.append(len(memory))
        return _Region()

    async def receive(self) -> bytes:
        return self.said.popleft()

    async def send(self, message: bytes) -> None:
        self.channel.told.append(message)

    async def next_immediate(self) -> Any:
        await asyncio.Event().wait()

    def abort(self) -> None:
        pass

    async def close(self) -> None:
        pass


class _Region:
    remote = mrc.RemoteRegion(1 << 40, 9, SEGMENT_BYTES * SLOTS)
    r_key, va = 9, 1 << 40

    def deregister(self) -> None:
        pass


class _Endpoint:
    """Nobody answers."""

    async def connect(self, *_: object, **__: object) -> Any:
        await asyncio.Event().wait()


class _Listener:
    """Nobody comes."""

    url = "mrc://127.0.0.1:4000/"

    async def accept(self) -> Any:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


def _mesh(rank: int = 0) -> Mesh:
    mesh = Mesh(cast("Any", _Endpoint()), cast("Any", _Listener()), _TOKEN)
    mesh.members = Membership(rank, _URLS, _TOKEN)
    return mesh


async def _welcome(feed: Feed) -> None:
    """What rank 0 answers to who wants to join."""
    with suppress(PeerError):
        token = joining.token_untrusted("127.0.0.1:4000", _said(feed, _WELCOMES))
        assert 0 < len(token) <= joining.TOKEN_CHARACTERS_MAX


async def _meet(feed: Feed) -> None:
    """What somebody says who connects, to a rank of the job and to rank 0 before it begins."""
    mesh, qp = _mesh(), cast("Any", _QueuePair())
    first = joining._First(  # noqa: SLF001 - below the interface
        Bootstrap(rank=0, size=_RANKS, url=mrc.Url.parse("127.0.0.1:4000")),
        cast("Any", None),
        cast("Any", None),
    )
    for _ in range(1 + feed.below(3)):
        hello = _said(feed, _HELLOS)
        reason, rank = first._judge_untrusted(hello)  # noqa: SLF001
        assert reason or 0 < rank < _RANKS
        with suppress(PeerError):
            await mesh._hand_on_untrusted(qp, hello)  # noqa: SLF001
    await _ended(mesh._accepting)  # noqa: SLF001


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """End tasks that wait; one that has failed by itself is a fault."""
    # Each has begun then: one that is cancelled before cannot fail.
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
            raise end


async def _store(feed: Feed) -> None:
    """What a client asks of the store."""
    store = LocalStore()
    for _ in range(1 + feed.below(6)):
        asking = asyncio.ensure_future(
            store._do_untrusted(_said(feed, _REQUESTS))  # noqa: SLF001
        )
        done, waiting = await asyncio.wait({asking}, timeout=1.0)
        for each in done:
            assert each.exception() is None or isinstance(each.exception(), MrcError)
        await _ended(*waiting)


async def _ask(feed: Feed) -> None:
    """What the store answers."""
    store = RemoteStore(_Channel())
    asking = asyncio.ensure_future(store.add("n", 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(1 + feed.below(3)):
        with suppress(PeerError):
            store._hear_untrusted(_said(feed, _ANSWERS))  # noqa: SLF001
    done, waiting = await asyncio.wait({asking}, timeout=1.0)
    for each in done:
        assert each.exception() is None or isinstance(each.exception(), MrcError)
    await _ended(*waiting)
    await store.close()


async def _hearts(feed: Feed) -> None:
    """What a rank says of itself and of others, also to one that asks who is left."""
    own = feed.below(2)
    mesh = _mesh(own)
    beating = Health(mesh, 1.0)
    beating._hearts[1 - own] = cast("Any", _QueuePair())  # noqa: SLF001
    asking = asyncio.ensure_future(beating.agree("world+0", [0, 1, 3]))
    await asyncio.sleep(0)
    others = [rank for rank in range(_RANKS) if rank != own]
    for _ in range(1 + feed.below(8)):
        with suppress(PeerError):
            beating._hear_untrusted(feed.pick(others), _said(feed, _NEWS))  # noqa: SLF001
    done, waiting = await asyncio.wait({asking}, timeout=0.01)
    for each in done:
        assert each.exception() is None or isinstance(each.exception(), MrcError)
    for obituary in beating.failed.values():
        told = json.loads(json.dumps(obituary.to_json()))
        assert Obituary.from_json_untrusted(told, _RANKS) == obituary
    assert len(beating.broken) <= health.BROKEN_MAX
    await beating.close(gently=False)
    await _ended(beating._watching, mesh._accepting, *waiting)  # noqa: SLF001


async def _messages(feed: Feed) -> None:
    """What a peer says about sends and receives."""
    qp = _QueuePair()
    lane = PointToPoint(cast("Any", qp), 1)
    expected = asyncio.get_running_loop().create_future()
    region, other = cast("mrc.MemoryRegion", _Region()), cast("mrc.MemoryRegion", _Region())
    lane._expected[1] = point_to_point._Expected(expected, 8, region)  # noqa: SLF001
    for _ in range(1 + feed.below(6)):
        with suppress(PeerError):
            if feed.flag():
                number, end = feed.below(3), feed.below(10)
                where = feed.pick((region, None, other))
                lane._finish_untrusted(number, where, end)  # noqa: SLF001
            else:
                lane._hear_untrusted(_said(feed, _MESSAGES))  # noqa: SLF001
    if expected.done():
        expected.exception()
    assert lane._wished <= point_to_point.ASKED_MAX  # noqa: SLF001
    lane.abort()
    await _ended(*lane._reading)  # noqa: SLF001


async def _link(feed: Feed) -> None:
    """What a peer says about slots and places, and where its pieces come to."""
    qp = _QueuePair()
    link = Link(cast("Any", qp))
    region = cast("mrc.MemoryRegion", _Region())
    piece = mrc.Immediate(0, region, feed.number(4), feed.number(4))
    checks: tuple[Callable[[], object], ...] = (
        lambda: link.slot_untrusted(piece, feed.number(2)),
        lambda: link.check_place_untrusted(piece, region, feed.number(2), feed.number(2)),
    )
    with suppress(PeerError):
        feed.pick(checks)()
    while feed:
        qp.said.append(feed.take(24))
        with suppress(PeerError):
            await link._hear_untrusted()  # noqa: SLF001
    assert 0 <= link._freed <= link._sent  # noqa: SLF001
    link.abort()


async def _set_up(feed: Feed) -> None:
    """What a peer says of its slots."""
    qp = _QueuePair()
    qp.channel.says.append(_said(feed, (_SET_UP,)))
    link = Link(cast("Any", qp))
    with suppress(PeerError):
        await link.set_up()
        assert link._remote is not None  # noqa: SLF001
        assert link._remote.length == SEGMENT_BYTES * SLOTS  # noqa: SLF001
    link.abort()
