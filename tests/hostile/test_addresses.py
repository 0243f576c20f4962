"""Addresses and ports that are not as one would wish: taken, several, mapped, link-local."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

import mrc
from mrc.errors import ConfigError, LocalError, PeerRefused
from mrc.proto.config import QpAttributes
from mrc.proto.endpoint import Endpoint
from mrc.udp import Caps, Datagrams, KernelSockets, ReceiveSocket, SendSocket
from tests.engine.conftest import nothing_left  # noqa: F401 - looks after each test
from tests.udp.isolation import in_new_network, ip

SIZE = 500_000


async def carries(qp: mrc.QueuePair, peer: mrc.QueuePair) -> bool:
    """Whether data written both ways arrives whole."""
    for writer, reader in ((qp, peer), (peer, qp)):
        data, memory = os.urandom(SIZE), bytearray(SIZE)
        await writer.write(data, reader.register(memory).remote)
        if memory != data:
            return False
    return True


# Source ports.


@pytest.fixture
def row() -> Iterator[tuple[int, set[int]]]:
    """The first of eight ports in a row, and which of them, every other one, are free."""
    for low in range(40_000, 48_000, 8):
        with ExitStack() as stack:
            try:
                for port in range(low, low + 8):
                    sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                    sock.bind(("127.0.0.1", port))
                    if port % 2:
                        sock.close()
            except OSError:
                continue
            yield low, {port for port in range(low, low + 8) if port % 2}
            return
    pytest.skip("no eight free ports in a row")


@pytest.mark.asyncio
async def test_evs_take_the_source_ports_that_others_left(row: tuple[int, set[int]]) -> None:
    """A range of which half is in use serves as many EVs as ports are free."""
    low, free = row
    config = mrc.Config(paths=3, backup_paths=1)
    async with (
        mrc.listen("127.0.0.1:0") as listener,
        mrc.connect(listener.url, config=config, source_ports=(low, low + 7)) as qp,
        await listener.accept() as peer,
    ):
        assert {path.source_port for path in qp.statistics().paths} == free
        assert await carries(qp, peer)


@pytest.mark.asyncio
async def test_too_few_free_source_ports_is_told_with_the_range(row: tuple[int, set[int]]) -> None:
    """The error names how many are needed, which range, how many are free, and the remedies."""
    low, _ = row
    config = mrc.Config(paths=4, backup_paths=1)
    words = (
        f"5 UDP ports of 127.0.0.1 are needed, and {low}-{low + 7} has 4 free: widen the range or "
        "use fewer paths"
    )
    async with mrc.listen("127.0.0.1:0") as listener:
        with pytest.raises(LocalError, match=words) as told:
            await mrc.connect(listener.url, config=config, source_ports=(low, low + 7))
        assert told.value.errno == errno.EADDRINUSE


class Quicker(KernelSockets):
    """Sockets whose port somebody else binds just before, the first so many times."""

    def __init__(self, times: int) -> None:
        self._times = times

    def sender(self, address: str, port: int, caps: Caps) -> SendSocket:
        """Open a sending socket, if nobody was quicker."""
        if self._times:
            self._times -= 1
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
                other.bind((address, port))
                return SendSocket(address, port, caps=caps)
        return SendSocket(address, port, caps=caps)


@pytest.mark.asyncio
async def test_source_port_taken_since_it_was_chosen_is_replaced() -> None:
    """Between choosing and binding others may be quicker: another port does as well."""
    config = mrc.Config(paths=16, backup_paths=4)
    async with (
        mrc.listen("127.0.0.1:0") as listener,
        mrc.connect(listener.url, config=config, sockets=Quicker(21)) as qp,
        await listener.accept() as peer,
    ):
        assert len({path.source_port for path in qp.statistics().paths}) == 20
        assert await carries(qp, peer)


@pytest.mark.asyncio
async def test_source_ports_that_are_always_taken_are_given_up() -> None:
    """Whatever takes each port, the attempts end, and what was opened is closed."""
    async with mrc.listen("127.0.0.1:0") as listener:
        with pytest.raises(LocalError, match="taken by others 8 times") as told:
            await mrc.connect(listener.url, sockets=Quicker(1 << 30))
        assert told.value.errno == errno.EADDRINUSE


# One receiver, two addresses.


class Heard(KernelSockets):
    """Sockets that note where what they receive comes from."""

    def __init__(self) -> None:
        self.sources: set[str] = set()

    def receiver(
        self, address: str, port: int, caps: Caps, receive_buffer_bytes: int
    ) -> ReceiveSocket:
        """Open a receiving socket that notes sources."""
        return _Hearing(self, address, port, caps, receive_buffer_bytes)


class _Hearing(ReceiveSocket):
    def __init__(self, heard: Heard, address: str, port: int, caps: Caps, size: int) -> None:
        super().__init__(address, port, caps=caps, receive_buffer_bytes=size)
        self._heard = heard

    def receive_into(self, buffer: memoryview) -> Datagrams | None:
        """Receive, and note the source."""
        train = super().receive_into(buffer)
        if train is not None:
            self._heard.sources.add(train.source[0])
        return train


@pytest.mark.asyncio
async def test_wildcard_receiver_answers_from_the_address_that_was_asked() -> None:
    """Two peers, each by another of its addresses: to each every packet comes from that one."""
    async with mrc.Endpoint() as server, server.listen("0.0.0.0:0") as listener:
        heard = {address: Heard() for address in ("127.0.0.1", "127.0.0.2")}
        for address, sockets in heard.items():
            url = f"mrc://{address}:{listener.address.port}/"
            async with mrc.connect(url, sockets=sockets) as qp, await listener.accept() as peer:
                assert await carries(qp, peer)
                # A wrong source would have been thrown away by the peer, and counted.
                assert {path.state for path in qp.statistics().paths} <= {"good", "skip"}
        assert {address: sockets.sources for address, sockets in heard.items()} == {
            "127.0.0.1": {"127.0.0.1"},
            "127.0.0.2": {"127.0.0.2"},
        }
        assert [port.host for port in server.engine.endpoint.ports] == ["127.0.0.1", "127.0.0.2"]


# IPv4 in IPv6.


@pytest.mark.asyncio
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
async def test_peer_reached_by_its_mapped_address_is_an_ipv4_peer(address: str) -> None:
    """A TCP connection over ::ffff:a.b.c.d leads to planes, packets and iCRCs of a.b.c.d."""
    async with (
        mrc.listen("0.0.0.0:0") as listener,
        mrc.connect(f"mrc://[::ffff:{address}]:{listener.address.port}/") as qp,
        await listener.accept() as peer,
    ):
        assert await carries(qp, peer)
        for side in (qp, peer):
            assert {path.flow_label for path in side.statistics().paths} == {0}


@pytest.mark.asyncio
async def test_mapped_plane_of_ours_is_refused_with_what_to_write() -> None:
    """A socket bound to it would send from another address than the iCRC covers."""
    async with mrc.listen("127.0.0.1:0") as listener:
        with pytest.raises(ConfigError, match=r"::ffff:127\.0\.0\.1 is an IPv4 address; write 127"):
            await mrc.connect(listener.url, planes=["::ffff:127.0.0.1"])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("listening", "told"),
    [
        ("127.0.0.1:0", r"plane 127\.0\.0\.1 cannot reach ::ffff:127\.0\.0\.1: different IP"),
        ("[::1]:0", r"::ffff:127\.0\.0\.1 is an IPv4 address; write 127\.0\.0\.1"),
    ],
)
async def test_mapped_plane_of_a_peer_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, listening: str, told: str
) -> None:
    """A peer that says it receives at a mapped address is told so, over either family."""
    attributes = Endpoint.attributes

    def mapped(self: Endpoint, *arguments: Any, **named: Any) -> QpAttributes:
        return replace(attributes(self, *arguments, **named), planes=(("::ffff:127.0.0.1", 4971),))

    async with mrc.listen(listening) as listener:
        monkeypatch.setattr(Endpoint, "attributes", mapped)
        with pytest.raises(PeerRefused, match=told):
            await mrc.connect(listener.url)
        assert listener.refused_handshakes == 1


# Link-local.


def on_link_local(scenario: Callable[[], Any]) -> Any:
    """Run something where two links have fe80::1 at the one end and fe80::2 at the other."""

    def run() -> Any:
        for number in (0, 1):
            ip(f"link add left{number} type veth peer name right{number}")
            for address, name in ((1, f"left{number}"), (2, f"right{number}")):
                ip(f"link set {name} up")
                ip(f"address add fe80::{address}/64 dev {name} nodad")
        return asyncio.run(scenario())

    return in_new_network(run)


async def over_link_local(listening: str, url: str, *planes: list[str]) -> set[tuple[int, str]]:
    """Transfer both ways; return plane and state of every EV of the connecting side."""
    ours, theirs = planes or ([], [])
    async with (
        mrc.listen(listening, planes=theirs) as listener,
        mrc.connect(url.format(listener.address.port), planes=ours) as qp,
        await listener.accept() as peer,
        asyncio.timeout(20),
    ):
        assert await carries(qp, peer)
        return {(path.plane, path.state) for path in qp.statistics().paths}


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("listening", ["[fe80::1%left0]:0", "[::]:0"])
def test_link_local_peer_is_reached_by_address_and_scope(listening: str) -> None:
    """The interface named in the URL is ours, the peer has it under another name or none."""

    async def scenario() -> set[tuple[int, str]]:
        return await over_link_local(listening, "mrc://[fe80::1%right0]:{}/")

    assert on_link_local(scenario) == {(0, "good")}


@pytest.mark.root
@pytest.mark.slow
def test_one_link_local_address_on_two_links_makes_two_planes() -> None:
    """What tells them apart is the scope alone, on both sides."""

    async def scenario() -> set[tuple[int, str]]:
        return await over_link_local(
            "[fe80::1%left0]:0",
            "mrc://[fe80::1%right0]:{}/",
            ["fe80::2%right0", "fe80::2%right1"],
            ["fe80::1%left0", "fe80::1%left1"],
        )

    assert on_link_local(scenario) == {(0, "good"), (1, "good")}


@pytest.mark.asyncio
async def test_link_local_plane_without_scope_is_refused_with_what_to_write() -> None:
    """The kernel would pick an interface, silently."""
    with pytest.raises(ConfigError, match="fe80::1 is link-local; name its interface, as in fe80"):
        async with mrc.listen("[::1]:0", planes=["fe80::1"]):
            pass
