"""Fabrics on this kernel: made, used, broken, removed, whatever happens in between."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyroute2 import netns as namespaces

from netns import faults, topology
from netns.delays import hop_devices
from netns.errors import LabError
from netns.fabric import plan
from netns.lab import Lab
from netns.leftovers import MARK, environment, labs, processes, sweep
from netns.places import FILES, STATES, Claim, prefix

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
UDP = [sys.executable, "-m", "tests.netns.udp_echo"]


def lab(name: str, fabric: str, **changes: int) -> Lab:
    """Return a lab of a topology that ships, not up yet."""
    return Lab(plan(topology.load(fabric, **changes)), name)


def run(up: Lab, node: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a node."""
    line = up.command(node, list(command))
    return subprocess.run(line, capture_output=True, text=True, timeout=20, check=False)


def reaches(up: Lab, node: str, address: str, *options: str) -> bool:
    """Tell whether UDP gets from a node to an address and back."""
    return run(up, node, *UDP, address, *options).returncode == 0


@pytest.mark.parametrize("name", topology.names())
def test_every_host_reaches_every_other_on_every_plane(lab_name: str, name: str) -> None:
    """Over IPv4 and IPv6, with packets as large as the MTU."""
    with lab(lab_name, name) as up:
        hosts = up.fabric.topology.hosts
        for host in hosts[1:]:
            for version in (4, 6):
                for address in up.fabric.addresses(host, version):
                    assert reaches(up, hosts[0], address, "--via", host, "--size", "8900")


def test_nothing_is_left_after_down(lab_name: str) -> None:
    """No namespace, no process, no file."""
    with lab(lab_name, "unequal") as up:
        assert processes(lab_name)
        assert lab_name in labs()
        (up.folder / "large").touch()
    assert lab_name not in labs()
    assert not processes(lab_name)
    assert not list(STATES.glob(f"{lab_name}.*"))
    assert not (FILES / lab_name).exists()


def test_what_a_crash_left_is_swept_by_the_next_up(lab_name: str) -> None:
    """Half a lab of an earlier run is no obstacle."""
    namespaces.create(f"{prefix(lab_name)}b")
    namespaces.create(f"{prefix(lab_name)}gone")
    with lab(lab_name, "two-path") as up:
        assert reaches(up, "a", up.fabric.addresses("b")[0], "--via", "b")
    assert not [n for n in namespaces.listnetns() if n.startswith(prefix(lab_name))]


def test_a_lab_whose_maker_was_killed_can_be_removed(lab_name: str) -> None:
    """`down` needs neither the process nor its state file."""
    code = (
        "import sys; from netns import topology; from netns.fabric import plan;"
        "from netns.lab import Lab;"
        f"Lab(plan(topology.load('unequal')), '{lab_name}').up(); print('up', flush=True);"
        "sys.stdin.read()"
    )
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "up\n"
        maker.kill()
    (STATES / f"{lab_name}.json").unlink()
    assert sweep(lab_name)
    assert lab_name not in labs()
    assert not processes(lab_name)


def test_two_labs_stand_side_by_side(lab_name: str) -> None:
    """The same addresses in both, and one goes without the other."""
    with lab(f"{lab_name}a", "two-path") as one, lab(f"{lab_name}b", "two-path") as two:
        assert reaches(one, "a", one.fabric.addresses("b")[0], "--via", "b")
        one.down()
        assert reaches(two, "a", two.fabric.addresses("b")[0], "--via", "b")


def test_processes_of_the_lab_are_ended_with_it(lab_name: str) -> None:
    """What was started inside does not keep the namespace alive."""
    with lab(lab_name, "two-path") as up:
        sleeper = subprocess.Popen(up.command("a", ["sleep", "60"]), env=up.environment())
        assert sleeper.pid in processes(lab_name)
        up.down()
        assert sleeper.wait(timeout=10) == -signal.SIGTERM


def test_a_process_that_is_just_being_started_is_waited_for(lab_name: str) -> None:
    """Its environment cannot be read for a moment after the start: it would outlive the lab."""
    for _ in range(200):
        with subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: lab_name}) as sleeper:
            began_with = environment(Path(f"/proc/{sleeper.pid}"))
            sleeper.kill()
        assert f"{MARK}={lab_name}".encode() in began_with.split(b"\0")


