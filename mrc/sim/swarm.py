"""From a seed to a simulation: every option drawn, some faults left out, others extreme.

A test that turns on everything at once finds little: one fault hides another. So each kind of
fault is off in most simulations, and where it is on it is now and then of a size that no sane
network has (swarm testing, Groce et al. 2012).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mrc.proto.config import Config
from mrc.sim.addresses import HOST_NAMES
from mrc.sim.chance import Chance
from mrc.sim.options import (
    Fault,
    FaultKind,
    HostOptions,
    Kind,
    LinkOptions,
    LossMask,
    Options,
    WriteOptions,
    link_names,
)
from mrc.units import NS_PER_MS, NS_PER_S, NS_PER_US
from mrc.wire.seal import Cipher

_MTUS = (256, 512, 1024, 1024, 2048, 4096)
_PACKETS = (*5 * [(5, 60)], *4 * [(60, 150)], (150, 400))
"""Packets of the whole workload: most simulations are small, some are longer, ..."""
_PACKETS_LONG = (400, 3000)
"""... and one in 32 is long."""
_WRITE_BYTES_MAX = 100_000
_QUEUE_NS_MAX = 20 * NS_PER_MS
_BUDGET_NS_MIN = 400 * NS_PER_MS
"""Queue pairs that give up sooner than that would do so for a queue alone."""


def options_of(seed: int) -> Options:
    """Derive all options from one seed."""
    chance = Chance(seed)
    shape, network, endpoints, faults, work = (chance.fork() for _ in range(5))
    hosts = shape.one_of((2, 2, 2, 2, 3, 4))
    planes = shape.one_of((1, 1, 2, 2, 4))
    ways = shape.one_of((1, 1, 2, 4))
    longest_ms = 60_000 if shape.happens(0.03) else 300
    faulty_ns = shape.magnitude(5, longest_ms) * NS_PER_MS
    packets = shape.between(*(_PACKETS_LONG if shape.below(32) == 0 else shape.one_of(_PACKETS)))
    links, trims, rate_bps, rtt_ns = _draw_links(network, hosts, planes, ways)
    configs = _draw_configs(endpoints, hosts, trims=trims, rate_bps=rate_bps, rtt_ns=rtt_ns)
    connections = _draw_connections(work, hosts)
    mtu = min(config.mtu for config in configs)
    names = link_names(hosts, planes, ways)
    return Options(
        seed=seed,
        hosts=tuple(_draw_host(endpoints, config) for config in configs),
        secured=endpoints.one_of((None, None, None, Cipher.AES_256_GCM, Cipher.CHACHA20_POLY1305)),
        planes=planes,
        ways=ways,
        ipv6=shape.happens(0.5),
        near_wrap=shape.happens(0.4),
        links={name: _spoil(faults, links[name]) for name in names}
        if faults.happens(0.8)
        else links,
        faults=_draw_faults(faults, hosts, planes, ways, connections, faulty_ns),
        connections=connections,
        writes=tuple(_draw_writes(work, connections, packets, mtu, faulty_ns)),
        reconnect_ns=shape.magnitude(1, 50) * NS_PER_MS,
        faulty_ns=faulty_ns,
    )


# The network as it is when it works.


def _draw_links(
    chance: Chance, hosts: int, planes: int, ways: int
) -> tuple[dict[str, LinkOptions], bool, int, int]:
    """Return links, whether they trim, the rate of all planes, and an idle round trip."""
    rate_bps = chance.one_of((0, 0, 20, 100, 1_000, 10_000)) * 1_000_000
    delay_ns = chance.one_of((0, 1, 10, 100, 1_000, 10_000)) * NS_PER_US
    jitter_ns = chance.one_of((0, 0, 1, 30, 500)) * NS_PER_US
    queue_ns = chance.one_of((200, 1_000, 5_000, 20_000)) * NS_PER_US
    trims = bool(rate_bps) and chance.happens(0.4)
    marks = bool(rate_bps) and chance.happens(0.4)
    queue_bytes = max(20_000, int(rate_bps * min(queue_ns, _QUEUE_NS_MAX) / 8e9))
    common = LinkOptions(
        rate_bps=rate_bps,
        queue_bytes=queue_bytes,
        delay_ns=delay_ns,
        jitter_ns=jitter_ns,
        trim_bytes=queue_bytes // 2 if trims else 0,
        mark_bytes=queue_bytes // 4 if marks else 0,
    )
    slower = chance.happens(0.3)
    extra_ns = [chance.one_of((0, 1, 5, 10)) * NS_PER_MS for _ in range(planes)]
    unequal = planes > 1 and chance.happens(0.3)
    links = {}
    for name in link_names(hosts, planes, ways):
        link = replace(common, last_hop=name.startswith("down "))
        if slower and rate_bps and name.startswith("way "):
            link = replace(link, rate_bps=rate_bps // 2)
        if unequal and name.startswith("down "):
            plane = int(name.rpartition(".")[2])
            link = replace(link, delay_ns=delay_ns + extra_ns[plane])
        links[name] = link
    hops = 3 if ways > 1 else 2
    rtt_ns = 2 * hops * (delay_ns + jitter_ns) + (max(extra_ns) * 2 if unequal else 0)
    return links, trims, rate_bps * planes, rtt_ns


def _draw_configs(
    chance: Chance, hosts: int, *, trims: bool, rate_bps: int, rtt_ns: int
) -> list[Config]:
    """Return the settings of each host's endpoint; most are the same for all."""
    paths = chance.one_of((1, 2, 4, 4, 8, 16, 32))
    common: dict[str, Any] = {
        "mtu": chance.one_of(_MTUS),
        "paths": paths,
        "backup_paths": chance.one_of((None, None, 0, 4)),
        "paths_min": chance.one_of((None, None, 1, paths)),
        "reverse_paths": chance.one_of((1, 2, 2, 4)),
        "mpr_psns": chance.one_of((1024, 1024, 2048, 4096)),
        "dynamic_mpr": chance.happens(0.8),
        "immediates_max": chance.one_of((32, 256)),
        "immediates_held_max": chance.one_of((64, 4096)),
        "spray_run": chance.one_of((0, 0, 0, 1, 5, 64)),
        "sack_bytes": chance.one_of((1024, 4096, 16384, 16384)),
        "trim_nack": chance.happens(0.9),
        "icrc": chance.happens(0.85),
        "base_rtt_ns": rtt_ns if chance.happens(0.3) else 0,
        "link_bps": rate_bps if chance.happens(0.6) else 0,
        # Without it a slow link sees little else than what it has to trim or drop.
        "congestion_control": bool(rate_bps) or chance.happens(0.7),
        "quick_adapt": chance.happens(0.8),
        "trimming": trims and chance.happens(0.8),
        "probe_interval_ns_max": chance.one_of((20, 250, 250)) * NS_PER_MS,
        "recovery_successes": chance.one_of((1, 1, 3)),
        **_draw_budget(chance, rtt_ns),
    }
    configs = []
    for _ in range(hosts):
        own = dict(common)
        if chance.happens(0.2):
            own |= {"mtu": chance.one_of(_MTUS), "mpr_psns": chance.one_of((1024, 4096))}
            own |= _draw_budget(chance, rtt_ns)
        configs.append(Config(**own))
    return configs


