"""The hop between two hosts, each in a network namespace of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from netns.kernel import in_namespace

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
MTU = 9000
PORT = 4972
SO_RCVBUFFORCE, SO_TIMESTAMPNS = 33, 35
MARGIN_US = 3000
"""By how much a median may be late on a machine that does other things as well."""
LINKS = (("l0", "r0"), ("l1", "r1"))


@dataclass(frozen=True, slots=True)
class Net:
    """Two hosts and the namespace between them."""

    a: str
    middle: str
    b: str

    def socket(self, host: str, address: str) -> socket.socket:
        """A UDP socket inside a host, with room for a whole test and times of arrival."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = in_namespace(host, lambda: socket.socket(family, socket.SOCK_DGRAM))
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        made.settimeout(0.5)
        made.bind((address, PORT))
        return made


@dataclass(frozen=True, slots=True)
class Crossing:
    """What became of packets that were sent in the order of their numbers."""

    order: list[int]
    """Their numbers as they arrived."""
    took_us: list[float]
    """How long each took, in order of arrival."""


@dataclass(frozen=True, slots=True)
class Running:
    """A hop at work."""

    process: subprocess.Popen[str]

    def finish(self) -> dict[str, dict[str, dict[str, int]]]:
        """End it as a user does and return its counters."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=5)
        assert self.process.returncode == 0
        return cast("dict[str, dict[str, dict[str, int]]]", json.loads(out))


def ip(*words: str) -> None:
    """Run the ip command."""
    subprocess.run(["ip", *words], check=True)


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    """Hosts a and b with two links, both of them through the namespace in the middle."""
    made = Net(*(f"mrctest-hop{os.getpid()}{name}" for name in "amb"))
    try:
        for name in (made.a, made.middle, made.b):
            ip("netns", "add", name)
        for number, devices in enumerate(LINKS):
            for last, host, device in ((1, made.a, devices[0]), (2, made.b, devices[1])):
                ends = (f"h{number}", "netns", host, "mtu", str(MTU), "type", "veth")
                ip("link", "add", *ends, "peer", "name", device, "netns", made.middle)
                ip("-n", made.middle, "link", "set", device, "mtu", str(MTU))
                ip("-n", host, "address", "add", f"10.9.{number}.{last}/24", "dev", f"h{number}")
                inside = ("address", "add", f"fd09:{number}::{last}/64", "nodad")
                ip("-n", host, *inside, "dev", f"h{number}")
                ip("-n", host, "link", "set", f"h{number}", "up")
        yield made
    finally:
        for name in (made.a, made.middle, made.b):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def wait(way: str, **settings: int) -> tuple[str, str]:
    """The option that gives a direction of all links these settings."""
    return "--set", json.dumps({way: settings})


def command(net: Net, *arguments: str) -> list[str]:
    """The command line of a hop in the middle."""
    return ["ip", "netns", "exec", net.middle, sys.executable, "-m", "netns.hop", *arguments]


@contextlib.contextmanager
def hop(net: Net, *options: str, links: int = 1) -> Iterator[Running]:
    """Run a hop in the middle, and have the hosts ask for each other's MAC address."""
    devices = [device for link in LINKS[:links] for device in link]
    with subprocess.Popen(
        command(net, *devices, *options),
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            for number in range(links):
                assert cross(net, 1, link=number).order == [0]
            yield Running(process)
        finally:
            process.kill()


def cross(
    net: Net,
    count: int,
    *,
    gap_s: float = 0.0,
    size: int = 64,
    back: bool = False,
    link: int = 0,
    prefix: str = "10.9.{}.",
) -> Crossing:
    """Send numbered packets from a to b, or back, and receive what arrives."""
    addresses = [prefix.format(link) + last for last in "12"]
    with (
        net.socket(net.a, addresses[0]) as at_a,
        net.socket(net.b, addresses[1]) as at_b,
    ):
        source, sink = (at_b, at_a) if back else (at_a, at_b)
        to = (addresses[0] if back else addresses[1], PORT)
        sent_ns = []
        start = time.monotonic()
        for number in range(count):
            while time.monotonic() < start + number * gap_s:
                time.sleep(gap_s / 4)
            sent_ns.append(time.time_ns())
            source.sendto(struct.pack("I", number).ljust(size, b"x"), to)
        return receive(sink, sent_ns, size)


def receive(sink: socket.socket, sent_ns: list[int], size: int) -> Crossing:
    """Receive until nothing more comes."""
    order: list[int] = []
    took_us = []
    with contextlib.suppress(TimeoutError):
        while len(order) < len(sent_ns):
            data, extra, _, _ = sink.recvmsg(size + 1, 64)
            assert data[4:] == b"x" * (size - 4)
            seconds, nanoseconds = struct.unpack("qq", extra[0][2])
            order.append(struct.unpack_from("I", data)[0])
            took_us.append((seconds * 10**9 + nanoseconds - sent_ns[order[-1]]) / 1e3)
    return Crossing(order, took_us)


def test_each_direction_has_its_delay(net: Net) -> None:
    """No packet is early, most are little late, and none overtakes."""
    with hop(net, *wait("ab", delay_us=3000), *wait("ba", delay_us=9000)) as running:
        there = cross(net, 100, gap_s=0.001)
        back = cross(net, 100, gap_s=0.001, back=True)
        counters = running.finish()["l0:r0"]
    for crossing, delay_us in ((there, 3000), (back, 9000)):
        assert crossing.order == list(range(100))
        assert min(crossing.took_us) >= delay_us
        assert statistics.median(crossing.took_us) < delay_us + MARGIN_US
    for way in ("ab", "ba"):
        assert counters[way]["forwarded"] >= 100
        assert counters[way]["dropped"] == counters[way]["refused"] == 0
        assert counters[way]["reordered"] == 0


def test_jitter_keeps_the_order(net: Net) -> None:
    """Delays differ by up to the jitter, to both sides, and packets stay in their order."""
    with hop(net, *wait("ab", delay_us=5000, jitter_us=4000)):
        crossing = cross(net, 200, gap_s=0.001)
    assert crossing.order == list(range(200))
    assert 1000 <= min(crossing.took_us) < 5000
    assert max(crossing.took_us) > 6000


def test_reordered_packets_overtake(net: Net) -> None:
    """Some packets do not wait; the others are as late as ever, and keep their order."""
    with hop(net, *wait("ab", delay_us=20000, reorder_ppm=100000)) as running:
        crossing = cross(net, 300, gap_s=0.0005)
        reordered = running.finish()["l0:r0"]["ab"]["reordered"]
    assert sorted(crossing.order) == list(range(300))
    pairs = zip(crossing.order, crossing.took_us, strict=True)
    waited = [number for number, took_us in pairs if took_us >= 20_000]
    assert waited == sorted(waited)
    assert 5 <= 300 - len(waited) <= 100
    assert abs(reordered - (300 - len(waited))) <= 5  # ARP and the like draw, too


def test_nothing_is_lost_at_a_steady_rate(net: Net) -> None:
    """2,000 packets of 4 KiB in a second all arrive, through a queue of twenty milliseconds."""
    with hop(net, *wait("ab", delay_us=20000)):
        crossing = cross(net, 2000, gap_s=0.0005, size=4096)
    assert crossing.order == list(range(2000))
    assert min(crossing.took_us) >= 20_000


def test_frames_cross_as_they_are(net: Net) -> None:
    """ARP, IPv6 with its neighbor discovery, and the largest frame pass; an address stays."""
    with hop(net):
        for host in (net.a, net.b):
            ip("-n", host, "neighbour", "flush", "all")
        assert cross(net, 3, gap_s=0.01, size=MTU - 28).order == [0, 1, 2]
        assert cross(net, 3, gap_s=0.01, size=MTU - 48, prefix="fd09:{}::").order == [0, 1, 2]
        show = ["ip", "-n", net.a, "-j", "neighbour", "show", "10.9.0.2"]
        neighbor = json.loads(subprocess.check_output(show))[0]["lladdr"]
        show = ["ip", "-n", net.b, "-j", "link", "show", "h0"]
        assert json.loads(subprocess.check_output(show))[0]["address"] == neighbor
    show = ["ip", "-n", net.middle, "-j", "address", "show"]
    assert not any(device.get("addr_info") for device in json.loads(subprocess.check_output(show)))


def test_one_process_serves_several_links(net: Net) -> None:
    """`--set` gives one link its own delay, and each link has its own counters."""
    own = json.dumps({"link": "l1:r1", "ab": {"delay_us": 9000}})
    with hop(net, *wait("ab", delay_us=1000), "--set", own, links=2) as running:
        crossings = [cross(net, 20, gap_s=0.001, link=link) for link in (0, 1)]
        counters = running.finish()
    assert [len(crossing.order) for crossing in crossings] == [20, 20]
    assert 1000 <= statistics.median(crossings[0].took_us) < 9000
    assert min(crossings[1].took_us) >= 9000
    assert counters.keys() == {"l0:r0", "l1:r1"}


def test_what_the_queue_does_not_hold_is_dropped(net: Net) -> None:
    """With room for four, a burst of thirty loses the others, and they are counted."""
    with hop(net, *wait("ab", delay_us=50000), "--limit", "4") as running:
        order = cross(net, 30).order
        assert order == list(range(len(order)))
        assert 1 <= len(order) <= 4  # what the hosts' kernels say to each other needs room, too
        assert running.finish()["l0:r0"]["ab"]["dropped"] >= 26


def test_a_device_that_goes_down_and_comes_back(net: Net) -> None:
    """Packets pass again, and meanwhile the hop does not spin."""
    with hop(net) as running:
        cpu_clock = (~running.process.pid << 3) | 2
        ip("-n", net.middle, "link", "set", "r0", "down")
        before = time.clock_gettime(cpu_clock)
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(0.2)
        assert time.clock_gettime(cpu_clock) - before < 0.05
        ip("-n", net.middle, "link", "set", "r0", "up")
        assert cross(net, 5, gap_s=0.01).order == list(range(5))


def test_it_dies_with_its_parent(net: Net) -> None:
    """When asked to; it says its last words all the same."""
    line = " ".join(command(net, *LINKS[0], "--die-with-parent"))
    # exec in the background, so that the shell itself is the parent.
    with subprocess.Popen(
        ["sh", "-c", f"{line} & wait"], cwd=ROOT, text=True, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdout
        assert shell.stdout.readline() == "ready\n"
        shell.kill()
        out, _ = shell.communicate(timeout=5)
    assert "l0:r0" in json.loads(out)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["l0"], "l0"),
        (["l0", "nowhere"], "nowhere"),
        (["l0", "l0"], "l0"),
        (["l0", "r0", *wait("ab", delay_us=-5)], "-5"),
        (["l0", "r0", *wait("ab", jitter_us=70)], "70"),
        (["l0", "r0", *wait("ba", reorder_ppm=1_000_001)], "1000001"),
        (["l0", "r0", *wait("ab", speed=1)], "speed"),
        (["l0", "r0", "--set", '{"ab": {"delay_us": "soon"}}'], "soon"),
        (["l0", "r0", "--set", '{"link": [7]}'], "[7]"),
        (["l0", "r0", "--set", "slower"], "slower"),
        (["l0", "r0", "--limit", "0"], "--limit is 0"),
        (["l0", "r0", "--set", '{"link": "x:y"}'], "x:y"),
    ],
)
def test_a_bad_argument_is_named(net: Net, arguments: list[str], named: str) -> None:
    """The command ends with 2 and says which value was wrong."""
    done = subprocess.run(
        command(net, *arguments), cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert named in done.stderr.splitlines()[-1]
