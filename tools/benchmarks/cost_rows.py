"""What mrc costs beside goodput: round trips, EVs, queue pairs, small messages, memory."""

from __future__ import annotations

from benchmarks import cost_variants, raw_variants
from benchmarks.comparison import GBPS, KIB, RATIO, US, Comparison, RowSpec
from benchmarks.cost_worker import EV_COUNTS, MESSAGE_SIZES, QP_COUNTS
from mrc.units import format_bytes

NS = "ns"

LATENCY = Comparison(
    "latency",
    "64 bytes there and back: WRITE-with-Immediate beside a bare UDP echo on asyncio and uvloop",
    {"mrc": cost_variants.ping_pong, "echo": raw_variants.echo},
    (
        RowSpec("ping-pong, p50", US, "mrc", "p50_us", better="less"),
        RowSpec("ping-pong, p99", US, "mrc", "p99_us", better="less"),
        RowSpec("bare UDP echo, p50", US, "echo", "p50_us", better="less"),
        RowSpec("bare UDP echo, p99", US, "echo", "p99_us", better="less"),
        RowSpec(
            "ping-pong / echo, p50",
            RATIO,
            "mrc",
            "p50_us",
            over=("echo",),
            must=2.5,
            aim=1.5,
            better="less",
        ),
    ),
    rounds=5,
    rounds_quick=1,
    seconds_max=15,
)

EVS = Comparison(
    "evs",
    "processor time of both sides for a packet, with few and many EVs",
    {"mrc": cost_variants.many_evs},
    (
        *(
            RowSpec(f"packet with {count} EVs", NS, "mrc", f"evs_{count}_ns", better="less")
            for count in EV_COUNTS
        ),
        RowSpec("16 EVs / 1 EV", RATIO, "mrc", "evs_16_ratio", better="less"),
        RowSpec("256 EVs / 1 EV", RATIO, "mrc", "evs_256_ratio", must=1.5, aim=1.1, better="less"),
    ),
    rounds=5,
    rounds_quick=1,
    seconds_max=21,
)

QPS = Comparison(
    "qps",
    "the same with one queue pair active and others idle, and the memory of those",
    {"mrc": cost_variants.many_qps, "endpoints": cost_variants.many_endpoints},
    (
        *(
            RowSpec(f"packet with {count} QPs", NS, "mrc", f"qps_{count}_ns", better="less")
            for count in QP_COUNTS
        ),
        RowSpec("100 QPs / 1 QP", RATIO, "mrc", "qps_100_ratio", better="less"),
        RowSpec("1,000 QPs / 1 QP", RATIO, "mrc", "qps_1000_ratio", must=1.1, aim=1, better="less"),
        RowSpec("memory of an idle QP", KIB, "mrc", "qp_kib", must=16, aim=4, better="less"),
        RowSpec("memory of an endpoint with a QP", KIB, "endpoints", "endpoint_kib", better="less"),
    ),
    rounds=5,
    rounds_quick=1,
    seconds_max=34,
)

SIZES = Comparison(
    "sizes",
    "goodput by the size of messages, 32 under way at once, 4 of the largest",
    {"mrc": cost_variants.sizes},
    (
        *(
            RowSpec(f"messages of {format_bytes(size)}", GBPS, "mrc", f"size_{size}_gbps")
            for size in MESSAGE_SIZES
        ),
        *(
            RowSpec(
                f"{format_bytes(size)} / {format_bytes(MESSAGE_SIZES[-1])}",
                RATIO,
                "mrc",
                f"size_{size}_ratio",
            )
            for size in MESSAGE_SIZES[:-1]
        ),
    ),
    rounds=5,
    rounds_quick=1,
    seconds_max=18,
)
