"""A listener that lies: whatever it says is held against what was seen of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mrc.errors import PeerProtocolError
from mrc.perf import serving
from mrc.perf.conversation import Result, Target
from mrc.perf.settings import Kind, Plan
from tests.perf.bench import bench, plan

pytestmark = pytest.mark.asyncio


async def refused(wished: Plan, words: str) -> None:
    """Measure, and find that the listener says what cannot be."""
    async with bench() as made:
        with pytest.raises(PeerProtocolError, match=words):
            await made.measure(wished)
        await made.until(lambda: len(made.ended) == 1)
        assert words.split("|", maxsplit=1)[0] in str(made.ended[0][1])


def _sent(result: Result, **changes: Any) -> Result:
    assert result.sent is not None
    return replace(result, sent=replace(result.sent, **changes))


BOTH = plan(bidirectional=True)
LIES: dict[str, tuple[Plan, Callable[[Result], Result], str]] = {
    "nobody looked at the contents": (
        plan(verify=True),
        lambda result: replace(result, wrong_bytes=None),
        "has not looked",
    ),
    "fewer lanes": (
        plan(verify=True, qps=2),
        lambda result: replace(result, operations=(0,)),
        "1 lanes of 2",
    ),
    "no lane": (plan(), lambda result: replace(result, operations=()), "0 lanes of 1"),
    "fewer answers": (
        plan(Kind.LATENCY, verify=True),
        lambda result: replace(result, operations=(0,)),
        "0 answers, 2 came",
    ),
    "nothing of what it sent": (BOTH, lambda result: replace(result, sent=None), "tells nothing"),
    "more than came": (
        BOTH,
        lambda result: _sent(
            replace(result, operations=(10**6,)), operations=10**6, bytes=4096 * 10**6
        ),
        "4096000000 bytes, 8192 came",
    ),
    "bytes that are no messages": (BOTH, lambda result: _sent(result, bytes=1), "contradict"),
    "two sums": (BOTH, lambda result: _sent(result, operations=1), "contradict"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_result_that_cannot_be_is_refused(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No figure is printed, and no content is called right, on the word of the peer alone."""
    wished, spoilt, words = LIES[lie]
    monkeypatch.setattr(serving, "Result", lambda *fields: spoilt(Result(*fields)))
    await refused(wished, words)


async def test_memory_shorter_than_a_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target without a place for one message is the listener's mistake, in words."""
    monkeypatch.setattr(serving, "Target", lambda region: Target(replace(region, length=1)))
    await refused(plan(), "has 1 bytes of memory for 1048576")
