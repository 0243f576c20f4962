"""A peer: another endpoint, its addresses per plane, and the paths that lead to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from mrc.proto.config import Config
from mrc.proto.ev import Path
from mrc.proto.events import Event, Random
from mrc.proto.paths import NEVER_NS, PathSet
from mrc.proto.runs import SockAddr
from mrc.wire.icrc import Address

if TYPE_CHECKING:
    from mrc.proto.qp import QueuePair

STATUS_NS_MIN, STATUS_NS_MAX = 5_000_000, 250_000_000
"""First and longest pause between two port status updates that are not answered."""
NAMED_MAX = 4
"""Queue pairs of a peer whose keys a request is tried with: a stranger's costs no more."""
FLOW_LABEL_BITS = 16
"""EV[31:16] travels in the low 16 bits of the 20-bit flow label."""


@dataclass(slots=True)
class LocalPort:
    """One of our ports (NICs): an address, the UDP port it receives on, and its EV source ports."""

    index: int
    host: str
    udp_port: int
    ev_ports: list[int]
    up: bool = True


@dataclass(frozen=True, slots=True)
class Plane:
    """One plane towards a peer: from this local port to this address."""

    port: int
    host: str
    remote: SockAddr


class Peer:
    """Everything that queue pairs to the same endpoint share."""

    def __init__(
        self,
        *,
        peer_id: int,
        config: Config,
        rng: Random,
        planes: list[Plane],
        ports: list[LocalPort],
        events: deque[Event],
    ) -> None:
        """Make the EV profile for these planes.

        Args:
            peer_id: index of the peer at the endpoint.
            config: how many EVs.
            rng: chooses flow labels and shuffles.
            planes: where to and from.
            ports: the local ports that the planes name; each has enough `ev_ports`.
            events: where news of its paths go.
        """
        self.peer_id = peer_id
        self.plane_list = planes
        self.hosts = frozenset(plane.remote[0] for plane in planes)
        self.identity = ""
        """What the peer calls itself; two queue pairs with one identity share the peer."""
        self.qps: dict[int, QueuePair] = {}
        """Queue pairs to it by number, oldest first."""
        self.busy_qpns: set[int] = set()
        """Those with work that is not done."""
        self.armed_ns = NEVER_NS
        self.status_mask: int | None = None
        """Port status the peer has not confirmed yet."""
        self.status_ns = NEVER_NS
        """When to tell it again."""
        self.status_backoff_ns = STATUS_NS_MIN
        self._plane_of = {
            (plane.port, plane.remote[0]): index for index, plane in enumerate(planes)
        }
        evs: list[tuple[int, int, int]] = []
        for index, plane in enumerate(planes):
            ipv6 = ":" in plane.host
            wanted = evs_per_plane(config, len(planes))
            for source_port in ports[plane.port].ev_ports[:wanted]:
                label = (rng.getrandbits(FLOW_LABEL_BITS) or 1) if ipv6 else 0
                evs.append((index, source_port, label))
        self.paths = PathSet(config, rng, peer_id, evs, events)

    @property
    def planes(self) -> int:
        """Number of planes."""
        return len(self.plane_list)

    def named(self) -> Iterator[QueuePair]:
        """Yield the queue pairs that endpoint requests may name, the one that ours do first.

        That is the oldest that its other end still has, or else the oldest. The other end sees it
        alike but for those that are being set up or taken down.
        """
        alive = (qp for qp in self.qps.values() if not qp.failed)
        first = next(alive, None)
        if first is None:
            yield from islice(self.qps.values(), NAMED_MAX)
        else:
            yield from islice(chain((first,), alive), NAMED_MAX)

    def heard(self, port: int, host: str, now_ns: int) -> None:
        """Something of the peer came in at this port from this address."""
        plane = self._plane_of.get((port, host))
        if plane is not None:
            self.paths.heard_ns[plane] = now_ns

    def tell_status(self, mask: int, now_ns: int) -> None:
        """Tell the peer which of our ports are up, again and again until it confirms."""
        self.status_mask = mask
        self.status_ns = now_ns
        self.status_backoff_ns = STATUS_NS_MIN

    def status_due(self, now_ns: int) -> bool:
        """Tell whether the port status shall be told now, and put the next time off."""
        if self.status_ns > now_ns:
            return False
        self.status_ns = now_ns + self.status_backoff_ns
        self.status_backoff_ns = min(2 * self.status_backoff_ns, STATUS_NS_MAX)
        return True

    def status_confirmed(self, mask: int) -> None:
        """The peer answered a port status update."""
        if mask == self.status_mask:
            self.status_mask, self.status_ns = None, NEVER_NS

    def next_deadline_ns(self) -> int:
        """Return when there is a probe or a port status to send, or NEVER_NS."""
        return min(self.paths.next_deadline_ns(), self.status_ns)

    def flow(self, path: Path) -> tuple[Address, Address]:
        """Return source and destination of packets on an EV."""
        plane = self.plane_list[path.plane]
        return (plane.host, path.source_port), (plane.remote[0], plane.remote[1])


def evs_per_plane(config: Config, planes: int) -> int:
    """Return how many EVs, backups included, each of that many planes has."""
    return max(1, -(-config.paths // planes)) + -(-config.backups // planes)


def pair_planes(
    local: list[tuple[int, str]], remote: tuple[tuple[str, int], ...]
) -> list[tuple[int, str, tuple[str, int]]]:
    """Pair our planes with the peer's, in order; the shorter list is gone through again.

    Both sides come to the same pairs, as each sees the other's list in the other's order.

    Args:
        local: (port index, address) of each of our planes.
        remote: (address, UDP port) of each of the peer's.
    """
    count = max(len(local), len(remote))
    return [(*local[i % len(local)], remote[i % len(remote)]) for i in range(count)]
