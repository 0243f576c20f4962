"""What one side waits for, for how long, and its last word: on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from fuzzing.vloop import virtual_loop

import mrc
from mrc.cli.failures import PeerSilent
from mrc.errors import (
    ConfigError,
    MrcError,
    PeerLost,
    PeerProtocolError,
    PeerRefused,
    PeerVersionError,
)
from mrc.perf.conversation import (
    Message,
    Ready,
    Reason,
    Refuse,
    Working,
    message_untrusted,
    to_json,
)
from mrc.perf.parts import ticks
from mrc.perf.talk import Talk

TIMEOUT_S = 1.0
Script = list[tuple[float, Message]]


class Channel:
    """Says what a script says, after pauses in seconds; then the peer is gone, or is silent."""

    def __init__(self, script: Script, *, gone: bool = True) -> None:
        self._script = script
        self._gone = gone
        self.heard: list[dict[str, Any]] = []

    async def send(self, message: dict[str, Any]) -> None:
        """Take what our side says."""
        self.heard.append(message)

    async def receive(self) -> dict[str, Any]:
        """Say the next thing."""
        if not self._script:
            if self._gone:
                raise PeerLost("gone")
            await asyncio.sleep(1000)
        pause_s, message = self._script.pop(0)
        await asyncio.sleep(pause_s)
        return to_json(message)


class Qp:
    """A queue pair to a script."""

    peer = "192.0.2.9:1"

    def __init__(self, channel: Channel) -> None:
        self.channel = channel


def talk_to(channel: Channel) -> Talk:
    """Return our side of the conversation."""
    return Talk(cast("mrc.QueuePair", Qp(channel)), TIMEOUT_S)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run on the virtual clock."""
    return virtual_loop().run(work)


def seconds() -> int:
    """Return a number that grows with the clock."""
    return int(asyncio.get_running_loop().time() * 1000)


def test_a_result_may_take_as_long_as_something_moves() -> None:
    """A slow link drains what is outstanding before the listener can say what it was."""
    channel = Channel([(20.0, Ready())])
    assert run(talk_to(channel).hear_untrusted(Ready, seconds)) == Ready()


@pytest.mark.parametrize("progress", [None, lambda: 4096], ids=["nothing to look at", "frozen"])
def test_a_result_that_does_not_come_while_nothing_moves_is_an_error(
    progress: Callable[[], int] | None,
) -> None:
    """A listener that stands still is not waited for."""
    with pytest.raises(PeerSilent, match="the message Ready"):
        run(talk_to(Channel([(20.0, Ready())])).hear_untrusted(Ready, progress))


def test_a_peer_that_works_is_waited_for() -> None:
    """Gigabytes take longer to be filled or compared than a time-out: it says that it works."""
    channel = Channel([(0.9, Working())] * 20 + [(0.9, Ready())])
    assert run(talk_to(channel).hear_untrusted(Ready)) == Ready()


def test_who_works_says_so_for_as_long_as_it_does() -> None:
    """Often enough for a peer with the same time-out, and not a word after the end."""
    channel = Channel([])

    async def work() -> str:
        done = await talk_to(channel).working(asyncio.sleep(10, "done"))
        said = len(channel.heard)
        await asyncio.sleep(10)
        assert len(channel.heard) == said
        return done

    assert run(work()) == "done"
    assert channel.heard == [to_json(Working())] * 39


FAILURES: tuple[tuple[MrcError, Reason], ...] = (
    (PeerVersionError("of another version"), Reason.VERSION),
    (PeerProtocolError("impossible"), Reason.PROTOCOL),
    (ConfigError("too large"), Reason.UNWANTED),
    (PeerSilent("nothing came"), Reason.UNWANTED),
)


@pytest.mark.parametrize(("error", "reason"), FAILURES, ids=lambda value: type(value).__name__)
def test_the_peer_is_told_what_ended_it(error: MrcError, reason: Reason) -> None:
    """Whoever gives up says why before it closes."""
    channel = Channel([])

    async def fails() -> None:
        async with talk_to(channel).telling_why():
            raise error

    with pytest.raises(type(error)):
        run(fails())
    assert channel.heard == [to_json(Refuse(reason, str(error)))]


def test_what_the_peer_said_last_is_the_error_and_not_its_absence() -> None:
    """Between writes nobody listens: why the peer has gone is looked for when it has."""
    channel = Channel([(0.1, Ready()), (0.1, Refuse(Reason.UNWANTED, "out of patience"))])

    async def fails() -> None:
        async with talk_to(channel).telling_why():
            raise PeerLost("closed the connection")

    with pytest.raises(PeerRefused, match="out of patience"):
        run(fails())
    assert channel.heard == []


@pytest.mark.parametrize("gone", [True, False])
def test_a_peer_without_a_last_word_is_lost(gone: bool) -> None:
    """What went wrong stays the error, and is not waited behind."""

    async def fails() -> float:
        with pytest.raises(PeerLost, match="closed"):
            async with talk_to(Channel([], gone=gone)).telling_why():
                raise PeerLost("closed the connection")
        return asyncio.get_running_loop().time()

    began_s = virtual_loop().time()
    assert run(fails()) - began_s <= TIMEOUT_S


def test_who_was_refused_does_not_refuse() -> None:
    """The last word is one side's."""
    channel = Channel([(0.1, Refuse(Reason.PROTOCOL, "impossible"))])

    async def fails() -> None:
        talk = talk_to(channel)
        async with talk.telling_why():
            await talk.hear_untrusted(Ready)

    with pytest.raises(PeerProtocolError, match="the peer refused: impossible"):
        run(fails())
    assert channel.heard == []


def test_a_refusal_is_read_wherever_a_message_is_expected() -> None:
    """One reader for all of them."""
    with pytest.raises(PeerRefused):
        message_untrusted(to_json(Refuse(Reason.UNWANTED, "no")), Ready)


def test_ticks_are_not_made_up_for_after_a_pause() -> None:
    """Whoever was kept busy gets one figure of all of it, not many of nothing."""

    async def times_s() -> list[float]:
        loop = asyncio.get_running_loop()
        began_s, seen = loop.time(), []
        async for _ in ticks(1.0, asyncio.ensure_future(asyncio.sleep(8.5))):
            seen.append(round(loop.time() - began_s, 3))
            if len(seen) == 2:
                await asyncio.sleep(3.5)
        return seen

    assert run(times_s()) == [1.0, 2.0, 5.5, 6.5, 7.5]
