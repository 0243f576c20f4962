"""The out-of-band channel over which two queue pairs tell each other their attributes.

MRC has none of its own, so this is one TCP connection per queue pair: JSON objects, one a line. It
carries the handshake and, by staying open, tells at once when the peer's process is gone. Nothing
that a transfer waits for goes over it: it has one path only.

Behind a lock all of it runs inside TLS 1.3. The connecting side compares the listener's certificate
with the fingerprint in the URL, then says the token; whoever is let in has a `Channel` like
everybody else, and whoever is not has got a TLS handshake and one line.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import ssl
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from mrc.errors import (
    ConfigError,
    PeerProtocolError,
    PeerRefused,
    PeerUnreachable,
    PeerVersionError,
)
from mrc.lock import Key
from mrc.text import printable
from mrc.tls import (
    CHUNK_BYTES,
    RECORD_ALERT,
    NoTlsError,
    PlainStream,
    Stream,
    TlsStream,
    client_context,
    reason_of,
)

CONTROL_PORT_DEFAULT = 18515
"""As in OCP's example program."""
LINE_BYTES_MAX = 64 * 1024
"""Longest line of the handshake; more is no MRC peer."""
PROTOCOL = "mrc-rendezvous/1"
_URL = re.compile(
    r"(?:(?P<scheme>[^:/?#]*)://)?"
    r"(?:\[(?P<ipv6>[^\[\]/@]+)\]|(?P<host>[^\[\]:/@?#]*))(?::(?P<port>\d{1,6}))?"
    r"(?:/(?P<key>.*))?",
    re.DOTALL,
)

_KEY_LIKE = re.compile(r"[A-Za-z0-9_-]{43}(?:\.[A-Za-z0-9_-]*)?")
"""A fingerprint, with a token or without: hardly a name of a host."""

Message = dict[str, Any]


