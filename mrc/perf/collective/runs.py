"""The two ways a run of collectives takes: all ranks started here, or one rank of a job."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import mrc
from mrc.cli.failures import ExitCode
from mrc.collectives import Bootstrap, join
from mrc.errors import ConfigError, PeerLost
from mrc.perf.client import WrongContents
from mrc.perf.collective.compare import fastest
from mrc.perf.collective.measuring import measure
from mrc.perf.collective.own_ranks import OwnRanks
from mrc.perf.collective.session import CollectiveSession
from mrc.perf.collective.settings import CollectivePlan
from mrc.perf.memory import MEMORY_SHARE_MAX, available_bytes
from mrc.units import format_bytes

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_HOST = "127.0.0.1"
_GRACE_S = 1.0
"""For the end of a process to be seen, once the ranks have seen that it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How ranks come together.

    Attributes:
        config: of their endpoints.
        meet_timeout_s: for all to come.
        locked: ranks that are started here get a lock and its token.
        words: options for ranks that are started here.
        until_eof: this rank ends when its standard input does.
    """

    config: mrc.Config
    meet_timeout_s: float
    locked: bool = False
    words: tuple[str, ...] = ()
    until_eof: bool = False


async def alone(session: CollectiveSession, plan: CollectivePlan, start: Start) -> ExitCode:
    """Be rank 0, and start all others as processes of this host.

    Raises:
        MrcError: of the rank that failed, wherever it ran.
        WrongContents: once all is measured, values were wrong.
    """
    _check_room(sum(plan.memory_bytes(rank) for rank in range(plan.ranks)))
    with _environments(plan.ranks, locked=start.locked) as (own, *others):
        bootstrap = Bootstrap.from_environment(own)
        async with OwnRanks(others, start.words) as ranks:
            measuring = asyncio.ensure_future(_measure(session, plan, start, bootstrap))
            watching = asyncio.ensure_future(ranks.watch())
            try:
                await asyncio.wait((measuring, watching), return_when=asyncio.FIRST_COMPLETED)
                if measuring.done() and measuring.exception() is not None:
                    # The process that ended knows best why.
                    await asyncio.wait((watching,), timeout=_GRACE_S)
                if watching.done():
                    watching.result()
                await measuring
            finally:
                for task in (measuring, watching):
                    task.cancel()
                await asyncio.gather(measuring, watching, return_exceptions=True)
    return _conclude(session)


async def one_rank(
    session: CollectiveSession, plan: CollectivePlan, start: Start, bootstrap: Bootstrap
) -> ExitCode:
    """Be one rank of a job that somebody else has started.

    Raises:
        MrcError: a rank has failed.
        WrongContents: once all is measured, values were wrong; rank 0 says so.
        PeerLost: the command that started this rank is gone.
    """
    _check_room(plan.memory_bytes(bootstrap.rank))
    measuring = asyncio.ensure_future(_measure(session, plan, start, bootstrap))
    orphaned: list[bool] = []

    def on_stdin() -> None:
        orphaned.append(True)
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        measuring.cancel()

    if start.until_eof:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), on_stdin)
    try:
        await measuring
    except asyncio.CancelledError:
        if not orphaned:
            raise
        raise PeerLost("the command that started this rank is gone") from None
    finally:
        measuring.cancel()
        await asyncio.gather(measuring, return_exceptions=True)
    if bootstrap.rank:
        return ExitCode.FAILED if any(test.wrong for test in session.tests) else ExitCode.DONE
    return _conclude(session)


async def _measure(
    session: CollectiveSession, plan: CollectivePlan, start: Start, bootstrap: Bootstrap
) -> None:
    bootstrap = replace(bootstrap, timeout_s=start.meet_timeout_s)
    async with join(bootstrap, config=start.config, timeout_s=plan.timeout_s) as world:
        session.established = True
        await measure(world, plan, session)


def _conclude(session: CollectiveSession) -> ExitCode:
    """Say what all tests come to.

    Raises:
        WrongContents: values were wrong.
    """
    session.concluded()
    best = fastest(session.tests)
    if best:
        session.more["comparison"] = {
            "feature": "algorithms",
            "rows": [each.to_json() for each in best],
        }
    for each in best:
        session.say(str(each))
    wrong = [test for test in session.tests if test.wrong]
    if wrong:
        first = wrong[0]
        raise WrongContents(
            f"{sum(test.wrong or 0 for test in wrong)} wrong values in {len(wrong)} of"
            f" {len(session.tests)} tests, the first of {first.size_bytes} bytes by"
            f" {first.algorithm or 'send and receive'}"
        )
    return ExitCode.DONE


@contextmanager
def _environments(ranks: int, *, locked: bool) -> Iterator[list[Mapping[str, str]]]:
    """Yield the environment of each rank, as torchrun would set it, around ours."""
    job = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": _HOST, "MASTER_PORT": str(_free_port())}
    with tempfile.TemporaryDirectory(prefix="mrc-perf-") as folder:
        if locked:
            job["MRC_IDENTITY"] = str(Path(folder) / "identity.pem")
            job["MRC_TOKEN"] = secrets.token_urlsafe(16)
        yield [{**os.environ, **job, "RANK": str(rank)} for rank in range(ranks)]


def _free_port() -> int:
    """Return a TCP port of loopback that nobody had just now."""
    with socket.socket() as sock:
        sock.bind((_HOST, 0))
        return int(sock.getsockname()[1])


def _check_room(wanted_bytes: int) -> None:
    """Make sure that the buffers leave this machine enough memory.

    Raises:
        ConfigError: they do not; it says how much there may be.
    """
    allowed = available_bytes() // MEMORY_SHARE_MAX
    if wanted_bytes > allowed:
        raise ConfigError(
            f"buffers of {format_bytes(wanted_bytes)} in all ranks here; {format_bytes(allowed)} at"
            " most, half of the memory that is free: take a smaller --size or fewer --ranks"
        )
