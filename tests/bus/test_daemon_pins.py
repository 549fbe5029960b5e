"""Pins, as a whole daemon keeps them on a host with a simulated library: over restarts, at the terminal, and without an answer."""

import json
import os
import signal
import subprocess
import sys

import pytest

from sim.daemon_process import REPOSITORY, wait_for
from sim.npu_node import NpuNode
from sim.patient_ctl import PATIENT_CTL

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes"),
]


def describe_pin(node: NpuNode, target: str) -> dict[str, object]:
    pins = node.daemon.describe()["pins"]
    assert isinstance(pins, list)
    (found,) = [pin for pin in pins if pin["target"] == target]
    assert isinstance(found, dict)
    return found


def wait_standing(node: NpuNode, target: str, standing: str) -> None:
    wait_for(lambda: describe_pin(node, target)["standing"] == standing, what=f"{target}: {standing}")


def explained(node: NpuNode) -> dict[str, object]:
    path = "/org/devward/Devward1/vnpu/v0100"
    answer = node.daemon.busctl("--json=short", "call", "org.devward.Devward1", path, "org.devward.Devward1.Vnpu", "Explain")
    document = json.loads(json.loads(answer.stdout)["data"][0])
    assert isinstance(document, dict)
    return document


def test_a_pin_and_its_vnpu_outlast_a_restart_of_the_daemon(watched: NpuNode, devices_holder: int) -> None:
    daemon = watched.daemon
    die = str(daemon.get("/card/p000", "Card", "DieId"))
    target = f"{die}/100/vir05_1c_16g"
    assert daemon.call("Pin", "sst", target, "a training", "0")[1:] == ["done", [[target, "success", ""]]]
    assert daemon.call("Pin", "sst", target, "a training", "0")[1:] == ["done", [[target, "noop", ""]]]
    assert daemon.call("Pin", "sst", die, "the whole card", "0")[1:] == ["done", [[die, "success", ""]]]
    daemon.stop(signal.SIGKILL)
    daemon.start(devices_of=devices_holder)
    watched.wait_tree("card/p000", "vnpu/v0100")
    wait_standing(watched, target, "matched")
    assert (describe_pin(watched, target)["matches"], describe_pin(watched, target)["reason"]) == (["v0100"], "a training")
    assert describe_pin(watched, die)["matches"] == ["p000"]
    told = explained(watched)
    assert [pin["target"] for pin in told["pins"]] == [target, die]  # type: ignore[attr-defined]
    assert (told["pin_standing"], told["offerable"]) == ("matched", True)
    assert not {code for code in watched.codes() if code.startswith("pin-")}
    assert daemon.call("Unpin", "st", die, "0")[1:] == ["done", [[die, "success", ""]]]
    assert "There is no pin of" in daemon.refused("Unpin", "st", die, "0")
    daemon.stop()
    daemon.start(devices_of=devices_holder)
    (pin,) = daemon.describe()["pins"]  # type: ignore[misc,attr-defined]
    assert pin["target"] == target  # type: ignore[has-type]


def test_another_vnpu_of_the_name_that_was_pinned_is_a_finding_until_it_is_pinned(watched: NpuNode, devices_holder: int) -> None:
    daemon, simulator = watched.daemon, watched.simulator
    target = f"{daemon.get('/card/p000', 'Card', 'DieId')}/100/vir05_1c_16g"
    daemon.call("Pin", "sst", target, "a training", "0")
    chip = simulator.read().chips[0]
    simulator.destroy(simulator.vnpus(chip)[0])
    watched.remove("vdavinci100")
    wait_standing(watched, target, "unmatched")
    daemon.wait_event("finding", DEVWARD_REASON="pin-unmatched", DEVWARD_SUBJECT=f"pin/{target}")
    watched.create(chip)
    wait_standing(watched, target, "other-identity")
    daemon.wait_event("finding", DEVWARD_REASON="pin-other-identity", DEVWARD_SUBJECT=f"pin/{target}")
    told = explained(watched)
    assert (told["pin_standing"], told["offerable"]) == ("other-identity", False)
    assert "pinned again" in str(told["not_offerable_because"])
    # The next run of the daemon knows it, too.
    daemon.stop()
    daemon.start(devices_of=devices_holder)
    wait_standing(watched, target, "other-identity")
    assert daemon.call("Pin", "sst", target, "the new one", "0")[1:] == ["done", [[target, "success", ""]]]
    wait_standing(watched, target, "matched")
    assert not {code for code in watched.codes() if code.startswith("pin-")}


def test_pins_at_the_terminal(watched: NpuNode) -> None:
    daemon = watched.daemon

    def ctl(*arguments: str) -> str:
        command = [sys.executable, *PATIENT_CTL, "--bus", daemon.bus.address, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "LANG": "C.UTF-8"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout

    target = f"{daemon.get('/card/p000', 'Card', 'DieId')}/100/vir05_1c_16g"
    assert ctl("pin", "100", "--reason", "a training").startswith(f"{target} is pinned.\n")
    (pin,) = json.loads(ctl("pins", "--json"))
    assert (pin["target"], pin["standing"], pin["matches"]) == (target, "matched", ["v0100"])
    assert (pin["reason"], pin["caller_uid"]) == ("a training", os.geteuid())
    assert "a training" in ctl("explain", "v0100")
    assert ctl("unpin", "v0100").startswith(f"{target} is not pinned any more.\n")
    assert ctl("pins") == "No pins.\n"
    intent, outcome = daemon.events("action", DEVWARD_MEMBER="Unpin")
    assert intent["DEVWARD_REQUEST_ID"] == outcome["DEVWARD_REQUEST_ID"]


def test_pins_of_npus_that_cannot_be_asked_about_or_are_left_alone(watched: NpuNode) -> None:
    daemon = watched.daemon
    die = str(daemon.get("/card/p000", "Card", "DieId"))
    there, gone = f"{die}/100/vir05_1c_16g", f"{die}/101/vir05_1c_16g"
    daemon.call("Pin", "sst", there, "a training", "0")
    assert daemon.call("Pin", "sst", gone, "one to come", "0")[1:] == ["done", [[gone, "success", "pin-unmatched"]]]
    (process,) = watched.host.processes
    process.send_signal(signal.SIGKILL)
    process.wait()
    watched.host.listener.shutdown(2)
    daemon.call("Rescan", "t", "0")
    for target in (there, gone):
        wait_standing(watched, target, "unknown")
    assert not {code for code in watched.codes() if code.startswith("pin-")}
    daemon.write_config('[npu]\ndevices = "off"\n')
    daemon.call("Reload", "t", "0")
    for target in (there, gone):
        wait_standing(watched, target, "unmatched")
    assert watched.codes() >= {"pin-unmatched"}
