"""Memory that peers write to: every byte is accounted for."""

from __future__ import annotations

import numpy as np
import pytest

from mrc.sim.failure import CheckFailed
from mrc.sim.target import GUARD_BYTES, Target


def target() -> Target:
    """Return memory for two messages, of which the first has arrived."""
    memory = Target([(7, b"seven"), (9, b"nine!")])
    put(memory, 7, b"seven")
    return memory


def put(memory: Target, number: int, data: bytes) -> None:
    """Write to the slot of a message."""
    offset = memory.slots[number].offset
    memory.buffer[offset : offset + len(data)] = np.frombuffer(data, np.uint8)


def broken_rule(memory: Target) -> str:
    """Return the rule that its check finds broken."""
    with pytest.raises(CheckFailed) as failed:
        memory.check("here")
    return failed.value.rule


def test_what_arrives_is_right_byte_by_byte() -> None:
    """Bytes of messages, whole or in part, and nothing else: all is well."""
    memory = target()
    put(memory, 9, b"ni")
    memory.check("here")
    assert memory.has(7)
    assert not memory.has(9)


def test_wrong_byte_is_found() -> None:
    """Another byte than the one that was sent."""
    memory = target()
    put(memory, 9, b"nX")
    assert broken_rule(memory) == "placement"


def test_byte_between_messages_is_found() -> None:
    """The gap between two messages belongs to nobody."""
    memory = target()
    memory.buffer[memory.slots[7].offset - 1] = 0
    assert broken_rule(memory) == "bounds"


def test_byte_outside_the_region_is_found() -> None:
    """Around what is registered lies memory that nobody may touch."""
    memory = target()
    base = memory.buffer.base
    assert isinstance(base, np.ndarray)
    base[GUARD_BYTES - 1] = 0
    assert broken_rule(memory) == "bounds"


def test_write_after_completion_is_found() -> None:
    """Even the very bytes that were sent may not be written again once they were used."""
    memory = target()
    memory.take(7)
    memory.check("here")
    assert memory.has(7)
    put(memory, 7, b"seven")
    assert broken_rule(memory) == "placement"


def test_retired_memory_must_not_change() -> None:
    """What is no longer registered stays as it is, also where a message is half there."""
    memory = target()
    put(memory, 9, b"ni")
    memory.retire()
    memory.check("here")
    put(memory, 9, b"nine!")
    assert broken_rule(memory) == "placement"
