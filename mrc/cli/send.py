"""The command mrc-send: files, folders and streams to an mrc-recv."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import click

import mrc
from mrc.cli.failures import ExitCode
from mrc.cli.locks import LockWishes, lock_options
from mrc.cli.options import (
    SprayRunType,
    UrlType,
    network_options,
    output_options,
)
from mrc.cli.progress import Progress
from mrc.cli.qp_link import QpLink
from mrc.cli.sending import SendSettings
from mrc.cli.session import DISTRIBUTION, Session, fill_standard_descriptors, leave, run_click
from mrc.cli.source import Listing, list_paths
from mrc.cli.stream_io import DescriptorInput
from mrc.cli.transfer import StreamSource, send
from mrc.cli.worker import Worker
from mrc.errors import ConfigError

COMMAND = "mrc-send"
PATHS_DEFAULT = 16
PATHS_MAX = 4096
CONNECT_TIMEOUT_S_MAX = 10.0
STDIN_NAME = "stdin"

EPILOG = """\b
Examples:
  mrc-send disk.img mrc://192.0.2.7:18515/KEY
  mrc-send photos notes.txt mrc://192.0.2.7:18515/KEY
  mrc-send --plane 10.0.0.1 --plane 10.0.1.1 --paths 32 disk.img mrc://10.0.0.2:18515/KEY
  tar c . | mrc-send - mrc://192.0.2.7:18515/KEY

\b
KEY is the receiver's fingerprint, by which it is known, and a token, by which you are: whoever has
the whole URL can send in your place. Where others on this machine must not read it in the list of
processes, give both sides a token of your own by --token-file or $MRC_TOKEN.

\b
Files keep their names, permissions and times. Symbolic links that stay inside their folder are
sent as links; others, pipes, sockets and devices are skipped and named. An interrupted transfer
goes on where it stopped when the same command is run again.

\b
Exit codes: 0 done and verified, 1 failed at the receiver, 2 usage or local set-up, 3 receiver not
reached, 4 receiver or all paths lost (run it again to resume), 5 contents differ, 6 local file
trouble, 7 protocol or version mismatch, 130 and 143 signals.
"""


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What the user asked for."""

    paths: tuple[str, ...]
    url: mrc.Url
    lock: LockWishes
    name: str
    planes: tuple[str, ...]
    config: mrc.Config
    timeout_s: float


@click.command(epilog=EPILOG)
@click.version_option(package_name=DISTRIBUTION)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.argument("url", type=UrlType(), metavar="URL")
@click.option(
    "--paths",
    "path_count",
    type=click.IntRange(1, PATHS_MAX),
    default=PATHS_DEFAULT,
    show_default=True,
    metavar="N",
    help=f"UDP source ports to spray over, 1 to {PATHS_MAX}, shared evenly by the planes.",
)
@click.option(
    "--spray-run",
    type=SprayRunType(),
    default="auto",
    show_default=True,
    metavar="N|auto",
    help="Packets in a row on one path, 1 to 64; auto grows with the congestion window.",
)
@click.option(
    "--name",
    default=STDIN_NAME,
    show_default=True,
    metavar="NAME",
    help="What standard input is called at the receiver.",
)
@lock_options
@network_options
@output_options
def command(url: mrc.Url, as_json: bool, quiet: bool, **wishes: Any) -> ExitCode:
    """Send every PATH to the mrc-recv at URL; - is standard input.

    URL is what mrc-recv printed: mrc://HOST:PORT/KEY. Contents are verified by SHA-256 at the end.
    """
    wanted = _Wishes(
        paths=tuple(wishes["paths"]),
        url=url,
        lock=LockWishes(wishes["insecure"], wishes["token_file"]),
        name=wishes["name"],
        planes=tuple(wishes["planes"]),
        config=mrc.Config(
            paths=wishes["path_count"],
            spray_run=wishes["spray_run"],
            mtu=int(wishes["mtu"]),
            icrc=not wishes["no_icrc"],
        ).retrying_for(wishes["timeout_s"]),
        timeout_s=wishes["timeout_s"],
    )
    start = {
        "url": url.public,
        "secured": wanted.lock.secured,
        "paths": wanted.config.paths,
        "planes": list(wanted.planes),
        "mtu_bytes": wanted.config.mtu,
        "icrc": wanted.config.icrc,
    }
    session = Session(COMMAND, sending=True, as_json=as_json, quiet=quiet, start=start)
    return session.run(lambda: _send(session, wanted))


async def _send(session: Session, wanted: _Wishes) -> ExitCode:
    """Find out what to send, connect, and send it."""
    token = wanted.lock.token_for(wanted.url)
    if not wanted.lock.secured:
        warning = wanted.lock.warning("answer in the receiver's place")
        session.display.line(f"{COMMAND}: {warning}")
    progress = Progress()
    what = await _what(session, wanted, progress)
    if isinstance(what, Listing):
        session.lost_hint = "; run it again to resume"
    connecting = mrc.connect(
        str(wanted.url),
        config=wanted.config,
        planes=wanted.planes,
        token=token,
        timeout_s=min(wanted.timeout_s, CONNECT_TIMEOUT_S_MAX),
    )
    async with connecting as qp:
        session.established = True
        link = QpLink(qp, sending=True)
        with session.transfer(link, progress) as report:
            await send(link, what, progress, SendSettings(timeout_s=wanted.timeout_s))
    session.conclude(report, link)
    return ExitCode.DONE


async def _what(session: Session, wanted: _Wishes, progress: Progress) -> Listing | StreamSource:
    """List the paths, or take standard input."""
    if "-" in wanted.paths:
        if wanted.paths != ("-",):
            raise ConfigError("- stands for standard input and is sent alone")
        if sys.stdin is None or sys.stdin.closed:
            raise ConfigError("standard input is closed")
        return StreamSource(DescriptorInput(sys.stdin.fileno(), "standard input"), wanted.name)
    worker = Worker("list")
    try:
        listing = await worker.run(list_paths, wanted.paths, lambda _: None)
    finally:
        worker.close()
    progress.skipped = listing.skipped
    for line in listing.skipped:
        session.display.line(f"{COMMAND}: skipped {line}")
    return listing


def main() -> None:
    """Run mrc-send and exit with its code."""
    fill_standard_descriptors()
    leave(run_click(command, COMMAND))
