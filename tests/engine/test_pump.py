"""The order in which the pump hands things to the protocol and asks for answers."""

import socket

import pytest

import mrc
from mrc.proto.runs import ReceivedRun, RunToSend
from tests.engine.conftest import turns


@pytest.mark.asyncio
async def test_answers_wait_until_every_readable_port_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a pause packets wait at all ports; an answer in between calls the next one's lost."""
    async with mrc.Endpoint() as endpoint:
        protocol, done = endpoint.engine.endpoint, list[str]()
        for host in ("127.0.0.1", "127.0.0.2"):
            endpoint.engine.port_for(host, 1)
        await turns(3)
        receive, transmit = protocol.receive, protocol.transmit

        def noted_receive(run: ReceivedRun, now_ns: int) -> None:
            done.append("read")
            receive(run, now_ns)

        def noted_transmit(now_ns: int, *, all_heard: bool) -> RunToSend | None:
            done.append("answer")
            return transmit(now_ns, all_heard=all_heard)

        monkeypatch.setattr(protocol, "receive", noted_receive)
        monkeypatch.setattr(protocol, "transmit", noted_transmit)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for port in protocol.ports:
                sender.sendto(b"x", (port.host, port.udp_port))
        await turns(6)
        assert done[:3] == ["read", "read", "answer"]
