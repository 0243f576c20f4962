"""What the kernel of this machine says in mid-transfer, seen from a whole connection.

What each errno becomes at the socket is in tests/udp/test_errors.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

import mrc
from mrc.errors import RetriesExceeded
from mrc.proto.config import Config
from mrc.proto.events import QpFailed, QpFailure
from mrc.proto.runs import PathFault
from mrc.udp import Caps, KernelSockets, SendOutcome, SendSocket
from mrc.udp.linux import UDP_SEGMENT
from tests.engine.conftest import (
    Connect,
    nothing_left,  # noqa: F401 - looks after each test
    turns,
    until,
)
from tests.hostile.hosts import Host
from tests.support.pair import MS, Pair, S
from tests.udp.isolation import in_new_network, ip

SIZE = 6_000_000
USABLE = {"good", "skip"}


class Kernel(KernelSockets):
    """The kernel's sockets, whose sends fail when `verdict` says so.

    Attributes:
        senders: those that were opened, in order.
        verdict: called with the number of the socket and whether the send is to be segmented;
            returns an errno, 0 to let it pass.
        refused: sends that failed.
    """

    def __init__(self) -> None:
        self.senders: list[SendSocket] = []
        self.verdict: Callable[[int, bool], int] = lambda number, segmented: 0
        self.refused = 0

    def sender(self, address: str, port: int, caps: Caps) -> SendSocket:
        """Open a sending socket that this kernel may refuse to serve."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mrc.udp.send_socket.open_udp", self._open)
            self.senders.append(SendSocket(address, port, caps=caps))
        return self.senders[-1]

    def _open(self, family: int) -> socket.socket:
        return RefusingSocket(family, self, len(self.senders))

    def judge(self, number: int, *, segmented: bool) -> None:
        """Raise what the verdict says."""
        if code := self.verdict(number, segmented):
            self.refused += 1
            raise OSError(code, os.strerror(code))

    def outcomes(self, outcome: SendOutcome) -> int:
        """Return how many sends of all sockets ended that way."""
        return sum(sender.statistics().outcomes[outcome] for sender in self.senders)


class RefusingSocket(socket.socket):
    """A kernel socket that asks first."""

    def __init__(self, family: int, kernel: Kernel, number: int) -> None:
        super().__init__(family, socket.SOCK_DGRAM)
        self.setblocking(False)
        self._kernel = kernel
        self._number = number

    def sendmsg(self, buffers: Any, ancillary: Any = (), *rest: Any) -> int:
        """Fail as the kernel says, else send."""
        segmented = any(kind == UDP_SEGMENT for _, kind, _ in ancillary)
        self._kernel.judge(self._number, segmented=segmented)
        return super().sendmsg(buffers, ancillary, *rest)


@pytest.fixture
def kernel() -> Kernel:
    """A kernel under the connecting side that refuses nothing yet."""
    return Kernel()


class Transfer:
    """Writes of 6 MB to the same memory."""

    def __init__(self, qp: mrc.QueuePair, peer: mrc.QueuePair) -> None:
        self.qp = qp
        self.peer = peer
        self.data = os.urandom(SIZE)
        self.memory = bytearray(SIZE)
        self._remote = peer.register(self.memory).remote

    async def write(self) -> None:
        """Write everything once; all of it arrives."""
        self.memory[:] = bytes(SIZE)
        await self.qp.write(self.data, self._remote)
        assert self.memory == self.data


@pytest.mark.asyncio
async def test_eio_on_the_first_segmented_send_costs_no_packet(
    connect: Connect, kernel: Kernel
) -> None:
    """The batch is sent again in single datagrams, once, and each of them arrives."""
    kernel.verdict = lambda number, segmented: errno.EIO if segmented else 0
    async with connect(sockets=kernel) as (qp, peer):
        await Transfer(qp, peer).write()
        # Nothing of the batch was lost, nor came twice: what was sent, that often arrives.
        await until(lambda: arrived(peer) == qp.statistics().requestor.packets_sent)
    # Each socket was refused once, and tried no more.
    refused = [sender for sender in kernel.senders if sender.statistics().gso_off]
    assert kernel.refused == len(refused) > 0


def arrived(peer: mrc.QueuePair) -> int:
    """Return how many packets have come in, those that were there already included."""
    found = peer.statistics().responder
    return found.packets_received + found.packets_duplicate


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.EINVAL, "no route or interface"),
        (errno.EMSGSIZE, "larger than the path MTU"),
        (errno.EPERM, "blocked by a local rule"),
    ],
)
async def test_ev_that_the_kernel_refuses_leaves_with_the_reason(
    connect: Connect, kernel: Kernel, code: int, reason: str
) -> None:
    """In mid-transfer, at once; it comes back when the kernel takes its packets again."""
    sick: list[int] = []

    def refuse_the_first_used(number: int, segmented: bool) -> int:
        if segmented and not sick:
            sick.append(number)
        return code if number in sick else 0

    async with connect(sockets=kernel) as (qp, peer):
        transfer = Transfer(qp, peer)
        await transfer.write()
        changes = asyncio.ensure_future(until_good_again(qp))
        await turns(1)
        kernel.verdict = refuse_the_first_used
        await transfer.write()
        await transfer.write()
        (number,) = sick
        kernel.verdict = lambda number, segmented: 0
        async with asyncio.timeout(20):
            found = (await changes)[kernel.senders[number].port]
        statistics = qp.statistics().requestor
    assert [(each.after, each.reason) for each in found] == [
        (mrc.EvState.ASSUMED_BAD, reason),
        (mrc.EvState.GOOD, "probe answered"),
    ]
    assert statistics.packets_retransmitted > 0


