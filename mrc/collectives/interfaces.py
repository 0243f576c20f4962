"""Which of this host's addresses the other ranks are told.

The list of interfaces is written as for NCCL (`NCCL_SOCKET_IFNAME`: beginnings of names, ``=`` in
front for whole names, ``^`` for all but these) or as for Gloo (`GLOO_SOCKET_IFNAME`: whole names).
Each interface chosen is a plane. Without a list it is the address that reaches rank 0. A loopback
address is told only where all ranks are on one host: another one would connect to itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mrc.errors import ConfigError

VARIABLES = ("MRC_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""Read in this order, the first one that is set counts; ours is written as for NCCL."""

_SIOCGIFCONF, _SIOCGIFFLAGS = 0x8912, 0x8913
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
_IFREQ = struct.Struct("16s24s")
_CONF_BYTES = 64 << 10
"""Room for 1600 addresses."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One address of this host."""

    interface: str
    address: str
    loopback: bool
    running: bool
    """The interface is up and has a carrier."""

    def __str__(self) -> str:
        """Name both, for a message."""
        state = "" if self.running else ", down"
        return f"{self.address} ({self.interface}{state})"


@dataclass(frozen=True, slots=True)
class InterfaceList:
    """A list of interfaces.

    Attributes:
        text: as it was written.
        words: the names in it.
        whole: they are whole names, and not beginnings.
        excluded: it means all but these.
    """

    text: str
    words: tuple[str, ...]
    whole: bool
    excluded: bool

    @classmethod
    def parse(cls, text: str, *, gloo: bool = False) -> InterfaceList:
        """Read a list as for NCCL, or as for Gloo.

        Raises:
            ConfigError: there is no name in it.
        """
        rest = text.strip()
        excluded = not gloo and rest.startswith("^")
        rest = rest[1:] if excluded else rest
        whole = gloo or rest.startswith("=")
        rest = rest.removeprefix("=") if not gloo else rest
        words = tuple(word.strip() for word in rest.split(",") if word.strip())
        if not words:
            raise ConfigError(f"list of interfaces {text!r} names none; write eth0,eth1 or ^docker")
        return cls(text, words, whole, excluded)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> InterfaceList | None:
        """Return the list that is set, if there is one."""
        for variable in VARIABLES:
            text = environment.get(variable, "")
            if text:
                return cls.parse(text, gloo=variable.startswith("GLOO"))
        return None

    def names(self, interface: str) -> bool:
        """Tell whether it means an interface."""
        found = any(
            interface == word if self.whole else interface.startswith(word) for word in self.words
        )
        return found is not self.excluded

    def choose(self, candidates: Sequence[Candidate], family: int) -> tuple[str, ...]:
        """Return one address for each interface that it means, in the order of the list.

        Raises:
            ConfigError: it means none that has an address of this family; lists the candidates.
        """
        found: dict[str, str] = {}
        for candidate in candidates:
            fits = family_of(candidate.address) == family and self.names(candidate.interface)
            # All but some does not mean loopback; who wants that names it.
            if fits and not (self.excluded and candidate.loopback) and candidate.running:
                found.setdefault(candidate.interface, candidate.address)
        if not found:
            raise ConfigError(
                f"no interface that is up fits {self.text!r}; this host has {_listed(candidates)}"
            )
        return tuple(address for _, address in sorted(found.items(), key=self._place))

    def _place(self, item: tuple[str, str]) -> int:
        for place, word in enumerate(self.words):
            if item[0].startswith(word):
                return place
        return len(self.words)


