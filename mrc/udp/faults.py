"""Sockets that lose, spoil and repeat datagrams on purpose, for tests and demonstrations.

A factory like any other; what it opens are the kernel's sockets with faults in between.
A datagram lost on the way out was sent as far as the sender can tell.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter

from mrc.errors import ConfigError
from mrc.udp.address import SockAddr
from mrc.udp.caps import Caps
from mrc.udp.factory import Receiver, Sender
from mrc.udp.outcome import SendOutcome
from mrc.udp.receive_socket import Datagrams, ReceiveSocket
from mrc.udp.send_socket import SendSocket, run_identity

# Trains to lose in one receive before giving the caller its turn back.
_LOST_A_CALL = 16


class _Fates:
    """Which datagrams of a stream meet a fate, each by itself with the same probability.

    The distance to the next one is drawn, not every datagram: what is spared costs nothing, so that
    a measurement with faults measures the endpoint and not them.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._chance = 0.0
        self._distance = 0

    def among(self, count: int, chance: float) -> list[int]:
        """The positions, among the next `count` datagrams, of those that meet a fate."""
        if chance <= 0:
            return []
        if chance != self._chance:
            self._chance = chance
            self._distance = self._draw()
        found = []
        while self._distance < count:
            found.append(self._distance)
            self._distance += 1 + self._draw()
        self._distance -= count
        return found

    def _draw(self) -> int:
        if self._chance >= 1:
            return 0
        return int(math.log(1 - self._rng.random()) / math.log(1 - self._chance))


