"""Ascend NPUs on a booted system: the vendor's library and driver are simulated, all else is real.

Device nodes come and go with real events of the kernel, the broker runs in the host's namespaces and scans the machine's processes, and the
service manager is systemd.
"""

import contextlib
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from devward.npu.facts import Expected, Outcome, Refusal
from devward.npu.inventory import BROKER
from devward.npu.numbering import WILDCARD
from devward.npu.protocol import DestroyAnswer, InspectAnswer, InspectRequest, ListAnswer, ListRequest, RefusedAnswer
from sim.daemon_process import again_while
from sim.dcmi_simulator import STATE_FILE, Chip, Vnpu, build_library
from system.vm.answers import Answers
from system.vm.boot import Boot
from system.vm.containers import Podman, mount_later, unmount_later
from system.vm.machine import CommandFailed, Machine
from system.vm.npus import BUNDLES, DONE, SOCKET, UNIT, Npus
from system.vm.warden import LIMIT, Warden

SEED = 20260501
TEMPLATE = "vir05_1c_16g"


@pytest.fixture(scope="module", name="host")
def _host(machine: tuple[Machine, Boot], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Npus]:
    vm, _ = machine
    npus = Npus(vm, build_library(tmp_path_factory.mktemp("dcmi")))
    try:
        npus.install()
        yield npus
    finally:
        npus.remove()
        vm.run("systemctl", "restart", "devward")
        Warden(vm).wait_well()


@pytest.fixture(name="npus")
def _npus(host: Npus, warden: Warden) -> Iterator[Npus]:
    """A host whose driver is loaded, without NPUs. No test may leave a trace of a node that was opened."""
    host.simulator.reset()
    warden.wait("no NPU shown", lambda described: not described["npus"]["cards"])
    yield host
    host.simulator.clear_faults()
    assert [who for who in host.opened() if who[1] not in host.holders] == []


def shown(warden: Warden, npus: Npus, count: int) -> dict[str, Any]:
    """Wait until so many NPUs are vouched for, all there are, with their vNPUs; return the description."""
    expected = len(npus.simulator.vnpus())

    def is_shown(described: dict[str, Any]) -> bool:
        found = described["npus"]
        return [card["reason"] for card in found["cards"]] == [""] * count and len(found["vnpus"]) == expected

    return warden.wait(f"{count} NPUs with {expected} vNPUs", is_shown)


# --- what is shown -------------------------------------------------------------------------------------------------------------
@pytest.fixture(name="strangers")
def _strangers(npus: Npus, vm: Machine, warden: Warden) -> Iterator[Npus]:
    """The same for a test whose NPUs have other dies than those of the other tests: devward remembers which one it saw where first."""
    yield npus
    npus.simulator.reset()
    # Those that an administrator made go with no driver.
    vm.run("find", "/dev", "-maxdepth", "1", "-regex", "/dev/v?davinci[0-9]+", "-delete")
    vm.run("systemctl", "restart", "devward")
    warden.wait_well()


@pytest.mark.usefixtures("strangers")
def test_the_bus_shows_what_there_is_through_a_thousand_changes(vm: Machine, figures: dict[str, str]) -> None:
    changes, batch = 1000, 40
    arguments = (str(STATE_FILE), DONE, str(SEED), str(changes), str(batch))
    done = json.loads(vm.run("python3", "/opt/vm/npu_changes.py", *arguments, timeout=1200))
    assert sum(done["happened"].values()) == changes
    assert {"create", "destroy", "recreate", "card", "swap", "die", "health", "use", "chip_node", "vnpu_node"} <= done["happened"].keys()
    assert len(done["took"]["comparison"]) == changes // batch
    figures[f"{changes} changes of NPUs, {changes // batch} comparisons"] = ", ".join(
        f"{name} {statistics.median(values):.1f} s" for name, values in done["took"].items()
    )


