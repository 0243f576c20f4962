"""Topology files: what they may say, and how a mistake is told."""

from pathlib import Path

import pytest

from netns import topology
from netns.errors import LabError

GOOD = """
title: Two hosts
hosts: [a, b]
switches: [s]
links: [[a, s], [s, b]]
"""


def load(folder: Path, text: str) -> topology.Topology:
    """Read a topology of this text."""
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return topology.load(str(path))


@pytest.mark.parametrize("name", topology.names())
def test_what_ships_can_be_read(name: str) -> None:
    """Every file in the folder is a topology with a title and a word on what it is for."""
    found = topology.load(name)
    assert found.title
    assert found.what


def test_mtu_is_changed_from_outside() -> None:
    """One file serves for large and small packets."""
    assert topology.load("four-plane").mtu == 9000
    assert topology.load("four-plane", mtu=1500).mtu == 1500


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    """A path that ends in .yaml is a file, whatever ships."""
    assert load(tmp_path, GOOD).hosts == ["a", "b"]


def test_an_unknown_name_lists_what_there_is() -> None:
    """The remedy is in the message."""
    with pytest.raises(LabError, match=r"no topology nowhere; there are .*four-plane"):
        topology.load("nowhere")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("hosts: [a, b]", "hosts: [a, B]"), r"hosts\.1: 'B' is no name for a node"),
        (("hosts: [a, b]", "hosts: [a, a]"), "two nodes are called a"),
        (("[s, b]", "[s, c]"), "link s-c: there is no node c"),
        (("[s, b]", "[a, b]"), "link a-b: one end must be a switch"),
        (("[s, b]", "[s, s]"), "link s-s: its ends must be two nodes"),
        (("[s, b]", "[s, a]"), "no link leads to host b"),
        (
            ("switches: [s]", "switches: [s, lo]"),
            r"switches\.1: no node can be called lo; nor wires",
        ),
        (("[s, b]", "{ends: [s, b], name: 's>b'}"), r"links\.1\.name: .*pattern.*'s>b'"),
        (("title: Two hosts", "title: T\nrate_mbps: 0.05"), r"rate_mbps: .*0\.1.*has 0\.05"),
        (("title: Two hosts", "titel: Two hosts"), "titel: Extra inputs are not permitted"),
        (("title: Two hosts", "title: T\nmtu: 500"), r"mtu: .*1280.*has 500"),
        (("title: Two hosts", "title: T\nrate_mbps: fast"), r"rate_mbps: .*number.*'fast'"),
        (
            ("title: Two hosts", "title: T\nqueue: {ecn_min_kib: 9, ecn_max_kib: 3}"),
            "ecn_min_kib = 9.0 KiB is above ecn_max_kib",
        ),
        (("title: Two hosts", "title: ["), "is no YAML"),
        ((GOOD, "just words"), "must hold keys and values, has str"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    """The message says where in the file, what is wrong, and what the file has."""
    with pytest.raises(LabError, match=complaint) as caught:
        load(tmp_path, GOOD.replace(*change))
    assert "mine.yaml" in str(caught.value)
