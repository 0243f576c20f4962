"""The switch program with real packets: host a, switch s and host b, each a network namespace."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyroute2 import NetNS
from pyroute2 import netns as namespaces
from pyroute2.ethtool import Ethtool

from netns.kernel import in_namespace, write_sysctls
from netns.switch import LinkSettings, SwitchPort
from tests.netns.support_switch import (
    CE,
    CONTROL,
    ECT0,
    EV,
    LASTHOP,
    MILLION,
    TRIMMABLE,
    TRIMMED,
    require_programs,
)

pytestmark = pytest.mark.root

HOSTS = {4: ("10.1.0.1", "10.2.0.1"), 6: ("fd01::1", "fd02::1")}
ROUTERS = {4: ("10.1.0.254", "10.2.0.254"), 6: ("fd01::fe", "fd02::fe")}
PREFIX_LENGTHS = {4: 24, 6: 64}
PORT = 4971
MTU = 9000
RATE_BPS = 1_000_000_000
QUIET_SECONDS = 0.05
"""After which nothing more is expected to arrive."""
CLSACT_INGRESS, CLSACT_EGRESS = 0xFFFFFFF2, 0xFFFFFFF3


@dataclass(frozen=True, slots=True)
class Net:
    """What the tests use of the network."""

    egress: SwitchPort
    """Where s sends to b, in front of HTB."""
    ingress: SwitchPort
    """Where s receives from a."""
    names: dict[str, str]
    """Namespaces of a, s and b."""

    def socket(self, node: str, version: int, kind: int) -> socket.socket:
        """A socket inside a host."""
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        return in_namespace(self.names[node], lambda: socket.socket(family, kind))

    def offload(self, *, on: bool) -> None:
        """Whether a leaves checksums and segmentation to its device."""
        in_namespace(self.names["a"], lambda: set_offloads("v0", on=on))

    def class_bytes(self, minor: int) -> int:
        """What HTB has charged to a class of s so far."""
        with NetNS(self.names["s"]) as netlink:
            index = netlink.link_lookup(ifname="v1")[0]
            for each in netlink.get_classes(index=index):
                if each["handle"] == 0x10000 | minor:
                    return int(each.get_attr("TCA_STATS")["bytes"])
        raise LookupError(f"no class 1:{minor:x}")


def set_offloads(device: str, *, on: bool) -> None:
    """Switch checksum and segmentation offload of a device in this namespace."""
    with contextlib.closing(Ethtool()) as tool:
        features = tool.get_features(device)
        for name, feature in features.features.items():
            if name.startswith("tx-") and "vlan" not in name and feature.available:
                feature.enable = on
        tool.set_features(device, features)


@pytest.fixture(scope="module")
def made() -> Iterator[Net]:
    """Three namespaces, two links, programs attached; removed at the end."""
    require_programs()
    names = {node: f"mrctest-{os.getpid()}-{node}" for node in "asb"}
    try:
        for name in names.values():
            namespaces.create(name)
        connect(names)
        with (
            SwitchPort.load(seed=1) as egress,
            SwitchPort.load(seed=2, at_ingress=True) as ingress,
        ):
            attach(names["s"], egress, ingress)
            yield Net(egress, ingress, names)
    finally:
        for name in names.values():
            with contextlib.suppress(OSError):
                namespaces.remove(name)


@pytest.fixture
def net(made: Net) -> Iterator[Net]:
    """The network with settings that do nothing, before and after."""
    yield made
    for port in (made.egress, made.ingress):
        port.configure(LinkSettings())


def connect(names: dict[str, str]) -> None:
    """Join a and b through s, which routes, with addresses and routes of both versions."""
    forward = {"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"}
    in_namespace(names["s"], lambda: write_sysctls(forward))
    for name in names.values():
        in_namespace(name, lambda: write_sysctls({"net/ipv6/conf/default/accept_dad": "0"}))
    with NetNS(names["s"]) as switch:
        for number, node in enumerate("ab"):
            device = f"v{number}"
            switch.link(
                "add", kind="veth", ifname=device, mtu=MTU,
                peer={"ifname": device, "mtu": MTU, "net_ns_fd": names[node]},
            )  # fmt: skip
            with NetNS(names[node]) as host:
                for netlink, addresses in ((switch, ROUTERS), (host, HOSTS)):
                    index = netlink.link_lookup(ifname=device)[0]
                    netlink.link("set", index=index, state="up")
                    for version, length in PREFIX_LENGTHS.items():
                        address = addresses[version][number]
                        netlink.addr("add", index=index, address=address, prefixlen=length)
                for version, everything in ((4, "0.0.0.0/0"), (6, "::/0")):
                    host.route("add", dst=everything, gateway=ROUTERS[version][number])
    # What a leaves to its device must then be done by s, in software.
    in_namespace(names["s"], lambda: set_offloads("v1", on=False))


def attach(name: str, egress: SwitchPort, ingress: SwitchPort) -> None:
    """Put both programs where the lab puts them."""
    with NetNS(name) as netlink:
        source, target = (netlink.link_lookup(ifname=each)[0] for each in ("v0", "v1"))
        netlink.tc("add", "htb", target, "1:", parent=0xFFFFFFFF, default=0x20)
        rate = RATE_BPS // 8
        for handle, parent, priority in (
            (0x10001, 0x10000, 0),
            (0x10010, 0x10001, 0),
            (0x10020, 0x10001, 1),
        ):
            netlink.tc(
                "add-class", "htb", target, handle, parent=parent, rate=rate, ceil=rate,
                prio=priority, burst=4 * MTU, cburst=4 * MTU,
            )  # fmt: skip
        for port, index, where in (
            (egress, target, CLSACT_EGRESS),
            (ingress, source, CLSACT_INGRESS),
        ):
            netlink.tc("add", "clsact", index)
            netlink.tc(
                "add-filter", "bpf", index, fd=port.program_fd, name="mrc-switch", parent=where,
                direct_action=True, classid=1,
            )  # fmt: skip


def exchange(
    net: Net, version: int, payloads: list[bytes], *, dscp: int = TRIMMABLE, expected: int
) -> list[tuple[bytes, int, int]]:
    """Send datagrams from a to b; return payload, TOS and source port of each that arrives."""
    level, option, wanted = {
        4: (socket.IPPROTO_IP, socket.IP_TOS, socket.IP_RECVTOS),
        6: (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, socket.IPV6_RECVTCLASS),
    }[version]
    source, target = HOSTS[version]
    kind = socket.SOCK_DGRAM
    with net.socket("a", version, kind) as sender, net.socket("b", version, kind) as receiver:
        receiver.bind((target, PORT))
        receiver.setsockopt(level, wanted, 1)
        sender.bind((source, EV))
        sender.setsockopt(level, option, dscp << 2 | ECT0)
        for payload in payloads:
            sender.sendto(payload, (target, PORT))
        arrived = []
        receiver.settimeout(5)
        with contextlib.suppress(TimeoutError):
            while True:
                data, control, _, (_, port, *_) = receiver.recvmsg(MTU, 64)
                arrived.append((data, control[0][2][0], port))
                if len(arrived) >= expected:
                    receiver.settimeout(QUIET_SECONDS)
    return arrived


PAYLOADS = [bytes([i]) * 4096 for i in range(8)]


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("offload", [False, True])
def test_trimmed_packets_arrive_and_htb_charges_what_is_left_of_them(
    net: Net, version: int, offload: bool
) -> None:
    """Headers with the DSCP of the hop pass every checksum, in the control class, at their size."""
    net.offload(on=offload)
    for last_hop, dscp in ((False, TRIMMED), (True, LASTHOP)):
        net.egress.configure(LinkSettings(rate_bps=RATE_BPS, trim_bytes=1, last_hop=last_hop))
        before, charged = net.egress.counters(), net.class_bytes(0x10)
        arrived = exchange(net, version, PAYLOADS, expected=8)
        assert arrived == [(payload[:40], dscp << 2 | ECT0, EV) for payload in PAYLOADS]
        after = net.egress.counters()
        assert after.trimmed - before.trimmed == 8
        assert net.class_bytes(0x10) - charged < 2000


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("where", ["egress", "ingress"])
def test_duplicates_arrive_twice_and_are_not_duplicated_again(
    net: Net, version: int, where: str
) -> None:
    """Each packet twice, at either side of a switch, whole and counted."""
    port: SwitchPort = getattr(net, where)
    port.configure(LinkSettings(rate_bps=RATE_BPS, duplicate_ppm=MILLION))
    before = port.counters()
    arrived = exchange(net, version, PAYLOADS, expected=16)
    assert sorted(data for data, _, _ in arrived) == sorted(2 * PAYLOADS)
    after = port.counters()
    assert after.duplicated - before.duplicated >= 8
    assert after.packets - before.packets >= 16


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("where", ["egress", "ingress"])
def test_changed_packets_pass_the_receivers_checksum(
    net: Net, version: int, offload: bool, where: str
) -> None:
    """A flipped bit, a new source port and a mark: UDP accepts them, filled in or not."""
    net.offload(on=offload)
    port: SwitchPort = getattr(net, where)
    port.configure(
        LinkSettings(
            rate_bps=RATE_BPS, ecn_min_bytes=1, ecn_max_bytes=1, corrupt_ppm=MILLION,
            rewrite_source_port=True,
        )
    )  # fmt: skip
    arrived = exchange(net, version, PAYLOADS, expected=8)
    assert [(tos & CE, source) for _, tos, source in arrived] == [(CE, EV ^ 0x0155)] * 8
    for (data, _, _), sent in zip(arrived, PAYLOADS, strict=True):
        assert (int.from_bytes(data) ^ int.from_bytes(sent)).bit_count() == 1


def test_classes_of_htb_get_what_is_theirs(net: Net) -> None:
    """Data in 1:20, control in 1:10, whether there is a queue or not."""
    for dscp, minor in ((0, 0x20), (CONTROL, 0x10)):
        before = net.class_bytes(minor)
        assert len(exchange(net, 4, PAYLOADS, dscp=dscp, expected=8)) == 8
        assert net.class_bytes(minor) - before >= 8 * 4096


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("offload", [False, True])
def test_tcp_passes_every_change_that_is_not_for_it(net: Net, version: int, offload: bool) -> None:
    """A connection with segmentation offload or without carries its bytes unharmed."""
    net.offload(on=offload)
    settings = LinkSettings(
        rate_bps=RATE_BPS, trim_bytes=1, ecn_min_bytes=1, ecn_max_bytes=1, corrupt_ppm=MILLION,
        rewrite_source_port=True, duplicate_ppm=100_000, packet_bytes_max=MTU,
    )  # fmt: skip
    for port in (net.egress, net.ingress):
        port.configure(settings)
    data = os.urandom(1 << 19)
    kind = socket.SOCK_STREAM
    with net.socket("b", version, kind) as listener, net.socket("a", version, kind) as client:
        for each in (listener, client):
            each.settimeout(10)
        listener.bind((HOSTS[version][1], 0))
        listener.listen()
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with server, server.makefile("rb") as stream:
            server.settimeout(10)
            writer = threading.Thread(target=client.sendall, args=(data,))
            writer.start()
            received = stream.read(len(data))
            writer.join()
    assert received == data
