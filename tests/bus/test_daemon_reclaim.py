"""devwardd as a process on a host with NPUs, a kubelet and an API server: what belongs to nobody is reclaimed, and nothing else."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from sim.api_faults import status
from sim.daemon_process import DaemonProcess, wait_for
from sim.dcmi_broker import BrokerHost
from sim.dcmi_simulator import DcmiSimulator, Vnpu
from sim.npu_node import NpuNode
from sim.owned_node import SCALED, OwnedNode

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes")]

#: Every rule is the default one; only how long things take is less.
CONFIG = "[reclaim]\ngrace = 4\ninterval = 1\n"
#: A devwardd with the host's time set by so many seconds, that keeps house twice a second, and in which an hour lasts a second.
SET_BY = """
import sys
from devward import __main__, app, clock, pausing
by, real = int(sys.argv.pop(1)) * 10**6, clock.Clock.realtime_usec
clock.Clock.realtime_usec = lambda self: real(self) + by
app.HOUSEKEEPING = 0.5
pausing._SETTLED = 1.0
sys.exit(__main__.main())
"""


@pytest.fixture
def owned(tmp_path: Path, library: Path) -> Iterator[OwnedNode]:
    """A host with two cards of HAMi's, whose looks come once a second."""
    with BrokerHost() as host, DcmiSimulator(host.directory / "node", library) as simulator:
        simulator.install(host.library)
        config = f'{CONFIG}kill_switch = "{tmp_path / "reclaim.disabled"}"\n'
        node = NpuNode(tmp_path, host, simulator, program=SCALED, config=config)
        with OwnedNode(node) as made, node.daemon as daemon:
            daemon.start()
            made.show_nodes()
            node.start_broker()
            yield made
            assert not daemon.process_ended(), daemon.output.read_text()


def kill_switch(owned: OwnedNode) -> Path:
    """Where the kill switch is, under which tests prepare what must not go before they are ready."""
    return owned.daemon.directory / "reclaim.disabled"


def verdict(owned: OwnedNode, vdev: int) -> tuple[str, str]:
    """Return the verdict and its reason; empty while there is no such vNPU."""
    path = f"/vnpu/v{vdev:04d}"
    if path.removeprefix("/") not in owned.node.tree():
        return "", ""
    return str(owned.daemon.get(path, "Vnpu", "Verdict")), str(owned.daemon.get(path, "Vnpu", "VerdictReason"))


def wait_while_beating(owned: OwnedNode, state: str, condition: Callable[[], object], what: str) -> None:
    """Wait for a condition while HAMi goes on reporting."""

    def holds() -> object:
        owned.beat(state)
        return condition()

    wait_for(holds, what=what)


def is_there(owned: OwnedNode, vnpu: Vnpu) -> bool:
    return any(one.id == vnpu.id for one in owned.node.simulator.vnpus())


