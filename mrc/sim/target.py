"""Memory that a peer writes to, and what ought to be in it, byte for byte.

Every message has a slot of its own. Around each slot lie guard bytes that nobody may touch. When a
message is complete, the application turns every bit of its slot round: whatever is written there
afterwards (a late duplicate, say) shows. What ought to be there is kept beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrc.sim.failure import CheckFailed

GUARD_BYTES = 64
FILL = 0xA5


@dataclass(slots=True, eq=False)
class Slot:
    """Where one message belongs, and what it says."""

    number: int
    offset: int
    data: bytes
    taken: bool = False
    """Complete and turned round."""


class Target:
    """One buffer of one host, the part of it that is registered, and its slots."""

    def __init__(self, messages: list[tuple[int, bytes]]) -> None:
        """Make room for messages, given by number and content."""
        self.slots: dict[int, Slot] = {}
        end = GUARD_BYTES
        for number, data in messages:
            self.slots[number] = Slot(number, end, data)
            end += len(data) + GUARD_BYTES
        self._memory = np.full(end + 2 * GUARD_BYTES, FILL, np.uint8)
        self._wanted = self._memory.copy()
        """What was there, or was made of it, while nothing arrives."""
        self._coming = self._memory.copy()
        """What may be there instead: messages that are on their way."""
        for slot in self.slots.values():
            self._coming[_inside(slot)] = np.frombuffer(slot.data, np.uint8)
        self.buffer: NDArray[np.uint8] = self._memory[GUARD_BYTES : GUARD_BYTES + end]
        """What is registered: before and behind it lie bytes that are not."""

    def has(self, number: int) -> bool:
        """Tell whether a message has arrived whole: its bytes, or those it was turned into."""
        slot = self.slots[number]
        return slot.taken or self._memory[_inside(slot)].tobytes() == slot.data

    def take(self, number: int) -> None:
        """Use a complete message: from now on its slot must stay as it is made here."""
        slot = self.slots[number]
        if not slot.taken:
            slot.taken = True
            at = _inside(slot)
            self._memory[at] ^= 0xFF
            self._wanted[at] = self._coming[at] = self._memory[at]

    def retire(self) -> None:
        """Nothing may be written any more: it stays as it is now."""
        for slot in self.slots.values():
            slot.taken = True
        self._wanted = self._coming = self._memory.copy()

    def check(self, where: str) -> None:
        """Check every byte: what nobody wrote, what is complete, what is on its way.

        Raises:
            CheckFailed: a byte is not what it was left as, and no message explains it.
        """
        right = (self._memory == self._wanted) | (self._memory == self._coming)
        if right.all():
            return
        at = int(np.argmin(right))
        slot = next(
            (s for s in self.slots.values() if _inside(s).start <= at < _inside(s).stop), None
        )
        found = int(self._memory[at])
        if slot is None:
            place = at - GUARD_BYTES
            raise CheckFailed("bounds", f"{where}: byte {place}, of no message, is {found:#04x}")
        place = at - GUARD_BYTES - slot.offset
        how = "was written after it was complete" if slot.taken else "is not what was sent"
        raise CheckFailed(
            "placement", f"{where}: byte {place} of message {slot.number}, {found:#04x}, {how}"
        )


def _inside(slot: Slot) -> slice:
    """Return where the bytes of a slot lie in the whole memory."""
    start = GUARD_BYTES + slot.offset
    return slice(start, start + len(slot.data))
