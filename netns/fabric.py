"""From a topology to every device, address and route of it: pure, nothing is touched.

Plane p of the host with number h has 10.p.h.1 and fd00:p:h::1, its switch port 10.p.h.254 and
fd00:p:h::fe. Links between switches have 10.(100 + p).k.1 and .2. Routes are static: every shortest
way, so that parallel links and switches of a tier share the traffic by the kernel's hash of the
UDP ports.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from netns.errors import LabError
from netns.topology import Link, Queue, Topology, Wire

PLANES_MAX = 64
FABRIC_NET = 100
SWITCH_LINKS_MAX = 255
"""Between the switches of one plane: each has a net of its own, 10.x.1 to 10.x.255."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One end of a link."""

    node: str
    device: str
    mac: str
    ipv4: str
    ipv6: str
    peer_node: str


@dataclass(frozen=True, slots=True)
class FabricLink:
    """A link with both its ends."""

    name: str
    plane: int
    a: Interface
    b: Interface
    rate_mbps: float
    wire: Wire

    @property
    def ends(self) -> tuple[Interface, Interface]:
        """Both interfaces."""
        return self.a, self.b

    def far_end(self, interface: Interface) -> Interface:
        """Return the other end."""
        return self.b if interface is self.a else self.a


@dataclass(frozen=True, slots=True)
class Hop:
    """One next hop of a route."""

    gateway: Interface
    device: str


@dataclass(frozen=True, slots=True)
class Route:
    """A destination (IPv4 and IPv6 prefix) and all equally short ways to it."""

    ipv4: str
    ipv6: str
    hops: tuple[Hop, ...]


@dataclass(slots=True)
class Fabric:
    """Everything a lab has to make."""

    topology: Topology
    links: list[FabricLink] = field(default_factory=list)
    routes: dict[str, list[Route]] = field(default_factory=dict)

    @property
    def mtu(self) -> int:
        """MTU of every device."""
        return self.topology.mtu

    @property
    def queue(self) -> Queue:
        """Queue of every switch port."""
        return self.topology.queue

    @property
    def nodes(self) -> list[str]:
        """Hosts first."""
        return [*self.topology.hosts, *self.topology.switches]

    def is_host(self, node: str) -> bool:
        """Whether a node is a host."""
        return node in self.topology.hosts

    def link(self, name: str) -> FabricLink:
        """Return the link with this name.

        Raises:
            LabError: there is none.
        """
        for link in self.links:
            if link.name == name:
                return link
        raise LabError(
            f"there is no link {name}; there are {', '.join(link.name for link in self.links)}"
        )

    def interfaces(self, node: str) -> list[tuple[FabricLink, Interface]]:
        """Return the links of a node with its own end of each."""
        return [(link, end) for link in self.links for end in link.ends if end.node == node]

    def planes(self, host: str) -> list[FabricLink]:
        """Return a host's links in the order of its planes.

        Raises:
            LabError: there is no such host.
        """
        if not self.is_host(host):
            raise LabError(f"there is no host {host}; there are {', '.join(self.topology.hosts)}")
        return [link for link, _ in self.interfaces(host)]

    def addresses(self, host: str, version: int = 4) -> list[str]:
        """Return a host's own addresses, one a plane."""
        self.planes(host)
        ends = [end for _, end in self.interfaces(host)]
        return [end.ipv4 if version == 4 else end.ipv6 for end in ends]


def plan(topology: Topology) -> Fabric:
    """Work out a fabric.

    Raises:
        LabError: more planes or links than addresses, planes out of order, or two links of a name.
    """
    fabric = Fabric(topology)
    nets = _Nets(topology)
    pairs: Counter[frozenset[str]] = Counter()
    for spec in topology.links:
        pairs[frozenset(spec.ends)] += 1
        again = pairs[frozenset(spec.ends)]
        fabric.links.append(_link(fabric, spec, nets, f".{again}" if again > 1 else ""))
    names = Counter(link.name for link in fabric.links)
    if doubled := [name for name, count in names.items() if count > 1]:
        raise LabError(f"two links are called {', '.join(doubled)}; give one another name")
    for node in fabric.nodes:
        fabric.routes[node] = _host_routes(fabric, node) if fabric.is_host(node) else []
    for host in topology.hosts:
        for link, end in fabric.interfaces(host):
            _spread_routes(fabric, link, end)
    return fabric