def test_an_orphan_is_reclaimed_and_a_used_vnpu_is_not(owned: OwnedNode) -> None:
    owned.state("00")
    first, second = owned.chips()
    orphan = owned.node.create(first, "vir05_1c_8g")
    used = owned.node.create(second, "vir05_1c_8g")
    owned.node.simulator.occupy(used)
    heard = owned.daemon.directory / "heard"
    with heard.open("wb") as output:
        monitor = subprocess.Popen(
            ["busctl", f"--address={owned.daemon.bus.address}", "monitor", "--json=short", "--match=type='signal',member='VnpuReclaimed'"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
        )
    try:
        wait_while_beating(owned, "00", lambda: not is_there(owned, orphan), "the destruction")
        record = owned.daemon.wait_event("vnpu-reclaim", DEVWARD_OUTCOME="success")
        wait_for(lambda: b"VnpuReclaimed" in heard.read_bytes() and heard.read_bytes().endswith(b"\n"), what="the signal")
    finally:
        monitor.kill()
        monitor.wait()
    (signal,) = [json.loads(line) for line in heard.read_text().splitlines() if "VnpuReclaimed" in line]
    assert signal["payload"]["data"] == [orphan.id, 0, "vir05_1c_8g", record["DEVWARD_REQUEST_ID"][0]]
    assert is_there(owned, used)
    assert verdict(owned, used.id)[0] == "in-use"
    assert [call.function for call in owned.node.simulator.calls("dcmi_set_destroy_vdevice")] == ["dcmi_set_destroy_vdevice"]


# --- what stays -----------------------------------------------------------------------------------------------------------
def name_of(vnpu: Vnpu) -> str:
    return f"/vnpu/v{vnpu.id:04d}"


def wait_verdict(owned: OwnedNode, state: str, vnpu: Vnpu, wanted: str) -> str:
    """Wait for a verdict, while HAMi goes on reporting; return the reason."""
    wait_while_beating(owned, state, lambda: verdict(owned, vnpu.id)[0] == wanted, f"{vnpu.id}: {wanted}")
    return verdict(owned, vnpu.id)[1]


def destroys(owned: OwnedNode) -> list[str]:
    """Return the outcome of every record of a destruction."""
    return [one["DEVWARD_OUTCOME"][0] for one in owned.daemon.events("vnpu-reclaim")]


def test_what_is_claimed_pinned_or_held_stays_while_an_orphan_beside_it_goes(owned: OwnedNode) -> None:
    kill_switch(owned).touch()
    owned.state("01")
    first, second = owned.chips()
    claimed = owned.node.create(first, "vir05_1c_8g")
    pinned, held, orphan = (owned.node.create(second, "vir05_1c_8g") for _ in range(3))
    strange = owned.node.create(second, "vir04_not_hamis")
    owned.witnessed.process(900, f"/proc/{owned.daemon.pid}/root/dev/vdavinci{held.id}")
    wait_for(lambda: f"vnpu/v{pinned.id:04d}" in owned.node.tree(), what="the vNPUs")
    target = f"{owned.daemon.get('/card/p001', 'Card', 'DieId')}/{pinned.id}/vir05_1c_8g"
    owned.daemon.call("Pin", "sst", target, "a training", "0")
    kill_switch(owned).unlink()
    wait_while_beating(owned, "01", lambda: not is_there(owned, orphan), "the destruction")
    assert [is_there(owned, one) for one in (claimed, pinned, held, strange)] == [True] * 4
    owned.beat("01")
    assert verdict(owned, claimed.id)[0] == "protected"
    assert verdict(owned, pinned.id) == ("pinned", "pinned")
    assert verdict(owned, held.id) == ("owned", "held-on-host")
    assert verdict(owned, strange.id)[0] == "unmanaged"

    # What is on record, as a program reads it.
    success = owned.daemon.wait_event("vnpu-reclaim", DEVWARD_OUTCOME="success")
    intent = owned.daemon.wait_event("vnpu-reclaim", DEVWARD_OUTCOME="intent")
    assert success["DEVWARD_REQUEST_ID"] == intent["DEVWARD_REQUEST_ID"]
    for one in (intent, success):
        evidence = json.loads(one["DEVWARD_EVIDENCE"][0])
        assert evidence["recreate"] == f"npu-smi set -t create-vnpu -i {second.card} -c {second.dev} -f vir05_1c_8g -v {orphan.id}"
        assert (evidence["verdict"], evidence["host"]["all"]) == ("eligible", "clean")
    assert one["DEVWARD_TRIGGER"] == ["timer"]

    # By an administrator: by the same rules, in his name.
    owned.node.remove(f"vdavinci{orphan.id}")
    another = owned.node.create(second, "vir05_1c_8g")
    assert another.id == orphan.id
    wait_verdict(owned, "01", another, "candidate")
    identity = str(owned.daemon.get(name_of(another), "Vnpu", "Identity"))
    dry = owned.daemon.call("ReclaimVnpu", "ust", str(another.id), identity, "1")
    assert dry[1] == "done"
    assert dry[2][0][1] == "dry-run"  # type: ignore[index]
    request = owned.daemon.call("ReclaimVnpu", "ust", str(another.id), identity, "2")
    wait_while_beating(owned, "01", lambda: not is_there(owned, another), "the destruction that was asked for")
    asked = owned.daemon.wait_event("vnpu-reclaim", DEVWARD_OUTCOME="success", DEVWARD_REQUEST_ID=str(request[0]))
    assert asked["DEVWARD_TRIGGER"] == ["dbus"]
    # The record comes before the look by which the daemon knows it no more.
    wait_for(lambda: name_of(another).removeprefix("/") not in owned.node.tree(), what="the vNPU to go from the bus")
    assert "There is no vNPU" in owned.daemon.refused("ReclaimVnpu", "ust", str(another.id), identity, "0")
    assert "There is no vNPU" in owned.daemon.refused(
        "ReclaimVnpu", "ust", str(held.id), identity.replace(str(another.id), str(held.id)), "0"
    )
    assert [is_there(owned, one) for one in (claimed, pinned, held, strange)] == [True] * 4


def container_on(owned: OwnedNode, phy: int) -> None:
    """Let a container of docker's live that was given a card."""
    bundles, name = owned.witnessed.bundles, "ab" * 32
    owned.witnessed.process(901)
    bundles.task(name, {"process": {"env": [f"ASCEND_VISIBLE_DEVICES={phy}"]}, "linux": {}}, namespace="moby", pid=901)
    bundles.runc(name, 901, 77, place="docker/runtime-runc/moby")


def test_of_vnpus_that_the_driver_calls_used_only_that_is_on_record_which_nobody_uses(owned: OwnedNode) -> None:
    """No vNPU is idle, so that nobody's Pods are listed, and looks are few."""
    owned.state("00")
    first, second = owned.chips()
    container_on(owned, 1)
    stuck, used = (owned.node.simulator.occupy(owned.node.create(chip, "vir05_1c_8g")) for chip in (first, second))
    told = owned.daemon.wait_event("vnpu-kept", DEVWARD_VNPU=str(stuck.id))
    assert (told["DEVWARD_REASON"], told["DEVWARD_CARD"]) == (["driver-says-used"], ["p000"])
    assert [verdict(owned, one.id) for one in (stuck, used)] == [("in-use", "driver-says-used")] * 2
    assert [one["DEVWARD_VNPU"] for one in owned.daemon.events("vnpu-kept", DEVWARD_REASON="driver-says-used")] == [[str(stuck.id)]]


# --- what stops it --------------------------------------------------------------------------------------------------------
def blocked(owned: OwnedNode) -> list[str]:
    return list(owned.daemon.get("", "Manager", "BlockedReasons"))  # type: ignore[call-overload]


def told(owned: OwnedNode, vnpu: Vnpu) -> list[str]:
    """Return the reasons that Describe and Explain of a vNPU tell, with their sentences; empty where they tell different ones."""
    path = f"/org/devward/Devward1{name_of(vnpu)}"
    answer = owned.daemon.busctl("--json=short", "call", "org.devward.Devward1", path, "org.devward.Devward1.Vnpu", "Explain").stdout
    explained = json.loads(json.loads(answer)["data"][0])["blocked"]
    reclaiming = owned.daemon.describe()["reclaim"]
    assert isinstance(reclaiming, dict)
    described = reclaiming["blocked"]
    assert all(one["text"] for one in explained)
    return [one["reason"] for one in explained] if explained == described else []


def wait_blocked(owned: OwnedNode, reason: str, state: str) -> None:
    def holds() -> bool:
        return any(code.startswith(reason) for code in blocked(owned)) and owned.daemon.get("", "Manager", "ReclaimState") == state

    wait_while_beating(owned, "00", holds, f"{reason}, {state}")


def test_while_anything_stops_it_an_orphan_stays(owned: OwnedNode) -> None:
    daemon = owned.daemon
    kill_switch(owned).symlink_to("nothing")  # whatever has its name
    owned.state("00")
    _, second = owned.chips()
    orphan = owned.node.create(second, "vir05_1c_8g")
    wait_verdict(owned, "00", orphan, "eligible")
    wait_blocked(owned, "kill-switch", "blocked")

    # HAMi's lock only defers: what is eligible loses nothing. It does where an answer of the API server came too late on a busy machine.
    def loses_nothing() -> bool:
        wait_verdict(owned, "00", orphan, "eligible")
        owned.lock = "hami,2026-12-01T00:00:00Z"
        assert wait_verdict(owned, "00", orphan, "deferred") == "hami-locked"
        confirmations = int(str(daemon.get(name_of(orphan), "Vnpu", "Confirmations")))
        owned.lock = ""
        wait_verdict(owned, "00", orphan, "eligible")
        return int(str(daemon.get(name_of(orphan), "Vnpu", "Confirmations"))) >= confirmations >= 3

    wait_for(loses_nothing, deadline=120, what="a lock that only defers")

    daemon.call("SetReclaimMode", "st", "observe", "0")
    kill_switch(owned).unlink()
    wait_blocked(owned, "mode-observe", "observing")
    wait_verdict(owned, "00", orphan, "eligible")

    daemon.call("PauseReclaim", "tst", "600", "a look around", "0")
    daemon.call("SetReclaimMode", "st", "enforce", "0")
    wait_blocked(owned, "paused", "paused")
    wait_verdict(owned, "00", orphan, "eligible")

    owned.api.always("pods", status(503, "Service Unavailable", "etcd is away"))
    wait_verdict(owned, "00", orphan, "unknown")
    daemon.call("ResumeReclaim", "t", "0")
    wait_while_beating(owned, "00", lambda: daemon.get("", "Manager", "ReclaimState") == "blocked", "the API server is missed")
    assert is_there(owned, orphan)
    wait_for(lambda: blocked(owned) == told(owned, orphan) != [], what="each reason once, wherever it is told")

    # Where no record can be taken nothing is destroyed, and that is said.
    sink = daemon.directory / "journal"
    away = sink.rename(sink.with_suffix(".away"))
    owned.api.always("pods", None)
    wait_blocked(owned, "journal-refuses", "blocked")
    assert is_there(owned, orphan)
    assert owned.node.simulator.calls("dcmi_set_destroy_vdevice") == []
    away.rename(sink)

    wait_while_beating(owned, "00", lambda: not is_there(owned, orphan), "the destruction")
    states = [one["MESSAGE"][0] for one in daemon.events("reclaim-blocked")]
    assert any("paused" in one for one in states)


def restart(owned: OwnedNode) -> None:
    """Start devwardd anew, with the devices of before."""
    namespace = f"--mount=/proc/{owned.daemon.pid}/ns/mnt"
    with subprocess.Popen(["nsenter", namespace, "sleep", "infinity"], stdin=subprocess.DEVNULL) as holder:
        mine = os.readlink("/proc/self/ns/mnt")
        wait_for(lambda: os.readlink(f"/proc/{holder.pid}/ns/mnt") != mine, what="the namespace")
        owned.daemon.stop()
        owned.daemon.start(devices_of=holder.pid)
        owned.show_nodes()
        holder.kill()


# --- what the library does ------------------------------------------------------------------------------------------------
def test_what_the_library_does_decides_what_is_said_and_when_it_is_tried_again(owned: OwnedNode) -> None:
    daemon, simulator = owned.daemon, owned.node.simulator
    owned.state("00")
    _, second = owned.chips()
    orphan = owned.node.create(second, "vir05_1c_8g")
    simulator.fault("dcmi_set_destroy_vdevice", "code", value=-8001, effect=False, times=1)
    wait_while_beating(owned, "00", lambda: "failure" in destroys(owned), "a failure")
    (failure,) = daemon.events("vnpu-reclaim", DEVWARD_OUTCOME="failure")
    assert failure["DEVWARD_REASON"] == ["destroy-8001"]
    assert is_there(owned, orphan)

    # Its process ends in the call: what came of it is not known, and another whole round comes first.
    simulator.fault("dcmi_set_destroy_vdevice", "abort", effect=False, times=1)
    wait_while_beating(owned, "00", lambda: destroys(owned).count("failure") == 2, "no answer")
    assert daemon.events("vnpu-reclaim", DEVWARD_OUTCOME="failure")[1]["DEVWARD_REASON"] == ["no-answer"]
    owned.node.start_broker()

    # A restart of the daemon keeps nothing of what it waited for.
    wait_while_beating(owned, "00", lambda: int(str(daemon.get(name_of(orphan), "Vnpu", "Confirmations"))) > 0, "a confirmation")
    identity, restarted = daemon.get(name_of(orphan), "Vnpu", "Identity"), time.time()
    restart(owned)
    wait_while_beating(owned, "00", lambda: verdict(owned, orphan.id)[0] in ("candidate", "confirming"), "the wait")
    began = int(str(daemon.get(name_of(orphan), "Vnpu", "GraceStartUSec")))
    assert began > restarted * 1e6
    assert str(daemon.get(name_of(orphan), "Vnpu", "Identity")).split("/")[:3] == str(identity).split("/")[:3]

    simulator.fault("dcmi_set_destroy_vdevice", "code", value=-8002, effect=False)
    wait_while_beating(owned, "00", lambda: destroys(owned).count("failure") == 3, "not permitted")
    wait_blocked(owned, "destroying-not-permitted", "blocked")
    simulator.clear_faults()
    wait_verdict(owned, "00", orphan, "eligible")
    daemon.call("Reload", "t", "0")
    wait_while_beating(owned, "00", lambda: not is_there(owned, orphan), "the destruction")
    assert len(simulator.calls("dcmi_set_destroy_vdevice")) == 4


def asked(owned: OwnedNode, member: str, signature: str, *arguments: str) -> "subprocess.Popen[str]":
    """Ask for an action, and do not wait for the answer."""
    address = f"--address={owned.daemon.bus.address}"
    what = ("org.devward.Devward1", "/org/devward/Devward1", "org.devward.Devward1.Manager", member, signature, *arguments)
    return subprocess.Popen(["busctl", address, "--json=short", "call", *what], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def answer_of(asking: "subprocess.Popen[str]") -> list[list[str]]:
    with asking:
        output, _ = asking.communicate(timeout=60)
    assert asking.returncode == 0
    _, state, results = json.loads(output)["data"]
    assert state == "done"
    return cast(list[list[str]], results)


def test_who_asks_for_the_contrary_while_one_is_destroyed_is_answered_when_that_is_over(owned: OwnedNode) -> None:
    daemon, simulator = owned.daemon, owned.node.simulator
    kill_switch(owned).touch()
    owned.state("00")
    first, second = owned.chips()
    kept = owned.node.create(first, "vir05_1c_8g")
    orphan = owned.node.create(second, "vir05_1c_8g")
    wait_for(lambda: f"vnpu/v{kept.id:04d}" in owned.node.tree(), what="the vNPUs")
    target = f"{daemon.get('/card/p001', 'Card', 'DieId')}/{orphan.id}/vir05_1c_8g"
    other = str(daemon.get("/card/p000", "Card", "DieId"))
    serial = simulator.fault("dcmi_set_destroy_vdevice", "hang", effect=True)
    daemon.call("Pin", "sst", other, "another card", "0")
    kill_switch(owned).unlink()
    wait_while_beating(owned, "00", lambda: simulator.calls("dcmi_set_destroy_vdevice"), "the call")

    pin, pause = asked(owned, "Pin", "sst", target, "too late", "0"), asked(owned, "PauseReclaim", "tst", "60", "too late", "0")
    wait_for(lambda: target in [one["target"] for one in cast(list[dict[str, object]], daemon.describe()["pins"])], what="the pin")
    wait_for(lambda: daemon.get("", "Manager", "ReclaimState") == "paused", what="the pause")
    # One of what is not destroyed is answered at once.
    daemon.call("Unpin", "st", other, "0")
    assert daemon.call("Pin", "sst", other, "another card again", "0")[1:] == ["done", [[other, "success", ""]]]
    assert (pin.poll(), pause.poll()) == (None, None)
    simulator.clear_faults(serial)
    assert answer_of(pin) == [[target, "failure", "vnpu-destroyed"]]
    assert answer_of(pause) == [["reclaim", "success", ""]]
    assert not is_there(owned, orphan)
    assert is_there(owned, kept)
    assert daemon.events("action", DEVWARD_MEMBER="Pin", DEVWARD_OUTCOME="failure")[0]["DEVWARD_REASON"] == ["vnpu-destroyed"]


# --- a pause and the clock ------------------------------------------------------------------------------------------------
def test_a_pause_that_is_long_over_does_not_come_back_with_a_clock_that_is_behind(tmp_path: Path) -> None:
    def until() -> int:
        return int(str(daemon.get("", "Manager", "ReclaimPausedUntilUSec")))

    def saved() -> object:
        return json.loads((daemon.state / "state.json").read_text())["reclaim_pause"]

    with DaemonProcess(tmp_path) as daemon:
        daemon.start(program=("-c", SET_BY, "0"))
        daemon.call("PauseReclaim", "tst", "2", "a moment", "0")
        assert saved() is not None
        wait_for(lambda: saved() is None, what="a record without the pause")
        assert until() == 0
        daemon.stop()
        daemon.start(program=("-c", SET_BY, "-3600"))
        assert until() == 0
        daemon.call("PauseReclaim", "tst", "600", "the rack is moved", "0")
        asked = until()
        daemon.stop()
        daemon.start(program=("-c", SET_BY, "-3600"))
        assert until() == asked
