"""The two ways a run of collectives takes: all ranks started here, or one rank of a job."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
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
LOOPBACK = "127.0.0.1"
"""Where ranks that are started here are."""
_PORT = "MRC_MASTER_PORT"
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
    loop = asyncio.get_running_loop()
    listening: asyncio.Future[mrc.Url] = loop.create_future()

    def on_listening(url: mrc.Url) -> None:
        loop.call_soon_threadsafe(listening.set_result, url)

    with _job(plan.ranks, locked=start.locked) as job:
        bootstrap = replace(
            Bootstrap.from_environment({**job, "RANK": "0"}),
            announce=on_listening,
        )
        measuring = asyncio.ensure_future(_measure(session, plan, start, bootstrap))
        try:
            await asyncio.wait((measuring, listening), return_when=asyncio.FIRST_COMPLETED)
            if measuring.done():
                await measuring
            job[_PORT] = str(listening.result().address.port)
            others = [{**job, "RANK": str(rank)} for rank in range(1, plan.ranks)]
            async with OwnRanks(others, start.words) as ranks:
                await _watched(measuring, ranks)
        finally:
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)
    return _conclude(session)


async def _watched(measuring: asyncio.Task[None], ranks: OwnRanks) -> None:
    """Wait until all is measured, or one of the ranks has failed."""
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
def _job(ranks: int, *, locked: bool) -> Iterator[dict[str, str]]:
    """Yield the environment of all ranks, as torchrun would set it, around ours.

    The port is any for rank 0; for the others it is to be filled in.
    """
    job = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": LOOPBACK}
    # Ours may have been set by a launcher, whose own port is none of ours.
    job |= dict.fromkeys(("MASTER_PORT", _PORT), "0")
    with tempfile.TemporaryDirectory(prefix="mrc-perf-") as folder:
        if locked:
            job["MRC_IDENTITY"] = str(Path(folder) / "identity.pem")
            job["MRC_TOKEN"] = secrets.token_urlsafe(16)
        yield {**os.environ, **job}


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
