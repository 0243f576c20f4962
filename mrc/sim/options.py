"""Everything that one simulation is made of, as plain immutable values.

`mrc.sim.swarm` derives them from a seed; anyone may also write them down by hand. Two simulations
with equal options do the same thing to the nanosecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import Enum

from mrc.proto.config import Config
from mrc.sim.addresses import HOST_NAMES
from mrc.units import NS_PER_S, format_bps, format_bytes, format_ns
from mrc.wire.seal import Cipher

UNIT = re.compile("_(ns|bps|bytes)$")


class Kind(Enum):
    """Which datagrams a fault of a link falls on."""

    ALL = "all"
    DATA = "data"
    """Writes, whole or trimmed."""
    CONTROL = "control"
    """SACKs, NACKs, ACKs, probes and their answers."""


@dataclass(frozen=True, slots=True)
class LossMask:
    """Exactly which datagrams of a link are lost.

    Counted are those of the kind that may be lost, and were neither cut off nor too large.
    """

    first: int
    """Place of the first lost one, counted from 0."""
    count: int
    """How many are lost."""
    step: int = 1
    """1 for all in a row, 2 for every other one, and so on."""

    def __contains__(self, place: int) -> bool:
        past = place - self.first
        return 0 <= past < self.count * self.step and past % self.step == 0

    def __str__(self) -> str:
        return f"{self.count} from {self.first}, step {self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """One direction of one link. Probabilities are per datagram; sizes are UDP payload bytes."""

    rate_bps: int = 0
    """0: takes no time."""
    queue_bytes: int = 1 << 20
    """What waits for the link at most; more is dropped at the tail."""
    delay_ns: int = 10_000
    jitter_ns: int = 0
    """Additional delay, random up to this; the order stays."""
    trim_bytes: int = 0
    """Queue above which data is trimmed to its headers, which overtake all data. 0: never."""
    last_hop: bool = False
    """Trimming here is told as TRIMMED_LASTHOP."""
    mark_bytes: int = 0
    """Queue above which ECN-capable datagrams are marked. 0: never."""

    # Faults, which end when the network heals.
    loss: float = 0.0
    loss_of: Kind = Kind.ALL
    """What `loss` and `mask` fall on."""
    mask: LossMask | None = None
    trim: float = 0.0
    """Trimmed whatever the queue."""
    mark: float = 0.0
    """Marked whatever the queue."""
    corrupt: float = 0.0
    """A few bits flipped."""
    duplicate: float = 0.0
    """A copy follows, as late as `reorder_ns` says."""
    reorder: float = 0.0
    """Held up, so that others overtake it."""
    reorder_ns: int = 0
    """How long at most."""
    size_max: int = 0
    """Larger datagrams vanish, as in a tunnel that tells nobody. 0: none does."""
    rewrite_ports: bool = False
    """Source ports are mapped to others, as by an address translator."""

    def healed(self) -> LinkOptions:
        """Return the link without its faults; rate, queue and what a switch does to it stay."""
        return replace(
            self,
            loss=0.0,
            mask=None,
            trim=0.0,
            mark=0.0,
            corrupt=0.0,
            duplicate=0.0,
            reorder=0.0,
            size_max=0,
            rewrite_ports=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """One host: how its kernel and its process behave."""

    config: Config
    wake_ns: int = 0
    """From the arrival of a datagram until the process reads its sockets."""
    timer_late_ns: int = 0
    """How much later than asked a timer fires."""
    receive_buffer_bytes: int = 4 << 20
    """What the receiving sockets of a plane hold; more is dropped."""
    send_buffer_bytes: int = 0
    """What waits on an uplink before the kernel blocks the sender. 0: it never does."""
    gro: bool = True
    """Datagrams of one flow that lie one behind the other are read together."""
    take_ns: int = 0
    """How long the application leaves an immediate lying."""
    refuse: float = 0.0
    """Probability that the kernel refuses a run; ends when the network heals."""


class FaultKind(Enum):
    """What can happen to links, switches and hosts at a time and for a time."""

    CUT = "cut"
    """A link, in one direction, swallows everything. Where: its name."""
    REBOOT = "reboot"
    """A switch loses all its queues, and is gone for a while. Where: plane or plane.way."""
    PORT_DOWN = "port down"
    """A host's port loses its carrier, and the host knows. Where: host.plane."""
    PAUSE = "pause"
    """A host's process does not run; its sockets fill. Where: host."""
    CRASH = "crash"
    """A host forgets everything and starts anew. Where: host."""
    CLOCK_STOP = "clock stop"
    """A host's clock stands still. Where: host."""
    CLOCK_JUMP = "clock jump"
    """A host's clock jumps by `amount_ns`. Where: host."""
    CLOSE_REGION = "close region"
    """A host deregisters the memory that one direction of a connection is written to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong at a time."""

    kind: FaultKind
    where: str
    at_ns: int
    for_ns: int = 0
    amount_ns: int = 0

    def times(self) -> str:
        """Return when it happens, for how long, and by how much."""
        lasts = f" for {format_ns(self.for_ns)}" if self.for_ns else ""
        by = f" by {self.amount_ns / 1e6:+,.0f} ms" if self.amount_ns else ""
        return f"at {format_ns(self.at_ns)}{lasts}{by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """One message of the workload."""

    connection: int
    """Index in `Options.connections`."""
    backwards: bool
    """From the second host of the connection to the first."""
    at_ns: int
    size_bytes: int
    immediate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One simulation.

    A path from host to host is a list of links: `up a.0` from host a into plane 0, then, where the
    plane has several ways, `way 0.1 b` through its switch 1 towards host b, then `down b.0`.
    Switches choose the way by a hash of addresses, source port and flow label.
    """

    seed: int
    hosts: tuple[HostOptions, ...]
    planes: int
    ways: int
    """Parallel switches in each plane; 1: the links of two hosts meet directly."""
    ipv6: bool = False
    secured: Cipher | None = None
    """Queue pairs are sealed with this cipher, under new keys each time they are connected."""
    near_wrap: bool = False
    """First PSNs lie just below 2^24, so that they soon wrap."""
    links: dict[str, LinkOptions]
    """By name, each direction for itself."""
    faults: tuple[Fault, ...] = ()
    connections: tuple[tuple[int, int], ...] = ((0, 1),)
    """Queue pairs, by the indexes of the two hosts."""
    writes: tuple[WriteOptions, ...]
    reconnect_ns: int = 5_000_000
    """From the failure of a queue pair, or the restart of a host, until it is connected anew."""
    faulty_ns: int = 50_000_000
    """How long the safety phase lasts, in which anything may fail."""

    @property
    def stall_ns(self) -> int:
        """Longest virtual time without any progress that is forgiven after healing.

        Silence makes intervals double, so what was silent for the whole safety phase may wait as
        long again, and a little more than that. A clock that jumped back stands still in the eyes
        of the protocol until it has caught up. To that come some intervals T, and a second.
        """
        timeout_ns = max(host.config.timeout_ns for host in self.hosts)
        slow_ns = max(host.take_ns + host.timer_late_ns for host in self.hosts)
        return (
            NS_PER_S
            + 3 * (self.faulty_ns + self._jumps_ns)
            + 16 * (timeout_ns + slow_ns)
            + 4 * self.reconnect_ns
        )

    @property
    def recovery_ns(self) -> int:
        """Longest virtual time after completion until every EV is in use again.

        Probes come four times a second at least, and a few of them have to be answered.
        """
        return 3 * NS_PER_S + self._jumps_ns

    @property
    def _jumps_ns(self) -> int:
        """How long clocks may stand still, in the eyes of the protocol, until they catch up."""
        return sum(abs(fault.amount_ns) for fault in self.faults)

    def link_names(self) -> list[str]:
        """Return the names of all links of this topology."""
        return link_names(len(self.hosts), self.planes, self.ways)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield name and value of everything worth printing: what is not as it is by default."""
        yield "seed", str(self.seed)
        yield "hosts, planes, ways", f"{len(self.hosts)}, {self.planes}, {self.ways}"
        yield "addresses", "IPv6" if self.ipv6 else "IPv4"
        yield "sealed", "no" if self.secured is None else self.secured
        yield "first PSNs", "just below 2^24" if self.near_wrap else "anywhere"
        yield "safety phase", format_ns(self.faulty_ns)
        yield "forgiven stall", format_ns(self.stall_ns)
        yield "reconnects after", format_ns(self.reconnect_ns)
        pairs = ", ".join(f"{HOST_NAMES[a]}-{HOST_NAMES[b]}" for a, b in self.connections)
        yield "connections", pairs
        total = sum(write.size_bytes for write in self.writes)
        immediates = sum(write.immediate for write in self.writes)
        yield "writes", f"{len(self.writes)}, {format_bytes(total)}, {immediates} with immediate"
        for name, host in zip(HOST_NAMES, self.hosts, strict=False):
            yield f"host {name}", described(host, "config")
            yield f"endpoint {name}", described(host.config)
        if self.links:
            common = next(iter(self.links.values())).healed()
            yield "every link", described(common)
            own = {name: described(link, base=common) for name, link in self.links.items()}
            yield from grouped({name: text for name, text in own.items() if text})
        faults: dict[str, list[str]] = {}
        for fault in self.faults:
            faults.setdefault(f"{fault.kind.value} {fault.where}", []).append(fault.times())
        for name, times in faults.items():
            more = f", and {len(times) - 3} times more" if len(times) > 3 else ""
            yield name, ", ".join(times[:3]) + more

    def table(self) -> str:
        """Return the options as two columns."""
        rows = list(self.rows())
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def link_names(hosts: int, planes: int, ways: int) -> list[str]:
    """Return the names of all links between that many hosts."""
    names = []
    for host in HOST_NAMES[:hosts]:
        names += [f"up {host}.{plane}" for plane in range(planes)]
        if ways > 1:
            names += [f"way {p}.{way} {host}" for p in range(planes) for way in range(ways)]
        names += [f"down {host}.{plane}" for plane in range(planes)]
    return names


def grouped(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (names, value), names with the same value together."""
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(name)
    for value, those in names.items():
        shown = ", ".join(those[:4]) + (f" and {len(those) - 4} more" if len(those) > 4 else "")
        yield shown, value


def described(
    options: LinkOptions | HostOptions | Config,
    *leave_out: str,
    base: LinkOptions | None = None,
) -> str:
    """Return what differs from `base`, or from the defaults, with units as the names give them."""
    found = []
    for field in fields(options):
        value = getattr(options, field.name)
        usual = field.default if base is None else getattr(base, field.name)
        if field.name not in leave_out and value != usual and field.name != "dscp":
            name = UNIT.sub("", field.name).replace("_", " ")
            found.append(f"{name} {shown(field.name, value)}")
    return ", ".join(found) or ("as by default" if base is None else "")


def shown(name: str, value: object) -> str:
    """Return a value with the unit that the name of its field tells."""
    if isinstance(value, Kind):
        return value.value
    if isinstance(value, int) and not isinstance(value, bool):
        if name.endswith("_ns"):
            return format_ns(value)
        if name.endswith("_bps"):
            return format_bps(value)
        if name.endswith("_bytes"):
            return format_bytes(value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
