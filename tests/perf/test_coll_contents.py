"""What is in the buffers of a verified collective: exact in every type, told apart to the bit."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest

from mrc.collectives.reduction import SUPPORTED, element_type
from mrc.perf.collective.contents import PERIOD, Contents, count_wrong, fill, fill_never
from mrc.perf.collective.settings import Collective, CollectivePlan, Room

PYTHON: dict[str, Callable[[int, int], int]] = {
    "sum": operator.add,
    "prod": operator.mul,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("op", PYTHON)
@pytest.mark.parametrize("name", [name for name in SUPPORTED if name != "bool"])
def test_the_expected_result_is_what_python_makes_of_it(name: str, op: str) -> None:
    """Numpy's reduction of what seven ranks give is that of Python's whole numbers."""
    contents = Contents(element_type(name), op, 7)
    given = [contents.of(rank)[:200].astype(int).tolist() for rank in range(7)]
    expected = [reduce(PYTHON[op], values) for values in zip(*given, strict=True)]
    if op == "prod" and name == "int8":
        expected = [(value + 128) % 256 - 128 for value in expected]
    assert contents.reduced[:200].astype(int).tolist() == expected


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("float16", 4),
        ("bfloat16", 4),
        ("float32", 4),
        ("float64", 4),
        pytest.param("bfloat16", 300, marks=pytest.mark.slow),
    ],
)
def test_sums_are_exact_in_any_order(name: str, ranks: int) -> None:
    """No algorithm is blamed for the order in which it adds up, however many ranks there are."""
    dtype = element_type(name)
    contents = Contents(dtype, "sum", ranks)
    total = np.zeros(100, dtype)
    for rank in reversed(range(ranks)):
        total += contents.of(rank)[:100]
    assert count_wrong(total, contents.reduced) == 0
    assert total.astype(int).any()


def test_an_average_of_integers_is_a_whole_number() -> None:
    """Cut, as NCCL cuts it."""
    contents = Contents(np.dtype(np.int32), "avg", 3)
    total = sum(contents.of(rank) for rank in range(3))
    assert (contents.reduced == total // 3).all()


def test_bools_are_combined_by_or_and_and() -> None:
    """As numpy adds and multiplies them; neither is the same everywhere."""
    for op, combined in (("sum", np.logical_or), ("max", np.logical_or)):
        contents = Contents(np.dtype(bool), op, 2)
        expected = combined(contents.of(0), contents.of(1))
        assert (contents.reduced == expected).all()
        assert 0 < np.count_nonzero(expected) < PERIOD


def test_one_wrong_bit_is_one_wrong_element() -> None:
    """Wherever it is, in arrays longer than a period, from any place of the table on."""
    table = Contents(np.dtype(np.float32), "sum", 4).of(1)
    array = np.empty(3 * PERIOD + 17, np.float32)
    fill(array, table, start=12_345)
    assert count_wrong(array, table, start=12_345) == 0
    array.view(np.uint32)[2 * PERIOD + 5] ^= 1
    assert count_wrong(array, table, start=12_345) == 1


def test_blocks_in_the_wrong_place_show() -> None:
    """Two pieces that were swapped are mostly wrong, though both are of the same table."""
    table = Contents(np.dtype(np.float32), "sum", 4).of(1)
    array = np.empty(1 << 19, np.float32)
    fill(array, table)
    one, other = array[: 1 << 18].copy(), array[1 << 18 :].copy()
    array[: 1 << 18], array[1 << 18 :] = other, one
    assert count_wrong(array, table) > array.size * 0.9


@pytest.mark.parametrize("name", [name for name in SUPPORTED if name != "bool"])
def test_what_was_never_written_is_wrong(name: str) -> None:
    """The filling of targets is no value of any rank, and no result."""
    dtype = element_type(name)
    array = np.empty(PERIOD, dtype)
    fill_never(array)
    for op in ("sum", "prod", "max"):
        contents = Contents(dtype, op, 2)
        assert count_wrong(array, contents.of(0)) == PERIOD
    assert count_wrong(array, Contents(dtype, "max", 2).reduced) == PERIOD


def test_ranks_give_different_things() -> None:
    """A block of another rank is not taken for one's own."""
    contents = Contents(np.dtype(np.int64), "sum", 4)
    assert count_wrong(contents.of(2), contents.of(3)) > PERIOD * 0.9


# Sizes.


@pytest.mark.parametrize(
    ("collective", "size_bytes", "count", "factor"),
    [
        ("all_reduce", 1024, 256, 1.5),
        ("all_gather", 1024, 64, 0.75),
        ("reduce_scatter", 1024, 64, 0.75),
        ("all_to_all", 1024, 64, 0.75),
        ("gather", 1024, 64, 0.75),
        ("scatter", 1024, 64, 0.75),
        ("broadcast", 1024, 256, 1),
        ("reduce", 1024, 256, 1),
        ("sendrecv", 1024, 256, 1),
    ],
)
def test_sizes_and_factors_are_those_of_nccl_tests(
    collective: str, size_bytes: int, count: int, factor: float
) -> None:
    """A kibibyte of float32 between four ranks: what is counted, and what the bus carries of it."""
    plan = CollectivePlan(collective=Collective(collective), ranks=4, sizes=(1024,))
    assert plan.counts == [count]
    assert plan.size_bytes(count) == size_bytes
    assert plan.facts.bus_factor(4) == factor


def test_a_size_is_a_whole_number_of_elements_and_comes_once() -> None:
    """Rounded down, to one element a rank at least: sizes that then are the same are one test."""
    plan = CollectivePlan(collective=Collective.ALL_GATHER, ranks=3, sizes=(1, 8, 16, 35, 36))
    assert plan.counts == [1, 2, 3]
    assert [plan.size_bytes(count) for count in plan.counts] == [12, 24, 36]


def test_only_a_root_has_room_for_the_blocks_of_all() -> None:
    """What a gather takes in memory depends on which rank it is."""
    plan = CollectivePlan(collective=Collective.GATHER, ranks=4, sizes=(4096,), root=2)
    assert plan.facts.target is Room.WHOLE_AT_ROOT
    assert [plan.memory_bytes(rank) for rank in range(4)] == [1024, 1024, 5120, 1024]
