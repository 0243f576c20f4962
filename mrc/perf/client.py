"""The connecting side: opens queue pairs, drives every test, and gathers what both sides saw."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any, Protocol

import mrc
from mrc.errors import MrcError, PeerProtocolError
from mrc.perf.bandwidth import Stream
from mrc.perf.conversation import (
    Accept,
    Bye,
    Join,
    Offer,
    Ready,
    Result,
    Round,
    Stop,
    Target,
)
from mrc.perf.explain import findings
from mrc.perf.lanes import CONNECTING, LISTENING, Lane, clear_targets, count_wrong_bytes
from mrc.perf.latency import Ping
from mrc.perf.measures import Meter, ReceiverFigures
from mrc.perf.memory import check_room
from mrc.perf.parts import Part, ticks, together, while_progressing
from mrc.perf.probe import Probe
from mrc.perf.report import Report, SizeReport, rate
from mrc.perf.settings import Kind, Plan
from mrc.perf.talk import Talk
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
        plan, offer = self._plan, self._offer()
        check_room(offer.memory_bytes)
        async with AsyncExitStack() as stack:
            control = await stack.enter_async_context(await connect())
            talk = Talk(control, plan.timeout_s)
            await stack.enter_async_context(talk.telling_why())
            session = (await talk.ask(offer, Accept)).session
            await talk.working(self._open_lanes(stack, connect, session))
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

    async def _open_lanes(self, stack: AsyncExitStack, connect: Connect, session: str) -> None:
        for index in range(self._plan.qps):
            lane = Lane(await stack.enter_async_context(await connect()), index)
            stack.callback(lane.free)
            await self._open_lane(lane, session)
            self._lanes.append(lane)

    async def _open_lane(self, lane: Lane, session: str) -> None:
        plan = self._plan
        await lane.fill_source(plan.lane_bytes, plan.seed, CONNECTING)
        region = await lane.open_target(plan.lane_bytes) if plan.both_ways else None
        target = await Talk(lane.qp, plan.timeout_s).ask(Join(session, lane.index, region), Target)
        if target.region.length < plan.lane_bytes:
            raise PeerProtocolError(
                f"{lane.qp.peer} has {target.region.length} bytes of memory for {plan.lane_bytes}"
            )
        lane.remote = target.region

    # One test.

    async def _test(self, talk: Talk, endpoint: mrc.Endpoint, message_bytes: int) -> None:
        plan, depth = self._plan, self._plan.depth_for(message_bytes)
        warm_up = plan.warm_up_operations(message_bytes)
        if warm_up:
            unseen = SizeReport(plan.kind, message_bytes)
            wanted = Round(message_bytes, warm_up, depth, counts=False)
            await self._round(talk, unseen, wanted, Meter(self._lanes))
        test = SizeReport(plan.kind, message_bytes)
        self._report.tests.append(test)
        wanted = Round(message_bytes, plan.operations, depth)
        probe = Probe(endpoint, self._lanes, plan.kind, wanted, writes=True)
        try:
            async with probe:
                measured = asyncio.ensure_future(self._round(talk, test, wanted, probe.meter))
                await together((_done(measured), self._note_intervals(message_bytes, measured)))
            result = measured.result()
            test.complete = True
            self._report.findings = {
                "connecting": findings(probe.observed),
                "listening": result.findings,
            }
        finally:
            self._report.paths = path_json(self._lanes)
            self._audience.tested(self._report)

    async def _round(self, talk: Talk, test: SizeReport, wanted: Round, meter: Meter) -> Result:
        """Run one round and fill in what both sides saw of it."""
        plan = self._plan
        if plan.verify:
            await talk.working(clear_targets(self._lanes))
        part: Part = (Ping if plan.kind is Kind.LATENCY else Stream)(self._lanes, wanted)
        # A listener that writes as well begins before its answer is here.
        incoming = Meter(self._lanes)
        await talk.ask(wanted, Ready)
        meter.begin()
        try:
            await self._play(part, wanted, meter, talk.peer)
        finally:
            test.sent = meter.sender(wanted.message_bytes, sum(part.lane_operations))
            if isinstance(part, Ping):
                test.latency = part.samples.figures()
        await talk.say(Stop(tuple(part.lane_operations)))
        # What the listener has outstanding comes for as long as it comes.
        result = await talk.hear_untrusted(Result, incoming.moved_bytes)
        received_back = incoming.receiver()
        self._check(result, part, wanted, received_back)
        test.received = result.received
        if plan.both_ways:
            test.sent_back, test.received_back = result.sent, received_back
        if plan.verify:
            counting = count_wrong_bytes(
                self._lanes, wanted.message_bytes, result.operations, plan.seed, LISTENING
            )
            test.wrong_bytes = (result.wrong_bytes or 0) + await talk.working(counting)
        return result

    def _check(self, result: Result, part: Part, wanted: Round, received: ReceiverFigures) -> None:
        """Hold what the listener says it did against what was seen of it.

        Raises:
            PeerProtocolError: it cannot be.
        """
        plan, told = self._plan, sum(result.operations)
        if len(result.operations) != plan.qps:
            raise PeerProtocolError(f"counts of {len(result.operations)} lanes of {plan.qps}")
        if plan.verify and result.wrong_bytes is None:
            raise PeerProtocolError("the peer has not looked at the contents")
        if plan.kind is Kind.LATENCY and told != sum(part.lane_operations):
            raise PeerProtocolError(
                f"the peer counts {told} answers, {sum(part.lane_operations)} came"
            )
        if not plan.both_ways:
            return
        if result.sent is None:
            raise PeerProtocolError("the peer tells nothing of what it sent")
        told_bytes = told * wanted.message_bytes
        if (result.sent.operations, result.sent.bytes) != (told, told_bytes):
            raise PeerProtocolError("the peer's counts of what it sent contradict each other")
        if told_bytes > received.bytes:
            raise PeerProtocolError(
                f"the peer says that it sent {told_bytes} bytes, {received.bytes} came"
            )

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

    # Interim figures.

    async def _note_intervals(self, message_bytes: int, measured: asyncio.Future[Result]) -> None:
        """Note interim figures until a test is over."""
        if not self._plan.interval_s:
            return
        meter = Meter(self._lanes)
        meter.begin()
        began_ns = meter.began_ns
        async for _ in ticks(self._plan.interval_s, measured):
            start_ns = meter.began_ns - began_ns
            figures, received = meter.lap(message_bytes)
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


async def _done(measured: asyncio.Future[Result]) -> None:
    await measured


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
