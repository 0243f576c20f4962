"""mrc-perf with an algorithm that is wrong: two ranks swap what they should add up."""

from __future__ import annotations

from mrc.cli.entry import perf
from mrc.collectives import Operation, Plan, Receive, Send, register


@register(Operation.ALL_REDUCE, "swap")
def swap(rank: int, ranks: int, root: int) -> Plan:
    """Give the other rank what one has, and take what it has instead of adding it."""
    del ranks, root
    return Plan(1, (Send(0, 1 - rank), Receive(0, 1 - rank)))


if __name__ == "__main__":
    perf()
