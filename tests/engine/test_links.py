"""A port that goes down: noticed from the kernel, left at once, told to the peer, taken back."""

import asyncio

import pytest

import mrc
from tests.udp.isolation import in_new_network, ip

pytestmark = pytest.mark.root

PLANES = ["10.77.0.1", "10.77.1.1"]


async def scenario() -> list[dict[int, set[str]]]:
    """Take the second plane down and up; return the EV states per plane after each."""
    seen: list[dict[int, set[str]]] = []

    def note(qp: mrc.QueuePair) -> None:
        states: dict[int, set[str]] = {0: set(), 1: set()}
        for path in qp.statistics().paths:
            states[path.plane].add(path.state)
        seen.append(states)

    async with (
        mrc.listen(f"{PLANES[0]}:0", planes=PLANES) as listener,
        mrc.connect(listener.url, planes=PLANES) as qp,
        await listener.accept() as peer,
        asyncio.timeout(20),
    ):
        remote = peer.register(bytearray(500_000)).remote
        await qp.write(bytes(500_000), remote)
        ip("link set plane1 down")
        while "assumed_bad" not in str(qp.statistics().paths):
            await qp.write(bytes(500_000), remote)
        await qp.write(bytes(500_000), remote)
        note(qp)
        ip("link set plane1 up")
        while "assumed_bad" in str(qp.statistics().paths):
            await qp.write(bytes(500_000), remote)
        note(qp)
    return seen


def test_a_port_that_goes_down_takes_its_plane_out_and_back() -> None:
    """All EVs of that plane, and no others, are withdrawn while writes go on; then they return."""

    def run() -> list[dict[int, set[str]]]:
        for number, address in enumerate(PLANES):
            ip(f"link add plane{number} type veth peer name other{number}")
            ip(f"link set other{number} up")
            ip(f"addr add {address}/24 dev plane{number}")
            ip(f"link set plane{number} up")
        return asyncio.run(scenario())

    down, up = in_new_network(run)
    assert down == {0: {"good"}, 1: {"assumed_bad"}}
    assert up == {0: {"good"}, 1: {"good"}}
