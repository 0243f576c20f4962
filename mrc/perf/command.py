"""The command mrc-perf: which of its ways a run takes, and with which settings."""

from __future__ import annotations

import ipaddress
import secrets
import sys
from contextlib import suppress
from typing import Any

import click

import mrc
from mrc.cli.entry import PERF, Output
from mrc.cli.failures import ExitCode
from mrc.cli.options import CONTROL_PORT
from mrc.cli.report import failure
from mrc.cli.session import (
    DISTRIBUTION,
    fill_standard_descriptors,
    leave,
    print_document,
)
from mrc.errors import ConfigError
from mrc.perf.collective import choices
from mrc.perf.options import (
    INTERVAL_S_MIN,
    PAIRS_DEFAULT,
    collective_options,
    network_options,
    output_options,
    plan_options,
    self_options,
)
from mrc.perf.report import Report, document, event_line
from mrc.perf.runs import Wishes, alone, compare, connect, listen
from mrc.perf.session import COMMAND, PerfSession
from mrc.perf.settings import DURATION_S_DEFAULT, SIZE_DEFAULT, WRITES_MAX, Kind, Plan, sweep

EPILOG = f"""\b
Examples:
  mrc-perf                                       listen on TCP port {CONTROL_PORT}
  mrc-perf 192.0.2.7                             WRITE bandwidth to there
  mrc-perf 192.0.2.7 --min-size 4K -s 16M --step-factor 4 -D 2
  mrc-perf 192.0.2.7 --latency -n 20000
  mrc-perf 192.0.2.7 -b -q 4 --json --explain
  mrc-perf --lock                                listen behind a lock; prints a URL
  mrc-perf mrc://192.0.2.7:{CONTROL_PORT}/KEY    encrypted, the whole URL
  mrc-perf --self --explain                      both sides here, on loopback
  mrc-perf --compare lock                        what encryption costs here
  mrc-perf --coll all_reduce --ranks 4           four ranks here, as nccl-tests
  mrc-perf --coll all_gather --ranks 4 --min-size 8 -s 64M --step-factor 2
  mrc-perf --coll all_reduce --ranks 4 --compare algorithms --min-size 1K -s 4M
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=192.0.2.7 MASTER_PORT=29600 mrc-perf --coll broadcast

\b
Letters mean what they mean in perftest, not in iperf3: -s is a size, -n iterations, -t writes
outstanding, -D seconds, -b both ways, -q queue pairs. Gbps are 10^9 bit/s of payload. So for
--coll nccl-tests' -b, -e and -f are --min-size, --size and --step-factor; -n and -w are the same.

\b
Exit codes: 0 done, 1 failed or wrong contents, 2 usage or local set-up, 3 listener not reached
or busy, 4 peer or all paths lost, 6 standard output full or closed, 7 protocol or version
mismatch, with --coll also ranks with different options, 130 and 143 signals.
"""


@click.command(epilog=EPILOG)
@click.version_option(package_name=DISTRIBUTION)
@click.argument("host", required=False, metavar="[HOST|URL]")
@plan_options
@network_options
@self_options
@collective_options
@output_options
@click.pass_context
def command(context: click.Context, /, host: str | None, **given: Any) -> ExitCode:
    """Measure what an MRC connection carries: without HOST listen, with HOST connect and measure.

    HOST is a name or an address, HOST:PORT, or the URL that a listener with --lock prints. With
    --coll there is none: ranks measure a collective.
    """
    wishes = _wishes(given)
    if given["collective"] is not None:
        return choices.run(context, given, wishes.config)
    choices.refuse_only_here(context)
    start = {
        "planes_here": list(wishes.planes),
        "mtu_bytes": wishes.config.mtu,
        "icrc": wishes.config.icrc,
        "paths": wishes.config.paths,
    }
    output = {name: given[name] for name in ("as_json", "as_stream", "explain")}
    own, feature = given["own_listener"], given["compare"]
    _check_sides(host, given)
    if host is None and not own and feature is None:
        start |= {"role": "listener", "listen": str(wishes.listen), "locked": wishes.locked}
        session = PerfSession(start=start, **output)
        return session.run(lambda: listen(session, wishes))
    url = _url(host, given["port"]) if host is not None else None
    plan = _plan(given)
    start |= {"role": "client", "url": url.public if url is not None else None, **_plan_json(plan)}
    lively = given["interval_s"] is not None
    session = PerfSession(start=start, lively=lively, **output)
    session.report.plan = plan
    if url is not None:
        return session.run(lambda: connect(session, wishes, plan, str(url)))
    if feature is not None:
        pairs = given["pairs"] or PAIRS_DEFAULT
        return session.run(lambda: compare(session, wishes, plan, feature, pairs))
    return session.run(lambda: alone(session, wishes, plan))