# --- the broker ----------------------------------------------------------------------------------------------------------------
class Bench:
    """Two chips with three vNPUs each, as devward shows them."""

    def __init__(self, vm: Machine, npus: Npus, warden: Warden) -> None:
        self.vm, self.npus, self.warden, self.simulator = vm, npus, warden, npus.simulator
        with self.simulator.held_back():
            self.chip: Chip = self.simulator.add_chip("910B3")
            self.other: Chip = self.simulator.add_chip("910B3")
            self.vnpus: list[Vnpu] = [self.simulator.create(self.chip, TEMPLATE) for _ in range(3)]
            self.others: list[Vnpu] = [self.simulator.create(self.other, TEMPLATE) for _ in range(3)]
        shown(warden, npus, 2)

    def refusal(self, expected: Expected) -> Refusal:
        """Ask for a destruction that must not be; return the reason."""
        before = self.simulator.read()
        (answer,) = self.npus.ask(self.npus.request(expected))
        assert isinstance(answer, RefusedAnswer), answer
        assert self.simulator.read() == before
        return answer.reason


@pytest.fixture(name="bench")
def _bench(vm: Machine, npus: Npus, warden: Warden) -> Bench:
    return Bench(vm, npus, warden)


def test_the_broker_is_the_hosts_administrator(bench: Bench) -> None:
    vm, pid = bench.vm, bench.npus.broker()
    assert pid
    for kind in ("mnt", "pid", "user", "net"):
        assert vm.run("readlink", f"/proc/{pid}/ns/{kind}") == vm.run("readlink", f"/proc/1/ns/{kind}")
    one, other = (vm.run("grep", "-E", "^Cap(Eff|Prm|Bnd)", f"/proc/{process}/status") for process in (1, pid))
    assert one == other
    assert vm.run("readlink", f"/proc/{bench.warden.run_id()[0]}/ns/mnt") != vm.run("readlink", "/proc/1/ns/mnt")
    listed, inspected = bench.npus.ask(ListRequest(1), InspectRequest(2, bench.other.card, bench.other.dev))
    assert isinstance(listed, ListAnswer)
    assert [(chip.die, [vnpu.vdev for vnpu in chip.vnpus or ()]) for chip in listed.inventory.chips] == [
        (chip.vdie, [vnpu.id for vnpu in vnpus]) for chip, vnpus in ((bench.chip, bench.vnpus), (bench.other, bench.others))
    ]
    assert isinstance(inspected, InspectAnswer)
    assert inspected.inspection.chip == listed.inventory.chips[1]
    # The library that was found is the one in the vendor's place, and only the broker has it.
    holders = vm.shell("grep -l libdcmi /proc/[0-9]*/maps 2>/dev/null || true").split()
    assert holders == [f"/proc/{pid}/maps"]


