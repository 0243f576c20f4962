"""The order in which the pump hands things to the protocol and asks for answers; what it costs."""

import socket
from time import monotonic_ns
from types import SimpleNamespace

import pytest

import mrc
from mrc.proto.runs import ReceivedRun, RunToSend
from mrc.udp import Datagrams, probe_caps
from mrc.wire.fields import Opcode
from tests.engine.conftest import Connect, turns, until


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


@pytest.mark.asyncio
async def test_an_answer_leaves_before_acknowledgements(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for an immediate runs as soon as it has come, and what he posts goes out first."""
    async with connect() as (qp, peer):
        to_peer, to_us = peer.register(bytearray(8)), qp.register(bytearray(8))
        protocol = peer._endpoint.engine.endpoint  # noqa: SLF001 - below the interface
        transmit, opcodes = protocol.transmit, list[int]()

        def noted(now_ns: int, *, all_heard: bool) -> RunToSend | None:
            run = transmit(now_ns, all_heard=all_heard)
            if run is not None:
                opcodes.append(run.memory[0])
            return run

        monkeypatch.setattr(protocol, "transmit", noted)
        await qp.channel.send({"ready": True})
        await peer.channel.receive()
        await turns(20)
        opcodes.clear()
        qp.post(b"question", to_peer.remote, imm=1)
        await peer.next_immediate()
        peer.post(b"answer", to_us.remote, imm=2)
        await qp.next_immediate()
        await until(lambda: len(opcodes) >= 3)
        assert opcodes[:3] == [Opcode.WRITE_ONLY_IMMEDIATE, Opcode.SACK, Opcode.ACKNOWLEDGE]


@pytest.mark.asyncio
async def test_a_timer_fires_no_sooner_than_the_loop_can_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Uvloop would round half a millisecond to none, and the timer would fire for nothing."""
    async with mrc.Endpoint() as endpoint:
        engine, delays = endpoint.engine, list[float]()

        def call_later(delay_s: float, *_: object) -> SimpleNamespace:
            delays.append(delay_s)
            return SimpleNamespace(cancel=lambda: None)

        now_ns = monotonic_ns()
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_loop", SimpleNamespace(call_later=call_later))
            patch.setattr("mrc.engine.monotonic_ns", lambda: now_ns)
            for ahead_ns in (-5_000_000, 100_000, 1_400_000):
                due_ns = now_ns + ahead_ns
                patch.setattr(engine.endpoint, "next_deadline_ns", lambda due_ns=due_ns: due_ns)
                patch.setattr(engine, "_timer", None)
                engine._arm_timer()  # noqa: SLF001 - the subject
        assert delays == [0, 0.001, 0.0014]


@pytest.mark.asyncio
async def test_a_run_is_one_system_call_at_either_end(connect: Connect) -> None:
    """The kernel cuts what is sent and joins what is received, where it can."""
    async with connect(config=mrc.Config(spray_run=15)) as (qp, peer):
        size = 8 << 20
        await qp.write(bytes(size), peer.register(bytearray(size)).remote)
        ours, theirs = (each._endpoint.engine for each in (qp, peer))  # noqa: SLF001
        caps = probe_caps(socket.AF_INET)
        if not (caps.gso and caps.gro):
            pytest.skip("this kernel neither cuts nor joins")
        sent = [sender.statistics() for sender in ours._senders.values()]  # noqa: SLF001
        received = [receiver.statistics() for receiver in theirs._receivers]  # noqa: SLF001
        assert sum(each.datagrams for each in sent) >= 8 * sum(each.calls for each in sent)
        assert sum(each.datagrams for each in received) >= 8 * sum(each.calls for each in received)


@pytest.mark.asyncio
async def test_a_train_behind_others_that_is_not_like_them_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trains are joined as long as they are alike; the next one begins at the buffer's front."""
    async with mrc.Endpoint() as endpoint:
        engine, taken = endpoint.engine, list[tuple[bytes, int]]()
        engine.port_for("127.0.0.1", 1)
        await turns(3)
        waiting = [(b"aabb", 2), (b"ccdd", 2), (b"eef", 2), (b"g", 1), (b"hhii", 2)]

        def receive_into(buffer: memoryview) -> Datagrams | None:
            if not waiting:
                return None
            data, segment_bytes = waiting.pop(0)
            buffer[: len(data)] = data
            return Datagrams(len(data), segment_bytes, 0, ("127.0.0.1", 9), 0)

        def receive(run: ReceivedRun, _now_ns: int) -> None:
            taken.append((bytes(run.buffer.memory[: run.byte_count]), run.trains))

        monkeypatch.setattr(engine.endpoint, "receive", receive)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_receivers", [SimpleNamespace(receive_into=receive_into)])
            engine._receive(0, hurry=False)  # noqa: SLF001 - the subject
        assert taken == [(b"aabbccdd", 2), (b"eef", 1), (b"g", 1), (b"hhii", 1)]


@pytest.mark.asyncio
async def test_immediates_without_end_do_not_put_off_the_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading is broken off for an immediate only when nobody waits until all is heard."""
    async with mrc.Endpoint() as endpoint:
        engine, hurries = endpoint.engine, list[bool]()
        monkeypatch.setattr(engine, "_receive", lambda _, *, hurry: hurries.append(hurry))
        engine._on_readable(0)  # noqa: SLF001 - what the loop calls
        engine.endpoint._undecided[1] = None  # type: ignore[assignment]  # noqa: SLF001
        engine._on_readable(0)  # noqa: SLF001
        engine.endpoint._undecided.clear()  # noqa: SLF001
        engine._on_readable(0)  # noqa: SLF001
        assert hurries == [True, False, True]
