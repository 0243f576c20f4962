"""Trains of several sources that came in together, and count as one run where they are one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from mrc.proto.config import Config
from mrc.proto.responder import Arrival, DataHeader
from mrc.proto.runs import ReceivedRun, RunToSend
from mrc.proto.statistics import DropReason
from mrc.wire.control import Nack, Sack
from mrc.wire.fields import Opcode
from mrc.wire.runs import TRAINS_MAX, RunBuffer
from mrc.wire.writes import Write
from tests.support.pair import US, Pair

PACKETS = 5
MTU = 1024
TRAIN_BYTES = PACKETS * MTU


class Trains:
    """A sender's runs, kept until the test hands them to the receiver."""

    def __init__(self, *, sealed: bool = False, icrc: bool = True) -> None:
        config = Config(
            mtu=MTU,
            spray_run=PACKETS,
            paths=8,
            backup_paths=0,
            congestion_control=False,
            icrc=icrc,
        )
        self.pair = Pair(config, sealed=sealed)
        # Rings that have grown hold all trains without a seam.
        self.pair.transfer(bytes(300 * MTU))
        self.run = ReceivedRun(RunBuffer(TRAINS_MAX), 0, 0, 0, ("", 0), 0)

    def sent(self, count: int) -> tuple[list[RunToSend], bytes, bytearray]:
        """Send that many trains; return them, what they carry, and where it goes."""
        data = bytes(i % 251 for i in range((count + 1) * TRAIN_BYTES))
        _, memory = self.pair.post(data)
        runs = []
        for _ in range(count):
            run = self.pair.a.endpoint.transmit(self.pair.now_ns)
            assert run is not None
            assert run.packets == PACKETS
            runs.append(run._replace(memory=memoryview(bytearray(run.memory))))
            self.pair.now_ns += 50 * US
        return runs, data, memory

    def join(self, runs: Sequence[RunToSend]) -> int:
        """Lay trains behind each other until one is not like the first; return how many are."""
        host = self.pair.a.hosts[0]
        for number, run in enumerate(runs):
            start = self.run.byte_count if number else 0
            size = len(run.memory)
            self.run.buffer.memory[start : start + size] = run.memory
            take = self.run.join if number else self.run.begin
            source = (host, run.source_port)
            if not take(size, run.segment_bytes, run.tos, source, run.flow_label):
                return max(number, 1)
        return len(runs)

    def receive(self) -> list[bytes]:
        """Let the receiver have them; return what it answers."""
        self.pair.b.endpoint.receive(self.run, self.pair.now_ns)
        answers = []
        while (run := self.pair.b.endpoint.transmit(self.pair.now_ns)) is not None:
            answers.append(bytes(run.memory))
        return answers


def sacks(answers: list[bytes]) -> list[Sack]:
    """Return the SACKs among answers."""
    return [Sack.decode_untrusted(each[:-4]) for each in answers if each[0] == Opcode.SACK]


def test_trains_that_continue_each_other_are_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were sent at different times and on different EVs, and are placed in one go."""
    trains = Trains()
    runs, data, memory = trains.sent(TRAINS_MAX)
    assert len({run.source_port for run in runs}) > TRAINS_MAX // 2
    assert trains.join(runs) == TRAINS_MAX
    responder, rows = trains.pair.b.responder, list[int]()
    take = responder.receive_run

    def counted(header: DataHeader, payloads: NDArray[np.uint8], arrival: Arrival) -> None:
        rows.append(len(payloads))
        take(header, payloads, arrival)

    monkeypatch.setattr(responder, "receive_run", counted)
    trains.receive()
    assert rows == [TRAINS_MAX * PACKETS]
    assert memory[: TRAINS_MAX * TRAIN_BYTES] == data[: TRAINS_MAX * TRAIN_BYTES]


def test_the_answer_to_trains_is_to_the_last_packet() -> None:
    """It names that one's EV, and echoes its time: the first was sent a while before."""
    trains = Trains(icrc=False)
    runs, _, _ = trains.sent(3)
    # The sender asks for an answer to a packet in the middle.
    runs[1].memory[8] |= 0x80
    last = Write.decode_untrusted(runs[-1].memory[: runs[-1].segment_bytes])
    trains.join(runs)
    (sack,) = sacks(trains.receive())
    assert sack.entropy & 0xFFFF == runs[-1].source_port
    assert sack.tx_timestamp == last.tx_timestamp
    assert (sack.cack_psn + sack.ack_psn_offset) & 0xFFFFFF == (last.psn + PACKETS - 1) & 0xFFFFFF


