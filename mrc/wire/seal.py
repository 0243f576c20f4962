"""The lock on every packet: authenticated encryption between payload and iCRC.

    MRC headers (readable) | encrypted payload | tag, 16 bytes | counter, 8 bytes | iCRC

Headers are authenticated as they are, so that switches can trim and tools can read; the payload is
encrypted as well. A control packet has no payload: its tag covers all of it. The counter belongs to
one direction of one queue pair and goes up with every packet sealed, retransmissions and control
packets included; with four secret bytes before it, it is the nonce, so none is used twice.

Every 2^22 packets begin an epoch with a key of its own, derived from the one before: old keys are
forgotten and cannot be worked out again. The epoch is the counter's upper part, so renewing needs
no packet. A receiver takes the present epoch, the one before and the next; what it has seen, or
what is older than the last 2^15 packets, it refuses.

What was trimmed has lost its tag and cannot be opened: it is a hint at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from mrc.wire.fields import BadPacket, Buffer
from mrc.wire.runs import COUNTER_BYTES, SALT_BYTES, SEAL_BYTES, U8, SegmentViews

SECRET_BYTES = 32
"""What each side contributes to the keys, and what a direction's secret has."""
EPOCH_BITS = 22
EPOCH_PACKETS = 1 << EPOCH_BITS
"""Packets sealed with one key. With 4 KiB each that is 2^30 blocks of AES: an attacker's advantage
stays below 2^-60, where 2^-57 is asked for in RFC 9001 §6.6."""
REPLAY_WINDOW_PACKETS = 1 << 15
"""How many packets late one may be: four times the widest tracking window, and 4 KiB of memory."""


class Unauthentic(BadPacket):
    """The packet does not open: altered, or sealed by someone without the key."""


class Replayed(BadPacket):
    """The packet was seen before, or is too late to tell."""


class Cipher(StrEnum):
    """How packets are sealed; both take keys of 32 bytes and nonces of 12."""

    AES_256_GCM = "aes-256-gcm"
    CHACHA20_POLY1305 = "chacha20-poly1305"
    """Faster where the processor has no instructions for AES."""


class _EpochKey(NamedTuple):
    """What one epoch seals or opens with, and what the next one's is derived from."""

    aead: AESGCM | ChaCha20Poly1305
    salt: bytes
    next_secret: bytes

    def __repr__(self) -> str:
        return "_EpochKey(...)"


def _epoch_key(cipher: Cipher, secret: bytes) -> _EpochKey:
    derived = HKDFExpand(SHA256(), 2 * SECRET_BYTES + SALT_BYTES, b"mrc epoch").derive(secret)
    key = derived[:SECRET_BYTES]
    return _EpochKey(
        AESGCM(key) if cipher is Cipher.AES_256_GCM else ChaCha20Poly1305(key),
        derived[2 * SECRET_BYTES :],
        derived[SECRET_BYTES : 2 * SECRET_BYTES],
    )


class Sealer:
    """Seals what one side of a queue pair sends."""

    def __init__(self, cipher: Cipher, secret: bytes) -> None:
        self._cipher = cipher
        self._key = _epoch_key(cipher, secret)
        self._counter = 0
        self._epoch_end = EPOCH_PACKETS

    def _take(self, count: int) -> int:
        """Return the first of `count` counters, all of one epoch."""
        first = self._counter
        if first + count > self._epoch_end:
            self._key = _epoch_key(self._cipher, self._key.next_secret)
            first = self._epoch_end
            self._epoch_end += EPOCH_PACKETS
        self._counter = first + count
        return first

    def seal(self, header: Buffer, plain: Buffer = b"") -> bytes:
        """Return what follows the header: encrypted payload, tag and counter."""
        counter = self._take(1).to_bytes(COUNTER_BYTES, "big")
        return self._key.aead.encrypt(self._key.salt + counter, plain, header) + counter

    def seal_rows(self, views: SegmentViews, plains: Sequence[memoryview]) -> None:
        """Encrypt payloads into the first rows of a run, whose headers are written already."""
        count = len(plains)
        first = self._take(count)
        key = self._key
        nonces = views.nonces.rows(key.salt, first, count)
        for _ in map(key.aead.encrypt_into, nonces, plains, views.headers, views.boxes):
            pass
        views.counters[:count] = views.nonces.counters(first, count)


