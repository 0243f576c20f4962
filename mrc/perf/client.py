"""The connecting side: opens queue pairs, drives every test, and gathers what both sides saw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Any, Protocol

import mrc
from mrc.errors import MrcError
from mrc.perf.conversation import (
    Accept,
    Bye,
    Finding,
    Join,
    Offer,
    Ready,
    Region,
    Result,
    Run,
    Stop,
    Talk,
    Target,
)
from mrc.perf.explain import findings
from mrc.perf.kinds import sides
from mrc.perf.lanes import CONNECTING, LISTENING, Lane
from mrc.perf.latency import Ping
from mrc.perf.measures import Meter
from mrc.perf.memory import check_room
from mrc.perf.parts import Part, while_progressing
from mrc.perf.probe import Probe
from mrc.perf.report import Report, SizeReport, rate
from mrc.perf.settings import Plan, Round
from mrc.units import NS_PER_S, NS_PER_US

Connect = Callable[[], Awaitable[mrc.QueuePair]]


class Audience(Protocol):
    """Whom a run is told to while it goes on."""

    def began(self, report: Report) -> None:
        """The peer is there, and `report.start` is complete."""

    def interval(self, report: Report) -> None:
        """`report.intervals` has one more."""

    def tested(self, report: Report) -> None:
        """`report.tests` has one more that is over."""


class WrongContents(MrcError):
    """What arrived is not what was sent."""


class Client:
    """One run against one listener.

    Args:
        plan: what to measure.
        report: where it goes, as it is known.
        audience: who is told.
    """

    def __init__(self, plan: Plan, report: Report, audience: Audience) -> None:
        self._plan = plan
        self._report = report
        self._audience = audience
        self._lanes: list[Lane] = []

    async def measure(self, endpoint: mrc.Endpoint, connect: Connect) -> None:
        """Connect, run every test and say goodbye.

        Args:
            endpoint: open.
            connect: makes one queue pair of it to the listener.

        Raises:
            WrongContents: some message did not arrive as it was sent.
            PeerError: the listener is not there, refused, or said something impossible.
            TransportError: it, or all paths to it, were lost.
            ConfigError: the buffers do not fit this machine's memory.
        """
        plan = self._plan
        check_room(plan.qps * plan.lane_bytes * (2 if plan.both_ways else 1))
        async with AsyncExitStack() as stack:
            control = await stack.enter_async_context(await connect())
            talk = Talk(control, plan.timeout_s)
            session = (await talk.ask(self._offer(), Accept)).session
            for index in range(plan.qps):
                qp = await stack.enter_async_context(await connect())
                self._lanes.append(await self._lane(qp, index, session))
            self._report.start |= _connection_json(control, endpoint)
            self._audience.began(self._report)
            for message_bytes in plan.sizes:
                await self._test(talk, endpoint, message_bytes)
            await talk.say(Bye())
        wrong = sum(test.wrong_bytes or 0 for test in self._report.tests)
        if wrong:
            raise WrongContents(f"{wrong:,} bytes did not arrive as they were sent")

    def _offer(self) -> Offer:
        plan = self._plan
        return Offer(
            kind=plan.kind,
            qps=plan.qps,
            buffer_bytes=plan.lane_bytes,
            message_bytes_max=max(plan.sizes),
            bidirectional=plan.bidirectional,
            verify=plan.verify,
            seed=plan.seed,
        )

    async def _lane(self, qp: mrc.QueuePair, index: int, session: str) -> Lane:
        plan = self._plan
        lane = Lane(qp, index)
        await lane.fill_source(plan.lane_bytes, plan.seed, CONNECTING)
        region = None
        if plan.both_ways:
            region = Region(**(await lane.open_target(plan.lane_bytes)).to_json())
        talk = Talk(qp, plan.timeout_s)
        target = await talk.ask(Join(session, index, region), Target)
        lane.remote = target.region.remote_untrusted()
        return lane

    # One test.

    async def _test(self, talk: Talk, endpoint: mrc.Endpoint, message_bytes: int) -> None:
        plan = self._plan
        warm_up = plan.warm_up_operations(message_bytes)
        if warm_up:
            unseen = SizeReport(plan.kind, message_bytes)
            wanted = Round(message_bytes, warm_up, plan.depth, counts=False)
            await self._round(talk, unseen, wanted, Meter(self._lanes))
        test = SizeReport(plan.kind, message_bytes)
        self._report.tests.append(test)
        wanted = Round(message_bytes, plan.operations, plan.depth)
        probe = Probe(endpoint, self._lanes, plan.kind, wanted, writes=True)
        try:
            async with self._intervals(message_bytes), probe:
                result = await self._round(talk, test, wanted, probe.meter)
            test.complete = True
            self._report.findings = {"connecting": _told(probe), "listening": result.findings}
        finally:
            self._report.paths = path_json(self._lanes)
            self._audience.tested(self._report)

    async def _round(self, talk: Talk, test: SizeReport, wanted: Round, meter: Meter) -> Result:
        """Run one round and fill in what both sides saw of it."""
        plan = self._plan
        for lane in self._lanes if plan.verify else ():
            await lane.clear_target()
        part = sides(plan.kind, bidirectional=plan.bidirectional).connecting(self._lanes, wanted)
        # A listener that writes as well begins before its answer is here.
        incoming = Meter(self._lanes)
        await talk.ask(Run(**asdict(wanted)), Ready)
        meter.begin()
        try:
            await self._play(part, wanted, meter, talk.peer)
        finally:
            test.sent = meter.sender(wanted.message_bytes, sum(part.lane_operations))
            if isinstance(part, Ping):
                test.latency = part.samples.figures()
        result = await talk.ask(Stop(tuple(part.lane_operations)), Result)
        test.received = result.received
        if plan.both_ways:
            test.sent_back, test.received_back = result.sent, incoming.receiver()
        if plan.verify:
            test.wrong_bytes = (result.wrong_bytes or 0) + await self._wrong_bytes(wanted, result)
        return result

    async def _play(self, part: Part, wanted: Round, meter: Meter, peer: str) -> None:
        """Work until the operations are done, or the time is up and all is placed."""
        loop = asyncio.get_running_loop()
        timer = None if wanted.operations else loop.call_later(self._plan.duration_s, part.stop)
        try:
            await while_progressing(
                part.run(),
                meter.moved_bytes,
                self._plan.timeout_s,
                what=f"messages of {wanted.message_bytes} bytes",
                peer=peer,
            )
        finally:
            if timer is not None:
                timer.cancel()

    async def _wrong_bytes(self, wanted: Round, result: Result) -> int:
        """Count what is wrong with the listener's messages."""
        wrong = 0
        for lane, operations in zip(self._lanes, result.operations, strict=False):
            wrong += await lane.wrong_bytes(
                wanted.message_bytes, operations, self._plan.seed, LISTENING
            )
        return wrong

    # Interim figures.

    @asynccontextmanager
    async def _intervals(self, message_bytes: int) -> AsyncIterator[None]:
        """Note interim figures for as long as the block lasts."""
        if not self._plan.interval_s:
            yield
            return
        task = asyncio.ensure_future(self._note_intervals(message_bytes))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _note_intervals(self, message_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        meter = Meter(self._lanes)
        meter.begin()
        began_ns, due_s = meter.began_ns, loop.time()
        while True:
            due_s += self._plan.interval_s
            await asyncio.sleep(due_s - loop.time())
            figures, received = meter.sender(message_bytes), meter.receiver()
            start_ns = meter.began_ns - began_ns
            meter.begin()
            self._report.intervals.append(
                {
                    "message_bytes": message_bytes,
                    "start_seconds": start_ns / NS_PER_S,
                    "end_seconds": (start_ns + figures.duration_ns) / NS_PER_S,
                    "bytes": figures.bytes,
                    "bits_per_second": rate(8 * figures.bytes, figures.duration_ns),
                    "reverse_bytes": received.bytes if self._plan.both_ways else None,
                    "packets": figures.packets,
                    "retransmitted_packets": figures.retransmitted_packets,
                    "cpu_percent": rate(100 * figures.cpu_ns / NS_PER_S, figures.duration_ns),
                    **window_json(self._lanes),
                }
            )
            self._audience.interval(self._report)


def _told(probe: Probe) -> tuple[Finding, ...]:
    return findings(probe.observed) if probe.observed is not None else ()


def window_json(lanes: list[Lane]) -> dict[str, Any]:
    """Return window and round trip, all lanes together."""
    requestors = [lane.qp.statistics().requestor for lane in lanes]
    return {
        "cwnd_bytes": sum(each.cwnd_bytes for each in requestors),
        "inflight_bytes": sum(each.inflight_bytes for each in requestors),
        "srtt_us": max(each.srtt_ns for each in requestors) / NS_PER_US,
    }


def path_json(lanes: list[Lane]) -> list[dict[str, Any]]:
    """Return the counters of every path since the beginning; all lanes share them."""
    return [asdict(path) for path in lanes[0].qp.statistics().paths] if lanes else []


def _connection_json(qp: mrc.QueuePair, endpoint: mrc.Endpoint) -> dict[str, Any]:
    facts = qp.facts()
    return {
        "peer": qp.peer,
        "cipher": facts.cipher,
        "icrc": facts.icrc,
        "mtu_bytes": facts.mtu_bytes,
        "planes": facts.planes,
        "paths": endpoint.config.paths,
    }
