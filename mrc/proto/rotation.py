"""The order in which EVs are used: a pseudo-random turn through the active ones, then another.

Keeps lists only: which EVs belong in it, and in which state they are, `paths` decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from mrc.proto.events import Random

T = TypeVar("T")

_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MASK_64 = (1 << 64) - 1


class Shuffler:
    """The splitmix64 generator: spreads load, guards nothing, costs no system call.

    Seeded once from the endpoint's generator, so that one seed still gives one trace.
    """

    def __init__(self, rng: Random) -> None:
        self._state = rng.getrandbits(64)

    def below(self, limit: int) -> int:
        """Return a number in [0, limit)."""
        self._state = (self._state + _GOLDEN_GAMMA) & _MASK_64
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
        return ((z ^ (z >> 31)) * limit) >> 64


class Rotation(Generic[T]):
    """Members in a random order that is shuffled anew after each turn."""

    def __init__(self, members: list[T], shuffler: Shuffler) -> None:
        self._members = list(members)
        self._shuffler = shuffler
        self._cursor = len(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[T]:
        return iter(self._members)

    def next(self) -> T:
        """Return the next member of this turn, or the first of a new one; there must be one."""
        if self._cursor >= len(self._members):
            self._shuffle()
        member = self._members[self._cursor]
        self._cursor += 1
        return member

    def _shuffle(self) -> None:
        members, below = self._members, self._shuffler.below
        for i in range(len(members) - 1, 0, -1):
            j = below(i + 1)
            members[i], members[j] = members[j], members[i]
        self._cursor = 0

    def add(self, member: T) -> None:
        """Let a member take part from this turn on."""
        if member not in self._members:
            self._members.append(member)

    def remove(self, member: T) -> None:
        """Take a member out."""
        if member in self._members:
            index = self._members.index(member)
            del self._members[index]
            self._cursor -= index < self._cursor
