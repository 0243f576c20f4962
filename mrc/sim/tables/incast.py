"""Incast: many hosts write to one at the same moment, and its switch trims.

The network: links of 1 Gbit/s and 300 us between every host and one switch, a round trip of 1.27 ms
with the packet itself, 158 kB in flight. The queue towards the receiver marks above half of that,
trims above one and a half (told as trimmed on the last hop), and what is trimmed overtakes data.
Packets of 4096 bytes over 16 EVs, congestion control with a given base round trip.

| column | what it is |
|---|---|
| senders | hosts that write |
| KiB | what each of them writes |
| ideal_ms | all bytes with their headers at the rate of the link, and one idle round trip |
| first_ms | until the first of them is told that its write is complete |
| last_ms | until the last of them is |
| line_% | ideal to last |
| jain | Jain's index of the rates, bytes by time until completion |
| sent, again | packets of all senders, and those of them that are retransmissions |
| trims, drops | packets that the queue cut or dropped |
| queue_p50, queue_p99 | KiB that wait for the receiver's link, every 20 us until the last is done |
| spurious | packets found lost that had arrived |
| timeouts | of the retransmission timer |

Bounds (MRC 1.0 leaves them open; a trimmed packet is told at once, so nobody needs a timer): no
drops, no timeouts, nothing spurious, every retransmission for a trim, Jain's index above 0.9, and
more than 90 % of the line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mrc.proto.config import Config
from mrc.sim.addresses import HOST_NAMES
from mrc.sim.link import OVERHEAD_BYTES
from mrc.sim.options import LinkOptions, Options, link_names
from mrc.sim.tables.bench import START_NS, Bench, to_one_receiver
from mrc.sim.tables.layout import Row, jain, ms, percent
from mrc.units import NS_PER_US
from mrc.wire.writes import HEADER_BYTES

INCASTS = ((8, 64), (16, 64), (32, 64), (64, 16), (64, 64), (64, 256))
"""Senders and KiB of each."""
BPS = 1_000_000_000
HOP_NS = 300 * NS_PER_US
MTU = 4096
PACKET_NS = (MTU + HEADER_BYTES + OVERHEAD_BYTES) * 8
RTT_NS = 4 * HOP_NS + 2 * PACKET_NS
BDP_BYTES = RTT_NS // 8
SAMPLE_NS = 20 * NS_PER_US


def rows() -> Iterator[Row]:
    """Run one incast for each row."""
    for senders, kib in INCASTS:
        bench = Bench(_options(senders, kib << 10))
        queue = bench.network.links[f"down {HOST_NAMES[senders]}.0"]
        waiting: list[int] = []
        bench.every(SAMPLE_NS, lambda: waiting.append(queue.backlog_bytes))  # noqa: B023  # used up before the next row
        bench.complete()
        took_ns = [flow.done_ns[0] - START_NS for flow in bench.flows]
        packets = senders * (kib << 10) // MTU
        ideal_ns = packets * PACKET_NS + RTT_NS
        occupied = sorted(waiting[: max(took_ns) // SAMPLE_NS])
        found = [flow.statistics for flow in bench.flows]
        yield {
            "senders": f"{senders}",
            "KiB": f"{kib}",
            "ideal_ms": ms(ideal_ns),
            "first_ms": ms(min(took_ns)),
            "last_ms": ms(max(took_ns)),
            "line_%": percent(ideal_ns, max(took_ns)),
            "jain": f"{jain([(kib << 40) // each for each in took_ns]):.3f}",
            "sent": f"{sum(each.packets_sent for each in found)}",
            "again": f"{sum(each.packets_retransmitted for each in found)}",
            "trims": f"{bench.network.done_to['trim']}",
            "drops": f"{bench.network.lost['queue full']}",
            "queue_p50": f"{occupied[len(occupied) // 2] >> 10}",
            "queue_p99": f"{occupied[len(occupied) * 99 // 100] >> 10}",
            "spurious": f"{sum(each.packets_spurious for each in found)}",
            "timeouts": f"{sum(each.timeouts for each in found)}",
        }


def _options(senders: int, size_bytes: int) -> Options:
    link = LinkOptions(rate_bps=BPS, delay_ns=HOP_NS, queue_bytes=1 << 20)
    links = dict.fromkeys(link_names(senders + 1, 1, 1), link)
    links[f"down {HOST_NAMES[senders]}.0"] = replace(
        link, trim_bytes=3 * BDP_BYTES // 2, mark_bytes=BDP_BYTES // 2, last_hop=True
    )
    config = Config(link_bps=BPS, base_rtt_ns=RTT_NS, trimming=True)
    return to_one_receiver(config, links, size_bytes=size_bytes, senders=senders)
