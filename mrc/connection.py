"""One established queue pair inside the event loop: handshake, waiting writes, and how it ends.

`open_connection` and `accept_untrusted` are the two ends of the handshake; both return a
`Connection` whose queue pair is in RTS.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from time import monotonic_ns
from typing import Any

from mrc.engine import Engine
from mrc.errors import (
    ConfigError,
    MrcError,
    PeerError,
    PeerLost,
    PeerProtocolError,
    PeerRefused,
    PeerUnreachable,
    QueuePairClosed,
    RemoteAccessError,
    RemoteOperationError,
    RetriesExceeded,
)
from mrc.mailbox import Mailbox, Signal
from mrc.messages import MessageRing, RingAddress
from mrc.proto.attributes import from_json_untrusted, to_json
from mrc.proto.config import QpAttributes
from mrc.proto.events import (
    EvChanged,
    Event,
    ImmediateReceived,
    PlaneProved,
    PortStatusChanged,
    QpFailed,
    QpFailure,
    WriteDone,
)
from mrc.proto.memory import Region
from mrc.proto.peer import LocalPort, Peer, Plane, evs_per_plane, pair_planes
from mrc.proto.qp import QpState, QueuePair
from mrc.proto.statistics import PathStatistics, QpStatistics
from mrc.qp_facts import QpFacts
from mrc.rendezvous import PROTOCOL, Channel, Message, check_protocol_untrusted
from mrc.seals import Offer
from mrc.units import format_ns

BYE_TIMEOUT_S = 2.0
"""How long `close` waits for the peer to close as well."""
PATH_EVENTS_MAX = 1024
UNCHOSEN_PORTS_MAX = 16
"""Own addresses that peers may make us open EVs on, where none were chosen."""
PATHS_SHOWN_MAX = 16


def path_lines(paths: Sequence[PathStatistics]) -> tuple[str, ...]:
    """Say of the first paths to a peer what state they are in, and when they last answered."""
    now_ns = monotonic_ns()
    return tuple(
        f"plane {path.plane} port {path.source_port} {path.state}, "
        + (
            f"answered {format_ns(now_ns - path.confirmed_ns)} ago"
            if path.confirmed_ns >= 0
            else "never answered"
        )
        for path in paths[:PATHS_SHOWN_MAX]
    )


class Connection:
    """A queue pair, its rendezvous channel, and everything that waits for either."""

    def __init__(
        self, engine: Engine, channel: Channel, peer_name: str, *, connecting: bool
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._connecting = connecting
        self._offer = Offer() if channel.secured else None
        self._loop = asyncio.get_running_loop()
        self._writes: dict[int, asyncio.Future[None]] = {}
        self._watchers: list[Mailbox[EvChanged | PortStatusChanged]] = []
        self._reading: asyncio.Task[None] | None = None
        self._drained = Signal()
        self._closing = False
        self._peer_closed = Signal()
        self._plane_proved = Signal()
        """Also set at the end, when there is nothing to wait for any more."""
        self._local: QpAttributes | None = None
        self._remote: QpAttributes | None = None
        self.peer_address = channel.peer
        self.failure: MrcError | None = None
        self.immediates: Mailbox[ImmediateReceived] = Mailbox()
        self.qp: QueuePair = engine.endpoint.create_qp(peer_name)
        self.ring = MessageRing(self.register, self.post)
        engine.subscribe(self.qp.qpn, self._on_event)
        engine.path_events.append(self._on_path_event)

    # Set-up.

    def hello(self, ports: list[LocalPort]) -> Message:
        """Return what the peer must know."""
        planes = tuple((port.host.partition("%")[0], port.udp_port) for port in ports)
        buffer_bytes = min(self._engine.receive_buffer_bytes(port) for port in ports)
        self._local = self._engine.endpoint.attributes(
            self.qp,
            planes,
            receive_buffer_bytes=buffer_bytes,
            mtu=self._engine.fitting_mtu(ports, sealed=self._offer is not None),
            link_bps=self._engine.link_bps(ports),
        )
        return {
            "protocol": PROTOCOL,
            "endpoint": self._engine.endpoint_ids[self._offer is not None],
            "qp": to_json(self._local),
            "ring": asdict(self.ring.address),
            "keys": self._offer.to_json() if self._offer is not None else None,
        }

    def establish_untrusted(self, hello: Message, ports: list[LocalPort]) -> None:
        """Take the queue pair to RTR with what the peer said.

        Raises:
            PeerProtocolError: it said something impossible.
            ConfigError: the two sides do not fit together.
        """
        remote = from_json_untrusted(hello.get("qp"))
        ring = RingAddress.from_json_untrusted(hello.get("ring"))
        identity = hello.get("endpoint")
        if not isinstance(identity, str) or len(identity) > 64:
            raise PeerProtocolError(f"{self.peer_address}: handshake without endpoint id")
        # Who heard another's id cannot pass for it from an address of his own.
        identity = f"{identity} at {self.peer_address.host}"
        if self._local is None:
            raise ConfigError("establish before hello: own attributes are not known yet")
        seal = None
        if self._offer is not None:
            seal = self._offer.accept_untrusted(hello.get("keys"), connecting=self._connecting)
        peer = self._peer(identity, remote, ports)
        endpoint = self._engine.endpoint
        endpoint.connect_qp(self.qp, peer, self._local, remote, monotonic_ns(), seal)
        self._remote = remote
        self.ring.connect(ring)

    def _peer(self, identity: str, remote: QpAttributes, ports: list[LocalPort]) -> Peer:
        """Return the peer, known already if another queue pair goes to the same endpoint.

        Sealed queue pairs share paths only with sealed ones: what is said of them without keys is
        not to be believed.
        """
        endpoint = self._engine.endpoint
        pairs = pair_planes([(port.index, port.host) for port in ports], remote.planes)
        planes = [
            Plane(index, host, self._engine.remote_sockaddr(*there, host))
            for index, host, there in pairs
        ]
        for peer in endpoint.peers.values():
            alike = peer.identity == identity and peer.plane_list == planes
            sealed = any(qp.seal is not None for qp in peer.qps.values())
            if alike and sealed == (self._offer is not None):
                return peer
        evs = evs_per_plane(endpoint.config, len(planes))
        for port in ports:
            self._engine.port_for(port.host, evs)
        peer = endpoint.add_peer(planes)
        peer.paths.demand_proof(monotonic_ns())
        peer.identity = identity
        return peer

    async def start(self, timeout_s: float) -> None:
        """Both sides are ready to receive: watch the channel, prove a plane, go to RTS.

        Where the peer says it receives could be anyone's address. Probes go there first, and until
        one is answered nothing else does. A peer that is gone by then leaves a connection on which
        what it sent can be read, and that is all.

        Raises:
            PeerUnreachable: no probe was answered in time on any plane.
        """
        self._reading = self._loop.create_task(self._watch_channel())
        self._engine.kick()
        try:
            async with asyncio.timeout(timeout_s):
                while self.failure is None and not self._proved_planes():
                    self._plane_proved.clear()
                    await self._plane_proved.wait()
        except TimeoutError as error:
            raise PeerUnreachable(
                self._unproved_text(timeout_s), peer=str(self.peer_address)
            ) from error
        if self.failure is None:
            self.qp.activate()

    def _proved_planes(self) -> int:
        """Return how many planes may carry data."""
        peer = self.qp.peer
        return peer.planes - len(peer.paths.unproved) if peer is not None else 0

    def _unproved_text(self, timeout_s: float) -> str:
        planes = self.qp.peer.plane_list if self.qp.peer is not None else []
        tried = ", ".join(f"{p.host} to {p.remote[0]} UDP port {p.remote[1]}" for p in planes)
        return (
            f"{self.peer_address} answered no probe within {timeout_s:g} s, tried from {tried}; "
            "does a firewall stop UDP, or does the peer name an address that cannot be reached?"
        )

    # Writes.

    def register(self, buffer: Any) -> Region:
        """Register a buffer that this queue pair's peer may write to, and nobody else."""
        return self._engine.endpoint.register(buffer, self.qp)

    def post(self, data: Any, va: int, r_key: int, imm: int | None) -> asyncio.Future[None]:
        """Post a write; the future is done when every byte is placed at the peer.

        Raises:
            TransportError: the queue pair has failed.
            ConfigError: an argument is out of range.
        """
        if self.failure is not None:
            raise self.failure
        if self._peer_closed.is_set():
            raise PeerLost(
                f"{self.peer_address} closed the connection", peer=str(self.peer_address)
            )
        if self._closing and imm is None:
            raise QueuePairClosed("the queue pair is being closed", peer=str(self.peer_address))
        work_id = self._engine.endpoint.post_write(self.qp, data, va, r_key, imm)
        future: asyncio.Future[None] = self._loop.create_future()
        self._writes[work_id] = future
        self._engine.kick()
        return future

    def release_immediate(self) -> None:
        """The application took an immediate."""
        if self.qp.responder is not None:
            self.qp.responder.release_immediates(1)

    # Events.

    def _on_event(self, event: Event) -> None:
        match event:
            case WriteDone(work_id=work_id):
                future = self._writes.pop(work_id, None)
                if future is not None and not future.done():
                    future.set_result(None)
                if not self._writes:
                    self._drained.set()
            case ImmediateReceived():
                self._on_immediate(event)
            case QpFailed():
                self.fail(self._error_of(event))
            case _:
                pass

    def _on_immediate(self, event: ImmediateReceived) -> None:
        try:
            taken = self.ring.on_immediate_untrusted(event.r_key, event.va, event.length, event.imm)
        except PeerProtocolError as error:
            self.fail(error)
            return
        if taken:
            self.release_immediate()
        else:
            self.immediates.put(event)

    def _on_path_event(self, event: Event) -> None:
        if not isinstance(event, EvChanged | PortStatusChanged | PlaneProved):
            return
        if self.qp.peer is None or event.peer_id != self.qp.peer.peer_id:
            return
        if isinstance(event, PlaneProved):
            self._plane_proved.set()
        else:
            for mailbox in self._watchers:
                if len(mailbox) < PATH_EVENTS_MAX:
                    mailbox.put(event)

    def watch_paths(self) -> Mailbox[EvChanged | PortStatusChanged]:
        """Return a mailbox that gets the path events from now on; those over a limit are lost."""
        mailbox: Mailbox[EvChanged | PortStatusChanged] = Mailbox()
        if self.failure is not None:
            mailbox.fail(self.failure)
        self._watchers.append(mailbox)
        return mailbox

    def unwatch_paths(self, mailbox: Mailbox[EvChanged | PortStatusChanged]) -> None:
        """Stop filling a mailbox."""
        self._watchers.remove(mailbox)

    def _error_of(self, event: QpFailed) -> MrcError:
        name = str(self.peer_address)
        if event.failure is QpFailure.RETRY_EXCEEDED:
            paths = path_lines(self.statistics().paths)
            tried = ("; paths: " + "; ".join(paths)) if paths else ""
            if event.fault:
                tried = f"; the kernel here refused packets: {event.fault}" + tried
            return RetriesExceeded(
                f"{name} acknowledged nothing for {format_ns(event.silent_ns)}: retry counter "
                f"exceeded after {event.retry_count} timeouts at PSN {event.psn:#08x}{tried}",
                peer=name,
                paths=paths,
                psn=event.psn,
                retry_count=event.retry_count,
                waited_ns=event.silent_ns,
            )
        if event.failure is QpFailure.REMOTE_ACCESS:
            return RemoteAccessError(
                f"{name} refused a write: unknown key or outside its region (PSN {event.psn:#08x})",
                peer=name,
            )
        if event.failure is QpFailure.LOCAL_CLOSE:
            return QueuePairClosed("the queue pair was closed on this side", peer=name)
        return RemoteOperationError(f"{name}: {event.failure.value}", peer=name)

    def fail(self, error: MrcError) -> None:
        """End: everything that waits raises `error`, the peer sees the channel close."""
        if self.failure is not None:
            return
        self.failure = error
        if self.qp.state is not QpState.ERROR:
            self._engine.endpoint.fail_qp(self.qp, QpFailure.LOCAL_CLOSE, monotonic_ns())
        for future in self._writes.values():
            if not future.done():
                future.set_exception(error)
                # Whoever was cancelled meanwhile does not come back for it.
                future.exception()
        self._writes.clear()
        self._drained.set()
        self._peer_closed.set()
        self._plane_proved.set()
        self.ring.fail(error)
        self.immediates.fail(error)
        if not isinstance(error, PeerLost | QueuePairClosed):
            # The peer learns at once, and not from silence, that this end is over.
            self._channel.abort()
        for mailbox in self._watchers:
            mailbox.fail(error)

    # The channel, and the end.

    async def _watch_channel(self) -> None:
        """Read the channel until the peer says goodbye or is gone."""
        name = str(self.peer_address)
        try:
            message = await self._channel.receive_untrusted()
        except PeerError as error:
            self.fail(error)
            return
        if message is not None and message.get("bye") is True:
            await self._on_bye()
        elif message is None:
            self.fail(PeerLost(f"{name} is gone: its process ended or was cut off", peer=name))
        else:
            self.fail(PeerProtocolError(f"{name} sent an unknown control message", peer=name))

    async def _on_bye(self) -> None:
        """The peer posts nothing more: finish what is under way, answer, and end."""
        self._peer_closed.set()
        if self._closing:
            return
        name = str(self.peer_address)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BYE_TIMEOUT_S):
                await self._drain()
        self.fail(PeerLost(f"{name} closed the connection", peer=name))
        with contextlib.suppress(PeerError):
            await self._channel.send({"bye": True})

    async def _drain(self) -> None:
        """Wait until no write is under way."""
        if self._writes:
            self._drained.clear()
            await self._drained.wait()

    async def close(self) -> None:
        """Wait for what was posted, say goodbye, free the queue pair."""
        self._closing = True
        try:
            if self.failure is None:
                await self._drain()
                await self._say_bye()
        finally:
            self.abort()
            await self._channel.close()

    async def _say_bye(self) -> None:
        try:
            await self._channel.send({"bye": True})
            async with asyncio.timeout(BYE_TIMEOUT_S):
                await self._peer_closed.wait()
        except (PeerError, TimeoutError):
            return

    def abort(self) -> None:
        """Free the queue pair at once; whatever waits raises `QueuePairClosed`."""
        self._closing = True
        name = str(self.peer_address)
        self.fail(QueuePairClosed("the queue pair was closed on this side", peer=name))
        if self._reading is not None:
            self._reading.cancel()
        self._engine.unsubscribe(self.qp.qpn)
        if self._on_path_event in self._engine.path_events:
            self._engine.path_events.remove(self._on_path_event)
        self._engine.endpoint.destroy_qp(self.qp)
        self._engine.endpoint.deregister(self.ring.region)
        self._channel.abort()

    def statistics(self) -> QpStatistics:
        """Return a snapshot of the counters.

        Raises:
            ConfigError: not connected yet.
        """
        found = self.qp.statistics()
        if found is None:
            raise ConfigError("the queue pair is not connected yet")
        return found

    def facts(self) -> QpFacts:
        """Return what both sides settled on.

        Raises:
            ConfigError: not connected yet.
        """
        local, remote, requestor = self._local, self._remote, self.qp.requestor
        if local is None or remote is None or requestor is None or self.qp.peer is None:
            raise ConfigError("the queue pair is not connected yet")
        mtu_bytes = min(local.mtu, remote.mtu)
        return QpFacts(
            cipher=self._offer.chosen if self._offer is not None else None,
            icrc=local.icrc,
            mtu_bytes=mtu_bytes,
            planes=self.qp.peer.planes,
            mpr_bytes=remote.mpr_psns * mtu_bytes,
            window_bytes_max=int(requestor.nscc.max_wnd),
            receive_buffer_window_bytes=int(requestor.nscc.p.window_bytes_max),
        )


