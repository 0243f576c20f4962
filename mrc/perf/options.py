"""Options of mrc-perf: their letters are those of perftest and OCP's example where these have them.

Turns what people type into checked values; opens nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mrc.cli.options import (
    CONTROL_PORT,
    MTU_CHOICES,
    TIMEOUT_S_DEFAULT,
    AddressType,
    SecondsRange,
)
from mrc.collectives.reduction import SUPPORTED
from mrc.errors import ConfigError
from mrc.perf.collective.settings import (
    ITERATIONS_DEFAULT,
    OPS,
    RANKS_HERE_MAX,
    WARM_UP_DEFAULT,
    Collective,
)
from mrc.perf.collective.settings import SIZE_DEFAULT as SIZE_DEFAULT_COLLECTIVE
from mrc.perf.own_listener import UNTIL_EOF
from mrc.perf.settings import (
    BUFFER_BYTES_DEFAULT,
    BUFFER_BYTES_MAX,
    DEPTH_DEFAULT,
    DEPTH_MAX,
    DURATION_S_DEFAULT,
    MESSAGE_BYTES_MAX,
    OPERATIONS_MAX,
    OUTSTANDING_BYTES_MAX,
    QPS_MAX,
    SIZE_DEFAULT,
    WARM_UP_OPERATIONS_MAX,
)
from mrc.text import printable
from mrc.units import format_bytes, parse_bytes

PATHS_DEFAULT = 16
PATHS_MAX = 4096
PAIRS_DEFAULT = 5
INTERVAL_S_MIN = 0.01

_F = TypeVar("_F", bound=Callable[..., Any])


class SizeType(click.ParamType[int]):
    """Bytes, with K, M or G for powers of 1024."""

    name = "bytes"

    def __init__(self, most: int) -> None:
        self._most = most

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Read the text of an option."""
        try:
            size = value if isinstance(value, int) else parse_bytes(str(value))
        except ConfigError as error:
            self.fail(printable(str(error)), param, ctx)
        if not 1 <= size <= self._most:
            self.fail(f"{printable(str(value))} is not 1 to {self._most} bytes", param, ctx)
        return size


