"""What can be done to a link or a node, by name, and how it is taken back.

A fault on a link changes what the switch program of its directions does (`SETTINGS`), or puts a
device down (`DEVICES`). Healing a link gives it back all that its topology says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from netns.errors import LabError
from netns.fabric import FabricLink, Interface
from netns.lab import Lab
from netns.ports import set_rate, usual_settings

PPM_PER_PERCENT = 10_000


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault on the directions of a link."""

    what: str
    """In words, for people."""
    amount: str
    """What its one number means, with its unit; empty: it takes none."""
    change: Callable[[float], dict[str, Any]]
    selective: bool = False
    """Whether it can be limited to data or to control packets."""


def _ppm(percent: float) -> int:
    return round(percent * PPM_PER_PERCENT)


SETTINGS: dict[str, Kind] = {
    "blackhole": Kind(
        "everything vanishes, the carrier stays", "", lambda _: {"blackhole": True}, True
    ),
    "loss": Kind("packets are lost at random", "percent", lambda n: {"loss_ppm": _ppm(n)}, True),
    "ev-loss": Kind(
        "packets of one EV (UDP source port) are lost",
        "percent",
        lambda n: {"ev_loss_ppm": _ppm(n)},
    ),
    "big-packets": Kind(
        "IP packets above a size vanish", "bytes", lambda n: {"packet_bytes_max": round(n)}
    ),
    "corrupt": Kind(
        "a byte is flipped, UDP checksum mended", "percent", lambda n: {"corrupt_ppm": _ppm(n)}
    ),
    "duplicate": Kind("packets arrive twice", "percent", lambda n: {"duplicate_ppm": _ppm(n)}),
    "rewrite-ports": Kind(
        "a middlebox changes UDP source ports", "", lambda _: {"rewrite_source_port": True}
    ),
    "tail-drop": Kind("no trimming: full queues drop", "", lambda _: {"trim_bytes": 0}),
    "no-marks": Kind("no ECN marks", "", lambda _: {"ecn_min_bytes": 0, "ecn_max_bytes": 0}),
}

DEVICES = {
    "carrier-down": "the switch puts its end down: the other side loses the carrier",
    "port-down": "the host (or first end) puts its own device down",
    "rate": "the link carries less: a number in Mbit/s",
}


def kinds() -> dict[str, str]:
    """Return every kind of fault on a link and what it does."""
    return {name: kind.what for name, kind in SETTINGS.items()} | DEVICES


def directions(link: FabricLink, towards: str | None) -> list[Interface]:
    """Return the starts of the directions meant: both, or the one that leads to a node.

    Raises:
        LabError: the link does not lead to that node.
    """
    starts = [start for start in link.ends if towards in (None, start.peer_node)]
    if not starts:
        raise LabError(f"link {link.name} does not lead to {towards}")
    return starts


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
        LabError: no such kind, or a number missing, superfluous or out of range.
    """
    if kind in ("carrier-down", "port-down"):
        lab.disconnect(_end_to_disconnect(lab, link, kind))
    elif kind == "rate":
        for start in directions(link, towards):
            if not lab.fabric.is_host(start.node):
                set_rate(lab, link, start, _needed(amount, kind, "Mbit/s"))
    else:
        changes = _changes(kind, amount, only, source_port)
        for start in directions(link, towards):
            port = lab.ports[lab.direction(link, start)]
            try:
                port.configure(replace(port.settings(), **changes))
            except ValueError as error:
                raise LabError(f"{kind} on {link.name}: {error}") from error


def _changes(kind: str, amount: float | None, only: str, source_port: int | None) -> dict[str, Any]:
    """Return what a fault changes in the settings of a direction.

    Raises:
        LabError: as `fail` says.
    """
    if kind not in SETTINGS:
        raise LabError(f"there is no fault {kind}; there are {', '.join(kinds())}")
    how = SETTINGS[kind]
    if amount is not None and not how.amount:
        raise LabError(f"{kind} takes no number, has {amount:g}")
    if only != "all" and not how.selective:
        raise LabError(f"{kind} falls on all packets alike; it cannot be for {only} only")
    if (kind == "ev-loss") != (source_port is not None):
        raise LabError("ev-loss needs the UDP source port of an EV, and nothing else takes one")
    changes = how.change(_needed(amount, kind, how.amount) if how.amount else 0.0)
    if how.selective:
        changes["only"] = only
    if source_port is not None:
        changes["ev_source_port"] = source_port
    return changes


def _needed(amount: float | None, kind: str, unit: str) -> float:
    if amount is None or amount < 0:
        raise LabError(f"{kind} needs a number ({unit}) of at least 0; has {amount}")
    return amount


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
