"""One run of collectives, from its event loop to its exit code: what rank 0 prints, and when."""

from __future__ import annotations

from typing import Any

from mrc.cli.failures import ExitCode
from mrc.perf.collective.exercise import in_place
from mrc.perf.collective.figures import (
    HEADING,
    CollectiveTest,
    average_bus_bytes_per_second,
    closing_lines,
)
from mrc.perf.collective.measuring import Where
from mrc.perf.collective.settings import CollectivePlan
from mrc.perf.session import PerfSession
from mrc.text import printable


class CollectiveSession(PerfSession):
    """A session of mrc-perf whose tests are collectives.

    Args:
        plan: what is measured.
        rank: which one this is; all but 0 say nothing but what went wrong.
        as_json: print one document at the end, and nothing else to standard output; ranks other
            than 0 do so only when they fail.
        as_stream: print its parts as they come up instead, a line each.
        start: what the document's `start` says beyond version and time.

    Attributes:
        tests: that are through.
    """

    def __init__(
        self,
        plan: CollectivePlan,
        rank: int,
        *,
        as_json: bool,
        as_stream: bool,
        start: dict[str, Any],
    ) -> None:
        self._speaks = rank == 0
        super().__init__(as_json=as_json, as_stream=as_stream, start={"rank": rank, **start})
        self._plan = plan
        self.tests: list[CollectiveTest] = []

    def say(self, text: str) -> None:
        """Print a line for people, if this is the rank that speaks."""
        if self._speaks:
            super().say(text)

    def met(self, ranks: list[Where]) -> None:
        """Print what is measured, by whom, and the names of the columns."""
        self.report.start["ranks"] = [
            {"rank": each.rank, "pid": each.pid, "host": printable(each.host)} for each in ranks
        ]
        plan = self._plan
        if self._speaks:
            self._event("start", self.report.start)
        place = "in place" if in_place(plan) else "out of place"
        count = f"{plan.ranks} rank{'s' if plan.ranks > 1 else ''}"
        self.say(f"# {plan.collective}, {place}, {count}; 1 GB/s = 10^9 byte/s")
        self.say(
            f"# {plan.iterations} iterations after {plan.warm_up} of warm-up, each begun when the"
            " one before is over"
        )
        turns = f", the median of {plan.rounds} rounds in turns" if plan.rounds > 1 else ""
        checked = "contents verified" if plan.verify else "contents not verified"
        self.say(f"# time is the mean of the ranks{turns}; {checked}")
        self.say(f"# {self._settings()}")
        for each in ranks:
            self.say(f"#  Rank {each.rank:>3} Pid {each.pid:>7} on {printable(each.host)}")
        for line in HEADING:
            self.say(line)

    def _settings(self) -> str:
        """Say what the figures depend on, beside the machine."""
        start, plan = self.report.start, self._plan
        lock = "encrypted" if start["locked"] else "not encrypted"
        count = f"{start['paths']} path{'s' if start['paths'] > 1 else ''}"
        icrc = f"iCRC {'on' if start['icrc'] else 'off'}"
        names = [name or plan.chosen(size) for name in plan.algorithms for size in plan.counts]
        by = " and ".join(dict.fromkeys(filter(None, names)))
        # Where the network takes less, so do the ranks.
        text = f"{lock}; {count}, MTU up to {start['mtu_bytes']}, {icrc}"
        return f"{text}; by {by}" if by else text

    def measured(self, test: CollectiveTest) -> None:
        """Print the row of the latest test."""
        self.tests.append(test)
        if self._speaks:
            self._event("test", test.to_json())
        self.say(str(test))

    def concluded(self) -> None:
        """Print what all tests come to."""
        for line in closing_lines(self.tests):
            self.say(line)

    def _print_document(self, error: BaseException | None, code: ExitCode) -> None:
        # Rank 0 tells what all have measured; why another one failed only that one may know.
        if self._speaks or error is not None:
            super()._print_document(error, code)

    def _document(self, error: BaseException | None, code: ExitCode) -> dict[str, Any]:
        end: dict[str, Any] | None = None
        if self.tests:
            average = average_bus_bytes_per_second(self.tests)
            end = {
                "tests": [test.to_json() for test in self.tests],
                "paths": [],
                "explain": {},
                "bus_bits_per_second": None if average is None else 8 * average,
            }
        return super()._document(error, code) | {"end": end}
