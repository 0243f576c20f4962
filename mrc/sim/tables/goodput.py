"""Goodput for paths x loss x full queues that trim or drop.

The network: two hosts with links of 1 Gbit/s and 200 us, one plane, four spines between them whose
links carry 250 Mbit/s each at 200 us: a round trip of 1.2 ms, 37.5 kB in flight per spine. A
spine's queue marks (ECN) above half of that; it trims above 1 and a half of it, or drops above
five. On the links from the spines to the receiver every datagram is lost with the given
probability. The sender writes 4 MiB in packets of 4096 bytes.

| column | what it is |
|---|---|
| paths | EVs in use, each hashed to one of the spines; there are no spares |
| loss_% | of the datagrams on the links of the spines |
| full | what a full queue does |
| rate | Mbit/s of the spines which the EVs reach, together |
| Mbit/s | payload, until fifteen sixteenths are placed: with the tail luck has too much to say |
| share_% | of the rate |
| sent, again | packets, and those of them that are retransmissions |
| trims, drops | packets that queues cut or dropped |
| spurious | packets found lost that had arrived |
| timeouts | of the retransmission timer |

Bounds: no row has a timeout or a spurious loss; without loss, retransmissions are as many as trims
and drops; one clean path carries more than 90 % of its rate, and more paths carry more in all,
whatever is lost; 1 % of loss costs less than a tenth, 5 % less than a quarter. Several spines are
not filled: a run of packets (`Config.spray_run`) goes to one spine while another runs empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from mrc.proto.config import Config
from mrc.sim.addresses import FIRST_EV_PORT
from mrc.sim.options import LinkOptions, Options, link_names
from mrc.sim.tables.bench import START_NS, Bench, to_one_receiver
from mrc.sim.tables.layout import Row, percent
from mrc.units import NS_PER_US

PATHS = (1, 4, 16)
LOSSES = (0.0, 0.01, 0.05)
SPINES = 4
SPINE_BPS = 250_000_000
HOP_NS = 200 * NS_PER_US
SIZE_BYTES = 4 << 20
SPINE_BDP_BYTES = SPINE_BPS // 8 * 6 * HOP_NS // 1_000_000_000
MTU = 4096


def rows() -> Iterator[Row]:
    """Run one transfer for each row."""
    for paths, trims, loss in product(PATHS, (True, False), LOSSES):
        bench = Bench(_options(paths, loss, trims=trims))
        flow = bench.flows[0]
        bench.watch(flow)
        bench.complete()
        most = SIZE_BYTES - SIZE_BYTES // 16
        bps = most * 8e9 / (flow.placed_ns(most) - START_NS)
        reached = {
            bench.network.path(0, 0, 1, FIRST_EV_PORT + ev, 0)[1].name for ev in range(paths)
        }
        rate_bps = len(reached) * SPINE_BPS
        found = flow.statistics
        yield {
            "paths": f"{paths}",
            "loss_%": f"{100 * loss:.0f}",
            "full": "trims" if trims else "drops",
            "rate": f"{rate_bps / 1e6:.0f}",
            "Mbit/s": f"{bps / 1e6:.1f}",
            "share_%": percent(bps, rate_bps),
            "sent": f"{found.packets_sent}",
            "again": f"{found.packets_retransmitted}",
            "trims": f"{bench.network.done_to['trim']}",
            "drops": f"{bench.network.lost['queue full']}",
            "spurious": f"{found.packets_spurious}",
            "timeouts": f"{found.timeouts}",
        }


def _options(paths: int, loss: float, *, trims: bool) -> Options:
    host = LinkOptions(rate_bps=SPINES * SPINE_BPS, delay_ns=HOP_NS, queue_bytes=1 << 20)
    spine = LinkOptions(
        rate_bps=SPINE_BPS,
        delay_ns=HOP_NS,
        queue_bytes=5 * SPINE_BDP_BYTES,
        trim_bytes=3 * SPINE_BDP_BYTES // 2 if trims else 0,
        mark_bytes=SPINE_BDP_BYTES // 2,
    )
    links = {name: spine if name.startswith("way") else host for name in link_names(2, 1, SPINES)}
    for way in range(SPINES):
        links[f"way 0.{way} b"] = replace(spine, loss=loss)
    config = Config(
        paths=paths, backup_paths=0, mtu=MTU, link_bps=SPINES * SPINE_BPS, trimming=trims
    )
    return to_one_receiver(config, links, size_bytes=SIZE_BYTES, ways=SPINES)