def test_a_lab_that_a_process_is_using_is_no_other_process_s(lab_name: str) -> None:
    """Neither swept nor broken, whoever asks; when that process has closed it, it is free."""
    with lab(lab_name, "two-path") as up:
        for other in (lab(lab_name, "two-path").up, lab(lab_name, "two-path").down):
            with pytest.raises(LabError, match=rf"in use by process {os.getpid()}: end that"):
                other()
        assert reaches(up, "a", up.fabric.addresses("b")[0], "--via", "b")
        up.close()
        with Claim(lab_name):
            pass


def test_a_lock_that_a_killed_process_left_is_free(lab_name: str) -> None:
    """The kernel lets go of it; the file is no obstacle, and goes with the next who has it."""
    code = (
        "import os; from netns.places import Claim;"
        f"Claim('{lab_name}').take(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert (STATES / f"{lab_name}.lock").exists()
    with Claim(lab_name):
        pass
    assert not (STATES / f"{lab_name}.lock").exists()


def test_a_lab_cannot_be_swept_from_inside(lab_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell of whoever asks would end with it."""
    monkeypatch.setenv("MRC_LAB", lab_name)
    with pytest.raises(LabError, match="leave its shell first"):
        sweep(lab_name)


def test_children_born_while_a_lab_ends_are_ended_too(lab_name: str) -> None:
    """One that answers SIGTERM with another process gets no farther than that one."""
    code = "trap 'sleep 60 & exit' TERM; echo ready; while :; do sleep 0.01; done"
    environment = {**os.environ, "MRC_LAB": lab_name}
    with subprocess.Popen(["sh", "-c", code], env=environment, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        assert len(sweep(lab_name)) >= 2
    assert not processes(lab_name)


@pytest.mark.parametrize("name", ["../lab", "*", "", "lab*", "A", "x" * 14])
def test_a_name_that_is_none_reaches_no_file(name: str) -> None:
    """What root removes is named after it."""
    for use in (sweep, processes, Lab.open, prefix, Claim):
        with pytest.raises(LabError, match="no name for a lab"):
            use(name)


def test_a_process_of_another_lab_is_let_alone(lab_name: str) -> None:
    """Only what carries this lab's mark is ended."""
    environment = {**os.environ, "MRC_LAB": f"{lab_name}other"}
    with subprocess.Popen(["sleep", "60"], env=environment) as other:
        with lab(lab_name, "two-path"):
            pass
        assert other.poll() is None
        other.kill()


def test_source_ports_spread_over_parallel_links(lab_name: str) -> None:
    """The kernel's ECMP hashes the UDP ports: both links carry some of 64 flows."""
    with lab(lab_name, "two-path") as up:
        target = up.fabric.addresses("b")[0]
        assert reaches(up, "a", target, "--via", "b", "--flows", "64")
        carried = [up.ports[name].counters().packets for name in ("s1-s2>s2", "s1-s2.2>s2")]
        assert sum(carried) >= 64
        assert min(carried) > 10


def test_a_switch_sees_single_packets(lab_name: str) -> None:
    """What a host sends as one segmented run crosses a link as its packets."""
    with lab(lab_name, "two-path") as up:
        target = up.fabric.addresses("b")[0]
        before = up.ports["a-s1>s1"].counters()
        assert reaches(up, "a", target, "--via", "b", "--segments", "10", "--size", "1000")
        after = up.ports["a-s1>s1"].counters()
        assert after.packets - before.packets >= 10
        # Ethernet, IPv4 and UDP around 1000 bytes: none was larger.
        assert (after.bytes - before.bytes) / (after.packets - before.packets) < 1100


def test_a_blackhole_in_one_direction_lets_the_other_pass(lab_name: str) -> None:
    """The echo does not come back, yet the request has arrived."""
    with lab(lab_name, "four-plane") as up:
        target = up.fabric.addresses("b")[2]
        link = up.fabric.link("a-s2")
        faults.fail(up, link, "blackhole", towards="a")
        assert not reaches(up, "a", target, "--via", "b")
        assert up.ports["s2-b>b"].counters().packets > 0
        assert up.ports["a-s2>a"].counters().blackholed > 0
        faults.heal(up, link)
        assert reaches(up, "a", target, "--via", "b")


@pytest.mark.parametrize("kind", ["carrier-down", "port-down"])
def test_a_device_that_was_down_is_as_before_when_healed(lab_name: str, kind: str) -> None:
    """Its addresses, neighbours and routes went with it, for both IP versions."""
    with lab(lab_name, "four-plane") as up:
        link = up.fabric.link("a-s2")
        faults.fail(up, link, kind)
        for version in (4, 6):
            assert not reaches(up, "a", up.fabric.addresses("b", version)[2], "--via", "b")
        assert reaches(up, "a", up.fabric.addresses("b")[1], "--via", "b")
        faults.heal(up, link)
        for version in (4, 6):
            assert reaches(up, "a", up.fabric.addresses("b", version)[2], "--via", "b")


def test_a_rebooted_switch_routes_again(lab_name: str) -> None:
    """All its devices were down at once."""
    with lab(lab_name, "clos") as up:
        target = up.fabric.addresses("c")[0]
        for spine in ("xa", "xb"):
            faults.switch_down(up, spine)
        assert not reaches(up, "a", target, "--via", "c")
        faults.switch_up(up, "xa")
        faults.switch_up(up, "xb")
        assert reaches(up, "a", target, "--via", "c", "--flows", "16")


def test_the_rate_of_a_link_changes_while_it_is_up(lab_name: str) -> None:
    """The queue's rate in the program is the shaper's."""
    with lab(lab_name, "two-path") as up:
        link = up.fabric.link("s2-b")
        faults.fail(up, link, "rate", amount=50, towards="b")
        assert up.ports["s2-b>b"].settings().rate_bps == 50_000_000
        faults.heal(up, link)
        assert up.ports["s2-b>b"].settings().rate_bps == 400_000_000


def test_another_process_reads_and_breaks_a_lab_that_is_up(lab_name: str) -> None:
    """By the maps' numbers in its state: no file system of the kernel's is needed."""
    with lab(lab_name, "four-plane") as up:
        other = Lab.open(lab_name)
        faults.fail(other, other.fabric.link("s2-b"), "blackhole")
        other.close()
        assert up.ports["s2-b>b"].settings().blackhole


def test_delay_is_added_once_a_direction(lab_name: str) -> None:
    """A round trip over the plane of 5 ms takes at least 10 ms; over the plain one far less."""
    with lab(lab_name, "unequal") as up:
        addresses = up.fabric.addresses("b")
        began = time.monotonic()
        assert reaches(up, "a", addresses[2], "--via", "b", "--wait-ms", "2000")
        assert time.monotonic() - began > 0.010


def test_a_hop_that_dies_is_noticed(lab_name: str) -> None:
    """While the lab is up, with what it said last; without one there is nothing to say."""
    with lab(lab_name, "unequal") as up:
        assert up.hop_trouble() == []
        (hop,) = processes(lab_name)
        os.kill(hop, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while not up.hop_trouble() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert up.hop_trouble() == ["the hop for delays ended with status -9: ready"]
        assert up.end_hop() == ["the hop for delays ended with status -9: ready"]
        assert up.end_hop() == []


def test_what_a_hop_could_not_forward_is_told_at_its_end(lab_name: str) -> None:
    """It sends into a device that is down: refused, by the name of the link and the direction."""
    with lab(lab_name, "unequal") as up:
        link = up.fabric.link("s1-b")
        index = up.index("wires", hop_devices(up.fabric, link)[1])
        up.netlink("wires").link("set", index=index, state="down")
        assert not reaches(up, "a", up.fabric.addresses("b")[1], "--via", "b")
        (trouble,) = up.end_hop()
        assert re.fullmatch(r"the hop on s1-b \(ab\) has refused \d+ frames", trouble)


def test_the_hop_of_a_killed_run_ends_with_it(lab_name: str) -> None:
    """A lab that is a context manager leaves no process that waits before all others."""
    code = (
        "import os; from netns import topology; from netns.fabric import plan;"
        "from netns.lab import Lab;"
        f"Lab(plan(topology.load('unequal')), '{lab_name}').__enter__(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    deadline = time.monotonic() + 5
    while processes(lab_name) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not processes(lab_name)


def test_a_state_that_is_broken_is_told_with_the_remedy(lab_name: str) -> None:
    """No JSON, another topology, maps that are gone or another's; and nothing stays open."""
    with lab(lab_name, "two-path") as up:
        path = up.state_path(".json")
        good = json.loads(path.read_text(encoding="utf-8"))
        ids = list(good["ports"].values())
        before = len(list(Path("/proc/self/fd").iterdir()))
        for broken in (
            "{",
            "[]",
            json.dumps({**good, "topology": {}}),
            json.dumps({**good, "ports": {"x": {"config": 4_000_000_000, "state": 1}}}),
            json.dumps({**good, "ports": {"x": ids[0], "y": dict.fromkeys(ids[0], 0)}}),
            json.dumps({**good, "ports": {"x": {**ids[0], "config": ids[0]["state"]}}}),
        ):
            path.write_text(broken, encoding="utf-8")
            with pytest.raises(LabError, match=rf"mrc-lab down --name {lab_name}"):
                Lab.open(lab_name)
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_kernels_no_is_told_and_nothing_stays(lab_name: str) -> None:
    """An MTU no device takes: the lab is gone again."""
    broken = lab(lab_name, "two-path")
    object.__setattr__(broken.fabric.topology, "mtu", 70_000)
    with pytest.raises(LabError, match=r"the kernel refused link a-s1: .*Invalid argument"):
        broken.up()
    assert lab_name not in labs()


@pytest.mark.parametrize(
    ("kind", "how", "complaint"),
    [
        ("fire", {}, "no fault fire; there are blackhole"),
        ("loss", {}, "loss needs a number .percent. from 0 to 100; has None"),
        ("loss", {"amount": 101}, "from 0 to 100; has 101"),
        ("loss", {"amount": float("nan")}, "has nan"),
        ("rate", {"amount": 0}, r"rate needs a number .Mbit/s. from 0\.1 to 100000; has 0"),
        ("big-packets", {"amount": 0}, "from 1 to 65535; has 0"),
        ("rate", {"amount": 1, "towards": "s1"}, "from a to s1 there is none"),
        ("rate", {"amount": 1, "only": "data"}, "cannot be for data only"),
        ("tail-drop", {"towards": "s1"}, "from a to s1 there is none"),
        ("carrier-down", {"amount": 1}, "carrier-down takes no number"),
        ("port-down", {"towards": "s1"}, "not of the direction towards s1"),
        ("carrier-down", {"source_port": 7}, "nothing else takes one"),
        ("ev-loss", {"amount": 1, "source_port": 0}, "0 is no UDP source port"),
        ("blackhole", {"amount": 1}, "blackhole takes no number, has 1"),
        ("corrupt", {"amount": 1, "only": "data"}, "cannot be for data only"),
        ("ev-loss", {"amount": 1}, "ev-loss needs the UDP source port"),
        ("loss", {"amount": 1, "towards": "b"}, "a-s1 does not lead to b"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(
    lab_name: str, kind: str, how: dict[str, object], complaint: str
) -> None:
    """By its name, its number, its limits."""
    with lab(lab_name, "two-path") as up, pytest.raises(LabError, match=complaint):
        faults.fail(up, up.fabric.link("a-s1"), kind, **how)  # type: ignore[arg-type]


def test_a_fault_does_not_widen_another(lab_name: str) -> None:
    """A direction takes all, data or control; what would change that for a fault is refused."""
    with lab(lab_name, "two-path") as up:
        link = up.fabric.link("s2-b")
        faults.fail(up, link, "blackhole", only="data", towards="b")
        for towards in (None, "b"):
            with pytest.raises(LabError, match="another fault there is for data"):
                faults.fail(up, link, "loss", amount=1, towards=towards)
        assert up.ports["s2-b>s2"].settings().loss_ppm == 0
        faults.fail(up, link, "loss", amount=1, only="data", towards="b")
        faults.fail(up, link, "corrupt", amount=1, towards="b")
        assert up.ports["s2-b>b"].settings().only == "data"
        faults.heal(up, link)
        faults.fail(up, link, "ev-loss", amount=1, source_port=50_000)
        with pytest.raises(LabError, match="packets of port 50000 are lost there"):
            faults.fail(up, link, "ev-loss", amount=1, source_port=50_001)
