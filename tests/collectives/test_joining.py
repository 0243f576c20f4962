"""Ranks find each other whenever they come, and nobody who does not belong comes in."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mrc
from mrc import collectives
from mrc.collectives import Bootstrap, InterfaceList, interfaces, joining
from mrc.errors import (
    ConfigError,
    LocalError,
    MrcError,
    PeerError,
    PeerRefused,
    PeerUnreachable,
)
from tests.collectives.cluster import bootstraps, each, free_port

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

NO_ICRC = mrc.Config(icrc=False)
"""As all ranks at a loopback address have it."""

ENVIRONMENT = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "192.0.2.7",
    "MASTER_PORT": "29500",
}


async def sum_of(starts: list[Bootstrap], **settings: Any) -> int:
    """Let ranks join, add up 1, 2 ..., and leave."""

    async def one(start: Bootstrap) -> int:
        async with collectives.join(start, **settings) as world:
            array = np.array([world.rank + 1])
            await world.all_reduce(array)
            return int(array[0])

    (total,) = set(await each([one(start) for start in starts]))
    return total


async def raised_by(starts: list[Bootstrap]) -> list[BaseException | Any]:
    """Let ranks join, and return what each of them raised; who did not leaves again."""

    async def one(start: Bootstrap) -> None:
        async with collectives.join(start):
            pass

    async with asyncio.timeout(60):
        return await asyncio.gather(*(one(start) for start in starts), return_exceptions=True)


async def test_who_waits_for_rank_0_hears_whom_it_waited_for() -> None:
    """When its time is over; and who came and was not let in is part of that."""
    starts = bootstraps(4)
    starts[0] = dataclasses.replace(starts[0], timeout_s=2.0)
    wrong = dataclasses.replace(starts[2], size=5, timeout_s=1.0)
    first, second, refused = await raised_by([starts[0], starts[1], wrong])
    for error in (first, second):
        assert isinstance(error, PeerError)
        assert "rank 2, 3 did not come" in str(error)
        assert "rank 0 expects ranks 1 to 3, not 2 of 5" in str(error)
    assert isinstance(refused, PeerUnreachable)


async def test_a_port_that_accepts_and_says_nothing_is_told() -> None:
    """Another program may have it; that is more than that nothing was tried."""
    start = dataclasses.replace(bootstraps(2)[1], timeout_s=0.5)
    address = start.url.address
    mute = socket.create_server((address.host, address.port))
    with mute, pytest.raises(PeerUnreachable, match=r"has not answered; does another program"):
        await collectives.join(start)


async def test_without_the_token_of_the_others_one_hears_what_all_need() -> None:
    """Ranks have no URL that somebody could paste."""
    starts = bootstraps(2)
    starts[0] = dataclasses.replace(starts[0], lock=mrc.Lock.new(), timeout_s=2.0)
    starts[1] = dataclasses.replace(starts[1], timeout_s=1.0)
    _, other = await raised_by(starts)
    assert "same MRC_IDENTITY and MRC_TOKEN" in str(other)


async def test_words_of_a_refusal_cannot_steer_a_terminal() -> None:
    """They are the other's, whoever that is."""
    with pytest.raises(PeerRefused, match=r"refused: no\\x1b\[2J") as caught:
        joining.token_untrusted("peer", {"refused": "no\x1b[2J"})
    assert str(caught.value).isprintable()


async def test_what_torchrun_sets_is_read() -> None:
    """Rank, size and rank 0's address; and what makes one start different from the next."""
    start = Bootstrap.from_environment(
        ENVIRONMENT
        | {
            "TORCHELASTIC_RUN_ID": "job",
            "TORCHELASTIC_RESTART_COUNT": "2",
            "NCCL_SOCKET_IFNAME": "^docker",
        }
    )
    assert (start.rank, start.size, str(start.url.address)) == (1, 4, "192.0.2.7:29500")
    assert start.run == "job/2"
    assert start.interface_list == InterfaceList.parse("^docker")
    assert not start.secured


@pytest.mark.parametrize(
    ("changes", "port"),
    [
        ({}, 29500),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True"}, 29501),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, 29500),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "65535"}, 65534),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True", "MRC_MASTER_PORT": "4000"}, 4000),
    ],
)
async def test_where_torchrun_listens_itself_rank_0_takes_the_next_port(
    changes: dict[str, str], port: int
) -> None:
    """Its agent keeps a store at MASTER_PORT, unless a worker does."""
    assert Bootstrap.from_environment(ENVIRONMENT | changes).url.address.port == port


