"""Capabilities are found by trying, and can be switched off."""

import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from mrc.udp import family_of, probe_caps
from mrc.udp.caps import NO_CAPS


def test_environment_switches_features_off(address: str) -> None:
    """MRC_GSO, MRC_GRO and MRC_ECN set to 0 each take one feature away, and nothing else."""
    family = family_of(address)
    caps = probe_caps(family, {})
    assert probe_caps(family, {"MRC_GSO": "0"}) == replace(caps, gso=False, max_segments=1)
    assert probe_caps(family, {"MRC_GRO": "0"}) == replace(caps, gro=False)
    assert probe_caps(family, {"MRC_ECN": "0"}) == replace(caps, ecn=False)
    assert probe_caps(family, {"MRC_GSO": "1"}) == caps


def test_flow_labels_are_for_ipv6_only() -> None:
    """IPv4 has no flow label to choose."""
    assert not probe_caps(socket.AF_INET, {}).flow_label


def test_a_family_that_cannot_be_opened_has_no_capabilities() -> None:
    """Probing never raises: what cannot be tried is missing."""
    assert probe_caps(12345, {}) == NO_CAPS


@pytest.mark.root
def test_without_a_loopback_the_socket_options_are_trusted() -> None:
    """In a new network namespace, its loopback still down, probing finds what it finds outside."""
    program = "import mrc.udp; print(mrc.udp.probe_caps(2, {}))"
    run = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "unshare failed" in run.stderr:
        pytest.skip("no network namespace")
    assert run.stdout.strip() == str(probe_caps(socket.AF_INET, {}))
