"""Sockets on loopback for the tests of this folder, one set for each address family."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from mrc.udp import Caps, Sockets, family_of, probe_caps
from tests.udp.pair import Pair, open_pair
from tests.udp.scripted import ScriptedSocket


@pytest.fixture(params=["127.0.0.1", "::1"], ids=["ipv4", "ipv6"])
def address(request: pytest.FixtureRequest) -> str:
    """A loopback address, of each family this machine has."""
    chosen = str(request.param)
    try:
        with socket.socket(family_of(chosen), socket.SOCK_DGRAM) as sock:
            sock.bind((chosen, 0))
    except OSError as error:
        pytest.skip(f"{chosen} is not available here: {error.strerror}")
    return chosen


@pytest.fixture
def caps(address: str) -> Caps:
    """What this kernel can do for that family."""
    return probe_caps(family_of(address))


@pytest.fixture
def pair_of(address: str) -> Iterator[Callable[..., Pair]]:
    """Opens pairs of given sockets or caps, and closes them after the test."""
    with ExitStack() as stack:

        def open_one(sockets: Sockets | None = None, caps: Caps | None = None) -> Pair:
            return stack.enter_context(closing(open_pair(address, sockets, caps)))

        yield open_one


@pytest.fixture
def pair(pair_of: Callable[..., Pair]) -> Pair:
    """The kernel's own sockets with all they can do."""
    return pair_of()


@pytest.fixture
def scripted_sockets(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedSocket]:
    """From now on sending sockets follow scripts; they are listed here as they are opened."""
    opened: list[ScriptedSocket] = []

    def open_scripted(family: int) -> ScriptedSocket:
        opened.append(ScriptedSocket(family))
        return opened[-1]

    monkeypatch.setattr("mrc.udp.send_socket.open_udp", open_scripted)
    return opened


@pytest.fixture
def scripted(
    scripted_sockets: list[ScriptedSocket], pair_of: Callable[..., Pair]
) -> tuple[Pair, ScriptedSocket]:
    """A pair whose sender's kernel socket follows a script."""
    pair = pair_of()
    return pair, scripted_sockets[0]
