"""The asyncio interface: listen, connect, register memory, write, message.

    async with mrc.listen("127.0.0.1:0") as listener, mrc.connect(listener.url) as qp:
        peer = await listener.accept()

Everything is used with ``async with`` and leaves nothing behind. Cancelling a wait ends the wait;
the write itself goes on, or ends with the queue pair.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from mrc.connection import Connection, accept_untrusted, open_connection
from mrc.door import Door
from mrc.engine import Engine
from mrc.errors import ConfigError, MrcError, QueuePairClosed
from mrc.json_channel import JsonChannel
from mrc.lock import Lock
from mrc.mailbox import Mailbox
from mrc.messages import Kind
from mrc.proto.config import Config
from mrc.proto.events import EvChanged, PortStatusChanged
from mrc.proto.statistics import EndpointStatistics, QpStatistics
from mrc.qp_facts import QpFacts
from mrc.regions import MemoryRegion, RemoteRegion
from mrc.rendezvous import Address, Channel, Url, open_channel
from mrc.socket_facts import PortFacts
from mrc.udp import Sockets

CONNECT_TIMEOUT_S = 10.0
HANDSHAKES_MAX = 256
"""Connections in their handshake or waiting to be accepted, a queue pair each; more are closed."""


@dataclass(frozen=True, slots=True)
class Immediate:
    """A WRITE-with-Immediate that is complete, and everything written before it."""

    imm: int
    region: MemoryRegion | None
    """Where it went; None when the region was deregistered meanwhile."""
    offset: int
    length: int


class QueuePair:
    """A connection: remote writes, immediates and messages over all its paths at once."""

    def __init__(self, connection: Connection, endpoint: Endpoint, *, owned: bool = False) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._owns_endpoint = owned
        self._regions: dict[int, MemoryRegion] = {}
        self._closing: asyncio.Task[None] | None = None
        self.channel = JsonChannel(connection)
        endpoint.queue_pairs.add(self)

    # Memory.

    def register(self, buffer: Any) -> MemoryRegion:
        """Register a writable buffer (bytearray, numpy array, mmap, shared memory) for the peer.

        Raises:
            ConfigError: read-only, empty or not contiguous.
        """
        engine = self._endpoint.engine
        region = MemoryRegion(engine, self._connection.register(buffer), self._regions)
        self._regions[region.r_key] = region
        return region

    # Remote writes.

    async def write(self, data: Any, remote: RemoteRegion, offset: int = 0) -> None:
        """Write a buffer of 1 to 2^32 - 1 bytes to the peer; done when every byte is placed there.

        The buffer is read while the write is under way and must not change until then.

        Args:
            data: any contiguous buffer.
            remote: the peer's region.
            offset: bytes into the region.

        Raises:
            ConfigError: outside the region, or a size that MRC does not have.
            TransportError: retries exceeded, refused by the peer, or the peer is gone.
        """
        await asyncio.shield(self.post(data, remote, offset))

    async def write_imm(
        self, data: Any, remote: RemoteRegion, offset: int = 0, *, imm: int
    ) -> None:
        """Write as `write` does; the peer then gets an `Immediate`, in order and exactly once.

        Args:
            data: any contiguous buffer.
            remote: the peer's region.
            offset: bytes into the region.
            imm: 32 bits for the peer.
        """
        await asyncio.shield(self.post(data, remote, offset, imm=imm))

    def post(
        self, data: Any, remote: RemoteRegion, offset: int = 0, *, imm: int | None = None
    ) -> asyncio.Future[None]:
        """Begin a write without waiting for it: many at once, or an answer on its way at once.

        It leaves when the event loop gets its turn, with all else that was posted until then. The
        buffer must not change before the future is done; cancelling that does not stop the write.

        Args:
            data: any contiguous buffer.
            remote: the peer's region.
            offset: bytes into the region.
            imm: 32 bits for the peer, or none.

        Returns:
            Done when every byte is placed, or failed with what `write` raises. Who does not await
            it is told nothing.

        Raises:
            ConfigError: outside the region, or a size that MRC does not have.
            TransportError: the queue pair has failed already.
        """
        va = _inside(remote, offset, memoryview(data).nbytes)
        return self._connection.post(data, va, remote.r_key, imm)

    async def next_immediate(self) -> Immediate:
        """Return the next WRITE-with-Immediate of the peer, waiting for it.

        Raises:
            TransportError: the queue pair failed, or the peer is gone.
        """
        event = await self._connection.immediates.get()
        self._connection.release_immediate()
        region = self._regions.get(event.r_key)
        return Immediate(event.imm, region, event.va - (region.va if region else 0), event.length)

    # Messages.

    async def send(self, data: Any) -> None:
        """Send a message of at most 1 MiB; done when it is placed at the peer.

        Waits while the peer does not take its messages.
        """
        await self._connection.ring.send(Kind.DATA, data)

    async def receive(self) -> bytes:
        """Return the peer's next message, waiting for it."""
        ring = self._connection.ring
        return await ring.take(ring.data)

    # News and the end.

    async def events(self) -> AsyncIterator[EvChanged | PortStatusChanged]:
        """Yield changes of the paths to this peer as they happen, until the queue pair ends."""
        mailbox = self._connection.watch_paths()
        try:
            while True:
                yield await mailbox.get()
        except MrcError:
            return
        finally:
            self._connection.unwatch_paths(mailbox)

    @property
    def peer(self) -> str:
        """The peer's rendezvous address."""
        return str(self._connection.peer_address)

    @property
    def failure(self) -> MrcError | None:
        """Why the queue pair ended, or None while it lives."""
        return self._connection.failure

    def statistics(self) -> QpStatistics:
        """Return a snapshot of all counters."""
        return self._connection.statistics()

    def facts(self) -> QpFacts:
        """Return what both sides settled on: cipher, path MTU, and what bounds the window."""
        return self._connection.facts()

    async def close(self) -> None:
        """Wait for what was posted, tell the peer, and free everything.

        May be called again and while it runs: every caller waits for the same end, which comes even
        if the waiting is cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._connection.close()
        finally:
            self._endpoint.queue_pairs.discard(self)
            self._deregister()
            if self._owns_endpoint:
                self._endpoint.shut()

    def abort(self) -> None:
        """End at once: nothing more is sent, and everything that waits raises."""
        self._connection.abort()
        self._endpoint.queue_pairs.discard(self)
        self._deregister()

    def _deregister(self) -> None:
        for region in list(self._regions.values()):
            region.deregister()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abort()
        await self.close()


def _inside(remote: RemoteRegion, offset: int, size: int) -> int:
    if offset < 0 or offset + size > remote.length:
        raise ConfigError(
            f"{size} bytes at offset {offset} do not fit the remote region of {remote.length} bytes"
        )
    return remote.va + offset


class Listener:
    """Accepts queue pairs; made by `listen` or `Endpoint.listen`.

    Attributes:
        lock: what keeps strangers out, or None.
        address: where it listens, once it is entered.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        address: str,
        planes: Sequence[str],
        *,
        lock: Lock | None,
        owned: bool,
    ) -> None:
        self._endpoint = endpoint
        self._planes = tuple(planes)
        self._owns_endpoint = owned
        self._door = Door(lock, self._on_connection)
        self._accepted: Mailbox[QueuePair] = Mailbox()
        self._handshakes: set[asyncio.Task[Any]] = set()
        self._refused = 0
        self.lock = lock
        self.address = _listening_address(address)

    @property
    def url(self) -> str:
        """The URL to connect to; with a lock it holds the token, and belongs in no log."""
        return str(Url(self.address, self.lock.key if self.lock else None))

    @property
    def refused_handshakes(self) -> int:
        """Connections that came to nothing: refused, broken off, or by strangers."""
        return self._refused + self._door.turned_away

    async def _open(self) -> None:
        for plane in self._planes:
            self._endpoint.engine.port_for(plane, 0)
        self.address = await self._door.open(self.address)

    async def _on_connection(self, channel: Channel) -> None:
        task = asyncio.current_task()
        full = len(self._handshakes) + len(self._accepted) >= HANDSHAKES_MAX
        if task is None or full:
            self._fail_handshake()
            with contextlib.suppress(MrcError):
                await channel.send({"refused": "too many connections at once; try again"})
            await channel.close()
            return
        self._handshakes.add(task)
        try:
            connection = await accept_untrusted(
                self._endpoint.engine, channel, self._planes, CONNECT_TIMEOUT_S
            )
        except (MrcError, OSError):
            self._fail_handshake()
            await channel.close()
        except asyncio.CancelledError:
            channel.abort()
        else:
            self._accepted.put(QueuePair(connection, self._endpoint))
        finally:
            self._handshakes.discard(task)

    def _fail_handshake(self) -> None:
        self._refused += 1
        if self.lock is not None:
            self.lock.reopen()

    async def accept(self) -> QueuePair:
        """Return the next queue pair a peer has connected, ready for use."""
        return await self._accepted.get()

    async def close(self) -> None:
        """Stop listening; accepted queue pairs live on unless the endpoint is ours alone."""
        try:
            await self._door.close()
            for task in list(self._handshakes):
                task.cancel()
            await asyncio.gather(*self._handshakes, return_exceptions=True)
            while len(self._accepted):
                (await self._accepted.get()).abort()
        finally:
            self._accepted.fail(QueuePairClosed("the listener was closed"))
            if self._owns_endpoint:
                self._endpoint.shut()

    async def __aenter__(self) -> Self:
        await self._endpoint.open()
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _listening_address(text: str) -> Address:
    url = Url.parse(text, default_host="0.0.0.0")
    if url.key is not None:
        raise ConfigError("a listener has the key of its own lock: listen at HOST:PORT")
    return url.address


