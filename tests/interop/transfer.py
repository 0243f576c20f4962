"""A transfer between two endpoints over IPv6 loopback, of which every datagram is kept."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import mrc
from tests.interop.recording import RecordingSockets, Sent

ADDRESS = "::1"
WRITE_ONLY = 0xCA
MTU = 1024
MESSAGE_BYTES = 100_001
"""98 packets; the last of them has a payload of 673 bytes and so 3 bytes of pad."""


@dataclass
class Transfer:
    """What was sent, to which memory, and what there was to see of it.

    Attributes:
        sent: every datagram that got through, in the order it was sent.
        writes: offset and bytes of every write, in order, and its immediate data.
        r_key, va: of the memory written to.
        receiver_port, sender_port: UDP ports of the side that is written to, and of the other.
        memory: what was placed there.
    """

    sent: list[Sent] = field(default_factory=list)
    writes: list[tuple[int, bytes, int | None]] = field(default_factory=list)
    r_key: int = 0
    va: int = 0
    receiver_port: int = 0
    sender_port: int = 0
    memory: bytes = b""

    def plan(self) -> None:
        """Choose what to write: every position in a message, with and without immediate data."""
        rng = random.Random(2)
        offset = 0
        for size, imm in ((MESSAGE_BYTES, None), (10, None), (MESSAGE_BYTES, 7), (33, 0xC0FFEE01)):
            self.writes.append((offset, rng.randbytes(size), imm))
            offset += size

    def to_receiver(self) -> list[Sent]:
        """The datagrams that went to the side that is written to."""
        return [sent for sent in self.sent if sent.destination[1] == self.receiver_port]

    def to_sender(self) -> list[Sent]:
        """The datagrams that went back."""
        return [sent for sent in self.sent if sent.destination[1] == self.sender_port]


def run_transfer(
    address: str = ADDRESS, *, trims: int = 0, losses: int = 0, gso: bool = True
) -> Transfer:
    """Run a transfer and return all there is to know of it."""
    return asyncio.run(_run(address, trims, losses, gso))


async def _run(address: str, trims: int, losses: int, gso: bool) -> Transfer:
    transfer = Transfer()
    transfer.plan()
    sending = RecordingSockets(gso, trims, losses, transfer.sent)
    receiving = RecordingSockets(gso, sent=transfer.sent)
    config = mrc.Config(paths=4, mtu=MTU, trimming=trims > 0)
    url = f"[{address}]:0" if ":" in address else f"{address}:0"
    async with (
        mrc.listen(url, config=config, sockets=receiving, udp_port=0) as listener,
        mrc.connect(listener.url, config=config, sockets=sending, udp_port=0) as qp,
    ):
        peer = await listener.accept()
        memory = bytearray(sum(len(data) for _, data, _ in transfer.writes))
        with peer.register(memory) as region:
            transfer.r_key, transfer.va = region.r_key, region.va
            for offset, data, imm in transfer.writes:
                if imm is None:
                    await qp.write(data, region.remote, offset)
                else:
                    await qp.write_imm(data, region.remote, offset, imm=imm)
                    assert (await peer.next_immediate()).imm == imm
        await asyncio.gather(qp.close(), peer.close())
    transfer.memory = bytes(memory)
    ports = {sent.destination[1] for sent in transfer.sent}
    (transfer.receiver_port,) = {s.destination[1] for s in transfer.sent if s.data[0] == WRITE_ONLY}
    (transfer.sender_port,) = ports - {transfer.receiver_port}
    return transfer
