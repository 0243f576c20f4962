"""The targets by name: what `tools/fuzz` runs and the tests replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzzing import decoders, manifest, perf, ranks, rendezvous, requestor, responder


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to fuzz.

    Attributes:
        about: what it is, in one line.
        run: takes any bytes; raises only for a fault of the product.
        bytes_max: longest input worth trying.
    """

    about: str
    run: Callable[[bytes], None]
    bytes_max: int


TARGETS = {
    "decoders": Target("every decoder of mrc.wire, and runs read both ways", decoders.run, 256),
    "responder": Target("a connected endpoint that is written to", responder.run, 320),
    "requestor": Target("a connected endpoint whose data is answered", requestor.run, 320),
    "rendezvous": Target("lines, the handshake, messages and the lock", rendezvous.run, 512),
    "manifest": Target("the list of files, names, messages and whole transfers", manifest.run, 512),
    "ranks": Target("what the ranks of a job say to each other", ranks.run, 512),
    "perf": Target("what the two sides of a measurement say", perf.run, 512),
}
