"""Chains: each rank passes on to the next what it gets, in pieces, so that all links are busy.

n - 1 hops, but every rank sends the buffer once only, where the root of a tree sends it log2 n
times: for what is large.
"""

from __future__ import annotations

from mrc.collectives.plans import Operation, Plan, Receive, Reduce, Send, Step, register


@register(Operation.BROADCAST, "chain")
def broadcast(rank: int, ranks: int, root: int) -> Plan:
    """From the root along the ranks behind it."""
    place = (rank - root) % ranks
    steps: list[Step] = []
    if place:
        steps.append(Receive(0, (rank - 1) % ranks))
    if place < ranks - 1:
        steps.append(Send(0, (rank + 1) % ranks))
    return Plan(1, tuple(steps))


@register(Operation.REDUCE, "chain")
def reduce(rank: int, ranks: int, root: int) -> Plan:
    """From the rank before the root, backwards along all of them, to the root."""
    place = (rank - root) % ranks
    steps: list[Step] = []
    if place < ranks - 1:
        steps.append(Reduce(0, (rank + 1) % ranks))
    if place:
        steps.append(Send(0, (rank - 1) % ranks, reduced=True))
    return Plan(1, tuple(steps))