def test_trains_out_of_order_are_taken_one_by_one() -> None:
    """Each is placed where it belongs, and what opens a gap is answered on its own EV."""
    trains = Trains()
    runs, data, memory = trains.sent(3)
    shuffled = [runs[0], runs[2], runs[1]]
    assert trains.join(shuffled) == 3
    answers = sacks(trains.receive())
    assert memory[: 3 * TRAIN_BYTES] == data[: 3 * TRAIN_BYTES]
    assert answers[0].entropy & 0xFFFF == runs[2].source_port
    assert trains.pair.b.responder.window.cack == runs[0].psn + 3 * PACKETS - 1


@pytest.mark.parametrize("train", range(3))
def test_a_damaged_packet_is_dropped_from_its_train_alone(train: int) -> None:
    """All other packets of all trains are taken."""
    trains = Trains()
    runs, _, _ = trains.sent(3)
    runs[train].memory[2 * runs[train].segment_bytes - 5] ^= 1
    trains.join(runs)
    responder = trains.pair.b.responder
    before = responder.statistics().packets_received
    trains.receive()
    assert trains.pair.b.dropped() == {DropReason.ICRC: 1}
    assert responder.statistics().packets_received == before + 3 * PACKETS - 1
    damaged = runs[train].psn + 1
    assert not responder.window.has(damaged)


def test_sealed_trains_are_opened_each_by_itself() -> None:
    """Counters may jump between two trains; that costs no packet."""
    trains = Trains(sealed=True)
    runs, data, memory = trains.sent(3)
    assert trains.join([runs[0], runs[2], runs[1]]) == 3
    trains.receive()
    assert memory[: 3 * TRAIN_BYTES] == data[: 3 * TRAIN_BYTES]
    assert trains.pair.b.dropped() == {}


def test_trimmed_trains_are_asked_for_on_their_own_evs() -> None:
    """What is left of packets that switches cut arrives in trains as well."""
    trains = Trains()
    runs, _, _ = trains.sent(2)
    cut = [
        run._replace(
            memory=memoryview(
                bytearray(
                    b"".join(
                        bytes(run.memory[i * run.segment_bytes :][:60]) for i in range(PACKETS)
                    )
                )
            ),
            segment_bytes=60,
            tos=trains.pair.config.dscp.trimmed << 2,
        )
        for run in runs
    ]
    assert trains.join(cut) == 2
    answers = trains.receive()
    nacks = [Nack.decode_untrusted(each[:-4]) for each in answers if each[0] == Opcode.NACK]
    assert [nack.entropy & 0xFFFF for nack in nacks] == [
        run.source_port for run in runs for _ in range(PACKETS)
    ]


@pytest.mark.parametrize("what", ["tos", "flow_label", "length", "segment"])
def test_what_differs_is_no_part_of_the_run(what: str) -> None:
    """All trains of a run are as long, of one host, and were treated alike on their way."""
    trains = Trains()
    runs, _, _ = trains.sent(2)
    other = {
        "tos": runs[1]._replace(tos=runs[1].tos | 3),
        "flow_label": runs[1]._replace(flow_label=1),
        "length": runs[1]._replace(memory=runs[1].memory[:-4]),
        "segment": runs[1]._replace(segment_bytes=runs[1].segment_bytes - 4),
    }[what]
    assert trains.join([runs[0], other]) == 1
    assert (trains.run.trains, trains.run.byte_count) == (1, len(runs[0].memory))


def test_a_train_from_another_host_is_no_part_of_the_run() -> None:
    """Whose a queue pair is has been asked for the first one only."""
    run = ReceivedRun(RunBuffer(TRAINS_MAX), 0, 0, 0, ("", 0), 0)
    assert run.begin(2000, 1000, 0, ("10.0.0.1", 5), 0)
    assert not run.join(2000, 1000, 0, ("10.0.0.2", 5), 0)
    assert run.sources == []


@pytest.mark.parametrize(("byte_count", "segment_bytes"), [(1000, 1000), (2500, 1000)])
def test_behind_one_datagram_or_a_short_one_nothing_joins(
    byte_count: int, segment_bytes: int
) -> None:
    """What follows would not begin where a segment does, or be worth it."""
    run = ReceivedRun(RunBuffer(TRAINS_MAX), 0, 0, 0, ("", 0), 0)
    assert not run.begin(byte_count, segment_bytes, 0, ("10.0.0.1", 5), 0)
