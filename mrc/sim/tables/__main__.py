"""The command `python -m mrc.sim.tables`: prints tables, or writes them to files."""

from __future__ import annotations

from pathlib import Path

import click

from mrc.sim.tables import TABLES
from mrc.sim.tables.layout import text_of

EPILOG = """\b
Examples:
  python -m mrc.sim.tables
  python -m mrc.sim.tables incast --explain
  python -m mrc.sim.tables --into tests/golden
"""


@click.command(epilog=EPILOG)
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(list(TABLES)))
@click.option("--explain", is_flag=True, help="Say what the network and the columns are.")
@click.option(
    "--into",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    help="Write NAME.txt into this folder.",
)
def main(names: tuple[str, ...], into: Path | None, *, explain: bool) -> None:
    """Measure the protocol on virtual networks; all tables take about half a minute."""
    for name in names or TABLES:
        text = text_of(TABLES[name].rows())
        click.echo(f"-- {name}")
        if explain:
            click.echo(TABLES[name].__doc__)
        click.echo(text)
        if into is not None:
            (into / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
