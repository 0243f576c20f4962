"""How fast transfers are, in virtual time: a table compared to the last digit.

Rows are paths, losses and trims on one to four planes of 200 Mbit/s and 1 ms; `tests/golden/
goodput.txt` holds what is expected. A change there is a change of behaviour: look at it, then write
it anew with

    python -m tests.proto.test_goodput_table
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import pytest

from mrc.proto.config import Config
from mrc.proto.statistics import RequestorStatistics
from tests.support.filters import lose, plane_delays, trim
from tests.support.pair import Filter, Pair

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "goodput.txt"
PLANE_BPS = 200_000_000
DELAY_NS = 500_000
PLANES = (1, 2, 3, 4)
LOSSES = (0.0, 0.01, 0.05)
TRIMS = (0.0, 0.02)
HEAD = "planes   loss   trim   Mbit/s   sent  again  spurious  timeouts"


class Outcome(NamedTuple):
    """One transfer."""

    mbps: float
    found: RequestorStatistics

    def line(self, planes: int, loss: float, trimmed: float) -> str:
        """Return its row of the table."""
        f = self.found
        return (
            f"{planes:6} {loss:6.1%} {trimmed:6.1%} {self.mbps:8.2f} {f.packets_sent:6}"
            f" {f.packets_retransmitted:6} {f.packets_spurious:9} {f.timeouts:9}"
        )


def transfer(planes: int, filters: list[Filter], size: int = 1 << 21, **config: bool) -> Outcome:
    """Send that much over planes of 200 Mbit/s each; return rate and counters.

    The rate is that of the first fifteen sixteenths: with the last packets luck has too much to
    say, and the tests of lost tails are elsewhere.
    """
    settings = Config(mtu=4096, link_bps=planes * PLANE_BPS, **config)  # type: ignore[arg-type]
    pair = Pair(settings, planes=planes, link_bps=PLANE_BPS, delay_ns=DELAY_NS, filters=filters)
    sent = pair.rng.randbytes(size)
    started_ns, most = pair.now_ns, size - size // 16
    work, target = pair.post(sent)
    pair.run(lambda: pair.b.responder.statistics().payload_bytes_placed >= most)
    mbps = 8e3 * most / (pair.now_ns - started_ns)
    pair.run(lambda: pair.done(work))
    assert target == sent
    return Outcome(mbps, pair.a.requestor.statistics())


def table() -> str:
    """Run all transfers; return the table."""
    lines = [HEAD]
    for planes, loss, trimmed in itertools.product(PLANES, LOSSES, TRIMS):
        filters: list[Filter] = [lose(loss), trim(trimmed)]
        outcome = transfer(planes, filters, trimming=trimmed > 0)
        lines.append(outcome.line(planes, loss, trimmed))
    return "\n".join(lines) + "\n"


def column(name: str) -> dict[tuple[int, str, str], float]:
    """Read a column of the stored table."""
    head, *rows = [line.split() for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    at = HEAD.split().index(name)
    assert head == HEAD.split()
    return {(int(row[0]), row[1], row[2]): float(row[at]) for row in rows}


@pytest.mark.slow
def test_goodput_is_what_it_was() -> None:
    """Rate, retransmissions and timeouts of every row are exactly those of the stored table."""
    assert table() == GOLDEN.read_text(encoding="utf-8")


def test_more_planes_are_faster() -> None:
    """Whatever is lost or trimmed, n planes beat n - 1."""
    mbps = column("Mbit/s")
    for (planes, loss, trimmed), rate in mbps.items():
        assert rate > mbps.get((planes - 1, loss, trimmed), 0)


def test_clean_network_is_used_up() -> None:
    """Without losses more than four fifths of all planes together are payload.

    The rest is the start of a transfer of 21 to 84 ms, and a window of seven packets a plane.
    """
    mbps = column("Mbit/s")
    for planes in PLANES:
        assert mbps[planes, "0.0%", "0.0%"] > 0.8 * 200 * planes


def test_rate_follows_the_losses() -> None:
    """One packet in a hundred lost costs hardly anything, one in twenty a fourth at most."""
    mbps = column("Mbit/s")
    for planes in PLANES:
        clean = mbps[planes, "0.0%", "0.0%"]
        assert mbps[planes, "1.0%", "0.0%"] > 0.9 * clean
        assert mbps[planes, "5.0%", "0.0%"] > 0.75 * clean


def test_nothing_is_sent_twice_without_a_reason() -> None:
    """No row has a spurious loss, none without losses a retransmission."""
    assert set(column("spurious").values()) == {0}
    again = column("again")
    assert {again[planes, "0.0%", "0.0%"] for planes in PLANES} == {0}


@pytest.mark.slow
def test_unequal_delays() -> None:
    """Planes of 0, 2, 5 and 10 ms more: hardly anything is sent twice, the sum nearly reached."""
    outcome = transfer(4, [plane_delays([0, 2, 5, 10])], size=16 << 20)
    assert outcome.found.packets_retransmitted < 0.005 * outcome.found.packets_sent
    assert outcome.mbps > 0.85 * 800


if __name__ == "__main__":
    GOLDEN.write_text(table(), encoding="utf-8")
