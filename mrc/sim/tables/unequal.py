"""Completion of a message over paths of unequal length, without any loss.

The network: two hosts, links of 20 us. *planes*: four planes of 200 Mbit/s each, the last link of
each longer by the given delays. *spines*: one plane of 800 Mbit/s, with four spines of 200 Mbit/s
whose links to the receiver are longer by these delays. Queues hold 4 MiB and neither trim nor mark.
One write in packets of 4096 bytes over 16 EVs, which are hashed to the spines.

| column | what it is |
|---|---|
| over | what is unequal |
| base | base round trip of congestion control: *measured*, or *given* as that of the longest path |
| extra_ms | additional one-way delay of each |
| MiB | size of the message |
| done_ms | from posting it until its completion is reported |
| ideal_ms | its bytes at the sum of the rates, and the way there and back on the shortest path |
| Mbit/s | payload, until fifteen sixteenths are placed |
| share_% | of the sum of the rates |
| sent, again | packets, and those of them that are retransmissions |
| spurious_% | packets found lost that had arrived, of those sent |
| timeouts | of the retransmission timer |

Bounds: under 0.5 % spurious and under 0.5 % retransmitted in every row (nothing is lost here), and
no timeout; over 85 % of the sum of the rates for 16 MiB, but where the base round trip is measured
over spines of unequal length. It is measured for each plane, by its shortest path, so that there
the window is too small for the longer ones: such networks want `Config.base_rtt_ns`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from mrc.proto.config import Config
from mrc.sim.options import LinkOptions, Options, link_names
from mrc.sim.tables.bench import START_NS, Bench, to_one_receiver
from mrc.sim.tables.layout import Row, ms, percent
from mrc.units import NS_PER_MS, NS_PER_S, NS_PER_US

EVEN, UNEVEN = (0, 0, 0, 0), (0, 2, 5, 10)
CASES = (
    ("planes", "measured", EVEN),
    ("planes", "measured", UNEVEN),
    ("spines", "measured", EVEN),
    ("spines", "measured", UNEVEN),
    ("spines", "given", UNEVEN),
)
"""What is unequal, where the base round trip comes from, extra delays in ms."""
SIZES_MIB = (4, 16)
BPS = 200_000_000
HOP_NS = 20 * NS_PER_US
MTU = 4096
PACKET_NS = MTU * 8 * NS_PER_S // BPS
"""About what a packet takes on a link."""


def rows() -> Iterator[Row]:
    """Run one transfer for each row."""
    for (over, base, extra_ms), mib in product(CASES, SIZES_MIB):
        size_bytes = mib << 20
        hops = 2 if over == "planes" else 3
        longest_ns = 2 * hops * HOP_NS + max(extra_ms) * NS_PER_MS + hops * PACKET_NS
        given_ns = longest_ns if base == "given" else 0
        bench = Bench(_options(over, extra_ms, given_ns, size_bytes))
        (flow,) = bench.flows
        bench.watch(flow)
        bench.complete()
        sum_bps = len(extra_ms) * BPS
        most = size_bytes - size_bytes // 16
        bps = most * 8e9 / (flow.placed_ns(most) - START_NS)
        ideal_ns = int(size_bytes * 8e9 / sum_bps) + 2 * hops * HOP_NS
        found = flow.statistics
        yield {
            "over": over,
            "base": base,
            "extra_ms": ",".join(map(str, extra_ms)),
            "MiB": f"{mib}",
            "done_ms": ms(flow.done_ns[0] - START_NS),
            "ideal_ms": ms(ideal_ns),
            "Mbit/s": f"{bps / 1e6:.1f}",
            "share_%": percent(bps, sum_bps),
            "sent": f"{found.packets_sent}",
            "again": f"{found.packets_retransmitted}",
            "spurious_%": f"{100 * found.packets_spurious / found.packets_sent:.2f}",
            "timeouts": f"{found.timeouts}",
        }


def _planes(extra_ms: tuple[int, ...]) -> dict[str, LinkOptions]:
    link = LinkOptions(rate_bps=BPS, delay_ns=HOP_NS, queue_bytes=4 << 20)
    links = dict.fromkeys(link_names(2, len(extra_ms), 1), link)
    for plane, extra in enumerate(extra_ms):
        links[f"down b.{plane}"] = replace(link, delay_ns=HOP_NS + extra * NS_PER_MS)
    return links


def _spines(extra_ms: tuple[int, ...]) -> dict[str, LinkOptions]:
    spine = LinkOptions(rate_bps=BPS, delay_ns=HOP_NS, queue_bytes=4 << 20)
    host = replace(spine, rate_bps=len(extra_ms) * BPS)
    links = dict.fromkeys(link_names(2, 1, len(extra_ms)), host)
    for way, extra in enumerate(extra_ms):
        links[f"way 0.{way} a"] = spine
        links[f"way 0.{way} b"] = replace(spine, delay_ns=HOP_NS + extra * NS_PER_MS)
    return links


def _options(over: str, extra_ms: tuple[int, ...], base_rtt_ns: int, size_bytes: int) -> Options:
    count = len(extra_ms)
    planes, ways = (count, 1) if over == "planes" else (1, count)
    links = _planes(extra_ms) if over == "planes" else _spines(extra_ms)
    config = Config(mtu=MTU, link_bps=count * BPS, base_rtt_ns=base_rtt_ns)
    return to_one_receiver(config, links, size_bytes=size_bytes, planes=planes, ways=ways)
