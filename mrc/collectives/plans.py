"""What each rank does in a collective: a plan of steps over chunks, and the list of known plans.

A plan knows no network. The buffer is cut into chunks; a plan is the sequence of chunks that one
rank sends, receives, and reduces. Whoever carries it out needs three rules only:

* A step uses a chunk as the steps before it in the plan have left it. Steps on different chunks
  wait for nothing of each other, so they overlap.
* What a rank sends to another arrives there in the order of its plan, and is taken in the order of
  the other's plan: the third chunk that 0 sends to 1 is the third that 1 takes from 0.
* `Reduce` combines what arrives with what is there, the operand of the lower rank first. So the
  result does not depend on who arrives when, and two ranks that exchange get the same bits.

To try an algorithm of your own, write a function from (rank, ranks, root) to a `Plan`, `register`
it under a name, prove it with `interpret`, and name it in a call of the communicator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from mrc.errors import ConfigError

V = TypeVar("V")


class Operation(Enum):
    """What a collective does, and with that what its chunks are.

    `ALL_REDUCE`, `REDUCE` and `BROADCAST` cut one buffer into as many even chunks as the plan says.
    In the others there is a chunk a rank, number r being what rank r gives or gets; in `ALL_TO_ALL`
    a chunk a pair, number `source * ranks + destination`. `BARRIER` moves chunks of one byte.
    """

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"


@dataclass(frozen=True, slots=True)
class Send:
    """Send a chunk as it is now; `reduced` says that the peer reduces it, and does not keep it."""

    chunk: int
    peer: int
    reduced: bool = False


@dataclass(frozen=True, slots=True)
class Receive:
    """Replace a chunk by what a peer sends."""

    chunk: int
    peer: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Combine a chunk with what a peer sends."""

    chunk: int
    peer: int


Step = Send | Receive | Reduce


@dataclass(frozen=True, slots=True)
class Plan:
    """What one rank does.

    Attributes:
        chunks: how many chunks the whole has; the same in the plans of all ranks.
        steps: in order, as far as they touch the same chunk or the same peer.
    """

    chunks: int
    steps: tuple[Step, ...]


Builder = Callable[[int, int, int], Plan]
"""(rank, ranks, root): pure, and the same everywhere; operations without a root get 0."""

_BUILDERS: dict[tuple[Operation, str], Builder] = {}


class PlanError(ConfigError):
    """Plans that do not fit together: a chunk that never comes, or one that nobody has."""


def register(operation: Operation, name: str) -> Callable[[Builder], Builder]:
    """Return a decorator that makes an algorithm known by name; the last one of a name counts.

    Args:
        operation: what its plans do.
        name: what a call of the communicator asks for; it must mean the same on all ranks.
    """

    def known(builder: Builder) -> Builder:
        _BUILDERS[operation, name] = builder
        return builder

    return known


def forget(operation: Operation, name: str) -> None:
    """Undo `register`."""
    _BUILDERS.pop((operation, name), None)


def names(operation: Operation) -> list[str]:
    """Return the names of the algorithms for an operation, sorted."""
    return sorted(name for known, name in _BUILDERS if known is operation)


def build(operation: Operation, name: str, rank: int, ranks: int, root: int = 0) -> Plan:
    """Return the plan of one rank.

    Raises:
        ConfigError: no such algorithm; the message lists those there are.
    """
    builder = _BUILDERS.get((operation, name))
    if builder is None:
        raise ConfigError(
            f"no algorithm {name!r} for {operation.value}; there are {', '.join(names(operation))}"
        )
    return builder(rank, ranks, root)


def build_all(operation: Operation, name: str, ranks: int, root: int = 0) -> list[Plan]:
    """Return the plans of all ranks."""
    return [build(operation, name, rank, ranks, root) for rank in range(ranks)]


_UnderWay = dict[tuple[int, int], deque[tuple[V, bool]]]
"""(from, to): the values sent and not yet taken, each with whether it is to be reduced."""


class _Rank(Generic[V]):
    """One rank of the interpreter: its chunks, and where it is in its plan."""

    def __init__(self, plan: Plan, chunks: Mapping[int, V]) -> None:
        self.plan = plan
        self.chunks = dict(chunks)
        self.next_step = 0

    def mine(self, step: Step) -> V:
        if step.chunk not in self.chunks:
            raise PlanError(f"step {self.next_step}, {step}: there is nothing in that chunk yet")
        return self.chunks[step.chunk]


def interpret(
    plans: Sequence[Plan],
    contributions: Sequence[Mapping[int, V]],
    combine: Callable[[V, V], V],
) -> list[dict[int, V]]:
    """Carry out the plans of all ranks in memory, and return what is in their chunks at the end.

    Args:
        plans: one a rank.
        contributions: what is in the chunks of each rank at the beginning; others are empty.
        combine: reduces two values into a new one, that of the lower rank first.

    Raises:
        PlanError: they do not fit together: one waits for ever, sends what it does not have, or
            sends what nobody takes.
    """
    ranks = [_Rank(plan, given) for plan, given in zip(plans, contributions, strict=True)]
    _check_numbers(plans)
    under_way: _UnderWay[V] = {}
    moved = True
    while moved:
        moved = False
        for number, rank in enumerate(ranks):
            while rank.next_step < len(rank.plan.steps):
                if not _take_step(number, rank, under_way, combine):
                    break
                rank.next_step += 1
                moved = True
    _check_end(ranks, under_way)
    return [rank.chunks for rank in ranks]


def _take_step(
    number: int,
    rank: _Rank[V],
    under_way: _UnderWay[V],
    combine: Callable[[V, V], V],
) -> bool:
    """Take the next step of a rank; False when what it waits for has not been sent yet."""
    step = rank.plan.steps[rank.next_step]
    if isinstance(step, Send):
        sent = under_way.setdefault((number, step.peer), deque())
        sent.append((rank.mine(step), step.reduced))
        return True
    arrived = under_way.get((step.peer, number))
    if not arrived:
        return False
    value, reduced = arrived.popleft()
    if reduced is not isinstance(step, Reduce):
        raise PlanError(f"rank {number}: {step}, but rank {step.peer} sends it for something else")
    if isinstance(step, Reduce):
        mine = rank.mine(step)
        value = combine(value, mine) if step.peer < number else combine(mine, value)
    rank.chunks[step.chunk] = value
    return True


def _check_numbers(plans: Sequence[Plan]) -> None:
    for number, plan in enumerate(plans):
        if plan.chunks != plans[0].chunks:
            raise PlanError(f"rank {number} has {plan.chunks} chunks, rank 0 {plans[0].chunks}")
        for step in plan.steps:
            others = 0 <= step.peer < len(plans) and step.peer != number
            if not others or not 0 <= step.chunk < plan.chunks:
                raise PlanError(
                    f"rank {number}: {step} is not about one of {plan.chunks} chunks and another of"
                    f" {len(plans)} ranks"
                )


def _check_end(ranks: Sequence[_Rank[V]], under_way: _UnderWay[V]) -> None:
    stuck = [
        f"rank {number} waits in step {rank.next_step}, {rank.plan.steps[rank.next_step]}"
        for number, rank in enumerate(ranks)
        if rank.next_step < len(rank.plan.steps)
    ]
    stuck += [
        f"rank {to} never takes {len(values)} chunks of rank {source}"
        for (source, to), values in under_way.items()
        if values
    ]
    if stuck:
        raise PlanError("; ".join(stuck))
