"""The listener: one client after the other, whatever comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import mrc
from mrc.cli.failures import ExitCode, PeerSilent, exit_code
from mrc.errors import PeerNotTrusted, PeerProtocolError, PeerRefused, PeerVersionError
from mrc.messages import Kind as MessageKind
from mrc.perf import memory, parts, serving
from mrc.perf.client import Client
from mrc.perf.conversation import Accept, Join, Offer, Ready, Round, Target, Working, to_json
from mrc.perf.report import Report
from mrc.perf.settings import Kind
from mrc.perf.talk import Talk
from tests.perf.bench import DEADLINE_S, Bench, Quiet, bench, plan

pytestmark = pytest.mark.asyncio

OFFER = Offer(Kind.BANDWIDTH, 1, 1 << 20, 4096, bidirectional=False, verify=False, seed=1)


async def still_serves(made: Bench) -> None:
    """The next client gets what it came for."""
    report = await made.measure(plan())
    assert report.tests[0].complete


async def test_clients_are_served_one_after_the_other() -> None:
    """A listener goes on at once after a client, and counts the next from nothing."""
    async with bench() as made:
        for _ in range(8):
            report = await made.measure(plan())
            assert report.tests[0].received is not None
            assert report.tests[0].received.messages == 20


async def test_a_second_client_is_told_that_there_is_one() -> None:
    """Two at once would measure each other: the second is refused, by name, and may come again."""
    audience = Quiet()
    async with bench() as made, mrc.Endpoint() as endpoint:
        wished = plan(operations=0, duration_s=60, interval_s=0.02)
        first = asyncio.ensure_future(
            Client(wished, Report(), audience).measure(endpoint, lambda: endpoint.connect(made.url))
        )
        async with asyncio.timeout(DEADLINE_S):
            await audience.moving.wait()
        with pytest.raises(PeerRefused, match=r"busy with 127\.0\.0\.1"):
            await made.measure(plan())
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await made.until(lambda: len(made.ended) == 2)
        await still_serves(made)


async def test_once_is_over_after_one_client() -> None:
    """With `once` the service ends by itself, when the client that it accepted is done."""
    async with mrc.Endpoint() as endpoint, endpoint.listen("127.0.0.1:0") as door:
        made = Bench()
        made.url = door.url
        service = serving.Service(endpoint, 10.0, made._told)  # noqa: SLF001 - as `bench` does
        serve = asyncio.ensure_future(service.serve(door, once=True))
        await made.measure(plan())
        await asyncio.wait_for(serve, DEADLINE_S)
    assert [error for _, error in made.ended] == [None]


async def test_a_wrong_key_does_not_open() -> None:
    """Who has another lock's URL is not measured, and who has the right one is."""
    async with bench(lock=mrc.Lock.new()) as made:
        right = made.url
        host, _, _ = right.rpartition("/")
        made.url = f"{host}/{mrc.Lock.new().key}"
        with pytest.raises(PeerNotTrusted):
            await made.measure(plan())
        made.url = right
        await still_serves(made)


async def test_what_the_two_sides_set_apart_is_named() -> None:
    """A client without the iCRC is refused by a listener that wants it, in these words."""
    async with bench() as made:
        with pytest.raises(PeerRefused, match="iCRC"):
            await made.measure(plan(), mrc.Config(icrc=False))
        await still_serves(made)


