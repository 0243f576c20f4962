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
END_TIMEOUT_S = 5.0
ROOT = Path(__file__).resolve().parent.parent


def delayed(fabric: Fabric) -> list[FabricLink]:
    """Return the links that need the hop."""
    return [link for link in fabric.links if not link.wire.plain]


def hop_devices(fabric: Fabric, link: FabricLink) -> tuple[str, str]:
    """Return the names of a link's two devices inside the hop."""
    number = fabric.links.index(link)
    return f"w{number}a", f"w{number}b"


class Wires:
    """The process of the hop, and what it has to say.

    Args:
        lab: whose delayed links it serves; there must be some.
        dies_with_us: whether it ends when this process does, however that happens.

    Raises:
        LabError: it did not start.
    """

    def __init__(self, lab: Lab, *, dies_with_us: bool) -> None:
        self._links = {
            ":".join(hop_devices(lab.fabric, link)): link for link in delayed(lab.fabric)
        }
        self._log = lab.state_path(".hop")
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                lab.command(HOP, self._command(dies_with_us=dies_with_us)),
                cwd=ROOT,
                env=lab.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A Ctrl-C is for us, who end it when its work is done.
                start_new_session=True,
            )
        self._wait_until_ready()

    def _command(self, *, dies_with_us: bool) -> list[str]:
        command = [sys.executable, "-m", "netns.hop", *":".join(self._links).split(":")]
        for name, link in self._links.items():
            wire = link.wire
            how = {
                "delay_us": round(wire.delay_ms * 1e3),
                "jitter_us": round(wire.jitter_ms * 1e3),
                "reorder_ppm": round(wire.reorder_percent * 1e4),
            }
            command += ["--set", json.dumps({"link": name, "ab": how, "ba": how})]
        return [*command, "--die-with-parent"] if dies_with_us else command

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while "ready" not in self._said():
            late = time.monotonic() > deadline
            if late or self._process.poll() is not None:
                self._stop()
                why = f" within {READY_TIMEOUT_S:g} s" if late else ""
                said = "; ".join(self._said()) or "it said nothing"
                raise LabError(f"the hop for delays did not start{why}: {said}")
            time.sleep(0.01)

    def _said(self) -> list[str]:
        try:
            return self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:  # whoever sweeps removes it
            return []

    def trouble(self) -> list[str]:
        """Return what is wrong while it should run: it has ended. One system call."""
        status = self._process.poll()
        if status is None:
            return []
        last = (self._said() or ["it said nothing"])[-1]
        return [f"the hop for delays ended with status {status}: {last}"]

    def end(self) -> list[str]:
        """End it, and return what was wrong: it had died, or lost frames."""
        if trouble := self.trouble():
            return trouble
        self._stop()
        try:
            counters = json.loads(self._said()[-1])
        except (IndexError, ValueError):
            return [f"the hop for delays left no counters: {'; '.join(self._said()) or 'nothing'}"]
        return [
            f"the hop on {self._links[name].name} ({way}) has {what} {each[what]} frames"
            for name, ways in counters.items()
            for way, each in ways.items()
            for what in ("dropped", "refused")
            if each[what]
        ]

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_TIMEOUT_S)