def choose_planes(
    reaching: str,
    candidates: Sequence[Candidate],
    *,
    wanted: InterfaceList | None,
    one_host: bool,
) -> tuple[str, ...]:
    """Return the addresses to tell the other ranks, one a plane.

    Args:
        reaching: own address from which rank 0 is reached.
        candidates: what this host has.
        wanted: the list of interfaces, or None.
        one_host: all ranks are on this host.

    Raises:
        ConfigError: only loopback can be told, and there are other hosts; or it cannot be told
            which address is meant. It lists the candidates.
    """
    if wanted is not None:
        planes = wanted.choose(candidates, family_of(reaching))
        if not one_host and any(is_loopback(plane) for plane in planes):
            raise ConfigError(
                f"{wanted.text!r} means a loopback address, which no other host can reach; this"
                f" host has {_listed(candidates)}"
            )
        return planes
    if one_host or not is_loopback(reaching):
        return (reaching,)
    others = [
        candidate
        for candidate in candidates
        if candidate.running
        and not candidate.loopback
        and family_of(candidate.address) == family_of(reaching)
        and not ipaddress.ip_address(candidate.address.partition("%")[0]).is_link_local
    ]
    if len(others) == 1:
        return (others[0].address,)
    raise ConfigError(
        f"rank 0 is reached from {reaching}, which no other host can reach; say which interface it"
        f" should be with {VARIABLES[0]}: this host has {_listed(candidates)}"
    )


def _listed(candidates: Sequence[Candidate]) -> str:
    return ", ".join(map(str, candidates)) or "no address"


def is_loopback(address: str) -> bool:
    """Tell whether an address is reached from its own host only."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def names_loopback(host: str) -> bool:
    """Tell whether a host can only be this one, whoever says so; other names may differ by host."""
    try:
        return host == "localhost" or is_loopback(host)
    except ValueError:
        return False


def family_of(address: str) -> int:
    """Return the address family of a numeric address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def address_towards(host: str, port: int) -> str:
    """Return the own address from which a host is reached; nothing is sent.

    Raises:
        ConfigError: no such host, or no way there.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise ConfigError(f"cannot find {host}: {error.strerror or error}") from error
    family, kind, protocol, _, where = found[0]
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            name = probe.getsockname()
    except OSError as error:
        raise ConfigError(f"no way to {host}: {error.strerror or error}") from error
    return str(name[0])


def host_identity() -> str:
    """Return what is the same for two processes that reach each other over loopback."""
    namespace = os.stat("/proc/self/ns/net")
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}/{namespace.st_dev}/{namespace.st_ino}"


def addresses_here() -> list[Candidate]:
    """Return all addresses of this host, loopback ones last."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        found = _ipv4_addresses(asking) + _ipv6_addresses()
        candidates = [_candidate(asking, *each) for each in found]
    return sorted(candidates, key=lambda candidate: candidate.loopback)


def _candidate(asking: socket.socket, interface: str, address: str) -> Candidate:
    flags = 0
    with contextlib.suppress(OSError):
        request = _IFREQ.pack(interface.encode(), b"")
        answer = fcntl.ioctl(asking, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("H", answer, 16)
    running = flags & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING
    return Candidate(interface, address, bool(flags & _IFF_LOOPBACK), running)


def _ipv4_addresses(asking: socket.socket) -> list[tuple[str, str]]:
    import array  # noqa: PLC0415 - needed here alone

    room = array.array("B", bytes(_CONF_BYTES))
    address, length = room.buffer_info()
    answer = fcntl.ioctl(asking, _SIOCGIFCONF, struct.pack("iP", length, address))
    used, _ = struct.unpack("iP", answer)
    return [
        # A label such as eth0:1 is an address of eth0.
        (name.partition(b"\0")[0].decode().partition(":")[0], socket.inet_ntoa(where[4:8]))
        for name, where in _IFREQ.iter_unpack(room[:used].tobytes())
    ]


def _ipv6_addresses() -> list[tuple[str, str]]:
    found = []
    with (
        contextlib.suppress(FileNotFoundError),
        open("/proc/net/if_inet6", encoding="ascii") as file,
    ):
        for line in file:
            digits, _, _, _, _, interface = line.split()
            address = ipaddress.IPv6Address(int(digits, 16))
            scope = f"%{interface}" if address.is_link_local else ""
            found.append((interface, f"{address}{scope}"))
    return found
