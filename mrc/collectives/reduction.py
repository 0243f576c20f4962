"""Reductions: sum, product, minimum, maximum, average, and bit by bit, over the element types."""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mrc.errors import ConfigError

Array = NDArray[Any]

_INTEGERS = "uint8 uint16 uint32 uint64 int8 int16 int32 int64".split()  # noqa: SIM905
_FLOATS = ("float16", "float32", "float64")
BFLOAT16 = "bfloat16"
SUPPORTED = ("bool", *_INTEGERS, *_FLOATS, BFLOAT16)


class ReduceOp(Enum):
    """How values are combined. Of bools the sum is "or" and the product "and", as in numpy.

    Integers wrap around, as in numpy; their average is cut towards zero, as NCCL does it.
    """

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVERAGE = "average"
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"


_UFUNCS = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.AVERAGE: np.add,
    ReduceOp.BIT_AND: np.bitwise_and,
    ReduceOp.BIT_OR: np.bitwise_or,
    ReduceOp.BIT_XOR: np.bitwise_xor,
}
_BITWISE = frozenset({ReduceOp.BIT_AND, ReduceOp.BIT_OR, ReduceOp.BIT_XOR})


def element_type(wanted: DTypeLike | str) -> np.dtype[Any]:
    """Return the element type of a name or of a numpy type.

    Raises:
        ConfigError: complex numbers, strings, objects, another byte order; or bfloat16, and the
            package that brings it is missing.
    """
    if isinstance(wanted, str) and wanted == BFLOAT16:
        return _bfloat16()
    try:
        found = np.dtype(wanted)
    except TypeError as error:
        raise ConfigError(f"no element type: {wanted!r}; there are {_LIST}") from error
    if found.name not in SUPPORTED or not found.isnative:
        raise ConfigError(f"elements of {found} cannot be reduced; there are {_LIST}")
    return found


_LIST = ", ".join(SUPPORTED)


def _bfloat16() -> np.dtype[Any]:
    try:
        module = import_module("ml_dtypes")
    except ImportError as error:
        raise ConfigError(
            "bfloat16 needs the package ml_dtypes: pip install 'mrc-transport[collectives]'"
        ) from error
    found: np.dtype[Any] = np.dtype(module.bfloat16)
    return found


class Reduction:
    """One way to combine elements of one type.

    Args:
        op: how.
        dtype: of what.

    Raises:
        ConfigError: there is no average of bools, and nothing bit by bit of floats.
    """

    def __init__(self, op: ReduceOp, dtype: np.dtype[Any]) -> None:
        if op is ReduceOp.AVERAGE and dtype.kind == "b":
            raise ConfigError("there is no average of bools; take the sum (or) or product (and)")
        if op in _BITWISE and dtype.kind not in "iub":
            raise ConfigError(f"{op.value} of {dtype}: only integers and bools have bits")
        self.op = op
        self.dtype = dtype
        self._ufunc = _UFUNCS[op]

    def combine(self, lower: Array, higher: Array, out: Array) -> None:
        """Combine two arrays, that of the lower rank first; `out` may be either of them."""
        # A sum that leaves the range of its type is infinite or wraps, everywhere alike.
        with np.errstate(all="ignore"):
            if out.size == 1:
                # Told to put the sum into an operand, numpy takes one element for a sum over an
                # axis, and swaps the operands: of two NaNs it keeps the other one.
                out[...] = self._ufunc(lower, higher)
            else:
                self._ufunc(lower, higher, out=out)

    def finish(self, total: Array, ranks: int) -> None:
        """Make an average of a sum, in place; all else stays as it is."""
        if self.op is not ReduceOp.AVERAGE or not total.size:
            return
        if total.dtype.kind in "iu":
            floor = total // ranks
            total[...] = floor + ((floor < 0) & (floor * ranks != total))
        else:
            np.divide(total, total.dtype.type(ranks), out=total)
