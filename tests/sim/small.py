"""Small simulations written by hand."""

from __future__ import annotations

from typing import Any

from mrc.proto.config import Config
from mrc.sim.options import Fault, HostOptions, LinkOptions, Options, WriteOptions, link_names
from mrc.sim.simulation import Simulation

MS = 1_000_000


def options(
    *,
    link: LinkOptions | None = None,
    links: dict[str, LinkOptions] | None = None,
    host: HostOptions | None = None,
    faults: tuple[Fault, ...] = (),
    sizes: tuple[int, ...] = (100_000,),
    planes: int = 1,
    ways: int = 1,
    **more: Any,
) -> Options:
    """Return two hosts, a that writes to b, all links alike but for those named."""
    host = host or HostOptions(config=Config(paths=4, mtu=1024))
    common = link or LinkOptions(delay_ns=20_000)
    writes = tuple(
        WriteOptions(connection=0, backwards=False, at_ns=0, size_bytes=size, immediate=True)
        for size in sizes
    )
    return Options(
        seed=1,
        hosts=(host, host),
        planes=planes,
        ways=ways,
        links=dict.fromkeys(link_names(2, planes, ways), common) | (links or {}),
        faults=faults,
        writes=writes,
        **more,
    )


def passed(of: Options) -> Simulation:
    """Run a simulation that breaks no rule; return it."""
    simulation = Simulation(of)
    outcome = simulation.run()
    assert outcome.passed, outcome.message
    return simulation
