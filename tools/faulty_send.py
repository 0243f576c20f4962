"""Runs mrc-send with sockets that lose datagrams at random, or one that swallows all for a while.

The faults are in this process's socket wrapper; protocol and command are the ones everybody runs.
What becomes of the paths is told as it happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import click

import mrc
import mrc.cli.send
from mrc.udp import FaultySockets

POLL_S = 0.005
HEAL_FRACTION = 0.75


@click.command()
@click.option("--loss", type=click.FloatRange(0, 1), default=0.0, help="Chance of a datagram.")
@click.option("--cut", type=int, help="Socket that dies half-way, from 0.")
@click.option("--bytes", "size", type=int, default=0, help="Bytes that will be sent, for --cut.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(loss: float, cut: int | None, size: int, arguments: tuple[str, ...]) -> None:
    """Run mrc-send with ARGUMENTS; path CUT is dead from half of the bytes to three quarters."""
    faults = FaultySockets(loss=loss)
    connect = mrc.connect

    @contextlib.asynccontextmanager
    async def faulty(*words: Any, **names: Any) -> AsyncIterator[mrc.QueuePair]:
        async with connect(*words, sockets=faults, **names) as qp:
            telling = asyncio.ensure_future(tell(qp, faults))
            try:
                yield qp
            finally:
                telling.cancel()

    if cut is not None:
        threading.Thread(target=break_and_heal, args=(faults, cut, size), daemon=True).start()
        mrc.connect = faulty  # type: ignore[assignment]
    else:
        mrc.connect = lambda *words, **names: connect(*words, sockets=faults, **names)
    sys.argv = ["mrc-send", *arguments]
    mrc.cli.send.main()


async def tell(qp: mrc.QueuePair, faults: FaultySockets) -> None:
    """Say when a path is withdrawn or comes back, and how long that took."""
    async for event in qp.events():
        if not isinstance(event, mrc.EvChanged):
            continue
        since_ns = faults.first_blackholed_ns.get(event.source_port)
        if event.after is mrc.EvState.ASSUMED_BAD and since_ns is not None:
            took_ms = (event.at_ns - since_ns) / 1e6
            say(f"path {event.index} withdrawn {took_ms:.1f} ms after its first lost packet")
        elif event.after is mrc.EvState.GOOD:
            say(f"path {event.index} is good again: {event.reason}; it is a spare now")


def say(text: str) -> None:
    """Print a line of the story."""
    click.echo(f"--- {text}", err=True)


def break_and_heal(faults: FaultySockets, cut: int, size: int) -> None:
    """Watch how much was sent; swallow what one socket is given between two marks."""
    wait_until_sent(faults, size // 2)
    port = faults.blackhole_nth(cut)
    say(f"path {cut} (source port {port}) is dead from here")
    wait_until_sent(faults, int(size * HEAL_FRACTION))
    faults.heal_nth(cut)
    say(f"path {cut} (source port {port}) works again")


def wait_until_sent(faults: FaultySockets, mark: int) -> None:
    """Return when all sockets together have sent so many bytes; this thread ends with the rest."""
    while sum(sender.statistics().sent_bytes for sender in list(faults.senders)) < mark:
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
