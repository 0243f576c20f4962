"""Two sockets that talk to each other, and patience for what the kernel delivers a little later."""

import select
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from mrc.udp import (
    TRAIN_BYTES_MAX,
    Caps,
    Datagrams,
    KernelSockets,
    Receiver,
    Sender,
    SendOutcome,
    SockAddr,
    Sockets,
    family_of,
    peer_address,
    probe_caps,
)

# Only a broken test waits this long; others wait as long as the kernel takes.
PATIENCE_MS = 5000
ECT0 = 0x02
RECEIVE_BUFFER_BYTES = 1 << 20


class HasFileno(Protocol):
    """Anything a selector takes."""

    def fileno(self) -> int:
        """The descriptor."""


def readable(source: HasFileno, timeout_ms: int = PATIENCE_MS) -> bool:
    """Whether a descriptor turns readable, or has an error, in time."""
    poll = select.poll()
    poll.register(source.fileno(), select.POLLIN)
    return bool(poll.poll(timeout_ms))


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether something comes true that no descriptor announces."""
    pause = select.poll()
    for _ in range(PATIENCE_MS):
        if condition():
            return True
        pause.poll(1)
    return False


def numbered(count: int, size: int, last_bytes: int = 0) -> bytes:
    """A run of `count` datagrams, each full of its own number; the last of another size."""
    datagrams = [bytes([number]) * size for number in range(count)]
    if last_bytes:
        datagrams[-1] = datagrams[-1][:last_bytes]
    return b"".join(datagrams)


@dataclass
class Pair:
    """A sender and the receiver it sends to, both on one loopback address."""

    sender: Sender
    receiver: Receiver
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(TRAIN_BYTES_MAX)))

    @property
    def destination(self) -> SockAddr:
        """Where the receiver listens."""
        return peer_address(self.receiver.address, self.receiver.port)

    def send(self, run: bytes, size: int, tos: int = ECT0, flow_label: int = 0) -> SendOutcome:
        """Send a run of datagrams of `size` bytes to the receiver."""
        return self.sender.send(memoryview(run), size, self.destination, tos, flow_label)

    def train(self) -> Datagrams:
        """The next train, waited for."""
        assert readable(self.receiver), "nothing arrives"
        train = self.receiver.receive_into(self.buffer)
        assert train is not None
        return train

    def described(self, count: int) -> list[tuple[bytes, Datagrams]]:
        """The next `count` datagrams, or a few more, each with the train it came in."""
        found: list[tuple[bytes, Datagrams]] = []
        while len(found) < count:
            train = self.train()
            data = bytes(self.buffer[: train.byte_count])
            found += [
                (data[offset : offset + train.segment_bytes], train)
                for offset in range(0, len(data), train.segment_bytes)
            ]
        return found

    def datagrams(self, count: int) -> list[bytes]:
        """The next `count` datagrams, or a few more, whatever trains they come in."""
        return [datagram for datagram, _ in self.described(count)]

    def numbers(self, count: int) -> list[int]:
        """What the next `count` datagrams, made by `numbered`, are numbered."""
        return [datagram[0] for datagram in self.datagrams(count)]

    def close(self) -> None:
        """Free both ports."""
        self.sender.close()
        self.receiver.close()


def open_pair(address: str, sockets: Sockets | None = None, caps: Caps | None = None) -> Pair:
    """Open a pair; the kernel's own sockets, with all this kernel can do, unless told otherwise."""
    sockets = sockets or KernelSockets()
    caps = caps or probe_caps(family_of(address))
    receiver = sockets.receiver(address, 0, caps, RECEIVE_BUFFER_BYTES)
    try:
        return Pair(sockets.sender(address, 0, caps), receiver)
    except BaseException:
        receiver.close()
        raise


def without(caps: Caps, *features: str) -> Caps:
    """Caps with some features taken away."""
    changed = replace(caps, **dict.fromkeys(features, False))
    return replace(changed, max_segments=caps.max_segments if changed.gso else 1)
