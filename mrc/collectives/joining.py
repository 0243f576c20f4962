"""How ranks that know rank 0's address only become a job: who is there, and where.

Rank 0 listens there; the others come in, in any order and however late, as long as it is within the
timeout. Each says which host it is on, then where it listens; rank 0 tries to reach every address
on another host before anybody is told it. Then all know all, and go on by themselves.

Every start has a fresh token, made by rank 0: what is left of the last start, on the same port or
not, is turned away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any

import mrc
from mrc.collectives import interfaces
from mrc.collectives.bootstrap import Bootstrap
from mrc.collectives.failures import TEXT_CHARACTERS_MAX, seconds
from mrc.collectives.mesh import Membership, Mesh, same_text
from mrc.collectives.store import LocalStore, RemoteStore, Store
from mrc.errors import (
    ConfigError,
    MrcError,
    PeerError,
    PeerLost,
    PeerNotTrusted,
    PeerProtocolError,
    PeerRefused,
    PeerUnreachable,
    QueuePairClosed,
)
from mrc.text import printable

PROTOCOL = "mrc-collectives/1"
ADDRESSES_MAX = 64
"""Of one rank: there is one a plane."""
TOKEN_BYTES = 16
TOKEN_CHARACTERS_MAX = 64
WHY_CHARACTERS = 2000
_RETRY_S_MIN, _RETRY_S_MAX = 0.05, 0.5
_DIAL_TIMEOUT_S = 3.0
_ANSWER_TIMEOUT_S = 10.0
_FAREWELL_TIMEOUT_S = 2.0
_SAME_LOCK = "all ranks need the same MRC_IDENTITY and MRC_TOKEN, or rank 0's whole URL"


@dataclass(slots=True)
class Joined:
    """A rank that is in: its mesh, and the store.

    Attributes:
        mesh: with all members known.
        store: rank 0's, from here.
    """

    mesh: Mesh
    store: Store
    _closing: contextlib.AsyncExitStack

    async def close(self) -> None:
        """Let go of everything."""
        await self._closing.aclose()


async def join(bootstrap: Bootstrap, endpoint: mrc.Endpoint) -> Joined:
    """Find all ranks, and be found by them.

    Args:
        bootstrap: what this rank knows.
        endpoint: open; it is closed with what is returned.

    Raises:
        ConfigError: a setting cannot be used, or no address can be told to other hosts.
        PeerError: not everybody came in time, or one cannot be reached.
        LocalError: rank 0's address cannot be listened on.
    """
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(endpoint.close)
        side = (_First if bootstrap.rank == 0 else _Other)(bootstrap, endpoint, stack)
        timer = asyncio.timeout(bootstrap.timeout_s)
        try:
            async with timer:
                mesh, store = await side.join()
        except TimeoutError as error:
            if not timer.expired():
                raise
            late = PeerUnreachable(
                f"rank {bootstrap.rank}: the {bootstrap.size} ranks were not there within"
                f" {seconds(bootstrap.timeout_s)}: {side.waiting_for()}",
                peer=str(bootstrap.url.address),
            )
            side.give_up(late)
            raise late from error
        return Joined(mesh, store, stack.pop_all())
    raise AssertionError("the stack lets exceptions through")


class _Side:
    """What both sides of the meeting do."""

    def __init__(
        self, bootstrap: Bootstrap, endpoint: mrc.Endpoint, stack: contextlib.AsyncExitStack
    ) -> None:
        self.bootstrap = bootstrap
        self.endpoint = endpoint
        self.stack = stack

    def give_up(self, error: MrcError) -> None:
        """Tell the others, where that is possible, why there will be no job."""

    async def meet_hosts(self, store: Store, token: str) -> list[str]:
        """Tell which host this is, and return those of all ranks."""
        rank, size = self.bootstrap.rank, self.bootstrap.size
        await store.set(f"{token}/host/{rank}", interfaces.host_identity())
        return [await store.get(f"{token}/host/{other}") for other in range(size)]

    async def meet_urls(self, store: Store, token: str, own: list[str]) -> Membership:
        """Tell where this rank listens, and return where all do."""
        rank, size = self.bootstrap.rank, self.bootstrap.size
        await store.set(f"{token}/urls/{rank}", json.dumps(own))
        urls = [
            urls_untrusted(other, await store.get(f"{token}/urls/{other}")) for other in range(size)
        ]
        urls[rank] = tuple(own)
        if rank:
            # The key to rank 0's lock is known already; it is told to nobody.
            key = self.bootstrap.url.key
            urls[0] = tuple(str(mrc.Url(mrc.Url.parse(url).address, key)) for url in urls[0])
        return Membership(rank, tuple(urls), token)

    def planes(self, reaching: str) -> tuple[str, ...]:
        """Return the addresses of the chosen interfaces; none chosen, the kernel chooses."""
        wanted = self.bootstrap.interface_list
        if wanted is None:
            return ()
        return wanted.choose(interfaces.addresses_here(), interfaces.family_of(reaching))


class _First(_Side):
    """Rank 0: listens, keeps the store, and lets the others in."""

    def __init__(
        self, bootstrap: Bootstrap, endpoint: mrc.Endpoint, stack: contextlib.AsyncExitStack
    ) -> None:
        super().__init__(bootstrap, endpoint, stack)
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.store = LocalStore()
        self.guests: dict[int, asyncio.Task[None]] = {}
        self.complete = False
        self.failed = False
        self.refused = ""
        self.listener: mrc.Listener | None = None

    def waiting_for(self) -> str:
        """Say who has not come, and who came that was not let in."""
        missing = set(range(1, self.bootstrap.size)) - set(self.guests)
        if not missing:
            return "stuck"
        text = f"rank {', '.join(map(str, sorted(missing)))} did not come"
        if self.refused:
            text += f"; refused was {self.refused}"
        strangers = self.listener.refused_handshakes if self.listener is not None else 0
        if strangers:
            text += f"; {strangers} times somebody who came was turned away: is the token the same?"
        return text

    def give_up(self, error: MrcError) -> None:
        """Whatever the others wait for, this is what they get."""
        self.failed = True
        self.store.fail(error)

    async def join(self) -> tuple[Mesh, Store]:
        """Wait for all others."""
        bootstrap = self.bootstrap
        own = await asyncio.to_thread(interfaces.address_towards, *bootstrap.url.address)
        planes = self.planes(own)
        listener = self.listener = self.endpoint.listen(
            str(self._listening_at(own)), planes=planes, lock=bootstrap.lock
        )
        await listener.__aenter__()
        mesh = Mesh(self.endpoint, listener, self.token, planes=planes, on_join=self.on_join)
        self.stack.push_async_callback(mesh.close)
        self.stack.push_async_callback(self.dismiss)
        try:
            port = mrc.Url.parse(listener.url).address.port
            url = mrc.Url(mrc.Address(bootstrap.url.address.host, port), bootstrap.url.key)
            if bootstrap.announce is not None:
                await asyncio.to_thread(bootstrap.announce, url)
            mesh.members = await self._meet(own, planes, url.address)
        except MrcError as error:
            self.give_up(error)
            raise
        await self.store.set(f"{self.token}/complete", "")
        self.complete = True
        return mesh, self.store

    async def _meet(self, own: str, planes: tuple[str, ...], address: mrc.Address) -> Membership:
        """Wait for what the others say."""
        hosts = await self.meet_hosts(self.store, self.token)
        one_host = len(set(hosts)) == 1
        if planes and not one_host:
            self._refuse_loopback(own)
        also = [mrc.Address(plane, address.port) for plane in planes if plane != address.host]
        own_urls = [str(mrc.Url(each)) for each in (address, *also)]
        members = await self.meet_urls(self.store, self.token, own_urls)
        await self._try_to_reach(members, hosts)
        return members

    def _listening_at(self, own: str) -> mrc.Address:
        """Return where to listen: what others take for this host may not be what it takes itself.

        A name that means a loopback address here, by /etc/hosts, is another one elsewhere.
        """
        address = self.bootstrap.url.address
        if self.bootstrap.addresses:
            return self.bootstrap.addresses[0]
        if address.host in {"localhost", own} and interfaces.is_loopback(own):
            return address
        return mrc.Address("::" if ":" in own else "0.0.0.0", address.port)

    def _refuse_loopback(self, own: str) -> None:
        interfaces.choose_planes(
            own,
            interfaces.addresses_here(),
            wanted=self.bootstrap.interface_list,
            one_host=False,
        )

    async def on_join(self, qp: mrc.QueuePair, hello: dict[str, Any]) -> None:
        """Let a rank in, or tell it why not.

        Raises:
            PeerRefused: it may not come in; it has been told.
        """
        reason, rank = self._judge_untrusted(hello)
        if reason:
            self.refused = f"{qp.peer}: {reason}"
            await qp.channel.send({"refused": reason})
            await qp.close()
            raise PeerRefused(reason, peer=qp.peer)
        self.guests[rank] = asyncio.ensure_future(self._serve(qp, rank))
        await qp.channel.send({"joined": self.token})

    def _judge_untrusted(self, hello: dict[str, Any]) -> tuple[str, int]:
        """Return why a rank may not come in, or nothing, and which one it is."""
        match hello:
            case {"join": str(protocol), "rank": int(rank), "size": int(size), "run": str(run)} if (
                type(rank) is int
            ):
                pass
            case _:
                return "this is rank 0 of a job, and that was no request to join it", -1
        bootstrap = self.bootstrap
        if protocol != PROTOCOL:
            return f"rank 0 speaks {PROTOCOL}, not {protocol:.40}", rank
        if self.complete:
            return "the job runs already, with all its ranks", rank
        if not same_text(run, bootstrap.run):
            return "rank 0 belongs to another start of the job", rank
        if size != bootstrap.size or not 1 <= rank < size:
            return f"rank 0 expects ranks 1 to {bootstrap.size - 1}, not {rank} of {size}", rank
        if rank in self.guests:
            return f"rank {rank} is here already", rank
        return "", rank

    async def _serve(self, qp: mrc.QueuePair, rank: int) -> None:
        try:
            await self.store.serve(qp.channel)
        except MrcError as error:
            if not self.complete:
                why = self.store.peek(f"{self.token}/why/{rank}") or str(error)
                if len(self.guests) < self.bootstrap.size - 1:
                    # It may have waited for less time than this rank.
                    why += f"; {self.waiting_for()}"
                self.store.fail(PeerLost(f"rank {rank} was lost at the start: {why}", peer=qp.peer))
        finally:
            qp.abort()

    async def _try_to_reach(self, members: Membership, hosts: list[str]) -> None:
        """Make sure that what others are told can be reached from here.

        Raises:
            PeerUnreachable: an address cannot; everybody is told which, and what else there is.
        """
        for rank in range(1, members.size):
            if hosts[rank] == hosts[0]:
                continue
            for url in members.urls[rank]:
                address = mrc.Url.parse(url).address
                reason = await _dial(address)
                if not reason:
                    continue
                has = await self.store.get(f"{self.token}/candidates/{rank}")
                text = (
                    f"rank {rank} listens at {address}, which rank 0 cannot reach: {reason}; choose"
                    f" an interface with {interfaces.VARIABLES[0]}: that host has {has:.1000}"
                )
                raise PeerUnreachable(text, peer=str(address))

    async def dismiss(self) -> None:
        """End the store; if the start has failed, when everybody has heard why and gone."""
        self.store.fail(QueuePairClosed("store: rank 0 has closed the job"))
        if self.failed and self.guests:
            await asyncio.wait(set(self.guests.values()), timeout=_FAREWELL_TIMEOUT_S)
        for guest in self.guests.values():
            guest.cancel()
        await asyncio.gather(*self.guests.values(), return_exceptions=True)


class _Other(_Side):
    """Any rank but 0: comes in, and listens where the others can reach it."""

    last_error = "nothing was tried"

    def waiting_for(self) -> str:
        """Say what became of the way to rank 0, or that others are missing."""
        return self.last_error

    async def join(self) -> tuple[Mesh, Store]:
        """Come in, and wait for all others."""
        qp, token = await self._come_in()
        self.last_error = "rank 0 was reached, and others did not come"
        self.stack.callback(qp.abort)
        store = RemoteStore(qp.channel)
        self.stack.push_async_callback(store.close)
        try:
            mesh = await self._meet(store, token)
        except MrcError as error:
            with contextlib.suppress(MrcError):
                await store.set(f"{token}/why/{self.bootstrap.rank}", str(error)[:WHY_CHARACTERS])
            raise
        return mesh, store

    async def _meet(self, store: Store, token: str) -> Mesh:
        """Say where this rank is, and wait for what the others say."""
        hosts = await self.meet_hosts(store, token)
        candidates = interfaces.addresses_here()
        await store.set(
            f"{token}/candidates/{self.bootstrap.rank}", ", ".join(map(str, candidates))
        )
        own = await asyncio.to_thread(interfaces.address_towards, *self.bootstrap.url.address)
        told = interfaces.choose_planes(
            own,
            candidates,
            wanted=self.bootstrap.interface_list,
            one_host=len(set(hosts)) == 1,
        )
        mesh = await self._listen(told, token)
        port = mrc.Url.parse(mesh.url).address.port
        key = mrc.Url.parse(mesh.url).key
        own_urls = [str(mrc.Url(mrc.Address(plane, port), key)) for plane in told]
        if self.bootstrap.addresses:
            own_urls = [mesh.url]
        mesh.members = await self.meet_urls(store, token, own_urls)
        await store.get(f"{token}/complete")
        return mesh

    async def _listen(self, told: tuple[str, ...], token: str) -> Mesh:
        address = mrc.Address(told[0], 0)
        if self.bootstrap.addresses:
            address = self.bootstrap.addresses[self.bootstrap.rank]
        elif len(told) > 1:
            address = mrc.Address("::" if ":" in told[0] else "0.0.0.0", 0)
        planes = told if self.bootstrap.interface_list is not None else ()
        lock = mrc.Lock.new() if self.bootstrap.secured else None
        listener = self.endpoint.listen(str(address), planes=planes, lock=lock)
        await listener.__aenter__()
        mesh = Mesh(self.endpoint, listener, token, planes=planes, first_token=self.bootstrap.token)
        self.stack.push_async_callback(mesh.close)
        return mesh

    async def _come_in(self) -> tuple[mrc.QueuePair, str]:
        """Connect to rank 0 until it is there and lets this rank in.

        Raises:
            PeerNotTrusted: somebody else answers in its place.
            ConfigError: its address cannot be used.
        """
        pause_s = _RETRY_S_MIN
        while True:
            try:
                return await self._ask_to_join()
            except (PeerNotTrusted, ConfigError):
                raise
            except (PeerError, PeerLost) as error:
                # It may come later, or the last start may still hold the port.
                self.last_error = str(error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_S_MAX)

    async def _ask_to_join(self) -> tuple[mrc.QueuePair, str]:
        bootstrap = self.bootstrap
        own = await asyncio.to_thread(interfaces.address_towards, *bootstrap.url.address)
        self.last_error = (
            f"{bootstrap.url.address} was called and has not answered; does another program have"
            " that port?"
        )
        try:
            qp = await self.endpoint.connect(
                str(bootstrap.url), planes=self.planes(own), token=bootstrap.token
            )
        except PeerRefused as error:
            raise PeerRefused(f"{error}; {_SAME_LOCK}", peer=error.peer) from error
        try:
            await qp.channel.send(
                {
                    "join": PROTOCOL,
                    "rank": bootstrap.rank,
                    "size": bootstrap.size,
                    "run": bootstrap.run,
                }
            )
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                answer = await qp.channel.receive()
            return qp, token_untrusted(qp.peer, answer)
        except TimeoutError as error:
            qp.abort()
            raise PeerProtocolError(f"{qp.peer} does not say whether this rank may join") from error
        except BaseException:
            qp.abort()
            raise


def token_untrusted(peer: str, answer: dict[str, Any]) -> str:
    """Read what rank 0 answers to who wants to join: the token of this start of the job.

    Raises:
        PeerRefused: it does not let this rank in, and says why.
        PeerProtocolError: that is no answer.
    """
    match answer:
        case {"joined": str(token)} if 0 < len(token) <= TOKEN_CHARACTERS_MAX:
            return token
        case {"refused": str(reason)}:
            reason = printable(reason, TEXT_CHARACTERS_MAX)
            raise PeerRefused(f"rank 0 refused: {reason}", peer=peer)
        case _:
            raise PeerProtocolError(f"{peer} is not rank 0 of a job", peer=peer)


def urls_untrusted(rank: int, text: str) -> tuple[str, ...]:
    """Read where a rank listens.

    Raises:
        PeerProtocolError: these are no URLs.
    """
    try:
        urls = json.loads(text)
    except ValueError as error:
        raise PeerProtocolError(f"rank {rank} does not say where it listens") from error
    fine = isinstance(urls, list) and 0 < len(urls) <= ADDRESSES_MAX
    if not fine or not all(isinstance(url, str) for url in urls):
        raise PeerProtocolError(f"rank {rank} does not say where it listens")
    try:
        return tuple(str(mrc.Url.parse(url)) for url in urls)
    except ConfigError as error:
        raise PeerProtocolError(f"rank {rank} listens nowhere: {error}") from error


async def _dial(address: mrc.Address) -> str:
    """Return why nothing can be reached at an address, or nothing if it can."""
    try:
        async with asyncio.timeout(_DIAL_TIMEOUT_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        return f"no answer within {seconds(_DIAL_TIMEOUT_S)}"
    except (OSError, socket.gaierror) as error:
        # asyncio words some errors itself, uvloop leaves them to the kernel.
        number = getattr(error, "errno", None) or 0
        return os.strerror(number) if number > 0 else str(error)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""
