"""Plans do what their operation says for any number of ranks; those that do not are refused."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.collectives import plans
from mrc.collectives.choose import TABLE, choose
from mrc.collectives.plans import (
    Operation,
    Plan,
    PlanError,
    Receive,
    Reduce,
    Send,
    build_all,
    interpret,
    register,
)
from mrc.errors import ConfigError

RANKS_MAX = 16
ALL = [
    pytest.param(operation, name, id=f"{operation.value}-{name}")
    for operation in Operation
    for name in plans.names(operation)
]

Contributions = frozenset[int]
"""A value as the set of ranks whose contributions it holds: none may be counted twice."""


def combine(lower: Contributions, higher: Contributions) -> Contributions:
    """Reduce two values."""
    assert not lower & higher, "a contribution is counted twice"
    return lower | higher


def brought(
    operation: Operation, rank: int, ranks: int, root: int, chunks: int
) -> dict[int, object]:
    """Return what a rank has at the beginning: for reductions who it is, else what it is."""
    everything = range(chunks)
    own = f"of {rank}"
    match operation:
        case Operation.ALL_REDUCE | Operation.REDUCE | Operation.REDUCE_SCATTER:
            return {chunk: frozenset({rank}) for chunk in everything}
        case Operation.BROADCAST | Operation.SCATTER:
            return {chunk: f"{own}, {chunk}" for chunk in everything} if rank == root else {}
        case Operation.ALL_GATHER | Operation.GATHER:
            return {rank: own}
        case Operation.ALL_TO_ALL:
            return {rank * ranks + to: f"{own} for {to}" for to in range(ranks) if to != rank}
        case Operation.BARRIER:
            return {0: own}


def wanted(
    operation: Operation, rank: int, ranks: int, root: int, chunks: int
) -> dict[int, object]:
    """Return what a rank must have in the end, as far as it matters."""
    everything, everybody = range(chunks), frozenset(range(ranks))
    others = [other for other in range(ranks) if other != rank]
    match operation:
        case Operation.ALL_REDUCE:
            return dict.fromkeys(everything, everybody)
        case Operation.REDUCE:
            return dict.fromkeys(everything, everybody) if rank == root else {}
        case Operation.REDUCE_SCATTER:
            return {rank: everybody}
        case Operation.BROADCAST:
            return {chunk: f"of {root}, {chunk}" for chunk in everything}
        case Operation.SCATTER:
            return {rank: f"of {root}, {rank}"}
        case Operation.ALL_GATHER:
            return {other: f"of {other}" for other in range(ranks)}
        case Operation.GATHER:
            return {other: f"of {other}" for other in range(ranks)} if rank == root else {}
        case Operation.ALL_TO_ALL:
            return {other * ranks + rank: f"of {other} for {rank}" for other in others}
        case Operation.BARRIER:
            return {}


@pytest.mark.parametrize(("operation", "name"), ALL)
def test_every_rank_ends_with_what_it_should(operation: Operation, name: str) -> None:
    """For 1 to 16 ranks and every root."""
    for ranks in range(1, RANKS_MAX + 1):
        for root in range(ranks):
            made = build_all(operation, name, ranks, root)
            chunks = made[0].chunks
            begin = [brought(operation, rank, ranks, root, chunks) for rank in range(ranks)]
            end = interpret(made, begin, combine)  # type: ignore[arg-type]
            for rank in range(ranks):
                should = wanted(operation, rank, ranks, root, chunks)
                assert {chunk: end[rank][chunk] for chunk in should} == should


@pytest.mark.parametrize("ranks", range(2, RANKS_MAX + 1))
def test_a_barrier_hears_of_everybody(ranks: int) -> None:
    """Before it sends, a rank waits for what it received into the same chunk, and nothing else."""
    made = build_all(Operation.BARRIER, "dissemination", ranks)
    heard = [{chunk: {rank} for chunk in range(made[0].chunks)} for rank in range(ranks)]
    for turn in range(0, len(made[0].steps), 2):
        before = deepcopy(heard)
        for rank, plan in enumerate(made):
            taken = plan.steps[turn + 1]
            sent = made[taken.peer].steps[turn]
            assert (type(sent), sent.peer, type(taken)) == (Send, rank, Receive)
            heard[rank][taken.chunk] |= before[taken.peer][sent.chunk]
    for chunks in heard:
        assert len(set().union(*chunks.values())) == ranks


@pytest.mark.parametrize("name", ["ring", "doubling"])
@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 11])
def test_all_ranks_reduce_to_the_same_expression(name: str, ranks: int) -> None:
    """Floats are not associative: the order of the operands must be the same everywhere."""
    made = build_all(Operation.ALL_REDUCE, name, ranks)
    begin = [{chunk: str(rank) for chunk in range(made[0].chunks)} for rank in range(ranks)]
    end = interpret(made, begin, lambda lower, higher: f"({lower}+{higher})")
    assert all(chunks == end[0] for chunks in end)


def test_the_ring_sends_the_least_there_is() -> None:
    """2 (n - 1) of n chunks a rank."""
    for plan in build_all(Operation.ALL_REDUCE, "ring", 7):
        assert sum(isinstance(step, Send) for step in plan.steps) == 2 * 6


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (((Receive(0, 1),), ()), "rank 0 waits"),
        (((Send(0, 1),), ()), "never takes"),
        (((Send(0, 1),), (Reduce(0, 0),)), "for something else"),
        (((Send(1, 1),), (Receive(1, 0),)), "nothing in that chunk"),
        (((Send(0, 0),), ()), "another of 2 ranks"),
        (((Send(2, 1),), ()), "of 2 chunks"),
        (((Send(0, 2),), ()), "another of 2 ranks"),
        (((Receive(0, 1), Send(0, 1)), (Receive(0, 0), Send(0, 0))), "rank 1 waits"),
    ],
)
def test_plans_that_do_not_fit_are_refused(steps: tuple[object, object], reason: str) -> None:
    """The interpreter says where they go wrong."""
    made = [Plan(2, rank_steps) for rank_steps in steps]  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=reason):
        interpret(made, [{0: "a"}, {0: "b"}], lambda lower, higher: lower + higher)


def test_plans_of_different_chunks_are_refused() -> None:
    """All must cut the buffer alike."""
    with pytest.raises(PlanError, match="1 chunks, rank 0 2"):
        interpret([Plan(2, ()), Plan(1, ())], [{}, {}], lambda lower, _: lower)


def test_an_algorithm_of_ones_own_is_known_by_its_name() -> None:
    """And an unknown name is told what there is."""

    @register(Operation.BROADCAST, "star of a test")
    def star(rank: int, ranks: int, root: int) -> Plan:
        if rank != root:
            return Plan(1, (Receive(0, root),))
        return Plan(1, tuple(Send(0, other) for other in range(ranks) if other != root))

    try:
        assert "star of a test" in plans.names(Operation.BROADCAST)
        made = build_all(Operation.BROADCAST, "star of a test", 3, 1)
        assert interpret(made, [{}, {0: "x"}, {}], lambda lower, _: lower) == [{0: "x"}] * 3
    finally:
        plans.forget(Operation.BROADCAST, "star of a test")
    with pytest.raises(ConfigError, match="there are binomial, chain"):
        plans.build(Operation.BROADCAST, "star of a test", 0, 2)


def test_every_row_of_the_table_names_an_algorithm_and_says_why() -> None:
    """And every algorithm is in it, except the limits leave none out by mistake."""
    for choice in TABLE:
        assert choice.algorithm in plans.names(choice.operation)
        assert choice.reason


@given(st.sampled_from(list(Operation)), st.integers(0, 1 << 40), st.integers(1, 1 << 12))
def test_the_table_has_an_answer_for_everything(
    operation: Operation, size_bytes: int, ranks: int
) -> None:
    """Whatever the size and the ranks are."""
    choice = choose(operation, size_bytes, ranks)
    assert choice.operation is operation
    assert size_bytes <= choice.bytes_max
    assert ranks <= choice.ranks_max