def _adding(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Return what adds all of these to a command, in this order."""

    def add(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


plan_options = _adding(
    click.option(
        "--latency",
        is_flag=True,
        help="WRITE-with-Immediate ping-pong; half of the round trip is reported, as perftest"
        " does. Default: WRITE bandwidth.",
    ),
    click.option(
        "-b", "--bidirectional", is_flag=True, help="Both sides write; figures are the sum."
    ),
    click.option(
        "-s",
        "--size",
        type=SizeType(MESSAGE_BYTES_MAX),
        metavar="BYTES",
        help="Bytes of a message, K, M and G for powers of 1024; the largest one with"
        f" --min-size. Default: {format_bytes(SIZE_DEFAULT['bandwidth'])}, for latency"
        f" {SIZE_DEFAULT['latency']} B.",
    ),
    click.option(
        "--min-size",
        type=SizeType(MESSAGE_BYTES_MAX),
        metavar="BYTES",
        help="Measure all sizes from this one to --size, one row each.",
    ),
    click.option(
        "--step-factor",
        type=click.IntRange(2, 1024),
        default=2,
        show_default=True,
        metavar="N",
        help="Each size is so many times the one before.",
    ),
    click.option(
        "-n",
        "--iters",
        "operations",
        type=click.IntRange(1, OPERATIONS_MAX),
        metavar="N",
        help="Messages a queue pair and size. Default: as many as --duration takes.",
    ),
    click.option(
        "-D",
        "--duration",
        "duration_s",
        type=SecondsRange(0.01, 86_400),
        metavar="SECONDS",
        help=f"Length of a test, 0.01 to 86400. Default: {DURATION_S_DEFAULT[0]:g}, or"
        f" {DURATION_S_DEFAULT[1]:g} with --compare.",
    ),
    click.option(
        "-w",
        "--warm-up",
        type=click.IntRange(0, OPERATIONS_MAX),
        metavar="N",
        help="Messages a queue pair before each test that are not counted. Default: one walk"
        f" through the buffer, {WARM_UP_OPERATIONS_MAX} at most, shared by the queue pairs.",
    ),
    click.option(
        "-q",
        "--qps",
        type=click.IntRange(1, QPS_MAX),
        default=1,
        show_default=True,
        metavar="N",
        help=f"Queue pairs that carry data, 1 to {QPS_MAX}; they share the paths.",
    ),
    click.option(
        "-t",
        "--tx-depth",
        "depth",
        type=click.IntRange(1, DEPTH_MAX),
        default=DEPTH_DEFAULT,
        show_default=True,
        metavar="N",
        help="Writes outstanding a queue pair; of large messages fewer, as many as the buffer has"
        f" places and {format_bytes(OUTSTANDING_BYTES_MAX)} in all can be, but 2.",
    ),
    click.option(
        "--buffer",
        "buffer_bytes",
        type=SizeType(BUFFER_BYTES_MAX),
        default=BUFFER_BYTES_DEFAULT,
        metavar="BYTES",
        help="Memory a queue pair that messages walk through at both ends; of at least one"
        f" message. Default: {format_bytes(BUFFER_BYTES_DEFAULT)}.",
    ),
    click.option(
        "--verify/--no-verify",
        default=None,
        help="Compare what arrived with what was sent, after each test; exit code 1 if it"
        " differs. Default: checksums of packets only; with --coll, verify.",
    ),
    click.option(
        "--interval",
        "interval_s",
        type=SecondsRange(0, 3600),
        metavar="SECONDS",
        help="Between interim figures, on standard error and in JSON;"
        f" {INTERVAL_S_MIN:g} to 3600, or 0: none. Default: 1 in JSON, none for people.",
    ),
)
"""Adds the options about what is measured, which the connecting side has."""


network_options = _adding(
    click.option(
        "-p",
        "--port",
        type=click.IntRange(0, 65_535),
        metavar="PORT",
        help=f"TCP port to listen on or to connect to. Default: {CONTROL_PORT}.",
    ),
    click.option(
        "--listen",
        type=AddressType(),
        metavar="HOST:PORT",
        help="Listen on this address only. Default: all of IPv4.",
    ),
    click.option(
        "-m",
        "--mtu",
        type=click.Choice(MTU_CHOICES),
        default="4096",
        show_default=True,
        help="Payload bytes of a packet (path MTU); the smaller of both sides counts.",
    ),
    click.option(
        "--paths",
        type=click.IntRange(1, PATHS_MAX),
        default=PATHS_DEFAULT,
        show_default=True,
        metavar="N",
        help="UDP source ports that this side sprays over, shared evenly by the planes.",
    ),
    click.option(
        "--plane",
        "planes",
        multiple=True,
        metavar="ADDR",
        help="A local address to send and receive data on; once for each plane, in the same"
        " order on both sides. Default: the address of the control connection.",
    ),
    click.option(
        "--icrc",
        type=click.Choice(("on", "off")),
        default="on",
        show_default=True,
        help="Write and check the CRC of each packet; both sides must agree. With --coll off by"
        " default where rank 0 is at a loopback address.",
    ),
    click.option(
        "--lock",
        "locked",
        is_flag=True,
        help="When listening: encrypt, and let in only who has the URL that is printed. The"
        " connecting side needs nothing but the whole URL. With --coll --ranks: encrypt, between"
        " the ranks that are started here.",
    ),
    click.option(
        "--connect-timeout",
        "connect_timeout_s",
        type=SecondsRange(0.1, 3600),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="For the connection, and again for each step of the handshake.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=SecondsRange(0.1, 86_400),
        default=TIMEOUT_S_DEFAULT,
        show_default=True,
        metavar="SECONDS",
        help="Give up when nothing has moved for so long.",
    ),
    click.option("--once", is_flag=True, help="When listening: end after one client."),
    click.option(UNTIL_EOF, is_flag=True, hidden=True),
)
"""Adds the options about the connection."""


self_options = _adding(
    click.option(
        "--self",
        "own_listener",
        is_flag=True,
        help="Start a listener in a second process on loopback, and measure against it.",
    ),
    click.option(
        "--compare",
        type=click.Choice(("lock", "icrc", "algorithms")),
        help="Implies --self: measure without and with it in turns, and print what it costs;"
        " algorithms is for --coll: each of them in turns, and the fastest by size.",
    ),
    click.option(
        "--pairs",
        type=click.IntRange(1, 1000),
        metavar="N",
        help=f"Pairs of runs that --compare makes, of algorithms rounds. Default: {PAIRS_DEFAULT}.",
    ),
)
"""Adds the options for a run against a listener of its own."""


collective_options = _adding(
    click.option(
        "--coll",
        "collective",
        type=click.Choice([each.value for each in Collective]),
        help="Measure this collective between ranks, in the columns of nccl-tests. Sizes are those"
        f" of nccl-tests too: --size is {format_bytes(SIZE_DEFAULT_COLLECTIVE)} where nobody says,"
        f" -n {ITERATIONS_DEFAULT}, -w {WARM_UP_DEFAULT}.",
    ),
    click.option(
        "--ranks",
        type=click.IntRange(1, RANKS_HERE_MAX),
        metavar="N",
        help=f"Start so many processes here, 1 to {RANKS_HERE_MAX}. Without it RANK, WORLD_SIZE,"
        " MASTER_ADDR and MASTER_PORT say which rank of which job this one is.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(SUPPORTED),
        default="float32",
        show_default=True,
        help="Type of the elements.",
    ),
    click.option(
        "--op",
        type=click.Choice(list(OPS)),
        default="sum",
        show_default=True,
        help="How values are combined.",
    ),
    click.option(
        "--root",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        metavar="RANK",
        help="For broadcast, reduce, gather and scatter.",
    ),
    click.option(
        "--algorithm",
        metavar="NAME",
        help="Carry it out by this one, whatever the size. Default: what the library chooses.",
    ),
)
"""Adds the options for collectives."""


output_options = _adding(
    click.option(
        "-J",
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON document at the end, also on failure, and nothing else on standard"
        " output. With --coll rank 0 does so, and another rank where it fails.",
    ),
    click.option(
        "--json-stream",
        "as_stream",
        is_flag=True,
        help="The same as it happens, one JSON object a line: start, interval, test, end, error.",
    ),
    click.option(
        "--explain", is_flag=True, help="Say at the end what limited the run, at both ends."
    ),
)
"""Adds the options about what is printed."""
