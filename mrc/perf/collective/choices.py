"""From the options of mrc-perf to a run of collectives; what means nothing here is refused by name.

The letters stay those of mrc-perf: -b is perftest's "both ways", so nccl-tests' -b, -e and -f are
--min-size, --size and --step-factor. -n and -w mean the same in all three.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

import mrc
from mrc.cli.failures import ExitCode
from mrc.collectives import Bootstrap, plans
from mrc.collectives.bootstrap import TIMEOUT_S_DEFAULT
from mrc.collectives.health import DETECT_S_DEFAULT
from mrc.collectives.joined import default_config
from mrc.collectives.reduction import Reduction
from mrc.errors import ConfigError, LocalError
from mrc.perf.collective.runs import LOOPBACK, RANK_VARIABLES, Start, alone, one_rank
from mrc.perf.collective.session import CollectiveSession
from mrc.perf.collective.settings import (
    FACTS,
    ITERATIONS_DEFAULT,
    OPS,
    SIZE_DEFAULT,
    WARM_UP_DEFAULT,
    Collective,
    CollectivePlan,
)
from mrc.perf.options import PAIRS_DEFAULT
from mrc.perf.settings import sweep

ONLY_HERE = ("ranks", "dtype", "op", "root", "algorithm")
"""Options that mean nothing without --coll."""
_NOT_HERE = {
    "host": "; MASTER_ADDR and MASTER_PORT say where rank 0 is",
    "latency": "; the column time is what it would show",
    "bidirectional": "; nccl-tests' -b is --min-size here",
    "duration_s": "; -n says how many",
    "qps": "",
    "depth": "",
    "buffer_bytes": "; --size says how large buffers are",
    "interval_s": "",
    "port": "; MASTER_PORT is rank 0's",
    "listen": "; MASTER_ADDR and MASTER_PORT say where rank 0 is",
    "planes": "; MRC_SOCKET_IFNAME chooses interfaces",
    "once": "",
    "own_listener": "; --ranks starts all ranks here",
    "explain": "",
}
"""Options that mean nothing with it, and what does what they would."""
_NOT_FOR_RANKS = ("ranks", "locked", "as_json", "as_stream", "until_eof")
"""Options that the ranks started here do not get: they are told by the environment, or not."""


def given_by_user(context: click.Context, name: str) -> bool:
    """Tell whether an option was on the command line."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def refuse_only_here(context: click.Context) -> None:
    """Refuse what belongs to --coll, where that was not given.

    Raises:
        click.UsageError: something does.
    """
    for name in ONLY_HERE:
        if given_by_user(context, name):
            raise click.UsageError(f"{_flag(context, name)} is for --coll")
    if context.params["compare"] == "algorithms":
        raise click.UsageError("--compare algorithms is for --coll")


def run(context: click.Context, given: dict[str, Any], config: mrc.Config) -> ExitCode:
    """Run the collective that the options ask for.

    Args:
        context: of the command, to tell what was given from what is a default.
        given: the options.
        config: of the endpoints, by the options and their defaults.

    Raises:
        click.UsageError: options that do not go together, or a rank that is not told which it is.
    """
    _refuse(context, given)
    bootstrap = None if _starts_ranks(given) else _from_environment()
    if bootstrap is not None and given["locked"]:
        raise click.UsageError("--lock: MRC_IDENTITY and MRC_TOKEN lock a job, on all its ranks")
    plan = _plan(given, bootstrap.size if bootstrap is not None else given["ranks"])
    start = Start(
        config=_config(context, config, bootstrap),
        meet_timeout_s=(
            given["connect_timeout_s"]
            if given_by_user(context, "connect_timeout_s")
            else TIMEOUT_S_DEFAULT
        ),
        locked=given["locked"],
        words=_words(context),
        until_eof=given["until_eof"],
    )
    session = CollectiveSession(
        plan,
        bootstrap.rank if bootstrap is not None else 0,
        as_json=given["as_json"],
        as_stream=given["as_stream"],
        start=_start_json(plan, start, secured=given["locked"] or _secured(bootstrap)),
    )
    if bootstrap is None:
        return session.run(lambda: alone(session, plan, start))
    return session.run(lambda: one_rank(session, plan, start, bootstrap))


def _config(context: click.Context, config: mrc.Config, bootstrap: Bootstrap | None) -> mrc.Config:
    """Return what `join` takes by itself, but for what the user has said."""
    host = LOOPBACK if bootstrap is None else bootstrap.url.address.host
    own = default_config(host, DETECT_S_DEFAULT)
    icrc = config.icrc if given_by_user(context, "icrc") else own.icrc
    return replace(own, paths=config.paths, mtu=config.mtu, icrc=icrc)


