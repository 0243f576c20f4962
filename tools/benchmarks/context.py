"""What a measurement is told: how much to do, where, and the files that several of them share."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.child import MissingError
from mrc.units import format_bytes

BLOCK_BYTES = 8 << 20
SPARE_BYTES = 512 << 20
"""Left free on the disk that files are made on."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to measure.

    Attributes:
        paths: UDP source ports that mrc sprays over.
        seconds: how long an mrc transfer without a file is measured.
        quic_bytes: uploaded by aioquic in one run, with datagrams of 1200 bytes.
        file_bytes: size of the file that mrc-send moves.
        seed: of whatever is drawn by chance: contents, losses, the path that fails.
    """

    paths: int
    seconds: float
    quic_bytes: int
    file_bytes: int
    seed: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to send, and its SHA-256."""

    path: Path
    sha256: str


class Context:
    """Settings, and a folder that is gone after the run.

    Args:
        settings: how much to measure.
        folder: an empty folder for files.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self._source: SourceFile | None = None
        self._runs = 0

    def next_seed(self) -> int:
        """Return another seed for every run, and the same ones for the same run of all."""
        self._runs += 1
        return self.settings.seed + self._runs

    async def source_file(self) -> SourceFile:
        """Return the file to send, made when first asked for.

        Raises:
            MissingError: no room for it and for its copy.
        """
        if self._source is None:
            size_bytes = self.settings.file_bytes
            free_bytes = shutil.disk_usage(self.folder).free
            if free_bytes < 2 * size_bytes + SPARE_BYTES:
                raise MissingError(
                    f"room for two files of {format_bytes(size_bytes)} in {self.folder.parent}"
                    f" ({format_bytes(free_bytes)} free): choose another --folder or --file-size"
                )
            path = self.folder / "source.bin"
            await make_file(path, size_bytes, self.settings.seed)
            self._source = SourceFile(path, await sha256_of(path))
        return self._source


async def make_file(path: Path, size_bytes: int, seed: int) -> None:
    """Write a file of random bytes, which nothing on the way can shorten, down to the disk.

    Works block by block in a thread, as `sha256_of` does, so that it can be cancelled.
    """
    rng = np.random.default_rng(seed)
    with path.open("wb", buffering=0) as file:
        left_bytes = size_bytes
        while left_bytes:
            block = await asyncio.to_thread(rng.bytes, min(BLOCK_BYTES, left_bytes))
            left_bytes -= await asyncio.to_thread(file.write, block)
        # Otherwise the kernel writes it out while something else is measured.
        await asyncio.to_thread(os.fsync, file.fileno())


async def sha256_of(path: Path) -> str:
    """Read a whole file and return its digest, independently of what moved it."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
            await asyncio.to_thread(digest.update, block)
    return digest.hexdigest()
