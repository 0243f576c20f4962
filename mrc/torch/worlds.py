"""Who is there: the thread of this process, and the jobs it is in.

The first group that is made joins all its ranks: rank 0 listens, and its address goes to the others
through torch's store, under a key that counts the starts; so nobody finds that of an earlier one.
With it goes a token of this start, without which rank 0 lets nobody in: what listens at an address
that is out of date may be another job.
A later group whose ranks are all in there is a subset of it; another one joins anew. When the last
group has been left, its job and the thread end.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

import mrc
from mrc.collectives import Bootstrap, Communicator, InterfaceList, World, interfaces, join
from mrc.collectives.bootstrap import lock_from_environment
from mrc.collectives.failures import CommunicatorClosed
from mrc.collectives.health import DETECT_S_DEFAULT
from mrc.collectives.joining import urls_untrusted
from mrc.collectives.loop_thread import CLOSE_TIMEOUT_S, LoopThread
from mrc.errors import ConfigError, MrcError, PeerProtocolError, PeerUnreachable
from mrc.torch.work import TELLERS

_ERROR = "error: "
_TOKEN_BYTES = 16


@dataclass(slots=True)
class _Joined:
    """A job that this process is in, and the groups made of it."""

    ranks: tuple[int, ...]
    """By their numbers in torch."""
    world: World
    groups: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Group:
    """One process group's communicator.

    Attributes:
        name: unlike all others.
        communicator: of its ranks.
        thread: where it runs.
    """

    name: str
    communicator: Communicator
    thread: LoopThread


class Worlds:
    """All that is open in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._joined: list[_Joined] = []

    def enter(self, options: Any) -> Group:
        """Make the communicator of a group; all its ranks call this.

        Args:
            options: torch's `_DistributedBackendOptions`: store, group_rank, group_size, group_id,
                global_ranks_in_group and timeout.

        Raises:
            MrcError: not all ranks came in time, or one cannot be reached.
        """
        # torch leaves the ranks of the group of all ranks out.
        ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        start = options.store.add(f"mrc/start/{options.group_rank}", 1)
        name = f"{options.group_id}#{start}"
        timeout_s = options.timeout.total_seconds()
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread()
            try:
                joined = self._containing(ranks) or self._join(options, ranks, start, timeout_s)
                numbers = [joined.ranks.index(rank) for rank in ranks]

                async def made() -> Communicator:
                    communicator = joined.world.subset(numbers, name)
                    communicator.timeout_s = timeout_s
                    return communicator

                communicator = self._thread.call(made())
            except BaseException:
                self._stop_if_idle()
                raise
            joined.groups.add(name)
            return Group(name, communicator, self._thread)

    def _containing(self, ranks: Sequence[int]) -> _Joined | None:
        """Return the first job that has all these ranks; all of them find the same."""
        return next((each for each in self._joined if set(ranks) <= set(each.ranks)), None)

    def _join(self, options: Any, ranks: tuple[int, ...], start: int, timeout_s: float) -> _Joined:
        assert self._thread is not None
        bootstrap = _bootstrap(options, ranks, start, timeout_s)

        async def entered() -> World:
            return await join(bootstrap, detect_s=_detect_s(), timeout_s=timeout_s)

        try:
            world = self._thread.call(entered())
        except MrcError as error:
            if options.group_rank == 0:
                # Should it be after the announcement, the others have heard it from rank 0 itself.
                options.store.set(_key(start), f"{_ERROR}{error}")
            raise
        joined = _Joined(ranks, world)
        self._joined.append(joined)
        return joined

    def leave(self, group: Group, *, gently: bool) -> None:
        """End a group's communicator, and its job if it was the last one. Twice is once.

        What is under way then has `CLOSE_TIMEOUT_S` to come to its end: after Ctrl-C nobody waits
        for ranks that do not come.
        """
        with self._lock:
            joined = next((each for each in self._joined if group.name in each.groups), None)
            if joined is None or self._thread is None:
                return
            joined.groups.discard(group.name)
            ending = [group.communicator]
            if not joined.groups:
                self._joined.remove(joined)
                ending.append(joined.world)
            for each in ending:
                self._end(self._thread, each, gently=gently)
            self._stop_if_idle()
        TELLERS.wait(CLOSE_TIMEOUT_S)

    @staticmethod
    def _end(thread: LoopThread, communicator: Communicator, *, gently: bool) -> None:
        with contextlib.suppress(CommunicatorClosed, MrcError, TimeoutError):
            if gently:
                with contextlib.suppress(TimeoutError):
                    thread.call(communicator.close(), CLOSE_TIMEOUT_S)
                    return
            thread.call(communicator.abort(), CLOSE_TIMEOUT_S)

    def _stop_if_idle(self) -> None:
        if self._thread is not None and not self._joined:
            self._thread.stop()
            self._thread = None

    def abandon(self) -> None:
        """Say goodbye for who forgot to: nobody shall take the end of this process for death."""
        for joined in self._joined:
            with contextlib.suppress(Exception):
                if self._thread is not None:
                    self._thread.call(joined.world.abort(), CLOSE_TIMEOUT_S)
        TELLERS.wait(CLOSE_TIMEOUT_S)