def _refuse(context: click.Context, given: dict[str, Any]) -> None:
    collective = Collective(given["collective"])
    facts = FACTS[collective]
    for name, instead in _NOT_HERE.items():
        if given_by_user(context, name):
            raise click.UsageError(f"{_flag(context, name)} means nothing with --coll{instead}")
    if given["compare"] not in (None, "algorithms"):
        raise click.UsageError(f"--compare {given['compare']} means nothing with --coll")
    if given["pairs"] is not None and given["compare"] is None:
        raise click.UsageError("--pairs is for --compare")
    if given_by_user(context, "op") and not facts.reduces:
        raise click.UsageError(f"--op means nothing to {collective}, which combines no values")
    if given_by_user(context, "root") and not facts.rooted:
        raise click.UsageError(f"--root means nothing to {collective}, which has none")
    if facts.operation is None and (given["algorithm"] or given["compare"]):
        raise click.UsageError(f"{collective} has no algorithms to choose from")
    if given["algorithm"] and given["compare"]:
        raise click.UsageError("--algorithm takes one and --compare algorithms takes all")


def _flag(context: click.Context, name: str) -> str:
    """Return an option as people know it."""
    for parameter in context.command.params:
        if parameter.name == name:
            long = [word for word in parameter.opts if word.startswith("--")]
            return long[0] if long else name.upper()
    raise AssertionError(f"no option {name}")


def _starts_ranks(given: dict[str, Any]) -> bool:
    """Tell whether the ranks are started here, or the environment says that they are elsewhere.

    Raises:
        click.UsageError: neither, or both.
    """
    missing = [name for name in RANK_VARIABLES if not os.environ.get(name)]
    if missing and given["ranks"] is None:
        raise click.UsageError(
            "--ranks N starts all ranks here; a rank of a job is told by RANK, WORLD_SIZE,"
            f" MASTER_ADDR and MASTER_PORT, as torchrun sets them (not set: {', '.join(missing)})"
        )
    if not missing and given["ranks"] is not None:
        raise click.UsageError(
            f"--ranks {given['ranks']} starts ranks here, but RANK, WORLD_SIZE, MASTER_ADDR and"
            " MASTER_PORT are set, which makes this one of a job: drop one of them"
        )
    return bool(missing)


def _from_environment() -> Bootstrap:
    try:
        return Bootstrap.from_environment()
    except (ConfigError, LocalError) as error:
        raise click.UsageError(str(error)) from error


def _secured(bootstrap: Bootstrap | None) -> bool:
    return bootstrap is not None and bootstrap.secured


def _plan(given: dict[str, Any], ranks: int) -> CollectivePlan:
    """Return what to measure.

    Raises:
        click.UsageError: it cannot be.
    """
    collective = Collective(given["collective"])
    operation = FACTS[collective].operation
    size = given["size"] or SIZE_DEFAULT
    if (given["min_size"] or 0) > size:
        raise click.UsageError(f"--min-size {given['min_size']} is above --size {size}")
    if given["root"] >= ranks:
        raise click.UsageError(f"--root {given['root']}: the ranks are 0 to {ranks - 1}")
    if collective is Collective.SENDRECV and ranks == 1:
        raise click.UsageError("sendrecv between 1 rank; must be 2 at least")
    algorithms: tuple[str | None, ...] = (given["algorithm"],)
    if given["compare"] and operation is not None:
        algorithms = tuple(plans.names(operation))
    plan = CollectivePlan(
        collective=collective,
        ranks=ranks,
        sizes=tuple(sweep(given["min_size"], size, given["step_factor"])),
        type_name=given["dtype"],
        op=given["op"],
        root=given["root"],
        algorithms=algorithms,
        rounds=(given["pairs"] or PAIRS_DEFAULT) if given["compare"] else 1,
        iterations=given["operations"] or ITERATIONS_DEFAULT,
        warm_up=WARM_UP_DEFAULT if given["warm_up"] is None else given["warm_up"],
        verify=given["verify"] is not False,
        timeout_s=given["timeout_s"],
    )
    try:
        # What every rank would refuse is refused before any is started.
        Reduction(OPS[plan.op], plan.dtype)
        if operation is not None and given["algorithm"]:
            plans.build(operation, given["algorithm"], 0, ranks, plan.root)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    return plan


def _words(context: click.Context) -> tuple[str, ...]:
    """Return the options that ranks started here get: those that were given."""
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in _NOT_FOR_RANKS or not given_by_user(context, name):
            continue
        value = context.params[name]
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            words += [parameter.opts[0], str(value)]
    return tuple(words)


def _start_json(plan: CollectivePlan, start: Start, *, secured: bool) -> dict[str, Any]:
    return {
        "role": "rank",
        "test": plan.collective.value,
        "message_bytes": [plan.size_bytes(count) for count in plan.counts],
        "operations": plan.iterations,
        "warm_up_operations": plan.warm_up,
        "rounds": plan.rounds,
        "verify": plan.verify,
        "element_type": plan.type_name,
        "op": plan.op if plan.facts.reduces else None,
        "root": plan.root if plan.facts.rooted else None,
        "algorithms": list(plan.algorithms),
        "locked": secured,
        "mtu_bytes": start.config.mtu,
        "icrc": start.config.icrc,
        "paths": start.config.paths,
    }
