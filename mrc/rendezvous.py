"""The out-of-band channel over which two queue pairs tell each other their attributes.

MRC has none of its own, so this is one TCP connection per queue pair: JSON objects, one a line. It
carries the handshake and, by staying open, tells at once when the peer's process is gone. Nothing
that a transfer waits for goes over it: it has one path only.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from mrc.errors import ConfigError, LocalError, PeerProtocolError, PeerUnreachable, PeerVersionError

CONTROL_PORT_DEFAULT = 18515
"""As in OCP's example program."""
LINE_BYTES_MAX = 64 * 1024
"""Longest line of the handshake; more is no MRC peer."""
BACKLOG = 128
PROTOCOL = "mrc-rendezvous/1"
_HOST_PORT = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:\[\]]*))(?::(?P<port>\d{1,6}))?")

Message = dict[str, Any]


class Address(NamedTuple):
    """Host (name or numeric) and TCP port of a rendezvous."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return host:port, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Return the URL people paste."""
        return f"mrc://{self}/"


def parse_address(text: str, *, default_host: str = "") -> Address:
    """Read ``mrc://host:port/``, ``host:port``, ``[v6]:port``, ``host`` or ``:port``.

    Raises:
        ConfigError: it is none of these, or the port is not 0 to 65535.
    """
    rest = text
    if "://" in text:
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise ConfigError(f"{text!r} is not a URL: {error}") from error
        if parts.scheme != "mrc" or parts.path not in ("", "/") or parts.query:
            raise ConfigError(f"{text!r} is not a URL of the form mrc://host:port/")
        rest = parts.netloc
    match = _HOST_PORT.fullmatch(rest)
    if match is None:
        raise ConfigError(
            f"{text!r} is not an address; write mrc://host:port/ or host:port, IPv6 in brackets"
        )
    port = int(match["port"] or CONTROL_PORT_DEFAULT)
    if port > 65535:
        raise ConfigError(f"port {port} in {text!r}; must be 0 to 65535")
    host = match["ipv6"] or match["host"] or default_host
    if not host or not host.isprintable():
        raise ConfigError(f"{text!r} names no host")
    return Address(host, port)


class Channel:
    """One rendezvous connection: JSON objects in both directions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.peer = Address(*writer.get_extra_info("peername")[:2])
        local = writer.get_extra_info("sockname")
        self.local_host: str = _with_scope(local)

    async def send(self, message: Message) -> None:
        """Send one object.

        Raises:
            PeerUnreachable: the connection is gone.
        """
        line = json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise ConfigError(f"handshake of {len(line)} bytes; at most {LINE_BYTES_MAX}")
        try:
            self._writer.write(line)
            await self._writer.drain()
        except OSError as error:
            raise PeerUnreachable(f"{self.peer} closed: {error}", peer=str(self.peer)) from error

    async def receive_untrusted(self) -> Message | None:
        """Return the next object, or None when the peer has closed.

        Raises:
            PeerProtocolError: the line is too long, or no JSON object.
        """
        try:
            line = await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise PeerProtocolError(
                    f"{self.peer} does not speak MRC's rendezvous", peer=str(self.peer)
                ) from error
            return None
        except asyncio.LimitOverrunError as error:
            raise PeerProtocolError(
                f"{self.peer} sent a line over {LINE_BYTES_MAX} bytes", peer=str(self.peer)
            ) from error
        except OSError:
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PeerProtocolError(
                f"{self.peer} does not speak MRC's rendezvous", peer=str(self.peer)
            ) from error
        if not isinstance(message, dict):
            raise PeerProtocolError(f"{self.peer} sent no JSON object", peer=str(self.peer))
        return message

    async def expect_untrusted(self, timeout_s: float) -> Message:
        """Return the next object of a handshake.

        Raises:
            PeerProtocolError: it is no object, or none came in time.
            PeerUnreachable: the peer closed the connection.
        """
        try:
            async with asyncio.timeout(timeout_s):
                message = await self.receive_untrusted()
        except TimeoutError as error:
            raise PeerProtocolError(
                f"{self.peer} said nothing for {timeout_s:g} s during the handshake; "
                "is an MRC receiver listening there?",
                peer=str(self.peer),
            ) from error
        if message is None:
            raise PeerUnreachable(
                f"{self.peer} closed the connection during the handshake", peer=str(self.peer)
            )
        return message

    async def close(self) -> None:
        """Close; never raises."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return

    def abort(self) -> None:
        """Close at once, without sending what is buffered."""
        self._writer.transport.abort()


def check_protocol_untrusted(message: Message, peer: Address) -> None:
    """Check that a handshake is of our version.

    Raises:
        PeerVersionError: it is of another, or of something else.
    """
    spoken = message.get("protocol")
    if spoken != PROTOCOL:
        raise PeerVersionError(
            f"{peer} speaks {str(spoken)[:40]!r}, this side {PROTOCOL!r}", peer=str(peer)
        )


async def open_channel(address: Address, timeout_s: float) -> Channel:
    """Connect to a rendezvous.

    Raises:
        PeerUnreachable: refused, no such host, no route, or no answer in time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, limit=LINE_BYTES_MAX
            )
    except TimeoutError as error:
        raise PeerUnreachable(
            f"{address} did not answer within {timeout_s:g} s", peer=str(address)
        ) from error
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PeerUnreachable(
            f"cannot reach {address}: {reason}; is mrc-recv running there?", peer=str(address)
        ) from error
    _set_options(writer)
    return Channel(reader, writer)


def _set_options(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _with_scope(name: tuple[Any, ...]) -> str:
    """Return the numeric host of a socket name, a link-local one with its interface."""
    host: str = name[0]
    if len(name) == 4 and name[3] and "%" not in host:
        return f"{host}%{socket.if_indextoname(name[3])}"
    return host.removeprefix("::ffff:") if "." in host else host


async def serve(address: Address, accepted: Callable[[Channel], Awaitable[None]]) -> asyncio.Server:
    """Listen; `accepted(channel)` is awaited for each connection.

    Raises:
        LocalError: the address cannot be used; the message names it and the remedy.
    """

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            _set_options(writer)
            channel = Channel(reader, writer)
        except (OSError, TypeError):
            # Gone before it was looked at: it has no name any more.
            writer.transport.abort()
            return
        await accepted(channel)

    try:
        return await asyncio.start_server(
            handle, address.host, address.port, limit=LINE_BYTES_MAX, backlog=BACKLOG
        )
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else str(error)
        raise LocalError(
            number, f"cannot listen on {address}: {reason}; choose another with --listen HOST:PORT"
        ) from error