class Address(NamedTuple):
    """Host (name or numeric) and TCP port of a rendezvous."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return host:port, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Url:
    """What a listener is reached by: ``mrc://HOST:PORT/``, behind the slash the key to its lock.

    Attributes:
        address: where it is.
        key: what opens its door; None when it has no lock.
    """

    address: Address
    key: Key | None = None

    def __str__(self) -> str:
        """Return what people paste: it holds the token, so it belongs in no log."""
        return f"mrc://{self.address}/{self.key or ''}"

    @property
    def public(self) -> str:
        """The same without the token."""
        return f"mrc://{self.address}/{self.key.fingerprint if self.key else ''}"

    @classmethod
    def parse(cls, text: str, *, default_host: str = "") -> Self:
        """Read ``mrc://host:port/key``, ``host:port``, ``[v6]:port``, ``host`` or ``:port``.

        Raises:
            ConfigError: it is none of these, the port is not 0 to 65535, or the key is misspelt.
        """
        match = _URL.fullmatch(text)
        if match is None or (match["scheme"] or "mrc").lower() != "mrc":
            raise ConfigError(
                f"{_shown(text)} is not an address; write mrc://host:port/ or host:port, IPv6 in"
                " brackets"
            )
        port = int(match["port"] or CONTROL_PORT_DEFAULT)
        if port > 65535:
            raise ConfigError(f"port {port} in {_shown(text)}; must be 0 to 65535")
        host = match["ipv6"] or match["host"] or default_host
        if _KEY_LIKE.search(host):
            raise ConfigError(
                "the key alone is no address: paste the whole URL, mrc://host:port/ and all"
            )
        if not host or not host.isprintable() or " " in host:
            raise ConfigError(f"{_shown(text)} names no host")
        return cls(Address(host, port), Key.parse(match["key"]) if match["key"] else None)

    def with_token(self, token: str | None) -> Self:
        """Return the URL with a token that came another way, and make sure that there is one.

        Raises:
            ConfigError: there is none, there are two, or nobody to show it to.
        """
        if self.key is None:
            if token is None:
                return self
            raise ConfigError("a URL without a fingerprint: the token would be shown to anybody")
        if token is None:
            if self.key.token:
                return self
            raise ConfigError(
                "the URL carries no token: paste the whole URL or, if the listener was given one"
                " beforehand, pass the same (token=; mrc-send --token-file FILE, or MRC_TOKEN)"
            )
        if self.key.token:
            raise ConfigError("two tokens: the URL carries one already")
        return replace(self, key=replace(self.key, token=token))


def _shown(text: str) -> str:
    """Spell a mistyped URL for a message, without anything that may be its key."""
    return f"{_KEY_LIKE.sub('...', re.sub(r'(?<=[^/:])/.+', '/...', text, flags=re.DOTALL)):.200}"


class Channel:
    """One rendezvous connection: JSON objects in both directions.

    Args:
        stream: the connection.
        secured: it runs inside TLS, with a peer that has proved itself.
        ahead: what was read from the stream already.

    Raises:
        PeerUnreachable: the connection is gone already.
    """

    def __init__(self, stream: Stream, *, secured: bool = False, ahead: bytes = b"") -> None:
        self._stream = stream
        self._received = bytearray(ahead)
        self.secured = secured
        peer, local = stream.name("peername"), stream.name("sockname")
        if not peer or not local:
            raise PeerUnreachable("the connection was closed before it was looked at")
        self.peer = Address(*peer[:2])
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
            await self._stream.write(line)
        except OSError as error:
            raise PeerUnreachable(f"{self.peer} closed: {error}", peer=str(self.peer)) from error

    async def receive_untrusted(self, bytes_max: int = LINE_BYTES_MAX) -> Message | None:
        """Return the next object, or None when the peer has closed.

        Raises:
            PeerProtocolError: the line is longer than `bytes_max`, or no JSON object.
            PeerRefused: the peer speaks nothing but TLS.
        """
        line = await self._line_untrusted(bytes_max)
        if line is None:
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._foreign() from error
        if not isinstance(message, dict):
            raise PeerProtocolError(f"{self.peer} sent no JSON object", peer=str(self.peer))
        return message

    async def _line_untrusted(self, bytes_max: int) -> bytes | None:
        """Return the next line, or None at the end."""
        searched = 0
        while True:
            if self._received:
                self._check_beginning()
            end = self._received.find(b"\n", searched)
            searched = len(self._received)
            if (end if end >= 0 else searched) > bytes_max:
                raise PeerProtocolError(
                    f"{self.peer} sent a line over {bytes_max} bytes", peer=str(self.peer)
                )
            if end >= 0:
                break
            chunk = await self._read()
            if not chunk and not self._received:
                return None
            if not chunk:
                raise self._foreign()
            self._received += chunk
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    async def _read(self) -> bytes:
        try:
            return await self._stream.read()
        except ssl.SSLError as error:
            raise PeerProtocolError(
                f"what came from {self.peer} was altered on its way: {reason_of(error)}",
                peer=str(self.peer),
            ) from error
        except OSError:
            return b""

    def _check_beginning(self) -> None:
        """Tell by its first byte what cannot be ours: something else may never end its line."""
        if self._received[0] == RECORD_ALERT:
            raise PeerRefused(
                f"{self.peer} has a lock on its door: paste the whole URL that it printed",
                peer=str(self.peer),
            )
        if self._received[0] != ord("{"):
            raise self._foreign()

    def _foreign(self) -> PeerProtocolError:
        return PeerProtocolError(
            f"{self.peer} does not speak MRC's rendezvous", peer=str(self.peer)
        )

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
                "is an MRC listener there?",
                peer=str(self.peer),
            ) from error
        if message is None:
            raise PeerUnreachable(
                f"{self.peer} closed the connection during the handshake", peer=str(self.peer)
            )
        return message

    async def close(self) -> None:
        """Close; never raises."""
        await self._stream.close()

    def abort(self) -> None:
        """Close at once, without sending what is buffered."""
        self._stream.abort()


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


async def open_channel(url: Url, timeout_s: float) -> Channel:
    """Connect to a rendezvous and, where the URL has a key, open its lock.

    Args:
        url: where it is; its key complete, token and all.
        timeout_s: for the connection, for TLS, and for the answer to the token.

    Raises:
        PeerUnreachable: refused, no such host, no route, or no answer in time.
        PeerProtocolError: something else answers, or nothing in time.
        PeerNotTrusted: it is not the listener that the URL names; it was told nothing.
        PeerRefused: the token is wrong, or was used before.
    """
    plain = await _connect(url.address, timeout_s)
    try:
        if url.key is None:
            return Channel(plain)
        return await _unlock(plain, url.address, url.key, timeout_s)
    except BaseException:
        plain.abort()
        raise


async def _connect(address: Address, timeout_s: float) -> PlainStream:
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, limit=CHUNK_BYTES
            )
    except TimeoutError as error:
        raise PeerUnreachable(
            f"{address} did not answer within {timeout_s:g} s", peer=str(address)
        ) from error
    except (OSError, UnicodeError) as error:
        # asyncio words some errors itself, uvloop leaves them to the kernel.
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or error
        raise PeerUnreachable(
            f"cannot reach {address}: {reason}; is anything listening there?", peer=str(address)
        ) from error
    return PlainStream(reader, writer)


async def _unlock(plain: PlainStream, address: Address, key: Key, timeout_s: float) -> Channel:
    """Make sure who answers, then say the token."""
    stream = TlsStream(plain, client_context(), server_side=False)
    await _agree_untrusted(stream, address, timeout_s)
    key.check_certificate_untrusted(stream.certificate(), str(address))
    channel = Channel(stream, secured=True)
    await channel.send({"token": key.token})
    answer = await channel.expect_untrusted(timeout_s)
    if answer.get("welcome") is not True:
        reason = printable(str(answer.get("refused", "it did not say why")), 500)
        raise PeerRefused(f"{address} refused: {reason}", peer=str(address))
    return channel


async def _agree_untrusted(stream: TlsStream, address: Address, timeout_s: float) -> None:
    """Do the TLS handshake; every failure becomes one of ours."""
    name = str(address)
    try:
        async with asyncio.timeout(timeout_s):
            await stream.handshake()
    except TimeoutError as error:
        raise PeerProtocolError(
            f"{name} said nothing for {timeout_s:g} s during the TLS handshake;"
            " is an MRC listener there?",
            peer=name,
        ) from error
    except NoTlsError as error:
        raise PeerProtocolError(
            f"{name} does not speak TLS: it is not the listener that printed this URL, or it was"
            " started again without a lock",
            peer=name,
        ) from error
    except ssl.SSLError as error:
        raise PeerProtocolError(
            f"no TLS 1.3 connection to {name}: {reason_of(error)}; is an MRC listener there?",
            peer=name,
        ) from error
    except (EOFError, OSError) as error:
        raise PeerUnreachable(
            f"{name} closed the connection during the TLS handshake", peer=name
        ) from error


def _with_scope(name: tuple[Any, ...]) -> str:
    """Return the numeric host of a socket name, a link-local one with its interface."""
    host: str = name[0]
    if len(name) == 4 and name[3] and "%" not in host:
        return f"{host}%{socket.if_indextoname(name[3])}"
    return host.removeprefix("::ffff:") if "." in host else host
