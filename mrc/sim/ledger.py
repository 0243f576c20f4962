"""What was handed to an endpoint, counted from outside: its own counters must agree."""

from __future__ import annotations

from dataclasses import dataclass, field

from mrc.proto.endpoint import Endpoint
from mrc.proto.qp import QpState
from mrc.sim.datagram import Datagram
from mrc.wire.fields import WRITE_OPCODES, Opcode

_DQP, _PSN = slice(5, 8), slice(9, 12)


@dataclass(slots=True)
class Entry:
    """What came in for one queue pair."""

    writes: int = 0
    """Whole data packets."""
    psns: set[bytes] = field(default_factory=set)
    """The PSNs they had."""
    trimmed: int = 0
    sacks: int = 0
    nacks: int = 0
    """Feedback that came while the queue pair could take it."""


class Ledger:
    """Counts datagrams by the queue pair they are for."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self.damaged = 0
        """Datagrams whose iCRC is wrong, as a rule; whose they were cannot be told. Of one with
        bits flipped that the iCRC does not cover, or flipped back, nobody notices anything."""

    def of(self, qpn: int) -> Entry:
        """Return what came in for a queue pair."""
        return self._entries.setdefault(qpn, Entry())

    def enter(self, datagram: Datagram, endpoint: Endpoint) -> None:
        """Count a datagram that is about to be handed over."""
        if datagram.corrupted or (datagram.rewritten and endpoint.config.icrc):
            self.damaged += 1
            return
        data = datagram.data
        opcode = data[0]
        qpn = int.from_bytes(data[_DQP], "big")
        if opcode in WRITE_OPCODES:
            entry = self.of(qpn)
            if datagram.is_trimmed:
                entry.trimmed += 1
            else:
                entry.writes += 1
                entry.psns.add(data[_PSN])
        elif opcode in (Opcode.SACK, Opcode.NACK):
            qp = endpoint.qps.get(qpn)
            if qp is None or qp.state is not QpState.RTS:
                return
            if opcode == Opcode.SACK:
                self.of(qpn).sacks += 1
            else:
                self.of(qpn).nacks += 1
