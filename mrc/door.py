"""The listening end of the rendezvous: accepts connections, and lets in who may come in.

Until a peer has proved itself it costs a bounded place, and gets a TLS handshake and one line. No
queue pair, no memory and no path is made for it before.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections import Counter
from collections.abc import Awaitable, Callable

from mrc.errors import LocalError, MrcError, PeerRefused, PeerUnreachable
from mrc.lock import Lock, Verdict
from mrc.rendezvous import Address, Channel
from mrc.tls import CHUNK_BYTES, NO_TLS_HERE, RECORD_HANDSHAKE, PlainStream, TlsStream

BACKLOG = 128
UNPROVEN_MAX = 64
"""Connections that have not shown yet that they may come in. Each costs a descriptor and at most
300 KiB (230 were measured, with the longest hello that OpenSSL takes), 19 MiB together. One more,
and the oldest has to go of the address that holds most: who was invited needs one place for a
moment, who only holds places takes many for long."""
PROOF_TIMEOUT_S = 10.0
"""For all that a connection has to do until it is let in."""
TOKEN_LINE_BYTES_MAX = 8 * 1024
"""Longest line of a peer that has proved nothing yet: a token in JSON, every character escaped."""

_IPV6_PREFIX_BITS = 64

_REFUSALS = {
    Verdict.WRONG: "the token is wrong; paste the whole URL that the listener printed last, or give"
    " both sides the same token",
    Verdict.USED: "token already used: this listener lets in one peer; let it print a new URL",
}
_NO_LOCK = "this listener has no lock, and the URL is for one that has"


class Door:
    """A listening rendezvous, with or without a lock.

    Args:
        lock: what opens it; None lets in everybody.
        accepted: awaited for each channel to a peer that may come in.

    Attributes:
        turned_away: connections that proved nothing: junk, wrong tokens, those that took too long.
    """

    def __init__(self, lock: Lock | None, accepted: Callable[[Channel], Awaitable[None]]) -> None:
        self._lock = lock
        self._accepted = accepted
        self._server: asyncio.Server | None = None
        self._unproven: dict[asyncio.Task[None], PlainStream] = {}
        self.turned_away = 0

    async def open(self, address: Address) -> Address:
        """Listen, and return where; port 0 lets the kernel choose.

        Raises:
            LocalError: the address cannot be used; the message names it and the remedy.
        """
        try:
            # Whoever is cancelled while it begins to listen has something to close by then.
            self._server = await asyncio.start_server(
                self._on_connection,
                address.host,
                address.port,
                limit=CHUNK_BYTES,
                backlog=BACKLOG,
                start_serving=False,
            )
            await self._server.start_serving()
        except (OSError, UnicodeError) as error:
            number = getattr(error, "errno", None) or 0
            reason = os.strerror(number) if number > 0 else str(error)
            raise LocalError(
                number,
                f"cannot listen on {address}: {reason}; choose another address or port"
                " (--listen HOST:PORT, for ranks MASTER_PORT)",
            ) from error
        return Address(*self._server.sockets[0].getsockname()[:2])

    async def close(self) -> None:
        """Stop listening, and let go of who has not come in. Twice is once."""
        if self._server is not None:
            self._server.close()
            self._server = None
        waiting = list(self._unproven)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        plain = PlainStream(reader, writer)
        task = asyncio.current_task()
        if task is None or self._server is None:
            plain.abort()
            return
        while len(self._unproven) >= UNPROVEN_MAX:
            self._unproven.pop(self._least_welcome()).abort()
        self._unproven[task] = plain
        try:
            async with asyncio.timeout(PROOF_TIMEOUT_S):
                channel = await self._proven_untrusted(plain)
        except (MrcError, EOFError, OSError, asyncio.CancelledError):
            # A time-out is an OSError too, and cancelled is who waits when the door is closed.
            self.turned_away += 1
            plain.abort()
            return
        finally:
            self._unproven.pop(task, None)
        try:
            await self._accepted(channel)
        except asyncio.CancelledError:
            # The listener was closed; asyncio prints a traceback of a handler that is cancelled.
            channel.abort()

    def _least_welcome(self) -> asyncio.Task[None]:
        """Return the oldest connection from the network that holds the most places."""
        places = Counter(map(_network, self._unproven.values()))
        (crowd, _), *_ = places.most_common(1)
        return next(task for task, plain in self._unproven.items() if _network(plain) == crowd)

    async def _proven_untrusted(self, plain: PlainStream) -> Channel:
        """Return the channel to a peer that may come in.

        Raises:
            MrcError, EOFError, OSError: it may not, or has gone.
        """
        ahead = await plain.read()
        if not ahead:
            raise EOFError("nothing was said")
        is_tls = ahead[0] == RECORD_HANDSHAKE
        if self._lock is None:
            channel = Channel(plain, ahead=ahead)
            if is_tls:
                await _refuse(channel, _NO_LOCK)
            return channel
        if not is_tls:
            await plain.write(NO_TLS_HERE)
            await plain.close()
            raise PeerRefused("it does not speak TLS")
        stream = TlsStream(plain, self._lock.context, server_side=True, ahead=ahead)
        await stream.handshake()
        channel = Channel(stream, secured=True)
        await self._hear_token_untrusted(channel, self._lock)
        return channel

    @staticmethod
    async def _hear_token_untrusted(channel: Channel, lock: Lock) -> None:
        word = await channel.receive_untrusted(TOKEN_LINE_BYTES_MAX)
        if word is None:
            raise PeerUnreachable("it has seen the certificate and went away")
        token = word.get("token")
        verdict = lock.admit_untrusted(token) if isinstance(token, str) else Verdict.WRONG
        if verdict is not Verdict.GOOD:
            await _refuse(channel, _REFUSALS[verdict])
        try:
            await channel.send({"welcome": True})
        except BaseException:
            lock.reopen()
            raise


def _network(plain: PlainStream) -> str:
    """Return what one stranger has at will: an IPv4 address, or half of an IPv6 address."""
    name = plain.name("peername")
    if not name:
        return ""
    address = ipaddress.ip_address(name[0].partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.IPv6Network((address, _IPV6_PREFIX_BITS), strict=False))
    return str(address)


async def _refuse(channel: Channel, reason: str) -> None:
    """Tell a peer why it may not come in.

    Raises:
        PeerRefused: always.
    """
    await channel.send({"refused": reason})
    await channel.close()
    raise PeerRefused(reason, peer=str(channel.peer))