WORLDS = Worlds()
atexit.register(WORLDS.abandon)


def _key(start: int) -> str:
    return f"mrc/url/{start}"


def _token_key(start: int) -> str:
    return f"mrc/token/{start}"


def _detect_s() -> float:
    """Return after how much silence a rank has failed: MRC_DETECT_S, the same on all ranks.

    Raises:
        ConfigError: it is no number.
    """
    given = os.environ.get("MRC_DETECT_S", "")
    try:
        return float(given) if given else DETECT_S_DEFAULT
    except ValueError as error:
        raise ConfigError(f"MRC_DETECT_S = {given!r:.40} is no number of seconds") from error


def _bootstrap(options: Any, ranks: Sequence[int], start: int, timeout_s: float) -> Bootstrap:
    """Return what this rank has to know, with what rank 0 tells through the store."""
    store, rank = options.store, options.group_rank
    deadline_s = time.monotonic() + timeout_s
    lock = lock_from_environment(os.environ)
    settings: dict[str, Any] = {
        "rank": rank,
        "size": options.group_size,
        "token": os.environ["MRC_TOKEN"] if lock is not None else None,
        "interface_list": InterfaceList.from_environment(os.environ),
        "timeout_s": timeout_s,
    }
    hosts = [f"mrc/host/{start}/{number}" for number in range(options.group_size)]
    store.set(hosts[rank], interfaces.host_identity())
    _wait(store, dict(zip(hosts, ranks, strict=True)), deadline_s, timeout_s)
    if rank:
        _wait(store, {_key(start): ranks[0]}, deadline_s, timeout_s)
        key = lock.key if lock is not None else None
        url = _url(store, start, key)
        return Bootstrap(url=url, run=store.get(_token_key(start)).decode(), **settings)
    try:
        host = _own_address(store, hosts)
    except MrcError as error:
        store.set(_key(start), f"{_ERROR}{error}")
        raise

    token = secrets.token_urlsafe(_TOKEN_BYTES)

    def announce(url: mrc.Url) -> None:
        # First what nobody waits for.
        store.set(_token_key(start), token)
        store.set(_key(start), json.dumps([str(mrc.Url(url.address))]))

    url = mrc.Url(mrc.Address(host, 0), lock.key if lock is not None else None)
    return Bootstrap(url=url, lock=lock, run=token, announce=announce, **settings)


def _own_address(store: Any, hosts: Sequence[str]) -> str:
    """Return the address of rank 0 that all others can reach.

    Raises:
        ConfigError: it cannot be told which one that is, or no such interface.
    """
    reaching = interfaces.address_towards(_store_host(store), 9)
    planes = interfaces.choose_planes(
        reaching,
        interfaces.addresses_here(),
        wanted=InterfaceList.from_environment(os.environ),
        one_host=len({store.get(each) for each in hosts}) == 1,
    )
    return planes[0]


def _store_host(store: Any) -> str:
    """Return where torch's store is, which all ranks reach; one in a file is nowhere."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return str(store.host) if isinstance(store, TCPStore) else "127.0.0.1"


def _url(store: Any, start: int, key: Any) -> mrc.Url:
    """Return where rank 0 listens.

    Raises:
        PeerProtocolError: rank 0 failed to start, or told something else.
    """
    told = store.get(_key(start)).decode(errors="replace")
    if told.startswith(_ERROR):
        raise PeerProtocolError(f"rank 0 could not start: {told.removeprefix(_ERROR):.1000}")
    (url,) = urls_untrusted(0, told)[:1]
    return mrc.Url(mrc.Url.parse(url).address, key)


def _wait(store: Any, keys: Mapping[str, int], deadline_s: float, timeout_s: float) -> None:
    """Wait until all these keys are there.

    Args:
        store: torch's.
        keys: each with the rank that sets it.
        deadline_s: until when, by the monotonic clock.
        timeout_s: how long that was, for the text.

    Raises:
        PeerUnreachable: not in time.
    """
    try:
        left_s = max(deadline_s - time.monotonic(), 0.001)
        store.wait(list(keys), timedelta(seconds=left_s))
    except RuntimeError as error:
        # `DistStoreError` is one; a store in a file raises nothing more special.
        missing = [str(rank) for key, rank in keys.items() if not store.check([key])]
        if not missing:
            return
        raise PeerUnreachable(
            f"rank {', '.join(missing)} said nothing through torch's store within {timeout_s:g} s:"
            " it has not begun, or makes its groups in another order"
        ) from error