class Connecting:
    """What `connect` returns: ``await`` it, or use it with ``async with``."""

    def __init__(
        self,
        endpoint: Endpoint,
        url: Url,
        planes: Sequence[str],
        timeout_s: float,
        *,
        owned: bool,
    ) -> None:
        self._endpoint = endpoint
        self._url = url
        self._planes = tuple(planes)
        self._timeout_s = timeout_s
        self._owned = owned
        self._qp: QueuePair | None = None

    async def _connect(self) -> QueuePair:
        await self._endpoint.open()
        try:
            channel = await open_channel(self._url, self._timeout_s)
            connection = await open_connection(
                self._endpoint.engine, channel, self._planes, self._timeout_s
            )
        except BaseException:
            if self._owned:
                self._endpoint.shut()
            raise
        return QueuePair(connection, self._endpoint, owned=self._owned)

    def __await__(self) -> Any:
        return self._connect().__await__()

    async def __aenter__(self) -> QueuePair:
        self._qp = await self._connect()
        return self._qp

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._qp is not None:
            await self._qp.__aexit__(kind, error, trace)


class Endpoint:
    """Sockets, memory and queue pairs of one process; queue pairs to one peer share its paths."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        sockets: Sockets | None = None,
        udp_port: int | None = None,
        source_ports: tuple[int, int] = (49152, 65535),
    ) -> None:
        """Make an endpoint; it opens inside ``async with``.

        Args:
            config: settings; the defaults work.
            sockets: factory of sockets, such as `mrc.udp.FaultySockets` for tests.
            udp_port: where packets for us arrive. None: 4971 if free, else any.
            source_ports: lowest and highest UDP source port that EVs take.
        """
        self.config = config or Config()
        self._sockets = sockets
        self._udp_port = udp_port
        self._source_ports = source_ports
        self._engine: Engine | None = None
        self.queue_pairs: set[QueuePair] = set()
        """Those that are open."""

    @property
    def engine(self) -> Engine:
        """The pump.

        Raises:
            ConfigError: the endpoint is not open.
        """
        if self._engine is None:
            raise ConfigError("the endpoint is not open; use it with 'async with'")
        return self._engine

    async def open(self) -> None:
        """Start the pump in the running event loop; once is enough, and again after a close."""
        if self._engine is None or self._engine.closed:
            self._engine = Engine(
                self.config,
                sockets=self._sockets,
                udp_port=self._udp_port,
                source_ports=self._source_ports,
            )

    def listen(
        self, address: str = "", *, planes: Sequence[str] = (), lock: Lock | None = None
    ) -> Listener:
        """Return a listener for a rendezvous address; enter it with ``async with``."""
        return Listener(self, address, planes, lock=lock, owned=False)

    def connect(
        self,
        address: str,
        *,
        planes: Sequence[str] = (),
        token: str | None = None,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> Connecting:
        """Connect to a listener's URL; enter it with ``async with``, or await it."""
        url = Url.parse(address).with_token(token)
        return Connecting(self, url, planes, timeout_s, owned=False)

    def statistics(self) -> EndpointStatistics:
        """Return a snapshot of the counters."""
        return self.engine.endpoint.statistics()

    def port_facts(self) -> tuple[PortFacts, ...]:
        """Return what the kernel made of the sockets, a port each: buffers, features, drops."""
        return self.engine.port_facts()

    async def close(self) -> None:
        """Abort the queue pairs that are still open and close all sockets. Twice is once."""
        self.shut()

    def shut(self) -> None:
        """Do what `close` does, without waiting for anything."""
        for qp in list(self.queue_pairs):
            qp.abort()
        if self._engine is not None:
            self._engine.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def listen(
    address: str = "",
    *,
    config: Config | None = None,
    planes: Sequence[str] = (),
    lock: Lock | None = None,
    **endpoint: Any,
) -> Listener:
    """Listen at a rendezvous address with an endpoint of its own.

    Args:
        address: ``host:port``, ``mrc://host:port/`` or ``:port``; port 0 lets the kernel choose.
        config: settings.
        planes: own numeric addresses, one per plane. Empty: the address the peer connected to.
        lock: lets in only peers that have the listener's URL, ``Lock.new()`` for one made now.
            None: whoever reaches the address may connect, and nothing is encrypted.
        endpoint: further arguments of `Endpoint`.

    Raises:
        ConfigError: not an address.
        LocalError: on entering: it cannot be listened on.
    """
    own = Endpoint(config, **endpoint)
    return Listener(own, address, planes, lock=lock, owned=True)


def connect(
    address: str,
    *,
    config: Config | None = None,
    planes: Sequence[str] = (),
    token: str | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
    **endpoint: Any,
) -> Connecting:
    """Connect to a listener with an endpoint of its own.

    Args:
        address: the listener's URL. With a key in it the peer is made sure of before it is told
            anything, else whoever answers is believed.
        config: settings.
        planes: own numeric addresses, one per plane. Empty: the address that reaches the peer.
        token: what the listener was given beforehand, where its URL carries none.
        timeout_s: for the TCP connection, and again for each step of the handshake.
        endpoint: further arguments of `Endpoint`.

    Raises:
        ConfigError: not an address, or the token is missing.
        PeerUnreachable: on entering: nothing answers there.
        PeerNotTrusted: on entering: somebody else answers there.
        PeerRefused: on entering: the token is wrong or used, or the two sides do not fit.
        PeerVersionError: something else, or another version, answers.
    """
    own = Endpoint(config, **endpoint)
    return Connecting(own, Url.parse(address).with_token(token), planes, timeout_s, owned=True)
