"""The command line of `tools/demo-training`."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from pyroute2.netlink.exceptions import NetlinkError
from rich.console import Console
from rich.table import Table

from netns import kernel, topology
from netns.ending import Ending
from netns.errors import LabError
from netns.fabric import plan
from netns.lab import Lab
from netns.places import RUN, free_name
from netns.processes import TrafficFailed
from netns.runner import busy_percent, busy_warning
from training import figures
from training.classroom import Plan, Training, assembled
from training.picture import draw

BACKENDS = (figures.OURS, figures.OTHERS)
TOPOLOGY = "ring"
PLANES = 4
WARM_UP_STEPS = 10
STEPS_BEFORE = 25
"""Steps before the plane dies, and after it is healed."""
SLOWER = 1.5
"""How much longer a step may take over the planes that are left, when steps are counted out."""
EXIT_FAILED, EXIT_USAGE = 1, 2
COLUMNS = 120

EXAMPLES = """
\b
Examples:
  sudo tools/demo-training
  sudo tools/demo-training --dead 2 --backend mrc --picture mrc.png
  sudo tools/demo-training --json > training.json

Exit codes: 0 all that must hold held; 1 something did not, or a rank failed; 2 usage, or this
machine lacks something; 130 Ctrl-C; 143 SIGTERM.
"""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What was asked for; the options say what each is."""

    backends: tuple[str, ...]
    dead_s: float
    plane: int
    rate_mbps: float
    steps: int | None
    seed: int


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 100})
@click.option(
    "--backend",
    "backends",
    multiple=True,
    type=click.Choice(BACKENDS),
    help="One of them only. Default: mrc, then gloo.",
)
@click.option(
    "--dead",
    "dead_s",
    type=click.FloatRange(0.1, 30),
    default=5.0,
    show_default=True,
    help="Seconds for which the plane is dead.",
)
@click.option(
    "--plane",
    type=click.IntRange(0, PLANES - 1),
    default=2,
    show_default=True,
    help="Which one dies. Rank 0 is found at its address on it, and gloo's TCP is on it.",
)
@click.option(
    "--rate-mbps",
    type=click.FloatRange(1, 10_000),
    default=100.0,
    show_default=True,
    help="Of every plane, in Mbit/s and direction.",
)
@click.option(
    "--steps",
    type=click.IntRange(STEPS_BEFORE + 2, 100_000),
    help="Of a training. Default: what goes on for a while after the plane is healed.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Of the network's first weights and of the order of the images, the same for all.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=Path("training.png"),
    show_default=True,
    help="The file to draw into.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Default: a table.")
@click.option("--name", default="training", show_default=True, help="Of the lab.")
def cli(
    backends: tuple[str, ...],
    picture: Path,
    as_json: bool,
    name: str,
    dead_s: float,
    plane: int,
    rate_mbps: float,
    steps: int | None,
    seed: int,
) -> None:
    """Train a small network on four hosts while one of their four planes goes silent and returns.

    Four ranks, each in a host of its own in a lab of namespaces, learn handwritten digits with
    PyTorch's DistributedDataParallel: over mrc, and then, with the same seed and the same fault,
    over gloo, whose TCP takes one plane, the one that dies. Each trains twice, without and with the
    fault. Needs root and Linux; takes about two minutes, and removes all it made.

    Over mrc the longest step while the plane is dead must be under two medians of the steps before
    and after, which have all planes; over gloo it must be five times as long, or the fault showed
    nothing. Losses must be those of the training without the fault.
    """
    wishes = Wishes(
        backends=backends or BACKENDS,
        dead_s=dead_s,
        plane=plane,
        rate_mbps=rate_mbps,
        steps=steps,
        seed=seed,
    )
    if not picture.absolute().parent.is_dir():
        raise click.UsageError(f"--picture {picture}: there is no such folder")
    lab_name = free_name(name) + RUN
    kernel.require()
    fabric = plan(topology.load(TOPOLOGY, rate_mbps=rate_mbps))
    say: Say = lambda line: click.echo(line, err=True)  # noqa: E731  # one line, one use
    busy = busy_percent()
    with Lab(fabric, lab_name) as lab:
        trainings = asyncio.run(train_all(wishes, lab, say))
    rows = [figures.row(backend, each) for backend, each in trainings.items()]
    draw(rows, trainings, picture)
    settings = {slot: getattr(wishes, slot) for slot in Wishes.__slots__}
    machine = {"processors": os.cpu_count(), "busy_percent_before": round(busy, 1)}
    document = figures.document(rows, trainings, settings | machine)
    if as_json:
        click.echo(json.dumps(document, indent=1))
    else:
        console = Console(width=None if sys.stdout.isatty() else COLUMNS, highlight=False)
        console.print(_table(rows))
        for each in figures.verdicts(rows):
            console.print(f"{'ok  ' if each.holds else 'FAIL'} {each.what}: {each.value:.3g}")
    if warning := busy_warning(busy):
        say(warning)
    say(f"drawn: {picture}")
    sys.exit(0 if document["passed"] else EXIT_FAILED)