class FaultySockets:
    """Opens sockets with faults, which may be changed while they are in use.

    Args:
        seed: of the generator behind all chances.
        loss, inbound_loss, corruption, duplication: the attributes of these names.

    Attributes:
        loss: probability that a datagram sent vanishes, each by itself.
        inbound_loss: probability that a datagram received vanishes, each by itself.
        corruption: probability that a datagram is sent with one bit flipped. It arrives: the
            kernel gives it a UDP checksum that is right.
        duplication: probability that a datagram is sent twice in a row. No datagram has two of
            these fates, so the three must not add up to more than 1.
        blackholed_ports: our source ports, on every plane, whose datagrams all vanish.
        inbound_blackholed_ports: the peer's source ports whose datagrams all vanish here.
        senders: the sending sockets, in the order they were opened.
        lost: datagrams that vanished on the way out, by source port.
        inbound_lost: datagrams that vanished on the way in, by the peer's source port.
        corrupted: datagrams sent with a flipped bit, by source port.
        duplicated: datagrams sent twice, by source port.
        first_blackholed_ns: `time.monotonic_ns()` when the first datagram fell into the black
            hole of a source port; kept when it heals, begun anew by `blackhole_nth`.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        loss: float = 0.0,
        inbound_loss: float = 0.0,
        corruption: float = 0.0,
        duplication: float = 0.0,
    ) -> None:
        self.rng = random.Random(seed)
        self.fates = _Fates(self.rng)
        self.loss = loss
        self.inbound_loss = inbound_loss
        self.corruption = corruption
        self.duplication = duplication
        self.blackholed_ports: set[int] = set()
        self.inbound_blackholed_ports: set[int] = set()
        self.senders: list[FaultySender] = []
        self.lost: Counter[int] = Counter()
        self.inbound_lost: Counter[int] = Counter()
        self.corrupted: Counter[int] = Counter()
        self.duplicated: Counter[int] = Counter()
        self.first_blackholed_ns: dict[int, int] = {}

    def sender(self, address: str, port: int, caps: Caps) -> Sender:
        """Open the sending socket of one EV, with faults."""
        sender = FaultySender(self, address, port, caps)
        self.senders.append(sender)
        return sender

    def receiver(self, address: str, port: int, caps: Caps, receive_buffer_bytes: int) -> Receiver:
        """Open the receiving socket of one plane, with faults."""
        return FaultyReceiver(self, address, port, caps, receive_buffer_bytes)

    def blackhole_nth(self, index: int) -> int:
        """Let all datagrams of the sending socket opened as number `index`, from 0, vanish.

        Returns its port.

        Raises:
            ConfigError: so many were not opened.
        """
        sender = self._nth(index)
        sender.blackholed = True
        self.first_blackholed_ns.pop(sender.port, None)
        return sender.port

    def heal_nth(self, index: int) -> int:
        """End `blackhole_nth`; returns the port.

        Raises:
            ConfigError: so many were not opened.
        """
        sender = self._nth(index)
        sender.blackholed = False
        return sender.port

    def _nth(self, index: int) -> FaultySender:
        if not 0 <= index < len(self.senders):
            raise ConfigError(f"there is no socket {index}: {len(self.senders)} were opened")
        return self.senders[index]


class FaultySender(SendSocket):
    """A sending socket whose datagrams may vanish, change or come twice on their way out.

    Attributes:
        blackholed: whether all of them vanish.
    """

    def __init__(self, faults: FaultySockets, address: str, port: int, caps: Caps) -> None:
        super().__init__(address, port, caps=caps)
        self.blackholed = False
        self._faults = faults
        # The run that a full send buffer cut short, and what is left of it.
        self._unsent: tuple[object, list[memoryview]] | None = None

    def send(
        self,
        buffer: memoryview,
        segment_bytes: int,
        destination: SockAddr,
        tos: int,
        flow_label: int = 0,
    ) -> SendOutcome:
        """Send what is left of a run when the faults are through with it."""
        if self.blackholed or self.port in self._faults.blackholed_ports:
            self._swallow(buffer.nbytes, segment_bytes)
            return SendOutcome.SENT
        if not (self._faults.loss or self._faults.corruption or self._faults.duplication):
            return super().send(buffer, segment_bytes, destination, tos, flow_label)
        identity = run_identity(buffer, segment_bytes, destination)
        if self._unsent is not None and self._unsent[0] == identity:
            pieces = self._unsent[1]
        else:
            pieces = self._pieces(buffer.cast("B"), segment_bytes)
        self._unsent = None
        while pieces:
            outcome = super().send(pieces[0], segment_bytes, destination, tos, flow_label)
            if outcome is SendOutcome.WOULD_BLOCK:
                self._unsent = (identity, pieces)
            if outcome is not SendOutcome.SENT:
                return outcome
            del pieces[0]
        return SendOutcome.SENT

    def _swallow(self, byte_count: int, segment_bytes: int) -> None:
        self._faults.lost[self.port] += -(-byte_count // segment_bytes)
        self._faults.first_blackholed_ns.setdefault(self.port, time.monotonic_ns())

    def _pieces(self, run: memoryview, segment_bytes: int) -> list[memoryview]:
        """What to send for a run, in order: stretches left whole, and datagrams with a fate."""
        faults = self._faults
        corrupted_below = faults.loss + faults.corruption
        total = corrupted_below + faults.duplication
        pieces: list[memoryview] = []
        start = 0
        for index in faults.fates.among(-(-run.nbytes // segment_bytes), total):
            chance = faults.rng.random() * total
            offset = index * segment_bytes
            datagram = run[offset : offset + segment_bytes]
            pieces.append(run[start:offset])
            start = offset + segment_bytes
            if chance < faults.loss:
                faults.lost[self.port] += 1
            elif chance < corrupted_below:
                faults.corrupted[self.port] += 1
                pieces.append(self._corrupted(datagram))
            else:
                faults.duplicated[self.port] += 1
                pieces += [datagram, datagram]
        pieces.append(run[start:])
        return [piece for piece in pieces if piece.nbytes]

    def _corrupted(self, datagram: memoryview) -> memoryview:
        copy = bytearray(datagram)
        bit = int(self._faults.rng.random() * len(copy) * 8)
        copy[bit // 8] ^= 1 << bit % 8
        return memoryview(copy)


class FaultyReceiver(ReceiveSocket):
    """A receiving socket whose datagrams may vanish on their way in.

    `statistics()` counts them as received: they vanish after that.
    """

    def __init__(
        self,
        faults: FaultySockets,
        address: str,
        port: int,
        caps: Caps,
        receive_buffer_bytes: int,
    ) -> None:
        super().__init__(address, port, caps=caps, receive_buffer_bytes=receive_buffer_bytes)
        self._faults = faults

    def receive_into(self, buffer: memoryview) -> Datagrams | None:
        """Receive the next train of which something is left."""
        for _ in range(_LOST_A_CALL):
            train = super().receive_into(buffer)
            if train is None or not (
                self._faults.inbound_loss or self._faults.inbound_blackholed_ports
            ):
                return train
            if (rest := self._survivors(buffer, train)) is not None:
                return rest
        return None

    def _survivors(self, buffer: memoryview, train: Datagrams) -> Datagrams | None:
        """The train without what vanished, moved together in the buffer; None if all did."""
        faults = self._faults
        port = train.source[1]
        swallowed = port in faults.inbound_blackholed_ports
        kept_bytes = 0
        for offset in range(0, train.byte_count, train.segment_bytes):
            if swallowed or faults.rng.random() < faults.inbound_loss:
                faults.inbound_lost[port] += 1
                continue
            size = min(train.segment_bytes, train.byte_count - offset)
            buffer[kept_bytes : kept_bytes + size] = buffer[offset : offset + size]
            kept_bytes += size
        if not kept_bytes:
            return None
        segment_bytes = min(train.segment_bytes, kept_bytes)
        return train._replace(byte_count=kept_bytes, segment_bytes=segment_bytes)
