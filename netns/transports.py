"""What the traffic of a scenario can go over: MRC, or kernel TCP and MPTCP for comparison."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

from pyroute2 import MPTCP

import mrc
from netns import kernel
from netns.fabric import Fabric
from netns.lab import Lab
from netns.scenario import Flow, Scenario

MRC_PORT, TCP_PORT = 18515, 18516
IDENTITY_FILE, TOKEN_FILE = "identity.pem", "token"
RECEIVER_PERIOD_MS = 2.0
SENDER_PERIOD_MS = 10.0
MPTCP_LIMIT = 8
"""Subflows and announced addresses a connection may have; the kernel's most."""
ANNOUNCE = 1
"""MPTCP_PM_ADDR_FLAG_SIGNAL: tell the peer about this address."""
ETHERNET_BYTES = 14


class Transport(ABC):
    """How hosts are prepared and what their traffic processes are told."""

    name: str
    header_bytes: int
    """Around the payload of a packet on the wire over IPv4, Ethernet included."""
    bytes_by_links = False
    """Whether receivers do not say what has arrived when, so that the links' counters must."""
    among_senders = False
    """Whether senders are all there is: they meet before they say `connected`, and what a flow's
    target got is in the record of the sender there."""

    @abstractmethod
    def prepare(self, lab: Lab, scenario: Scenario) -> None:
        """Set hosts up for it, if they need any."""

    @abstractmethod
    def receiver_orders(self, lab: Lab, scenario: Scenario, host: str) -> dict[str, Any]:
        """Return the orders of the one receiver of a host, and the `module` to run."""

    @abstractmethod
    def sender_orders(self, lab: Lab, scenario: Scenario, flow: Flow) -> dict[str, Any]:
        """Return the orders of a flow's sender, and the `module` to run."""

    @abstractmethod
    def payload_bytes(self, fabric: Fabric) -> int:
        """Return the payload of a full packet."""


def _common(scenario: Scenario, flow: Flow) -> dict[str, Any]:
    return {
        "name": flow.name,
        "message_bytes": flow.message_kib * 1024,
        "depth": flow.depth,
        "pause_ms": flow.pause_ms,
        "start_s": flow.start_s,
        "stop_s": scenario.duration_s if flow.stop_s is None else flow.stop_s,
        "period_ms": SENDER_PERIOD_MS,
    }


class Mrc(Transport):
    """Ourselves, by the public interface."""

    name = "mrc"
    # Ethernet, IPv4, UDP, BTH, METH, TSETH, RETH and iCRC.
    header_bytes = ETHERNET_BYTES + 20 + 8 + 12 + 4 + 4 + 16 + 4

    def prepare(self, lab: Lab, scenario: Scenario) -> None:
        """Make what locks the door of every receiver, if anything shall."""
        if scenario.locked:
            (lab.folder / TOKEN_FILE).write_text(secrets.token_urlsafe(), encoding="ascii")
            mrc.Lock.load(*self._lock(lab))

    @staticmethod
    def _lock(lab: Lab) -> tuple[str, str]:
        """One identity for all hosts, in a file, and the token for it."""
        token = (lab.folder / TOKEN_FILE).read_text(encoding="ascii")
        return str(lab.folder / IDENTITY_FILE), token

    def _url(self, lab: Lab, scenario: Scenario, host: str) -> str:
        """What a receiver will answer to, known before it runs."""
        key = mrc.Lock.load(*self._lock(lab)).key if scenario.locked else ""
        return f"mrc://{lab.fabric.addresses(host)[0]}:{MRC_PORT}/{key}"

    def receiver_orders(self, lab: Lab, scenario: Scenario, host: str) -> dict[str, Any]:
        """One endpoint for all flows to a host."""
        return {
            "module": "netns.traffic.mrc_receiver",
            "addresses": lab.fabric.addresses(host),
            "port": MRC_PORT,
            "config": self._config(lab, scenario, host),
            "lock": self._lock(lab) if scenario.locked else None,
            "period_ms": RECEIVER_PERIOD_MS,
        }

    def sender_orders(self, lab: Lab, scenario: Scenario, flow: Flow) -> dict[str, Any]:
        """One queue pair over all planes the two hosts share."""
        return {
            "module": "netns.traffic.mrc_sender",
            "url": self._url(lab, scenario, flow.target),
            "token": self._lock(lab)[1] if scenario.locked else None,
            "planes": lab.fabric.addresses(flow.source),
            "config": {**self._config(lab, scenario, flow.source), **flow.endpoint},
            **_common(scenario, flow),
        }

    @staticmethod
    def _config(lab: Lab, scenario: Scenario, host: str) -> dict[str, Any]:
        """Tell an endpoint what an operator knows of the network; veth devices do not."""
        rate_bps = sum(round(link.rate_mbps * 1e6) for link in lab.fabric.planes(host))
        base_rtt_ns = round(lab.fabric.topology.base_rtt_ms * 1e6)
        trimming = lab.fabric.queue.trim_kib > 0
        known = {"link_bps": rate_bps, "base_rtt_ns": base_rtt_ns, "trimming": trimming}
        return {**known, **scenario.endpoint}

    def payload_bytes(self, fabric: Fabric) -> int:
        """The largest MTU of InfiniBand that fits, as endpoints agree on it."""
        return max(mtu for mtu in (256, 512, 1024, 2048, 4096) if mtu + 72 <= fabric.mtu)