async def until_good_again(qp: mrc.QueuePair) -> dict[int, list[mrc.EvChanged]]:
    """Collect the changes of EVs by source port until one has left and come back."""
    changes: dict[int, list[mrc.EvChanged]] = {}
    async for event in qp.events():
        if isinstance(event, mrc.EvChanged):
            changes.setdefault(event.source_port, []).append(event)
            if event.after is mrc.EvState.GOOD:
                break
    return changes


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.EINVAL, "no route or interface"), (errno.EMSGSIZE, "larger than the path MTU")],
)
async def test_kernel_that_refuses_everything_is_named_in_the_error(
    connect: Connect, kernel: Kernel, code: int, reason: str
) -> None:
    """The peer is not blamed: the error says that it was this kernel, why, and what was tried."""
    config = mrc.Config(paths=2, timeout=10, retry_linear=2, retry_exponential=2)
    async with connect(sockets=kernel, config=config) as (qp, peer):
        transfer = Transfer(qp, peer)
        await transfer.write()
        kernel.verdict = lambda number, segmented: code
        with pytest.raises(RetriesExceeded, match=f"kernel here refused packets: {reason}") as told:
            await transfer.write()
        assert str(told.value).startswith(qp.peer)
        assert len(told.value.paths) == 3
        assert kernel.refused > 0


@pytest.mark.asyncio
async def test_enobufs_costs_retransmissions_only(connect: Connect, kernel: Kernel) -> None:
    """A queue of this machine that drops a run now and then is loss, and no fault of an EV."""
    sends = iter(range(1 << 60))
    async with connect(sockets=kernel) as (qp, peer):
        transfer = Transfer(qp, peer)
        kernel.verdict = lambda number, segmented: 0 if next(sends) % 20 else errno.ENOBUFS
        for _ in range(3):
            await transfer.write()
        kernel.verdict = lambda number, segmented: 0
        await until(lambda: {path.state for path in qp.statistics().paths} <= USABLE)
        assert qp.failure is None
        assert qp.statistics().requestor.packets_retransmitted > 0
    assert kernel.outcomes(SendOutcome.NO_BUFFERS) == kernel.refused > 10


def test_kernel_that_refuses_everything_is_given_up_in_time() -> None:
    """What is refused again and again never left: the retry budget counts all the same."""
    config = Config(mtu=1024, link_bps=800_000_000, timeout=14, retry_linear=2, retry_exponential=2)
    pair = Pair(config, link_bps=800e6)
    host = Host(pair.a)
    pair.post(bytes(1 << 20))
    pair.run_for(2 * MS)
    host.refuses = PathFault.TOO_BIG
    pair.run(pair.failed, 1 * S)
    (failed,) = (event for event in pair.a.events if isinstance(event, QpFailed))
    assert (failed.failure, failed.retry_count) == (QpFailure.RETRY_EXCEEDED, 5)
    assert failed.fault == "larger than the path MTU"
    assert failed.silent_ns == pytest.approx((1 + 2 + 2**3 - 2) * config.timeout_ns, rel=0.1)


async def transfer_over_a_shrinking_loopback(*, grows_again: bool) -> Transfer:
    """Lower the MTU of the loopback in mid-transfer, and raise it again or not."""
    config = mrc.Config(timeout=12, retry_linear=4, retry_exponential=4)
    async with (
        mrc.listen("127.0.0.1:0", config=config) as listener,
        mrc.connect(listener.url, config=config) as qp,
        await listener.accept() as peer,
        asyncio.timeout(30),
    ):
        transfer = Transfer(qp, peer)
        await transfer.write()
        writing = asyncio.ensure_future(transfer.write())
        await asyncio.sleep(0)
        ip("link set lo mtu 1500")
        await until(lambda: qp.statistics().requestor.timeouts > 1)
        assert not writing.done()
        if grows_again:
            ip("link set lo mtu 65536")
        await writing
    return transfer


@pytest.mark.root
def test_mtu_that_shrinks_for_a_while_stops_the_transfer_for_as_long() -> None:
    """Packets too big for the device wait, whatever was refused is sent again when it fits."""

    def run() -> bool:
        transfer = asyncio.run(transfer_over_a_shrinking_loopback(grows_again=True))
        return transfer.memory == transfer.data

    assert in_new_network(run)


@pytest.mark.root
def test_mtu_that_shrinks_for_good_ends_the_transfer_with_the_reason() -> None:
    """MRC cannot cut a packet smaller in mid-message: the error says what was too big."""

    def run() -> str:
        with pytest.raises(RetriesExceeded) as told:
            asyncio.run(transfer_over_a_shrinking_loopback(grows_again=False))
        return str(told.value)

    assert "kernel here refused packets: larger than the path MTU" in in_new_network(run)
