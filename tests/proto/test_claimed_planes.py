"""Addresses that a peer only claims: nothing but probes goes there until one is answered."""

from __future__ import annotations

from mrc.proto.config import Config
from mrc.proto.events import PlaneProved
from mrc.wire.control import EndpointRequest
from mrc.wire.fields import Opcode
from tests.support.filters import Tap, black_hole
from tests.support.pair import MS, Pair, S


def test_nothing_but_probes_goes_to_an_address_that_is_only_claimed() -> None:
    """Until a probe is answered a plane carries no data; the other planes carry it all."""
    tap = Tap(lambda datagram: datagram.sender == 0)
    pair = Pair(Config(mtu=1024, paths=4), planes=2, filters=[tap])
    pair.filters.append(black_hole(lambda datagram: datagram.plane == 1))
    pair.a.paths.demand_proof(pair.now_ns)
    pair.a.endpoint.after_feedback(pair.a.qp, pair.now_ns)
    pair.run(lambda: pair.a.paths.unproved == {1})
    pair.transfer(bytes(100_000))
    claimed = {datagram.opcode for datagram in tap.datagrams if datagram.plane == 1}
    assert claimed == {Opcode.ENDPOINT_REQUEST}
    proved = [event.plane for event in pair.a.events if isinstance(event, PlaneProved)]
    assert proved == [0]


def test_without_any_proof_nothing_is_sent() -> None:
    """Where no plane answers, a posted write waits; probes grow seldom."""
    tap = Tap(lambda datagram: datagram.sender == 0)
    pair = Pair(Config(mtu=1024, paths=4), filters=[tap, black_hole(lambda _: True)])
    pair.a.paths.demand_proof(pair.now_ns)
    pair.post(bytes(10_000))
    pair.a.endpoint.after_feedback(pair.a.qp, pair.now_ns)
    pair.run_for(1 * S)
    assert {datagram.opcode for datagram in tap.datagrams} == {Opcode.ENDPOINT_REQUEST}
    assert len(tap.datagrams) < 20
    pair.filters.pop()
    pair.run(lambda: pair.done(1))


def test_a_timer_rests_while_every_path_is_busy() -> None:
    """A probe that no path can take now is asked for later, not again and again at once."""
    pair = Pair(Config(mtu=1024, paths=4), filters=[black_hole(lambda _: True)])
    pair.post(bytes(1000))
    pair.flush()
    for path in pair.a.paths.paths:
        path.busy = True
    steps = 0
    until_ns = pair.now_ns + 200 * MS
    while pair.now_ns < until_ns:
        assert pair.step()
        steps += 1
        assert steps < 100


def test_answers_go_to_planes_that_are_proved() -> None:
    """As soon as one plane is proved, SACKs and port status leave the claimed ones alone."""
    pair = Pair(Config(mtu=1024, paths=4), planes=2)
    pair.b.paths.demand_proof(pair.now_ns)
    pair.filters.append(black_hole(lambda datagram: datagram.sender == 1 and datagram.plane == 1))
    pair.b.endpoint.after_feedback(pair.b.qp, pair.now_ns)
    pair.run(lambda: pair.b.paths.unproved == {1})
    tap = Tap(lambda datagram: datagram.sender == 1 and datagram.plane == 1)
    pair.filters.insert(0, tap)
    pair.transfer(bytes(200_000))
    pair.b.endpoint.port_status(0, up=True, now_ns=pair.now_ns)
    pair.run_for(100 * MS)
    assert {datagram.opcode for datagram in tap.datagrams} <= {Opcode.ENDPOINT_REQUEST}
    told = [d for d in tap.datagrams if EndpointRequest.decode_untrusted(d.data).op]
    assert len(told) == len(tap.datagrams)
