"""Choices read from the bytes of one input, so that a mutated byte is another choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Feed:
    """The bytes of one input, read front to back; beyond their end every choice is the first one.

    A choice takes as many bytes whatever its outcome, so that changing one leaves those behind it
    as they are.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Whether any bytes are left."""
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def rest(self) -> bytes:
        """Return all that is left."""
        return self.take(max(0, len(self._data) - self._at))

    def number(self, size_bytes: int) -> int:
        """Return an unsigned number of that many bytes."""
        return int.from_bytes(self.take(size_bytes).ljust(size_bytes, b"\0"), "big")

    def signed(self, size_bytes: int) -> int:
        """Return a signed number of that many bytes."""
        taken = self.take(size_bytes).ljust(size_bytes, b"\0")
        return int.from_bytes(taken, "big", signed=True)

    def below(self, limit: int) -> int:
        """Return a number in [0, limit), of at most 256."""
        return self.number(1) % limit

    def flag(self) -> bool:
        """Return a yes or a no."""
        return bool(self.number(1) & 1)

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of at most 256 things."""
        return choices[self.below(len(choices))]
