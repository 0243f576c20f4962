"""Settings that are checked, and the attributes two sides tell each other before the first packet.

What a peer says of itself is not trusted before it is read.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.errors import ConfigError, PeerProtocolError
from mrc.proto.attributes import from_json_untrusted, to_json
from mrc.proto.config import Config, DscpMap
from tests.support.pair import Pair

PAIR = Pair()
GOOD: dict[str, Any] = json.loads(
    json.dumps(
        to_json(
            PAIR.a.endpoint.attributes(
                PAIR.a.qp,
                (("10.0.0.1", 4971), ("fd00::1%eth0", 4791)),
                receive_buffer_bytes=1 << 20,
            )
        )
    )
)


def test_attributes_survive_the_way() -> None:
    """What one side says as JSON the other reads as the same attributes."""
    attributes = from_json_untrusted(GOOD)
    assert json.loads(json.dumps(to_json(attributes))) == GOOD
    assert attributes.planes == (("10.0.0.1", 4971), ("fd00::1%eth0", 4791))


@pytest.mark.parametrize("name", sorted(GOOD))
def test_missing_attribute(name: str) -> None:
    """No attribute may be missing, and the complaint names it."""
    with pytest.raises(PeerProtocolError, match="planes" if name == "planes" else name):
        from_json_untrusted({key: value for key, value in GOOD.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("qpn", 2),
        ("qpn", 1 << 24),
        ("qpn", True),
        ("qpn", 5.0),
        ("first_psn", -1),
        ("mtu", 1500),
        ("mpr_psns", 0),
        ("mpr_psns", 1 << 20),
        ("immediates_max", 0),
        ("endpoint_tag", 256),
        ("link_bps", -1),
        ("receive_buffer_bytes", 100),
        ("icrc", 1),
        ("planes", []),
        ("planes", [["10.0.0.1", 4971]] * 65),
        ("planes", [["10.0.0.1", 0]]),
        ("planes", [["10.0.0.1", 65536]]),
        ("planes", [["10.0.0.1", True]]),
        ("planes", [["peer.example", 4971]]),
        ("planes", [["", 4971]]),
        ("planes", [["1" * 100, 4971]]),
        ("planes", ["10.0.0.1"]),
        ("planes", {}),
    ],
)
def test_attribute_out_of_range(name: str, value: object) -> None:
    """A value of another type or out of range is the peer's mistake, named as such."""
    with pytest.raises(PeerProtocolError, match="queue pair attribute"):
        from_json_untrusted(GOOD | {name: value})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(value=anything)
def test_anything_else_is_refused(value: object) -> None:
    """No JSON whatever makes reading it fail in another way."""
    with pytest.raises(PeerProtocolError):
        from_json_untrusted(value)


@given(name=st.sampled_from(sorted(GOOD)), value=anything)
def test_any_value_in_any_place(name: str, value: object) -> None:
    """One attribute replaced by anything is either in range or refused."""
    try:
        from_json_untrusted(GOOD | {name: value})
    except PeerProtocolError as error:
        assert "queue pair attribute" in str(error)  # noqa: PT017 - either outcome is right


# Settings.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mtu": 1500}, "mtu = 1500 bytes; must be one of 256, 512, 1024, 2048, 4096"),
        ({"mpr_psns": 1025}, "multiple of 128"),
        ({"mpr_psns": 896}, "mpr_psns = 896 PSNs; must be 1024 to 32640"),
        ({"paths": 0}, "paths = 0 EVs; must be 1 to 4096"),
        ({"backup_paths": -1}, "backup_paths"),
        ({"paths_min": 0}, "paths_min"),
        ({"immediates_max": 31}, "immediates_max = 31 messages; must be 32"),
        ({"timeout": 25}, "timeout = 25"),
        ({"retry_linear": 8}, "retry_linear"),
        ({"retry_exponential": 26}, "retry_exponential"),
        ({"sack_bytes": 1023}, "sack_bytes = 1023 bytes"),
        ({"link_bps": -1}, "link_bps"),
        ({"recovery_successes": 0}, "recovery_successes"),
    ],
)
def test_setting_out_of_range(settings: dict[str, int], message: str) -> None:
    """A setting out of range is refused with its value, unit and limits."""
    with pytest.raises(ConfigError, match=message):
        Config(**settings)  # type: ignore[arg-type] # integers only


def test_code_point_out_of_range() -> None:
    """DSCP code points have six bits."""
    with pytest.raises(ConfigError, match="trimmed = 64"):
        DscpMap(trimmed=64)


def test_derived_settings() -> None:
    """Backups and floor are a quarter of the paths unless set; T is 1.024 * 2^timeout us."""
    plain, chosen = Config(paths=10), Config(paths=10, backup_paths=0, paths_min=7, timeout=8)
    assert (plain.backups, plain.floor) == (3, 2)
    assert (chosen.backups, chosen.floor, chosen.timeout_ns) == (0, 7, 262_144)
