"""The command mrc-recv: takes what mrc-send brings, into a folder or to standard output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

import mrc
from mrc.cli.addresses import reachable_host
from mrc.cli.failures import ExitCode, OutputClosed, PeerStopped
from mrc.cli.locks import LockWishes, lock_options
from mrc.cli.options import (
    CONTROL_PORT,
    AddressType,
    network_options,
    output_options,
)
from mrc.cli.progress import Progress
from mrc.cli.qp_link import QpLink
from mrc.cli.session import (
    DISTRIBUTION,
    Session,
    fill_standard_descriptors,
    leave,
    run_click,
    silence_stdout,
)
from mrc.cli.stream_io import DescriptorOutput, Output
from mrc.cli.transfer import FolderSink, receive
from mrc.errors import ConfigError, PeerError, TransportError
from mrc.text import printable

COMMAND = "mrc-recv"
TRANSFERS_MAX = 16
"""Transfers at once; each costs up to 100 MiB. Those that come on top wait to be greeted."""

EPILOG = f"""\b
Examples:
  mrc-recv --out incoming
  mrc-recv --once --listen 192.0.2.7:{CONTROL_PORT} --out incoming
  mrc-recv --once --out - | tar x
  mrc-recv --plane 10.0.0.2 --plane 10.0.1.2 --listen 10.0.0.2

\b
Prints the URL for mrc-send on a line of its own. It is an invitation: whoever has it may send here
until mrc-recv ends, with --once a single sender and nobody after. For fleets keep the fingerprint
by --identity, and give both sides a token by --token-file or $MRC_TOKEN.

\b
Files appear under their final names when they
are complete and verified; until then they are hidden beside them (.NAME.mrc-part), and a transfer
that is run again goes on from there; do not shorten one that is being received, which ends the
process. Nothing is written outside the output folder.

\b
Exit codes: 0 done and verified, 1 failed at the sender, 2 usage or local set-up, 4 sender or all
paths lost (it can be resumed), 5 contents differ, 6 local file trouble, 7 protocol or version
mismatch, 130 and 143 signals. Without --once only signals and set-up end it.
"""


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What the user asked for."""

    listen: mrc.Address
    lock: LockWishes
    out: str
    planes: tuple[str, ...]
    config: mrc.Config
    timeout_s: float
    once: bool
    overwrite: bool
    flush: bool
    as_json: bool

    @property
    def to_stdout(self) -> bool:
        """The stream goes to standard output."""
        return self.out == "-"

    @property
    def sink(self) -> FolderSink | Callable[[], Output]:
        """Where what comes goes."""
        return _stdout if self.to_stdout else FolderSink(self.out, self.overwrite, self.flush)


@click.command(epilog=EPILOG)
@click.version_option(package_name=DISTRIBUTION)
@click.option(
    "--listen",
    type=AddressType(),
    default=f"0.0.0.0:{CONTROL_PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to wait for senders (TCP; data comes by UDP). Port 0: any free one. For IPv6:"
    f" [::]:{CONTROL_PORT}.",
)
@click.option(
    "--out",
    default=".",
    show_default=True,
    metavar="DIR|-",
    help="The folder to fill, made if missing; - is standard output, for one file or stream.",
)
@click.option("--once", is_flag=True, help="End after one transfer. Default: go on for ever.")
@click.option(
    "--overwrite", is_flag=True, help="Replace files that exist. Default: refuse the transfer."
)
@click.option(
    "--fsync/--no-fsync",
    "flush",
    default=True,
    show_default=True,
    help="Make files durable before they are reported as stored.",
)
@click.option(
    "--identity",
    metavar="FILE",
    help="Keep private key and certificate in FILE, made when it is missing, so that the"
    " fingerprint in the URL stays the same. Default: new ones each time.",
)
@lock_options
@network_options
@output_options
def command(as_json: bool, quiet: bool, **wishes: Any) -> ExitCode:
    """Receive what mrc-send sends, and verify it by SHA-256."""
    wanted = _Wishes(
        listen=wishes["listen"],
        lock=LockWishes(wishes["insecure"], wishes["token_file"], wishes["identity"]),
        out=wishes["out"],
        planes=tuple(wishes["planes"]),
        config=mrc.Config(mtu=int(wishes["mtu"]), icrc=not wishes["no_icrc"]).retrying_for(
            wishes["timeout_s"]
        ),
        timeout_s=wishes["timeout_s"],
        once=wishes["once"] or wishes["out"] == "-",
        overwrite=wishes["overwrite"],
        flush=wishes["flush"],
        as_json=as_json,
    )
    if as_json and wanted.to_stdout:
        raise click.UsageError("--json and --out - both want standard output")
    start = {
        "listen": str(wanted.listen),
        "secured": wanted.lock.secured,
        "out": wanted.out,
        "planes": list(wanted.planes),
        "mtu_bytes": wanted.config.mtu,
        "icrc": wanted.config.icrc,
    }
    session = Session(COMMAND, sending=False, as_json=as_json, quiet=quiet, start=start)
    session.lost_hint = "; the same mrc-send command resumes it"
    return session.run(lambda: _serve(session, wanted))


