"""Lockstep: ranks in a ring reduce together, while packets are lost and ports die.

The network: a host a rank, four planes of 1 Gbit/s, 5 us from a host to the switch and from there
to another; base round trip measured, nothing trims. A chunk of 4 KiB for each rank goes round the
ring twice, four packets a step: so small that latency is all, and one late packet holds everybody
up. A port that dies swallows both directions for 200 ms, longer than a run. Several seeds a row.

| column | what it is |
|---|---|
| ranks | hosts in the ring |
| loss_% | of datagrams on their way from host to host, control packets as well |
| dead | ports that die, each another one, at times spread over the shortest run there can be |
| p50_ms, p99_ms, max_ms | until the last rank has all sums, over the seeds |
| ratio | the median to that without loss and death |
| step50_us, step99_us, stepmax_us | of one step of one rank, over ranks, steps and seeds |
| packets, again | sent by all, and those of them sent again |
| timeouts | of the retransmission timer |

Of fewer than a hundred seeds p99_ms is max_ms, the longest run. Steps are many: their p99 is one.

A larger ring takes its time: 64 ranks ten seconds a run, 256 some minutes.

    python -m mrc.sim.tables all_reduce --ranks 64 --seeds 3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mrc.sim.lockstep import AllReduce, Result, Scenario
from mrc.sim.tables.layout import Row, ms

RANKS = 16
SEEDS = 5
CASES = ((0.0, 0), (0.001, 0), (0.01, 0), (0.0, 1), (0.0, 4), (0.001, 2))
"""Loss, and ports that die."""


def rows(ranks: int = RANKS, seeds: int = SEEDS) -> Iterator[Row]:
    """Run every case with every seed; a row for each case."""
    without_ns = 0
    for loss, deaths in CASES:
        results = [
            AllReduce(Scenario(ranks, seed, loss, deaths)).run() for seed in range(1, seeds + 1)
        ]
        without_ns = without_ns or _at(_took_ns(results), 50)
        case = {"ranks": f"{ranks}", "loss_%": f"{100 * loss:g}", "dead": f"{deaths}"}
        yield case | _row(results, without_ns)


def _took_ns(results: Sequence[Result]) -> list[int]:
    return sorted(each.took_ns for each in results)


def _row(results: Sequence[Result], without_ns: int) -> Row:
    took_ns = _took_ns(results)
    steps_ns = sorted(step for each in results for step in each.steps_ns)
    return {
        "p50_ms": ms(_at(took_ns, 50)),
        "p99_ms": ms(_at(took_ns, 99)),
        "max_ms": ms(took_ns[-1]),
        "ratio": f"{_at(took_ns, 50) / without_ns:.2f}",
        "step50_us": f"{_at(steps_ns, 50) // 1000}",
        "step99_us": f"{_at(steps_ns, 99) // 1000}",
        "stepmax_us": f"{steps_ns[-1] // 1000}",
        "packets": f"{sum(each.packets for each in results)}",
        "again": f"{sum(each.again for each in results)}",
        "timeouts": f"{sum(each.timeouts for each in results)}",
    }


def _at(ordered: Sequence[int], percent: int) -> int:
    """Return a percentile, the next value above it."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
