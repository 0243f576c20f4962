"""Who connects before this rank knows who there is: a moment sooner is no mistake."""

from __future__ import annotations

import asyncio
from typing import Literal

import mrc
from mrc.collectives.mesh import Membership, Mesh

DEADLINE_S = 30.0
START = "of this start"


async def opened() -> Mesh:
    """Return a mesh that listens, and does not know the members yet."""
    endpoint = mrc.Endpoint()
    await endpoint.open()
    listener = endpoint.listen("127.0.0.1:0")
    await listener.__aenter__()
    return Mesh(endpoint, listener, START)


class Asked(asyncio.Event):
    """Tells when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def wait(self) -> Literal[True]:
        """Wait, and tell so."""
        self.asked.set()
        return await super().wait()


def test_a_rank_that_knows_all_sooner_may_connect_at_once() -> None:
    """Its queue pair waits for this rank to learn who is there, and is not turned away."""

    async def meet() -> bytes:
        lower, higher = await opened(), await opened()
        urls = ((lower.url,), (higher.url,))
        higher.members = Membership(1, urls, START)
        known = lower._known = Asked()  # noqa: SLF001 - what it waits for
        early = await higher.queue_pair("world", 0)
        greeting = asyncio.ensure_future(early.receive())
        await known.asked.wait()
        lower.members = Membership(0, urls, START)
        qp = await lower.queue_pair("world", 1)
        await qp.send(b"welcome")
        told = await greeting
        await asyncio.gather(lower.close(), higher.close())
        return told

    async def in_time() -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await meet()

    assert asyncio.run(in_time()) == b"welcome"
