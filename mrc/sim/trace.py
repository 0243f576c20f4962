"""What happened, event by event: as JSON for programs and people, as pcap for packet analysers.

A trace holds no addresses of objects, no wall-clock time, nothing that differs between two runs of
one seed: their digests are equal.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from mrc.sim.addresses import HOST_NAMES
from mrc.sim.clock import Timeline
from mrc.sim.datagram import Datagram
from mrc.sim.options import Options
from mrc.sim.pcap import PcapWriter
from mrc.wire.fields import Opcode

_NAMES = {int(opcode): opcode.name.lower() for opcode in Opcode}
_PSN = slice(9, 12)
_TTL = 64


class Trace:
    """Collects events in memory: about 300 bytes each. Datagrams go to the pcap at once."""

    def __init__(self, timeline: Timeline, *, pcap: PcapWriter | None = None) -> None:
        self._timeline = timeline
        self._pcap = pcap
        self._lines: list[str] = []

    def note(self, what: str, **details: Any) -> None:
        """Note an event with its details."""
        self._lines.append(json.dumps({"ns": self._timeline.now_ns, "what": what, **details}))

    def datagram(self, what: str, datagram: Datagram, why: str = "") -> None:
        """Note what happens to a datagram."""
        data = datagram.data
        details: dict[str, Any] = {
            "number": datagram.number,
            "opcode": _NAMES.get(data[0], f"{data[0]:#x}"),
            "psn": int.from_bytes(data[_PSN], "big"),
            "bytes": len(data),
            "tos": datagram.tos,
        }
        if what in ("send", "deliver"):
            details |= {
                "from": HOST_NAMES[datagram.sender],
                "to": HOST_NAMES[datagram.receiver],
                "plane": datagram.plane,
                "port": datagram.source_port,
                "sha": hashlib.sha256(data).hexdigest()[:12],
            }
            if self._pcap is not None:
                # As in a real capture, the TTL tells on which side of the network it was seen.
                hops = datagram.hop if what == "deliver" else 0
                self._pcap.write(self._timeline.now_ns, datagram, ttl=_TTL - hops)
        else:
            details["link"] = datagram.links[min(datagram.hop, len(datagram.links) - 1)].name
        if why:
            details["why"] = why
        self.note(what, **details)

    def digest(self) -> str:
        """Return a digest of all events."""
        return hashlib.sha256("\n".join(self._lines).encode()).hexdigest()

    def write(self, path: Path, options: Options, outcome: dict[str, Any]) -> None:
        """Write one JSON document: the options, the outcome, then an event a line."""
        head = json.dumps(
            {"seed": options.seed, "options": list(options.rows()), "outcome": outcome}, indent=1
        )
        body = ",\n".join(self._lines)
        path.write_text(f'{head[:-2]},\n "events": [\n{body}\n]}}\n', encoding="utf-8")
