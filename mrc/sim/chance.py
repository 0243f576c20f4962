"""Randomness of one simulation: everything is drawn from one seed, in a fixed order.

Only `random()` and `getrandbits()` of `random.Random` are used: their streams are the same in every
release of Python, which those of its other methods are not. So a seed that failed once can be
replayed years later.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Chance:
    """A stream of random choices."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)
        self.random = self.generator.random
        """Return a number in [0, 1)."""

    def fork(self) -> Chance:
        """Return a stream of its own, so that what is drawn from it shifts nothing else."""
        return Chance(self.generator.getrandbits(64))

    def happens(self, probability: float) -> bool:
        """Return whether something of this probability happens."""
        return self.random() < probability

    def below(self, limit: int) -> int:
        """Return an integer in [0, limit)."""
        return int(self.random() * limit)

    def between(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return low + self.below(high - low + 1)

    def magnitude(self, low: int, high: int) -> int:
        """Return an integer in [low, high], every order of magnitude alike; low is at least 1."""
        return min(high, int(low * math.exp(self.random() * math.log((high + 1) / low))))

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of these."""
        return choices[self.below(len(choices))]

    def some_of(self, choices: Sequence[T], probability: float) -> list[T]:
        """Return each of these with that probability, in their order."""
        return [choice for choice in choices if self.happens(probability)]

    def data(self, count: int) -> bytes:
        """Return that many random bytes."""
        return self.generator.getrandbits(8 * count).to_bytes(count, "little")
