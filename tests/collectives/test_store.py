"""The store answers what is asked, waits where it must, and survives whatever a client says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrc.collectives import store as stores
from mrc.collectives.store import LocalStore, RemoteStore
from mrc.errors import MrcError, PeerLost, PeerProtocolError, PeerRefused
from mrc.mailbox import Mailbox

pytestmark = pytest.mark.asyncio

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
REQUESTS = st.dictionaries(
    st.sampled_from(["id", "set", "get", "add", "delete", "value", "amount", "other"]), JSON
)


class Talk:
    """One end of a conversation in memory."""

    def __init__(self) -> None:
        self.inbox: Mailbox[dict[str, Any]] = Mailbox()
        self.other: Talk = self

    async def send(self, message: dict[str, Any]) -> None:
        """Put it into the other's inbox."""
        self.other.inbox.put(message)

    async def receive(self) -> dict[str, Any]:
        """Take the next one."""
        return await self.inbox.get()


def talks() -> tuple[Talk, Talk]:
    """Return both ends of a conversation."""
    one, other = Talk(), Talk()
    one.other, other.other = other, one
    return one, other


@contextlib.asynccontextmanager
async def served(store: LocalStore) -> AsyncIterator[Talk]:
    """Yield the client's end of a conversation with a store."""
    server, client = talks()
    serving = asyncio.ensure_future(store.serve(server))
    try:
        yield client
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@contextlib.asynccontextmanager
async def remote(store: LocalStore) -> AsyncIterator[RemoteStore]:
    """Yield a client of a store."""
    async with served(store) as talk:
        client = RemoteStore(talk)
        try:
            yield client
        finally:
            await client.close()


async def test_what_one_sets_another_gets() -> None:
    """Whoever asks before it is there waits."""
    store = LocalStore()
    async with remote(store) as one, remote(store) as other:
        waiting = [asyncio.ensure_future(each.get("key")) for each in (one, other, store)]
        await one.set("key", "value")
        assert await asyncio.gather(*waiting) == ["value"] * 3
        assert await other.get("key") == "value"


async def test_numbers_add_up() -> None:
    """From 0, whoever adds."""
    store = LocalStore()
    async with remote(store) as one, remote(store) as other:
        assert [await one.add("n", 2), await other.add("n", -5), await store.add("n", 1)] == [
            2,
            -3,
            -2,
        ]


@pytest.mark.parametrize("value", ["x", "", "9" * 4300, "9" * 5000])
async def test_what_is_no_number_is_not_added_to(value: str) -> None:
    """The client is told, and can go on; the longest number Python reads has 4300 digits."""
    async with remote(LocalStore()) as one, asyncio.timeout(10):
        await one.set("n", value)
        with pytest.raises(PeerRefused, match="is no number"):
            await one.add("n", 1)
        assert await one.get("n") == value


async def test_what_is_deleted_is_waited_for_again() -> None:
    """Until somebody sets it."""
    async with remote(LocalStore()) as one:
        await one.set("key", "old")
        await one.delete("key")
        waiting = asyncio.ensure_future(one.get("key"))
        await one.set("key", "new")
        assert await waiting == "new"


async def test_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, their length and that of values are bounded; what is there can still be changed."""
    monkeypatch.setattr(stores, "KEYS_MAX", 2)
    store = LocalStore()
    async with remote(store) as one:
        await one.set("a", "")
        await one.set("b", "")
        with pytest.raises(PeerRefused, match="2 keys already"):
            await one.set("c", "")
        await one.set("a", "more")
        with pytest.raises(PeerRefused, match="at most"):
            await one.set("a", "x" * (stores.VALUE_CHARACTERS_MAX + 1))
        with pytest.raises(PeerRefused, match="at most"):
            await one.set("x" * (stores.KEY_CHARACTERS_MAX + 1), "")


async def test_too_many_waiting_requests_end_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes memory, and one client is not to have all of it."""
    monkeypatch.setattr(stores, "REQUESTS_MAX", 3)
    server, client = talks()
    for number in range(5):
        await client.send({"id": number, "get": f"key {number}"})
    with pytest.raises(PeerProtocolError, match="over 3 requests"):
        await LocalStore().serve(server)


async def test_a_failed_store_tells_all_that_wait() -> None:
    """At the start a rank that died would be waited for in vain."""
    store = LocalStore()
    async with remote(store) as one:
        waiting = [asyncio.ensure_future(one.get("key")), asyncio.ensure_future(store.get("key"))]
        await asyncio.sleep(0)
        await one.set("other", "")
        store.fail(PeerLost("rank 2 was lost"))
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert ["rank 2 was lost" in str(error) for error in ended] == [True, True]
        with pytest.raises(PeerRefused, match="rank 2 was lost"):
            await one.get("never set")


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(REQUESTS, max_size=6))
async def test_no_request_breaks_the_store(requests: list[dict[str, Any]]) -> None:
    """Every request is answered or waits, and the next client finds a store that works."""
    store = LocalStore()
    async with served(store) as talk:
        for request in requests:
            await talk.send(request)
        await talk.send({"id": 77, "set": "k", "value": "v"})
        while (answer := await talk.receive()) != {"id": 77, "value": "v"}:
            assert "error" in answer or "value" in answer
    assert await store.get("k") == "v"


@pytest.mark.slow
@settings(max_examples=50)
@given(REQUESTS)
async def test_no_answer_breaks_the_client(answer: dict[str, Any]) -> None:
    """Nonsense ends it with an error of ours, and whoever waits is told."""
    server, talk = talks()
    client = RemoteStore(talk)
    waiting = asyncio.ensure_future(client.get("key"))
    await server.receive()
    await server.send(answer)
    await server.send({"no": "answer"})
    try:
        with pytest.raises(MrcError):
            await waiting
    finally:
        await client.close()
