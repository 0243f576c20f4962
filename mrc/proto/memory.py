"""Memory regions: who may write where.

A region is any writable buffer. Its address is a number of our own choosing, not the process's, and
its r_key is random: a peer that was not told both can write nothing. A region registered for one
queue pair is closed to all others, also to those who have seen its r_key on the wire. Checks come
before any byte is placed; a deregistered region is unknown from that moment on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrc.errors import ConfigError
from mrc.proto.events import Random

_VA_ALIGN_BITS = 12
_VA_BITS = 47


@dataclass(slots=True, eq=False)
class Region:
    """One registered buffer: bytes [va, va + length) under `r_key`."""

    va: int
    length: int
    r_key: int
    data: NDArray[np.uint8]
    qpn: int = 0
    """The queue pair through which it may be written; 0: any of the endpoint's."""
    sealed: int = 0
    """Bytes from its beginning that may not be written any more."""

    def release(self) -> None:
        """Let go of the buffer, so that a memory map can be closed."""
        self.data = np.empty(0, np.uint8)


class MemoryTable:
    """The regions of one endpoint, by r_key."""

    REGIONS_MAX = 1 << 20
    """Each costs about 400 bytes beside the buffer itself."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._regions: dict[int, Region] = {}

    def __len__(self) -> int:
        return len(self._regions)

    def register(self, buffer: Any, qpn: int = 0) -> Region:
        """Register a writable, contiguous buffer of at least one byte, for one queue pair or all.

        Raises:
            ConfigError: read-only, empty, not contiguous, or too many regions.
        """
        if len(self._regions) >= self.REGIONS_MAX:
            raise ConfigError(f"{self.REGIONS_MAX} memory regions registered; deregister some")
        data = bytes_of(buffer)
        if not data.flags.writeable:
            raise ConfigError(
                "memory region: the buffer is read-only; pass a bytearray or the like"
            )
        r_key = self._rng.getrandbits(32)
        while r_key in self._regions or r_key == 0:
            r_key = self._rng.getrandbits(32)
        va = self._rng.getrandbits(_VA_BITS - _VA_ALIGN_BITS) << _VA_ALIGN_BITS
        region = self._regions[r_key] = Region(va, len(data), r_key, data, qpn)
        return region

    def deregister(self, region: Region) -> None:
        """Forget a region; packets for it are refused from now on. Twice is once."""
        if self._regions.get(region.r_key) is region:
            del self._regions[region.r_key]
            region.release()

    def find(self, r_key: int, va: int, length: int, qpn: int) -> NDArray[np.uint8] | None:
        """Return the bytes [va, va + length), or None if this queue pair may not write them."""
        region = self._regions.get(r_key)
        if region is None or region.qpn not in (0, qpn):
            return None
        offset = va - region.va
        if offset < region.sealed or offset + length > region.length:
            return None
        return region.data[offset : offset + length]

    def region(self, r_key: int) -> Region | None:
        """Return the region with this key."""
        return self._regions.get(r_key)


def bytes_of(buffer: Any) -> NDArray[np.uint8]:
    """Return a flat byte view of a contiguous buffer, without copying.

    Raises:
        ConfigError: empty, or not contiguous.
    """
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"not a buffer of bytes: {error}") from error
    if view.nbytes == 0:
        raise ConfigError("the buffer is empty; MRC moves 1 byte to 2^32 - 1 bytes")
    if "O" in view.format:
        raise ConfigError("the buffer holds Python objects: their addresses mean nothing elsewhere")
    if not view.c_contiguous:
        raise ConfigError("the buffer is not contiguous; copy it first (numpy.ascontiguousarray)")
    return np.frombuffer(buffer, np.uint8)
