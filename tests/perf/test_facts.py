"""What an endpoint tells of its sockets and of what was agreed."""

from __future__ import annotations

import pytest

import mrc
from mrc.udp import RECEIVE_BUFFER_BYTES, SEND_BUFFER_BYTES

pytestmark = pytest.mark.asyncio


async def test_facts_of_sockets_are_of_every_port_and_its_senders() -> None:
    """Buffers as granted, features as probed, and counters that move with the traffic."""
    async with (
        mrc.listen("127.0.0.1:0") as listener,
        mrc.Endpoint(mrc.Config(paths=4, backup_paths=0)) as endpoint,
        endpoint.connect(listener.url) as qp,
    ):
        peer = await listener.accept()
        before = endpoint.port_facts()
        await qp.send(bytes(100_000))
        await peer.receive()
        (after,) = endpoint.port_facts()
    assert (after.address, after.interface, after.senders) == ("127.0.0.1", "lo", 4)
    assert after.receive_buffer_asked_bytes == RECEIVE_BUFFER_BYTES
    assert 0 < after.receive_buffer_granted_bytes <= RECEIVE_BUFFER_BYTES
    assert after.send_buffer_asked_bytes == SEND_BUFFER_BYTES
    assert 0 < after.send_buffer_granted_bytes <= SEND_BUFFER_BYTES
    assert after.sent_datagrams >= before[0].sent_datagrams + 100_000 // 4096
    assert after.send_calls <= after.sent_datagrams
    assert after.received_datagrams > before[0].received_datagrams


async def test_an_endpoint_without_ports_has_no_facts() -> None:
    """Nothing is opened in order to be looked at."""
    async with mrc.Endpoint() as endpoint:
        assert endpoint.port_facts() == ()


@pytest.mark.parametrize("locked", [False, True])
async def test_facts_of_a_queue_pair_are_what_both_sides_came_to(*, locked: bool) -> None:
    """The smaller MTU, the peer's tracking window, and the cipher if there is one."""
    lock = mrc.Lock.new() if locked else None
    config = mrc.Config(mtu=1024, mpr_psns=2048)
    async with (
        mrc.listen("127.0.0.1:0", config=config, lock=lock) as listener,
        mrc.connect(listener.url) as qp,
    ):
        peer = await listener.accept()
        ours, theirs = qp.facts(), peer.facts()
    assert ours.mtu_bytes == theirs.mtu_bytes == 1024
    assert ours.mpr_bytes == 2048 * 1024
    assert (ours.cipher is not None) == locked
    assert ours.cipher == theirs.cipher
    assert ours.window_bytes_max <= ours.receive_buffer_window_bytes
