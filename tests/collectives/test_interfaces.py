"""Which addresses are told to other hosts, by the lists that NCCL and Gloo read too."""

from __future__ import annotations

import socket

import pytest

from mrc.collectives import interfaces
from mrc.collectives.interfaces import Candidate, InterfaceList, choose_planes
from mrc.errors import ConfigError

ETH0 = Candidate("eth0", "192.0.2.10", loopback=False, running=True)
ETH1 = Candidate("eth1", "198.51.100.10", loopback=False, running=True)
ETH10 = Candidate("eth10", "203.0.113.10", loopback=False, running=True)
DOWN = Candidate("eth2", "203.0.113.99", loopback=False, running=False)
DOCKER = Candidate("docker0", "172.17.0.1", loopback=False, running=True)
V6 = Candidate("eth0", "2001:db8::10", loopback=False, running=True)
LOCAL_V6 = Candidate("eth0", "fe80::1%eth0", loopback=False, running=True)
LO = Candidate("lo", "127.0.0.1", loopback=True, running=True)
ALL = [ETH0, ETH1, ETH10, DOWN, DOCKER, V6, LOCAL_V6, LO]


@pytest.mark.parametrize(
    ("text", "gloo", "chosen"),
    [
        ("eth0", False, [ETH0]),
        ("eth1", False, [ETH1, ETH10]),
        ("=eth1", False, [ETH1]),
        ("eth1", True, [ETH1]),
        ("eth1,eth0", False, [ETH1, ETH10, ETH0]),
        ("eth1,eth0", True, [ETH1, ETH0]),
        ("=eth0,eth10", False, [ETH0, ETH10]),
        ("eth", False, [ETH0, ETH1, ETH10]),
        ("^docker", False, [ETH0, ETH1, ETH10]),
        ("^docker,eth1", False, [ETH0]),
        ("^=eth1", False, [ETH0, ETH10, DOCKER]),
        ("lo", False, [LO]),
    ],
)
def test_a_list_of_interfaces(text: str, gloo: bool, chosen: list[Candidate]) -> None:
    """NCCL's grammar, and Gloo's; each interface is a plane, in the order of the list."""
    found = InterfaceList.parse(text, gloo=gloo).choose(ALL, socket.AF_INET)
    assert set(found) == {candidate.address for candidate in chosen}
    if "," in text and not text.startswith("^"):
        assert found[0] == chosen[0].address


@pytest.mark.parametrize("text", ["", " ", "^", "=", "^=", ",", "^,"])
def test_a_list_without_a_name_is_refused(text: str) -> None:
    """It would mean all or nothing, and nobody knows which."""
    with pytest.raises(ConfigError, match="names none"):
        InterfaceList.parse(text)


@pytest.mark.parametrize("text", ["eth7", "=eth", "eth2", "^eth,docker"])
def test_a_list_that_fits_nothing_is_refused_with_the_candidates(text: str) -> None:
    """Misspelt, down, or all excluded."""
    with pytest.raises(ConfigError, match=r"192\.0\.2\.10 \(eth0\).*\(eth2, down\)"):
        InterfaceList.parse(text).choose(ALL, socket.AF_INET)


def test_the_first_variable_that_is_set_counts() -> None:
    """Ours, then NCCL's, then Gloo's, which is written differently."""
    given = {"GLOO_SOCKET_IFNAME": "eth1"}
    assert InterfaceList.from_environment({}) is None
    assert InterfaceList.from_environment(given) == InterfaceList.parse("eth1", gloo=True)
    given["NCCL_SOCKET_IFNAME"] = "^docker"
    assert InterfaceList.from_environment(given) == InterfaceList.parse("^docker")
    given["MRC_SOCKET_IFNAME"] = "=eth0"
    assert InterfaceList.from_environment(given) == InterfaceList.parse("=eth0")


def test_the_address_that_reaches_rank_0_is_told() -> None:
    """Where there is no list."""
    planes = choose_planes("192.0.2.10", ALL, wanted=None, one_host=False)
    assert planes == ("192.0.2.10",)


def test_loopback_is_told_on_one_host_only() -> None:
    """Where all ranks are on it, loopback is fine, with a list and without."""
    lo = InterfaceList.parse("lo")
    assert choose_planes("127.0.0.1", ALL, wanted=None, one_host=True) == ("127.0.0.1",)
    assert choose_planes("127.0.0.1", ALL, wanted=lo, one_host=True) == ("127.0.0.1",)
    with pytest.raises(ConfigError, match=r"loopback.*192\.0\.2\.10 \(eth0\)"):
        choose_planes("127.0.0.1", ALL, wanted=lo, one_host=False)


def test_beside_loopback_the_only_address_is_taken() -> None:
    """Rank 0's own name may mean 127.0.1.1 on its own host."""
    some = [ETH0, DOWN, V6, LOCAL_V6, LO]
    assert choose_planes("127.0.1.1", some, wanted=None, one_host=False) == (ETH0.address,)


@pytest.mark.parametrize("candidates", [ALL, [LO, DOWN]])
def test_what_cannot_be_told_is_refused_with_the_candidates(candidates: list[Candidate]) -> None:
    """Several that could be meant, or none."""
    with pytest.raises(ConfigError, match=r"MRC_SOCKET_IFNAME.*127\.0\.0\.1 \(lo\)"):
        choose_planes("127.0.0.1", candidates, wanted=None, one_host=False)


def test_this_host_has_a_loopback_address() -> None:
    """Read from the kernel, last in the list, and reached from itself."""
    found = interfaces.addresses_here()
    assert Candidate("lo", "127.0.0.1", loopback=True, running=True) in found
    assert found == sorted(found, key=lambda candidate: candidate.loopback)
    assert interfaces.address_towards("127.0.0.1", 1) == "127.0.0.1"
    assert interfaces.host_identity() == interfaces.host_identity()


def test_a_host_that_there_is_not_is_named() -> None:
    """Before anything is tried."""
    with pytest.raises(ConfigError, match=r"cannot find no-such-host\.invalid"):
        interfaces.address_towards("no-such-host.invalid", 1)
