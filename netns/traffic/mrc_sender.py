"""Sends messages over one queue pair for a time, several at once, and notes how each fared.

Orders: name, url, token (or None), planes (own addresses), config (fields of `mrc.Config`),
message_bytes, depth (messages under way), start_s, stop_s, record (path), period_ms, pause_ms
(between messages). When connected it says so, with the source ports of its paths, and waits for the
moment that is zero; when its first message is complete it says `moving`.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from time import monotonic_ns
from typing import Any

import mrc
from netns.traffic import counters
from netns.traffic.common import (
    Sampler,
    change,
    moment_zero_ns,
    orders,
    run,
    save,
    say,
    standard_input,
    until_ns,
    while_input_lasts,
)
from netns.traffic.payload import Expected

CONNECT_TIMEOUT_S = 5.0
SLOTS_PER_MESSAGE = 4
"""Parts of the peer's buffer per message under way, so that none is overwritten unread."""


class _Flow:
    def __init__(self, told: dict[str, Any], qp: mrc.QueuePair) -> None:
        self.told = told
        self.qp = qp
        self.expected = Expected(told["message_bytes"])
        self.slots = SLOTS_PER_MESSAGE * told["depth"]
        self.completions: list[tuple[int, int]] = []
        self.path_samples: list[list[int]] = []
        self.samples: list[list[int]] = []
        self.changes: list[dict[str, Any]] = []
        self.ports: list[dict[str, int]] = []
        self.next_message = 0
        self.error = ""

    def sample(self, now_ns: int) -> None:
        """Note the counters of the queue pair and what each path has delivered."""
        if self.qp.failure is not None:
            return
        statistics = self.qp.statistics()
        self.samples.append(counters.row(now_ns, [statistics]))
        self.path_samples.append([p.acked_packets for p in statistics.paths])

    async def watch(self) -> None:
        """Note what becomes of the paths."""
        async for event in self.qp.events():
            if isinstance(event, mrc.EvChanged):
                self.changes.append(change(event))
            else:
                self.ports.append({"at_ns": event.at_ns, "mask": event.mask})

    async def agree(self) -> mrc.RemoteRegion:
        """Tell the receiver what will come; return where it is to go."""
        size = self.told["message_bytes"]
        hello = {"name": self.told["name"], "message_bytes": size, "slots": self.slots}
        await self.qp.channel.send(hello)
        return mrc.RemoteRegion.from_json_untrusted(await self.qp.channel.receive())

    async def send(self, remote: mrc.RemoteRegion, zero_ns: int) -> None:
        """Keep `depth` messages under way until the time is up, then wait for the last."""
        size = self.told["message_bytes"]
        stop_ns = zero_ns + int(self.told["stop_s"] * 1e9)
        await until_ns(zero_ns + int(self.told["start_s"] * 1e9))

        async def worker() -> None:
            while monotonic_ns() < stop_ns:
                number = self.next_message
                self.next_message += 1
                began_ns = monotonic_ns()
                data, offset = self.expected.message(number), number % self.slots * size
                await self.qp.write_imm(data, remote, offset, imm=number & 0xFFFFFFFF)
                self.completions.append((began_ns, monotonic_ns()))
                if len(self.completions) == 1:
                    say("moving")
                if self.told["pause_ms"]:
                    await asyncio.sleep(self.told["pause_ms"] / 1e3)

        async with asyncio.TaskGroup() as group:
            for _ in range(self.told["depth"]):
                group.create_task(worker())

    def record(self) -> dict[str, Any]:
        """Return all that was seen."""
        record: dict[str, Any] = {
            "name": self.told["name"],
            "messages": self.next_message,
            "completions_ns": self.completions,
            "samples": self.samples,
            "path_samples": self.path_samples,
            "changes": self.changes,
            "ports": self.ports,
            "error": self.error,
        }
        if self.qp.failure is None:
            statistics = self.qp.statistics()
            record["paths"] = [
                {
                    "plane": p.plane,
                    "source_port": p.source_port,
                    "active": p.active,
                    "state": p.state,
                    "sent": p.sent_packets,
                    "acked": p.acked_packets,
                    "lost": p.lost_packets,
                    "spurious": p.spurious_packets,
                    "trimmed": p.trimmed_packets,
                    "marked": p.marked_packets,
                    "srtt_ns": p.srtt_ns,
                }
                for p in statistics.paths
            ]
        return record


async def _main() -> None:
    told = orders()
    config = mrc.Config(**told["config"])
    async with mrc.connect(
        told["url"],
        config=config,
        planes=told["planes"],
        timeout_s=CONNECT_TIMEOUT_S,
        token=told["token"],
    ) as qp:
        flow = _Flow(told, qp)
        helpers = [
            asyncio.create_task(Sampler(told["period_ms"], flow.sample).run()),
            asyncio.create_task(flow.watch()),
        ]
        try:
            remote = await flow.agree()
            ports = [path.source_port for path in qp.statistics().paths]
            say(f"connected {json.dumps(ports)}")
            words = await standard_input()
            zero_ns = await moment_zero_ns(words)
            await while_input_lasts(words, flow.send(remote, zero_ns))
        except* mrc.MrcError as group:
            flow.error = "; ".join(str(error) for error in group.exceptions)
            traceback.print_exc()
        finally:
            # Nothing is waited for: a second word to end would cut it short without a record.
            flow.sample(monotonic_ns())
            save(told["record"], flow.record())
            for helper in helpers:
                helper.cancel()


if __name__ == "__main__":
    run(_main)
