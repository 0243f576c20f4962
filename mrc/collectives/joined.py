"""The first communicator, of all ranks of a job: from the bootstrap to the end of the endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import mrc
from mrc.collectives import joining
from mrc.collectives.bootstrap import Bootstrap
from mrc.collectives.communicator import Communicator
from mrc.collectives.failures import seconds
from mrc.collectives.health import DETECT_S_DEFAULT, Health
from mrc.collectives.interfaces import names_loopback
from mrc.collectives.member import TIMEOUT_S_DEFAULT
from mrc.collectives.store import Store
from mrc.errors import ConfigError

WORLD = "world"
DETECT_S_MIN, DETECT_S_MAX = 0.1, 86400.0
START_S_MIN = 10.0
"""For the hearts to begin, once all ranks know each other."""


class World(Communicator):
    """All ranks of a job; made by `join`. Its end is the end of all communicators made from it.

    Attributes:
        endpoint: of this rank, for the counters of its queue pairs; it belongs to the world.
        store: rank 0's small key-value store, for programs that want to tell each other more.
    """

    def __init__(
        self, endpoint: mrc.Endpoint, joined: joining.Joined, health: Health, timeout_s: float
    ) -> None:
        members = joined.mesh.members
        super().__init__(joined.mesh, health, WORLD, range(members.size), timeout_s=timeout_s)
        self.endpoint = endpoint
        self.store: Store = joined.store
        self._joined = joined
        self._gently = True

    async def abort(self) -> None:
        """End at once, as all that was made from it; what is under way is cancelled."""
        self._gently = not self._running
        await asyncio.gather(*(each.abort() for each in list(self._family)))
        await super().abort()

    async def _close(self) -> None:
        try:
            await asyncio.gather(*(each.close() for each in list(self._family)))
            await super()._close()
            await self._health.close(gently=self._gently)
        finally:
            await self._joined.close()


class Joining:
    """What `join` returns: ``await`` it, or use it with ``async with``."""

    def __init__(
        self, bootstrap: Bootstrap, endpoint: mrc.Endpoint, detect_s: float, timeout_s: float
    ) -> None:
        self._bootstrap = bootstrap
        self._endpoint = endpoint
        self._detect_s = detect_s
        self._timeout_s = timeout_s
        self._world: World | None = None

    async def _join(self) -> World:
        await self._endpoint.open()
        joined = await joining.join(self._bootstrap, self._endpoint)
        health = Health(joined.mesh, self._detect_s)
        try:
            await health.started(max(START_S_MIN, 2 * self._detect_s))
        except BaseException:
            await health.close(gently=False)
            await joined.close()
            raise
        return World(self._endpoint, joined, health, self._timeout_s)

    def __await__(self) -> Generator[Any, None, World]:
        return self._join().__await__()

    async def __aenter__(self) -> World:
        self._world = await self._join()
        return self._world

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._world is not None:
            await self._world.__aexit__(kind)


def join(
    bootstrap: Bootstrap | None = None,
    *,
    config: mrc.Config | None = None,
    detect_s: float = DETECT_S_DEFAULT,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    **endpoint: Any,
) -> Joining:
    """Join a job, and return the communicator of all its ranks.

    Args:
        bootstrap: who this rank is, and where rank 0; None: from the environment, as torchrun sets
            it.
        config: settings of the endpoint, of which the iCRC must be the same on all ranks. None:
            the defaults, with retries for at least `detect_s`, and without the iCRC where rank 0
            is at a loopback address: what never leaves a host's memory is not checked by kernels
            either.
        detect_s: 0.1 to 86400 seconds of silence on all paths after which a rank has failed. Too
            small: a rank that computes in its event loop is taken for dead; too large: the others
            wait that long for a machine that is gone. A process that ends is noticed at once.
        timeout_s: for an operation that says nothing else.
        endpoint: further arguments of `mrc.Endpoint`.

    Raises:
        ConfigError: a setting cannot be used.
        PeerError: on entering: not all ranks came in time.
    """
    if not DETECT_S_MIN <= detect_s <= DETECT_S_MAX:
        raise ConfigError(
            f"detect_s = {detect_s}: must be {DETECT_S_MIN} s to {seconds(DETECT_S_MAX)}"
        )
    chosen = Bootstrap.from_environment() if bootstrap is None else bootstrap
    own = mrc.Endpoint(config or default_config(chosen.url.address.host, detect_s), **endpoint)
    return Joining(chosen, own, detect_s, timeout_s)


def default_config(host: str, detect_s: float) -> mrc.Config:
    """Return the settings that `join` takes where rank 0 is at `host`: its docstring says why."""
    return mrc.Config(icrc=not names_loopback(host)).retrying_for(detect_s)
