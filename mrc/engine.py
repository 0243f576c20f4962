"""The pump between sockets and protocol: readable sockets in, runs out, one timer.

It knows asyncio and the clock and no protocol rule. Work per wake-up is bounded, so that one busy
queue pair starves neither the timer nor other tasks of the loop.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Callable
from errno import EADDRINUSE
from time import monotonic_ns

from mrc.errors import ConfigError, LocalError
from mrc.proto.config import MTUS, UDP_PORT_DEFAULT, Config
from mrc.proto.endpoint import Endpoint
from mrc.proto.events import Event
from mrc.proto.peer import LocalPort
from mrc.proto.runs import PathFault, ReceivedRun, RunToSend
from mrc.socket_facts import PortFacts, port_facts
from mrc.udp import (
    RECEIVE_BUFFER_BYTES,
    Caps,
    Datagrams,
    KernelSockets,
    LinkMonitor,
    Receiver,
    Sender,
    SendOutcome,
    SockAddr,
    Sockets,
    choose_ports,
    family_of,
    interface_of,
    link_mtu_bytes,
    link_speed_bps,
    peer_address,
    probe_caps,
)
from mrc.wire.fields import IMMDT
from mrc.wire.runs import OVERHEAD_BYTES, SEAL_BYTES, TRAINS_MAX, RunBuffer

IPV4_UDP_BYTES, IPV6_UDP_BYTES = 28, 48
PACKET_OVERHEAD_BYTES = OVERHEAD_BYTES + IMMDT.size
RECEIVE_RUNS_MAX = 32
"""Trains taken from a socket per wake-up: about 2 MiB, 1 ms; more would delay the answers."""
PORT_RACES_MAX = 8
"""How often a source port may be gone when it is bound: others choose ports at the same time."""
TIMER_NS_MIN = 1_000_000
"""Least time to a timer that is not due yet. uvloop counts in milliseconds: half of one would be
none, and a timer that fires early finds nothing due, again and again."""
SEND_RUNS_MAX = 32
"""Runs sent per turn of the pump: about 2 MiB, 2 ms; the rest goes on after other tasks had theirs.
"""

_FAULTS = {
    SendOutcome.TOO_BIG: PathFault.TOO_BIG,
    SendOutcome.UNREACHABLE: PathFault.UNREACHABLE,
    SendOutcome.BLOCKED: PathFault.BLOCKED,
    SendOutcome.FAILED: PathFault.FAILED,
}
"""Outcomes after which nothing of the run has left. ENOBUFS may have dropped a part, and a refusal
speaks of an earlier packet: both are left to loss recovery."""


class Engine:
    """Runs one protocol endpoint on the sockets of this machine, inside the running event loop."""

    def __init__(
        self,
        config: Config,
        *,
        sockets: Sockets | None = None,
        udp_port: int | None = None,
        source_ports: tuple[int, int] = (49152, 65535),
    ) -> None:
        """Make an engine; it opens sockets as ports are asked for.

        Args:
            config: settings of the endpoint.
            sockets: factory of sockets; the kernel's unless faults are wanted.
            udp_port: where planes receive. None: 4971 if free, else any.
            source_ports: range the EVs' source ports are taken from.
        """
        self._loop = asyncio.get_running_loop()
        self._rng = random.SystemRandom()
        self.config = config
        self.endpoint = Endpoint(config, self._rng, monotonic_ns())
        self.endpoint_ids = (os.urandom(8).hex(), os.urandom(8).hex())
        """By which peers know two queue pairs of one endpoint; another one behind locks."""
        self._sockets = sockets or KernelSockets()
        self._udp_port = udp_port
        self._source_ports = source_ports
        self._receivers: list[Receiver] = []
        self._senders: dict[tuple[int, int], Sender] = {}
        self._interfaces: list[str] = []
        self._run = ReceivedRun(RunBuffer(TRAINS_MAX), 0, 0, 0, ("", 0), 0)
        self._held: dict[int, deque[RunToSend]] = {}
        """Runs that wait for room in the kernel's buffer of their socket, by its descriptor."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._unheard: int | None = None
        """Port whose reading was broken off for an immediate."""
        self._pumping = False
        self._closed = False
        self._handlers: dict[int, Callable[[Event], None]] = {}
        self._links: LinkMonitor | None = None
        self.path_events: list[Callable[[Event], None]] = []

    # Ports and sockets.

    def port_for(self, host: str, evs: int) -> LocalPort:
        """Return the local port with this address, opened if need be, with at least `evs` EVs.

        Raises:
            LocalError: the address is not on this machine, or no socket could be had.
        """
        for port in self.endpoint.ports:
            if port.host == host:
                break
        else:
            port = self._open_port(host)
        if len(port.ev_ports) < evs:
            self._open_evs(port, evs - len(port.ev_ports))
        return port

    def _open_port(self, host: str) -> LocalPort:
        self._watch_links()
        interface = interface_of(host)
        caps = probe_caps(family_of(host))
        receiver = self._open_receiver(host, caps)
        port = self.endpoint.add_port(host, receiver.port, [])
        self._receivers.append(receiver)
        self._interfaces.append(interface)
        self._loop.add_reader(receiver.fileno(), self._on_readable, port.index)
        return port

    def _open_receiver(self, host: str, caps: Caps) -> Receiver:
        wanted = UDP_PORT_DEFAULT if self._udp_port is None else self._udp_port
        try:
            return self._sockets.receiver(host, wanted, caps, RECEIVE_BUFFER_BYTES)
        except LocalError:
            if self._udp_port is not None:
                raise
            return self._sockets.receiver(host, 0, caps, RECEIVE_BUFFER_BYTES)

    def _open_evs(self, port: LocalPort, count: int) -> None:
        """Open the sockets of that many EVs more: all of them, or none that would only cost."""
        opened: list[Sender] = []
        try:
            for _ in range(PORT_RACES_MAX):
                self._open_senders(port.host, count - len(opened), opened)
                if len(opened) == count:
                    break
            else:
                raise LocalError(
                    EADDRINUSE,
                    f"UDP ports of {port.host} were taken by others {PORT_RACES_MAX} times between"
                    " being chosen and bound; try again",
                )
        except BaseException:
            for sender in opened:
                sender.close()
            raise
        for sender in opened:
            self._senders[port.index, sender.port] = sender
            self._loop.add_reader(sender.fileno(), sender.drain_errors)
            port.ev_ports.append(sender.port)

    def _open_senders(self, host: str, count: int, opened: list[Sender]) -> None:
        """Open up to that many; those whose port somebody else was quicker to bind are missing."""
        caps = probe_caps(family_of(host))
        low, high = self._source_ports
        for source_port in choose_ports(host, count, self._rng, low, high):
            try:
                opened.append(self._sockets.sender(host, source_port, caps))
            except LocalError as error:
                if error.errno != EADDRINUSE:
                    raise

    def receive_buffer_bytes(self, port: LocalPort) -> int:
        """Return what the kernel granted for the receiving socket of a port."""
        return self._receivers[port.index].receive_buffer_granted_bytes

    def port_facts(self) -> tuple[PortFacts, ...]:
        """Return what the kernel made of the sockets of every port."""
        return port_facts(self.endpoint.ports, self._interfaces, self._receivers, self._senders)

    def fitting_mtu(self, ports: list[LocalPort], *, sealed: bool = False) -> int:
        """Return the largest path MTU whose packets fit the interfaces of these ports.

        Raises:
            ConfigError: not even the smallest one fits.
        """
        room = min(
            link_mtu_bytes(self._interfaces[port.index])
            - (IPV6_UDP_BYTES if ":" in port.host else IPV4_UDP_BYTES)
            for port in ports
        )
        room -= PACKET_OVERHEAD_BYTES + (SEAL_BYTES if sealed else 0)
        fitting = [mtu for mtu in MTUS if mtu <= room]
        if not fitting:
            raise ConfigError(
                f"interface MTU leaves {room} bytes for the payload of a packet; at least {MTUS[0]}"
            )
        return max(fitting)

    def link_bps(self, ports: list[LocalPort]) -> int:
        """Return what the interfaces of these ports carry together, 0 if any does not say."""
        rates = [link_speed_bps(self._interfaces[port.index]) or 0 for port in ports]
        return sum(rates) if all(rates) else 0

    def remote_sockaddr(self, host: str, port: int, local_host: str) -> SockAddr:
        """Return the peer's socket address as the kernel reports it, scoped like our own address.

        Raises:
            ConfigError: not a numeric address, or of another family than ours.
        """
        if family_of(host) != family_of(local_host):
            raise ConfigError(f"plane {local_host} cannot reach {host}: different IP versions")
        if host.startswith("fe80:") and "%" not in host and "%" in local_host:
            host = f"{host}%{local_host.partition('%')[2]}"
        return peer_address(host, port)

    def _watch_links(self) -> None:
        if self._links is None:
            try:
                self._links = LinkMonitor()
            except LocalError:
                return
            self._loop.add_reader(self._links.fileno(), self._on_links)

    def _on_links(self) -> None:
        """An interface went down or came up: tell the protocol about the ports on it."""
        if self._links is None:
            return
        for change in self._links.read():
            for port, interface in zip(self.endpoint.ports, self._interfaces, strict=True):
                host = port.host.partition("%")[0]
                ours = interface == change.interface and change.address in (None, host)
                if ours and port.up != change.up:
                    self.endpoint.port_status(port.index, up=change.up, now_ns=monotonic_ns())
        self.kick()

    # Events.

    def subscribe(self, qpn: int, handler: Callable[[Event], None]) -> None:
        """Call `handler` with every event of a queue pair."""
        self._handlers[qpn] = handler

    def unsubscribe(self, qpn: int) -> None:
        """Stop calling the handler of a queue pair."""
        self._handlers.pop(qpn, None)

    def _deliver_events(self) -> None:
        for event in self.endpoint.poll():
            qpn = getattr(event, "qpn", None)
            if qpn is None:
                for each in self.path_events:
                    each(event)
            elif (handler := self._handlers.get(qpn)) is not None:
                handler(event)

    # The pump.

    def kick(self) -> None:
        """Send what there is to send soon: after posting work or failing a queue pair."""
        if not self._pumping and not self._closed:
            self._pumping = True
            self._loop.call_soon(self._pump_later)

    def _pump_later(self) -> None:
        self._pumping = False
        self._pump()

    def _on_readable(self, port_index: int) -> None:
        """Read one port, tell who waits, and answer when all that are readable have been read.

        After a while without the processor packets wait at every port. An answer in between would
        have the peer take for lost what waits at the next. Who was told what came in runs before
        the pump does, so that what he sends goes out with it.
        """
        # Not twice before losses are judged: immediates without end must not put that off.
        hurry = self._unheard is None and not self.endpoint.undecided
        self._receive(port_index, hurry=hurry)
        self._deliver_events()
        self.kick()
        if self._unheard is not None:
            self._loop.call_soon(self._hear_rest)

    def _hear_rest(self) -> None:
        """Go on where reading was broken off, now that who was told has had his turn."""
        port_index, self._unheard = self._unheard, None
        if port_index is not None and not self._closed:
            self._receive(port_index, hurry=False)
            self._deliver_events()
            self.kick()

    def _receive(self, port_index: int, *, hurry: bool) -> None:
        """Hand what has arrived at a port to the protocol, up to the bound of one wake-up.

        In a hurry it stops at the first immediate: who waits for it may have an answer, which does
        not have to wait until acknowledgements that came with it are read.
        """
        receiver, run, endpoint = self._receivers[port_index], self._run, self.endpoint
        memory = run.buffer.memory
        run.port = port_index
        left = RECEIVE_RUNS_MAX
        train = receiver.receive_into(memory)
        while train is not None:
            behind = self._join(receiver, train)
            endpoint.receive(run, monotonic_ns())
            left -= run.trains
            if behind is not None:
                # Already taken from the kernel, so it has its turn whatever came before it.
                end = run.byte_count + behind.byte_count
                memory[: behind.byte_count] = memory[run.byte_count : end]
            elif hurry and endpoint.has_immediate:
                self._unheard = port_index
                return
            elif left > 0:
                behind = receiver.receive_into(memory)
            train = behind

    def _join(self, receiver: Receiver, first: Datagrams) -> Datagrams | None:
        """Let the run be a train and those that wait behind it and are like it.

        Returns:
            The train after them, if one came that is not, in the buffer behind the run.
        """
        run = self._run
        if run.begin(*first):
            while run.trains < TRAINS_MAX:
                train = receiver.receive_into(run.buffer.memory[run.byte_count :])
                if train is None or not run.join(*train):
                    return train
        return None

    def _pump(self) -> None:
        """Send runs until there are none, the kernel's buffer is full, or the turn is over."""
        if self._closed:
            return
        transmit, senders = self.endpoint.transmit, self._senders
        for _ in range(SEND_RUNS_MAX):
            run = transmit(monotonic_ns(), all_heard=self._unheard is None)
            if run is None:
                break
            sender = senders[run.port, run.source_port]
            if self._held and sender.fileno() in self._held:
                self._hold(run, sender)
                continue
            outcome = sender.send(
                run.memory, run.segment_bytes, run.destination, run.tos, run.flow_label
            )
            if outcome is not SendOutcome.SENT:
                self._on_outcome(run, sender, outcome)
        else:
            self.kick()
        self._deliver_events()
        self._arm_timer()

    def _on_outcome(self, run: RunToSend, sender: Sender, outcome: SendOutcome) -> None:
        if outcome is SendOutcome.WOULD_BLOCK:
            self._hold(run, sender)
        elif outcome in _FAULTS:
            self.endpoint.path_fault(run, _FAULTS[outcome], monotonic_ns())

    def _hold(self, run: RunToSend, sender: Sender) -> None:
        """Keep a run until its socket takes more; all other EVs go on meanwhile.

        Control packets are not kept: by then there would be a newer one.
        """
        if not run.qpn:
            return
        held = self._held.get(sender.fileno())
        if held is None:
            held = self._held[sender.fileno()] = deque()
            self._loop.add_writer(sender.fileno(), self._on_writable, sender)
        held.append(run._replace(memory=memoryview(bytes(run.memory))))
        self.endpoint.path_busy(run, busy=True)

    def _on_writable(self, sender: Sender) -> None:
        """The kernel takes more: send the runs that were held back, then go on."""
        held = self._held[sender.fileno()]
        while held:
            run = held[0]
            outcome = sender.send(
                run.memory, run.segment_bytes, run.destination, run.tos, run.flow_label
            )
            if outcome is SendOutcome.WOULD_BLOCK:
                return
            held.popleft()
            self.endpoint.path_busy(run, busy=False)
            if outcome is not SendOutcome.SENT:
                self._on_outcome(run, sender, outcome)
        del self._held[sender.fileno()]
        self._loop.remove_writer(sender.fileno())
        self._pump()

    # The timer.

    def _arm_timer(self) -> None:
        """Keep one timer; one that is early is left, it finds nothing due and is armed again."""
        deadline_ns = self.endpoint.next_deadline_ns()
        if deadline_ns is None or (self._timer is not None and self._timer_ns <= deadline_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = deadline_ns
        delay_ns = deadline_ns - monotonic_ns()
        delay_s = max(delay_ns, TIMER_NS_MIN) / 1e9 if delay_ns > 0 else 0
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        """Run the timers, but first hear what came in while this process was busy or stopped."""
        self._timer = None
        for port_index in range(len(self._receivers)):
            self._receive(port_index, hurry=False)
        self._unheard = None
        self.endpoint.advance(monotonic_ns())
        self._deliver_events()
        self.kick()

    @property
    def closed(self) -> bool:
        """Whether its sockets are gone."""
        return self._closed

    def close(self) -> None:
        """Send what is owed, close all sockets. Twice is once."""
        if self._closed:
            return
        self._pump()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._links is not None:
            self._loop.remove_reader(self._links.fileno())
            self._links.close()
        self._handlers.clear()
        for receiver in self._receivers:
            self._loop.remove_reader(receiver.fileno())
            receiver.close()
        for sender in self._senders.values():
            self._loop.remove_reader(sender.fileno())
            self._loop.remove_writer(sender.fileno())
            sender.close()