def test_it_destroys_the_vnpu_that_is_meant_and_that_nobody_holds(bench: Bench, figures: dict[str, str]) -> None:
    vm, npus, simulator = bench.vm, bench.npus, bench.simulator
    vnpu, foreign = bench.vnpus[1], bench.others[1]
    whole, neighbour = npus.expected(bench.chip, vnpu), npus.expected(bench.other, foreign)
    begin = bench.warden.now()
    wrong = {
        Refusal.BOOT_DIFFERS: replace(whole, boot_id="11111111-1111-4222-8333-444455556666"),
        Refusal.DIE_DIFFERS: replace(whole, die=neighbour.die),
        Refusal.PHY_DIFFERS: replace(whole, card=neighbour.card),
        Refusal.VFID_DIFFERS: replace(whole, vfid=3),
        Refusal.TEMPLATE_DIFFERS: replace(whole, template="vir10_3c_32g"),
        Refusal.NODE_DIFFERS: replace(whole, node=replace(whole.node, inode=whole.node.inode + 1)),
        Refusal.WILDCARD: replace(whole, vdev=WILDCARD),
        Refusal.OUTSIDE_WINDOW: replace(whole, vdev=foreign.id),
    }
    assert {reason: bench.refusal(expected) for reason, expected in wrong.items()} == {reason: reason for reason in wrong}
    assert bench.refusal(replace(neighbour, phy=whole.phy)) is Refusal.OUTSIDE_WINDOW
    assert bench.refusal(replace(whole, node=replace(whole.node, ctime_ns=whole.node.ctime_ns - 1))) is Refusal.NODE_DIFFERS

    # The driver's flag shows only the use by a container that is not privileged.
    with npus.held(vnpu.id):
        assert bench.refusal(whole) is Refusal.SCAN_IN_USE
    with container_that_names(vm, vnpu.id):
        assert bench.refusal(whole) is Refusal.SCAN_IN_USE
    simulator.occupy(vnpu)
    assert bench.refusal(whole) is Refusal.IN_USE
    simulator.set_vnpu(vnpu, used=0, container=0)

    # Another one that is held is no reason.
    since, before = bench.warden.now(), simulator.read()
    simulator.set_node(log=str(simulator.log))
    with npus.held(bench.vnpus[0].id), npus.held(foreign.id):
        began = time.monotonic()
        (answer,) = npus.ask(npus.request(whole, 77))
        figures["a vNPU destroyed by the broker, all processes scanned"] = f"{time.monotonic() - began:.1f} s"
    assert isinstance(answer, DestroyAnswer)
    assert (answer.outcome, answer.code) == (Outcome.DESTROYED, 0)
    assert simulator.read().vnpus == [other for other in before.vnpus if other.id != vnpu.id]
    assert vm.run("cat", str(simulator.log)).count("dcmi_set_destroy_vdevice") == 1
    vm.shell(f"while [ -e /dev/vdavinci{vnpu.id} ]; do sleep 0.1; done")
    assert [line.split(":")[1] for line in simulator.cfg_lines()] == [str(other.id) for other in before.vnpus if other.id != vnpu.id]
    names = {f"v{other.id:04d}" for other in simulator.vnpus()}
    bench.warden.wait("gone", lambda described: {one["name"] for one in described["npus"]["vnpus"]} == names)
    assert bench.refusal(whole) in (Refusal.NODE_MISSING, Refusal.VNPU_ABSENT)

    # Both journals tell of it: what the broker did, and what the daemon saw.
    vm.run("journalctl", "--sync")
    records = [json.loads(line) for line in vm.run("journalctl", "--output=json", f"--after-cursor={begin}").splitlines()]
    told = [record for record in records if record.get("DEVWARD_REQUEST_ID") == "r77"]
    assert [record.get("DEVWARD_OUTCOME") for record in told] == [None, "destroyed"]
    assert {record["_SYSTEMD_UNIT"] for record in told} == {UNIT}
    # Those of before are of the beginning, where udevd was late with the nodes.
    (gone,) = bench.warden.wait_events(since, "vnpu-gone")
    assert f"vNPU {vnpu.id} ({TEMPLATE})" in gone["MESSAGE"]


@contextlib.contextmanager
def container_that_names(vm: Machine, vdev: int) -> Iterator[None]:
    """A container of the kubelet's, as Ascend's runtime prepares it: its process has not opened the vNPU yet."""
    bundle = f"{BUNDLES}/{'c0' * 32}"
    device = {"path": f"/dev/davinci{vdev}", "type": "c", "major": 240, "minor": vdev}
    hook = {"path": "/usr/local/bin/ascend-docker-destroy", "args": ["ascend-docker-destroy", "0", "0", str(vdev)]}
    spec = {"ociVersion": "1.1.0", "process": {"args": ["sleep"]}, "hooks": {"poststop": [hook]}, "linux": {"devices": [device]}}
    vm.run("mkdir", "-p", bundle)
    vm.write(f"{bundle}/config.json", json.dumps(spec))
    vm.write(f"{bundle}/init.pid", "1")
    try:
        yield
    finally:
        vm.run("rm", "-r", bundle)


