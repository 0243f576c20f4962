"""The ways a run of mrc-perf takes: listen, connect, both sides here, and in turns to compare."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import mrc
from mrc.cli.addresses import reachable_host
from mrc.cli.failures import ExitCode, exit_code
from mrc.cli.report import failure
from mrc.perf.client import Client
from mrc.perf.compare import HEADING, OPTIONS, Comparison
from mrc.perf.own_listener import OwnListener
from mrc.perf.report import Report, SizeReport, end_json
from mrc.perf.serving import Service
from mrc.perf.session import PerfSession
from mrc.perf.settings import Kind, Plan
from mrc.perf.table import heading, row

CLIENTS_KEPT_MAX = 100
"""Clients of a long-lived listener that its JSON document tells of: the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user asked for, as far as it is not in the plan.

    Attributes:
        listen: where a listener waits.
        planes: own addresses, empty for the one of the control connection.
        config: of the endpoint.
        locked: a listener has a lock.
        once: it ends after one client.
        until_eof: it ends when its standard input does.
        connect_timeout_s: for each step of a connection.
        timeout_s: without progress after which the peer counts as lost.
    """

    listen: mrc.Address
    planes: tuple[str, ...]
    config: mrc.Config
    locked: bool
    once: bool
    until_eof: bool
    connect_timeout_s: float
    timeout_s: float


async def connect(session: PerfSession, wishes: Wishes, plan: Plan, url: str) -> ExitCode:
    """Run the plan against a listener."""
    await _measure(session, wishes, plan, url)
    session.explained()
    return ExitCode.DONE


async def _measure(
    session: PerfSession, wishes: Wishes, plan: Plan, url: str
) -> Sequence[SizeReport]:
    """Run the plan with an endpoint made for it, and return the tests it adds to the report."""
    before = len(session.report.tests)
    async with mrc.Endpoint(wishes.config) as endpoint:

        def connecting() -> mrc.Connecting:
            return endpoint.connect(url, planes=wishes.planes, timeout_s=wishes.connect_timeout_s)

        await Client(plan, session.report, session).measure(endpoint, connecting)
    return session.report.tests[before:]


async def alone(session: PerfSession, wishes: Wishes, plan: Plan) -> ExitCode:
    """Run the plan against a listener of our own."""
    async with OwnListener(listener_options(wishes)) as listener:
        return await connect(session, wishes, plan, listener.url)


async def compare(
    session: PerfSession, wishes: Wishes, plan: Plan, feature: str, pairs: int
) -> ExitCode:
    """Run the plan without and with a feature in turns, and print what it costs."""
    session.in_turns = True
    comparison = Comparison(feature, plan.kind)
    plain, enabled = OPTIONS[feature]
    try:
        async with AsyncExitStack() as stack:
            listeners = [
                await stack.enter_async_context(OwnListener((*listener_options(wishes), *options)))
                for options in (plain, enabled)
            ]

            async def measure(on: bool) -> Sequence[SizeReport]:
                config = replace(wishes.config, icrc=on) if feature == "icrc" else wishes.config
                own = replace(wishes, config=config)
                return await _measure(session, own, plan, listeners[on].url)

            await comparison.run(measure, pairs)
    finally:
        session.more["comparison"] = comparison.to_json()
        rows = comparison.rows()
        if rows:
            count = len(comparison.pairs)
            session.say(f"{count} pair{'s' if count > 1 else ''} of runs, in turns")
            session.say(HEADING)
        for each in rows:
            session.say(str(each))
    session.explained()
    return ExitCode.DONE


def listener_options(wishes: Wishes) -> tuple[str, ...]:
    """Return what a listener of our own must have as we have it."""
    return (
        *("--paths", str(wishes.config.paths)),
        *("--mtu", str(wishes.config.mtu)),
        *("--icrc", "on" if wishes.config.icrc else "off"),
        *("--timeout", str(wishes.timeout_s)),
        *(("--lock",) if wishes.locked else ()),
        *(word for plane in wishes.planes for word in ("--plane", plane)),
    )


# Listening.


class Log:
    """What a listener tells of its clients."""

    def __init__(self, session: PerfSession) -> None:
        self._session = session
        self._clients: list[dict[str, Any]] = []
        self.code = ExitCode.DONE
        session.more["clients"] = self._clients

    def told(self, report: Report, error: BaseException | None) -> None:
        """A client is over."""
        session = self._session
        cancelled = isinstance(error, asyncio.CancelledError)
        code = exit_code(error, established=True)
        if error is not None and not cancelled:
            session.complain(error)
        if not report.start:
            return
        self.code = code
        session.report.tests = report.tests
        ended = {"error": None if cancelled else failure(error, code)}
        self._clients.append({**report.start, "end": end_json(report), **ended})
        del self._clients[:-CLIENTS_KEPT_MAX]
        if not report.tests:
            return
        session.say(f"{report.start['peer']}, as counted here:")
        if report.tests[0].kind is Kind.LATENCY:
            session.say(f"{sum(test.operations for test in report.tests)} messages answered")
            return
        session.say(heading(Kind.BANDWIDTH))
        for test in report.tests:
            session.say(row(test))


async def listen(session: PerfSession, wishes: Wishes) -> ExitCode:
    """Serve one client after the other."""
    log = Log(session)
    lock = mrc.Lock.new() if wishes.locked else None
    async with (
        mrc.Endpoint(wishes.config) as endpoint,
        endpoint.listen(str(wishes.listen), planes=wishes.planes, lock=lock) as listener,
    ):
        host, port = listener.address
        session.announce(
            mrc.Url(mrc.Address(reachable_host(host), port), lock.key if lock else None)
        )
        serving = asyncio.ensure_future(
            Service(endpoint, wishes.timeout_s, log.told).serve(listener, once=wishes.once)
        )
        if wishes.until_eof:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _on_stdin, serving)
        try:
            await serving
        except asyncio.CancelledError:
            if not (wishes.until_eof and serving.done()):
                raise
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
    return log.code


def _on_stdin(serving: asyncio.Future[None]) -> None:
    """Standard input has ended, or somebody said something: either means to stop."""
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    serving.cancel()
