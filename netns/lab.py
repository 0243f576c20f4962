"""A fabric made real: namespaces, devices, addresses, routes and switch ports, and their removal.

Everything carries the prefix `mrclab-NAME-`, so that what a crash left behind can be told from
everything else on the machine and swept away, and two labs can stand side by side.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from pyroute2 import NetNS
from pyroute2 import netns as namespaces
from pyroute2.ethtool import Ethtool
from pyroute2.netlink.exceptions import NetlinkError

from netns import kernel
from netns.delays import HOP, Wires, delayed, hop_devices
from netns.errors import LabError
from netns.fabric import Fabric, FabricLink, Interface, plan
from netns.leftovers import MARK, sweep
from netns.places import FILES, STATES, Claim, checked_name, own_folder, prefix
from netns.ports import make_port
from netns.switch import SwitchPort
from netns.topology import Topology

OFFLOADS = re.compile("tx-.*(segmentation|checksum|gso).*")
"""Switched off, so that what crosses a link is one packet of at most the MTU, checksum and all."""
NUD_PERMANENT = 0x80
IFA_F_NODAD = 0x02

_SYSCTLS = {
    "net/ipv6/conf/all/disable_ipv6": "0",
    "net/ipv6/conf/default/disable_ipv6": "0",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/default/accept_ra": "0",
    "net/ipv6/conf/all/keep_addr_on_down": "1",
    "net/ipv6/conf/default/keep_addr_on_down": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
}
_SWITCH_SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv6/conf/all/forwarding": "1",
    # Hash the ports as well: the UDP source port is what tells paths apart.
    "net/ipv4/fib_multipath_hash_policy": "1",
    "net/ipv6/fib_multipath_hash_policy": "1",
    "net/ipv4/conf/all/send_redirects": "0",
    "net/ipv4/conf/default/send_redirects": "0",
}


class Lab:
    """A fabric on this machine. `up` makes it, `down` removes it, `with` does both."""

    def __init__(self, fabric: Fabric, name: str = "lab") -> None:
        self.fabric = fabric
        self.name = checked_name(name)
        self.ports: dict[str, SwitchPort] = {}
        """Switch program of each direction of each link, by the name that `direction` gives."""
        self._claim = Claim(name)
        self._sockets: dict[str, NetNS] = {}
        self._wires: Wires | None = None

    # Life.

    @classmethod
    def open(cls, name: str) -> Self:
        """Return a lab that is up, to look at; who changes it needs its `Claim`.

        Raises:
            LabMissing: this machine cannot.
            LabError: there is none of this name, or what its maker left of it is broken.
        """
        path = STATES / f"{checked_name(name)}.json"
        kernel.require()
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise LabError(
                f"no lab {name} is up; start one with: mrc-lab up TOPOLOGY --name {name}"
            ) from None
        except (OSError, ValueError) as error:
            raise _broken(name, error) from error
        try:
            lab = cls(plan(Topology.model_validate(state["topology"])), name)
            with contextlib.ExitStack() as opened:
                opened.callback(lab.close)
                for key, map_ids in state["ports"].items():
                    lab.ports[key] = SwitchPort.open(map_ids)
                opened.pop_all()
        except (LabError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise _broken(name, error) from error
        return lab

    def up(self, *, stays: bool = True) -> None:
        """Make the fabric, after sweeping away what an earlier lab of this name left.

        Args:
            stays: whether it shall outlive this process; what helps it ends with us otherwise.

        Raises:
            LabMissing: this machine cannot.
            LabError: another process uses a lab of this name, or the kernel refused something.
        """
        kernel.require()
        self._claim.take()
        try:
            sweep(self.name)
            self._make(stays=stays)
        except BaseException:
            self.down()
            raise

    def _make(self, *, stays: bool) -> None:
        slow = delayed(self.fabric)
        for node in [*self.fabric.nodes, *([HOP] if slow else [])]:
            with _refusals(f"namespace {self.namespace(node)}"):
                namespaces.create(self.namespace(node))
        for node in self.fabric.nodes:
            with _refusals(f"the settings of node {node}"):
                self._prepare_node(node)
        for link in self.fabric.links:
            with _refusals(f"link {link.name}"):
                self._make_link(link)
        for node in self.fabric.nodes:
            with _refusals(f"the addresses and routes of node {node}"):
                self.connect_node(node)
        for number, link in enumerate(self.fabric.links):
            for side, start in enumerate(link.ends):
                with _refusals(f"the switch port of {self.direction(link, start)}"):
                    self.ports[self.direction(link, start)] = make_port(
                        self, link, start, seed=2 * number + side + 1
                    )
        if slow:
            with _refusals("the hop for delays"):
                self._wires = Wires(self, dies_with_us=not stays)
        self._save()

    def down(self) -> None:
        """Remove the fabric. Twice is once."""
        self._claim.take()
        try:
            self.end_hop()
            self._let_go()
            sweep(self.name)
        finally:
            self._claim.release()

    def close(self) -> None:
        """Let go of sockets, maps and the claim; the fabric stays."""
        self._let_go()
        self._claim.release()

    def _let_go(self) -> None:
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()
        for port in self.ports.values():
            port.close()
        self.ports.clear()

    def __enter__(self) -> Self:
        self.up(stays=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def hop_trouble(self) -> list[str]:
        """Return what is wrong with the delayed wires by now: cheap, and empty without any."""
        return self._wires.trouble() if self._wires is not None else []

    def end_hop(self) -> list[str]:
        """End the delayed wires, and return what was wrong with them. Twice is once."""
        wires, self._wires = self._wires, None
        return wires.end() if wires is not None else []

    def _save(self) -> None:
        state = {
            "topology": self.fabric.topology.model_dump(mode="json"),
            "ports": {key: port.map_ids for key, port in self.ports.items()},
        }
        path = self.state_path(".json")
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    @property
    def folder(self) -> Path:
        """A folder for what runs in the lab; it goes with it."""
        return own_folder(own_folder(FILES, 0o700) / self.name, 0o700)

    def state_path(self, suffix: str) -> Path:
        """Return where the lab keeps something while it is up."""
        return own_folder(STATES, 0o755) / f"{self.name}{suffix}"

    # Names and sockets.

    def namespace(self, node: str) -> str:
        """Return the network namespace of a node."""
        return f"{prefix(self.name)}{node}"

    def netlink(self, node: str) -> NetNS:
        """Return a netlink socket inside a node, kept until the lab is closed."""
        if node not in self._sockets:
            self._sockets[node] = NetNS(self.namespace(node), flags=0)
        return self._sockets[node]

    @staticmethod
    def direction(link: FabricLink, start: Interface) -> str:
        """Return the name of one direction of a link: `a-s0>s0` leads to s0."""
        return f"{link.name}>{start.peer_node}"

    def index(self, node: str, device: str) -> int:
        """Return the interface index of a device in a node.

        Raises:
            LabError: it is gone.
        """
        found = self.netlink(node).link_lookup(ifname=device)
        if not found:
            raise LabError(f"node {node} has lost its device {device}: mrc-lab down, and up again")
        return int(found[0])

    def command(self, node: str, arguments: list[str]) -> list[str]:
        """Return the command line that runs a command inside a node.

        Raises:
            LabError: there is no such node.
        """
        if node not in (*self.fabric.nodes, HOP):
            raise LabError(f"there is no node {node}; there are {', '.join(self.fabric.nodes)}")
        return ["ip", "netns", "exec", self.namespace(node), *arguments]

    def environment(self) -> dict[str, str]:
        """Return the environment of processes that belong to this lab."""
        return {**os.environ, MARK: self.name}

    # Making.

    def _prepare_node(self, node: str) -> None:
        switch = not self.fabric.is_host(node)
        values = {**_SYSCTLS, **(_SWITCH_SYSCTLS if switch else {})}
        kernel.in_namespace(self.namespace(node), lambda: kernel.write_sysctls(values))
        self.netlink(node).link("set", index=1, state="up")

    def _make_link(self, link: FabricLink) -> None:
        """Join the two nodes: directly, or through the hop if the wire does something."""
        near, far = link.ends
        if link.wire.plain:
            self._veth(near, self.namespace(far.node), far.device, far.mac)
        else:
            for end, device in zip(link.ends, hop_devices(self.fabric, link), strict=True):
                self._veth(end, self.namespace(HOP), device, None)
        for end in link.ends:
            kernel.in_namespace(self.namespace(end.node), partial(switch_offloads_off, end.device))

    def _veth(self, end: Interface, namespace: str, device: str, mac: str | None) -> None:
        """Make a pair: one device in the node of `end`, the other in a namespace."""
        mtu = self.fabric.mtu
        address = {} if mac is None else {"address": mac}
        self.netlink(end.node).link(
            "add",
            kind="veth",
            ifname=end.device,
            address=end.mac,
            mtu=mtu,
            peer={"ifname": device, "mtu": mtu, "net_ns_fd": namespace, **address},
        )

    def connect_node(self, node: str) -> None:
        """Put the devices of a node up and give it addresses, neighbours and routes.

        What is there already stays: a device that was down has lost a part of it.
        """
        for link, end in self.fabric.interfaces(node):
            self.connect(link, end)
        for route in self.fabric.routes[node]:
            hops = [(hop, self.index(node, hop.device)) for hop in route.hops]
            _replace_route(self.netlink(node), route.ipv4, [(h.gateway.ipv4, i) for h, i in hops])
            _replace_route(self.netlink(node), route.ipv6, [(h.gateway.ipv6, i) for h, i in hops])

    def connect(self, link: FabricLink, end: Interface) -> None:
        """Put one device up, with its addresses and its permanent neighbour."""
        socket, index = self.netlink(end.node), self.index(end.node, end.device)
        socket.link("set", index=index, state="up")
        far = link.far_end(end)
        for address, length in ((end.ipv4, 24), (end.ipv6, 64)):
            socket.addr(
                "replace", index=index, address=address, prefixlen=length, flags=IFA_F_NODAD
            )
        for address in (far.ipv4, far.ipv6):
            socket.neigh("replace", dst=address, lladdr=far.mac, ifindex=index, state=NUD_PERMANENT)

    def is_connected(self, end: Interface) -> bool:
        """Tell whether a device is up."""
        (device,) = self.netlink(end.node).get_links(self.index(end.node, end.device))
        return bool(device.get_attr("IFLA_OPERSTATE") != "DOWN")

    def disconnect(self, end: Interface) -> None:
        """Put one device down: the other end of its link loses the carrier."""
        index = self.index(end.node, end.device)
        self.netlink(end.node).link("set", index=index, state="down")


def switch_offloads_off(device: str) -> None:
    """Let a device of this namespace send what it is given: one packet, checksum and all."""
    with contextlib.closing(Ethtool()) as tool:
        features = tool.get_features(device)
        for name, feature in features.features.items():
            if OFFLOADS.fullmatch(name) and feature.available:
                feature.enable = False
        tool.set_features(device, features)


def _replace_route(socket: NetNS, destination: str, hops: list[tuple[str, int]]) -> None:
    if len(hops) == 1:
        socket.route("replace", dst=destination, gateway=hops[0][0], oif=hops[0][1])
        return
    multipath = [{"gateway": gateway, "oif": index} for gateway, index in hops]
    socket.route("replace", dst=destination, multipath=multipath)


@contextlib.contextmanager
def _refusals(part: str) -> Iterator[None]:
    """Say of which part of the fabric the kernel would have none."""
    try:
        yield
    except (NetlinkError, OSError) as error:
        raise LabError(f"the kernel refused {part}: {error}") from error


def _broken(name: str, error: Exception) -> LabError:
    return LabError(
        f"what is left of lab {name} cannot be used ({error}): mrc-lab down --name {name}"
    )
