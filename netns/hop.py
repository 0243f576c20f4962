"""A wire that takes time: frames go from one device to the other after a delay, both ways.

    python -m netns.hop A B [A B ...] --set '{"ab": {"delay_us": 500}, "ba": {"delay_us": 500}}'

runs inside a network namespace that holds both ends of one or more links, and does in user space
what the kernel's netem does where a kernel has none. One process serves any number of links, so
that they share its wake-ups. Every `--set` changes all links, or the one it names:

    {"link": "A:B", "ab": {"delay_us": 900, "jitter_us": 50, "reorder_ppm": 0}, "ba": {...}}

It prints `ready`, and on SIGTERM or SIGINT its counters in a line of JSON, and ends with 0.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Final

from netns.hop_ring import BadValueError, Direction, Port, Settings

# <linux/prctl.h>
PR_SET_PDEATHSIG: Final = 1
PR_SET_TIMERSLACK: Final = 29

PATIENCE_S: Final = 0.05  # how long a signal may go unnoticed


class Hop:
    """All links of one process.

    Args:
        links: by their names, the two directions of each.
        grain_us: the least time from one wake-up to the next.
    """

    def __init__(self, links: dict[str, dict[str, Direction]], grain_us: int) -> None:
        self.links = links
        self.directions = [way for link in links.values() for way in link.values()]
        self.grain_ns = grain_us * 1000
        self.stopping = False
        self._arrivals = {way.source.socket.fileno(): way for way in self.directions}

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Be a signal handler."""
        self.stopping = True

    def change(self, line: str) -> None:
        """Apply one `--set`."""
        try:
            order = json.loads(line)
        except ValueError as error:
            raise BadValueError(f"{line!r} is not JSON: {error}") from None
        if not isinstance(order, dict) or not order.keys() <= {"link", "ab", "ba"}:
            raise BadValueError(f"{order!r} has other keys than link, ab and ba")
        link = order.pop("link", None)
        links = list(self.links) if link is None else [link]
        if links[0] not in list(self.links):  # a list, as what was asked for may be anything
            raise BadValueError(f"no link {link!r} here, only {', '.join(self.links)}")
        for name in links:
            for way, values in order.items():
                direction = self.links[name][way]
                try:
                    direction.settings = dataclasses.replace(direction.settings, **values)
                except TypeError:
                    raise BadValueError(f"{way} is {values!r}, not settings") from None

    def counters(self) -> dict[str, dict[str, dict[str, int]]]:
        """The counters of every direction of every link."""
        return {
            name: {way: direction.counters() for way, direction in link.items()}
            for name, link in self.links.items()
        }

    def run(self) -> None:
        """Forward until told to stop."""
        directions, grain_ns, clock = self.directions, self.grain_ns, time.monotonic_ns
        patience_ns = int(PATIENCE_S * 1e9)
        shortest_ns = min(direction.settings.shortest_ns for direction in directions)
        while not self.stopping:
            began = now = clock()
            first_due = never = began + patience_ns
            for direction in directions:
                if direction.words[direction.head_word]:
                    direction.take()
                    now = clock()
                dues = direction.dues
                if dues and dues[0] <= now:
                    direction.deliver(now)
                if dues and dues[0] < first_due:
                    first_due = dues[0]
            if first_due == never and not any(direction.dues for direction in directions):
                self._wait()
                continue
            # What arrives from now on is not due before the shortest delay has passed.
            wake = max(min(first_due, began + shortest_ns), began + grain_ns)
            pause = wake - clock()
            if pause > 0:
                time.sleep(pause / 1e9)

    def _wait(self) -> None:
        """Sleep until a frame arrives, or a signal may have."""
        for number in select.select([*self._arrivals], (), (), PATIENCE_S)[0]:
            if not (direction := self._arrivals[number]).has_arrivals:
                # A device went down: the socket stays ready until it has told so.
                direction.source.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="netns.hop", description="Delay, jitter and reorder frames between pairs of devices."
    )
    parser.add_argument("devices", nargs="+", metavar="DEVICE", help="A B of each link in turn")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="JSON",
        help="delay_us, jitter_us, reorder_ppm",
    )
    parser.add_argument("--limit", type=int, default=1000, help="frames in each queue")
    parser.add_argument("--grain-us", type=int, default=100, help="least time between wake-ups")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--no-realtime", action="store_true", help="wait for a processor like everybody else"
    )
    parser.add_argument("--die-with-parent", action="store_true")
    return parser


def make(chosen: argparse.Namespace) -> Hop:
    """Check the command line and open the devices."""
    names: list[str] = chosen.devices
    if len(names) % 2:
        raise BadValueError(f"{names[-1]!r} has no other end: devices come in pairs")
    here = {name for _, name in socket.if_nameindex()}
    for name in names:
        if name not in here:
            raise BadValueError(f"no device {name!r} in this namespace")
        if names.count(name) > 1:
            raise BadValueError(f"device {name!r} is named twice")
    for option, value, most in (
        ("--limit", chosen.limit, 65536),
        ("--grain-us", chosen.grain_us, 100_000),
    ):
        if not 1 <= value <= most:
            raise BadValueError(f"{option} is {value}, not from 1 to {most}")
    links = {}
    for name_a, name_b in zip(names[::2], names[1::2], strict=True):
        a, b = Port(name_a, chosen.limit), Port(name_b, chosen.limit)
        link = f"{name_a}:{name_b}"
        links[link] = {
            "ab": Direction(a, b, Settings(), f"{chosen.seed}/{link}/ab"),
            "ba": Direction(b, a, Settings(), f"{chosen.seed}/{link}/ba"),
        }
    hop = Hop(links, chosen.grain_us)
    for line in chosen.set:
        hop.change(line)
    return hop


def main(argv: Sequence[str] | None = None) -> int:
    """Be the command."""
    parser = make_parser()
    chosen = parser.parse_args(argv)
    try:
        hop = make(chosen)
    except BadValueError as error:
        parser.error(str(error))
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    if chosen.die_with_parent:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if not chosen.no_realtime:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError as error:
            print(f"netns.hop: not before other processes, and late: {error}", file=sys.stderr)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hop.stop)
    gc.freeze()
    gc.disable()
    # Whoever reads may be gone by now.
    with contextlib.suppress(BrokenPipeError):
        print("ready", flush=True)
        hop.run()
        print(json.dumps(hop.counters()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
