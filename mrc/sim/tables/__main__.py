"""The command `python -m mrc.sim.tables`: prints tables, or writes them to files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from mrc.sim.lockstep import RANKS_MAX
from mrc.sim.tables import TABLES, all_reduce
from mrc.sim.tables.layout import Row, text_of

EPILOG = """\b
Examples:
  python -m mrc.sim.tables
  python -m mrc.sim.tables incast --explain
  python -m mrc.sim.tables --into tests/golden
  python -m mrc.sim.tables all_reduce --ranks 64 --seeds 3
"""


def _counted(rows: Iterable[Row], of: int) -> Iterator[Row]:
    """Say how many are there, while they are measured."""
    for number, row in enumerate(rows, 1):
        click.echo(f"{number} of {of} cases done", err=True)
        yield row


@click.command(epilog=EPILOG)
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(list(TABLES)))
@click.option("--explain", is_flag=True, help="Say what the network and the columns are.")
@click.option(
    "--into",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    help="Write NAME.txt into this folder.",
)
@click.option(
    "--ranks",
    type=click.IntRange(2, RANKS_MAX),
    help=f"Of all_reduce. Default: {all_reduce.RANKS}; 64 take a minute a seed, 256 twelve.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    help=f"Of all_reduce, of which each case takes every one. Default: {all_reduce.SEEDS}.",
)
def main(
    names: tuple[str, ...],
    into: Path | None,
    ranks: int | None,
    seeds: int | None,
    *,
    explain: bool,
) -> None:
    """Measure the protocol on virtual networks; all tables take about half a minute."""
    if (ranks or seeds) and names != ("all_reduce",):
        raise click.UsageError("--ranks and --seeds are for the table all_reduce alone")
    for name in names or TABLES:
        if ranks or seeds:
            rows = all_reduce.rows(ranks or all_reduce.RANKS, seeds or all_reduce.SEEDS)
            text = text_of(_counted(rows, len(all_reduce.CASES)))
        else:
            text = text_of(TABLES[name].rows())
        click.echo(f"-- {name}")
        if explain:
            click.echo(TABLES[name].__doc__)
        click.echo(text)
        if into is not None:
            (into / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
