"""The command `python -m mrc.sim`: runs, explains and records simulations."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from mrc.sim.running import record, run_seed
from mrc.sim.simulation import Outcome
from mrc.sim.swarm import options_of
from mrc.units import format_ns

EPILOG = """\b
Examples:
  python -m mrc.sim --seed 7
  python -m mrc.sim --seed 7 --trace seven.json --pcap seven.pcap
  python -m mrc.sim --seeds 0:300
  python -m mrc.sim --seed 7 --json | jq .outcome

\b
With --seed, a seed that fails is run again and recorded as mrc-sim-SEED.json and mrc-sim-SEED.pcap,
in the current folder unless --trace and --pcap say otherwise. tools/soak runs seeds until stopped.

\b
Exit codes: 0 all rules held, 1 one was broken, 2 usage, 130 interrupted.
"""


class SeedRange(click.ParamType[range]):
    """FIRST:END, seeds from FIRST to END - 1."""

    name = "first:end"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> range:
        """Return the range."""
        first, colon, end = str(value).partition(":")
        if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
            self.fail(f"{value!r} is not FIRST:END with FIRST below END", param, ctx)
        return range(int(first), int(end))


@click.command(epilog=EPILOG)
@click.option("--seed", type=click.IntRange(min=0), help="Run this seed, and print its options.")
@click.option("--seeds", type=SeedRange(), help="Run these seeds, and print those that fail.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write a JSON trace of --seed.")
@click.option("--pcap", type=click.Path(path_type=Path), help="Write the datagrams of --seed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def main(
    seed: int | None,
    seeds: range | None,
    trace: Path | None,
    pcap: Path | None,
    *,
    as_json: bool,
) -> None:
    """Try the protocol on a virtual network in which anything may fail, derived from a seed."""
    if not __debug__:
        raise click.UsageError("python -O takes out the assertions that a simulation is there for")
    if (seed is None) == (seeds is None):
        raise click.UsageError("give either --seed or --seeds")
    if seed is None and (trace or pcap):
        raise click.UsageError("--trace and --pcap record one --seed")
    try:
        if seeds is not None:
            sys.exit(_run_many(seeds, as_json=as_json))
        elif seed is not None:
            sys.exit(_run_one(seed, trace, pcap, as_json=as_json))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever reads has seen enough; the interpreter must not complain of it at its end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from error


def _run_one(seed: int, trace: Path | None, pcap: Path | None, *, as_json: bool) -> int:
    """Run one seed, recorded when asked for or when it fails; return the exit code."""
    options = options_of(seed)
    if not as_json:
        click.echo(options.table())
    outcome = record(options, trace, pcap) if trace or pcap else run_seed(seed)
    if not outcome.passed and not (trace and pcap):
        trace = trace or Path(f"mrc-sim-{seed}.json")
        pcap = pcap or Path(f"mrc-sim-{seed}.pcap")
        outcome = record(options, trace, pcap)
    if as_json:
        document = {"options": dict_of(options.rows()), "outcome": outcome.to_json()}
        click.echo(json.dumps(document, indent=1))
    else:
        click.echo(f"\n{described(outcome)}")
        for path in (trace, pcap):
            if path is not None:
                click.echo(f"written: {path}")
    return 0 if outcome.passed else 1


def _run_many(seeds: range, *, as_json: bool) -> int:
    """Run seeds one after the other; return the exit code."""
    failed = []
    for seed in seeds:
        outcome = run_seed(seed)
        if not outcome.passed:
            failed.append(outcome)
            if not as_json:
                click.echo(described(outcome))
    if as_json:
        document = {"seeds": len(seeds), "failed": [outcome.to_json() for outcome in failed]}
        click.echo(json.dumps(document, indent=1))
    else:
        click.echo(f"{len(seeds)} seeds, {len(failed)} failed")
    return 1 if failed else 0


def dict_of(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return rows as lists by name: some names come more than once."""
    found: dict[str, list[str]] = {}
    for name, value in rows:
        found.setdefault(name, []).append(value)
    return found


def described(outcome: Outcome) -> str:
    """Return an outcome for people."""
    facts = (
        f"{outcome.datagrams} datagrams, {outcome.lost} lost, {outcome.reconnects} reconnects,"
        f" {format_ns(outcome.virtual_ns)} of virtual time, {outcome.events} events"
    )
    if outcome.passed:
        return f"seed {outcome.seed}: all rules held ({facts})"
    return f"seed {outcome.seed}: FAILED ({facts})\n  {outcome.message}"


if __name__ == "__main__":
    main()
