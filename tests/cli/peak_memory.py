"""Runs a command and tells how much memory it ever held: for tests, or by hand.

    python -m tests.cli.peak_memory REPORT MODULE ARGUMENT...

The kernel counts what a process held before exec to what its child held, so that a child of the
tests would be charged with the memory of the tests. This small process in between is what it is
charged with instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

RUNNER = "tests.cli.peak_memory"
"""What `commands.running` takes for the name of this command."""


def main() -> None:
    """Run the main of a module; write {"peak_bytes": n} to the report and end with its code."""
    report, module, *arguments = sys.argv[1:]
    code = f"from {module} import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    Path(report).write_text(json.dumps({"peak_bytes": usage.ru_maxrss << 10}))
    sys.exit(process.returncode)


if __name__ == "__main__":
    main()
