"""`mrc-lab`: build a fabric on this machine, break it, run scenarios and judge them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from pyroute2.netlink.exceptions import NetlinkError
from rich.console import Console
from rich.table import Table

from netns import faults, kernel, topology
from netns.ending import Ending
from netns.errors import LabError
from netns.fabric import plan
from netns.lab import Lab
from netns.leftovers import labs, sweep
from netns.places import RUN, Claim, free_name
from netns.recording import Recording
from netns.scenario import Scenario
from netns.scenario import load as load_scenario
from netns.scenario import names as scenario_names

EXIT_FAILED, EXIT_USAGE = 1, 2

EXAMPLES = """
\b
Examples:
  mrc-lab up four-plane
  mrc-lab exec a -- ip -brief address
  mrc-lab fail s2-b loss --amount 1 --towards b
  mrc-lab heal s2-b
  mrc-lab show
  mrc-lab down
  mrc-lab run plane-blackhole loss-1 --report reports
  mrc-lab compare plane-blackhole --report reports

Exit codes: 0 done, and all a scenario must keep was kept; 1 a scenario failed; 2 usage, or this
machine lacks something; `exec` returns what its command does; 130 Ctrl-C; 143 SIGTERM.
"""

report_option = click.option(
    "--report",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Leave report.json, report.png and report.html in DIR/SCENARIO. Default: no report.",
)
name_option = click.option(
    "--name", default="lab", show_default=True, help="Of the lab; two stand side by side."
)


@click.group(epilog=EXAMPLES, context_settings={"max_content_width": 100})
@click.version_option(package_name="mrc-transport")
def cli() -> None:
    """Networks of namespaces on this machine, with switches that trim, mark, drop and die.

    Needs root and Linux. Everything it makes is called mrclab-..., and is gone after `down`.
    """


@cli.command(epilog=f"What ships: {', '.join(topology.names())}.")
@click.argument("fabric", metavar="TOPOLOGY")
@click.option("--mtu", type=int, help="Of every device, in bytes. Default: the topology's.")
@name_option
def up(fabric: str, mtu: int | None, name: str) -> None:
    """Build TOPOLOGY, one that ships or a .yaml file; one of the same name is replaced."""
    with closing(Lab(plan(topology.load(fabric, mtu=mtu)), free_name(name))) as lab:
        lab.up()
        click.echo(f"{lab.fabric.topology.title}: up as {name}")
        for host in lab.fabric.topology.hosts:
            click.echo(f"  {host}: {' '.join(lab.fabric.addresses(host))}")


@cli.command()
@click.option("--all", "everything", is_flag=True, help="Every lab of this machine.")
@name_option
def down(everything: bool, name: str) -> None:
    """Remove a lab, its processes, namespaces and state, and what a killed `run` left.

    What is not there is no error; a lab that another process is using stays, and is one.
    """
    kernel.require()
    own = [name] if name.endswith(RUN) else [name, name + RUN]
    complaints = []
    for each in labs() if everything else own:
        try:
            with Claim(each):
                for removed in sweep(each):
                    click.echo(f"removed {removed}")
        except LabError as error:
            complaints.append(str(error))
    if complaints:
        raise LabError("; ".join(dict.fromkeys(complaints)))


@cli.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("host")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@name_option
def execute(host: str, command: tuple[str, ...], name: str) -> None:
    """Run COMMAND inside HOST, or any other node, and return its exit status."""
    _replace_process(name, host, list(command))


@cli.command()
@click.argument("host")
@name_option
def shell(host: str, name: str) -> None:
    """Open a shell inside HOST, or any other node."""
    _replace_process(name, host, [os.environ.get("SHELL", "/bin/sh")])


def _replace_process(name: str, host: str, command: list[str]) -> None:
    with closing(Lab.open(name)) as lab:
        line = lab.command(host, command)
        environment = lab.environment()
    sys.stdout.flush()
    os.execvpe(line[0], line, environment)  # noqa: S606  # what the user asked to run


@cli.command(epilog="\b\n" + "\n".join(f"{k}: {what}" for k, what in faults.kinds().items()))
@click.argument("link")
@click.argument("kind", type=click.Choice(list(faults.kinds())))
@click.option("--amount", type=float, help="The number a kind needs: percent, bytes or Mbit/s.")
@click.option("--towards", metavar="NODE", help="Only the direction that leads there.")
@click.option(
    "--only",
    type=click.Choice(["all", "data", "control"]),
    default="all",
    show_default=True,
    help="Which packets a black hole or loss takes.",
)
@click.option("--source-port", type=int, help="The EV of ev-loss, by its UDP source port.")
@name_option
def fail(link: str, kind: str, name: str, **how: Any) -> None:
    """Break LINK; what was broken before stays so."""
    kernel.require()
    with Claim(name), closing(Lab.open(name)) as lab:
        faults.fail(lab, lab.fabric.link(link), kind, **how)
        _print_broken(faults.in_force(lab))


@cli.command()
@click.argument("link")
@name_option
def heal(link: str, name: str) -> None:
    """Give LINK back all that its topology says."""
    kernel.require()
    with Claim(name), closing(Lab.open(name)) as lab:
        faults.heal(lab, lab.fabric.link(link))
        _print_broken(faults.in_force(lab))


def _print_broken(broken: dict[str, str]) -> None:
    """Say what is in force on every direction of a link that is not as its topology says."""
    for key, what in broken.items():
        click.echo(f"  {key}: {what}")
    if not broken:
        click.echo("  every link is as its topology says")


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Default: tables.")
@name_option
def show(as_json: bool, name: str) -> None:
    """Show the hosts of a lab, what is broken, and what every direction of every link has done."""
    kernel.require()
    with closing(Lab.open(name)) as lab:
        hosts = {host: lab.fabric.addresses(host) for host in lab.fabric.topology.hosts}
        links = {key: asdict(port.counters()) for key, port in lab.ports.items()}
        settings = {key: asdict(port.settings()) for key, port in lab.ports.items()}
        broken = faults.in_force(lab)
    if as_json:
        counted = {"links": links, "settings": settings, "broken": broken}
        document = {"name": name, "mtu": lab.fabric.mtu, "hosts": hosts, **counted}
        click.echo(json.dumps(document, indent=1))
        return
    click.echo(f"{lab.fabric.topology.title} ({name}, MTU {lab.fabric.mtu})")
    for host, addresses in hosts.items():
        click.echo(f"  {host}: {' '.join(addresses)}")
    _print_broken(broken)
    Console(width=None if sys.stdout.isatty() else 160).print(_links_table(links))


def _links_table(links: dict[str, dict[str, int]]) -> Table:
    """Return the counters as a table, without the columns that are all zero."""
    table = Table(box=None, header_style="bold")
    used = [
        counter
        for counter in next(iter(links.values()))
        if counter in ("packets", "bytes") or any(each[counter] for each in links.values())
    ]
    table.add_column("link")
    for counter in used:
        table.add_column(counter.replace("_", " "), justify="right")
    for key, counters in links.items():
        table.add_row(key, *(f"{counters[counter]:,}" for counter in used))
    return table


@cli.command("run")
@click.argument("names", metavar="SCENARIO...", nargs=-1)
@report_option
@click.option(
    "--transport", type=click.Choice(["mrc", "mptcp", "tcp"]), default="mrc", show_default=True
)
@click.option("--list", "listing", is_flag=True, help="Name the scenarios that ship, and end.")
@click.option("-q", "--quiet", is_flag=True, help="Print verdicts only.")
@name_option
def run_scenarios(
    names: tuple[str, ...],
    folder: Path | None,
    transport: str,
    listing: bool,
    quiet: bool,
    name: str,
) -> None:
    """Run each SCENARIO (one that ships, `all`, or a .yaml file) in a lab of its own.

    With --report DIR each leaves DIR/SCENARIO/report.json, report.png and report.html.
    """
    if listing or not names:
        for each in scenario_names():
            click.echo(f"{each:24}{load_scenario(each).title}")
        return
    passed = [
        _run_one(each, [transport], folder, free_name(name) + RUN, quiet)
        for each in (scenario_names() if names == ("all",) else names)
    ]
    sys.exit(0 if all(passed) else EXIT_FAILED)


@cli.command()
@click.argument("scenario")
@report_option
@click.option("-q", "--quiet", is_flag=True, help="Print verdicts only.")
@name_option
def compare(scenario: str, folder: Path | None, quiet: bool, name: str) -> None:
    """Run SCENARIO over MRC, kernel MPTCP and kernel TCP, and put them in one report."""
    if not load_scenario(scenario).compare:
        raise LabError(f"{scenario} is about what only MRC has; there is nothing to compare")
    passed = _run_one(scenario, ["mrc", "mptcp", "tcp"], folder, free_name(name) + RUN, quiet)
    sys.exit(0 if passed else EXIT_FAILED)


def _run_one(
    scenario: str, transports: list[str], folder: Path | None, lab_name: str, quiet: bool
) -> bool:
    """Run a scenario over each transport, print the numbers, leave the report."""
    wanted = load_scenario(scenario)
    kernel.require()
    if folder is not None:
        (folder / wanted.name).mkdir(parents=True, exist_ok=True)
    # What draws takes a second to import, which `show` need not wait for.
    from netns import report  # noqa: PLC0415

    say: Callable[[str], None] = (
        (lambda _: None) if quiet else (lambda line: click.echo(f"  {line}"))
    )
    recordings = record(wanted, transports, lab_name, say)
    made = report.build(wanted, recordings)
    click.echo(f"{wanted.name}: {'passed' if made['passed'] else 'FAILED'}")
    for run in made["runs"]:
        for line in [*run["trouble"], *(f["error"] for f in run["flows"] if f["error"])]:
            click.echo(f"  {run['transport']}: {line}", err=True)
    Console(width=None if sys.stdout.isatty() else 160).print(_verdict_table(made))
    if folder is not None:
        report.write(made, folder / wanted.name)
        click.echo(f"  {folder / wanted.name / 'report.html'}")
    return bool(made["passed"]) and len(recordings) == len(transports)


def record(
    wanted: Scenario, transports: list[str], lab_name: str, say: Callable[[str], None]
) -> list[Recording]:
    """Run a scenario over each transport; the first must work, of the others what works counts."""
    from netns import runner  # noqa: PLC0415
    from netns.transports import transport  # noqa: PLC0415

    recordings: list[Recording] = []
    for each in transports:
        try:
            recordings.append(runner.run(wanted, transport(each, wanted), lab_name, say))
        except (LabError, NetlinkError, OSError) as error:
            if not recordings:
                raise
            click.echo(f"  {each}: {error}", err=True)
        except KeyboardInterrupt:
            click.echo("mrc-lab: ended early; everything it made is removed", err=True)
            raise
    return recordings


def _verdict_table(made: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold")
    for column in ("", "metric"):
        table.add_column(column)
    for run in made["runs"]:
        table.add_column(run["transport"], justify="right")
    for column in ("unit", "aim", "must", "what"):
        table.add_column(column)
    for each in made["expectations"]:
        sign = "ok" if each["aim_met"] in (True, None) else "miss" if each["must_met"] else "FAIL"
        values = [_value(run["metrics"].get(each["metric"])) for run in made["runs"]]
        bounds = [_bounds(each["aim"]), _bounds(each["must"])]
        table.add_row(sign, each["metric"], *values, each["unit"], *bounds, each["what"])
    return table


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}".rstrip("0").rstrip(".")


def _bounds(bounds: list[float | None]) -> str:
    low, high = bounds
    if low is not None and low == high:
        return f"= {low:g}"
    least = "" if low is None else f">= {low:g}"
    most = "" if high is None else f"<= {high:g}"
    return " and ".join(filter(None, (least, most)))


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
        click.echo(f"mrc-lab: {error}", err=True)
        sys.exit(EXIT_USAGE)
    except (KeyboardInterrupt, click.Abort):
        click.echo("mrc-lab: interrupted", err=True)
        sys.exit(ending.status)
