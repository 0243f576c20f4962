"""The journal beside an unfinished file: which blocks have arrived, and the digest up to each.

A text file: one line of JSON that says which source it belongs to, then one line for each block in
order, the SHA-256 of everything up to the end of that block. It is never flushed to the disk on its
own: after a crash of the machine the lines say what to look for, and the blocks are hashed again
before one of them is believed.
"""

from __future__ import annotations

import json
import os
from typing import Any

from mrc.cli.digest import DIGEST_BYTES
from mrc.cli.manifest import Entry

_LINE_BYTES = 2 * DIGEST_BYTES + 1
_FORMAT = 1


class Journal:
    """An open journal. The descriptor is the caller's until `close`.

    Args:
        fd: open for reading and writing.
        entry: the source it must belong to.
        block_bytes: the length of a block of this transfer.
    """

    def __init__(self, fd: int, entry: Entry, block_bytes: int) -> None:
        self._fd = fd
        self._header = _header(entry, block_bytes)
        self._blocks_max = -(-entry.size // block_bytes)

    def load(self) -> list[bytes]:
        """Read the digests of the blocks that arrived; none when it belongs to another source."""
        # A damaged journal is an empty one: what it spared would only have been saved time.
        header = os.pread(self._fd, len(self._header), 0)
        if header != self._header:
            return []
        digests: list[bytes] = []
        offset = len(header)
        while len(digests) < self._blocks_max:
            lines = os.pread(self._fd, 1024 * _LINE_BYTES, offset)
            good = _parse(lines)
            digests += good
            offset += len(good) * _LINE_BYTES
            if len(good) < 1024:
                break
        return digests[: self._blocks_max]

    def start(self, digests: list[bytes]) -> None:
        """Write the journal anew with the blocks that have been found good."""
        lines = b"".join(digest.hex().encode() + b"\n" for digest in digests)
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        _write(self._fd, self._header + lines)

    def append(self, digest: bytes) -> None:
        """Note one more block, by the digest of everything up to its end."""
        _write(self._fd, digest.hex().encode() + b"\n")

    def close(self) -> None:
        """Close the descriptor; again is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _header(entry: Entry, block_bytes: int) -> bytes:
    identity: dict[str, Any] = {
        "mrc_journal": _FORMAT,
        "path": entry.path,
        "size": entry.size,
        "mtime_ns": entry.mtime_ns,
        "block_bytes": block_bytes,
    }
    return json.dumps(identity).encode() + b"\n"


def _parse(lines: bytes) -> list[bytes]:
    """Read whole, well-formed lines and stop at the first that is not."""
    digests = []
    for start in range(0, len(lines) - _LINE_BYTES + 1, _LINE_BYTES):
        line = lines[start : start + _LINE_BYTES]
        try:
            digest = bytes.fromhex(line[:-1].decode("ascii"))
        except ValueError:
            break
        if len(digest) != DIGEST_BYTES or line[-1:] != b"\n":
            break
        digests.append(digest)
    return digests


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