async def test_an_ipv6_address_of_rank_0_is_read() -> None:
    """Without brackets, as torchrun has it."""
    start = Bootstrap.from_environment(ENVIRONMENT | {"MASTER_ADDR": "2001:db8::1"})
    assert start.url.address == mrc.Address("2001:db8::1", 29500)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"RANK": ""}, "not set: RANK"),
        ({"RANK": "", "MASTER_PORT": ""}, "not set: RANK, MASTER_PORT"),
        ({"RANK": "x"}, "RANK = 'x' is no number"),
        ({"RANK": "4"}, "rank 4 of 4"),
        ({"RANK": "-1"}, "rank -1 of 4"),
        ({"WORLD_SIZE": "0"}, "0 ranks"),
        ({"MASTER_PORT": "70000"}, "port 70000"),
        ({"MRC_TOKEN": "t" * 20}, "go together"),
        ({"MRC_SOCKET_IFNAME": "^"}, "names none"),
    ],
)
async def test_a_wrong_environment_is_refused(changes: dict[str, str], reason: str) -> None:
    """By the name of what is wrong."""
    with pytest.raises(ConfigError, match=re.escape(reason)):
        Bootstrap.from_environment(ENVIRONMENT | changes)


async def test_a_list_of_addresses() -> None:
    """Every rank listens at its own."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    assert await sum_of([Bootstrap.from_addresses(addresses, rank) for rank in range(3)]) == 6


async def test_two_ranks_cannot_have_one_address() -> None:
    """They would wait for each other."""
    with pytest.raises(ConfigError, match="same address"):
        Bootstrap.from_addresses(["127.0.0.1:1", "127.0.0.1:1"], 0)


async def test_rank_0_may_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others try until it is there."""
    first, *others = bootstraps(3)
    in_vain, all_in_vain = set[int](), asyncio.Event()
    ask = joining._Other._ask_to_join  # noqa: SLF001 - one attempt

    async def ask_and_tell(side: Any) -> Any:
        try:
            return await ask(side)
        except MrcError:
            in_vain.add(side.bootstrap.rank)
            if len(in_vain) == len(others):
                all_in_vain.set()
            raise

    monkeypatch.setattr(joining._Other, "_ask_to_join", ask_and_tell)  # noqa: SLF001

    async def late() -> int:
        await all_in_vain.wait()
        return await sum_of([first])

    async with asyncio.timeout(30):
        assert await asyncio.gather(late(), *(sum_of([other]) for other in others)) == [6] * 3


async def test_behind_locks(tmp_path: Path) -> None:
    """One identity file and one token for all: everything is sealed."""
    given = {
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "MRC_IDENTITY": str(tmp_path / "identity"),
        "MRC_TOKEN": "a token of the job".replace(" ", "-"),
    }
    starts = [Bootstrap.from_environment(given | {"RANK": str(rank)}) for rank in range(3)]
    ciphers: set[str | None] = set()

    async def one(start: Bootstrap) -> None:
        async with collectives.join(start) as world:
            await world.barrier()
            ciphers.update(qp.facts().cipher for qp in world.endpoint.queue_pairs)

    await each([one(start) for start in starts])
    assert ciphers
    assert None not in ciphers


async def test_a_wrong_token_does_not_come_in(tmp_path: Path) -> None:
    """It is told at the end of its time why; rank 0 says who is missing."""
    given = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    starts = [
        Bootstrap.from_environment(
            given
            | {"RANK": str(rank), "MRC_IDENTITY": str(tmp_path / "id"), "MRC_TOKEN": token * 20}
        )
        for rank, token in enumerate("ab")
    ]
    first, other = await raised_by([short(start) for start in starts])
    assert "rank 1 did not come" in str(first)
    assert "the token is wrong" in str(other)


def short(start: Bootstrap, **changes: Any) -> Bootstrap:
    """Return the same with a short timeout, and other changes."""
    return dataclasses.replace(start, **{"timeout_s": 1.0} | changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": "another"}, "another start"),
        ({"size": 3}, "expects ranks 1 to 1, not 1 of 3"),
    ],
)
async def test_who_does_not_belong_is_told_so(change: dict[str, Any], reason: str) -> None:
    """A rank of another start, or of another size of the job."""
    first, other = bootstraps(2)
    raised = await raised_by([short(first), short(other, **change)])
    assert all(isinstance(error, PeerUnreachable) for error in raised)
    assert reason in str(raised[1])


async def test_a_rank_comes_in_once() -> None:
    """A second process that takes itself for the same one is told."""
    first, second, _ = bootstraps(3)

    async def twice() -> None:
        async with mrc.Endpoint(config=NO_ICRC) as endpoint:
            side = joining._Other(second, endpoint, None)  # type: ignore[arg-type]  # noqa: SLF001
            qp, _ = await side._come_in()  # noqa: SLF001
            (error,) = await raised_by([short(second)])
            assert "rank 1 is here already" in str(error)
            qp.abort()

    await asyncio.gather(raised_by([first]), twice())


async def test_nobody_comes_in_later() -> None:
    """The job runs, with all its ranks."""
    first, other = bootstraps(2)

    async def one(start: Bootstrap) -> None:
        async with collectives.join(start) as world:
            await world.barrier()
            if world.rank:
                (error,) = await raised_by([short(other)])
                assert "the job runs already" in str(error)
            await world.barrier()

    await each([one(start) for start in (first, other)])


