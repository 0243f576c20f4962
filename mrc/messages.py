"""Byte messages on top of remote writes: a ring in the receiver's memory, and credits for it.

One message is one WRITE-with-Immediate into the peer's ring; the immediate says which kind it is.
The receiver copies it out at once and, when the application has taken enough of them, writes back
how many ring bytes it has taken in all. The sender never has more than the ring in flight or
untaken, so a receiver that does not read stops the sender and costs no more than twice the ring's
size.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mrc.errors import ConfigError, MrcError, PeerProtocolError
from mrc.mailbox import Mailbox, Signal
from mrc.proto.memory import Region

RING_BYTES = 4 << 20
"""Ring of one queue pair: address space until it is used."""
MESSAGE_BYTES_MAX = RING_BYTES // 4
"""With a quarter of the ring a message always fits once everything was taken, wherever it begins.
"""
_CREDIT_STEP = RING_BYTES // 4
_CREDIT_BYTES = 8
MESSAGE_BYTES_MIN = 256
"""What a message takes of the ring at least: small ones must not fill memory with overhead."""


class Kind(IntEnum):
    """What a message is, in its immediate data."""

    DATA = 0
    EMPTY = 1
    """A message of no bytes; a write has at least one, which is thrown away."""
    CONTROL = 2
    """One JSON object of the channel."""


@dataclass(frozen=True, slots=True)
class RingAddress:
    """Where the peer takes messages and credits: what it says in the handshake."""

    ring_va: int
    ring_r_key: int
    ring_bytes: int
    credit_va: int
    credit_r_key: int

    @classmethod
    def from_json_untrusted(cls, value: object) -> RingAddress:
        """Read the peer's ring.

        Raises:
            PeerProtocolError: a number is missing or out of range.
        """
        if not isinstance(value, dict):
            raise PeerProtocolError("handshake: no message ring")
        numbers = {}
        for name, bits in _RING_FIELDS.items():
            number = value.get(name)
            if type(number) is not int or not 0 <= number < 1 << bits:
                raise PeerProtocolError(f"handshake: {name} = {number!r:.40} is not {bits} bits")
            numbers[name] = number
        if numbers["ring_bytes"] != RING_BYTES:
            raise PeerProtocolError(
                f"handshake: message ring of {numbers['ring_bytes']} bytes, not {RING_BYTES}"
            )
        return cls(**numbers)


_RING_FIELDS = {
    "ring_va": 64,
    "ring_r_key": 32,
    "ring_bytes": 32,
    "credit_va": 64,
    "credit_r_key": 32,
}

WriteImmediate = Callable[[Any, int, int, int], Awaitable[None]]
"""(data, va, r_key, imm): done when the message is placed at the peer."""


class MessageRing:
    """Both directions of the message interface of one queue pair."""

    def __init__(self, register: Callable[[Any], Region], write_imm: WriteImmediate) -> None:
        # The credit is behind the ring: one region costs less than two.
        self._ring = mmap.mmap(-1, RING_BYTES + _CREDIT_BYTES)
        self.region = register(self._ring)
        self._write_imm = write_imm
        self._remote: RingAddress | None = None
        self._lock = asyncio.Lock()
        self._room = Signal()
        self._written_bytes = 0
        """Ring bytes used by us so far, those skipped at its end included."""
        self._credited_bytes = 0
        self._received_bytes = 0
        self._taken_bytes = 0
        self._told_bytes = 0
        self._expected_offset = 0
        self._crediting: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self.data: Mailbox[tuple[bytes, int]] = Mailbox()
        self.control: Mailbox[tuple[bytes, int]] = Mailbox()

    @property
    def address(self) -> RingAddress:
        """What the peer must know."""
        va, r_key = self.region.va, self.region.r_key
        return RingAddress(va, r_key, RING_BYTES, va + RING_BYTES, r_key)

    def connect(self, remote: RingAddress) -> None:
        """Learn the peer's ring."""
        self._remote = remote

    # Sending.

    async def send(self, kind: Kind, data: Any) -> None:
        """Send one message; done when it is placed at the peer.

        Raises:
            ConfigError: longer than MESSAGE_BYTES_MAX.
        """
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"\0")
        if not memoryview(data).nbytes:
            kind = Kind.EMPTY
        if len(view) > MESSAGE_BYTES_MAX:
            raise ConfigError(
                f"message of {len(view)} bytes; at most {MESSAGE_BYTES_MAX}: cut it, or use write()"
            )
        remote = self._remote
        if remote is None:
            raise ConfigError("message ring: not connected")
        async with self._lock:
            offset = await self._reserve(max(len(view), MESSAGE_BYTES_MIN))
            placed = self._write_imm(view, remote.ring_va + offset, remote.ring_r_key, kind)
        await placed

    async def _reserve(self, size: int) -> int:
        """Wait until the ring has room and return where the message goes."""
        start = self._written_bytes % RING_BYTES
        skipped = RING_BYTES - start if start + size > RING_BYTES else 0
        while self._written_bytes + skipped + size - self._credited_bytes > RING_BYTES:
            if self._error is not None:
                raise self._error
            self._room.clear()
            await self._room.wait()
        self._written_bytes += skipped + size
        return 0 if skipped else start

    # Receiving.

    def on_immediate_untrusted(self, r_key: int, va: int, length: int, imm: int) -> bool:
        """Take an immediate if it is for the ring or the credits; False when it is for neither.

        Raises:
            PeerProtocolError: the peer wrote where no message can be.
        """
        if r_key != self.region.r_key:
            return False
        offset = va - self.region.va
        if offset == RING_BYTES:
            self._credit_untrusted()
            return True
        skipped = RING_BYTES - self._expected_offset if offset == 0 else 0
        if offset != self._expected_offset and (offset or not self._expected_offset):
            raise PeerProtocolError(f"message at ring offset {offset}, not {self._expected_offset}")
        skipped = skipped if self._expected_offset else 0
        room = max(length, MESSAGE_BYTES_MIN)
        self._received_bytes += skipped + room
        beyond = length > MESSAGE_BYTES_MAX or offset + length > RING_BYTES
        if beyond or self._received_bytes - self._told_bytes > RING_BYTES:
            raise PeerProtocolError(f"message of {length} bytes beyond the credit given")
        self._expected_offset = (offset + room) % RING_BYTES
        data = self._ring[offset : offset + length] if imm != Kind.EMPTY else b""
        mailbox = self.control if imm == Kind.CONTROL else self.data
        mailbox.put((data, skipped + room))
        return True

    def _credit_untrusted(self) -> None:
        credited = int.from_bytes(self._ring[RING_BYTES:], "little")
        if not self._credited_bytes <= credited <= self._written_bytes:
            raise PeerProtocolError(
                f"credit of {credited} ring bytes, {self._written_bytes} were written"
            )
        self._credited_bytes = credited
        self._room.set()

    async def take(self, mailbox: Mailbox[tuple[bytes, int]]) -> bytes:
        """Return the next message of one kind, and give the peer its room back."""
        data, ring_bytes = await mailbox.get()
        self._taken_bytes += ring_bytes
        due = self._taken_bytes - self._told_bytes >= _CREDIT_STEP and self._error is None
        if due and self._crediting is None:
            self._crediting = asyncio.get_running_loop().create_task(self._give_credit())
        return data

    async def _give_credit(self) -> None:
        remote = self._remote
        try:
            while remote is not None and self._taken_bytes - self._told_bytes >= _CREDIT_STEP:
                self._told_bytes = self._taken_bytes
                counter = self._told_bytes.to_bytes(_CREDIT_BYTES, "little")
                await self._write_imm(counter, remote.credit_va, remote.credit_r_key, 0)
        except MrcError:
            # The queue pair has failed; whoever waits for it is told there.
            return
        finally:
            self._crediting = None

    def fail(self, error: BaseException) -> None:
        """Make everything that waits raise."""
        self._error = error
        self._room.set()
        self.data.fail(error)
        self.control.fail(error)
        if self._crediting is not None:
            self._crediting.cancel()
