"""Endpoint requests under way: ids come round, answers find their request, a guess is one."""

from __future__ import annotations

from mrc.proto.config import Config
from mrc.proto.events import EvState
from mrc.proto.requests import AN_ID_MAX, Request, Requests
from mrc.wire.control import EndpointOp, EndpointResponse, timestamp
from tests.support.filters import black_hole
from tests.support.pair import MS, Pair, S


def asked(pair: Pair, sent_ns: int) -> Request:
    """A probe of the first EV that leaves at that time."""
    return Request(pair.a.peer, pair.a.qp, pair.a.paths.paths[0], EndpointOp.EV_PROBE, 0, sent_ns)


def answer(request_id: int, sent_ns: int) -> EndpointResponse:
    """What the peer answers to it."""
    return EndpointResponse(request_id, EndpointOp.EV_PROBE, timestamp(sent_ns))


def test_an_answer_finds_its_request_among_those_with_its_id() -> None:
    """256 later requests have the same id; the time says which one is meant."""
    pair, requests = Pair(), Requests()
    made = [asked(pair, turn * MS) for turn in range(2 * 256)]
    ids = [requests.add(request) for request in made]
    assert ids[0] == ids[256]
    host = pair.b.hosts[0]
    for each in (256, 0):
        response = answer(ids[each], made[each].sent_ns)
        assert requests.claimed_by(response, host) is made[each]
        assert requests.is_answered(made[each], response)
    assert requests.claimed_by(answer(ids[0], 0), host) is None
    assert len(requests) == 2 * 255


def test_what_waits_with_one_id_has_a_bound() -> None:
    """Answers that never come cost no more than that."""
    pair, requests = Pair(), Requests()
    for turn in range(256 * 2 * AN_ID_MAX):
        requests.add(asked(pair, turn * MS))
    assert len(requests) == 256 * AN_ID_MAX


def test_a_wrong_answer_under_the_right_keys_is_the_only_guess() -> None:
    """Whoever claims an address that is not his cannot try all times that a probe may have."""
    for sealed, left in ((True, 0), (False, 2)):
        pair, requests = Pair(sealed=sealed), Requests()
        first, second = asked(pair, 5 * MS), asked(pair, 6 * MS)
        request_id = requests.add(first)
        for turn in range(255):
            requests.add(asked(pair, turn))
        assert requests.add(second) == request_id
        wrong = answer(request_id, 7 * MS)
        claimed = requests.claimed_by(wrong, pair.b.hosts[0])
        assert claimed is not None
        assert not requests.is_answered(claimed, wrong)
        assert len(requests) == 255 + left


def test_evs_come_back_over_paths_on_which_more_probes_are_under_way_than_ids() -> None:
    """64 EVs probed every 20 ms over a round trip of 200 ms: 640 probes, and 256 ids."""
    config = Config(paths=64, backup_paths=0, probe_interval_ns_max=20 * MS, base_rtt_ns=200 * MS)
    pair = Pair(config, delay_ns=100 * MS)
    dead = [False]
    pair.filters.append(black_hole(lambda _: dead[0]))
    pair.transfer(bytes(200_000))
    for path in pair.a.paths.paths[1:]:
        pair.a.paths.withdraw(path, pair.now_ns, "test")
    pair.a.endpoint.after_feedback(pair.a.qp, pair.now_ns)  # arms the timer of the peer
    dead[0] = True
    pair.run_for(3 * S)
    dead[0] = False
    pair.run_for(3 * S)
    assert {path.state for path in pair.a.paths.paths} == {EvState.GOOD}
