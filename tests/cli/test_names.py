"""Names a peer may use."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.cli.names import (
    COMPONENT_BYTES_MAX,
    DEPTH_MAX,
    is_reserved,
    journal_name,
    link_objection,
    link_target_untrusted,
    part_name,
    path_parts_untrusted,
)
from mrc.errors import PeerProtocolError

HOSTILE_PATHS = [
    "",
    "/",
    "/etc/passwd",
    "//etc/passwd",
    "..",
    "../x",
    "a/../../x",
    "a/..",
    "a/./b",
    ".",
    "./a",
    "a//b",
    "a/",
    "a\0b",
    "a/b\0",
    "x" * (COMPONENT_BYTES_MAX + 1),
    "é" * 128,
    "/".join("a" * (DEPTH_MAX + 1)),
    "a/" * 2100 + "a",
    "\ud800",
    ".x.mrc-part",
    "a/.x.mrc-journal",
    ".x.MRC-part",
    ".x.mrc-Journal",
    ".x.mrc-part.",
    ".x.mrc-part ..",
]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
def test_hostile_paths_are_refused(path: str) -> None:
    """A path that is absolute, climbs, is odd, too long, too deep or kept for us is refused."""
    with pytest.raises(PeerProtocolError):
        path_parts_untrusted(path)


@pytest.mark.parametrize(
    "path",
    [
        *("a", "a/b", "...", "..a", "a..", " ", "a\\b", "a\nb", "-rf", "~", "\udcff", "C:", "é"),
        *("x.mrc-part", ".mrc-parts", ".x.mrc-part.gz"),
    ],
)
def test_odd_but_legal_names_are_kept(path: str) -> None:
    """What is an ordinary name to the kernel is not refused for its looks."""
    assert "/".join(path_parts_untrusted(path)) == path


@given(st.text(max_size=60) | st.lists(st.sampled_from(["..", ".", "", "a", "\0"])).map("/".join))
def test_what_is_accepted_stays_inside(path: str) -> None:
    """Whatever text is accepted, joined to a folder and normalised it is below that folder."""
    try:
        parts = path_parts_untrusted(path)
    except PeerProtocolError:
        return
    assert os.path.normpath("/".join(("/out", *parts))) == "/out/" + path


@pytest.mark.parametrize(
    ("target", "depth"),
    [
        ("", 5),
        ("/etc/passwd", 5),
        ("..", 0),
        ("../..", 1),
        ("a/../b", 5),
        ("./a/..", 5),
        ("a\0", 5),
        ("\ud800", 5),
        ("x" * 5000, 5),
        ("./../x", 0),
        (".//..", 0),
    ],
)
def test_links_that_could_lead_out_are_refused(target: str, depth: int) -> None:
    """A link may climb only within what came with it, and only before it names anything."""
    with pytest.raises(PeerProtocolError):
        link_target_untrusted(target, depth)


@pytest.mark.parametrize(
    ("target", "depth"),
    [("a", 0), ("../a", 1), ("../../a/b", 2), (".", 0), ("a//b", 0), ("..x", 0), ("a..", 0)],
)
def test_links_that_stay_inside_are_kept(target: str, depth: int) -> None:
    """A relative link within the tree is taken as it is."""
    assert link_target_untrusted(target, depth) == target
    assert link_objection(target, depth) == ""


def test_unfinished_files_have_names_nobody_else_may_use() -> None:
    """The names for unfinished files are reserved, fit the kernel's limit and do not collide."""
    long_names = ["x" * 250 + tail for tail in ("a", "b")]
    names = ["a", "é" * 127, "\udcff" * 255, *long_names]
    made = [name(n) for n in names for name in (part_name, journal_name)]
    assert all(is_reserved(name) for name in made)
    assert all(len(os.fsencode(name)) <= COMPONENT_BYTES_MAX for name in made)
    assert len(set(made)) == len(made)
