"""A fabric made real: namespaces, devices, addresses, routes and switch ports, and their removal.

Everything carries the prefix `mrclab-NAME-`, so that what a crash left behind can be told from
everything else on the machine and swept away, and two labs can stand side by side.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from pyroute2 import NetNS
from pyroute2 import netns as namespaces
from pyroute2.ethtool import Ethtool
from pyroute2.netlink.exceptions import NetlinkError

from netns import kernel
from netns.delays import HOP, delayed, hop_devices, start_hop
from netns.errors import LabError
from netns.fabric import Fabric, FabricLink, Interface, plan
from netns.ports import make_ports
from netns.switch import SwitchPort
from netns.topology import Topology

STATES = Path("/run/mrc-lab")
MARK = "MRC_LAB"
"""Environment variable of every process the lab starts: its value is the lab's name."""
END_TIMEOUT_S = 5.0
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
        if not re.fullmatch(r"[a-z0-9]{1,16}", name):
            raise LabError(f"{name!r} is no name for a lab: 1 to 16 lower-case letters and digits")
        self.fabric = fabric
        self.name = name
        self.ports: dict[str, SwitchPort] = {}
        """Switch program of each direction of each link, by the name that `direction` gives."""
        self._sockets: dict[str, NetNS] = {}
        self._hop: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    # Life.

    @classmethod
    def open(cls, name: str) -> Self:
        """Return a lab that is up.

        Raises:
            LabError: there is none of this name.
        """
        try:
            state = json.loads((STATES / f"{name}.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise LabError(f"no lab {name} is up; start one with: mrc-lab up TOPOLOGY") from error
        lab = cls(plan(Topology.model_validate(state["topology"])), name)
        for key, map_ids in state["ports"].items():
            lab.ports[key] = SwitchPort.open(map_ids)
        return lab

    def up(self) -> None:
        """Make the fabric, after sweeping away what an earlier lab of this name left.

        Raises:
            LabMissing: this machine cannot.
            LabError: the kernel refused something.
        """
        kernel.require()
        sweep(self.name)
        try:
            self._make()
        except (NetlinkError, OSError) as error:
            self.down()
            raise LabError(f"the kernel refused a part of the fabric: {error}") from error
        except BaseException:
            self.down()
            raise

    def _make(self) -> None:
        for node in [*self.fabric.nodes, *([HOP] if delayed(self.fabric) else [])]:
            namespaces.create(self.namespace(node))
        for node in self.fabric.nodes:
            self._prepare_node(node)
        for link in self.fabric.links:
            self._make_link(link)
        for node in self.fabric.nodes:
            self.connect_node(node)
        make_ports(self)
        self._hop = start_hop(self)
        self._save()

    def down(self) -> None:
        """Remove the fabric. Twice is once."""
        self.close()
        sweep(self.name)
        if self._hop is not None:
            self._hop.wait()
            self._hop = None

    def close(self) -> None:
        """Let go of sockets and maps; the fabric stays."""
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()
        for port in self.ports.values():
            port.close()
        self.ports.clear()

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

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
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=prefix(self.name)))
        return self._folder

    def state_path(self, suffix: str) -> Path:
        """Return where the lab keeps something while it is up."""
        STATES.mkdir(exist_ok=True)
        return STATES / f"{self.name}{suffix}"

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

    def index(self, interface: Interface) -> int:
        """Return the interface index of a device in its node."""
        return int(self.netlink(interface.node).link_lookup(ifname=interface.device)[0])

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
            hops = [(hop, self.index_of(node, hop.device)) for hop in route.hops]
            _replace_route(self.netlink(node), route.ipv4, [(h.gateway.ipv4, i) for h, i in hops])
            _replace_route(self.netlink(node), route.ipv6, [(h.gateway.ipv6, i) for h, i in hops])

    def index_of(self, node: str, device: str) -> int:
        """Return the interface index of a device by its name."""
        return int(self.netlink(node).link_lookup(ifname=device)[0])

    def connect(self, link: FabricLink, end: Interface) -> None:
        """Put one device up, with its addresses and its permanent neighbour."""
        socket, index = self.netlink(end.node), self.index(end)
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
        state = self.netlink(end.node).get_links(self.index(end))[0].get_attr("IFLA_OPERSTATE")
        return bool(state != "DOWN")

    def disconnect(self, end: Interface) -> None:
        """Put one device down: the other end of its link loses the carrier."""
        self.netlink(end.node).link("set", index=self.index(end), state="down")


def prefix(name: str) -> str:
    """Return what the names of everything of a lab begin with."""
    return f"mrclab-{name}-"


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


def labs() -> list[str]:
    """Return the names of labs of which anything exists."""
    found = {path.stem for path in STATES.glob("*.json")}
    for name in namespaces.listnetns():
        if match := re.fullmatch(r"mrclab-([a-z0-9]+)-.*", name):
            found.add(match[1])
    return sorted(found)


def sweep(name: str) -> list[str]:
    """Remove everything of a lab, whatever state it is in; return the names of what was removed."""
    removed = [f"process {pid}" for pid in _end_processes(name)]
    for namespace in namespaces.listnetns():
        if namespace.startswith(prefix(name)):
            namespaces.remove(namespace)
            removed.append(f"namespace {namespace}")
    for path in STATES.glob(f"{name}.*"):
        path.unlink(missing_ok=True)
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix(name)}*"):
        if folder.lstat().st_uid == os.geteuid():
            shutil.rmtree(folder)
            removed.append(f"folder {folder}")
    return removed


def processes(name: str) -> list[int]:
    """Return the processes a lab started that still run: they carry its mark."""
    wanted = f"{MARK}={name}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0") and int(path.parts[2]) != os.getpid():
                found.append(int(path.parts[2]))
    return found


def _end_processes(name: str) -> list[int]:
    """Ask the lab's processes to end, insist after a while, and return them."""
    pids = processes(name)
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = [pid for pid in pids if pid in processes(name)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + END_TIMEOUT_S
        while processes(name) and left and time.monotonic() < deadline:
            time.sleep(0.01)
    return pids