class Files(Mrc):
    """The same by `mrc-send` and `mrc-recv`, which find out about the network themselves."""

    bytes_by_links = True

    def prepare(self, lab: Lab, scenario: Scenario) -> None:
        """Give every host a folder of its own."""
        super().prepare(lab, scenario)
        for host in lab.fabric.topology.hosts:
            (lab.folder / host).mkdir()

    def receiver_orders(self, lab: Lab, scenario: Scenario, host: str) -> dict[str, Any]:
        """Take one file into the host's folder."""
        # A scenario with two to one host was refused when it was read.
        (flow,) = [flow for flow in scenario.flows if flow.target == host]
        orders = {**self._orders(lab, scenario, host, flow), "role": "receive"}
        if scenario.locked:
            orders["options"] = [*orders["options"], "--identity", str(lab.folder / IDENTITY_FILE)]
        return orders

    def sender_orders(self, lab: Lab, scenario: Scenario, flow: Flow) -> dict[str, Any]:
        """Send one from the host's folder."""
        return {
            **self._orders(lab, scenario, flow.source, flow),
            "role": "send",
            "url": self._url(lab, scenario, flow.target),
            "target": str(lab.folder / flow.target),
            "mib": flow.file_mib,
            "start_s": flow.start_s,
            "stop_s": scenario.duration_s,
        }

    @staticmethod
    def _orders(lab: Lab, scenario: Scenario, host: str, flow: Flow) -> dict[str, Any]:
        planes = lab.fabric.addresses(host)
        token = ["--token-file", str(lab.folder / TOKEN_FILE)]
        lock = token if scenario.locked else ["--insecure"]
        return {
            "module": "netns.traffic.files",
            "name": flow.name,
            "address": planes[0],
            "port": MRC_PORT,
            "planes": planes,
            "options": [*scenario.options, *lock],
            "folder": str(lab.folder / host),
        }


class AllReduce(Mrc):
    """The same by `mrc.collectives`: each host a rank, which talks to two others."""

    bytes_by_links = True
    among_senders = True

    def sender_orders(self, lab: Lab, scenario: Scenario, flow: Flow) -> dict[str, Any]:
        """One rank; the first flow's is rank 0, and listens at its host's first address."""
        flows = scenario.flows
        return {
            "module": "netns.traffic.rank",
            "rank": flows.index(flow),
            "size": len(flows),
            "url": f"mrc://{lab.fabric.addresses(flows[0].source)[0]}:{MRC_PORT}/",
            "interfaces": "p",
            "config": {**self._config(lab, scenario, flow.source), **flow.endpoint},
            **_common(scenario, flow),
        }


class Tcp(Transport):
    """One kernel connection a flow."""

    name = "tcp"
    # Ethernet, IPv4, TCP and timestamps.
    header_bytes = ETHERNET_BYTES + 20 + 20 + 12

    def prepare(self, lab: Lab, scenario: Scenario) -> None:
        """Hosts need nothing."""

    def receiver_orders(self, lab: Lab, scenario: Scenario, host: str) -> dict[str, Any]:
        """Listen at the host's first address."""
        del scenario
        return {"module": "netns.traffic.tcp", "role": "receive", **self._where(lab, host)}

    def sender_orders(self, lab: Lab, scenario: Scenario, flow: Flow) -> dict[str, Any]:
        """Connect to it."""
        where = self._where(lab, flow.target)
        return {
            "module": "netns.traffic.tcp",
            "role": "send",
            **where,
            **_common(scenario, flow),
        }

    def _where(self, lab: Lab, host: str) -> dict[str, Any]:
        return {
            "address": lab.fabric.addresses(host)[0],
            "port": TCP_PORT,
            "protocol": self.name,
            "period_ms": RECEIVER_PERIOD_MS,
        }

    def payload_bytes(self, fabric: Fabric) -> int:
        """A full segment."""
        return fabric.mtu - (self.header_bytes - ETHERNET_BYTES)


class Mptcp(Tcp):
    """One MPTCP connection a flow, a subflow a plane.

    The receiver announces its address on every plane but the first; the sender's kernel answers
    each with a subflow from the address its routes give it there.
    """

    name = "mptcp"
    # And the data sequence mapping that the kernel puts into every segment: measured.
    header_bytes = Tcp.header_bytes + 24

    def prepare(self, lab: Lab, scenario: Scenario) -> None:
        """Raise the limits and announce the addresses, in the kernels of the hosts."""
        targets = {flow.target for flow in scenario.flows}
        for host in lab.fabric.topology.hosts:
            signalled = lab.fabric.addresses(host)[1:] if host in targets else []
            kernel.in_namespace(lab.namespace(host), partial(_announce, signalled))


def _announce(addresses: list[str]) -> None:
    with MPTCP() as mptcp:
        mptcp.limits("set", subflows=MPTCP_LIMIT, rcv_add_addrs=MPTCP_LIMIT)
        for address in addresses:
            mptcp.endpoint("add", addr=address, flags=ANNOUNCE)


NAMES = ("mrc", "mptcp", "tcp")


def transport(name: str, scenario: Scenario) -> Transport:
    """Return what a scenario's traffic goes over."""
    if name == "mrc":
        return {"messages": Mrc, "file": Files, "all-reduce": AllReduce}[scenario.traffic]()
    return Mptcp() if name == "mptcp" else Tcp()
