"""Command-line options shared by the commands: their types, units, defaults and limits.

Turns what people type into checked values; opens nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

import mrc
from mrc.errors import ConfigError
from mrc.text import printable

CONTROL_PORT = 18515
"""Default port of the rendezvous (TCP), the one OCP's example uses."""

MTU_CHOICES = ("256", "512", "1024", "2048", "4096")
SPRAY_RUN_MAX = 64
TIMEOUT_S_DEFAULT = 30.0

_F = TypeVar("_F", bound=Callable[..., Any])


class AddressType(click.ParamType[mrc.Address]):
    """An address to listen on."""

    name = "host:port"

    def convert(self, value: Any, param: Any, ctx: Any) -> mrc.Address:
        """Read the text of an option."""
        if isinstance(value, mrc.Address):
            return value
        try:
            url = mrc.Url.parse(str(value))
        except ConfigError as error:
            self.fail(printable(str(error)), param, ctx)
        if url.key is not None:
            self.fail("only HOST:PORT is meant here", param, ctx)
        return url.address


class UrlType(click.ParamType[mrc.Url]):
    """The URL of a receiver."""

    name = "url"

    def convert(self, value: Any, param: Any, ctx: Any) -> mrc.Url:
        """Read the text of an argument."""
        if isinstance(value, mrc.Url):
            return value
        try:
            url = mrc.Url.parse(str(value))
        except ConfigError as error:
            self.fail(f"{printable(str(error))} (URL is what mrc-recv prints)", param, ctx)
        if url.address.port == 0:
            self.fail("port 0 is nobody's", param, ctx)
        return url


class SecondsRange(click.FloatRange):
    """Seconds between two bounds: what is no number is beyond both."""

    name = "seconds"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Read the text of an option."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{printable(str(value))} is no number of seconds", param, ctx)
        return seconds


class SprayRunType(click.ParamType[int]):
    """Packets in a row on one path; 0 stands for auto."""

    name = "n|auto"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Read the text of an option."""
        if value in {"auto", 0}:
            return 0
        try:
            number = int(value)
        except ValueError:
            number = 0
        if not 1 <= number <= SPRAY_RUN_MAX:
            self.fail(
                f"{printable(str(value))!r} is neither auto nor 1 to {SPRAY_RUN_MAX} packets",
                param,
                ctx,
            )
        return number


def output_options(function: _F) -> _F:
    """Add the options about what a command prints."""
    function = click.option(
        "--quiet",
        "-q",
        is_flag=True,
        help="Print errors only. Default: progress and a summary, on standard error.",
    )(function)
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON document at the end, also on failure: nothing else goes to standard"
        " output. Default: off.",
    )(function)


def network_options(function: _F) -> _F:
    """Add the options about the connection that both sides have."""
    function = click.option(
        "--timeout",
        "timeout_s",
        type=SecondsRange(0.1, 86_400),
        default=TIMEOUT_S_DEFAULT,
        show_default=True,
        metavar="SECONDS",
        help="Give up when the peer says nothing for so long, 0.1 to 86400 seconds.",
    )(function)
    function = click.option(
        "--no-icrc",
        is_flag=True,
        help="Neither write nor check the CRC of each packet; both sides must agree. The digest of"
        " each file is checked all the same. Default: checked.",
    )(function)
    function = click.option(
        "--mtu",
        type=click.Choice(MTU_CHOICES),
        default="4096",
        show_default=True,
        help="Payload bytes of a packet; the smaller of both sides counts.",
    )(function)
    return click.option(
        "--plane",
        "planes",
        multiple=True,
        metavar="ADDR",
        help="A local address to send and receive data on; once for each plane, in the same order"
        " on both sides. Default: the address of the control connection.",
    )(function)
