"""The listening side: takes one client after the other, and does what each of them asks for.

Every queue pair that is accepted says first what it is: a client's offer, or a lane of the client
that is being served. Whatever else comes is refused, closed and counted, and the next is served.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

import mrc
from mrc.errors import ConfigError, PeerProtocolError
from mrc.perf.conversation import (
    Accept,
    Bye,
    Join,
    Offer,
    Ready,
    Refuse,
    Region,
    Result,
    Run,
    Stop,
    Talk,
    Target,
    message_untrusted,
    offer_untrusted,
)
from mrc.perf.explain import findings
from mrc.perf.kinds import sides
from mrc.perf.lanes import CONNECTING, LISTENING, Lane
from mrc.perf.measures import Meter
from mrc.perf.memory import check_room
from mrc.perf.parts import Part, while_progressing
from mrc.perf.probe import Probe
from mrc.perf.report import Report, SizeReport
from mrc.perf.settings import QPS_MAX, WRITES_MAX, Round

GREETING_TIMEOUT_S = 10.0
"""For a queue pair to say what it is."""
QPS_AT_ONCE_MAX = 2 * QPS_MAX
"""Queue pairs of the client and of whoever has not said yet what he wants, 300 KiB each."""


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
        self._first_over = asyncio.Event()
        self.clients = 0
        """Served so far."""

    async def serve(self, listener: mrc.Listener, *, once: bool) -> None:
        """Serve until cancelled, or until the first client that was accepted is done."""
        greetings: set[asyncio.Task[None]] = set()
        accepting = asyncio.ensure_future(self._accept(listener, greetings))
        over = asyncio.ensure_future(self._first_over.wait())
        try:
            waiting = {accepting, over} if once else {accepting}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                accepting.result()
        finally:
            tasks = [accepting, over, *greetings]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listener: mrc.Listener, greetings: set[asyncio.Task[None]]) -> None:
        while True:
            qp = await listener.accept()
            if len(greetings) >= QPS_AT_ONCE_MAX:
                qp.abort()
                continue
            task = asyncio.ensure_future(self._greet(qp))
            greetings.add(task)
            task.add_done_callback(greetings.discard)

    async def _greet(self, qp: mrc.QueuePair) -> None:
        """Find out what a queue pair is for, and see it through; the others do not suffer."""
        talk = Talk(qp, GREETING_TIMEOUT_S)
        client: _Client | None = None
        try:
            async with qp:
                line = await talk.line()
                if line.get("type") == Join.TYPE:
                    await self._join(qp, talk, message_untrusted(line, Join))
                    return
                client = await self._admit(qp, talk, offer_untrusted(line))
                await client.run(Talk(qp, self._timeout_s))
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
            await talk.say(Refuse("no such session"))
            raise PeerProtocolError(f"{qp.peer} would join a session that is not here")
        try:
            await client.join(qp, talk, join)
        except PeerProtocolError as error:
            await talk.say(Refuse(str(error)))
            raise
        await client.over.wait()

    async def _admit(self, qp: mrc.QueuePair, talk: Talk, offer: Offer) -> _Client:
        """Take a client, unless there is one, or it wants more than there is."""
        try:
            if self._serving is not None:
                raise ConfigError(f"busy with {self._serving.peer}; try again later")
            check_room(offer.qps * offer.buffer_bytes * _buffers(offer))
        except ConfigError as error:
            await talk.say(Refuse(str(error)))
            raise
        self._serving = client = _Client(self._endpoint, offer, qp, self._timeout_s)
        return client

    def _end(self, client: _Client | None, error: BaseException | None) -> None:
        """Make room for the next client, and tell of this one."""
        if client is None:
            self._told(Report(), error)
            return
        self._release(client)
        self.clients += 1
        self._told(client.report, error)
        self._first_over.set()

    def _release(self, client: _Client) -> None:
        """Let the client's queue pairs go, and the next client come. Twice is once."""
        client.over.set()
        if self._serving is client:
            self._serving = None


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
        self._lanes: dict[int, Lane] = {}
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

    async def join(self, qp: mrc.QueuePair, talk: Talk, join: Join) -> None:
        """Take a queue pair as a lane, with memory of its own.

        Raises:
            PeerProtocolError: it is one too many, or has no memory for what it will get.
        """
        offer = self._offer
        if join.lane >= offer.qps or join.lane in self._lanes:
            raise PeerProtocolError(f"lane {join.lane} of {offer.qps} is none, or taken")
        lane = self._lanes[join.lane] = Lane(qp, join.lane)
        if _both_ways(offer):
            if join.region is None or join.region.length < offer.buffer_bytes:
                raise PeerProtocolError(f"lane {join.lane} has no memory to be written to")
            lane.remote = join.region.remote_untrusted()
            await lane.fill_source(offer.buffer_bytes, offer.seed, LISTENING)
        region = Region(**(await lane.open_target(offer.buffer_bytes)).to_json())
        await talk.say(Target(region))

    async def run(self, talk: Talk) -> None:
        """Accept the client and do its rounds until it says goodbye."""
        await talk.say(Accept(self.session))
        while True:
            # A client has this long for each of its queue pairs, and for what it does by itself.
            line = await while_progressing(
                talk.line_at_last(),
                lambda: len(self._lanes),
                self._timeout_s,
                what="what to do next",
                peer=self.peer,
                unit="queue pairs",
            )
            if line.get("type") == Bye.TYPE:
                return
            await self._round(talk, message_untrusted(line, Run), self._all_lanes())

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

    async def _round(self, talk: Talk, run: Run, lanes: list[Lane]) -> None:
        """Do one round: write what is asked for, count what comes, and say what it was."""
        offer = self._offer
        self._check(run)
        wanted = Round(run.message_bytes, run.operations, run.depth, run.counts)
        for lane in lanes if offer.verify else ():
            await lane.clear_target()
        part = sides(offer.kind, bidirectional=offer.bidirectional).listening(lanes, wanted)
        probe = Probe(self._endpoint, lanes, offer.kind, wanted, writes=_both_ways(offer))
        test = SizeReport(offer.kind, run.message_bytes)
        if run.counts:
            self.report.tests.append(test)
        async with probe:
            try:
                stop = await self._play(talk, part, probe.meter)
            finally:
                test.received = received = probe.meter.receiver()
                if _both_ways(offer):
                    test.sent_back = probe.meter.sender(
                        run.message_bytes, sum(part.lane_operations)
                    )
        if offer.verify:
            test.wrong_bytes = await self._wrong_bytes(lanes, run.message_bytes, stop)
        test.complete = True
        told = findings(probe.observed) if probe.observed is not None else ()
        done = tuple(part.lane_operations)
        await talk.say(Result(received, test.sent_back, done, test.wrong_bytes, told))

    def _check(self, run: Run) -> None:
        """Hold a round against the offer.

        Raises:
            PeerProtocolError: it wants more.
        """
        offer = self._offer
        if run.message_bytes > offer.message_bytes_max:
            raise PeerProtocolError(
                f"messages of {run.message_bytes} bytes, {offer.message_bytes_max} were announced"
            )
        if run.depth * offer.qps > WRITES_MAX:
            raise PeerProtocolError(f"{run.depth} writes on {offer.qps} queue pairs at once")

    async def _play(self, talk: Talk, part: Part, meter: Meter) -> Stop:
        """Work until the client says that the round is over."""
        meter.begin()
        work = asyncio.ensure_future(part.run())
        try:
            await talk.say(Ready())
            return await self._until_stopped(talk, part, work, meter)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _until_stopped(
        self, talk: Talk, part: Part, work: asyncio.Task[None], meter: Meter
    ) -> Stop:
        """Wait until the client says that the round is over, and this side's work is as well."""
        line = await while_progressing(
            talk.line_at_last(), meter.moved_bytes, self._timeout_s, what="a round", peer=self.peer
        )
        stop = message_untrusted(line, Stop)
        part.stop()
        await while_progressing(
            _finish(work), meter.moved_bytes, self._timeout_s, what="a round", peer=self.peer
        )
        return stop

    async def _wrong_bytes(self, lanes: list[Lane], message_bytes: int, stop: Stop) -> int:
        """Count what is wrong with the client's messages."""
        wrong = 0
        for lane, operations in zip(lanes, stop.operations, strict=False):
            wrong += await lane.wrong_bytes(message_bytes, operations, self._offer.seed, CONNECTING)
        return wrong


async def _finish(work: asyncio.Future[Any]) -> None:
    await work


def _both_ways(offer: Offer) -> bool:
    return offer.bidirectional or offer.kind.answers


def _buffers(offer: Offer) -> int:
    return 2 if _both_ways(offer) else 1