def _check_sides(host: str | None, given: dict[str, Any]) -> None:
    """Make sure that the options belong to the side that this is; nothing is silently ignored.

    Raises:
        click.UsageError: some do not.
    """
    own = given["own_listener"] or given["compare"] is not None
    if host is not None and own:
        raise click.UsageError("--self and --compare measure against a listener of their own")
    if host is not None and given["locked"]:
        raise click.UsageError("--lock is the listener's; here the whole URL does it")
    if given["compare"] == "lock" and given["locked"]:
        raise click.UsageError("--compare lock measures without and with --lock by itself")
    if (host is not None or own) and (given["listen"] is not None or given["once"]):
        raise click.UsageError("--listen and --once are for a side that listens")
    if given["port"] is not None and (own or given["listen"] is not None):
        raise click.UsageError("-p is for HOST, or to listen on without --listen")
    if given["pairs"] is not None and given["compare"] is None:
        raise click.UsageError("--pairs is for --compare")


def _wishes(given: dict[str, Any]) -> Wishes:
    port = CONTROL_PORT if given["port"] is None else given["port"]
    return Wishes(
        listen=given["listen"] or mrc.Address("0.0.0.0", port),
        planes=tuple(given["planes"]),
        config=mrc.Config(
            paths=given["paths"],
            mtu=int(given["mtu"]),
            icrc=given["icrc"] == "on",
        ).retrying_for(given["timeout_s"]),
        locked=given["locked"],
        once=given["once"],
        until_eof=given["until_eof"],
        connect_timeout_s=given["connect_timeout_s"],
        timeout_s=given["timeout_s"],
    )


def _url(host: str, port: int | None) -> mrc.Url:
    """Read where to connect to; a port may stand in it or beside it."""
    with suppress(ValueError):
        # Alone it can be told from a port, so nobody has to write brackets.
        host = f"[{ipaddress.IPv6Address(host)}]"
    try:
        url = mrc.Url.parse(host)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="HOST") from error
    if port is not None and url.address.port not in (CONTROL_PORT, port):
        raise click.UsageError(f"two ports: {url.address.port} in HOST and -p {port}")
    if port is not None:
        url = mrc.Url(mrc.Address(url.address.host, port), url.key)
    if url.address.port == 0:
        raise click.BadParameter("port 0 is nobody's", param_hint="HOST")
    return url


def _plan(given: dict[str, Any]) -> Plan:
    kind = Kind.LATENCY if given["latency"] else Kind.BANDWIDTH
    if kind is Kind.LATENCY and (given["bidirectional"] or given["qps"] > 1):
        raise click.UsageError("--latency is of one queue pair and goes both ways by itself")
    if given["operations"] and given["duration_s"]:
        raise click.UsageError("-n and -D both say when to stop: take one")
    if given["depth"] * given["qps"] > WRITES_MAX:
        raise click.UsageError(f"-t times -q is more than {WRITES_MAX} writes outstanding")
    if 0 < (given["interval_s"] or 0) < INTERVAL_S_MIN:
        raise click.UsageError(f"--interval is 0 or at least {INTERVAL_S_MIN} seconds")
    size = given["size"] or SIZE_DEFAULT[kind]
    if (given["min_size"] or 0) > size:
        raise click.UsageError(f"--min-size {given['min_size']} is above --size {size}")
    return Plan(
        kind=kind,
        sizes=tuple(sweep(given["min_size"], size, given["step_factor"])),
        qps=given["qps"],
        operations=given["operations"] or 0,
        duration_s=given["duration_s"] or DURATION_S_DEFAULT[given["compare"] is not None],
        depth=given["depth"],
        warm_up=given["warm_up"],
        buffer_bytes=given["buffer_bytes"],
        bidirectional=given["bidirectional"],
        verify=bool(given["verify"]),
        seed=secrets.randbits(48),
        interval_s=1.0 if given["interval_s"] is None else given["interval_s"],
        timeout_s=given["timeout_s"],
    )


def _plan_json(plan: Plan) -> dict[str, Any]:
    return {
        "test": plan.kind.value,
        "message_bytes": list(plan.sizes),
        "queue_pairs": plan.qps,
        "operations": plan.operations or None,
        "duration_seconds": None if plan.operations else plan.duration_s,
        "depth": [plan.depth_for(size) for size in plan.sizes],
        "warm_up_operations": [plan.warm_up_operations(size) for size in plan.sizes],
        "buffer_bytes": plan.lane_bytes,
        "bidirectional": plan.bidirectional,
        "verify": plan.verify,
        "interval_seconds": plan.interval_s,
    }


def main() -> None:
    """Run mrc-perf and exit with its code."""
    fill_standard_descriptors()
    leave(_run())


def _run() -> ExitCode:
    """Let click read the arguments; a usage error keeps the promise of --json."""
    try:
        code = command.main(prog_name=COMMAND, standalone_mode=False)
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        refusal = failure(ConfigError(error.format_message()), ExitCode.USAGE)
        with suppress(OSError):
            output = PERF.output(sys.argv[1:])
            if output is Output.DOCUMENT:
                print_document(document(Report(), refusal))
            elif output is Output.STREAM:
                click.echo(event_line("error", refusal))
        return ExitCode.USAGE
    except click.Abort:
        return ExitCode.INTERRUPTED
    return ExitCode(code or 0)
