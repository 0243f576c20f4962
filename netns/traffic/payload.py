"""What messages carry, so that a receiver can tell a wrong byte."""

from __future__ import annotations

from typing import Any

import numpy as np

_SEED = 20260401


class Expected:
    """The one pattern of a size: every message of that size holds it."""

    def __init__(self, size: int) -> None:
        self.bytes = np.random.default_rng(_SEED).integers(0, 256, size, np.uint8)

    def matches(self, got: np.ndarray[Any, Any]) -> bool:
        """Whether these bytes are the pattern."""
        return bool(np.array_equal(got, self.bytes))
