"""What a rank must know to join a job: from the environment, as of torchrun, or from a list."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import mrc
from mrc.collectives.interfaces import InterfaceList
from mrc.errors import ConfigError

TIMEOUT_S_DEFAULT = 300.0
"""For everybody to come: images are pulled and data sets opened meanwhile."""
RANKS_MAX = 4096
"""Rank 0 has a queue pair to each."""
_RUN_VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """What a rank must know to join.

    Attributes:
        rank: which one this is.
        size: how many there are.
        url: of rank 0's listener; behind a lock with its key.
        lock: for rank 0's listener; None: whoever reaches it may join, and nothing is encrypted.
        token: for that lock, where the ranks were given one and `url` has none.
        addresses: where each rank listens, if that is decided beforehand.
        interface_list: which interfaces are told to others; None: the one that reaches rank 0.
        run: the same on all ranks of one start where a launcher says so; others are turned away.
        timeout_s: for everybody to come.
        announce: called at rank 0, in another thread, with the URL of its listener: for launchers
            that tell the others, so that the port of `url` may be 0, any that is free.
    """

    rank: int
    size: int
    url: mrc.Url
    lock: mrc.Lock | None = None
    token: str | None = None
    addresses: tuple[mrc.Address, ...] = ()
    interface_list: InterfaceList | None = None
    run: str = ""
    timeout_s: float = TIMEOUT_S_DEFAULT
    announce: Callable[[mrc.Url], None] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.size <= RANKS_MAX:
            raise ConfigError(f"{self.size} ranks; must be 1 to {RANKS_MAX}")
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"rank {self.rank} of {self.size}; must be 0 to {self.size - 1}")

    @property
    def secured(self) -> bool:
        """Whether everything is behind locks."""
        return self.lock is not None or self.url.key is not None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them.

        MRC_IDENTITY, a file that `mrc.Lock.load` makes where it is missing, and MRC_TOKEN, the same
        for all ranks, put everything behind locks. MRC_SOCKET_IFNAME, or what NCCL or Gloo were
        given, chooses the interfaces. MRC_MASTER_PORT is rank 0's port where MASTER_PORT belongs to
        something else; without it that is the next one where torchrun listens there itself.

        Raises:
            ConfigError: a variable is missing, or is not what it should be.
        """
        given = os.environ if environment is None else environment
        missing = [name for name in _VARIABLES if not given.get(name)]
        if missing:
            raise ConfigError(
                f"not set: {', '.join(missing)}; start with torchrun, or pass a Bootstrap"
            )
        host, port = given["MASTER_ADDR"], _port(given)
        url = mrc.Url.parse(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        lock = lock_from_environment(given)
        if lock is not None:
            url = mrc.Url(url.address, lock.key)
        rank = _number(given, "RANK")
        return cls(
            rank=rank,
            size=_number(given, "WORLD_SIZE"),
            url=url,
            lock=lock if rank == 0 else None,
            token=given["MRC_TOKEN"] if lock is not None else None,
            interface_list=InterfaceList.from_environment(given),
            run="/".join(given.get(name, "") for name in _RUN_VARIABLES),
        )

    @classmethod
    def from_addresses(cls, addresses: Sequence[str], rank: int, **settings: Any) -> Self:
        """Take the address of every rank, ``host:port`` each, and which one this is.

        Args:
            addresses: the same list on all ranks.
            rank: which of them this is.
            settings: other attributes.

        Raises:
            ConfigError: one is no address, or has no port of its own.
        """
        urls = [mrc.Url.parse(address) for address in addresses]
        if len({url.address for url in urls}) < len(urls):
            raise ConfigError("two ranks have the same address and port")
        return cls(
            rank=rank,
            size=len(urls),
            url=urls[0],
            addresses=tuple(url.address for url in urls),
            **settings,
        )


PORT_MAX = 65535
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _port(environment: Mapping[str, str]) -> int:
    """Return the port where rank 0 listens; all ranks find the same."""
    if environment.get("MRC_MASTER_PORT"):
        return _number(environment, "MRC_MASTER_PORT")
    port = _number(environment, "MASTER_PORT")
    # Its agent keeps a store there; the last port has none behind it.
    taken = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return port + (1 if port < PORT_MAX else -1) if taken else port


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError as error:
        raise ConfigError(f"{name} = {environment[name]!r:.40} is no number") from error


def lock_from_environment(environment: Mapping[str, str]) -> mrc.Lock | None:
    """Return the lock that the environment asks for; its key has the fingerprint alone.

    Raises:
        ConfigError: only one of MRC_IDENTITY and MRC_TOKEN is set, or the file cannot be used.
    """
    identity, token = environment.get("MRC_IDENTITY", ""), environment.get("MRC_TOKEN", "")
    if not identity and not token:
        return None
    if not identity or not token:
        raise ConfigError(
            "MRC_IDENTITY (a file for rank 0's key) and MRC_TOKEN go together: without the one"
            " nobody knows whom they reached, without the other anybody comes in"
        )
    return mrc.Lock.load(identity, token)
