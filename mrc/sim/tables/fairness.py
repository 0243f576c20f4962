"""Convergence and fairness of NSCC: many flows, each from a host of its own, into one link.

The network: links of 1 Gbit/s and 300 us between every host and one switch, a round trip of 1.27 ms
with the packet itself, 158 kB in flight. The queue towards the receiver marks (ECN) above half of
that; it trims above one and a half, or drops above five. All flows begin at the same moment, write
packets of 4096 bytes over 16 EVs for 240 ms, and none comes to its end.

| column | what it is |
|---|---|
| flows | how many |
| base | base round trip: *given* as the network's, or *measured* by each flow |
| full | what a full queue does |
| fair_ms | until Jain's index is 0.9 or more in every 20 ms that follow; a dash: not to the end |
| jain | Jain's index of the bytes placed in the second half |
| least_% | what the slowest flow got in the second half, of its fair share |
| line_% | payload of all flows in the second half, of the rate of the link (98.4 at most) |
| queue_p50, queue_p99 | KiB that wait for the link, every 50 us in the second half |
| trims, drops | packets that the queue cut or dropped, all the time |
| again | retransmissions |
| spurious | packets found lost that had arrived |
| timeouts | of the retransmission timer |

Bounds: the link is never less than 95 % used; nothing is spurious and no timer runs out where
queues trim; with a given base round trip Jain's index is 0.9 or more. A flow that measures its base
round trip in a queue that is never empty takes the queue for the network, so that those who came
first or last get more: there the index is only written down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from mrc.proto.config import Config
from mrc.sim.addresses import HOST_NAMES
from mrc.sim.link import OVERHEAD_BYTES
from mrc.sim.options import LinkOptions, Options, link_names
from mrc.sim.tables.bench import START_NS, Bench, to_one_receiver
from mrc.sim.tables.layout import Row, jain, ms, percent
from mrc.units import NS_PER_MS, NS_PER_S, NS_PER_US
from mrc.wire.writes import HEADER_BYTES

MANY, FEW = (2, 4, 8, 16, 32), (2, 8, 32)
CASES = (("given", "trims", MANY), ("given", "drops", MANY), ("measured", "trims", FEW))
"""Where the base round trip comes from, what a full queue does, and how many flows there are."""
BPS = 1_000_000_000
HOP_NS = 300 * NS_PER_US
MTU = 4096
PACKET_NS = (MTU + HEADER_BYTES + OVERHEAD_BYTES) * 8
RTT_NS = 4 * HOP_NS + 2 * PACKET_NS
BDP_BYTES = RTT_NS // 8
WINDOW_NS = 20 * NS_PER_MS
WINDOWS = 12
SAMPLE_NS = 50 * NS_PER_US
FAIR = 0.9


def rows() -> Iterator[Row]:
    """Let flows compete for each row."""
    for base, full, numbers in CASES:
        for flows in numbers:
            yield _compete(flows, base, full)


def _compete(flows: int, base: str, full: str) -> Row:
    bench = Bench(_options(flows, base, full))
    queue = bench.network.links[f"down {HOST_NAMES[flows]}.0"]
    waiting: list[int] = []
    placed: list[list[int]] = []
    half_ns = START_NS + WINDOWS // 2 * WINDOW_NS
    bench.every(WINDOW_NS, lambda: placed.append([each.placed_bytes for each in bench.flows]))
    bench.every(SAMPLE_NS, lambda: waiting.append(queue.backlog_bytes), since_ns=half_ns)
    bench.timeline.run_until(START_NS + WINDOWS * WINDOW_NS)
    second = _difference(placed[WINDOWS // 2], placed[WINDOWS])
    waiting.sort()
    found = [flow.statistics for flow in bench.flows]
    line_bytes = BPS // 8 * (WINDOWS - WINDOWS // 2) * WINDOW_NS // NS_PER_S
    return {
        "flows": f"{flows}",
        "base": base,
        "full": full,
        "fair_ms": ms(_fair_after_ns(placed)),
        "jain": f"{jain(second):.3f}",
        "least_%": percent(flows * min(second), sum(second)),
        "line_%": percent(sum(second), line_bytes),
        "queue_p50": f"{waiting[len(waiting) // 2] >> 10}",
        "queue_p99": f"{waiting[len(waiting) * 99 // 100] >> 10}",
        "trims": f"{bench.network.done_to['trim']}",
        "drops": f"{bench.network.lost['queue full']}",
        "again": f"{sum(each.packets_retransmitted for each in found)}",
        "spurious": f"{sum(each.packets_spurious for each in found)}",
        "timeouts": f"{sum(each.timeouts for each in found)}",
    }


def _difference(before: list[int], after: list[int]) -> list[int]:
    return [late - early for early, late in zip(before, after, strict=True)]


def _fair_after_ns(placed: list[list[int]]) -> int | None:
    """Return the beginning of the first stretch of time from which on all are fair."""
    fair = [jain(_difference(before, after)) >= FAIR for before, after in pairwise(placed)]
    if not fair[-1]:
        return None
    unfair = max((at + 1 for at, each in enumerate(fair) if not each), default=0)
    return unfair * WINDOW_NS


def _options(flows: int, base: str, full: str) -> Options:
    link = LinkOptions(rate_bps=BPS, delay_ns=HOP_NS, queue_bytes=4 << 20)
    links = dict.fromkeys(link_names(flows + 1, 1, 1), link)
    trims = full == "trims"
    links[f"down {HOST_NAMES[flows]}.0"] = replace(
        link,
        queue_bytes=5 * BDP_BYTES,
        trim_bytes=3 * BDP_BYTES // 2 if trims else 0,
        mark_bytes=BDP_BYTES // 2,
    )
    config = Config(link_bps=BPS, base_rtt_ns=RTT_NS if base == "given" else 0, trimming=trims)
    # Four times its fair share, and no more than the link carries, is more than any flow gets.
    line_bytes = BPS // 8 * WINDOWS * WINDOW_NS // NS_PER_S
    size_bytes = min(4, flows) * line_bytes // flows
    return to_one_receiver(config, links, size_bytes=size_bytes, senders=flows)