def test_only_root_can_connect(vm: Machine, npus: Npus) -> None:
    program = f"import socket; socket.socket(socket.AF_UNIX).connect({npus.socket!r})"
    vm.run("python3", "-Ic", program)
    with pytest.raises(CommandFailed, match="PermissionError"):
        vm.run("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "python3", "-Ic", program)


def test_no_request_by_root_destroys_what_it_does_not_name_whole(vm: Machine, npus: Npus, warden: Warden, figures: dict[str, str]) -> None:
    simulator, count = npus.simulator, 800
    with simulator.held_back():
        # One card has two dies.
        for family, phy, card, template in (
            ("910B3", 0, 0, TEMPLATE),
            ("910C", 16, 8, TEMPLATE),
            ("910C", 17, 8, TEMPLATE),
            ("310P", 18, 18, "vir01"),
        ):
            chip = simulator.add_chip(family, phy=phy, card=card)
            made = [simulator.create(chip, template) for _ in range(6)]
            simulator.occupy(made[-1])
    begin = warden.now()
    began = time.monotonic()
    done = json.loads(vm.run("python3", "/opt/vm/npu_fuzz.py", str(STATE_FILE), str(SEED), str(count), timeout=1200))
    answers = done["answers"]
    wanted = {
        Refusal.MALFORMED, Refusal.VERSION, Refusal.WILDCARD, Refusal.OUTSIDE_WINDOW, Refusal.BOOT_DIFFERS, Refusal.PHY_DIFFERS,
        Refusal.DIE_DIFFERS, Refusal.VFID_DIFFERS, Refusal.TEMPLATE_DIFFERS, Refusal.NODE_DIFFERS, Refusal.EXPIRED, Refusal.IN_USE,
    }  # fmt: skip
    assert wanted | {"destroyed"} <= answers.keys()
    assert Refusal.INTERNAL not in answers
    # One broker answered all of it.
    started = vm.run("journalctl", "--output=cat", f"--after-cursor={begin}", f"--unit={UNIT}").count("Started ")
    assert started <= 1
    assert len(npus.simulator.vnpus()) == done["left"]
    shown(warden, npus, 4)
    figures[f"{count} requests to the broker, {done['destroyed']} of them right"] = f"{time.monotonic() - began:.0f} s"


# --- a vendor's side that misbehaves --------------------------------------------------------------------------------------------
def look(vm: Machine, times: int = 1) -> None:
    """Have the daemon look at NPUs by an event of the kernel, as often as it does at the most."""
    vm.shell(f"for i in $(seq {times}); do echo change >/sys/class/cuse/davinci0/uevent; sleep 1.2; done")


def finding(warden: Warden, vm: Machine, *codes: str) -> dict[str, str]:
    """Have the daemon look until it has one of these findings about the broker, and vouches for no NPU; return it."""

    def is_found(described: dict[str, Any]) -> bool:
        found = {one["code"] for one in described["findings"] if one["subject"] == BROKER}
        if found & set(codes) and all(card["reason"] for card in described["npus"]["cards"]):
            return True
        look(vm)
        return False

    described = warden.wait(f"one of {codes}", is_found)
    return next(one for one in described["findings"] if one["code"] in codes)


def well_again(warden: Warden, npus: Npus) -> None:
    """Wait until everything is vouched for again, without waiting for the end of a pause after failures."""
    warden.call("Rescan", "t", "0")
    shown(warden, npus, 2)


def test_whatever_the_vendors_side_does_kvm_is_answered_for(bench: Bench, figures: dict[str, str]) -> None:
    vm, npus, warden, simulator = bench.vm, bench.npus, bench.warden, bench.simulator
    answers, begin, run = Answers(vm, figures), warden.now(), warden.run_id()
    with answers.while_("all well"):
        look(vm, 8)
    shown(warden, npus, 2)

    with answers.while_("the broker killed again and again"):
        for _ in range(8):
            vm.run("systemctl", "kill", "--signal=KILL", UNIT, check=False)
            look(vm)
        vm.run("systemctl", "kill", "--signal=KILL", UNIT, check=False)
    well_again(warden, npus)

    for action, codes in (("garbage", ("npu-list-incomplete", "npu-broker-garbled")), ("segv", ("npu-broker-unreachable",))):
        serial = simulator.fault("*", action, value=SEED)
        with answers.while_(f"the library at every call: {action}"):
            told = finding(warden, vm, *codes)
            assert told["text"]
            look(vm, 4)
        simulator.clear_faults(serial)
        well_again(warden, npus)

    # It ends itself, by its timer.
    serial = simulator.fault("dcmi_get_device_health", "hang")
    pid = npus.broker()
    with answers.while_("the library hangs, until the broker ended itself"):
        finding(warden, vm, "npu-broker-silent")
        vm.shell(f"while [ -e /proc/{pid} ]; do echo change >/sys/class/cuse/davinci0/uevent; sleep 1; done")
    vm.run("journalctl", "--sync")
    assert "dcmi_get_device_health does not return after 30 s" in vm.run(
        "journalctl", f"--unit={UNIT}", "--output=cat", f"--after-cursor={begin}"
    )
    assert warden.unit("NRestarts", "ActiveState", unit=SOCKET)["ActiveState"] == "active"
    simulator.clear_faults(serial)
    well_again(warden, npus)
    assert warden.events(begin, "broker-kill") == []
    reasons = {record["DEVWARD_REASON"] for record in warden.wait_events(begin, "card-unknown")}
    assert {"npu-broker-unreachable", "npu-broker-silent"} <= reasons
    assert warden.run_id() == run


def test_a_broker_that_cannot_end_itself_is_ended_by_the_service_manager(bench: Bench, figures: dict[str, str]) -> None:
    """It is stopped, timer thread and all. So that it is not the unit's watchdog which ends it, that is off."""
    vm, npus, warden = bench.vm, bench.npus, bench.warden
    drop_in = f"/run/systemd/system/{UNIT}.d/no-watchdog.conf"
    vm.run("mkdir", "-p", drop_in.rpartition("/")[0])
    vm.write(drop_in, "[Service]\nWatchdogSec=0\n")
    try:
        vm.shell(f"systemctl daemon-reload; systemctl stop {UNIT}")
        well_again(warden, npus)
        vm.shell(f"until systemctl --quiet is-active {UNIT}; do sleep 0.1; done")
        begin, pid = warden.now(), npus.broker()
        vm.run("systemctl", "kill", "--signal=STOP", UNIT)
        began = time.monotonic()
        with Answers(vm, figures).while_("the broker stopped, until systemd ended it"):
            finding(warden, vm, "npu-broker-silent")
            # No event: what is due comes by itself.
            intent, outcome = warden.wait_events(begin, "broker-kill", 2)
        figures["a broker that stands still, until it was ended"] = f"{time.monotonic() - began:.0f} s"
        assert (intent["DEVWARD_OUTCOME"], outcome["DEVWARD_OUTCOME"]) == ("intent", "success")
        assert outcome["_SYSTEMD_UNIT"] == "devward.service"
        vm.shell(f"while [ -e /proc/{pid} ]; do sleep 0.1; done")
        well_again(warden, npus)
        assert npus.broker() not in (0, pid)
    finally:
        vm.shell(f"rm -r {drop_in.rpartition('/')[0]}; systemctl daemon-reload; systemctl stop {UNIT}")


# --- what people read ------------------------------------------------------------------------------------------------------------
def patiently(vm: Machine, *words: str) -> str:
    """Read with devwardctl; again where the machine was too slow for the five seconds that it waits."""
    return again_while(lambda out: "did not answer" in out, lambda: vm.run("devwardctl", *words, check=False), LIMIT)


def test_people_can_read_it(bench: Bench) -> None:
    vm, warden, simulator = bench.vm, bench.warden, bench.simulator
    begin = warden.now()
    simulator.occupy(bench.vnpus[0])
    simulator.set_chip(bench.other, health=3)
    simulator.destroy(bench.others[2])
    look(vm)
    warden.wait("seen", lambda described: described["npus"]["cards"][1]["reason"] == "npu-unhealthy")
    # A line of vnpu.cfg without a vNPU is a finding when it is seen twice.
    described = warden.wait("settled", lambda described: "vnpu-record-unmatched" in {one["code"] for one in described["findings"]})
    cards, vnpus = (patiently(vm, kind).splitlines() for kind in ("cards", "vnpus"))
    assert cards[0].split()[:3] == ["NPU", "CHIP", "HEALTH"]
    assert cards[1].split()[:7] == ["p000", "Ascend", "910B3", "healthy", "15", "of", "20"]
    assert cards[2].split()[:4] == ["p001", "Ascend", "910B3", "unhealthy"]
    assert "npu-unhealthy" in cards[2]
    assert bench.other.vdie in cards[2]
    assert [line.split()[:4] for line in vnpus[1:]] == [
        [f"v{vnpu.id:04d}", card, TEMPLATE, use]
        for card, of, uses in (("p000", bench.vnpus, ("in-use", "idle", "idle")), ("p001", bench.others[:2], ("idle", "idle")))
        for vnpu, use in zip(of, uses, strict=True)
    ]
    # Root is told everything, once the bus could say in time who asks.
    detail = f"{bench.others[2].id} of physical id {bench.other.phy}"
    found = again_while(lambda out: detail not in out, lambda: patiently(vm, "findings"), LIMIT)
    assert "npu-unhealthy" in found
    assert detail in found
    explained = patiently(vm, "explain", f"/dev/vdavinci{bench.others[0].id}")
    assert "p001" in explained
    assert "health 3" in explained
    (event,) = warden.wait_events(begin, "card-unknown")
    assert (event["DEVWARD_REASON"], event["DEVWARD_DEVICE"]) == ("npu-unhealthy", "/dev/davinci1")
    written = vm.run("journalctl", "--catalog", f"--after-cursor={begin}")
    assert "NPU p001 cannot be vouched for: The vendor's library calls the NPU unhealthy (health 3)." in written
    assert "Subject: NPU card/p001 cannot be vouched for" in written
    assert described["manager"]["ready"]


# --- what it costs -----------------------------------------------------------------------------------------------------------------
def test_memory_with_sixteen_cards_of_sixteen_vnpus(vm: Machine, npus: Npus, warden: Warden, figures: dict[str, str]) -> None:
    """The bars are 90 and 16 MB; they are judged elsewhere, on a machine that is a processor."""
    simulator = npus.simulator
    with simulator.held_back():
        for _ in range(16):
            chip = simulator.add_chip("910B3")
            for _ in range(16):
                simulator.create(chip, TEMPLATE)
    began = time.monotonic()
    shown(warden, npus, 16)
    figures["16 cards with 256 vNPUs, from their nodes to all shown"] = f"{time.monotonic() - began:.1f} s"
    look(vm, 3)
    shown(warden, npus, 16)
    for name, pid, bar in (("devwardd", warden.run_id()[0], 90.0), ("devward-dcmi", str(npus.broker()), 16.0)):
        lines = vm.run("cat", f"/proc/{pid}/smaps_rollup").splitlines()
        pss = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
        figures[f"PSS of {name} with them"] = f"{pss:.1f} MB"
        assert pss < bar, name


# --- containers ------------------------------------------------------------------------------------------------------------------
NPU_SPEC, VNPU_SPEC = "/etc/cdi/ascend.com-npu.json", "/etc/cdi/ascend.com-vnpu.json"
LISTS = "/etc/ascend-docker-runtime.d"
DRIVER_LIBRARIES = "/usr/local/Ascend/driver/lib64"
SHARED = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


@pytest.fixture(name="later", scope="module")
def _later(machine: tuple[Machine, Boot]) -> Iterator[Podman]:
    """Debian 13's podman."""
    vm, _ = machine
    try:
        yield mount_later(vm)
    finally:
        unmount_later(vm)


@pytest.fixture(name="vendor")
def _vendor(vm: Machine, later: Podman) -> Iterator[tuple[str, ...]]:
    """The vendor's driver, also where the later podman looks, and its list of what containers need; return what exists of that."""
    tool = "/opt/vendor/npu-tool"
    vm.shell(f"""
        for root in "" {later.root}; do
            mkdir -p "$root{DRIVER_LIBRARIES}/common" "$root{DRIVER_LIBRARIES}/driver" "$root/opt/vendor"
            echo tool >"$root{tool}"
        done
        mkdir {LISTS}
        printf '%s\\n' {DRIVER_LIBRARIES} {tool} /opt/vendor/missing >{LISTS}/base.list
    """)
    yield DRIVER_LIBRARIES, tool
    vm.shell(f"rm -rf {LISTS} /opt/vendor /usr/local/Ascend {later.root}/opt/vendor {later.root}/usr/local/Ascend")


def as_given(vm: Machine, path: str, user: int = 0) -> list[object]:
    """Return number, mode and owner of a node of the host, as a container of that user has it: a document without a mode means 0666."""
    major, minor = vm.run("stat", "--format=%Hr %Lr", path).split()
    return [f"{major}:{minor}", "0666", user, user]


def test_a_container_has_the_npu_that_it_was_given_what_goes_with_it_and_nothing_else(
    bench: Bench, later: Podman, vendor: tuple[str, ...], figures: dict[str, str]
) -> None:
    vm, warden = bench.vm, bench.warden
    warden.call("Rescan", "t", "0")
    warden.wait(
        "the file of NPUs with the vendor's mounts",
        lambda described: (
            any(spec["file"] == NPU_SPEC and spec["state"] == "true" for spec in described["specs"])
            and vendor[1] in vm.run("cat", NPU_SPEC, check=False)
        ),
    )
    both = [f"/dev/davinci{bench.chip.phy}", f"/dev/davinci{bench.other.phy}"]
    for engine in (Podman(vm), later):
        without = engine.seen()
        for name, cards in (("0", both[:1]), ("1", both[1:]), ("all", both)):
            seen = engine.seen(f"ascend.com/npu={name}")
            more = {path: facts for path, facts in seen["nodes"].items() if path not in without["nodes"]}
            assert more == {path: as_given(vm, path) for path in (*cards, *SHARED)}
            assert set(without["nodes"]) <= set(seen["nodes"])
            mounts = {path: options for path, options in seen["mounts"].items() if path not in without["mounts"]}
            assert set(mounts) - {*more} == set(vendor)
            assert all("ro" in mounts[path] for path in vendor)
            assert seen["env"]["LD_LIBRARY_PATH"] == f"{DRIVER_LIBRARIES}/common:{DRIVER_LIBRARIES}/driver"
            assert "LD_LIBRARY_PATH" not in without["env"]
        nobody = engine.seen("ascend.com/npu=0", user=65534)["nodes"]
        assert {path: nobody[path] for path in (both[0], *SHARED)} == {path: as_given(vm, path, 65534) for path in (both[0], *SHARED)}
    figures["podman with NPUs"] = f"{Podman(vm).versions()}; {later.versions()}"


def test_an_npu_that_is_gone_is_given_to_no_container(bench: Bench) -> None:
    vm, warden, simulator = bench.vm, bench.warden, bench.simulator
    engine = Podman(vm)
    name = f"ascend.com/npu={bench.other.phy}"
    warden.wait("the NPU in its file", lambda described: any(name in spec["devices"] for spec in described["specs"]))
    engine.seen(name)
    with simulator.held_back():
        for vnpu in bench.others:
            simulator.destroy(vnpu)
        simulator.remove_card(bench.other.card)
    with pytest.raises(CommandFailed):
        engine.seen(name)
    warden.wait("the NPU out of its file", lambda described: all(name not in spec["devices"] for spec in described["specs"]))
    with pytest.raises(CommandFailed, match="unresolvable CDI devices"):
        engine.seen(name)
    engine.seen(f"ascend.com/npu={bench.chip.phy}")


def test_a_pinned_vnpu_is_given_to_containers_under_the_name_that_they_look_for(bench: Bench) -> None:
    vm, warden = bench.vm, bench.warden
    engine, vnpu = Podman(vm), bench.vnpus[0]
    name = f"ascend.com/vnpu={vnpu.id}"
    target = f"{bench.chip.vdie}/{vnpu.id}/{TEMPLATE}"
    without = engine.seen()
    with pytest.raises(CommandFailed, match="unresolvable CDI devices"):
        engine.seen(name)
    try:
        warden.call("Pin", "sst", target, "a test", "0")
        warden.wait("the vNPU in its file", lambda described: any(name in spec["devices"] for spec in described["specs"]))
        seen = engine.seen(name)
        more = {path: facts for path, facts in seen["nodes"].items() if path not in without["nodes"]}
        inside = {f"/dev/davinci{vnpu.id}": f"/dev/vdavinci{vnpu.id}", **{path: path for path in SHARED}}
        assert more == {path: as_given(vm, host) for path, host in inside.items()}
        warden.wait_allocation((True, ""), name)
    finally:
        warden.call("Unpin", "st", target, "0")
    warden.wait("no vNPU in any file", lambda described: all(name not in spec["devices"] for spec in described["specs"]))
