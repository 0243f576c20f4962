"""Collectives: mrc's all-reduce beside gloo's."""

from __future__ import annotations

from benchmarks import collective_variants
from benchmarks.collective_worker import LARGE_BYTES, SMALL_BYTES
from benchmarks.comparison import GBPS, RATIO, US, Comparison, RowSpec
from mrc.units import format_bytes

_LARGE = f"all-reduce of {format_bytes(LARGE_BYTES)}"
_SMALL = f"all-reduce of {format_bytes(SMALL_BYTES)}"

COMPARISON = Comparison(
    "collectives",
    f"all-reduce between {collective_variants.RANKS} processes, beside torch's gloo over TCP",
    {"mrc": collective_variants.by_mrc, "gloo": collective_variants.by_gloo},
    (
        RowSpec(f"{_LARGE}, mrc", GBPS, "mrc"),
        RowSpec(f"{_LARGE}, gloo", GBPS, "gloo"),
        RowSpec(f"{_LARGE}, mrc / gloo", RATIO, "mrc", over=("gloo",), must=0.5, aim=1),
        RowSpec(f"{_SMALL}, mrc, p50", US, "mrc", "small_us", better="less"),
        RowSpec(f"{_SMALL}, gloo, p50", US, "gloo", "small_us", better="less"),
        RowSpec(f"{_SMALL}, mrc / gloo", RATIO, "mrc", "small_us", over=("gloo",), better="less"),
    ),
    rounds=5,
    rounds_quick=1,
    seconds_max=27,
)
