"""Runs mrc-send with sockets one of which swallows all it is given for a while.

The fault is in this process's socket wrapper; protocol and command are the ones everybody runs.
"""

from __future__ import annotations

import functools
import sys
import threading
import time

import click

import mrc
import mrc.cli.send
from mrc.udp import FaultySockets

POLL_S = 0.005
HEAL_FRACTION = 0.75


@click.command()
@click.option("--cut", required=True, type=int, help="Socket that dies half-way, from 0.")
@click.option("--bytes", "size", required=True, type=int, help="Bytes that will be sent.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(cut: int, size: int, arguments: tuple[str, ...]) -> None:
    """Run mrc-send with ARGUMENTS; path CUT is dead from half of SIZE to three quarters."""
    faults = FaultySockets()
    threading.Thread(target=break_and_heal, args=(faults, cut, size), daemon=True).start()
    mrc.connect = functools.partial(mrc.connect, sockets=faults)
    sys.argv = ["mrc-send", *arguments]
    mrc.cli.send.main()


def break_and_heal(faults: FaultySockets, cut: int, size: int) -> None:
    """Watch how much was sent; swallow what one socket is given between two marks."""
    wait_until_sent(faults, size // 2)
    port = faults.blackhole_nth(cut)
    click.echo(f"--- path {cut} (source port {port}) is dead from here", err=True)
    wait_until_sent(faults, int(size * HEAL_FRACTION))
    faults.heal_nth(cut)
    click.echo(f"--- path {cut} (source port {port}) works again", err=True)


def wait_until_sent(faults: FaultySockets, mark: int) -> None:
    """Return when all sockets together have sent that many bytes; this thread dies with the rest."""
    while sum(sender.statistics().sent_bytes for sender in list(faults.senders)) < mark:
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