async def _serve(session: Session, wanted: _Wishes) -> ExitCode:
    """Listen, and take one transfer or all that come."""
    if isinstance(wanted.sink, FolderSink):
        # Find out now that the folder cannot be written to, not when a sender comes.
        wanted.sink.open().close()
    lock = wanted.lock.lock(one_time=wanted.once)
    room = asyncio.Semaphore(TRANSFERS_MAX)
    listening = mrc.listen(
        str(wanted.listen), config=wanted.config, planes=wanted.planes, lock=lock
    )
    async with listening as listener:
        _announce(session, wanted, listener)
        while wanted.once:
            code = await _take(session, wanted, await listener.accept())
            if code is not None:
                return code
            if lock is not None:
                # A sender that was cut off before it offered anything may come back.
                lock.reopen()
        async with asyncio.TaskGroup() as group:
            while True:
                await room.acquire()
                task = group.create_task(_take(session, wanted, await listener.accept()))
                task.add_done_callback(lambda _: room.release())


def _announce(session: Session, wanted: _Wishes, listener: mrc.Listener) -> None:
    """Print the URL, where it can be found by a person and by a script."""
    host, port = listener.address
    address = mrc.Address(reachable_host(host), port)
    url = mrc.Url(address, listener.lock.key if listener.lock else None)
    if not wanted.lock.secured:
        warning = wanted.lock.warning("send files here")
        session.display.line(f"{COMMAND}: {warning}")
    if wanted.as_json or wanted.to_stdout:
        session.display.error(str(url))
    else:
        print(url, flush=True)
    where = "standard output" if wanted.to_stdout else printable(wanted.out)
    session.display.line(f"waiting for mrc-send; what comes goes to {where}")


async def _take(session: Session, wanted: _Wishes, qp: mrc.QueuePair) -> ExitCode | None:
    """Receive one transfer; what goes wrong with it is told, and does not end the others.

    Returns:
        How it ended, or None when a stranger came and went without offering or saying anything.
    """
    session.established = True
    progress = Progress()
    async with qp:
        link = QpLink(qp, sending=False)
        try:
            with session.transfer(link, progress) as report:
                await receive(link, wanted.sink, progress, timeout_s=wanted.timeout_s)
        except Exception as error:  # noqa: BLE001 - one transfer must not end all others
            session.complain(error)
            if isinstance(error, OutputClosed):
                silence_stdout()
            spoken = progress.offered or isinstance(error, PeerStopped)
            stranger = not spoken and isinstance(error, PeerError | TransportError)
            return None if stranger else report.exit_code
    session.conclude(report, link)
    return ExitCode.DONE


def _stdout() -> Output:
    if sys.stdout is None or sys.stdout.closed:
        raise ConfigError("standard output is closed")
    return DescriptorOutput(sys.stdout.fileno(), "standard output")


def main() -> None:
    """Run mrc-recv and exit with its code."""
    fill_standard_descriptors()
    leave(run_click(command, COMMAND))
