"""From a topology to addresses and routes: pure, so every rule is checked without a kernel."""

import pytest

from netns import topology
from netns.errors import LabError
from netns.fabric import Fabric, plan
from netns.topology import Topology


def fabric(name: str) -> Fabric:
    """Plan a topology that ships."""
    return plan(topology.load(name))


def joined(*links: tuple[str, str], hosts: str = "a b", switches: str = "s t") -> Fabric:
    """Plan one made of these links."""
    made = {"title": "t", "hosts": hosts.split(), "switches": switches.split(), "links": links}
    return plan(Topology.model_validate(made))


def test_a_hosts_links_are_its_planes() -> None:
    """Plane p of host h is 10.p.h.1; both ends of a plane share its first number."""
    assert fabric("four-plane").addresses("b") == [f"10.{plane}.2.1" for plane in range(4)]
    assert fabric("four-plane").addresses("b", version=6)[3] == "fd00:3:2::1"


def test_no_two_devices_share_an_address() -> None:
    """Neither MAC nor IP addresses repeat, in the largest fabric that ships."""
    ends = [end for link in fabric("clos").links for end in link.ends]
    for kind in ("mac", "ipv4", "ipv6"):
        assert len({getattr(end, kind) for end in ends}) == len(ends)


def test_devices_have_names_the_kernel_takes_and_are_unique_per_node() -> None:
    """At most 15 characters; parallel links are numbered."""
    for name in topology.names():
        found = fabric(name)
        for node in found.nodes:
            devices = [end.device for _, end in found.interfaces(node)]
            assert len(set(devices)) == len(devices)
            assert all(len(device) <= 15 for device in devices)


def test_parallel_links_are_two_hops_of_one_route() -> None:
    """Two links between two switches: ECMP has both."""
    (route,) = [r for r in fabric("two-path").routes["s1"] if r.ipv4 == "10.0.2.0/24"]
    assert [hop.device for hop in route.hops] == ["s2", "s2.2"]


def test_parallel_links_are_counted_whichever_way_they_are_written() -> None:
    """[s, t] and [t, s] join the same two nodes: each gets devices of its own."""
    found = joined(("a", "s"), ("s", "t"), ("t", "s"), ("t", "b"))
    assert [link.name for link in found.links] == ["a-s", "s-t", "t-s.2", "t-b"]
    assert [end.device for _, end in found.interfaces("s")] == ["a", "t", "t.2"]
    assert [end.device for _, end in found.interfaces("t")] == ["s", "s.2", "b"]


def test_two_links_of_one_name_are_refused() -> None:
    """A fault on it would be on one of them."""
    made = topology.load("two-path").model_dump()
    made["links"][0]["name"] = "s2-b"
    with pytest.raises(LabError, match="two links are called s2-b"):
        plan(Topology.model_validate(made))


def test_switches_of_a_plane_have_as_many_links_as_there_are_nets() -> None:
    """The 256th would be 10.100.256.1."""
    with pytest.raises(LabError, match="link s-t: plane 0 has addresses for at most 255 links"):
        joined(("a", "s"), *[("s", "t")] * 256, ("t", "b"))


def test_a_leaf_reaches_the_other_leafs_hosts_over_every_spine() -> None:
    """All shortest ways, in both planes, and none through a host or a longer way."""
    found = fabric("clos")
    for leaf, spines in (("x1", ["xa", "xb"]), ("y1", ["ya", "yb"])):
        remote = [r for r in found.routes[leaf] if len(r.hops) > 1]
        assert len(remote) == 2
        assert all([hop.device for hop in r.hops] == spines for r in remote)


def test_a_host_sends_each_plane_to_its_own_switch() -> None:
    """The planes never meet, so a packet stays on the one its source address names."""
    routes = fabric("clos").routes["a"]
    assert [(r.ipv4, r.hops[0].device) for r in routes] == [
        ("10.0.0.0/16", "p0"),
        ("10.1.0.0/16", "p1"),
    ]


def test_planes_must_be_listed_in_their_order() -> None:
    """The second plane of a host cannot be its first link."""
    with pytest.raises(LabError, match="plane 1 is listed where b needs plane 0"):
        joined(("a", "s"), ("a", "t"), ("t", "b"), ("s", "b"))


def test_unknown_links_and_hosts_are_told_with_what_there_is() -> None:
    """For whoever mistypes one."""
    found = fabric("two-path")
    with pytest.raises(LabError, match=r"no link x-y; there are a-s1, s1-s2, s1-s2\.2, s2-b"):
        found.link("x-y")
    with pytest.raises(LabError, match="no host s1; there are a, b"):
        found.addresses("s1")
