"""Switch ports: the program and the shaper of every direction of every link.

A direction that starts at a switch has, at the egress of its device, the switch program in front of
an HTB with two strict classes, control before data. A direction that starts at a host has the
program at the ingress of the switch port it leads to: there it only harms, as a broken cable does.
Hosts send as fast as they can, and queues are where a network has them, in the switches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyroute2 import NetNS

from netns.fabric import Fabric, FabricLink, Interface
from netns.switch import CLASS_CONTROL, CLASS_DATA, LinkSettings, SwitchPort

if TYPE_CHECKING:
    from netns.lab import Lab

ETHERNET_BYTES = 14
CLSACT_INGRESS, CLSACT_EGRESS = 0xFFFFFFF2, 0xFFFFFFF3
ROOT = 0xFFFFFFFF
ROOT_CLASS = 0x10001
CONTROL_SHARE = 0.1
"""Of the rate that is the control class's own; what it needs beyond that it takes before data."""
BURST_PACKETS = 8
"""Sent at once when the timer was late; with 2, busy processors cost a tenth of the rate."""
QUEUE_PACKETS = 10_000
"""Of the kernel's queue behind ours: never full, so that what is dropped is dropped and counted by
the switch program."""


def make_port(lab: Lab, link: FabricLink, start: Interface, *, seed: int) -> SwitchPort:
    """Give one direction of a link its program, and its shaper where it starts at a switch."""
    egress = not lab.fabric.is_host(start.node)
    end = start if egress else link.far_end(start)
    socket, index = lab.netlink(end.node), lab.index(end.node, end.device)
    if egress:
        _shape(socket, index, link.rate_mbps, lab.fabric.mtu)
    if not _has_clsact(socket, index):
        socket.tc("add", "clsact", index)
    port = SwitchPort.load(seed=seed, at_ingress=not egress)
    try:
        port.configure(usual_settings(lab.fabric, link, start))
        socket.tc(
            "add-filter",
            "bpf",
            index,
            fd=port.program_fd,
            name="mrc-switch",
            parent=CLSACT_EGRESS if egress else CLSACT_INGRESS,
            direct_action=True,
            classid=1,
        )
    except BaseException:
        port.close()
        raise
    return port


def usual_settings(fabric: Fabric, link: FabricLink, start: Interface) -> LinkSettings:
    """Return what a healthy direction of a link does."""
    if fabric.is_host(start.node):
        return LinkSettings()
    queue, last_hop = fabric.queue, fabric.is_host(start.peer_node)
    return LinkSettings(
        rate_bps=round(link.rate_mbps * 1e6),
        queue_bytes_max=round(queue.tail_drop_kib * 1024),
        trim_bytes=round(queue.trim_kib * 1024),
        ecn_min_bytes=round(queue.ecn_min_kib * 1024),
        ecn_max_bytes=round(queue.ecn_max_kib * 1024),
        last_hop=last_hop,
        marks=queue.last_hop_marks or not last_hop,
    )


def set_rate(lab: Lab, link: FabricLink, start: Interface, rate_mbps: float) -> None:
    """Change the rate of one direction while packets pass."""
    port = lab.ports[lab.direction(link, start)]
    port.configure(replace(port.settings(), rate_bps=round(rate_mbps * 1e6)))
    index = lab.index(start.node, start.device)
    _classes(lab.netlink(start.node), index, "change", rate_mbps, lab.fabric.mtu)


def _has_clsact(socket: NetNS, index: int) -> bool:
    return any(each.get_attr("TCA_KIND") == "clsact" for each in socket.get_qdiscs(index))


def _shape(socket: NetNS, index: int, rate_mbps: float, mtu: int) -> None:
    socket.tc("add", "htb", index, "1:", parent=ROOT, default=0x20)
    _classes(socket, index, "add", rate_mbps, mtu)
    for handle, parent in ((0x100000, CLASS_CONTROL), (0x200000, CLASS_DATA)):
        socket.tc("add", "pfifo", index, handle, parent=parent, limit=QUEUE_PACKETS)


def _classes(socket: NetNS, index: int, what: str, rate_mbps: float, mtu: int) -> None:
    """Add or change the classes of a shaper; its rates are in bytes a second."""
    rate = round(rate_mbps * 1e6 / 8)
    burst = BURST_PACKETS * (mtu + ETHERNET_BYTES)
    common = {"ceil": rate, "burst": burst, "cburst": burst, "mtu": mtu + ETHERNET_BYTES}
    own = round(rate * CONTROL_SHARE)
    for handle, parent, least, priority in (
        (ROOT_CLASS, 0x10000, rate, 0),
        (CLASS_CONTROL, ROOT_CLASS, own, 0),
        (CLASS_DATA, ROOT_CLASS, rate - own, 1),
    ):
        socket.tc(
            f"{what}-class",
            "htb",
            index,
            handle,
            parent=parent,
            rate=least,
            prio=priority,
            quantum=mtu + ETHERNET_BYTES,
            **common,
        )
