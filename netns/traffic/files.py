"""One file by `mrc-send` and `mrc-recv`, as a user would copy it.

Orders: role (`send` or `receive`), name, address (where to listen), port, planes (own addresses),
options (of the command line), folder; to send: mib, start_s, stop_s, and target (the receiver's
folder, so that both files can be compared). The receiver's record says nothing of bytes over time:
what links carried tells.
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

from netns.traffic.common import run_blocking, save, say, wait_for_zero_ns

_BOUND = "from netns.traffic.common import end_with_parent; end_with_parent()"
"""They do not outlive us."""
SEND, RECV = (
    [sys.executable, "-c", f"{_BOUND}; from mrc.cli.{name} import main; main()"]
    for name in ("send", "recv")
)
"""The commands of this very installation, whatever PATH says."""
MIB = 1 << 20
LATE_S = 30.0
"""For a file beyond the scenario's end; the runner waits longer for us."""
RECV_TIMEOUT_S = 10.0
"""For mrc-recv to end after its sender; the runner waits longer for us."""


def receive(told: dict[str, Any]) -> None:
    """Run mrc-recv for one transfer; it has ended when the sender has."""
    planes = [option for plane in told["planes"] for option in ("--plane", plane)]
    listen = ["--listen", f"{told['address']}:{told['port']}"]
    command = [*RECV, "--once", "--quiet", "--out", told["folder"], *planes, *listen]
    flow = {"name": told["name"], "messages": 0, "error": "mrc-recv was ended before the transfer"}
    with subprocess.Popen(
        [*command, *told["options"]], stdout=subprocess.PIPE, text=True
    ) as receiver:
        try:
            url = receiver.stdout.readline().strip() if receiver.stdout is not None else ""
            if not url:
                raise SystemExit("mrc-recv ended before it was ready")
            say(f"ready {url}")
            sys.stdin.read()
            status = receiver.wait(RECV_TIMEOUT_S)
            error = f"mrc-recv ended with {status}" if status else ""
            flow |= {"messages": int(not status), "error": error}
        except subprocess.TimeoutExpired:
            flow["error"] = f"mrc-recv did not end within {RECV_TIMEOUT_S:g} s of mrc-send"
        finally:
            # Otherwise leaving `with` would wait for it without a limit.
            receiver.kill()
            save(told["record"], {"flows": [flow], "errors": []})


def send(told: dict[str, Any]) -> None:
    """Make a file, send it with mrc-send, and compare what has arrived with it, byte by byte."""
    path = Path(told["folder"]) / f"{told['name']}.bin"
    with path.open("wb") as file:
        for _ in range(told["mib"]):
            file.write(os.urandom(MIB))
    say("connected []")
    zero_ns = wait_for_zero_ns()
    time.sleep(max(0.0, (zero_ns - monotonic_ns()) / 1e9 + told["start_s"]))
    record = {
        "name": told["name"],
        "messages": 1,
        "completions_ns": [],
        "error": "mrc-send was ended before the file had arrived",
        "said": None,
    }
    timeout_s = (zero_ns - monotonic_ns()) / 1e9 + told["stop_s"] + LATE_S
    try:
        record |= _copied(told, path, timeout_s)
    finally:
        save(told["record"], record)


def _copied(told: dict[str, Any], path: Path, timeout_s: float) -> dict[str, Any]:
    """Send a file; return what the record shall say of that."""
    planes = [option for plane in told["planes"] for option in ("--plane", plane)]
    command = [*SEND, "--json", *planes, *told["options"], str(path), told["url"]]
    began_ns = monotonic_ns()
    try:
        ran = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"mrc-send did not end within {timeout_s:.1f} s: send less, or for longer"}
    ended_ns = monotonic_ns()
    if ran.returncode:
        return {"error": f"mrc-send ended with {ran.returncode}"}
    try:
        said = json.loads(ran.stdout)
        same = filecmp.cmp(path, Path(told["target"]) / path.name, shallow=False)
    except ValueError:
        return {"error": f"mrc-send --json said no JSON: {ran.stdout[:200]!r}"}
    except OSError as error:
        return {"error": f"what has arrived cannot be read: {error}"}
    if not same:
        return {"error": f"{path.name} differs from what was sent", "said": said}
    return {"error": "", "said": said, "completions_ns": [(began_ns, ended_ns)]}


if __name__ == "__main__":
    run_blocking(send=send, receive=receive)
