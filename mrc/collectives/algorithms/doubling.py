"""Exchanges over doubling distances: log2 n steps, for what is small enough that steps count."""

from __future__ import annotations

from mrc.collectives.plans import Operation, Plan, Receive, Reduce, Send, Step, register


@register(Operation.ALL_REDUCE, "doubling")
def all_reduce(rank: int, ranks: int, root: int) -> Plan:
    """Recursive doubling: pairs at distance 1, 2, 4 ... exchange all they have.

    Of n ranks that are no power of two, those beyond the largest one first give what they have to
    a partner, and get the result in the end. `root` means nothing.
    """
    del root
    power = 1 << (ranks.bit_length() - 1)
    beyond = ranks - power
    if rank >= power:
        return Plan(1, (Send(0, rank - power, reduced=True), Receive(0, rank - power)))
    steps: list[Step] = []
    if rank < beyond:
        steps.append(Reduce(0, rank + power))
    distance = 1
    while distance < power:
        peer = rank ^ distance
        steps += [Send(0, peer, reduced=True), Reduce(0, peer)]
        distance *= 2
    if rank < beyond:
        steps.append(Send(0, rank + power))
    return Plan(1, tuple(steps))


@register(Operation.ALL_GATHER, "doubling")
def all_gather(rank: int, ranks: int, root: int) -> Plan:
    """Give all one has to the rank at distance 1, 2, 4 ... (Bruck 1997): any n, log2 n steps.

    `root` means nothing.
    """
    del root
    steps: list[Step] = []
    held = 1
    while held < ranks:
        count = min(held, ranks - held)
        after, before = (rank + held) % ranks, (rank - held) % ranks
        steps += [Send((rank - back) % ranks, after) for back in range(count)]
        steps += [Receive((before - back) % ranks, before) for back in range(count)]
        held += count
    return Plan(ranks, tuple(steps))


@register(Operation.BARRIER, "dissemination")
def barrier(rank: int, ranks: int, root: int) -> Plan:
    """After k steps a rank has heard of 2^k others (Hensgen, Finkel and Manber, 1988).

    All steps are on one chunk, so that each waits for all before it: on chunks of their own a rank
    would pass on what it heard in the last step only, and not wait for those of earlier ones.
    `root` means nothing.
    """
    del root
    steps: list[Step] = []
    distance = 1
    while distance < ranks:
        steps.append(Send(0, (rank + distance) % ranks))
        steps.append(Receive(0, (rank - distance) % ranks))
        distance *= 2
    return Plan(1, tuple(steps))
