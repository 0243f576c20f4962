"""The asyncio interface: listen, connect, register memory, write, message.

    async with mrc.listen("127.0.0.1:0") as listener, mrc.connect(listener.url) as qp:
        peer = await listener.accept()

Everything is used with ``async with`` and leaves nothing behind. Cancelling a wait ends the wait;
the write itself goes on, or ends with the queue pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from mrc.connection import Connection, accept_untrusted, open_connection
from mrc.engine import Engine
from mrc.errors import ConfigError, MrcError, PeerProtocolError, QueuePairClosed
from mrc.mailbox import Mailbox
from mrc.messages import Kind
from mrc.proto.config import Config
from mrc.proto.events import EvChanged, PortStatusChanged
from mrc.proto.memory import Region
from mrc.proto.statistics import EndpointStatistics, QpStatistics
from mrc.rendezvous import Address, Channel, open_channel, parse_address, serve
from mrc.udp import Sockets

CONNECT_TIMEOUT_S = 10.0
HANDSHAKES_MAX = 256
"""Connections in their handshake or waiting to be accepted, 100 KiB each; more are closed."""


@dataclass(frozen=True, slots=True)
class RemoteRegion:
    """Memory of a peer that this side may write to: its address, key and length in bytes."""

    va: int
    r_key: int
    length: int

    def to_json(self) -> dict[str, int]:
        """Return plain values for a message."""
        return asdict(self)

    @classmethod
    def from_json_untrusted(cls, value: object) -> Self:
        """Read what a peer sent.

        Raises:
            PeerProtocolError: not an object with these three numbers in range.
        """
        match value:
            case {"va": int(va), "r_key": int(r_key), "length": int(length)} if (
                0 <= va < 1 << 64 and 0 <= r_key < 1 << 32 and 0 < length <= (1 << 64) - va
            ):
                return cls(va, r_key, length)
            case _:
                raise PeerProtocolError(f"not a memory region: {value!r:.80}")


class MemoryRegion:
    """A registered buffer of this side; leaving its ``with`` block deregisters it at once."""

    def __init__(self, engine: Engine, region: Region, known: dict[int, MemoryRegion]) -> None:
        self._engine = engine
        self._region = region
        self._known = known
        self.remote = RemoteRegion(region.va, region.r_key, region.length)

    @property
    def va(self) -> int:
        """Remote address of its first byte."""
        return self.remote.va

    @property
    def r_key(self) -> int:
        """Its key."""
        return self.remote.r_key

    def seal(self, size: int) -> None:
        """Refuse every further write to the first `size` bytes: what is checked stays as it is."""
        self._region.sealed = max(self._region.sealed, size)

    def deregister(self) -> None:
        """Refuse every further write to it, and let go of the buffer. Twice is once."""
        self._engine.endpoint.deregister(self._region)
        self._known.pop(self.remote.r_key, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.deregister()


@dataclass(frozen=True, slots=True)
class Immediate:
    """A WRITE-with-Immediate that is complete, and everything written before it."""

    imm: int
    region: MemoryRegion | None
    """Where it went; None when the region was deregistered meanwhile."""
    offset: int
    length: int


class JsonChannel:
    """JSON objects both ways, as messages of the queue pair: they survive dead paths."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def send(self, message: dict[str, Any]) -> None:
        """Send one object of at most 1 MiB as JSON.

        Raises:
            ConfigError: too long, or not JSON.
            TransportError: the queue pair failed.
        """
        if not isinstance(message, dict):
            raise ConfigError(f"the channel carries JSON objects, not {type(message).__name__}")
        try:
            data = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"not to be said in JSON: {error}") from error
        await self._connection.ring.send(Kind.CONTROL, data)

    async def receive(self) -> dict[str, Any]:
        """Return the next object.

        Raises:
            PeerProtocolError: the peer sent something else.
            TransportError: the queue pair failed, or the peer is gone.
        """
        ring = self._connection.ring
        data = await ring.take(ring.control)
        try:
            message = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise PeerProtocolError("the peer sent a control message that is no JSON") from error
        if not isinstance(message, dict):
            raise PeerProtocolError("the peer sent a control message that is no JSON object")
        return message


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
        region = MemoryRegion(engine, engine.endpoint.register(buffer), self._regions)
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
        va = _inside(remote, offset, memoryview(data).nbytes)
        await self._connection.write(data, va, remote.r_key, None)

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
        va = _inside(remote, offset, memoryview(data).nbytes)
        await self._connection.write(data, va, remote.r_key, imm)

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
            for region in list(self._regions.values()):
                region.deregister()
            if self._owns_endpoint:
                self._endpoint.shut()

    def abort(self) -> None:
        """End at once: nothing more is sent, and everything that waits raises."""
        self._connection.abort()
        self._endpoint.queue_pairs.discard(self)

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
    """Accepts queue pairs; made by `listen` or `Endpoint.listen`."""

    def __init__(
        self, endpoint: Endpoint, address: Address, planes: Sequence[str], *, owned: bool
    ) -> None:
        self._endpoint = endpoint
        self._wanted = address
        self._planes = tuple(planes)
        self._owns_endpoint = owned
        self._server: asyncio.Server | None = None
        self._accepted: Mailbox[QueuePair] = Mailbox()
        self._handshakes: set[asyncio.Task[Any]] = set()
        self.refused_handshakes = 0
        self.address = address

    @property
    def url(self) -> str:
        """The URL to connect to."""
        return self.address.url

    async def _open(self) -> None:
        for plane in self._planes:
            self._endpoint.engine.port_for(plane, 0)
        self._server = await serve(self._wanted, self._on_connection)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = Address(host, port)

    async def _on_connection(self, channel: Channel) -> None:
        task = asyncio.current_task()
        full = len(self._handshakes) + len(self._accepted) >= HANDSHAKES_MAX
        if task is None or full:
            self.refused_handshakes += 1
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
            self.refused_handshakes += 1
            await channel.close()
        except asyncio.CancelledError:
            channel.abort()
        else:
            self._accepted.put(QueuePair(connection, self._endpoint))
        finally:
            self._handshakes.discard(task)

    async def accept(self) -> QueuePair:
        """Return the next queue pair a peer has connected, ready for use."""
        return await self._accepted.get()

    async def close(self) -> None:
        """Stop listening; accepted queue pairs live on unless the endpoint is ours alone."""
        server, self._server = self._server, None
        try:
            if server is not None:
                server.close()
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


