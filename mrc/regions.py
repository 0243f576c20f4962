"""Memory that is open to remote writes: a buffer of this side, and the name of a peer's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self

from mrc.engine import Engine
from mrc.errors import PeerProtocolError
from mrc.proto.memory import Region


@dataclass(frozen=True, slots=True)
class RemoteRegion:
    """Memory of a peer that this side may write to: its address, key and length in bytes."""

    va: int
    r_key: int
    length: int

    def to_json(self) -> dict[str, int]:
        """Return plain values for a message."""
        return asdict(self)

    @classmethod
    def from_json_untrusted(cls, value: object) -> Self:
        """Read what a peer sent.

        Raises:
            PeerProtocolError: not an object with these three numbers in range.
        """
        match value:
            case {"va": int(va), "r_key": int(r_key), "length": int(length)} if (
                0 <= va < 1 << 64 and 0 <= r_key < 1 << 32 and 0 < length <= (1 << 64) - va
            ):
                return cls(va, r_key, length)
            case _:
                raise PeerProtocolError(f"not a memory region: {value!r:.80}")


class MemoryRegion:
    """A registered buffer of this side; leaving its ``with`` block deregisters it at once."""

    def __init__(self, engine: Engine, region: Region, known: dict[int, MemoryRegion]) -> None:
        self._engine = engine
        self._region = region
        self._known = known
        self.remote = RemoteRegion(region.va, region.r_key, region.length)

    @property
    def va(self) -> int:
        """Remote address of its first byte."""
        return self.remote.va

    @property
    def r_key(self) -> int:
        """Its key."""
        return self.remote.r_key

    def seal(self, size: int) -> None:
        """Refuse every further write to the first `size` bytes: what is checked stays as it is."""
        self._region.sealed = max(self._region.sealed, size)

    def deregister(self) -> None:
        """Refuse every further write to it, and let go of the buffer. Twice is once."""
        self._engine.endpoint.deregister(self._region)
        self._known.pop(self.remote.r_key, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.deregister()