async def test_buffers_beyond_half_of_the_memory_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No client makes the listener swap: it is told how much there may be."""
    async with bench() as made:
        monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 20)
        monkeypatch.setattr("mrc.perf.client.check_room", lambda _: None)
        with pytest.raises(PeerRefused, match=r"512\.0 KiB at most"):
            await made.measure(plan())
        monkeypatch.undo()
        await still_serves(made)


HOSTILE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "another service": {**to_json(OFFER), "service": "mrc-file"},
    "another version": {**to_json(OFFER), "version": 2},
    "absurdly many queue pairs": {**to_json(OFFER), "qps": 1 << 40},
    "no queue pair": {**to_json(OFFER), "qps": 0},
    "an absurd buffer": {**to_json(OFFER), "buffer_bytes": 1 << 62},
    "messages larger than the buffer": {**to_json(OFFER), "message_bytes_max": 1 << 21},
    "a size that is no number": {**to_json(OFFER), "buffer_bytes": "1048576"},
    "a size that is a truth": {**to_json(OFFER), "buffer_bytes": True},
    "a kind that nobody knows": {**to_json(OFFER), "kind": "all-reduce"},
    "a kind that is a list": {**to_json(OFFER), "kind": [[]]},
    "a session that is not here": to_json(Join("0" * 32, 0, None)),
    "another message": to_json(Ready()),
    "very deep": {**to_json(OFFER), "seed": [[[[[[[[1]]]]]]]]},
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_greeting_is_refused_and_the_next_is_served(name: str) -> None:
    """Whoever says something impossible first is closed; the listener holds nothing of it."""
    async with bench() as made:
        async with mrc.Endpoint() as endpoint:
            qp = await endpoint.connect(made.url)
            await qp.channel.send(HOSTILE[name])
            await _ends(qp)
        await made.until(lambda: len(made.ended) == 1)
        assert made.ended[0][1] is not None
        await still_serves(made)


async def test_a_greeting_that_is_no_json_is_refused_and_the_next_is_served() -> None:
    """Bytes that are no text end their queue pair and nothing else."""
    async with bench() as made:
        async with mrc.Endpoint() as endpoint:
            qp = await endpoint.connect(made.url)
            ring = qp._connection.ring  # noqa: SLF001 - a hostile peer keeps to no interface
            await ring.send(MessageKind.CONTROL, b"\xff{")
            await _ends(qp)
        await made.until(lambda: len(made.ended) == 1)
        assert isinstance(made.ended[0][1], PeerProtocolError)
        await still_serves(made)


async def _ends(qp: mrc.QueuePair) -> None:
    """Wait until the other side has closed; it may say why before."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await qp.channel.receive()
            except mrc.MrcError:
                break
    await qp.close()


async def _accepted(endpoint: mrc.Endpoint, url: str, offer: Offer) -> tuple[mrc.QueuePair, str]:
    """Connect and have an offer accepted."""
    qp = await endpoint.connect(url)
    accepted = await Talk(qp, 10.0).ask(offer, Accept)
    return qp, accepted.session


LATER: dict[str, dict[str, Any]] = {
    "messages larger than announced": to_json(Round(8192, 1, 1)),
    "no message at all": {**to_json(Round(4096, 1, 1)), "message_bytes": 0},
    "absurdly many at once": {**to_json(Round(4096, 1, 1)), "depth": 1 << 30},
    "another offer": to_json(OFFER),
}


@pytest.mark.parametrize("name", LATER)
async def test_a_hostile_round_is_refused_and_the_next_is_served(name: str) -> None:
    """An accepted client that goes beyond its offer is closed."""
    async with bench() as made:
        async with mrc.Endpoint() as endpoint:
            qp, session = await _accepted(endpoint, made.url, OFFER)
            lane = await endpoint.connect(made.url)
            await Talk(lane, 10.0).ask(Join(session, 0, None), Target)
            await qp.channel.send(LATER[name])
            await _ends(qp)
            await _ends(lane)
        await made.until(lambda: len(made.ended) == 1)
        assert isinstance(made.ended[0][1], PeerProtocolError)
        await still_serves(made)


@pytest.mark.parametrize("session", ["", "0" * 32, "\u00e9" * 32, "\ud800"])
async def test_a_session_that_somebody_made_up_is_refused(session: str) -> None:
    """Whoever does not know the session gets no memory, whatever letters he tries."""
    async with bench() as made:
        async with mrc.Endpoint() as endpoint:
            qp, _ = await _accepted(endpoint, made.url, OFFER)
            stranger = await endpoint.connect(made.url)
            with pytest.raises(PeerRefused, match="no such session"):
                await Talk(stranger, 10.0).ask(Join(session, 0, None), Target)
            stranger.abort()
            qp.abort()
        await made.until(lambda: len(made.ended) == 2)
        assert all(isinstance(error, mrc.MrcError) for _, error in made.ended)
        await still_serves(made)