async def test_a_port_in_use_is_an_error_of_rank_0() -> None:
    """At once, and not after all have waited."""
    (first,) = bootstraps(1)
    async with mrc.listen(str(first.url.address)):
        with pytest.raises(LocalError, match="in use"):
            await collectives.join(first)


async def test_a_rank_that_dies_at_the_start_ends_the_start() -> None:
    """Nobody waits for it until the time is over."""
    first, second, third = bootstraps(3)

    async def dies() -> None:
        async with mrc.Endpoint(config=NO_ICRC) as endpoint:
            side = joining._Other(third, endpoint, None)  # type: ignore[arg-type]  # noqa: SLF001
            qp, _ = await side._come_in()  # noqa: SLF001
            qp.abort()

    async with asyncio.timeout(30):
        *raised, _ = await asyncio.gather(raised_by([first]), raised_by([second]), dies())
    assert all("rank 2 was lost at the start" in str(error) for (error,) in raised)


def on_hosts(monkeypatch: pytest.MonkeyPatch, candidates: list[Any]) -> None:
    """Let every rank believe that it is on a host of its own, with these addresses."""
    hosts = iter(range(100))
    monkeypatch.setattr(interfaces, "host_identity", lambda: f"host {next(hosts)}")
    monkeypatch.setattr(interfaces, "addresses_here", lambda: candidates)


def candidate(interface: str, address: str) -> interfaces.Candidate:
    """Return an address of an interface that is up."""
    return interfaces.Candidate(
        interface, address, loopback=address.startswith("127."), running=True
    )


async def test_loopback_is_not_told_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where several others could be meant: refused, with all of them named."""
    on_hosts(
        monkeypatch,
        [
            candidate("eth0", "192.0.2.1"),
            candidate("eth1", "192.0.2.2"),
            candidate("lo", "127.0.0.1"),
        ],
    )
    for error in await raised_by(bootstraps(2)):
        assert isinstance(error, MrcError)
        assert "192.0.2.1 (eth0), 192.0.2.2 (eth1), 127.0.0.1 (lo)" in str(error)


async def test_an_address_that_rank_0_cannot_reach_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everybody is told whose it is, and what else there is."""
    on_hosts(monkeypatch, [candidate("lo", "127.0.0.1"), candidate("lo2", "127.0.0.2")])
    lists = [None, InterfaceList.parse("=lo2")]
    monkeypatch.setattr(interfaces, "is_loopback", lambda _: False)
    reason = "cannot be reached, says the test"

    async def dial(address: mrc.Address) -> str:
        return reason if address.host == "127.0.0.2" else ""

    monkeypatch.setattr(joining, "_dial", dial)
    starts = [
        short(start, interface_list=wanted, timeout_s=20.0)
        for start, wanted in zip(bootstraps(2), lists, strict=True)
    ]
    for error in await raised_by(starts):
        assert isinstance(error, PeerError)
        assert "rank 1 listens at 127.0.0.2" in str(error)
        assert reason in str(error)
        assert "127.0.0.1 (lo), 127.0.0.2 (lo2)" in str(error)


async def test_dialling_finds_out_what_listens() -> None:
    """A listener, and a port where nobody is."""
    async with mrc.listen("127.0.0.1:0") as listener:
        assert await joining._dial(listener.address) == ""  # noqa: SLF001
    assert "refused" in (await joining._dial(listener.address)).lower()  # noqa: SLF001


Hostile = Callable[[mrc.QueuePair], Any]


@pytest.mark.parametrize(
    "hello",
    [
        {},
        {"join": 1},
        {"join": joining.PROTOCOL, "rank": 99, "size": 2, "run": ""},
        {"join": joining.PROTOCOL, "rank": True, "size": 2, "run": ""},
        {"join": "x" * 1000, "rank": 1, "size": 2, "run": ""},
        {"token": "guess", "context": "world", "rank": 1},
        {"token": "guess", "context": "heart", "rank": 1},
        {"token": "é", "context": "heart", "rank": 1},
        {"token": "\ud800", "context": "heart", "rank": 1},
        {"join": joining.PROTOCOL, "rank": 1, "size": 2, "run": "\ud800"},
        {"token": None, "context": [], "rank": {}},
    ],
    ids=repr,
)
async def test_a_stranger_changes_nothing(hello: dict[str, Any]) -> None:
    """Whatever it says first, rank 0 lets it go, and the job starts all the same."""
    first, other = bootstraps(2)

    async def stranger() -> None:
        async with mrc.Endpoint(config=NO_ICRC) as endpoint:
            for _ in range(200):
                try:
                    qp = await endpoint.connect(str(first.url))
                    break
                except MrcError:
                    await asyncio.sleep(0.01)
            await qp.channel.send(hello)
            with contextlib.suppress(MrcError):
                assert "refused" in await qp.channel.receive()

    async def late() -> int:
        await stranger()
        return await sum_of([other])

    async with asyncio.timeout(30):
        assert set(await asyncio.gather(sum_of([first]), late())) == {3}
