"""What `tools/bench` does where a peer is not installed, and where somebody has built one."""

import asyncio
import ctypes
import importlib.util
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from benchmarks import (
    ceiling_worker,
    cost_worker,
    echo_worker,
    iperf_variants,
    peer_variants,
    raw_variants,
)
from benchmarks.child import MissingError, transfer
from benchmarks.comparison import GOODPUT, Outcome, Variant
from benchmarks.context import Context, Settings
from benchmarks.meter import WARM_UP_NS, Meter
from benchmarks.raw_variants import goodput_gbps

PICOQUIC = """#!/bin/sh
case "$*" in
    *-D*) echo "Received 1000 bytes in 0.5 seconds, 1234.500000 Mbps." ;;
    *) exec sleep 1000 ;;
esac
"""


def context_in(folder: Path) -> Context:
    """What variants are told."""
    return Context(Settings(paths=2, seconds=0.2, quic_bytes=1, file_bytes=1, seed=1), folder)


async def measure(variant: Variant, folder: Path) -> Outcome:
    """Run a variant once."""
    return await variant(context_in(folder))


def not_loadable(name: str) -> Any:
    """Stand for `ctypes.CDLL` where there is no such library."""
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("variant", "remedy"),
    [
        (iperf_variants.tcp, "apt-get install iperf3"),
        (iperf_variants.udp, "apt-get install iperf3"),
        (peer_variants.aioquic_default, "pip install aioquic"),
        (peer_variants.srt, "apt-get install libsrt1.5-openssl"),
        (peer_variants.udt, "apt-get install libudt0"),
        (peer_variants.enet, "apt-get install libenet7"),
        (peer_variants.kcp, "pip install kcp"),
        (peer_variants.picoquic, "build picoquic"),
    ],
)
def test_what_is_not_installed_is_named_with_its_remedy(
    variant: Variant, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No peer is left out in silence: the reader learns what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ctypes, "CDLL", not_loadable)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingError, match=remedy):
        asyncio.run(measure(variant, tmp_path))


def test_picoquic_is_measured_where_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its example program on PATH serves and downloads, and what it prints is the goodput."""
    program = tmp_path / "picoquicdemo"
    program.write_text(PICOQUIC)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    outcome = asyncio.run(measure(peer_variants.picoquic, tmp_path))
    assert outcome.metrics == {GOODPUT: 1.2345}


def test_what_arrives_during_the_warm_up_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and time count from the first arrival after the warm-up on."""
    times_ns = iter([0, WARM_UP_NS // 2, WARM_UP_NS, WARM_UP_NS + 1000])
    monkeypatch.setattr("benchmarks.meter.monotonic_ns", lambda: 1 + next(times_ns))
    meter = Meter()
    for _ in range(4):
        meter.add(125)
    assert meter.report() == {"bytes": 125, "seconds": 1e-6}
    assert meter.total_bytes == 500
    assert goodput_gbps(meter.report()) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "zero_copy"),
    [
        ("hot", False),
        ("walking", False),
        ("walking", True),
        ("scattered", False),
        ("placed", False),
    ],
)
def test_the_ceiling_moves_whole_runs(memory: str, *, zero_copy: bool) -> None:
    """Both processes run, and no more arrives than was sent."""
    job = ceiling_worker.Job(memory=memory, sources=2, seconds=0.05, zero_copy=zero_copy)
    sent, received = asyncio.run(transfer("ceiling_worker", asdict(job)))
    assert 0 < received["total"] <= sent["total"]
    assert received["total"] % ceiling_worker.RUN_BYTES == 0
    assert received["bytes"] > 0


@pytest.mark.slow
def test_both_round_trips_are_measured_alike() -> None:
    """The bare echo and the ping-pong of mrc tell the same numbers."""
    echo, _ = asyncio.run(transfer("echo_worker", asdict(echo_worker.Job(seconds=0.05))))
    job = cost_worker.Job(what="ping-pong", paths=2, seconds=0.05)
    ours, _ = asyncio.run(transfer("cost_worker", asdict(job)))
    assert echo.keys() == ours.keys()
    assert all(0 < told["p50_us"] <= told["p99_us"] for told in (echo, ours))


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    [
        raw_variants.tcp_walking,
        peer_variants.srt,
        peer_variants.udt_large,
        peer_variants.enet,
    ],
)
def test_a_peer_that_is_installed_moves_bytes(variant: Variant, tmp_path: Path) -> None:
    """Two processes with it end by themselves, and the receiver tells a goodput."""
    try:
        outcome = asyncio.run(measure(variant, tmp_path))
    except MissingError as missing:
        pytest.skip(str(missing))
    assert outcome.metrics[GOODPUT] > 0
