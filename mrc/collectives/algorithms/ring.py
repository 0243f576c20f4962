"""Rings: every rank talks to its two neighbours, and every byte passes every link once or twice.

For n ranks the all-reduce sends 2 (n - 1) / n of the buffer a rank, which is the least there is
(Patarasuk and Yuan, 2009), at the price of 2 (n - 1) steps: for what is large.
"""

from __future__ import annotations

from mrc.collectives.plans import Operation, Plan, Receive, Reduce, Send, Step, register


def _reduce_steps(rank: int, ranks: int) -> list[Step]:
    """Steps after which a rank has the sum of the chunk with its own number."""
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    steps: list[Step] = []
    for turn in range(1, ranks):
        steps.append(Send((rank - turn) % ranks, after, reduced=True))
        steps.append(Reduce((rank - turn - 1) % ranks, before))
    return steps


def _gather_steps(rank: int, ranks: int) -> list[Step]:
    """Steps that begin with the chunk of one's own number, and end with all of them."""
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    steps: list[Step] = []
    for turn in range(ranks - 1):
        steps.append(Send((rank - turn) % ranks, after))
        steps.append(Receive((rank - turn - 1) % ranks, before))
    return steps


@register(Operation.ALL_REDUCE, "ring")
def all_reduce(rank: int, ranks: int, root: int) -> Plan:
    """Reduce-scatter, then all-gather. `root` means nothing."""
    del root
    return Plan(ranks, (*_reduce_steps(rank, ranks), *_gather_steps(rank, ranks)))


@register(Operation.REDUCE_SCATTER, "ring")
def reduce_scatter(rank: int, ranks: int, root: int) -> Plan:
    """Every chunk goes once round, and is reduced at every stop. `root` means nothing."""
    del root
    return Plan(ranks, tuple(_reduce_steps(rank, ranks)))


@register(Operation.ALL_GATHER, "ring")
def all_gather(rank: int, ranks: int, root: int) -> Plan:
    """Every chunk goes once round. `root` means nothing."""
    del root
    return Plan(ranks, tuple(_gather_steps(rank, ranks)))
