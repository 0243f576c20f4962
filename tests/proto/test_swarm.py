"""Everything at once: a network of any shape, with faults of any kind, drawn from one seed.

First the network misbehaves, then it heals. What must hold then, whatever happened: every byte is
placed, every immediate came once and in order, nothing is left in flight, nobody failed. A seed
that fails stays in `SEEDS`.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from mrc.proto.config import Config
from mrc.proto.events import EvState
from tests.support.filters import Match, black_hole, from_b, jitter, lose, on_ev, trim
from tests.support.pair import FIRST_EV_PORT, MS, US, Datagram, Filter, Pair, S

SEEDS = range(16)
FAULTY_NS = 30 * MS


def duplicates(rate: float, seed: int) -> Filter:
    """Double any datagram now and then."""
    rng = random.Random(seed)

    def act(datagram: Datagram) -> None:
        if datagram.copies and rng.random() < rate:
            datagram.copies = 2

    return act


def corruption(rate: float, seed: int) -> Filter:
    """Flip a bit of any datagram now and then."""
    rng = random.Random(seed)

    def act(datagram: Datagram) -> None:
        if rng.random() < rate:
            datagram.data[rng.randrange(len(datagram.data))] ^= 1 << rng.randrange(8)

    return act


def from_a(datagram: Datagram) -> bool:
    """Match everything that A sends."""
    return datagram.sender == 0


def faults(rng: random.Random, planes: int, now_ns: int) -> list[Filter]:
    """Draw what the network does to datagrams."""
    dead_from_ns = now_ns + rng.randrange(FAULTY_NS)
    dead: Match = on_ev({FIRST_EV_PORT + rng.randrange(4)}, rng.randrange(planes))
    a_plane = rng.randrange(planes)
    drawn = [
        lose(rng.choice((0.001, 0.02, 0.2)), seed=rng.randrange(1000)),
        lose(rng.choice((0.001, 0.1, 0.4)), from_b, seed=rng.randrange(1000)),
        trim(rng.choice((0.01, 0.2)), seed=rng.randrange(1000)),
        jitter(rng.choice((10, 300, 3000)), from_a, seed=rng.randrange(1000)),
        jitter(rng.choice((10, 300, 3000)), from_b, seed=rng.randrange(1000)),
        duplicates(0.05, rng.randrange(1000)),
        corruption(0.02, rng.randrange(1000)),
        black_hole(dead, since_ns=dead_from_ns),
        black_hole(lambda d: d.plane == a_plane, since_ns=dead_from_ns),
        black_hole(from_b, since_ns=dead_from_ns, until_ns=dead_from_ns + 10 * MS),
    ]
    return rng.sample(drawn, rng.randrange(1, 6))


def network(rng: random.Random) -> tuple[Pair, int]:
    """Draw settings and a network; return the pair and its number of planes."""
    planes = rng.choice((1, 2, 4))
    settings: dict[str, Any] = {
        "mtu": rng.choice((256, 1024, 4096)),
        "paths": rng.choice((1, 4, 16)),
        "mpr_psns": rng.choice((1024, 4096)),
        "spray_run": rng.choice((0, 0, 1, 5)),
        "trimming": rng.random() < 0.3,
        "congestion_control": rng.random() < 0.9,
        "timeout": rng.choice((12, 14, 16)),
        "immediates_max": rng.choice((32, 256)),
        "retry_exponential": 25,
    }
    link_bps = rng.choice((0.0, 50e6, 1e9))
    pair = Pair(
        Config(**settings),
        seed=rng.randrange(1 << 30),
        planes=planes,
        ipv6=rng.random() < 0.5,
        delay_ns=rng.choice((5, 50, 2000)) * US,
        link_bps=link_bps,
    )
    return pair, planes


@pytest.mark.parametrize("seed", SEEDS)
def test_all_arrives_whatever_happens(seed: int) -> None:
    """After any mixture of faults, once the network works again, everything completes."""
    rng = random.Random(seed)
    pair, planes = network(rng)
    pair.filters += faults(rng, planes, pair.now_ns)
    posted = []
    for imm in range(20):
        posted.append((pair.rng.randbytes(rng.choice((1, 1000, 100_000))), imm))
        pair.post(posted[-1][0], imm=imm)
    back = bytearray(50_000)
    region = pair.a.endpoint.register(back)
    sent_back = pair.rng.randbytes(len(back))
    pair.b.endpoint.post_write(pair.b.qp, sent_back, region.va, region.r_key)

    pair.run_for(FAULTY_NS)
    pair.filters.clear()
    healed_ns = pair.now_ns
    pair.run(lambda: pair.a.requestor.idle and pair.b.requestor.idle, timeout_ns=5 * S)

    assert pair.immediates() == [imm for _, imm in posted]
    placed = [pair.b.endpoint.memory.region(e.r_key) for e in pair.immediate_events()]
    assert [bytes(r.data) for r in placed if r is not None] == [data for data, _ in posted]
    assert back == sent_back
    for side in pair.sides:
        assert side.requestor.statistics().inflight_bytes == 0
        assert side.requestor.window.outstanding == 0
    pair.run_for(2 * S - (pair.now_ns - healed_ns))
    usable = {path.state for path in pair.a.paths.paths} <= {EvState.GOOD, EvState.SKIP}
    assert usable
