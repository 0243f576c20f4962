"""The hop's inside: frames that wait in the ring where the kernel put them, until they are due.

Frames keep their MAC addresses, and travel with their virtio_net_hdr: a checksum that the sender
left to its device stays left. What does not fit a slot (the MTU; so segmentation offload must be
off) or carries a VLAN tag is refused, and counted.

How it is cheap. Every device has a packet socket with a receive ring (TPACKET_V2) in shared
memory: the kernel puts a frame and its time of arrival there without waking anybody, and the frame
stays where it is until it is due. The ring is the queue and its size the queue limit. While frames
wait, the process sleeps until the first is due, and at least a grain, and then sends all that are
due, straight from the ring; only an idle hop waits for arrivals. It runs before all ordinary
processes (SCHED_FIFO), since a wire does not wait for a processor: beside two busy processes that
is the difference between 0.3 ms and 80 ms late.

On a virtual EPYC core a frame of 4 KiB costs 5 µs in bursts and 9 µs one by one, most of it the
kernel's, which runs the receiver's protocols inside send. Hence sendmmsg saves nothing. TPACKET_V3
shows frames up to a millisecond late, and a transmit ring is wrong on veth, which gives a slot back
while the receiver still reads it.
"""

import contextlib
import dataclasses
import fcntl
import mmap
import random
import socket
import struct
import time
from collections import deque
from pathlib import Path
from typing import Final

# <linux/if_packet.h>, <linux/sockios.h>: what the socket module does not name.
SOL_PACKET: Final = 263
PACKET_ADD_MEMBERSHIP: Final = 1
PACKET_RX_RING: Final = 5
PACKET_STATISTICS: Final = 6
PACKET_VERSION: Final = 10
PACKET_VNET_HDR: Final = 15
PACKET_QDISC_BYPASS: Final = 20
PACKET_IGNORE_OUTGOING: Final = 23
PACKET_MR_PROMISC: Final = 1
ETH_P_ALL: Final = 3
TPACKET_V2: Final = 1
SIOCGIFFLAGS: Final = 0x8913
SIOCSIFFLAGS: Final = 0x8914
SIOCGIFMTU: Final = 0x8921
IFF_UP: Final = 1

# struct tpacket2_hdr as 32-bit words from the start of a slot.
STATUS, LENGTH, STORED, SECONDS, NANOSECONDS = 0, 1, 2, 4, 5
STATUS_USER: Final = 1
STATUS_VLAN: Final = 0x10
# The frame starts 76 bytes into its slot, and its virtio_net_hdr just before that.
VNET_BYTES: Final = 10
FRAME_AT: Final = 76
ETHERNET_BYTES: Final = 14

BATCH: Final = 64  # frames moved for one direction before the others have their turn
GONE: Final = 0  # in place of the due time of a frame that has overtaken the others


class BadValueError(ValueError):
    """An argument or a setting that cannot be; the message names it."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How one direction treats its frames.

    Attributes:
        delay_us: how long a frame takes.
        jitter_us: up to how much longer or shorter, uniformly; frames keep their order all the
            same, so that at a high rate the longer delays prevail.
        reorder_ppm: how many in a million frames do not wait at all.
    """

    delay_us: int = 0
    jitter_us: int = 0
    reorder_ppm: int = 0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            most = 1_000_000 if name == "reorder_ppm" else 10_000_000
            if type(value) is not int or not 0 <= value <= most:
                raise BadValueError(f"{name} is {value!r}, not a whole number from 0 to {most}")
        if self.jitter_us > self.delay_us:
            raise BadValueError(f"jitter_us {self.jitter_us} is more than delay_us {self.delay_us}")

    @property
    def shortest_ns(self) -> int:
        """How soon after its arrival a frame may be due."""
        return 0 if self.reorder_ppm else (self.delay_us - self.jitter_us) * 1000