class Connecting:
    """What `connect` returns: ``await`` it, or use it with ``async with``."""

    def __init__(
        self,
        endpoint: Endpoint,
        address: Address,
        planes: Sequence[str],
        timeout_s: float,
        *,
        owned: bool,
    ) -> None:
        self._endpoint = endpoint
        self._address = address
        self._planes = tuple(planes)
        self._timeout_s = timeout_s
        self._owned = owned
        self._qp: QueuePair | None = None

    async def _connect(self) -> QueuePair:
        await self._endpoint.open()
        try:
            channel = await open_channel(self._address, self._timeout_s)
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

    def listen(self, address: str = "", *, planes: Sequence[str] = ()) -> Listener:
        """Return a listener for a rendezvous address; enter it with ``async with``."""
        return Listener(self, parse_address(address, default_host="0.0.0.0"), planes, owned=False)

    def connect(
        self, address: str, *, planes: Sequence[str] = (), timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Connecting:
        """Connect to a listener's URL; enter it with ``async with``, or await it."""
        return Connecting(self, parse_address(address), planes, timeout_s, owned=False)

    def statistics(self) -> EndpointStatistics:
        """Return a snapshot of the counters."""
        return self.engine.endpoint.statistics()

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
    **endpoint: Any,
) -> Listener:
    """Listen at a rendezvous address with an endpoint of its own.

    Args:
        address: ``host:port``, ``mrc://host:port/`` or ``:port``; port 0 lets the kernel choose.
        config: settings.
        planes: own numeric addresses, one per plane. Empty: the address the peer connected to.
        endpoint: further arguments of `Endpoint`.

    Raises:
        ConfigError: not an address.
        LocalError: on entering: it cannot be listened on.
    """
    own = Endpoint(config, **endpoint)
    return Listener(own, parse_address(address, default_host="0.0.0.0"), planes, owned=True)


def connect(
    address: str,
    *,
    config: Config | None = None,
    planes: Sequence[str] = (),
    timeout_s: float = CONNECT_TIMEOUT_S,
    **endpoint: Any,
) -> Connecting:
    """Connect to a listener with an endpoint of its own.

    Args:
        address: the listener's URL.
        config: settings.
        planes: own numeric addresses, one per plane. Empty: the address that reaches the peer.
        timeout_s: for the TCP connection, and again for the handshake.
        endpoint: further arguments of `Endpoint`.

    Raises:
        ConfigError: not an address.
        PeerUnreachable: on entering: nothing answers there.
        PeerVersionError: something else, or another version, answers.
    """
    own = Endpoint(config, **endpoint)
    return Connecting(own, parse_address(address), planes, timeout_s, owned=True)
