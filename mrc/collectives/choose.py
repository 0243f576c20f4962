"""Which algorithm an operation uses: one table, read from above, the first row that fits.

The limits are where the curves of two algorithms cross, between 2, 4, 8 and 16 processes of one
host with two cores: `mrc-perf --coll all_reduce --ranks 4 --compare algorithms --min-size 4K -s 4M`
measures them. A network with longer round trips moves them up, one with less bandwidth down.
Whoever knows better names an algorithm in the call.
"""

from __future__ import annotations

from dataclasses import dataclass

import mrc.collectives.algorithms  # noqa: F401 - makes the names in the table known
from mrc.collectives.plans import Operation

KIB, MIB = 1 << 10, 1 << 20
ANY = 1 << 62


@dataclass(frozen=True, slots=True)
class Choice:
    """One row: what is at most this large, between at most so many ranks, is done this way."""

    operation: Operation
    bytes_max: int
    """Of the whole: for all-gather and reduce-scatter the blocks of all ranks together."""
    ranks_max: int
    algorithm: str
    reason: str


TABLE = (
    Choice(Operation.ALL_REDUCE, 1 * MIB, ANY, "doubling", "log2 n steps: latency counts"),
    Choice(Operation.ALL_REDUCE, ANY, ANY, "ring", "least bytes a rank, 2 (n - 1) / n"),
    Choice(Operation.REDUCE_SCATTER, 64 * KIB, 16, "direct", "one step, few peers"),
    Choice(Operation.REDUCE_SCATTER, ANY, ANY, "ring", "two queue pairs; reduced on the way"),
    Choice(Operation.ALL_GATHER, 256 * KIB, ANY, "doubling", "log2 n steps: latency counts"),
    Choice(Operation.ALL_GATHER, ANY, ANY, "ring", "two queue pairs, both always busy"),
    Choice(Operation.BROADCAST, 256 * KIB, ANY, "binomial", "log2 n hops"),
    Choice(Operation.BROADCAST, ANY, ANY, "chain", "every rank sends it once; pieces overlap"),
    Choice(Operation.REDUCE, 1 * MIB, ANY, "binomial", "log2 n hops"),
    Choice(Operation.REDUCE, ANY, ANY, "chain", "every rank sends it once; pieces overlap"),
    Choice(Operation.GATHER, ANY, ANY, "direct", "the root has to take every byte anyway"),
    Choice(Operation.SCATTER, ANY, ANY, "direct", "the root has to send every byte anyway"),
    Choice(Operation.ALL_TO_ALL, ANY, ANY, "pairwise", "every byte goes once, nobody is flooded"),
    Choice(Operation.BARRIER, ANY, ANY, "dissemination", "log2 n steps"),
)


def choose(operation: Operation, size_bytes: int, ranks: int) -> Choice:
    """Return the row of the table for an operation; all ranks find the same.

    Args:
        operation: what to do.
        size_bytes: of the whole buffer; 0 where the sizes of the ranks differ.
        ranks: how many take part.
    """
    for choice in TABLE:
        fits = size_bytes <= choice.bytes_max and ranks <= choice.ranks_max
        if choice.operation is operation and fits:
            return choice
    raise AssertionError(f"the table has no last row for {operation}")