class Port:
    """One device: a packet socket that sends to it, and a ring with what arrives from it.

    Args:
        device: its name.
        limit: how many frames the ring holds.
    """

    def __init__(self, device: str, limit: int) -> None:
        self.device = device
        self.slots = limit
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        mtu = self._bring_up()
        room = FRAME_AT + ETHERNET_BYTES + mtu
        self.slot_bytes = -(-room // mmap.PAGESIZE) * mmap.PAGESIZE
        for option, value in (
            (PACKET_VERSION, TPACKET_V2),
            (PACKET_VNET_HDR, 1),
            (PACKET_IGNORE_OUTGOING, 1),
            (PACKET_QDISC_BYPASS, 1),
        ):
            self.socket.setsockopt(SOL_PACKET, option, value)
        request = struct.pack("IIII", self.slot_bytes, limit, self.slot_bytes, limit)
        self.socket.setsockopt(SOL_PACKET, PACKET_RX_RING, request)
        self.ring = mmap.mmap(self.socket.fileno(), self.slot_bytes * limit)
        index = socket.if_nametoindex(device)
        member = struct.pack("iHH8s", index, PACKET_MR_PROMISC, 0, b"")
        self.socket.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, member)
        self.socket.bind((device, ETH_P_ALL))
        self.socket.setblocking(False)

    def _bring_up(self) -> int:
        """Put the device up, without an IPv6 address of its own, and return its MTU."""
        name = self.device.encode()
        # A namespace without IPv6 has no such file, and needs none.
        with contextlib.suppress(FileNotFoundError):
            Path(f"/proc/sys/net/ipv6/conf/{self.device}/disable_ipv6").write_text("1", "ascii")
        request = struct.pack("16s24x", name)
        _, mtu = struct.unpack_from("16si", fcntl.ioctl(self.socket, SIOCGIFMTU, request))
        _, flags = struct.unpack_from("16sH", fcntl.ioctl(self.socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(self.socket, SIOCSIFFLAGS, struct.pack("16sH22x", name, flags | IFF_UP))
        return int(mtu)

    def overflowed(self) -> int:
        """How many frames found the ring full since this was asked last."""
        answer = self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        return int(struct.unpack("II", answer)[1])


class Direction:
    """The frames that arrive on one port and leave by another.

    Args:
        source: where they arrive.
        sink: where they leave.
        settings: what happens in between.
        seed: of the random numbers.
    """

    def __init__(self, source: Port, sink: Port, settings: Settings, seed: str) -> None:
        self.source = source
        self.settings = settings
        self.dues: deque[int] = deque()  # when the frames in the slots from tail to head are due
        self.words = memoryview(source.ring).cast("I")
        self.head_word = 0
        self.forwarded = self.overflowed = self.refused = self.reordered = self.worst_ns = 0
        self._bytes = memoryview(source.ring)
        self._step = source.slot_bytes // 4
        self._end_word = self._step * source.slots
        self._slots = source.slots
        self._tail_word = 0
        self._last_due = 0
        self._random = random.Random(seed)
        self._sink = sink.socket

    @property
    def has_arrivals(self) -> bool:
        """Whether the slot that the next frame will have is taken."""
        return self.words[self.head_word] != 0

    def take(self) -> None:
        """Give every frame that has arrived its due time."""
        words, dues = self.words, self.dues
        delay_ns = self.settings.delay_us * 1000
        plain = not (self.settings.jitter_us or self.settings.reorder_ppm)
        # The kernel's times are of the clock that people set. Interrupted between its two
        # readings this errs towards late.
        skew_ns = time.time_ns() - time.monotonic_ns()
        word, last_due = self.head_word, self._last_due
        for _ in range(min(self._slots - len(dues), BATCH)):
            status = words[word]
            if not status & STATUS_USER:
                break
            due = words[word + SECONDS] * 1_000_000_000 + words[word + NANOSECONDS] - skew_ns
            if status & STATUS_VLAN or words[word + STORED] != words[word + LENGTH]:
                self.refused += 1
                words[word] = 0
                dues.append(GONE)
            elif not plain and self._overtakes():
                dues.append(GONE)
                self._send(word)
                self._note_late(due)
            else:
                due += delay_ns if plain else delay_ns + self._jitter_ns()
                if due < last_due:
                    due = last_due
                else:
                    last_due = due
                dues.append(due)
            word += self._step
            if word == self._end_word:
                word = 0
        self.head_word, self._last_due = word, last_due

    def _jitter_ns(self) -> int:
        jitter_us = self.settings.jitter_us
        return int((self._random.random() * 2 - 1) * jitter_us * 1000) if jitter_us else 0

    def _overtakes(self) -> bool:
        """Draw whether a frame does not wait."""
        ppm = self.settings.reorder_ppm
        overtakes = bool(ppm) and self._random.random() * 1_000_000 < ppm
        self.reordered += overtakes
        return overtakes

    def deliver(self, now: int) -> None:
        """Send what is due by now, which the first in the queue must be."""
        dues, word = self.dues, self._tail_word
        first_due = dues[0]
        for _ in range(min(len(dues), BATCH)):
            if dues[0] > now:
                break
            if dues.popleft() != GONE:
                self._send(word)
            word += self._step
            if word == self._end_word:
                word = 0
        self._tail_word = word
        if first_due != GONE:
            self._note_late(first_due)

    def _send(self, word: int) -> None:
        """Send the frame in a slot, and give the slot back to the kernel."""
        start = word * 4 + FRAME_AT
        try:
            self._sink.send(self._bytes[start - VNET_BYTES : start + self.words[word + STORED]])
        except OSError:
            self.refused += 1
        else:
            self.forwarded += 1
        self.words[word] = 0

    def _note_late(self, due: int) -> None:
        late = time.monotonic_ns() - due
        self.worst_ns = max(self.worst_ns, late)

    def counters(self) -> dict[str, int]:
        """What has become of the frames so far."""
        self.overflowed += self.source.overflowed()
        return {
            "forwarded": self.forwarded,
            "dropped": self.overflowed,
            "refused": self.refused,
            "reordered": self.reordered,
            "queued": len(self.dues) - self.dues.count(GONE),
            "worst_late_us": self.worst_ns // 1000,
        }
