"""Pairs: in step k everybody sends to the rank k behind it, so nobody gets from two at once."""

from __future__ import annotations

from mrc.collectives.plans import Operation, Plan, Receive, Send, Step, register


@register(Operation.ALL_TO_ALL, "pairwise")
def all_to_all(rank: int, ranks: int, root: int) -> Plan:
    """One chunk to each, in n - 1 steps. `root` means nothing."""
    del root
    steps: list[Step] = []
    for distance in range(1, ranks):
        to, source = (rank + distance) % ranks, (rank - distance) % ranks
        steps.append(Send(rank * ranks + to, to))
        steps.append(Receive(source * ranks + rank, source))
    return Plan(ranks * ranks, tuple(steps))
