"""What messages carry, so that a receiver can tell a wrong byte, and a message from another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SEED = 20260401
_WORD_BYTES = 8
_STEPS = 257
"""Messages before one is repeated. It is prime and above the most messages under way, so that what
an earlier message left in a part of the buffer is never what the next one there should leave."""


class Expected:
    """Messages of one size: each is the same random words, begun one word further on."""

    def __init__(self, size: int) -> None:
        """Make the words.

        Raises:
            ValueError: the size is no multiple of 8 bytes. Words are compared, not bytes: 9 us
                instead of 14 us for 256 KiB, and an eighth of the memory.
        """
        if size % _WORD_BYTES:
            raise ValueError(f"a message of {size} bytes is no multiple of {_WORD_BYTES} bytes")
        self._count = size // _WORD_BYTES
        generator = np.random.default_rng(_SEED)
        self._words = generator.integers(0, 1 << 64, self._count + _STEPS, np.uint64)

    def _message(self, number: int) -> NDArray[np.uint64]:
        begin = number % _STEPS
        return self._words[begin : begin + self._count]

    def message(self, number: int) -> NDArray[np.uint8]:
        """Return the bytes of a message: a view, not a copy."""
        return self._message(number).view(np.uint8)

    def matches(self, number: int, got: NDArray[Any]) -> bool:
        """Tell whether these are the bytes of a message."""
        return bool(np.array_equal(got.view(np.uint64), self._message(number)))
