"""What is measured, by both sides: counted exactly, each side's figures by that side."""

from __future__ import annotations

import asyncio
from dataclasses import fields

import pytest

import mrc
from mrc.perf.client import Client, WrongContents
from mrc.perf.lanes import Lane
from mrc.perf.report import Report, document
from mrc.perf.settings import Kind
from tests.perf.bench import DEADLINE_S, Quiet, bench, plan

pytestmark = pytest.mark.asyncio


async def test_every_byte_and_message_is_counted_where_it_is_placed() -> None:
    """The receiver's figures are its own, and are of the measured messages alone."""
    async with bench() as made:
        report = await made.measure(plan(qps=2, operations=30, sizes=(5000,), warm_up=7))
    (test,) = report.tests
    assert test.sent is not None
    assert test.received is not None
    assert (test.sent.operations, test.sent.bytes) == (60, 60 * 5000)
    assert (test.received.messages, test.received.bytes) == (60, 60 * 5000)
    assert test.complete
    assert test.sent_back is None


async def test_both_sides_write_when_asked_to() -> None:
    """Each direction has figures of its sender and of its receiver, and the row is their sum."""
    async with bench() as made:
        report = await made.measure(plan(bidirectional=True, operations=25))
    (test,) = report.tests
    assert test.sent_back is not None
    assert test.received_back is not None
    assert test.sent_back.operations == test.received_back.messages == 25
    assert test.operations == 50


async def test_a_test_by_time_ends_by_itself() -> None:
    """Without a number of messages the clock decides, on both sides."""
    async with bench() as made:
        report = await made.measure(plan(operations=0, duration_s=0.05, bidirectional=True))
    (test,) = report.tests
    assert test.sent is not None
    assert test.sent.duration_ns >= 50_000_000
    assert test.operations > 0


async def test_a_sweep_has_a_test_for_every_size() -> None:
    """Sizes come in their order, each with a warm-up that is not among the tests."""
    async with bench() as made:
        report = await made.measure(plan(sizes=(1, 4096, 9000)))
        await made.until(lambda: len(made.ended) == 1)
    assert [test.message_bytes for test in report.tests] == [1, 4096, 9000]
    (seen, error) = made.ended[0]
    assert error is None
    assert [test.received.messages for test in seen.tests if test.received] == [20, 20, 20]


async def test_latency_has_a_sample_for_every_round_trip() -> None:
    """Percentiles are in order, and of as many messages as there were."""
    async with bench() as made:
        report = await made.measure(plan(Kind.LATENCY, operations=40, sizes=(64,)))
    (test,) = report.tests
    half = test.latency
    assert half is not None
    assert half.samples == test.operations == 40
    assert test.received is not None
    assert test.received.messages == 40
    assert test.received.bytes == 40 * 64
    assert 0 < half.min_ns <= half.p50_ns <= half.p99_ns <= half.p999_ns <= half.max_ns
    assert half.min_ns <= half.mean_ns <= half.max_ns


@pytest.mark.parametrize("kind", list(Kind))
async def test_contents_are_found_right(kind: Kind) -> None:
    """With verification both directions are compared, also after a walk around the buffer."""
    wished = plan(kind, verify=True, operations=300, bidirectional=kind is Kind.BANDWIDTH)
    async with bench() as made:
        report = await made.measure(wished)
    assert [test.wrong_bytes for test in report.tests] == [0]


@pytest.mark.parametrize("side", [0, 1])
async def test_one_wrong_byte_is_found(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte that is not as the pattern says fails the run, whichever side sent it."""
    right = Lane.fill_source

    async def spoilt(lane: Lane, size_bytes: int, seed: int, of: int) -> None:
        await right(lane, size_bytes, seed, of)
        assert lane.source is not None
        if of == side:
            lane.source[4097] ^= 0xFF

    monkeypatch.setattr(Lane, "fill_source", spoilt)
    async with bench() as made:
        with pytest.raises(WrongContents, match="1 bytes"):
            await made.measure(plan(verify=True, bidirectional=True))


async def test_a_lock_shows_in_the_report() -> None:
    """Start says which cipher there is, or none; what is measured is the same."""
    async with bench(lock=mrc.Lock.new()) as made:
        locked = await made.measure(plan(verify=True, qps=2))
    async with bench() as made:
        plain = await made.measure(plan())
    assert locked.start["cipher"] in {"aes-256-gcm", "chacha20-poly1305"}
    assert plain.start["cipher"] is None
    assert locked.tests[0].wrong_bytes == 0


async def test_interim_figures_add_up_to_no_more_than_there_was() -> None:
    """Intervals lie side by side and count messages that are done."""
    async with bench() as made:
        report = await made.measure(
            plan(operations=0, duration_s=0.2, interval_s=0.03, sizes=(16384,))
        )
    assert len(report.intervals) >= 2
    ends = [each["end_seconds"] for each in report.intervals]
    starts = [each["start_seconds"] for each in report.intervals]
    assert starts[0] == pytest.approx(0, abs=0.01)
    assert starts[1:] == pytest.approx(ends[:-1], abs=0.01)
    assert report.tests[0].sent is not None
    assert sum(each["bytes"] for each in report.intervals) <= report.tests[0].sent.bytes


async def test_what_was_measured_until_a_cancellation_is_kept() -> None:
    """A run that is stopped has figures so far, on both sides, and says that it is not complete."""
    report, audience = Report(), Quiet()
    async with bench() as made, mrc.Endpoint() as endpoint:
        wished = plan(operations=0, duration_s=60, interval_s=0.02)
        measuring = asyncio.ensure_future(
            Client(wished, report, audience).measure(endpoint, lambda: endpoint.connect(made.url))
        )
        async with asyncio.timeout(DEADLINE_S):
            await audience.moving.wait()
        measuring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measuring
        await made.until(lambda: len(made.ended) == 1)
    assert audience.told[-1] == "tested"
    for test in (report.tests[0], made.ended[0][0].tests[0]):
        assert not test.complete
        assert test.operations > 0


async def test_every_path_is_reported() -> None:
    """The table of paths has what went over each, and together that is what was sent."""
    async with bench() as made:
        report = await made.measure(plan(operations=200), mrc.Config(paths=4, backup_paths=0))
    assert len(report.paths) == 4
    assert {field.name for field in fields(mrc.PathStatistics)} == set(report.paths[0])
    assert sum(path["sent_packets"] for path in report.paths) >= 200


async def test_the_explanation_comes_from_both_sides() -> None:
    """Each side says what it found about itself, the most important first."""
    async with bench() as made:
        report = await made.measure(plan())
    assert set(report.findings) == {"connecting", "listening"}
    for found in report.findings.values():
        weights = [each.weight for each in found]
        assert weights == sorted(weights, reverse=True)
        assert any("GSO" in each.text for each in found)
        assert any("of one core" in each.text for each in found)


async def test_a_run_of_nothing_still_prints() -> None:
    """A report of a test in which nothing moved has null for what cannot be worked out."""
    async with bench() as made:
        report = await made.measure(plan(Kind.LATENCY, operations=1, warm_up=0))
    (test,) = report.tests
    test.latency = None
    assert test.sent is not None
    object.__setattr__(test.sent, "duration_ns", 0)
    end = document(report, None)["end"]
    assert end["tests"][0]["half_round_trip"] is None
    assert end["tests"][0]["sender"]["bits_per_second"] is None
    assert isinstance(end["tests"][0]["sender"]["bytes"], int)
