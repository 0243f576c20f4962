"""The memory that callers hand in, as flat arrays, without copying."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mrc.collectives.reduction import Array, element_type
from mrc.errors import ConfigError


def elements_of(buffer: Any, dtype: DTypeLike | None = None, *, writable: bool = True) -> Array:
    """Return the elements of a buffer, in one dimension.

    Args:
        buffer: a numpy array, or anything with a buffer: bytearray, memoryview, mmap, array.
        dtype: what the bytes mean; None: what the buffer says itself.
        writable: it will be written to.

    Raises:
        ConfigError: read-only, not contiguous, masked, no buffer, or its size is no multiple of the
            element's.
    """
    if isinstance(buffer, np.ma.MaskedArray):
        raise ConfigError("a masked array: its mask would be lost; fill it first (.filled)")
    # A matrix has two dimensions whatever is done to it; as an array it is the same memory.
    array: Array = np.asarray(buffer if isinstance(buffer, np.ndarray) else _from_buffer(buffer))
    if not array.flags.c_contiguous:
        raise ConfigError(
            f"the array of shape {array.shape} is not contiguous; copy it first"
            " (numpy.ascontiguousarray)"
        )
    if writable and not array.flags.writeable:
        raise ConfigError("the buffer is read-only, and the result goes there")
    if array.dtype.hasobject:
        raise ConfigError("an array of Python objects cannot be sent; pickle it into bytes")
    flat = array.reshape(-1)
    if dtype is None:
        return flat
    wanted = element_type(dtype)
    if flat.nbytes % wanted.itemsize:
        raise ConfigError(f"{flat.nbytes} bytes are no whole number of {wanted} elements")
    return flat.view(wanted)


def _from_buffer(buffer: Any) -> memoryview:
    try:
        view = memoryview(buffer)
    except TypeError as error:
        raise ConfigError(f"{type(buffer).__name__} has no buffer; pass an array") from error
    if not view.c_contiguous:
        raise ConfigError("the buffer is not contiguous; copy it first")
    return view


def even_cuts(count: int, parts: int) -> list[int]:
    """Return where `count` elements are cut into parts that differ by one element at most."""
    return [count * part // parts for part in range(parts + 1)]


def cut(array: Array, cuts: list[int]) -> list[Array]:
    """Return the parts of an array between cuts."""
    return [array[start:end] for start, end in pairwise(cuts)]
