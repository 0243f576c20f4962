"""The memory that messages walk through, and whether what arrived is what was sent.

One small buffer sent over and over stays in the processor's cache, and its figures promise what no
application gets. So each message goes from, and to, the next place of a large one.

What touches all of it takes long, runs in threads, and looks once a chunk whether it shall stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import numpy as np
import numpy.typing as npt

from mrc.errors import ConfigError
from mrc.units import format_bytes

Bytes = npt.NDArray[np.uint8]

MEMORY_SHARE_MAX = 2
"""A client gets at most one part in so many of the memory that is free."""
_CHUNK_BYTES = 1 << 20
_MEMINFO = Path("/proc/meminfo")


def empty(size_bytes: int, stop: Event) -> Bytes:
    """Return zeroed memory whose pages are there: the first message must not pay for them."""
    memory = np.empty(size_bytes, np.uint8)
    clear(memory, stop)
    return memory


def clear(memory: Bytes, stop: Event) -> None:
    """Fill memory with zeros."""
    for chunk in _chunks(len(memory), stop):
        memory[chunk] = 0


def patterned(size_bytes: int, seed: tuple[int, ...], stop: Event) -> Bytes:
    """Return memory full of a pattern that does not compress, and in which no byte is zero."""
    memory = np.empty(size_bytes, np.uint8)
    for chunk, pattern in _pattern(size_bytes, seed, stop):
        memory[chunk] = pattern
    return memory


def count_wrong(memory: Bytes, size_bytes: int, seed: tuple[int, ...], stop: Event) -> int:
    """Count the bytes that differ from the pattern among the first `size_bytes`."""
    wrong = 0
    for chunk, pattern in _pattern(size_bytes, seed, stop):
        wrong += int(np.count_nonzero(memory[chunk] != pattern))
    return wrong


def _chunks(size_bytes: int, stop: Event) -> Iterator[slice]:
    """Yield what memory is worked on by, until told to stop: nobody waits for gigabytes to end."""
    for offset in range(0, size_bytes, _CHUNK_BYTES):
        if stop.is_set():
            return
        yield slice(offset, min(offset + _CHUNK_BYTES, size_bytes))


def _pattern(size_bytes: int, seed: tuple[int, ...], stop: Event) -> Iterator[tuple[slice, Bytes]]:
    generator = np.random.default_rng(seed)
    for chunk in _chunks(size_bytes, stop):
        words = generator.integers(0, 1 << 64, _CHUNK_BYTES // 8, np.uint64)
        pattern = words.view(np.uint8)[: chunk.stop - chunk.start]
        yield chunk, np.maximum(pattern, 1, out=pattern)


def slots(buffer_bytes: int, message_bytes: int) -> int:
    """Return how many messages a buffer holds side by side."""
    return buffer_bytes // message_bytes


def walked_bytes(buffer_bytes: int, message_bytes: int, operations: int) -> int:
    """Return how far into a buffer so many messages came, the first at its beginning."""
    return min(operations, slots(buffer_bytes, message_bytes)) * message_bytes


def check_room(wanted_bytes: int) -> None:
    """Make sure that a client's buffers leave this machine enough memory.

    Raises:
        ConfigError: they do not; it says how much there may be.
    """
    allowed = available_bytes() // MEMORY_SHARE_MAX
    if wanted_bytes > allowed:
        raise ConfigError(
            f"buffers of {format_bytes(wanted_bytes)} in all; {format_bytes(allowed)} at most here,"
            " half of the memory that is free: take a smaller --buffer or fewer queue pairs"
        )


def available_bytes() -> int:
    """Return the memory that programs can have without swapping; where unknown, 2 GiB."""
    try:
        for line in _MEMINFO.read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 2 << 30
