"""Everybody straight to whom it concerns: one step, n - 1 peers."""

from __future__ import annotations

from mrc.collectives.plans import Operation, Plan, Receive, Reduce, Send, Step, register


def _others(rank: int, ranks: int) -> list[int]:
    """Return all others, beginning behind oneself: not all of them turn to rank 0 first."""
    return [(rank + distance) % ranks for distance in range(1, ranks)]


@register(Operation.GATHER, "direct")
def gather(rank: int, ranks: int, root: int) -> Plan:
    """All send theirs to the root."""
    if rank != root:
        return Plan(ranks, (Send(rank, root),))
    return Plan(ranks, tuple(Receive(other, other) for other in _others(rank, ranks)))


@register(Operation.SCATTER, "direct")
def scatter(rank: int, ranks: int, root: int) -> Plan:
    """The root sends everybody theirs."""
    if rank != root:
        return Plan(ranks, (Receive(rank, root),))
    return Plan(ranks, tuple(Send(other, other) for other in _others(rank, ranks)))


@register(Operation.REDUCE_SCATTER, "direct")
def reduce_scatter(rank: int, ranks: int, root: int) -> Plan:
    """Everybody sends each the chunk that it has to reduce. `root` means nothing."""
    del root
    steps: list[Step] = [Send(other, other, reduced=True) for other in _others(rank, ranks)]
    steps += [Reduce(rank, other) for other in reversed(_others(rank, ranks))]
    return Plan(ranks, tuple(steps))