def _link(fabric: Fabric, spec: Link, nets: _Nets, again: str) -> FabricLink:
    """Return a link with its ends; `again` numbers it among those that join the same two nodes."""
    plane, addresses = nets.of(spec)
    number = len(fabric.links)
    ends = [
        Interface(
            node=end,
            device=f"p{plane}" if fabric.is_host(end) else f"{other}{again}",
            mac=f"02:00:00:{number >> 8:02x}:{number & 255:02x}:{side:02x}",
            ipv4="10.{}.{}.{}".format(*address),
            ipv6="fd00:{}:{}::{:x}".format(*address),
            peer_node=other,
        )
        for side, (end, other, address) in enumerate(
            zip(spec.ends, reversed(spec.ends), addresses, strict=True)
        )
    ]
    return FabricLink(
        spec.name or "-".join(spec.ends) + again,
        plane,
        ends[0],
        ends[1],
        spec.rate_mbps or fabric.topology.rate_mbps,
        spec.wire,
    )


class _Nets:
    """Hands out planes and the numbers of addresses, link by link in their order."""

    def __init__(self, topology: Topology) -> None:
        self._planes = _planes_of_switches(topology)
        self._hosts = {name: number for number, name in enumerate(topology.hosts, 1)}
        self._host_links: Counter[str] = Counter()
        self._switch_links: Counter[int] = Counter()

    def of(self, spec: Link) -> tuple[int, list[tuple[int, int, int]]]:
        """Return the plane of the next link, and the three numbers of each end's address."""
        host = next((end for end in spec.ends if end in self._hosts), None)
        plane = next(self._planes[end] for end in spec.ends if end in self._planes)
        if host is None:
            self._switch_links[plane] += 1
            number = self._switch_links[plane]
            if number > SWITCH_LINKS_MAX:
                raise LabError(
                    f"link {'-'.join(spec.ends)}: plane {plane} has addresses for at most "
                    f"{SWITCH_LINKS_MAX} links between its switches"
                )
            return plane, [(FABRIC_NET + plane, number, last) for last in (1, 2)]
        if self._host_links[host] != plane:
            raise LabError(
                f"link {'-'.join(spec.ends)}: plane {plane} is listed where {host} needs plane "
                f"{self._host_links[host]}: list a host's links in the order of the planes"
            )
        self._host_links[host] += 1
        return plane, [(plane, self._hosts[host], 1 if end == host else 254) for end in spec.ends]


def _planes_of_switches(topology: Topology) -> dict[str, int]:
    """Switches that are joined make a plane; planes count in the order of the hosts' links."""
    joined: dict[str, set[str]] = {name: {name} for name in topology.switches}
    for link in topology.links:
        if all(end in joined for end in link.ends):
            together = joined[link.ends[0]] | joined[link.ends[1]]
            for name in together:
                joined[name] = together
    order: list[set[str]] = []
    for name in [end for link in topology.links for end in link.ends if end in joined]:
        if joined[name] not in order:
            order.append(joined[name])
    if len(order) > PLANES_MAX:
        raise LabError(f"{len(order)} planes; at most {PLANES_MAX} have addresses")
    return {name: order.index(together) for name, together in joined.items()}


def _host_routes(fabric: Fabric, host: str) -> list[Route]:
    """A host sends each plane's traffic to its switch on that plane."""
    return [
        Route(
            f"10.{link.plane}.0.0/16",
            f"fd00:{link.plane}::/32",
            (Hop(link.far_end(end), end.device),),
        )
        for link, end in fabric.interfaces(host)
    ]


def _spread_routes(fabric: Fabric, link: FabricLink, end: Interface) -> None:
    """Tell every switch of a plane all shortest ways to a host, by breadth-first search."""
    first = link.far_end(end).node
    distance = {first: 0}
    queue = deque([first])
    while queue:
        node = queue.popleft()
        for _, near in fabric.interfaces(node):
            other = near.peer_node
            if not fabric.is_host(other) and other not in distance:
                distance[other] = distance[node] + 1
                queue.append(other)
    prefix = end.ipv4.rpartition(".")[0]
    for node, steps in distance.items():
        if steps == 0:
            continue
        hops = tuple(
            Hop(each.far_end(near), near.device)
            for each, near in fabric.interfaces(node)
            if distance.get(near.peer_node) == steps - 1
        )
        net6 = ":".join(end.ipv6.split(":")[:3])
        fabric.routes[node].append(Route(f"{prefix}.0/24", f"{net6}::/64", hops))
