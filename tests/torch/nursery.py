"""Makes the ranks of torch jobs: an interpreter that has imported torch, and forks.

    python -m tests.torch.nursery

One JSON object a line on standard input asks for a process, by its scenario, environment, and the
files for what it says; or for the death of one. A process gives a line with its number, and one
more when it has ended. Ranks end as any interpreter does; nothing of theirs begins before the fork.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
from pathlib import Path
from typing import Any

# What optimizers and functional collectives import when they are first used, which takes as long.
import torch._dynamo  # noqa: F401

from tests.torch import worker


def main() -> None:
    """Serve until standard input ends; in a child, be the rank and return."""
    wanted = serve()
    if wanted is not None:
        become(wanted)


def serve() -> dict[str, Any] | None:
    """Return what is wanted, in a child; nothing, at the end of standard input."""
    children: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    children.remove(key.data)
                    _, status = os.waitpid(key.data, 0)
                    say({"pid": key.data, "code": os.waitstatus_to_exitcode(status)})
                    continue
                # There is one line at a time: each is answered.
                wanted: dict[str, Any] | None = json.loads(sys.stdin.readline() or "null")
                if wanted is None:
                    return None
                if "kill" in wanted:
                    if wanted["kill"] in children:
                        os.kill(wanted["kill"], signal.SIGKILL)
                    continue
                pid = os.fork()
                if pid == 0:
                    return wanted
                children.add(pid)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
                say({"pid": pid})


def say(message: dict[str, Any]) -> None:
    """Tell the tests."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def become(wanted: dict[str, Any]) -> None:
    """Be a rank."""
    for number, name in enumerate((os.devnull, wanted["said"], wanted["errors"])):
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.update(wanted["environment"])
    result = worker.main(wanted["scenario"])
    Path(wanted["said"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