@pytest.mark.parametrize("lane", [1, 100])
async def test_a_lane_that_was_not_offered_is_refused(lane: int) -> None:
    """More queue pairs than announced get no memory."""
    async with bench() as made:
        async with mrc.Endpoint() as endpoint:
            qp, session = await _accepted(endpoint, made.url, OFFER)
            extra = await endpoint.connect(made.url)
            with pytest.raises(PeerProtocolError, match="none, or taken"):
                await Talk(extra, 10.0).ask(Join(session, lane, None), Target)
            extra.abort()
            qp.abort()
        await made.until(lambda: len(made.ended) == 2)
        await still_serves(made)


async def test_a_round_before_all_queue_pairs_are_there_is_refused() -> None:
    """A client begins with what it announced, or not at all."""
    async with bench() as made:
        async with mrc.Endpoint() as endpoint:
            qp, _ = await _accepted(endpoint, made.url, OFFER)
            await qp.channel.send(to_json(Round(4096, 1, 1)))
            await _ends(qp)
        await made.until(lambda: len(made.ended) == 1)
        assert isinstance(made.ended[0][1], PeerProtocolError)


async def test_a_client_that_says_nothing_more_is_given_up() -> None:
    """A listener does not wait for ever for a round, and says what it waited for."""
    async with bench(timeout_s=0.1) as made, mrc.Endpoint() as endpoint:
        qp, session = await _accepted(endpoint, made.url, OFFER)
        lane = await endpoint.connect(made.url)
        await Talk(lane, 10.0).ask(Join(session, 0, None), Target)
        await made.until(lambda: len(made.ended) == 1)
        assert "what to do next did not come" in str(made.ended[0][1])
        await still_serves(made)
        qp.abort()
        lane.abort()


async def test_a_round_that_stands_still_is_given_up() -> None:
    """A client that began a round and sends nothing is not waited for."""
    async with bench(timeout_s=0.1) as made, mrc.Endpoint() as endpoint:
        qp, session = await _accepted(endpoint, made.url, OFFER)
        lane = await endpoint.connect(made.url)
        await Talk(lane, 10.0).ask(Join(session, 0, None), Target)
        await Talk(qp, 10.0).ask(Round(4096, 0, 1), Ready)
        await made.until(lambda: len(made.ended) == 1)
        assert "no progress" in str(made.ended[0][1])
        qp.abort()
        lane.abort()


async def test_a_listener_that_goes_silent_is_an_error_with_its_name() -> None:
    """A client whose peer moves nothing any more says who, how far it was, and ends."""
    frozen: Callable[[], int] = lambda: 4096  # noqa: E731
    with pytest.raises(PeerSilent, match=r"192\.0\.2\.7:1.*4,096 bytes until then"):
        await parts.while_progressing(
            asyncio.Event().wait(), frozen, 0.02, what="messages", peer="192.0.2.7:1"
        )


async def test_a_client_does_not_believe_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose memory lies outside all addresses is refused by the client."""
    monkeypatch.setattr(serving, "Target", lambda region: Target(replace(region, va=(1 << 64) - 1)))
    async with bench() as made:
        with pytest.raises(PeerProtocolError, match="not a memory region"):
            await made.measure(plan())


async def test_the_peer_is_told_what_is_wrong_with_its_offer() -> None:
    """A client of another version hears so from the listener, not that it went away."""
    async with bench() as made, mrc.Endpoint() as endpoint:
        qp = await endpoint.connect(made.url)
        with pytest.raises(PeerVersionError, match="version is 2, ours is 1"):
            await Talk(qp, 10.0).ask(replace(OFFER, version=2), Accept)
        qp.abort()


async def test_a_client_that_is_given_up_is_told_so() -> None:
    """Whoever stops and comes back finds out why nobody listens any more."""
    async with bench(timeout_s=0.1) as made, mrc.Endpoint() as endpoint:
        qp, _ = await _accepted(endpoint, made.url, OFFER)
        with pytest.raises(PeerRefused, match="what to do next did not come"):
            await Talk(qp, 10.0).hear_untrusted(Ready)
        qp.abort()


async def test_one_too_many_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound a queue pair is closed, with the reason."""
    monkeypatch.setattr(serving, "QPS_AT_ONCE_MAX", 1)
    async with bench() as made, mrc.Endpoint() as endpoint:
        first, _ = await _accepted(endpoint, made.url, OFFER)
        second = await endpoint.connect(made.url)
        with pytest.raises(PeerRefused, match="too many at once"):
            await Talk(second, 10.0).hear_untrusted(Accept)
        first.abort()
        second.abort()


