"""What can be done to a link or a node, by name, and how it is taken back.

A fault on a link changes what the switch program of its directions does, or puts a device down.
Healing a link gives it back all that its topology says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from netns.errors import LabError
from netns.fabric import Fabric, FabricLink, Interface
from netns.lab import Lab
from netns.ports import set_rate, usual_settings
from netns.switch import LinkSettings

PPM_PER_PERCENT = 10_000
UDP_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault on a link."""

    what: str
    """In words, for people."""
    unit: str = ""
    """What its one number counts in; empty: it takes none."""
    least: float = 0
    most: float = 0
    change: Callable[[float], dict[str, Any]] | None = None
    """What becomes other in the settings of a direction; None: it puts a device down."""
    selective: bool = False
    """Whether it can be limited to data or to control packets."""
    of_queue: bool = False
    """Whether it is about the queue in front of a link, which hosts do not have."""


def _share(what: str, setting: str, *, selective: bool = False) -> Kind:
    """Return a kind that harms a share of the packets."""
    return Kind(
        what=what,
        unit="percent",
        most=100,
        change=lambda percent: {setting: round(percent * PPM_PER_PERCENT)},
        selective=selective,
    )


KINDS: dict[str, Kind] = {
    "blackhole": Kind(
        what="everything vanishes, the carrier stays",
        change=lambda _: {"blackhole": True},
        selective=True,
    ),
    "loss": _share("packets are lost at random", "loss_ppm", selective=True),
    "ev-loss": _share("packets of one EV (UDP source port) are lost", "ev_loss_ppm"),
    "big-packets": Kind(
        what="IP packets above a size vanish",
        unit="bytes",
        least=1,
        most=65_535,
        change=lambda size: {"packet_bytes_max": round(size)},
    ),
    "corrupt": _share("a bit is flipped, UDP checksum mended", "corrupt_ppm"),
    "duplicate": _share("packets arrive twice", "duplicate_ppm"),
    "rewrite-ports": Kind(
        what="a middlebox changes UDP source ports",
        change=lambda _: {"rewrite_source_port": True},
    ),
    "tail-drop": Kind(
        what="no trimming: full queues drop",
        change=lambda _: {"trim_bytes": 0},
        of_queue=True,
    ),
    "no-marks": Kind(
        what="no ECN marks",
        change=lambda _: {"ecn_min_bytes": 0, "ecn_max_bytes": 0},
        of_queue=True,
    ),
    "rate": Kind(
        what="what switches send over the link gets slower",
        unit="Mbit/s",
        least=0.1,
        most=100_000,
        change=lambda rate: {"rate_bps": round(rate * 1e6)},
        of_queue=True,
    ),
    "carrier-down": Kind(what="the switch puts its end down: the other side loses the carrier"),
    "port-down": Kind(what="the host (or first end) puts its own device down"),
}

_CHOSEN = ("blackhole", "loss_ppm", "ev_loss_ppm")
"""Settings that fall on the packets that `only` names, of which a direction has one."""


def kinds() -> dict[str, str]:
    """Return every kind of fault on a link and what it does."""
    return {name: kind.what for name, kind in KINDS.items()}


def check(
    kind: str,
    *,
    amount: float | None = None,
    towards: str | None = None,
    only: str = "all",
    source_port: int | None = None,
) -> None:
    """Go on only with a fault that can be, as far as that can be told without a fabric.

    Raises:
        LabError: no such kind, or something missing, superfluous or out of range.
    """
    if kind not in KINDS:
        raise LabError(f"there is no fault {kind}; there are {', '.join(KINDS)}")
    how = KINDS[kind]
    if not how.unit and amount is not None:
        raise LabError(f"{kind} takes no number, has {amount:g}")
    if how.unit and (amount is None or not how.least <= amount <= how.most):
        raise LabError(
            f"{kind} needs a number ({how.unit}) from {how.least:g} to {how.most:g}; has {amount}"
        )
    if how.change is None and towards is not None:
        raise LabError(f"{kind} is of a device, not of the direction towards {towards}")
    if only != "all" and not how.selective:
        raise LabError(f"{kind} falls on all packets alike; it cannot be for {only} only")
    if (kind == "ev-loss") != (source_port is not None):
        raise LabError("ev-loss needs the UDP source port of an EV, and nothing else takes one")
    if source_port is not None and not 0 < source_port <= UDP_PORT_MAX:
        raise LabError(f"{source_port} is no UDP source port: 1 to {UDP_PORT_MAX}")


def directions(link: FabricLink, towards: str | None) -> list[Interface]:
    """Return the starts of the directions meant: both, or the one that leads to a node.

    Raises:
        LabError: the link does not lead to that node.
    """
    starts = [start for start in link.ends if towards in (None, start.peer_node)]
    if not starts:
        raise LabError(f"link {link.name} does not lead to {towards}")
    return starts


