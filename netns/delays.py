"""Wires that delay, jitter and reorder: the user-space hop of a lab, in a namespace of its own.

Such a link has two veth pairs instead of one, whose inner ends the hop joins; it is one process for
all of them. That works on every kernel, whether or not it has netem.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from netns.errors import LabError
from netns.fabric import Fabric, FabricLink

if TYPE_CHECKING:
    from netns.lab import Lab

HOP = "wires"
READY_TIMEOUT_S = 10.0
ROOT = Path(__file__).resolve().parent.parent


def delayed(fabric: Fabric) -> list[FabricLink]:
    """Return the links that need the hop."""
    return [link for link in fabric.links if not link.wire.plain]


def hop_devices(fabric: Fabric, link: FabricLink) -> tuple[str, str]:
    """Return the names of a link's two devices inside the hop."""
    number = fabric.links.index(link)
    return f"w{number}a", f"w{number}b"


def start_hop(lab: Lab) -> subprocess.Popen[bytes] | None:
    """Start the hop if a wire needs it, and wait until it forwards.

    Raises:
        LabError: it did not start.
    """
    links = delayed(lab.fabric)
    if not links:
        return None
    arguments: list[str] = []
    for link in links:
        arguments += hop_devices(lab.fabric, link)
    for link in links:
        wire = link.wire
        how = {
            "delay_us": round(wire.delay_ms * 1e3),
            "jitter_us": round(wire.jitter_ms * 1e3),
            "reorder_ppm": round(wire.reorder_percent * 1e4),
        }
        name = ":".join(hop_devices(lab.fabric, link))
        arguments += ["--set", json.dumps({"link": name, "ab": how, "ba": how})]
    log = lab.state_path(".hop")
    with log.open("wb") as output:
        process = subprocess.Popen(
            lab.command(HOP, [sys.executable, "-m", "netns.hop", *arguments]),
            cwd=ROOT,
            env=lab.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    deadline = time.monotonic() + READY_TIMEOUT_S
    while "ready" not in log.read_text(encoding="utf-8", errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            said = log.read_text(encoding="utf-8", errors="replace").strip()
            raise LabError(f"the hop for delays did not start: {said or 'it said nothing'}")
        time.sleep(0.01)
    return process
