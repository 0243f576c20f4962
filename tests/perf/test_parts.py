"""The small pieces: sizes of a sweep, memory and its pattern, samples, and the text of a table."""

from __future__ import annotations

import json
import math
from threading import Event

import pytest

from mrc.errors import ConfigError
from mrc.perf import memory
from mrc.perf.latency import Samples
from mrc.perf.measures import SenderFigures
from mrc.perf.report import Report, SizeReport, document
from mrc.perf.settings import Kind, Plan, sweep
from mrc.perf.table import explained, header, heading, row

GO_ON = Event()
"""Never set."""


@pytest.mark.parametrize(
    ("smallest", "largest", "factor", "sizes"),
    [
        (None, 64, 2, [64]),
        (64, 64, 2, [64]),
        (1, 8, 2, [1, 2, 4, 8]),
        (3, 100, 4, [3, 12, 48, 100]),
    ],
)
def test_a_sweep_ends_with_the_size_asked_for(
    smallest: int | None, largest: int, factor: int, sizes: list[int]
) -> None:
    """Each size is the factor times the one before; the last is the largest, whatever it is."""
    assert list(sweep(smallest, largest, factor)) == sizes


def test_a_warm_up_that_nobody_chose_is_a_walk_and_not_too_long() -> None:
    """Large messages walk once through the buffer, small ones do not take for ever."""
    plan = Plan(kind=Kind.BANDWIDTH, sizes=(1,), buffer_bytes=64 << 20)
    assert plan.warm_up_operations(16 << 20) == 4
    assert plan.warm_up_operations(64) == 1000
    assert Plan(kind=Kind.BANDWIDTH, sizes=(1,), warm_up=0).warm_up_operations(64) == 0


def test_a_buffer_holds_at_least_one_message() -> None:
    """A message larger than the buffer that was asked for gets one of its own size."""
    assert Plan(kind=Kind.BANDWIDTH, sizes=(8, 4096), buffer_bytes=64).lane_bytes == 4096


@pytest.mark.parametrize("place", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 4096])
def test_a_single_wrong_byte_is_counted(place: int) -> None:
    """Wherever it is; and the pattern of another seed is wrong nearly everywhere."""
    size_bytes = (1 << 20) + 5000
    data = memory.patterned(size_bytes, (1, 2), GO_ON)
    assert memory.count_wrong(data, size_bytes, (1, 2), GO_ON) == 0
    data[place] ^= 1
    assert memory.count_wrong(data, size_bytes, (1, 2), GO_ON) == 1
    assert memory.count_wrong(data, size_bytes, (1, 3), GO_ON) > 0.9 * size_bytes


def test_no_byte_of_the_pattern_is_like_untouched_memory() -> None:
    """What was never written is found wrong, byte by byte."""
    size_bytes = 70_000
    assert memory.patterned(size_bytes, (7,), GO_ON).all()
    assert (
        memory.count_wrong(memory.empty(size_bytes, GO_ON), size_bytes, (7,), GO_ON) == size_bytes
    )


def test_only_what_messages_reached_is_compared() -> None:
    """A round shorter than one walk leaves the rest of the buffer alone."""
    assert memory.walked_bytes(1000, 300, 2) == 600
    assert memory.walked_bytes(1000, 300, 50) == 900