async def train_all(wishes: Wishes, lab: Lab, say: Say) -> dict[str, dict[str, Training]]:
    """Let each backend train without and with the fault; return what that was like.

    Raises:
        TrafficFailed: a rank failed, or said nothing for too long.
    """
    found = {}
    steps = wishes.steps
    for backend in wishes.backends:
        said: Say = lambda line, who=backend: say(f"{who:5} {line}")  # type: ignore[misc]  # noqa: E731
        said(f"starting {len(lab.fabric.topology.hosts)} ranks")
        async with assembled(backend, lab, wishes.plane, wishes.seed) as classroom:
            step_s = await classroom.train("warm-up", Plan(steps=WARM_UP_STEPS), said)
            # As many for all: the losses are compared step by step.
            steps = steps or 2 * STEPS_BEFORE + math.ceil(SLOWER * wishes.dead_s / step_s)
            said(f"{step_s * 1e3:.0f} ms a step; {steps} steps without a fault")
            await classroom.train(figures.UNDISTURBED, Plan(steps=steps), said)
            said(f"{steps} steps again")
            disturbed = Plan(steps=steps, dies_at=STEPS_BEFORE, dead_s=wishes.dead_s)
            await classroom.train(figures.DISTURBED, disturbed, said)
            found[backend] = await classroom.finish()
    return found


def _table(rows: list[figures.Row]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("")
    for each in rows:
        table.add_column(each.backend, justify="right")
    lines: list[tuple[str, Callable[[figures.Row], str]]] = [
        ("median step before and after, ms", lambda row: f"{row.median_ms:.1f}"),
        ("longest step while the plane is dead, ms", lambda row: f"{row.longest_ms:,.1f}"),
        ("the same in medians", lambda row: f"{row.medians:.3g}"),
        (
            "median step of the training without a fault, ms",
            lambda row: f"{row.undisturbed_ms:.1f}",
        ),
        ("longest step of it, ms", lambda row: f"{row.undisturbed_longest_ms:.1f}"),
        ("loss of the last step", lambda row: f"{row.loss:.6f}"),
        ("largest difference of the losses to it", lambda row: f"{row.loss_difference:.2g}"),
        ("images never seen, told right", lambda row: f"{100 * row.right:.1f} %"),
    ]
    for what, words in lines:
        table.add_row(what, *(words(row) for row in rows))
    return table


def main() -> None:
    """Run the command line; mistakes are one message and exit status 2."""
    ending = Ending()
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except (LabError, NetlinkError, OSError) as error:
        click.echo(f"demo-training: {error}", err=True)
        sys.exit(EXIT_USAGE)
    except (TrafficFailed, ValueError) as error:
        click.echo(f"demo-training: {error}", err=True)
        sys.exit(EXIT_FAILED)
    except (KeyboardInterrupt, click.Abort):
        click.echo("demo-training: interrupted; everything it made is removed", err=True)
        sys.exit(ending.status)


if __name__ == "__main__":
    main()
