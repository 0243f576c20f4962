"""One file by `mrc-send` and `mrc-recv`, as a user would copy it.

Orders: role (`send` or `receive`), name, address (where to listen), port, planes (own addresses),
options (of the command line), folder; to send: mib, start_s, and target (the receiver's folder, so
that both files can be compared). The receiver's record says nothing of bytes over time: what links
carried tells.
"""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from time import monotonic_ns
from typing import Any

from netns.traffic.common import orders, save, say

SEND, RECV = (
    [sys.executable, "-c", f"from mrc.cli.{name} import main; main()"] for name in ("send", "recv")
)
"""The commands of this very installation, whatever PATH says."""
MIB = 1 << 20
TIMEOUT_S = 120.0


def receive(told: dict[str, Any]) -> None:
    """Run mrc-recv for one transfer; it has ended when the sender has."""
    planes = [option for plane in told["planes"] for option in ("--plane", plane)]
    command = [*RECV, "--once", "--quiet", "--out", told["folder"], *planes]
    listen = f"{told['address']}:{told['port']}"
    with subprocess.Popen(
        [*command, "--listen", listen, *told["options"]], stdout=subprocess.PIPE, text=True
    ) as receiver:
        url = receiver.stdout.readline().strip() if receiver.stdout is not None else ""
        say(f"ready {url}")
        sys.stdin.read()
        status = receiver.wait(TIMEOUT_S)
    error = f"mrc-recv ended with {status}" if status else ""
    flow = {"name": told["name"], "messages": int(not status), "error": error}
    save(told["record"], {"flows": [flow], "errors": []})


def send(told: dict[str, Any]) -> None:
    """Make a file, send it with mrc-send, and compare what has arrived with it, byte by byte."""
    path = Path(told["folder"]) / f"{told['name']}.bin"
    path.write_bytes(os.urandom(told["mib"] * MIB))
    planes = [option for plane in told["planes"] for option in ("--plane", plane)]
    command = [*SEND, "--json", *planes, *told["options"], str(path), told["url"]]
    say("connected []")
    zero_ns = int(sys.stdin.readline())
    time.sleep(max(0.0, (zero_ns - monotonic_ns()) / 1e9 + told["start_s"]))
    began_ns = monotonic_ns()
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
    ended_ns = monotonic_ns()
    error = f"mrc-send ended with {ran.returncode}" if ran.returncode else ""
    arrived = Path(told["target"]) / path.name
    if not error and not filecmp.cmp(path, arrived, shallow=False):
        error = f"{arrived.name} differs from what was sent"
    record = {
        "name": told["name"],
        "messages": 1,
        "completions_ns": [] if error else [(began_ns, ended_ns)],
        "error": error,
        "said": json.loads(ran.stdout) if ran.stdout else None,
    }
    save(told["record"], record)


if __name__ == "__main__":
    told_now = orders()
    {"send": send, "receive": receive}[told_now["role"]](told_now)
