"""What is in the buffers of a verified run, and whether the result is right to the bit.

Every rank works out for itself what all others gave, and reduces it with numpy alone: nothing here
uses what it judges. Contents repeat with a prime period, so that blocks and pieces in the wrong
place show, and one table a rank is enough for any size. Values are small whole numbers: their sums
are exact in every type, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PERIOD = 65_521
"""The largest prime below 2^16."""
_VALUE_MAX = 100
_NEVER = 111
"""In targets before a run, so that what was not written shows; no rank has it in its contents."""
_EXACT_MAX = {
    "bool": 1,
    "bfloat16": 1 << 8,
    "float16": 1 << 11,
    "float32": 1 << 24,
    "float64": 1 << 53,
}
"""Up to here every whole number has its own float."""
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)
"""Constants of SplitMix64 (Steele, Lea and Flood, 2014)."""


class Contents:
    """Known contents of all ranks, for one element type and one way to combine.

    Args:
        dtype: of the elements.
        op: a key of `settings.OPS`; only products need to know.
        ranks: how many.
    """

    def __init__(self, dtype: np.dtype[Any], op: str, ranks: int) -> None:
        self._dtype = dtype
        self._op = op
        self._ranks = ranks
        exact = int(np.iinfo(dtype).max) if dtype.kind in "iu" else _EXACT_MAX[dtype.name]
        self._value_max = min(_VALUE_MAX, max(1, exact // ranks))
        # Of more ranks than a type can count, some have nothing in each place.
        self._sparse = -(-ranks // exact)

    def of(self, rank: int) -> Array:
        """Return one period of what a rank gives."""
        places = np.arange(PERIOD, dtype=np.uint64)
        mixed = (places + np.uint64(PERIOD * (rank + 1))) * np.uint64(_MIX[0])
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX[1]) >> np.uint64(33)
        if self._op == "prod":
            # Powers of two: exact, in any order, or infinite on all ranks.
            values = 1 + (mixed & np.uint64(1))
        else:
            gives = (places + np.uint64(rank)) % np.uint64(self._sparse) == 0
            values = mixed % np.uint64(self._value_max + 1) * gives
        return np.asarray(values, self._dtype)

    @cached_property
    def reduced(self) -> Array:
        """One period of what the contents of all ranks come to."""
        exact = self._dtype if self._dtype.kind in "biu" else np.dtype(np.float64)
        combine = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(self._op, np.add)
        total = self.of(0).astype(exact)
        with np.errstate(all="ignore"):
            for rank in range(1, self._ranks):
                combine(total, self.of(rank).astype(exact), out=total)
            if self._op == "avg":
                total = total / self._ranks if exact.kind == "f" else total // self._ranks
            return total.astype(self._dtype)


def fill(array: Array, table: Array, start: int = 0) -> None:
    """Fill an array with a table over and over, from some place of it on."""
    for part, of_table in _walk(array.size, start):
        array[part] = table[of_table]


def fill_never(array: Array) -> None:
    """Fill an array with what is no result."""
    array[...] = array.dtype.type(_NEVER)


def count_wrong(array: Array, table: Array, start: int = 0) -> int:
    """Count the elements that differ, in any bit, from what `fill` would put there."""
    bits = np.dtype(f"u{array.dtype.itemsize}")
    array, table = array.view(bits), table.view(bits)
    return sum(
        int(np.count_nonzero(array[part] != table[of_table]))
        for part, of_table in _walk(array.size, start)
    )


def _walk(size: int, start: int) -> Iterator[tuple[slice, slice]]:
    """Yield parts of an array, and which parts of the table belong there."""
    done = 0
    while done < size:
        place = (start + done) % PERIOD
        length = min(PERIOD - place, size - done)
        yield slice(done, done + length), slice(place, place + length)
        done += length
