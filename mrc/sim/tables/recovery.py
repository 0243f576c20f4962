"""Recovery after a path's death: a switch swallows everything for 100 ms in mid-transfer.

The network: two hosts, planes of 100 Mbit/s, in each of them eight spines with links of the same
rate; every link has 50 us, a round trip is 0.3 ms and 0.7 ms more for the packet itself. Queues
hold 1 MiB, and neither trim nor mark. 50 ms after the first packet a switch forgets what it holds
and swallows what comes, in both directions, while all carriers stay up; 100 ms later it works
again. The message, of 4096-byte packets, is long enough for 250 ms.

| column | what it is |
|---|---|
| planes | of each host |
| paths | EVs in use, all planes together, and a quarter as many spares, one a plane at least |
| dies | the *spine* that the first EV of the first plane takes, or that whole *plane* |
| dead | EVs that lead through it, spares included |
| out_ms | from its death until the first of them is withdrawn |
| gap_ms | longest time without a byte placed, from its death until it heals |
| rate_% | payload placed in the last 80 ms of the outage, of twice that of the 40 ms before |
| blamed | EVs withdrawn, before it healed, that do not lead through it |
| back_ms | from its healing until all EVs that were withdrawn are good again |
| lost | packets found lost |
| spurious | packets found lost that had arrived |
| timeouts | of the retransmission timer |

Bounds: no living EV is blamed; where another path is left, data flows again within 20 ms and no
retransmission timer runs out; one plane of four costs a quarter of the rate, a spine nothing; all
is good again within the largest pause between two probes (250 ms).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from mrc.proto.config import Config
from mrc.proto.events import EvState
from mrc.proto.peer import evs_per_plane
from mrc.sim.addresses import FIRST_EV_PORT
from mrc.sim.link import Link
from mrc.sim.options import LinkOptions, Options, link_names
from mrc.sim.tables.bench import START_NS, Bench, Flow, to_one_receiver
from mrc.sim.tables.layout import Row, ms, percent
from mrc.units import NS_PER_MS, NS_PER_S, NS_PER_US

CASES = tuple(
    (planes, paths, dies)
    for planes, dies in ((1, "spine"), (4, "spine"), (4, "plane"))
    for paths in (1, 4, 16)
)
SPINES = 8
PLANE_BPS = 100_000_000
HOP_NS = 50 * NS_PER_US
DEATH_NS = START_NS + 50 * NS_PER_MS
HEALED_NS = DEATH_NS + 100 * NS_PER_MS
TRANSFER_NS = 250 * NS_PER_MS


def rows() -> Iterator[Row]:
    """Run one transfer for each row."""
    for planes, paths, dies in CASES:
        yield _recover(planes, paths, dies)


def _recover(planes: int, paths: int, dies: str) -> Row:
    config = Config(paths=paths, link_bps=planes * PLANE_BPS)
    bench = Bench(_options(config, planes))
    (flow,) = bench.flows
    bench.watch(flow)
    spine = bench.network.path(0, 0, 1, FIRST_EV_PORT, 0)[1]
    where = spine.name.split()[1] if dies == "spine" else "0"
    links = bench.network.links_of_switch(where)
    bench.timeline.at(DEATH_NS, _kill, links)
    bench.timeline.at(HEALED_NS, _heal, links)
    bench.complete()
    bench.timeline.run_until(bench.timeline.now_ns + 1000 * NS_PER_MS)
    dead = {
        (plane, FIRST_EV_PORT + ev)
        for plane in range(planes)
        for ev in range(evs_per_plane(config, planes))
        if set(links) & set(bench.network.path(0, plane, 1, FIRST_EV_PORT + ev, 0))
    }
    return _row(planes, paths, dies, flow, dead)


def _row(planes: int, paths: int, dies: str, flow: Flow, dead: set[tuple[int, int]]) -> Row:
    out = [
        (at_ns, (event.plane, event.source_port))
        for at_ns, event in flow.ev_changes
        if event.after is EvState.ASSUMED_BAD and at_ns < HEALED_NS
    ]
    back = [
        at_ns
        for at_ns, event in flow.ev_changes
        if event.after is EvState.GOOD and at_ns >= HEALED_NS
    ]
    first_ns = min((at_ns for at_ns, ev in out if ev in dead), default=None)
    moments = [at_ns for at_ns, _ in flow.placed if DEATH_NS <= at_ns < HEALED_NS]
    gap_ns = max(b - a for a, b in pairwise([DEATH_NS, *moments, HEALED_NS]))
    before = _placed(flow, DEATH_NS - 40 * NS_PER_MS, DEATH_NS)
    during = _placed(flow, HEALED_NS - 80 * NS_PER_MS, HEALED_NS)
    found = flow.statistics
    return {
        "planes": f"{planes}",
        "paths": f"{paths}",
        "dies": dies,
        "dead": f"{len(dead)}",
        "out_ms": ms(None if first_ns is None else first_ns - DEATH_NS),
        "gap_ms": ms(gap_ns),
        "rate_%": percent(during, 2 * before),
        "blamed": f"{len({ev for _, ev in out if ev not in dead})}",
        "back_ms": ms(max(back) - HEALED_NS if back else None),
        "lost": f"{found.packets_lost}",
        "spurious": f"{found.packets_spurious}",
        "timeouts": f"{found.timeouts}",
    }


def _placed(flow: Flow, since_ns: int, until_ns: int) -> int:
    """Return how many bytes were placed in [since, until)."""
    early = [placed for at_ns, placed in flow.placed if at_ns < since_ns]
    late = [placed for at_ns, placed in flow.placed if at_ns < until_ns]
    return late[-1] - (early[-1] if early else 0)


def _kill(links: list[Link]) -> None:
    for link in links:
        link.flush()
        link.cut()


def _heal(links: list[Link]) -> None:
    for link in links:
        link.mend()


def _options(config: Config, planes: int) -> Options:
    link = LinkOptions(rate_bps=PLANE_BPS, delay_ns=HOP_NS)
    links = dict.fromkeys(link_names(2, planes, SPINES), link)
    size_bytes = planes * PLANE_BPS // 8 * TRANSFER_NS // NS_PER_S
    return to_one_receiver(config, links, size_bytes=size_bytes, planes=planes, ways=SPINES)