async def open_connection(
    engine: Engine, channel: Channel, planes: tuple[str, ...], timeout_s: float
) -> Connection:
    """Do the connecting side's part of the handshake.

    Args:
        engine: where the queue pair lives.
        channel: an open rendezvous connection.
        planes: own addresses; empty means the one the channel uses.
        timeout_s: for each answer.

    Raises:
        PeerRefused: the peer said no, and why.
        PeerVersionError: it speaks something else.
        PeerProtocolError: it answered with nonsense, or not in time.
        PeerUnreachable: its rendezvous answers, but no plane does.
    """
    connection = _new_connection(engine, channel, f"at {channel.peer}", connecting=True)
    try:
        ports = _ports(engine, channel, planes)
        await channel.send(connection.hello(ports))
        answer = await channel.expect_untrusted(timeout_s)
        if "refused" in answer:
            raise PeerRefused(
                f"{channel.peer} refused: {str(answer['refused'])[:500]}", peer=str(channel.peer)
            )
        check_protocol_untrusted(answer, channel.peer)
        connection.establish_untrusted(answer, ports)
        await channel.send({"ready": True})
        await connection.start(timeout_s)
    except BaseException:
        connection.abort()
        raise
    return connection


async def accept_untrusted(
    engine: Engine, channel: Channel, planes: tuple[str, ...], timeout_s: float
) -> Connection:
    """Do the accepting side's part of the handshake; a refusal is told to the peer.

    Raises:
        MrcError: no queue pair came of it.
    """
    hello = await channel.expect_untrusted(timeout_s)
    try:
        check_protocol_untrusted(hello, channel.peer)
    except PeerError as error:
        await channel.send({"refused": str(error)})
        raise
    name = f"{str(hello.get('endpoint'))[:64]} at {channel.peer.host}"
    connection = _new_connection(engine, channel, name, connecting=False)
    try:
        try:
            ports = _ports(engine, channel, planes)
            answer = connection.hello(ports)
            connection.establish_untrusted(hello, ports)
        except MrcError as error:
            await channel.send({"refused": str(error)})
            raise
        await channel.send(answer)
        ready = await channel.expect_untrusted(timeout_s)
        if ready.get("ready") is not True:
            raise PeerProtocolError(f"{channel.peer} broke off the handshake")
        await connection.start(timeout_s)
    except BaseException:
        connection.abort()
        raise
    return connection


def _new_connection(
    engine: Engine, channel: Channel, peer_name: str, *, connecting: bool
) -> Connection:
    try:
        return Connection(engine, channel, peer_name, connecting=connecting)
    except MrcError:
        channel.abort()
        raise


def _ports(engine: Engine, channel: Channel, planes: tuple[str, ...]) -> list[LocalPort]:
    """Return the ports of our planes: those chosen, else the one the channel came to.

    Raises:
        ConfigError: the peer chose one address too many; each costs as many sockets as EVs.
    """
    if planes:
        return [engine.port_for(host, 0) for host in planes]
    known = {port.host for port in engine.endpoint.ports}
    if channel.local_host not in known and len(known) >= UNCHOSEN_PORTS_MAX:
        raise ConfigError(f"connections to {len(known)} addresses of this host already")
    return [engine.port_for(channel.local_host, 0)]
