"""Binomial trees: log2 n steps from the root to everybody, or from everybody to the root."""

from __future__ import annotations

from mrc.collectives.plans import Operation, Plan, Receive, Reduce, Send, Step, register


def _children(place: int, ranks: int) -> list[int]:
    """Return the places below a place, the one with the largest subtree first; the root is 0."""
    distance = 1
    while distance < ranks and not place & distance:
        distance *= 2
    below = []
    while distance > 1:
        distance //= 2
        if place + distance < ranks:
            below.append(place + distance)
    return below


def _parent(place: int) -> int:
    """Return the place above a place other than 0: without its lowest bit."""
    return place & (place - 1)


@register(Operation.BROADCAST, "binomial")
def broadcast(rank: int, ranks: int, root: int) -> Plan:
    """Whoever has it gives it to one who has not, in every step."""
    place = (rank - root) % ranks
    steps: list[Step] = []
    if place:
        steps.append(Receive(0, (_parent(place) + root) % ranks))
    steps += [Send(0, (child + root) % ranks) for child in _children(place, ranks)]
    return Plan(1, tuple(steps))


@register(Operation.REDUCE, "binomial")
def reduce(rank: int, ranks: int, root: int) -> Plan:
    """The broadcast backwards: small subtrees are reduced first."""
    place = (rank - root) % ranks
    below = reversed(_children(place, ranks))
    steps: list[Step] = [Reduce(0, (child + root) % ranks) for child in below]
    if place:
        steps.append(Send(0, (_parent(place) + root) % ranks, reduced=True))
    return Plan(1, tuple(steps))