def _draw_budget(chance: Chance, rtt_ns: int) -> dict[str, int]:
    """Return timeout and retries: for ever, or a budget that no queue alone exceeds."""
    # An interval far below the round trip makes every packet time out. It works, at a crawl.
    timeouts = [t for t in (10, 12, 14, 16) if 2 * (1024 << t) >= rtt_ns or chance.happens(0.02)]
    timeout = chance.one_of(timeouts)
    linear = chance.between(0, 7)
    if chance.happens(0.6):
        return {"timeout": timeout, "retry_linear": linear, "retry_exponential": 25}
    exponential = chance.between(0, 6)
    least_ns = _BUDGET_NS_MIN + 16 * rtt_ns
    while (1024 << timeout) * (linear + (2 << exponential) - 1) < least_ns:
        exponential += 1
    return {"timeout": timeout, "retry_linear": linear, "retry_exponential": exponential}


def _draw_host(chance: Chance, config: Config) -> HostOptions:
    return HostOptions(
        config=config,
        wake_ns=chance.one_of((0, 0, 5, 50, 500)) * NS_PER_US,
        timer_late_ns=chance.one_of((0, 0, 60, 2_000)) * NS_PER_US,
        receive_buffer_bytes=chance.one_of((64, 256, 4096, 4096)) << 10,
        send_buffer_bytes=chance.one_of((0, 0, 64, 256)) << 10,
        gro=chance.happens(0.8),
        take_ns=chance.one_of((0, 0, 0, 1, 5)) * NS_PER_MS,
        refuse=chance.one_of((0.01, 0.3)) if chance.happens(0.1) else 0.0,
    )


