"""The listening side: takes one client after the other, and does what each of them asks for.

Every queue pair that is accepted says first what it is: a client's offer, or a lane of the client
that is being served. Whatever else comes is refused, closed and counted, and the next is served.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import mrc
from mrc.errors import MrcError, PeerProtocolError
from mrc.perf.bandwidth import Sink, Stream
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
    message_untrusted,
    offer_untrusted,
)
from mrc.perf.explain import findings
from mrc.perf.lanes import CONNECTING, LISTENING, Lane, clear_targets, count_wrong_bytes
from mrc.perf.latency import Pong
from mrc.perf.measures import Meter
from mrc.perf.memory import check_room
from mrc.perf.parts import Part, while_progressing, within
from mrc.perf.probe import Probe
from mrc.perf.report import Report, SizeReport
from mrc.perf.settings import QPS_MAX, TESTS_MAX, WRITES_MAX, Kind
from mrc.perf.talk import Talk

GREETING_TIMEOUT_S = 10.0
"""For a queue pair to say what it is."""
QPS_AT_ONCE_MAX = 2 * QPS_MAX
"""Queue pairs of the client and of whoever has not said yet what he wants; 16 KiB each, behind a
lock what OpenSSL keeps as well."""
TOLD_AT_ONCE_MAX = 16
"""Further ones that are told so before they are closed; still others just are."""
_JOIN_S = 1.0
_FILL_BYTES_PER_S = 100e6
"""A client has so long for each of its queue pairs and their buffers, a tenth of what is usual."""


class Unwanted(MrcError):
    """This listener does not take what it was offered, now or at all."""


class Service:
    """A listener that serves clients one after the other.

    Args:
        endpoint: its endpoint.
        timeout_s: without any progress after which a client counts as lost.
        told: called with every client's report when it is over, and with what went wrong.
    """

    def __init__(
        self,
        endpoint: mrc.Endpoint,
        timeout_s: float,
        told: Callable[[Report, BaseException | None], None],
    ) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._told = told
        self._serving: _Client | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._once = False

    async def serve(self, listener: mrc.Listener, *, once: bool) -> None:
        """Serve until cancelled, or until the first client that was accepted is done.

        Raises:
            Exception: what `told` has raised.
        """
        self._once = once
        greetings: set[asyncio.Task[None]] = set()
        accepting = asyncio.ensure_future(self._accept(listener, greetings))
        try:
            await asyncio.wait((accepting, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                accepting.result()
        finally:
            tasks = [accepting, *greetings]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._ended.done():
                self._ended.result()

    async def _accept(self, listener: mrc.Listener, greetings: set[asyncio.Task[None]]) -> None:
        while True:
            qp = await listener.accept()
            if len(greetings) < QPS_AT_ONCE_MAX:
                task = asyncio.ensure_future(self._greet(qp))
            elif len(greetings) < QPS_AT_ONCE_MAX + TOLD_AT_ONCE_MAX:
                task = asyncio.ensure_future(_turn_away(qp))
            else:
                qp.abort()
                continue
            greetings.add(task)
            task.add_done_callback(greetings.discard)

    async def _greet(self, qp: mrc.QueuePair) -> None:
        """Find out what a queue pair is for, and see it through; the others do not suffer."""
        client: _Client | None = None
        try:
            async with qp:
                talk = Talk(qp, self._timeout_s)
                async with talk.telling_why():
                    said = qp.channel.receive()
                    line = await within(GREETING_TIMEOUT_S, said, "a greeting", qp.peer)
                    if line.get("type") == Join.TYPE:
                        await self._join(qp, talk, message_untrusted(line, Join))
                        return
                    client = self._admit(qp, offer_untrusted(line))
                    await client.run(talk)
                # The next may come while this one's connections are being closed.
                self._release(client)
            self._end(client, None)
        except Exception as error:  # noqa: BLE001 - one client must not end all others
            self._end(client, error)
        except asyncio.CancelledError as error:
            if client is not None:
                self._end(client, error)
            raise

    async def _join(self, qp: mrc.QueuePair, talk: Talk, join: Join) -> None:
        """Give a queue pair to the client that it belongs to, and keep it until that has gone."""
        client = self._serving
        if client is None or not client.is_called_untrusted(join.session):
            raise Unwanted("no such session")
        try:
            await client.join(qp, talk, join)
            await client.over.wait()
        except MrcError:
            # Once the client is over it is no news what becomes of its queue pairs.
            if not client.over.is_set():
                raise
        finally:
            self._make_room(client)

    def _admit(self, qp: mrc.QueuePair, offer: Offer) -> _Client:
        """Take a client, unless there is one, or it wants more than there is."""
        if self._serving is not None:
            raise Unwanted(f"busy with {self._serving.peer}; try again later")
        check_room(offer.memory_bytes)
        self._serving = client = _Client(self._endpoint, offer, qp, self._timeout_s)
        return client

    def _end(self, client: _Client | None, error: BaseException | None) -> None:
        """Make room for the next client, and tell of this one."""
        if client is not None:
            self._release(client)
        try:
            self._told(client.report if client is not None else Report(), error)
        except Exception as failure:  # noqa: BLE001 - `serve` raises it
            if not self._ended.done():
                self._ended.set_exception(failure)
        if client is not None and self._once and not self._ended.done():
            self._ended.set_result(None)

    def _release(self, client: _Client) -> None:
        """Let go of the client's queue pairs and memory. Twice is once."""
        client.free()
        self._make_room(client)

    def _make_room(self, client: _Client) -> None:
        """Let the next client come, once this one has all of its memory given back."""
        if self._serving is client and client.is_gone:
            self._serving = None


