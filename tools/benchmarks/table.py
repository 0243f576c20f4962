"""All there is to measure, in order. A new row goes to one of the modules named here."""

from __future__ import annotations

from benchmarks import collective_rows, cost_rows, fault_rows, goodput_rows

COMPARISONS = (
    goodput_rows.COMPARISON,
    cost_rows.LATENCY,
    cost_rows.EVS,
    cost_rows.QPS,
    cost_rows.SIZES,
    collective_rows.COMPARISON,
    fault_rows.FILE,
    fault_rows.LOSS,
    fault_rows.DEAD_PATH,
)
