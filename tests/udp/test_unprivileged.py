"""An ordinary user gets the same sockets; only the kernel's buffer limits are tighter."""

from pathlib import Path

from mrc.udp import Caps, ReceiveSocket, SendOutcome
from tests.udp.isolation import unprivileged
from tests.udp.pair import ECT0, numbered, open_pair, readable


def test_runs_need_no_privileges(address: str, caps: Caps) -> None:
    """Sending, receiving, ECN and the dropping of strays work without any capability."""

    def run() -> None:
        pair = open_pair(address)
        try:
            assert pair.send(numbered(15, 1000), 1000, flow_label=0xABCDE) is SendOutcome.SENT
            _, train = pair.described(15)[0]
            assert train.tos == (ECT0 if caps.ecn else 0)
            assert not caps.flow_label or train.flow_label == 0xABCDE
            back = open_pair(address)
            back.sender.send(memoryview(b"stray"), 5, train.source, ECT0)
            back.close()
            assert not readable(pair.sender, timeout_ms=0)
        finally:
            pair.close()

    unprivileged(run)


def test_a_receive_buffer_clamped_by_the_kernel_is_noticed(address: str, caps: Caps) -> None:
    """The kernel reports double what it grants, and still a clamp to half is seen."""
    limit_bytes = int(Path("/proc/sys/net/core/rmem_max").read_text(encoding="ascii"))

    def run(asked_bytes: int) -> int:
        receiver = ReceiveSocket(address, 0, caps=caps, receive_buffer_bytes=asked_bytes)
        receiver.close()
        assert receiver.receive_buffer_asked_bytes == asked_bytes
        assert receiver.statistics().receive_buffer_asked_bytes == asked_bytes
        return receiver.receive_buffer_granted_bytes

    assert unprivileged(lambda: run(limit_bytes)) == limit_bytes
    assert unprivileged(lambda: run(2 * limit_bytes)) == limit_bytes