def harmed(fabric: Fabric, link: FabricLink, kind: str, towards: str | None) -> list[Interface]:
    """Return the starts of the directions that a kind of fault changes.

    Raises:
        LabError: the link does not lead to that node, or the kind cannot be in that direction.
    """
    starts = directions(link, towards)
    if not KINDS[kind].of_queue:
        return starts
    queued = [start for start in starts if not fabric.is_host(start.node)]
    if not queued:
        raise LabError(
            f"{kind} is of the queue of a switch, and from {starts[0].node} to {towards} there is "
            "none: hosts send as fast as they can"
        )
    return queued


def fail(
    lab: Lab,
    link: FabricLink,
    kind: str,
    *,
    amount: float | None = None,
    towards: str | None = None,
    only: str = "all",
    source_port: int | None = None,
) -> None:
    """Break a link; what was broken before stays so.

    Args:
        lab: where.
        link: which.
        kind: one of `kinds()`.
        amount: the number the kind asks for.
        towards: only the direction that leads to this node; None: both.
        only: `all`, `data` or `control` packets.
        source_port: the EV of `ev-loss`.

    Raises:
        LabError: as `check` and `harmed` say, or it would change a fault that is there.
    """
    check(kind, amount=amount, towards=towards, only=only, source_port=source_port)
    change = KINDS[kind].change
    if change is None:
        lab.disconnect(_end_to_disconnect(lab, link, kind))
        return
    changes = change(amount or 0)
    if not changes.keys().isdisjoint(_CHOSEN):
        changes["only"] = only
    if source_port is not None:
        changes["ev_source_port"] = source_port
    starts = harmed(lab.fabric, link, kind, towards)
    for start in starts:
        name = lab.direction(link, start)
        _refuse_conflict(f"{kind} on {name}", lab.ports[name].settings(), changes)
    for start in starts:
        if kind == "rate":
            set_rate(lab, link, start, amount or 0)
        else:
            port = lab.ports[lab.direction(link, start)]
            port.configure(replace(port.settings(), **changes))


def _refuse_conflict(what: str, now: LinkSettings, changes: dict[str, Any]) -> None:
    """Refuse what would change a fault that is there: a direction has one `only`, and one EV."""
    others = [name for name in _CHOSEN if getattr(now, name) and name not in changes]
    if others and changes.get("only", now.only) != now.only:
        raise LabError(
            f"{what} cannot be for {changes['only']} packets: another fault there is for "
            f"{now.only}; heal the link first, or take the same --only"
        )
    if now.ev_loss_ppm and changes.get("ev_source_port", now.ev_source_port) != now.ev_source_port:
        raise LabError(
            f"{what} cannot be of port {changes['ev_source_port']}: packets of port "
            f"{now.ev_source_port} are lost there; heal the link first"
        )


def _end_to_disconnect(lab: Lab, link: FabricLink, kind: str) -> Interface:
    hosts = [end for end in link.ends if lab.fabric.is_host(end.node)]
    switches = [end for end in link.ends if end not in hosts]
    return hosts[0] if kind == "port-down" and hosts else switches[0]


def heal(lab: Lab, *links: FabricLink) -> None:
    """Give links back all that their topology says: packets pass at once, then devices come up."""
    for link in links:
        for start in link.ends:
            port = lab.ports[lab.direction(link, start)]
            usual = usual_settings(lab.fabric, link, start)
            if not lab.fabric.is_host(start.node) and port.settings().rate_bps != usual.rate_bps:
                set_rate(lab, link, start, link.rate_mbps)
            port.configure(usual)
    for end in [end for link in links for end in link.ends]:
        if not lab.is_connected(end):
            lab.connect_node(end.node)


def switch_down(lab: Lab, node: str) -> None:
    """Put every device of a node down, as a reboot does."""
    for _, end in lab.fabric.interfaces(node):
        lab.disconnect(end)


def switch_up(lab: Lab, node: str) -> None:
    """Bring a node back with all its devices and routes."""
    lab.connect_node(node)


def in_force(lab: Lab) -> dict[str, str]:
    """Return, for each direction of a link that is not as its topology says, what differs."""
    found: dict[str, str] = {}
    for link in lab.fabric.links:
        for start in link.ends:
            key = lab.direction(link, start)
            usual = asdict(usual_settings(lab.fabric, link, start))
            now = asdict(lab.ports[key].settings())
            words = [f"{name} = {now[name]}" for name in now if now[name] != usual[name]]
            if not lab.is_connected(start):
                words.append(f"device {start.device} of {start.node} is down")
            if words:
                found[key] = ", ".join(words)
    return found