async def _turn_away(qp: mrc.QueuePair) -> None:
    async with qp:
        await Talk(qp, GREETING_TIMEOUT_S).refuse(Unwanted("too many at once; try again later"))


class _Client:
    """What the listener does for one client.

    Attributes:
        session: what its queue pairs say.
        report: what was seen of it.
        over: set when it has gone.
    """

    def __init__(
        self, endpoint: mrc.Endpoint, offer: Offer, control: mrc.QueuePair, timeout_s: float
    ) -> None:
        self._endpoint = endpoint
        self._offer = offer
        self._timeout_s = timeout_s
        self._taken: dict[int, Lane] = {}
        """All lanes, or those whose memory is still being made when the client has gone."""
        self._lanes: dict[int, Lane] = {}
        """Those that are ready."""
        self.peer = control.peer
        self.session = secrets.token_hex(16)
        self.over = asyncio.Event()
        self.report = Report(
            start={
                "peer": control.peer,
                "cipher": control.facts().cipher,
                "test": offer.kind.value,
                "queue_pairs": offer.qps,
                "bidirectional": offer.bidirectional,
            }
        )

    def is_called_untrusted(self, session: str) -> bool:
        """Compare what a queue pair says with the session, in a time that tells nothing."""
        said = session.encode("utf-8", "surrogatepass")
        return secrets.compare_digest(said, self.session.encode())

    @property
    def is_gone(self) -> bool:
        """It is over, and nothing is at work on its memory any more."""
        return self.over.is_set() and not self._taken

    def free(self) -> None:
        """End it, and let go of all memory; what is being made is let go of by `join`."""
        self.over.set()
        for lane in self._taken.values():
            lane.free()
        for index in self._lanes:
            del self._taken[index]
        self._lanes.clear()

    async def join(self, qp: mrc.QueuePair, talk: Talk, join: Join) -> None:
        """Take a queue pair as a lane, with memory of its own.

        Raises:
            PeerProtocolError: it is one too many, or has no memory for what it will get.
            QueuePairClosed: the client ended meanwhile.
        """
        offer, index = self._offer, join.lane
        if index >= offer.qps or index in self._taken or self.over.is_set():
            raise PeerProtocolError(f"lane {index} of {offer.qps} is none, or taken")
        if offer.both_ways and (join.region is None or join.region.length < offer.buffer_bytes):
            raise PeerProtocolError(f"lane {index} has no memory to be written to")
        lane = self._taken[index] = Lane(qp, index)
        try:
            region = await talk.working(self._fill(lane))
            await talk.say(Target(region))
        except BaseException:
            lane.free()
            del self._taken[index]
            raise
        lane.remote = join.region
        self._lanes[index] = lane

    async def _fill(self, lane: Lane) -> mrc.RemoteRegion:
        offer = self._offer
        if offer.both_ways:
            await lane.fill_source(offer.buffer_bytes, offer.seed, LISTENING)
        return await lane.open_target(offer.buffer_bytes)

    async def run(self, talk: Talk) -> None:
        """Accept the client and do its rounds until it says goodbye."""
        offer, what = self._offer, "what to do next"
        await talk.say(Accept(self.session))
        joins_s = offer.qps * _JOIN_S + offer.memory_bytes / _FILL_BYTES_PER_S
        line = await within(
            self._timeout_s + joins_s, talk.line_untrusted(what), "all queue pairs", self.peer
        )
        while line.get("type") != Bye.TYPE:
            await self._round(talk, message_untrusted(line, Round), self._all_lanes())
            line = await talk.line_untrusted(what)

    def _all_lanes(self) -> list[Lane]:
        """Return the lanes in their order.

        Raises:
            PeerProtocolError: some are missing.
        """
        if len(self._lanes) < self._offer.qps:
            raise PeerProtocolError(
                f"{self.peer} begins with {len(self._lanes)} queue pairs of {self._offer.qps}"
            )
        return [self._lanes[index] for index in range(self._offer.qps)]

    async def _round(self, talk: Talk, wanted: Round, lanes: list[Lane]) -> None:
        """Do one round: write what is asked for, count what comes, and say what it was."""
        offer = self._offer
        self._check(wanted)
        if offer.verify:
            await talk.working(clear_targets(lanes))
        part = self._part(lanes, wanted)
        probe = Probe(self._endpoint, lanes, offer.kind, wanted, writes=offer.both_ways)
        test = SizeReport(offer.kind, wanted.message_bytes)
        if wanted.counts:
            self.report.tests.append(test)
        async with probe:
            try:
                stop = await self._play(talk, part, probe.meter)
            finally:
                test.received = received = probe.meter.receiver()
                if offer.both_ways:
                    test.sent_back = probe.meter.sender(
                        wanted.message_bytes, sum(part.lane_operations)
                    )
        if len(stop.operations) != len(lanes):
            raise PeerProtocolError(f"counts of {len(stop.operations)} lanes of {len(lanes)}")
        if offer.verify:
            counting = count_wrong_bytes(
                lanes, wanted.message_bytes, stop.operations, offer.seed, CONNECTING
            )
            test.wrong_bytes = await talk.working(counting)
        test.complete = True
        done, told = tuple(part.lane_operations), findings(probe.observed)
        await talk.say(Result(received, test.sent_back, done, test.wrong_bytes, told))

    def _part(self, lanes: list[Lane], wanted: Round) -> Part:
        if self._offer.kind is Kind.LATENCY:
            return Pong(lanes, wanted)
        return Stream(lanes, wanted) if self._offer.bidirectional else Sink(lanes)

    def _check(self, wanted: Round) -> None:
        """Hold a round against the offer.

        Raises:
            PeerProtocolError: it wants more.
        """
        offer = self._offer
        if wanted.message_bytes > offer.message_bytes_max:
            raise PeerProtocolError(
                f"messages of {wanted.message_bytes} bytes,"
                f" {offer.message_bytes_max} were announced"
            )
        if wanted.depth * offer.qps > WRITES_MAX:
            raise PeerProtocolError(f"{wanted.depth} writes on {offer.qps} queue pairs at once")
        if wanted.counts and len(self.report.tests) >= TESTS_MAX:
            raise PeerProtocolError(f"more than {TESTS_MAX} tests")

    async def _play(self, talk: Talk, part: Part, meter: Meter) -> Stop:
        """Work until the client says that the round is over, and this side's work is as well."""
        meter.begin()
        work = asyncio.ensure_future(part.run())
        try:
            await talk.say(Ready())
            stop = await talk.hear_untrusted(Stop, meter.moved_bytes)
            part.stop()
            await while_progressing(
                work, meter.moved_bytes, self._timeout_s, what="a round", peer=self.peer
            )
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        return stop
