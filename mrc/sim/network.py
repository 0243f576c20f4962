"""The virtual network: hosts, planes, switches, and the links between them.

Everything that a host sends becomes datagrams here, each takes one path, and what becomes of it is
counted: every datagram is delivered, lost for a reason, or still on its way.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable

from mrc.proto.runs import RunToSend
from mrc.sim.addresses import HOST_NAMES, address
from mrc.sim.chance import Chance
from mrc.sim.clock import Timeline
from mrc.sim.datagram import Datagram
from mrc.sim.link import Link
from mrc.sim.options import LinkOptions, Options
from mrc.sim.trace import Trace


class Network:
    """Links by name, paths through them, and the account of all datagrams."""

    def __init__(
        self, options: Options, timeline: Timeline, chance: Chance, trace: Trace | None
    ) -> None:
        self._options = options
        self._timeline = timeline
        self._trace = trace
        self.links = {
            name: Link(name, options.links.get(name, LinkOptions()), timeline, chance.fork(), self)
            for name in options.link_names()
        }
        self._paths: dict[tuple[int, int, int, int, int], tuple[Link, ...]] = {}
        self._hosts = {
            address(host, plane, ipv6=options.ipv6): host
            for host in range(len(options.hosts))
            for plane in range(options.planes)
        }
        self.receivers: list[Callable[[Datagram], str | None]] = []
        """Per host, who takes what arrives; returns why it could not."""
        self.tamper: Callable[[Datagram], None] | None = None
        """Changes datagrams in secret as they leave their host: what the checkers must notice."""
        self.sent = 0
        self.refused = 0
        """Datagrams that a kernel did not take from its process."""
        self.duplicated = 0
        self.delivered = 0
        self.lost: Counter[str] = Counter()
        self.done_to: Counter[str] = Counter()
        """How often datagrams were trimmed, marked, corrupted."""

    @property
    def on_the_way(self) -> int:
        """Datagrams neither delivered nor lost yet."""
        return self.sent + self.duplicated - self.delivered - sum(self.lost.values())

    def heal(self) -> None:
        """End all faults of all links."""
        for link in self.links.values():
            link.heal()

    def links_of_switch(self, where: str) -> list[Link]:
        """Return the links that a switch feeds: those of a whole plane, or of one way of it."""
        plane, _, way = where.partition(".")
        if way:
            starts = (f"way {plane}.{way} ",)
            return [link for name, link in self.links.items() if name.startswith(starts)]
        down = [
            link
            for n, link in self.links.items()
            if n.startswith("down ") and n.endswith(f".{plane}")
        ]
        return down + [
            link for name, link in self.links.items() if name.startswith(f"way {plane}.")
        ]

    # On the way.

    def send(self, host: int, run: RunToSend) -> None:
        """Cut a run into datagrams and let them leave the host."""
        receiver = self._hosts[run.destination[0]]
        links = self.path(host, run.port, receiver, run.source_port, run.flow_label)
        memory, size = run.memory, run.segment_bytes
        for start in range(0, len(memory), size):
            self.sent += 1
            datagram = Datagram(
                number=self.sent + self.duplicated,
                data=bytes(memory[start : start + size]),
                sender=host,
                receiver=receiver,
                plane=run.port,
                source_port=run.source_port,
                flow_label=run.flow_label,
                tos=run.tos,
                links=links,
            )
            if self.tamper is not None:
                self.tamper(datagram)
            if self._trace is not None:
                self._trace.datagram("send", datagram)
            links[0].enter(datagram)

    def path(
        self, sender: int, plane: int, receiver: int, source_port: int, flow_label: int
    ) -> tuple[Link, ...]:
        """Return the links that datagrams with these headers take."""
        key = sender, plane, receiver, source_port, flow_label
        found = self._paths.get(key)
        if found is None:
            there = HOST_NAMES[receiver]
            names = [f"up {HOST_NAMES[sender]}.{plane}", f"down {there}.{plane}"]
            if self._options.ways > 1:
                # By its high bits: the low ones hardly tell neighbouring ports apart.
                way = zlib.crc32(repr(key).encode()) * self._options.ways >> 32
                names.insert(1, f"way {plane}.{way} {there}")
            found = self._paths[key] = tuple(self.links[name] for name in names)
        return found

    def lose(self, datagram: Datagram, reason: str) -> None:
        """A datagram ends here."""
        self.lost[reason] += 1
        if self._trace is not None:
            self._trace.datagram("lose", datagram, reason)

    def note(self, datagram: Datagram, what: str) -> None:
        """Something was done to a datagram."""
        self.done_to[what] += 1
        if self._trace is not None:
            self._trace.datagram(what, datagram)

    def duplicate(self, datagram: Datagram) -> Datagram:
        """Return a copy of a datagram, at the same place."""
        self.duplicated += 1
        twin = datagram.copy(self.sent + self.duplicated)
        if self._trace is not None:
            self._trace.datagram("duplicate", twin, str(datagram.number))
        return twin

    def deliver(self, datagram: Datagram) -> None:
        """A datagram reaches its host, which may have no room for it."""
        if datagram.corrupted and not self._options.hosts[datagram.receiver].config.icrc:
            # Without iCRC it is for the UDP checksum to notice.
            self.lose(datagram, "checksum")
            return
        refused = self.receivers[datagram.receiver](datagram)
        if refused is not None:
            self.lose(datagram, refused)
            return
        self.delivered += 1
        if self._trace is not None:
            self._trace.datagram("deliver", datagram)