async def test_latency_of_several_queue_pairs_is_the_clients_mistake() -> None:
    """It is refused as such, before anything is made for it."""
    async with bench() as made, mrc.Endpoint() as endpoint:
        qp = await endpoint.connect(made.url)
        with pytest.raises(PeerProtocolError, match="latency of 2 queue pairs"):
            await Talk(qp, 10.0).ask(replace(OFFER, kind=Kind.LATENCY, qps=2), Accept)
        await made.until(lambda: len(made.ended) == 1)
        assert exit_code(made.ended[0][1], established=True) is ExitCode.PROTOCOL
        qp.abort()


async def test_a_lane_that_was_refused_can_be_taken() -> None:
    """A queue pair without memory does not take the place of the one that has some."""
    async with bench() as made, mrc.Endpoint() as endpoint:
        qp, session = await _accepted(endpoint, made.url, replace(OFFER, bidirectional=True))
        for region, answered in ((None, False), (mrc.RemoteRegion(4096, 1, 1 << 20), True)):
            lane = await endpoint.connect(made.url)
            if answered:
                await Talk(lane, 10.0).ask(Join(session, 0, region), Target)
            else:
                with pytest.raises(PeerProtocolError, match="no memory to be written to"):
                    await Talk(lane, 10.0).ask(Join(session, 0, region), Target)
            lane.abort()
        qp.abort()


async def test_a_client_has_one_deadline_for_all_its_queue_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who only says that it works, and never joins, does not keep the others out for ever."""
    monkeypatch.setattr(serving, "_JOIN_S", 0.0)
    async with bench(timeout_s=0.2) as made, mrc.Endpoint() as endpoint:
        qp, _ = await _accepted(endpoint, made.url, OFFER)

        async def stall() -> None:
            while True:
                await qp.channel.send(to_json(Working()))
                await asyncio.sleep(0.02)

        stalling = asyncio.ensure_future(stall())
        await made.until(lambda: len(made.ended) == 1)
        stalling.cancel()
        await asyncio.gather(stalling, return_exceptions=True)
        assert "all queue pairs did not come" in str(made.ended[0][1])
        qp.abort()


async def test_a_client_has_a_bounded_number_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a listener remembers of one client has an end; warm-ups are not remembered."""
    monkeypatch.setattr(serving, "TESTS_MAX", 2)
    async with bench() as made:
        assert len((await made.measure(plan(sizes=(1, 2)))).tests) == 2
        with pytest.raises(PeerProtocolError, match="more than 2 tests"):
            await made.measure(plan(sizes=(1, 2, 3)))


async def test_an_output_that_fails_ends_the_service() -> None:
    """A listener whose reader went away does not go on in secret, nor hang."""

    def told(*_: object) -> None:
        raise BrokenPipeError

    async with mrc.Endpoint() as endpoint, endpoint.listen("127.0.0.1:0") as door:
        made = Bench()
        made.url = door.url
        serve = asyncio.ensure_future(serving.Service(endpoint, 10.0, told).serve(door, once=False))
        await made.measure(plan())
        with pytest.raises(BrokenPipeError):
            await asyncio.wait_for(serve, DEADLINE_S)
