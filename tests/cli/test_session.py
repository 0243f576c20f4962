"""One run of a command: what stays of its transfers when they are over."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import pytest

from mrc.cli.progress import Progress
from mrc.cli.session import Session
from mrc.errors import PeerLost
from tests.cli.fakelink import FakeLink


@pytest.mark.parametrize("error", [None, PeerLost("gone")])
def test_a_report_does_not_keep_the_connection(error: PeerLost | None) -> None:
    """A receiver that goes on for ever remembers numbers and words, not rings and sockets."""
    session = Session("mrc-recv", sending=False, as_json=True, quiet=True, start={})
    known = _transfer(session, error)
    gc.collect()
    assert known() is None
    assert session.reports[0].moved_bytes == 0
    assert (session.reports[0].error is None) == (error is None)


def _transfer(session: Session, error: PeerLost | None) -> weakref.ref[FakeLink]:
    link = FakeLink("there")
    with suppress(PeerLost), session.transfer(link, Progress()):
        if error is not None:
            # Another of its kind: the test's own would keep this frame.
            raise PeerLost(str(error))
    return weakref.ref(link)
