"""Command-line options shared by the commands: their types, units, defaults and limits.

Turns what people type into checked values; opens nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

import mrc
from mrc.cli.names import printable
from mrc.units import NS_PER_S

CONTROL_PORT = 18515
"""Default port of the rendezvous (TCP), the one OCP's example uses."""

SCHEME = "mrc"
MTU_CHOICES = ("256", "512", "1024", "2048", "4096")
SPRAY_RUN_MAX = 64
TIMEOUT_S_DEFAULT = 30.0
RETRY_FOREVER = 25
"""The largest `retry_exponential`: a queue pair that never gives up."""

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class HostPort:
    """An address to listen on or to reach.

    Attributes:
        host: a name or an address, without brackets.
        port: TCP port of the rendezvous, 0 to 65535; 0 lets the kernel choose, when listening.
    """

    host: str
    port: int

    def __str__(self) -> str:
        """Spell it as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL a sender is given."""
        return f"{SCHEME}://{self}/"


def parse_host_port(text: str, *, port: int = CONTROL_PORT) -> HostPort:
    """Read HOST, HOST:PORT or [ADDRESS]:PORT.

    Raises:
        ValueError: it is none of these; the message says what is wrong.
    """
    if text.count(":") > 1 and not text.startswith("["):
        raise ValueError("an IPv6 address stands in brackets: [::1]:18515")
    try:
        parts = urlsplit(f"//{text}")
        given = parts.port
    except ValueError as error:
        raise ValueError(f"port must be 0 to 65535 ({error})") from None
    if parts.path or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("only HOST:PORT is meant here")
    host = text.rpartition("]")[0][1:] if text.startswith("[") else text.partition(":")[0]
    if not host:
        raise ValueError("the host is missing")
    return HostPort(host, port if given is None else given)


def parse_url(text: str) -> HostPort:
    """Read mrc://HOST:PORT/, as mrc-recv prints it; the scheme may be left out.

    Raises:
        ValueError: it is another scheme, or carries what such a URL does not have.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        rest = text
    elif scheme.lower() != SCHEME:
        raise ValueError(f"the scheme must be {SCHEME}://, not {printable(scheme)}://")
    address = parse_host_port(rest.removesuffix("/"))
    if address.port == 0:
        raise ValueError("port 0 is nobody's")
    return address


def retry_exponential(timeout_s: float) -> int:
    """Choose the setting of this name that lets a queue pair retry for at least `timeout_s`.

    Otherwise it would give up a peer that stands still long before the user wants to.
    """
    defaults = mrc.Config()
    for doublings in range(RETRY_FOREVER):
        intervals = 1 + defaults.retry_linear + (2 << doublings) - 2
        if intervals * defaults.timeout_ns >= timeout_s * NS_PER_S:
            return doublings
    return RETRY_FOREVER


class HostPortType(click.ParamType[HostPort]):
    """An address to listen on."""

    name = "host:port"

    def convert(self, value: Any, param: Any, ctx: Any) -> HostPort:
        """Read the text of an option."""
        if isinstance(value, HostPort):
            return value
        try:
            return parse_host_port(str(value))
        except ValueError as error:
            self.fail(f"{printable(str(value))!r}: {error}", param, ctx)


class UrlType(click.ParamType[HostPort]):
    """The URL of a receiver."""

    name = "url"

    def convert(self, value: Any, param: Any, ctx: Any) -> HostPort:
        """Read the text of an argument."""
        if isinstance(value, HostPort):
            return value
        try:
            return parse_url(str(value))
        except ValueError as error:
            self.fail(
                f"{printable(str(value))!r} is not the URL of a receiver: {error}"
                " (mrc://HOST:PORT/, as mrc-recv prints it)",
                param,
                ctx,
            )


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
        type=click.FloatRange(0.1, 86_400),
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
