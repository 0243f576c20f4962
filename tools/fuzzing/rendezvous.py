"""The rendezvous: lines of JSON, the handshake of two queue pairs, their messages, and the lock.

Nobody who does not keep to it gets anything, leaves anything behind, or raises anything but what
the functions say.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import random
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from functools import cache, partial
from time import monotonic_ns
from typing import Any, cast

from fuzzing import odd
from fuzzing.feed import Feed
from fuzzing.vloop import virtual_loop
from mrc import RemoteRegion
from mrc.connection import Connection, accept_untrusted, open_connection
from mrc.door import Door
from mrc.engine import Engine
from mrc.errors import MrcError, PeerProtocolError, PeerRefused, PeerVersionError
from mrc.lock import Key, Lock
from mrc.messages import (
    MESSAGE_BYTES_MAX,
    MESSAGE_BYTES_MIN,
    RING_BYTES,
    Kind,
    MessageRing,
    RingAddress,
)
from mrc.proto.attributes import from_json_untrusted, to_json
from mrc.proto.config import Config
from mrc.proto.endpoint import Endpoint
from mrc.proto.peer import LocalPort
from mrc.proto.qp import QpState
from mrc.proto.runs import RunToSend
from mrc.rendezvous import (
    LINE_BYTES_MAX,
    PROTOCOL,
    Address,
    Channel,
    _unlock,
    check_protocol_untrusted,
)
from mrc.seals import Offer
from mrc.tls import NoTlsError, PlainStream, TlsStream
from mrc.wire.control import EndpointRequest, EndpointResponse
from mrc.wire.fields import Opcode
from mrc.wire.icrc import append_icrc

HERE, THERE = "10.0.0.1", "10.0.0.2"
HERE_6, THERE_6 = "fd00::1", "fd00::2"
_HOSTS = (
    HERE, HERE_6, "::ffff:10.0.0.2", "fe80::1", "fe80::1%lo", "fe80::1%nowhere", "fe80::1%1",
    "fe80::1%99999999999999999999", "::1%\u0663", "::", "0.0.0.0", "224.0.0.1", "255.255.255.255",
    "ff02::1", "127.0.0.1", "10.0.0.2%eth0", "1", "", "fe80::1%\0", "fe80::1%\ud800",
)  # fmt: skip
"""Addresses that a peer might name as its own, or that are none."""
_TIMEOUT_S = 5.0
_TOKEN = "told-beforehand-to-both"  # noqa: S105 - of nothing but these processes


def run(data: bytes) -> None:
    """Read the first byte as what the rest is."""
    feed = Feed(data)
    feed.pick((_lines, _values, _handshake, _messages, _lock))(feed)


# Streams in memory.


class _Stream:
    """One end of a connection in memory: what comes in was put there, what goes out is kept."""

    def __init__(self, *chunks: bytes) -> None:
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self.outgoing: list[bytes] = []
        self.closed = False
        for chunk in chunks:
            self.incoming.put_nowait(chunk)

    async def read(self) -> bytes:
        """Wait for bytes; nothing at the end, which stays."""
        chunk = b"" if self.closed else await self.incoming.get()
        if not chunk:
            self.incoming.put_nowait(b"")
        return chunk

    async def write(self, data: bytes) -> None:
        """Keep them."""
        if self.closed:
            raise ConnectionResetError("closed")
        self.outgoing.append(data)
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Close."""
        self.abort()

    def abort(self) -> None:
        """Close."""
        self.closed = True
        self.incoming.put_nowait(b"")

    def name(self, of: str) -> Any:
        """Return an address of either end."""
        return (THERE, 40_000) if of == "peername" else (HERE, 18_515)


def _as_line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


# Lines.


