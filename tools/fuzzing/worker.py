"""One fuzzing process: `python -m fuzzing.worker TARGET [libFuzzer arguments]`.

The only module that knows the fuzzing engine, atheris. The package under test is imported here
under instrumentation, so nothing may import it before.
"""

from __future__ import annotations

import shlex
import sys

import atheris


def main(target: str, arguments: list[str]) -> None:
    """Fuzz one target until libFuzzer ends the process; it exits with 77 after a crash."""
    with atheris.instrument_imports(include=["mrc"]):
        from fuzzing.targets import TARGETS
    # libFuzzer starts itself again by its first argument when it merges, through a shell.
    itself = shlex.join([sys.executable, "-m", "fuzzing.worker", target])
    atheris.Setup([itself, *arguments], TARGETS[target].run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
