"""The ping-pong by itself: what is waited for, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from benchmarks.work import answer, ping
from fuzzing.vloop import virtual_loop

import mrc
from mrc.errors import PeerLost
from mrc.perf import probe
from mrc.perf.conversation import Round
from mrc.perf.kernel import HostCounters
from mrc.perf.lanes import Lane
from mrc.perf.latency import Ping, Pong
from mrc.perf.probe import LOOK_S, Probe
from mrc.perf.settings import Kind
from mrc.proto.statistics import RequestorStatistics, ResponderStatistics

REMOTE = mrc.RemoteRegion(1 << 20, 1, 4096)
ANSWER_S, ACKNOWLEDGED_S = 0.001, 5.0


class Qp:
    """A queue pair whose writes are answered soon, and acknowledged late."""

    peer = "192.0.2.9:1"

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self.posted: list[int | None] = []
        self.looks = 0

    def post(
        self, _: Any, remote: mrc.RemoteRegion, offset: int = 0, *, imm: int | None = None
    ) -> asyncio.Future[None]:
        """Take a write."""
        assert offset < remote.length
        self.posted.append(imm)
        loop = asyncio.get_running_loop()
        placed: asyncio.Future[None] = loop.create_future()
        loop.call_later(ACKNOWLEDGED_S, placed.set_result, None)
        return placed

    async def next_immediate(self) -> mrc.Immediate:
        """Return the peer's next, as long as there are some."""
        if not self._answers:
            raise PeerLost("no more")
        self._answers -= 1
        await asyncio.sleep(ANSWER_S)
        return mrc.Immediate((self.posted[-1] or 0) if self.posted else 0, None, 0, 64)

    def statistics(self) -> mrc.QpStatistics:
        """Return counters, and note that they were looked at."""
        self.looks += 1
        counted = RequestorStatistics(*[0] * 16), ResponderStatistics(*[0] * 10)
        return mrc.QpStatistics(1, "RTS", *counted, ())

    def facts(self) -> mrc.QpFacts:
        """Return what was agreed."""
        return mrc.QpFacts(None, True, 4096, 1, 1 << 24, 1 << 20, 1 << 20)


class Endpoint:
    """An endpoint without sockets."""

    def port_facts(self) -> tuple[mrc.PortFacts, ...]:
        """Return nothing."""
        return ()


def lane(qp: Qp) -> Lane:
    """Return a lane with memory for both ways."""
    return Lane(cast("mrc.QueuePair", qp), 0, source=memoryview(bytearray(4096)), remote=REMOTE)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run on the virtual clock, and return how long it took."""

    async def timed() -> float:
        began_s = asyncio.get_running_loop().time()
        await work
        return asyncio.get_running_loop().time() - began_s

    return virtual_loop().run(timed())


def test_a_round_trip_is_over_with_the_answer() -> None:
    """Acknowledgements are no part of a message's way: they are waited for once, at the end."""
    qp = Qp(answers=100)
    playing = Ping([lane(qp)], Round(64, 100, 1))
    assert run(playing.run()) == pytest.approx(100 * ANSWER_S + ACKNOWLEDGED_S, abs=0.01)
    assert playing.lane_operations == [100]
    assert playing.samples.count == len(qp.posted) == 100


def test_who_answers_is_stopped_by_word_and_not_by_a_message() -> None:
    """What is counted is what was asked for; what was answered is placed when it ends."""
    qp = Qp(answers=1000)
    playing = Pong([lane(qp)], Round(64, 0, 1))

    async def play() -> None:
        work = asyncio.ensure_future(playing.run())
        await asyncio.sleep(20.5 * ANSWER_S)
        playing.stop()
        await work

    run(play())
    assert playing.lane_operations == [20]
    assert len(qp.posted) == 20


def test_who_answers_notices_that_the_other_has_gone() -> None:
    """A lost peer is an error and no end of a round."""
    with pytest.raises(PeerLost):
        run(Pong([lane(Qp(answers=3))], Round(64, 0, 1)).run())


def test_the_benchmark_measures_the_same_way() -> None:
    """Neither side of it waits for an acknowledgement between two messages."""
    qp = Qp(answers=10)

    async def both() -> None:
        for _ in range(5):
            await ping(cast("mrc.QueuePair", qp), REMOTE, bytes(64))
        await answer(cast("mrc.QueuePair", qp), REMOTE)

    assert run(both()) == pytest.approx(10 * ANSWER_S, abs=0.001)
    assert len(qp.posted) == 10


def test_a_look_at_the_window_is_of_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of hundreds of queue pairs at once would stop what is measured."""
    monkeypatch.setattr(probe, "host_counters", lambda: HostCounters({}, {}))
    qps = [Qp(answers=0) for _ in range(4)]
    lanes = [lane(qp) for qp in qps]
    looks: list[int] = []

    async def watch() -> None:
        wanted = Round(4096, 0, 1)
        endpoint = cast("mrc.Endpoint", Endpoint())
        async with Probe(endpoint, lanes, Kind.BANDWIDTH, wanted, writes=True):
            before = [qp.looks for qp in qps]
            await asyncio.sleep(6.5 * LOOK_S)
            looks[:] = [qp.looks - seen for qp, seen in zip(qps, before, strict=True)]

    run(watch())
    assert looks == [2, 2, 1, 1]