def _lines(feed: Feed) -> None:
    """Read whatever comes, cut into chunks anywhere."""
    chunks: list[bytes] = []
    while feed and len(chunks) < 64:
        length = feed.number(1)
        if length == 255:
            chunks.append(bytes((feed.number(1),)) * (LINE_BYTES_MAX // 4))
        else:
            chunks.append(feed.take(length))
    stream = _Stream(*filter(None, chunks), b"")
    virtual_loop().run(_read_all(Channel(stream)))


async def _read_all(channel: Channel) -> None:
    with contextlib.suppress(PeerProtocolError, PeerRefused):
        while (message := await channel.receive_untrusted()) is not None:
            assert isinstance(message, dict)
            with contextlib.suppress(PeerVersionError):
                check_protocol_untrusted(message, channel.peer)


# Values.


def _values(feed: Feed) -> None:
    """Give spoilt values to everything that reads one; what is taken can be said again."""
    with contextlib.suppress(PeerProtocolError):
        attributes = from_json_untrusted(odd.spoil(feed, hello()["qp"]))
        assert from_json_untrusted(json.loads(json.dumps(to_json(attributes)))) == attributes
    with contextlib.suppress(PeerProtocolError):
        ring = RingAddress.from_json_untrusted(odd.spoil(feed, hello()["ring"]))
        assert RingAddress.from_json_untrusted(asdict(ring)) == ring
    with contextlib.suppress(PeerProtocolError):
        place = {"va": 1 << 40, "r_key": 7, "length": 4096}
        region = RemoteRegion.from_json_untrusted(odd.spoil(feed, place))
        assert region.va + region.length <= 1 << 64
        assert RemoteRegion.from_json_untrusted(region.to_json()) == region
    with contextlib.suppress(PeerProtocolError):
        keys = {"cipher": "aes-256-gcm", "secret": "00" * 32}
        Offer().accept_untrusted(odd.spoil(feed, keys), connecting=feed.flag())


# The handshake.


class SilentEngine(Engine):
    """An engine that opens no sockets; what it sends is lost, or probes are answered at once."""

    def __init__(self, host: str, *, answering: bool = False) -> None:
        super().__init__(_CONFIG)
        self.endpoint = Endpoint(_CONFIG, random.Random(1))
        self.endpoint.add_port(host, 4971, list(range(50_000, 50_064)))
        self._answering = answering

    def port_for(self, _host: str, evs: int) -> LocalPort:
        """Return the only one."""
        port = self.endpoint.ports[0]
        assert evs <= len(port.ev_ports), f"{evs} sockets wanted"
        return port

    def receive_buffer_bytes(self, _port: LocalPort) -> int:
        """Return what the kernel might have granted."""
        return 1 << 20

    def fitting_mtu(self, _ports: list[LocalPort], *, sealed: bool = False) -> int:
        """Return what fits."""
        return 2048 if sealed else 4096

    def link_bps(self, _ports: list[LocalPort]) -> int:
        """Return that nothing is known."""
        return 0

    def kick(self) -> None:
        """Send what there is to send, soon."""
        self._loop.call_soon(self._send)

    def _send(self) -> None:
        now_ns = monotonic_ns()
        self.endpoint.advance(now_ns)
        for _ in range(_RUNS_MAX):
            run = self.endpoint.transmit(now_ns)
            if run is None:
                break
            if self._answering and run.memory[0] == Opcode.ENDPOINT_REQUEST:
                self._answer(run, now_ns)
        self._deliver_events()

    def _answer(self, run: RunToSend, now_ns: int) -> None:
        request = EndpointRequest.decode_untrusted(run.memory)
        response = EndpointResponse(request.request_id, request.op, request.tx_timestamp)
        port, source = self.endpoint.ports[0], (run.destination[0], 50_000)
        packet = append_icrc(response.encode(), source, (port.host, port.udp_port))
        self._run.buffer.bytes[: len(packet)] = packet
        self._run.byte_count = self._run.segment_bytes = len(packet)
        self._run.source = source
        self.endpoint.receive(self._run, now_ns)


_RUNS_MAX = 256
_CONFIG = Config()


@cache
def hello() -> dict[str, Any]:
    """Return what a right peer says first, locked or not."""

    async def say() -> dict[str, Any]:
        engine = SilentEngine(HERE)
        connection = Connection(engine, Channel(_Stream(), secured=True), "peer", connecting=False)
        said = connection.hello([engine.port_for(HERE, 0)])
        connection.abort()
        return cast(dict[str, Any], json.loads(json.dumps(said)))

    said = virtual_loop().run(say())
    assert said["protocol"] == PROTOCOL
    return said


def _handshake(feed: Feed) -> None:
    """Shake hands from either side with a peer that is right but for one thing."""
    secured, connecting, answering = feed.flag(), feed.flag(), feed.flag()
    host = feed.pick((HERE, HERE_6))
    first: Any = {"refused": "x"} if feed.below(8) == 7 else copy.deepcopy(hello())
    if "qp" in first:
        usual = THERE if host == HERE else THERE_6
        count = feed.pick((1, 1, 2, 64))
        first["qp"]["planes"] = [[feed.pick((*[usual] * 16, *_HOSTS)), 4971]] * count
    if feed.flag():
        first = odd.spoil(feed, first)
    lines = [_as_line(first)]
    if not connecting:
        lines.append(_as_line(odd.spoil(feed, {"ready": True}) if feed.flag() else {"ready": True}))
    lines.append(_as_line(odd.spoil(feed, {"bye": True}) if feed.flag() else {"bye": True}))
    # A peer that goes away, and one that says nothing more.
    if feed.flag():
        lines.append(b"")
    engine = partial(SilentEngine, host, answering=answering)
    virtual_loop().run(shake_hands(engine, lines, secured=secured, connecting=connecting))


async def shake_hands(
    make_engine: Callable[[], SilentEngine],
    lines: list[bytes],
    *,
    secured: bool,
    connecting: bool,
) -> None:
    """Do our part; afterwards nothing may be left of it.

    Args:
        make_engine: makes the engine, inside the loop.
        lines: what the peer says, whatever we say; an empty one ends it.
        secured: the channel counts as one inside TLS.
        connecting: which side we are.
    """
    engine = make_engine()
    channel = Channel(_Stream(*lines), secured=secured)
    work: Coroutine[Any, Any, Connection]
    if connecting:
        work = open_connection(engine, channel, (), _TIMEOUT_S)
    else:
        work = accept_untrusted(engine, channel, (), _TIMEOUT_S)
    with contextlib.suppress(MrcError):
        connection = await work
        assert connection.qp.state in {QpState.RTS, QpState.ERROR}
        assert (connection.qp.seal is not None) == secured
        await asyncio.sleep(0.01)
        connection.abort()
    await asyncio.sleep(0)
    endpoint = engine.endpoint
    assert not endpoint.qps, "a queue pair was left behind"
    assert not len(endpoint.memory), "memory was left open"
    assert not endpoint.peers, "a peer was left behind"
    assert not endpoint.peers_at, "an address was left behind"
    assert not engine.path_events, "a listener was left behind"


# Messages.


def _messages(feed: Feed) -> None:
    """Let immediates land anywhere in the ring, and let the peer say how much it took."""
    virtual_loop().run(_land(feed))


async def _nothing(*_: Any) -> None:
    """Take a write."""


async def _land(feed: Feed) -> None:
    endpoint = Endpoint(_CONFIG, random.Random(1))
    ring = MessageRing(endpoint.register, _nothing)
    address = ring.address
    ring.connect(address)
    credit = ring.region.data[RING_BYTES:]
    held_bytes = at = 0
    for _ in range(64):
        if not feed:
            break
        if feed.below(4) == 3 and len(ring.data):
            held_bytes -= len(await ring.take(ring.data))
            await asyncio.sleep(0)
            continue
        target = feed.pick((*("ring",) * 6, "credit", "elsewhere"))
        length = feed.pick((1, 1 + feed.number(1), MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX + 1))
        offset = feed.pick((at, at, at, 0, feed.number(3) % RING_BYTES))
        length = min(length, ring.region.length - offset)
        credit[:] = bytearray(feed.take(8).ljust(8, b"\0"))
        kind = feed.pick((*Kind, 99))
        try:
            key = address.ring_r_key ^ (target == "elsewhere")
            va = address.credit_va if target == "credit" else address.ring_va + offset
            ours = ring.on_immediate_untrusted(key, va, length, kind)
        except PeerProtocolError:
            break
        if ours and target == "ring":
            at = (offset + max(length, MESSAGE_BYTES_MIN)) % RING_BYTES
            held_bytes += 0 if kind is Kind.EMPTY else length
            assert held_bytes <= RING_BYTES, "more held than the ring has"
    ring.fail(PeerProtocolError("the end"))
    await asyncio.sleep(0)
    endpoint.deregister(ring.region)


# The lock.

_EXPECTED = (MrcError, EOFError, OSError, NoTlsError)
"""What the two ends of a door may end with; `ssl.SSLError` is an `OSError`."""


@cache
def _locked() -> Lock:
    return Lock.new(_TOKEN)


def _lock(feed: Feed) -> None:
    """Let somebody in the middle alter what the two ends of a locked door say to each other."""
    virtual_loop().run(_knock(feed))


async def _knock(feed: Feed) -> None:
    inside, outside = _Stream(), _Stream()
    door = Door(_locked() if feed.flag() else None, _let_in)
    token = feed.pick((_TOKEN, _TOKEN, "", _TOKEN[:-1]))
    fingerprint = _locked().key.fingerprint
    key = Key(feed.pick((fingerprint, fingerprint, "A" * 43)), token)
    opening = asyncio.ensure_future(
        door._proven_untrusted(cast(PlainStream, inside))  # noqa: SLF001 - the rest is sockets
    )
    knock: Coroutine[Any, Any, Any]
    match feed.below(4):
        case 2:
            knock, token = _say(outside, feed.take(64)), ""
        case 3:
            knock, token = _say_inside(outside, _as_line({"token": odd.value(feed)})), ""
        case _:
            knock = _unlock(cast(PlainStream, outside), Address(THERE, 1), key, _TIMEOUT_S)
    knocking = asyncio.ensure_future(knock)
    await _carry(feed, inside, outside, (opening, knocking))
    let_in, welcome = await asyncio.gather(opening, knocking, return_exceptions=True)
    for result in (let_in, welcome):
        if isinstance(result, BaseException) and not isinstance(result, _EXPECTED):
            raise result
    if isinstance(let_in, Channel) and let_in.secured:
        assert token == _TOKEN, "let in without the token"
    if isinstance(welcome, Channel):
        assert key.fingerprint == fingerprint, "the token was said to a stranger"


async def _say(stream: _Stream, data: bytes) -> None:
    """Say something before any TLS."""
    await stream.write(data)


async def _say_inside(stream: _Stream, data: bytes) -> None:
    """Say something that is no token inside TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    tls = TlsStream(cast(PlainStream, stream), context, server_side=False)
    await tls.handshake()
    await tls.write(data)


async def _let_in(_: Channel) -> None:
    """Nothing more is asked for here."""


async def _carry(
    feed: Feed, inside: _Stream, outside: _Stream, ends: tuple[asyncio.Future[Any], ...]
) -> None:
    """Carry bytes both ways until both ends are done, altering some."""
    for _ in range(32):
        await asyncio.sleep(0.001)
        for source, target in ((inside, outside), (outside, inside)):
            chunk = bytearray(b"".join(source.outgoing))
            source.outgoing.clear()
            if chunk and feed.below(8) == 7:
                chunk[feed.number(2) % len(chunk)] ^= 1 << feed.below(8)
            if chunk:
                target.incoming.put_nowait(bytes(chunk[: 1 << 14]))
            if source.closed or feed.below(64) == 63:
                target.incoming.put_nowait(b"")
        if all(end.done() for end in ends):
            break
    for stream in (inside, outside):
        stream.incoming.put_nowait(b"")