class Opener:
    """Opens what one side of a queue pair receives."""

    def __init__(self, cipher: Cipher, secret: bytes) -> None:
        self._cipher = cipher
        self._epoch = 0
        self._now = _epoch_key(cipher, secret)
        self._before: _EpochKey | None = None
        self._next: _EpochKey | None = None
        self._window = ReplayWindow()

    def open_untrusted(self, packet: Buffer, header_bytes: int) -> bytes:
        """Return the payload of one packet, given without its iCRC.

        Raises:
            Unauthentic: too short, altered, or of an epoch that has no key now.
            Replayed: seen before, or too late to tell.
        """
        view = memoryview(packet)
        if len(view) < header_bytes + SEAL_BYTES:
            raise Unauthentic(f"{len(view)} bytes hold no seal behind {header_bytes} of headers")
        box_end = len(view) - COUNTER_BYTES
        counter = int.from_bytes(view[box_end:], "big")
        key = self._key_untrusted(counter)
        if not self._window.is_fresh(counter, 1):
            raise Replayed(f"packet {counter} was seen before")
        nonce = key.salt + counter.to_bytes(COUNTER_BYTES, "big")
        try:
            plain = key.aead.decrypt(nonce, view[header_bytes:box_end], view[:header_bytes])
        except InvalidTag as error:
            raise Unauthentic(f"packet {counter} does not open") from error
        self._accept(counter, 1)
        return plain

    def open_rows_untrusted(self, views: SegmentViews, start: int, end: int) -> U8 | None:
        """Return the payloads of rows [start, end) of a run, valid until the next call.

        None when anything is wrong with any of them, or their counters do not follow each other:
        then each has to be opened by itself. Nothing has changed in that case.
        """
        count = end - start
        first = int(views.counters[start])
        expected = views.nonces.counters(first, count)
        if not np.array_equal(views.counters[start:end], expected):
            return None
        if first >> EPOCH_BITS != (first + count - 1) >> EPOCH_BITS:
            return None
        try:
            key = self._key_untrusted(first)
            if not self._window.is_fresh(first, count):
                return None
            nonces = views.nonces.rows(key.salt, first, count)
            boxes, headers = views.boxes[start:end], views.headers[start:end]
            for _ in map(key.aead.decrypt_into, nonces, boxes, headers, views.opened_rows):
                pass
        except (Unauthentic, InvalidTag):
            return None
        self._accept(first, count)
        return views.opened[:count]

    def _key_untrusted(self, counter: int) -> _EpochKey:
        """Return the key of a counter's epoch.

        Raises:
            Unauthentic: neither the present epoch, nor the one before or after it.
        """
        ahead = (counter >> EPOCH_BITS) - self._epoch
        if ahead == 0:
            return self._now
        if ahead == 1:
            if self._next is None:
                self._next = _epoch_key(self._cipher, self._now.next_secret)
            return self._next
        if ahead == -1 and self._before is not None:
            return self._before
        raise Unauthentic(f"packet {counter} is of an epoch without a key")

    def _accept(self, first: int, count: int) -> None:
        """Remember counters that opened, and go on to their epoch if it is the next."""
        self._window.mark(first, count)
        if first >> EPOCH_BITS > self._epoch and self._next is not None:
            self._epoch += 1
            self._before, self._now, self._next = self._now, self._next, None


class ReplayWindow:
    """Which of the last counters were seen: an integer whose lowest bit is the highest of them."""

    _MASK = (1 << REPLAY_WINDOW_PACKETS) - 1

    def __init__(self) -> None:
        self._end = 0
        """One more than the highest counter seen."""
        self._seen = 0

    def is_fresh(self, first: int, count: int) -> bool:
        """Tell whether none of these counters was seen, and all are recent enough to know."""
        late = self._end - first
        if late <= 0:
            return True
        if late > REPLAY_WINDOW_PACKETS:
            return False
        behind = self._end - (first + count)
        mask = (1 << count) - 1
        return not (self._seen >> behind if behind >= 0 else self._seen << -behind) & mask

    def mark(self, first: int, count: int) -> None:
        """Note that these counters were seen."""
        end = first + count
        if end > self._end:
            self._seen = self._seen << min(end - self._end, REPLAY_WINDOW_PACKETS) & self._MASK
            self._end = end
        self._seen |= ((1 << count) - 1) << self._end - end


class Seal(NamedTuple):
    """Both directions of one queue pair."""

    sealer: Sealer
    opener: Opener


def make_seal(cipher: Cipher, secrets: tuple[bytes, bytes], *, connecting: bool) -> Seal:
    """Make the keys of one side from what both sides contributed.

    Args:
        cipher: the same on both sides.
        secrets: `SECRET_BYTES` of the connecting side, and of the accepting one.
        connecting: which side this is.
    """
    derived = HKDF(SHA256(), 2 * SECRET_BYTES, None, f"mrc seal 1 {cipher}".encode()).derive(
        secrets[0] + secrets[1]
    )
    forth, back = derived[:SECRET_BYTES], derived[SECRET_BYTES:]
    ours, theirs = (forth, back) if connecting else (back, forth)
    return Seal(Sealer(cipher, ours), Opener(cipher, theirs))
