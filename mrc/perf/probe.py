"""Watches one side during one round: counters before and after, and the window every now and then.

What it saw goes to `explain` as plain values, which alone decides what to say about it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import mrc
from mrc.perf.conversation import Round
from mrc.perf.kernel import HostCounters, busy_percent, host_counters, udp_errors
from mrc.perf.lanes import Lane
from mrc.perf.measures import Meter, SenderFigures
from mrc.perf.settings import Kind

LOOK_S = 0.05
"""Between two looks at the window of one lane: a look costs 50 us, and with 256 paths 0.7 ms."""
_FULL_SHARE = 0.9


@dataclass(slots=True)
class WindowLooks:
    """How the windows of all lanes were found, look by look.

    Attributes:
        looks: at one lane each.
        full: those with more than nine tenths of the congestion window in flight.
        cwnd_bytes: sum over all looks.
    """

    looks: int = 0
    full: int = 0
    cwnd_bytes: int = 0

    def look(self, cwnd_bytes: int, inflight_bytes: int) -> None:
        """Note one more."""
        self.looks += 1
        self.full += inflight_bytes > _FULL_SHARE * cwnd_bytes
        self.cwnd_bytes += cwnd_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All that one side saw in one round.

    Attributes:
        kind: of test.
        wanted: the round.
        writes: this side wrote.
        qp: what was agreed; alike for all lanes.
        sent: by this side.
        ports: of this side, their counters of this round alone.
        window: of its lanes, one after the other.
        core_percents: how busy every core of this host was, by its number.
        udp_errors: of the whole host.
    """

    kind: Kind
    wanted: Round
    writes: bool
    qp: mrc.QpFacts
    sent: SenderFigures
    ports: tuple[mrc.PortFacts, ...]
    window: WindowLooks = field(default_factory=WindowLooks)
    core_percents: dict[int, float] = field(default_factory=dict)
    udp_errors: dict[str, int] = field(default_factory=dict)

    @property
    def process_percent(self) -> float:
        """Share of one core that this process had."""
        took_ns = self.sent.duration_ns
        return 100 * self.sent.cpu_ns / took_ns if took_ns else 0.0


class Probe:
    """Watches for as long as its ``async with`` block lasts.

    Args:
        endpoint: whose sockets are looked at.
        lanes: whose windows are looked at.
        kind: of test.
        wanted: the round.
        writes: this side writes.

    Attributes:
        meter: counts from when the block was entered, or from its own `begin`.
    """

    def __init__(
        self,
        endpoint: mrc.Endpoint,
        lanes: Sequence[Lane],
        kind: Kind,
        wanted: Round,
        *,
        writes: bool,
    ) -> None:
        self._endpoint = endpoint
        self._lanes = lanes
        self._kind, self._wanted, self._writes = kind, wanted, writes
        self._window = WindowLooks()
        self._watching: asyncio.Task[None] | None = None
        self._before: tuple[HostCounters, tuple[mrc.PortFacts, ...]] | None = None
        self._observed: Observed | None = None
        self.meter = Meter(lanes)

    async def __aenter__(self) -> Self:
        self._before = host_counters(), self._endpoint.port_facts()
        self._watching = asyncio.ensure_future(self._watch())
        self.meter.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._before is None:
            return
        host_before, ports_before = self._before
        host = host_counters()
        self._observed = Observed(
            kind=self._kind,
            wanted=self._wanted,
            writes=self._writes,
            qp=self._lanes[0].qp.facts(),
            sent=self.meter.sender(self._wanted.message_bytes),
            ports=_since(ports_before, self._endpoint.port_facts()),
            window=self._window,
            core_percents=busy_percent(host_before, host),
            udp_errors=udp_errors(host_before, host),
        )

    @property
    def observed(self) -> Observed | None:
        """What was seen; None before the end of the block."""
        return self._observed

    async def _watch(self) -> None:
        for lane in itertools.cycle(self._lanes):
            await asyncio.sleep(LOOK_S)
            requestor = lane.qp.statistics().requestor
            self._window.look(requestor.cwnd_bytes, requestor.inflight_bytes)


_COUNTERS = (
    "received_datagrams",
    "receive_calls",
    "kernel_drops",
    "sent_datagrams",
    "send_calls",
)


def _since(
    before: Sequence[mrc.PortFacts], after: Sequence[mrc.PortFacts]
) -> tuple[mrc.PortFacts, ...]:
    """Return the facts with what their counters had before taken off."""
    return tuple(
        replace(
            now,
            **{name: getattr(now, name) - getattr(then, name) for name in _COUNTERS},
            send_outcomes={
                name: count - then.send_outcomes.get(name, 0)
                for name, count in now.send_outcomes.items()
            },
        )
        for then, now in zip(before, after, strict=False)
    )
