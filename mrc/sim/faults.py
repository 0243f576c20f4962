"""What goes wrong at a time: the faults of a simulation, entered into its timeline."""

from __future__ import annotations

from mrc.sim.addresses import HOST_NAMES
from mrc.sim.clock import Timeline
from mrc.sim.connection import Connection
from mrc.sim.host import Host
from mrc.sim.network import Network
from mrc.sim.options import Fault, FaultKind
from mrc.sim.trace import Trace


class Faults:
    """Lets faults begin and end, and ends them all when the simulation heals."""

    def __init__(
        self,
        faults: tuple[Fault, ...],
        timeline: Timeline,
        network: Network,
        hosts: list[Host],
        connections: list[Connection],
        trace: Trace | None,
    ) -> None:
        self._timeline = timeline
        self._network = network
        self._hosts = hosts
        self._connections = connections
        self._trace = trace
        self._over = False
        for fault in faults:
            timeline.at(fault.at_ns, self._begin, fault)

    def heal(self) -> None:
        """End everything that still lasts."""
        self._over = True
        self._network.heal()
        for host in self._hosts:
            if not host.up:
                self._restart(host)
            host.heal()

    def _begin(self, fault: Fault) -> None:
        if self._over:
            return
        self._note(fault, "begins")
        self._apply(fault, begins=True)
        if fault.for_ns:
            self._timeline.at(self._timeline.now_ns + fault.for_ns, self._end, fault)

    def _end(self, fault: Fault) -> None:
        if not self._over:
            self._note(fault, "ends")
            self._apply(fault, begins=False)

    def _note(self, fault: Fault, what: str) -> None:
        if self._trace is not None:
            self._trace.note("fault", kind=fault.kind.value, where=fault.where, why=what)

    def _apply(self, fault: Fault, *, begins: bool) -> None:
        now_ns = self._timeline.now_ns
        match fault.kind:
            case FaultKind.CUT:
                link = self._network.links[fault.where]
                link.cut() if begins else link.mend()
            case FaultKind.REBOOT:
                self._reboot(fault.where, begins=begins)
            case FaultKind.PORT_DOWN:
                name, _, plane = fault.where.partition(".")
                self._host(name).set_port(int(plane), up=not begins)
            case FaultKind.PAUSE:
                host = self._host(fault.where)
                host.pause() if begins else host.resume()
            case FaultKind.CRASH:
                host = self._host(fault.where)
                self._crash(host) if begins else self._restart(host)
            case FaultKind.CLOCK_STOP:
                host = self._host(fault.where)
                host.clock.stop(now_ns) if begins else host.clock.go_on(now_ns)
                host.clock_changed()
            case FaultKind.CLOCK_JUMP:
                host = self._host(fault.where)
                host.clock.jump(fault.amount_ns)
                host.clock_changed()
            case FaultKind.CLOSE_REGION:
                index, _, name = fault.where.partition(" ")
                for end in self._connections[int(index)].ends:
                    if end.host.name == name:
                        self._connections[int(index)].close_region(end)

    def _host(self, name: str) -> Host:
        return self._hosts[HOST_NAMES.index(name)]

    def _reboot(self, where: str, *, begins: bool) -> None:
        for link in self._network.links_of_switch(where):
            if begins:
                link.flush()
                link.cut()
            else:
                link.mend()

    def _crash(self, host: Host) -> None:
        host.crash()
        for connection in self._connections_of(host):
            connection.break_off()

    def _restart(self, host: Host) -> None:
        """Start a crashed host anew; its connections come back a while later."""
        if host.up:
            return
        host.restart()
        for connection in self._connections_of(host):
            connection.reconnect_later()

    def _connections_of(self, host: Host) -> list[Connection]:
        return [c for c in self._connections if any(end.host is host for end in c.ends)]
