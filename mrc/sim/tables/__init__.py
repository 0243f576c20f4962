"""Tables of what the protocol reaches, in virtual time: the same to the last digit on every run.

    python -m mrc.sim.tables                     all of them
    python -m mrc.sim.tables incast --explain    one, and what its network and its columns are

Each module holds one table: the network in its docstring, the rows in `rows`.
"""

from __future__ import annotations

from types import ModuleType

from mrc.sim.tables import all_reduce, fairness, goodput, incast, recovery, unequal

TABLES: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (goodput, unequal, recovery, incast, all_reduce, fairness)
}
"""By name, the quickest first."""
