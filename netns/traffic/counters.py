"""What senders note of their queue pairs, in the columns of `netns.recording.SAMPLE_FIELDS`."""

from __future__ import annotations

from collections.abc import Sequence

import mrc

GAUGES = ("cwnd_bytes", "inflight_bytes", "srtt_ns")
COUNTERS = (
    "packets_sent",
    "packets_retransmitted",
    "packets_lost",
    "packets_spurious",
    "trims",
    "timeouts",
    "probes",
)


def row(now_ns: int, taken: Sequence[mrc.QpStatistics]) -> list[int]:
    """Return one sample of queue pairs, at least one, of the same endpoint.

    Counters are those of all together; window, data in flight and round-trip time those of the
    one that has sent most.
    """
    requestors = [each.requestor for each in taken]
    busiest = max(requestors, key=lambda each: each.packets_sent)
    # Queue pairs to one peer share its paths: a set has each of them once.
    paths = {path for each in taken for path in each.paths}
    return [
        now_ns,
        *(getattr(busiest, name) for name in GAUGES),
        *(sum(getattr(each, name) for each in requestors) for name in COUNTERS),
        sum(path.marked_packets for path in paths),
    ]


def grown(row: list[int], before: list[int]) -> list[int]:
    """Return a sample whose counters are no less than before: a queue pair takes its along."""
    first = 1 + len(GAUGES)
    return row[:first] + [max(pair) for pair in zip(row[first:], before[first:], strict=True)]