def test_memory_that_is_not_there_is_refused_with_a_remedy() -> None:
    """Half of what is free may be had."""
    memory.check_room(memory.available_bytes() // 4)
    with pytest.raises(ConfigError, match="--buffer"):
        memory.check_room(memory.available_bytes())


def test_percentiles_are_of_values_that_were_measured() -> None:
    """Nearest rank, of half round trips."""
    samples = Samples()
    for rtt_ns in range(1, 1001):
        samples.add(2 * rtt_ns)
    half = samples.figures()
    assert half is not None
    assert (half.min_ns, half.p50_ns, half.p99_ns, half.p999_ns, half.max_ns) == (
        *(1, 500, 990, 999),
        1000,
    )
    assert half.mean_ns == pytest.approx(500.5)


def test_one_sample_is_all_percentiles() -> None:
    """Whatever the rank, there is no other."""
    samples = Samples()
    samples.add(10)
    half = samples.figures()
    assert half is not None
    assert {half.p50_ns, half.p99_ns, half.p999_ns, half.max_ns} == {5}


def test_samples_stay_few_and_know_their_extremes() -> None:
    """However long a test, memory is bounded; number, least and greatest stay exact."""
    samples = Samples(samples_max=64)
    for rtt_ns in (*range(1000, 3000), 2, 9000):
        samples.add(rtt_ns)
    half = samples.figures()
    assert half is not None
    assert (half.samples, half.min_ns, half.max_ns) == (2002, 1, 4500)
    assert half.p50_ns == pytest.approx(1000, rel=0.05)


def test_without_samples_there_are_no_figures() -> None:
    """A test in which nothing came back has no latency, rather than one of zero."""
    assert Samples().figures() is None
    line = row(SizeReport(Kind.LATENCY, 64))
    assert line.split()[:3] == ["64", "0", "-"]


def test_columns_are_those_of_the_example_of_ocp() -> None:
    """People paste these tables side by side."""
    assert heading(Kind.BANDWIDTH).split() == [
        "MsgSize",
        "TotalOps",
        "BW_avg(Gbps)",
        "MsgRate(Mpps)",
    ]


def test_a_row_is_goodput_in_powers_of_ten() -> None:
    """Payload bits over seconds, 10^9 to the Gbps, and messages in millions."""
    sent = SenderFigures(1000, 1_000_000, 8_000_000, 0, 1000, 0, 0, 0, 0, 0)
    test = SizeReport(Kind.BANDWIDTH, 1000, sent=sent, complete=True)
    assert row(test).split() == ["1000", "1000", "1.000", "0.125000"]
    test.complete = False
    assert row(test).endswith("(stopped)")


def test_what_the_other_side_says_cannot_write_on_the_terminal() -> None:
    """Control codes of a peer are spelt out, and long sentences become lines."""
    shown = explained("listening", "\x1b[2J" + "word " * 60)
    assert "\\x1b[2J" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert "\x1b" not in shown


def test_a_document_has_no_number_that_json_lacks() -> None:
    """NaN and infinities become null, whole numbers stay whole, and text is text."""
    report = Report(start={"a": math.nan, "b": [math.inf, 1], "c": "\udcff"})
    text = json.dumps(document(report, None), allow_nan=False)
    assert json.loads(text)["start"] == {"a": None, "b": [None, 1], "c": "\\udcff"}
    assert json.loads(text)["end"] is None


@pytest.mark.parametrize(
    ("message_bytes", "qps", "depth"),
    [(4096, 1, 128), (1 << 20, 1, 64), (16 << 20, 1, 4), (1 << 30, 1, 2), (1 << 20, 16, 4)],
)
def test_no_more_is_outstanding_than_there_are_places_and_than_is_of_use(
    message_bytes: int, qps: int, depth: int
) -> None:
    """A test by time ends soon after its time, however large its messages are."""
    plan = Plan(kind=Kind.BANDWIDTH, sizes=(message_bytes,), qps=qps)
    assert plan.depth_for(message_bytes) == depth


def test_a_wish_for_less_outstanding_is_kept() -> None:
    """One write at a time is a test of its own; of latency it is always one."""
    assert Plan(kind=Kind.BANDWIDTH, sizes=(1 << 20,), depth=1).depth_for(1 << 20) == 1
    assert Plan(kind=Kind.LATENCY, sizes=(64,)).depth_for(64) == 1


def test_queue_pairs_share_a_warm_up() -> None:
    """Many of them do not move gigabytes before the first test."""
    plan = Plan(kind=Kind.BANDWIDTH, sizes=(1 << 16,), qps=128)
    assert plan.warm_up_operations(1 << 16) == 7
    assert plan.warm_up_operations(1 << 26) == 1


def test_a_header_says_how_much_is_outstanding() -> None:
    """Of a sweep the least and the most."""
    plan = Plan(kind=Kind.BANDWIDTH, sizes=(4096, 16 << 20))
    start = {"cipher": None, "paths": 16, "planes": 1, "mtu_bytes": 4096, "icrc": True}
    lines = header(Report(start={**start, "peer": "p"}, plan=plan))
    assert lines[2].endswith("at both ends, 4 to 128 outstanding")


def test_work_on_memory_ends_when_it_is_told_to() -> None:
    """Whoever leaves does not wait for gigabytes: nothing is touched any more."""
    stop = Event()
    data = memory.patterned(1 << 21, (1,), stop)
    stop.set()
    memory.clear(data, stop)
    assert data.all()
    assert memory.count_wrong(data, 1 << 21, (2,), stop) == 0
