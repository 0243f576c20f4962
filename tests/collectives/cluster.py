"""All ranks of a job in one event loop, on loopback: quick, and one can look into each."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

import mrc
from mrc import collectives

T = TypeVar("T")

DEADLINE_S = 60.0


def free_port() -> int:
    """Return a TCP port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def bootstraps(size: int, **settings: Any) -> list[collectives.Bootstrap]:
    """Return what each rank of a job on loopback must know."""
    url = mrc.Url.parse(f"127.0.0.1:{free_port()}")
    return [
        collectives.Bootstrap(rank=rank, size=size, url=url, timeout_s=DEADLINE_S, **settings)
        for rank in range(size)
    ]


@contextlib.asynccontextmanager
async def cluster(
    size: int, *, sockets: Callable[[int], Any] | None = None, **settings: Any
) -> AsyncIterator[list[collectives.World]]:
    """Yield the communicators of all ranks.

    Args:
        size: how many ranks.
        sockets: returns the factory of sockets for a rank.
        settings: of `join`.
    """
    joining = [
        collectives.join(
            bootstrap, sockets=sockets(bootstrap.rank) if sockets is not None else None, **settings
        )
        for bootstrap in bootstraps(size)
    ]
    async with asyncio.timeout(DEADLINE_S):
        worlds = await asyncio.gather(*joining)
    try:
        yield worlds
    except BaseException:
        await asyncio.gather(*(world.abort() for world in worlds))
        raise
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(world.close() for world in worlds))


async def each(doing: Iterable[Awaitable[T]]) -> list[T]:
    """Let all ranks do something, and return what each of them got."""
    async with asyncio.timeout(DEADLINE_S):
        return list(await asyncio.gather(*doing))