# The workload.


def _draw_connections(chance: Chance, hosts: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs of hosts that talk; every host does."""
    pairs = [(0, other) for other in range(1, hosts)]
    if chance.happens(0.3):
        pairs.append(chance.one_of(pairs))
    if hosts > 2 and chance.happens(0.3):
        pairs.append((1, 2))
    return tuple(pairs)


def _draw_writes(
    chance: Chance,
    connections: tuple[tuple[int, int], ...],
    packets: int,
    mtu: int,
    faulty_ns: int,
) -> list[WriteOptions]:
    """Return messages of about that many packets, posted at once or over the safety phase."""
    largest = chance.one_of((1, 64, mtu, 4 * mtu, 20_000, _WRITE_BYTES_MAX))
    immediates = chance.one_of((0.0, 0.3, 1.0))
    backwards = chance.one_of((0.0, 0.3, 0.5))
    last_ns = chance.one_of((1, faulty_ns // 10, faulty_ns))
    writes = []
    while packets > 0:
        size = chance.magnitude(1, largest)
        if chance.happens(0.3):
            # Whole packets, and one byte more or less.
            size = max(1, min(-(-size // mtu) * mtu + chance.between(-1, 1), _WRITE_BYTES_MAX))
        packets -= -(-size // mtu)
        writes.append(
            WriteOptions(
                connection=chance.below(len(connections)),
                backwards=chance.happens(backwards),
                at_ns=chance.below(last_ns),
                size_bytes=size,
                immediate=chance.happens(immediates),
            )
        )
    return sorted(writes, key=lambda write: write.at_ns)


# What goes wrong.


def _spoil(chance: Chance, link: LinkOptions) -> LinkOptions:
    """Return a link with faults: none, mild ones, or extreme ones."""
    if chance.happens(0.5):
        return link
    mild = chance.happens(0.6)
    changes: dict[str, Any] = {}
    if chance.happens(0.3):
        changes["loss"] = chance.one_of((0.001, 0.01, 0.05) if mild else (0.2, 0.5, 0.9))
        changes["loss_of"] = chance.one_of(tuple(Kind))
    if chance.happens(0.2):
        changes["mask"] = _draw_mask(chance)
        changes["loss_of"] = chance.one_of(tuple(Kind))
    if chance.happens(0.2):
        changes["trim"] = 0.02 if mild else 0.5
    if chance.happens(0.2):
        changes["mark"] = 0.05 if mild else 1.0
    if chance.happens(0.2):
        changes["corrupt"] = 0.01 if mild else 0.3
    if chance.happens(0.2):
        changes["duplicate"] = 0.01 if mild else 0.5
    if chance.happens(0.3):
        changes["reorder"] = 0.02 if mild else 0.5
    if chance.happens(0.05):
        changes["size_max"] = chance.one_of((100, 600, 1500))
    if chance.happens(0.05):
        changes["rewrite_ports"] = True
    changes["reorder_ns"] = chance.magnitude(1, 300 if mild else 50_000) * NS_PER_US
    return replace(link, **changes)


def _draw_mask(chance: Chance) -> LossMask:
    """Return a few in a row, every other one for a window, or one at a place."""
    first = chance.magnitude(1, 300) - 1
    return chance.one_of(
        (
            LossMask(first, 1),
            LossMask(first, chance.magnitude(2, 200)),
            LossMask(first, chance.magnitude(2, 500), 2),
            LossMask(first, chance.magnitude(2, 50), chance.between(3, 9)),
        )
    )


class _Schedule:
    """Faults that begin at any time of the safety phase, and may last beyond it."""

    def __init__(self, chance: Chance, faulty_ns: int) -> None:
        self.chance = chance
        self.faulty_ns = faulty_ns
        self.faults: list[Fault] = []

    def add(self, kind: FaultKind, where: str) -> None:
        """Let something go wrong for a while: a microsecond, the whole phase, or in between."""
        for_ns = self.chance.magnitude(NS_PER_US, 2 * self.faulty_ns)
        self.faults.append(Fault(kind=kind, where=where, at_ns=self._moment_ns(), for_ns=for_ns))

    def add_once(self, kind: FaultKind, where: str, amount_ns: int = 0) -> None:
        """Let something happen in a moment."""
        at_ns = self._moment_ns()
        self.faults.append(Fault(kind=kind, where=where, at_ns=at_ns, amount_ns=amount_ns))

    def _moment_ns(self) -> int:
        return 1 + self.chance.below(self.faulty_ns - 1)


def _draw_faults(
    chance: Chance,
    hosts: int,
    planes: int,
    ways: int,
    connections: tuple[tuple[int, int], ...],
    faulty_ns: int,
) -> tuple[Fault, ...]:
    """Return what happens at a time."""
    schedule = _Schedule(chance, faulty_ns)
    _break_network(schedule, hosts, planes, ways)
    _break_hosts(schedule, list(HOST_NAMES[:hosts]), planes)
    if chance.happens(0.05):
        index = chance.below(len(connections))
        host = HOST_NAMES[chance.one_of(connections[index])]
        schedule.add_once(FaultKind.CLOSE_REGION, f"{index} {host}")
    return tuple(schedule.faults)


def _break_network(schedule: _Schedule, hosts: int, planes: int, ways: int) -> None:
    chance = schedule.chance
    names = link_names(hosts, planes, ways)
    if chance.happens(0.35):
        for name in chance.some_of(names, chance.one_of((0.1, 0.5))):
            schedule.add(FaultKind.CUT, name)
    if chance.happens(0.2):
        schedule.faults += _flaps(chance, chance.one_of(names), schedule.faulty_ns)
    if chance.happens(0.2):
        for plane in chance.some_of(range(planes), 0.5):
            schedule.add(FaultKind.REBOOT, str(plane))
    if ways > 1 and chance.happens(0.2):
        schedule.add(FaultKind.REBOOT, f"{chance.below(planes)}.{chance.below(ways)}")


def _break_hosts(schedule: _Schedule, names: list[str], planes: int) -> None:
    chance = schedule.chance
    if chance.happens(0.15):
        schedule.add(FaultKind.PORT_DOWN, f"{chance.one_of(names)}.{chance.below(planes)}")
    for kind, probability in (
        (FaultKind.PAUSE, 0.2),
        (FaultKind.CRASH, 0.1),
        (FaultKind.CLOCK_STOP, 0.08),
    ):
        if chance.happens(probability):
            schedule.add(kind, chance.one_of(names))
    if chance.happens(0.08):
        size_ns = chance.magnitude(NS_PER_MS, 10 * NS_PER_S)
        size_ns = -size_ns if chance.happens(0.5) else size_ns
        schedule.add_once(FaultKind.CLOCK_JUMP, chance.one_of(names), size_ns)


def _flaps(chance: Chance, name: str, faulty_ns: int) -> list[Fault]:
    """Return cuts of one link, again and again."""
    period_ns = chance.magnitude(100 * NS_PER_US, faulty_ns)
    down_ns = max(1, int(period_ns * chance.one_of((0.1, 0.5, 0.9))))
    starts = range(1 + chance.below(period_ns), faulty_ns, period_ns)
    return [
        Fault(kind=FaultKind.CUT, where=name, at_ns=at_ns, for_ns=down_ns) for at_ns in starts[:50]
    ]
