"""SHA-256 over the bytes of a file in order, and over what is already there after a restart.

The digest is the plain one that `sha256sum` prints, so that anyone can check it. Everything here
blocks and belongs into a worker thread; `hashlib` lets other threads run meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Sequence

from mrc.cli.failures import FileTrouble

CHUNK_BYTES = 1 << 20
"""Read and hashed at a time: stays in the second-level cache."""

DIGEST_BYTES = 32
EMPTY_SHA256 = hashlib.sha256().hexdigest()

Advance = Callable[[int], None]
"""Told how many bytes have been hashed since the last call; raises to stop the work."""


class Digest:
    """A SHA-256 that knows how many bytes went in."""

    __slots__ = ("_hash", "byte_count")

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.byte_count = 0

    def update(self, data: memoryview) -> None:
        """Take the next bytes in order."""
        self._hash.update(data)
        self.byte_count += data.nbytes

    def digest(self) -> bytes:
        """The digest of all bytes so far; more may follow."""
        return self._hash.digest()

    def hex(self) -> str:
        """The digest of all bytes so far as 64 hexadecimal digits."""
        return self._hash.hexdigest()


def hash_prefix(fd: int, length_bytes: int, name: str, advance: Advance) -> Digest:
    """Digest the first `length_bytes` of an open file.

    Raises:
        FileTrouble: reading failed, or the file is shorter.
    """
    digest = Digest()
    buffer = memoryview(bytearray(min(CHUNK_BYTES, max(length_bytes, 1))))
    while digest.byte_count < length_bytes:
        chunk = buffer[: length_bytes - digest.byte_count]
        _hash_chunk(fd, digest, chunk, name)
        advance(chunk.nbytes)
    return digest


def _hash_chunk(fd: int, digest: Digest, buffer: memoryview, name: str) -> None:
    """Read and digest one buffer full at the digest's position."""
    filled = read_full(fd, buffer, digest.byte_count, name)
    if filled < buffer.nbytes:
        raise FileTrouble(errno.ESTALE, "is shorter than it was", name)
    digest.update(buffer)


def matching_blocks(
    fd: int, block_bytes: int, size: int, expected: Sequence[bytes], name: str, advance: Advance
) -> tuple[int, Digest]:
    """Find how many leading blocks of an open file are what a journal says they are.

    Args:
        fd: the file.
        block_bytes: length of every block but the last.
        size: length of the whole file.
        expected: for each block, the digest of everything up to its end.
        name: for messages.
        advance: told of progress.

    Returns:
        The number of good blocks, and the digest over exactly those.

    Raises:
        FileTrouble: reading failed, or the file is shorter than its journal.
    """
    good = 0
    digest = Digest()
    buffer = memoryview(bytearray(min(CHUNK_BYTES, block_bytes)))
    for wanted in expected:
        # A digest cannot be taken back, so each block goes into a copy first.
        attempt = _copy(digest)
        end = min((good + 1) * block_bytes, size)
        while attempt.byte_count < end:
            chunk = buffer[: end - attempt.byte_count]
            _hash_chunk(fd, attempt, chunk, name)
            advance(chunk.nbytes)
        if attempt.digest() != wanted:
            break
        good += 1
        digest = attempt
    return good, digest


def _copy(digest: Digest) -> Digest:
    twin = Digest()
    twin._hash = digest._hash.copy()  # noqa: SLF001 - its own class
    twin.byte_count = digest.byte_count
    return twin


def read_full(fd: int, buffer: memoryview, offset: int, name: str) -> int:
    """Fill `buffer` from a file at `offset`; fewer bytes mean the end of the file.

    Raises:
        FileTrouble: the kernel refused.
    """
    filled = 0
    try:
        while filled < buffer.nbytes:
            count = os.preadv(fd, [buffer[filled:]], offset + filled)
            if count == 0:
                break
            filled += count
    except OSError as error:
        raise FileTrouble(error.errno, error.strerror, name) from error
    return filled
