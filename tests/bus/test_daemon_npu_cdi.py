"""The CDI file of NPUs, as a whole daemon keeps it on a host with a simulated library: published, repaired, withdrawn, vouched for."""

import json
import os
import time
from pathlib import Path

import pytest

from devward.cdi import spec
from devward.npu.client import LIST_SECONDS
from sim.daemon_process import wait_for
from sim.journal_sink import Record
from sim.npu_node import SHARED, NpuNode

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes"),
]

KIND = "ascend.com/npu"
FILE = "ascend.com-npu.json"
#: Why an allocation is refused where the broker does not answer in time.
SILENT = "npu-broker-silent"


def path(node: NpuNode) -> Path:
    return node.daemon.cdi / FILE


def devices(node: NpuNode) -> tuple[str, ...]:
    """Return the names of the devices that engines find in the file."""
    try:
        data = path(node).read_bytes()
    except FileNotFoundError:
        return ()
    return tuple(device.partition("=")[2] for device in spec.load(data, FILE).devices)


def wait_devices(node: NpuNode, *names: object) -> None:
    wait_for(lambda: devices(node) == tuple(map(str, names)), what=f"{names}")


def specs(node: NpuNode) -> dict[str, str]:
    """Return the state of each file, by its name."""
    (rows,) = node.daemon.call("ListSpecs")
    return {os.path.basename(row[0]): row[2] for row in rows}  # type: ignore[attr-defined]


def check(node: NpuNode, device: str) -> tuple[bool, str]:
    """Ask whether a device may be given; again where the broker, which does answer, did not in time."""
    answers: list[tuple[bool, str]] = []

    def answered() -> bool:
        allowed, reason, text, _ = node.daemon.allocation(device)
        assert text
        answers.append((allowed, reason))
        return reason != SILENT

    wait_for(answered, what=f"an answer of the broker on {device}")
    return answers[-1]


def is_good(node: NpuNode, good: bytes) -> bool:
    """Tell whether the file has this content, and the mode and owner that it should have."""
    try:
        facts = path(node).stat()
        return path(node).read_bytes() == good and (facts.st_mode & 0o7777, facts.st_uid) == (0o644, 0)
    except FileNotFoundError:
        return False


@pytest.fixture
def offering(npu_node: NpuNode) -> NpuNode:
    """A host with two cards that are in their file."""
    npu_node.daemon.write_config("[cdi]\nsettle_time = 0\ncontested_after = 1000\n")
    npu_node.daemon.call("Reload", "t", "0")
    npu_node.start_broker()
    npu_node.make(*SHARED)
    npu_node.chip()
    npu_node.chip()
    wait_devices(npu_node, 0, 1, "all")
    wait_for(lambda: specs(npu_node)[FILE] == "true", what="its state")
    return npu_node


def test_a_host_without_npus_has_neither_the_file_nor_its_object(npu_node: NpuNode) -> None:
    npu_node.daemon.call("Rescan", "t", "0")
    assert not path(npu_node).exists()
    assert set(specs(npu_node)) == {"hyperlight.dev-hypervisor.json"}
    assert "ascend" not in npu_node.daemon.busctl("tree", "--list", "org.devward.Devward1").stdout


def test_npus_are_published_with_what_containers_need(offering: NpuNode) -> None:
    document = json.loads(path(offering).read_bytes())
    assert [node["path"] for node in document["devices"][2]["containerEdits"]["deviceNodes"]] == ["/dev/davinci0", "/dev/davinci1"]
    assert [node["path"] for node in document["containerEdits"]["deviceNodes"]] == [f"/dev/{name}" for name in SHARED]
    assert path(offering).stat().st_mode & 0o7777 == 0o644
    offering.daemon.wait_event("spec-repair", DEVWARD_CAUSE="published", DEVWARD_OUTCOME="success", DEVWARD_CDI_FILE=str(path(offering)))


def test_a_file_that_is_tampered_with_is_repaired_like_the_hypervisor_s(offering: NpuNode) -> None:
    good = path(offering).read_bytes()

    def successes() -> list[Record]:
        return offering.daemon.events("spec-repair", DEVWARD_OUTCOME="success", DEVWARD_CDI_FILE=str(path(offering)))

    # Put in place whole: a file that is being written is malformed first.
    other = offering.daemon.directory / "other.json"
    other.write_bytes(good.replace(b"davinci0", b"davinci1"))
    before = len(successes())
    for tamper in (
        lambda: path(offering).unlink(),
        lambda: path(offering).write_bytes(b"{"),
        lambda: other.replace(path(offering)),
        lambda: path(offering).chmod(0o600),
        lambda: os.chown(path(offering), 1000, 1000),
    ):
        done = len(successes())
        tamper()
        wait_for(lambda done=done: len(successes()) > done, what="repair")  # type: ignore[misc] # a default argument
        assert is_good(offering, good)
    assert [record["DEVWARD_CAUSE"][0] for record in successes()[before:]] == ["missing", "malformed", "stale", "mode", "owner"]


def test_readiness_follows_the_npus_where_the_hypervisor_is_of_no_use(offering: NpuNode) -> None:
    daemon = offering.daemon
    daemon.inside("rm -f /dev/kvm")
    wait_for(lambda: daemon.get("", "Manager", "Ready") is True, what="ready by its NPUs")
    for chip in offering.simulator.read().chips:
        offering.simulator.set_chip(chip, health=3)
    daemon.call("Rescan", "t", "0")
    wait_for(lambda: daemon.get("", "Manager", "Ready") is False, what="not ready")
    assert "NPUs: npu-unhealthy" in daemon.get("", "Manager", "NotReadyReasons")  # type: ignore[operator]


def test_an_npu_that_is_gone_leaves_and_the_last_takes_the_file_along(offering: NpuNode) -> None:
    offering.simulator.remove_card(1)
    offering.remove("davinci1")
    wait_devices(offering, 0, "all")
    offering.simulator.remove_card(0)
    offering.remove("davinci0")
    wait_for(lambda: not path(offering).exists(), what="the file to go")
    offering.daemon.wait_event("spec-withdraw", DEVWARD_CAUSE="withdrawn", DEVWARD_OUTCOME="success", DEVWARD_CDI_FILE=str(path(offering)))


def test_a_node_that_is_another_s_takes_the_npu_out(offering: NpuNode) -> None:
    offering.daemon.inside("rm /dev/davinci1 && mknod /dev/davinci1 c 1 3")
    wait_devices(offering, 0, "all")
    assert check(offering, f"{KIND}=1") == (False, "npu-node-mismatch")
    assert check(offering, f"{KIND}=0") == (True, "")


def test_without_a_node_that_all_need_none_is_offered(offering: NpuNode) -> None:
    offering.remove("devmm_svm")
    offering.daemon.call("Rescan", "t", "0")
    wait_for(lambda: not path(offering).exists(), what="the file to go")
    assert check(offering, "/dev/davinci0") == (False, "npu-shared-node-missing")
    offering.daemon.wait_event("finding", DEVWARD_REASON="npu-shared-node-missing")
    offering.make("devmm_svm")
    offering.daemon.call("Rescan", "t", "0")
    wait_devices(offering, 0, 1, "all")


def test_a_broker_that_hangs_takes_nothing_away_and_vouches_for_nothing(offering: NpuNode) -> None:
    before = path(offering).read_bytes()
    offering.simulator.fault("*", "hang")
    began = time.monotonic()
    assert offering.daemon.call("CheckAllocation", "s", f"{KIND}=0")[:2] == [False, SILENT]
    assert time.monotonic() - began < LIST_SECONDS, "the broker's deadline alone is longer"
    offering.wait_reason("card/p000", SILENT)
    # The file is kept all the same, and what the broker would say is not needed for that.
    path(offering).unlink()
    wait_for(lambda: path(offering).exists() and path(offering).read_bytes() == before, what="repair")


def test_what_the_file_holds_stays_over_a_restart_until_there_is_an_answer(offering: NpuNode, devices_holder: int) -> None:
    before = path(offering).read_bytes()
    offering.simulator.fault("dcmi_get_card_list", "hang")
    assert offering.daemon.stop() == 0
    offering.daemon.start(devices_of=devices_holder)
    offering.daemon.call("Rescan", "t", "0")
    assert path(offering).read_bytes() == before
    assert specs(offering)[FILE] in {"unknown", "true"}
    assert offering.daemon.call("CheckAllocation", "s", f"{KIND}=0")[0] is False
    offering.simulator.clear_faults()
    wait_for(lambda: specs(offering)[FILE] == "true" and check(offering, f"{KIND}=0") == (True, ""), what="an answer")
    assert path(offering).read_bytes() == before
    assert not [record for record in offering.daemon.events("spec-withdraw") if record.get("DEVWARD_CDI_FILE") == [str(path(offering))]]


def test_a_file_of_npus_that_are_gone_with_the_reboot_is_removed(offering: NpuNode) -> None:
    assert offering.daemon.stop() == 0
    # As after a reboot without the cards: neither nodes nor anything that could be asked. /dev is made anew at each start.
    offering.daemon.start()
    wait_for(lambda: not path(offering).exists(), what="the file to go")
    assert set(specs(offering)) == {"hyperlight.dev-hypervisor.json", FILE}


def test_npus_that_are_to_be_left_alone_are_withdrawn(offering: NpuNode) -> None:
    offering.daemon.write_config('[cdi]\nsettle_time = 0\ncontested_after = 1000\n[npu]\ndevices = "off"\n')
    offering.daemon.call("Reload", "t", "0")
    wait_for(lambda: not path(offering).exists(), what="the file to go")
    assert check(offering, f"{KIND}=0")[0] is False


def test_a_divided_npu_is_not_given_away_as_a_whole(offering: NpuNode) -> None:
    assert check(offering, f"{KIND}=all") == (True, "")
    offering.create(offering.simulator.read().chips[1])
    assert check(offering, f"{KIND}=1") == (False, "npu-divided")
    assert check(offering, f"{KIND}=all") == (False, "npu-divided")
    assert check(offering, f"{KIND}=0") == (True, "")


def test_the_owner_of_the_nodes_is_a_setting(offering: NpuNode) -> None:
    offering.daemon.write_config("[cdi]\nsettle_time = 0\ncontested_after = 1000\n[npu]\ndevice_uid = 1000\ndevice_gid = 1001\n")
    offering.daemon.call("Reload", "t", "0")
    wait_for(lambda: b'"uid": 1000, "gid": 1001' in path(offering).read_bytes(), what="the owner")


def test_a_claim_of_the_dra_driver_shadows_an_npu_while_it_lasts(offering: NpuNode) -> None:
    claim = offering.daemon.high / "ascend.com-npu_5f8b3b0c-8a4e-4a0c-9d3c-0123456789ab.yaml"
    offering.daemon.high.mkdir(exist_ok=True)
    claim.write_text(
        "cdiVersion: 0.8.0\nkind: ascend.com/npu\ndevices:\n- name: '0'\n  containerEdits:\n    deviceNodes:\n    - path: /dev/davinci0\n"
    )
    wait_for(lambda: specs(offering)[FILE] == "shadowed", what="the claim")
    assert check(offering, f"{KIND}=0") == (False, "cdi-shadowed")
    assert check(offering, f"{KIND}=1") == (True, "")
    assert devices(offering) == ("0", "1", "all")
    findings = offering.daemon.describe()["findings"]
    assert any("for a claim" in finding["text"] for finding in findings if finding["code"] == "cdi-shadowed")  # type: ignore[attr-defined]
    claim.unlink()
    wait_for(lambda: specs(offering)[FILE] == "true", what="the claim to end")


def test_a_foreign_file_of_the_same_directory_takes_a_name_out(offering: NpuNode) -> None:
    rival = offering.daemon.cdi / "vendor.json"
    rival.write_text('{"cdiVersion": "0.5.0", "kind": "ascend.com/npu", "devices": [{"name": "1", "containerEdits": {"env": ["A=b"]}}]}')
    wait_devices(offering, 0, "all")
    everything = json.loads(path(offering).read_bytes())["devices"][1]["containerEdits"]["deviceNodes"]
    assert [node["path"] for node in everything] == ["/dev/davinci0", "/dev/davinci1"]
    wait_for(lambda: specs(offering)[FILE] == "conflict", what="the conflict")
    assert specs(offering)["hyperlight.dev-hypervisor.json"] != "conflict"
    assert check(offering, f"{KIND}=1") == (False, "cdi-conflict")
    rival.unlink()
    wait_devices(offering, 0, 1, "all")


def test_a_pinned_vnpu_is_offered_while_it_is_the_one_that_was_pinned(offering: NpuNode) -> None:
    file = offering.daemon.cdi / "ascend.com-vnpu.json"
    chip = offering.simulator.read().chips[0]
    vnpu = offering.create(chip)
    offering.wait_tree("card/p000", "card/p001", "vnpu/v0100")
    offering.wait_reason("vnpu/v0100", "")
    assert check(offering, "ascend.com/vnpu=100") == (False, "cdi-not-published")
    assert not file.exists()
    target = f"{chip.vdie}/100/vir05_1c_16g"
    offering.daemon.call("Pin", "sst", target, "a training", "0")
    wait_for(file.exists, what="the file")
    (device,) = json.loads(file.read_bytes())["devices"]
    assert device == {
        "name": "100",
        "containerEdits": {"deviceNodes": [{"path": "/dev/davinci100", "hostPath": "/dev/vdavinci100", "type": "c", "permissions": "rw"}]},
    }
    wait_for(lambda: check(offering, "/dev/vdavinci100") == (True, ""), what="an answer")
    offering.simulator.destroy(vnpu)
    offering.remove("vdavinci100")
    wait_for(lambda: not file.exists(), what="the file to go")
    # Another one of the same id, which devward was not asked to keep.
    offering.create(chip)
    wait_for(lambda: "pin-other-identity" in offering.codes(), what="the finding")
    assert check(offering, "ascend.com/vnpu=100") == (False, "pin-other-identity")
    assert not file.exists()
    offering.daemon.call("Pin", "sst", target, "the new one", "0")
    wait_for(file.exists, what="the file")
    offering.daemon.call("Unpin", "st", target, "0")
    wait_for(lambda: not file.exists(), what="the file to go")


@pytest.mark.parametrize("settings", ["settle_time = 600", 'withdraw = "never"'])
def test_another_vnpu_than_the_pinned_one_is_not_offered_for_a_moment(offering: NpuNode, settings: str) -> None:
    """However long devices may settle, and whatever may stay: what is not pinned may be destroyed any time."""
    file = offering.daemon.cdi / "ascend.com-vnpu.json"
    offering.daemon.write_config(f"[cdi]\n{settings}\n")
    offering.daemon.call("Reload", "t", "0")
    chip = offering.simulator.read().chips[0]
    vnpu = offering.create(chip)
    offering.wait_tree("card/p000", "card/p001", "vnpu/v0100")
    offering.wait_reason("vnpu/v0100", "")
    target = f"{chip.vdie}/100/vir05_1c_16g"
    offering.daemon.call("Pin", "sst", target, "a training", "0")
    wait_for(lambda: check(offering, "ascend.com/vnpu=100") == (True, ""), what="the vNPU")
    # Touched is not made anew.
    offering.daemon.inside("touch /dev/vdavinci100")
    assert check(offering, "ascend.com/vnpu=100") == (True, "")
    offering.simulator.destroy(vnpu)
    offering.remove("vdavinci100")
    offering.create(chip)
    assert check(offering, "ascend.com/vnpu=100") == (False, "pin-other-identity")
    assert not file.exists()
    offering.daemon.call("Pin", "sst", target, "the new one", "0")
    wait_for(lambda: check(offering, "ascend.com/vnpu=100") == (True, ""), what="the new vNPU")
    offering.daemon.call("Unpin", "st", target, "0")
    wait_for(lambda: not file.exists(), what="the file to go")


def test_names_that_anybody_thinks_up_flood_neither_the_journal_nor_the_broker(offering: NpuNode) -> None:
    looks = len(offering.simulator.calls("dcmi_get_card_list"))
    for number in range(2, 130):
        assert check(offering, f"{KIND}={number}") == (False, "device-missing")
    assert len(offering.simulator.calls("dcmi_get_card_list")) - looks <= 3
    assert len(offering.daemon.events("allocation-refused")) < 20


def test_each_file_is_adopted_by_its_own_name(offering: NpuNode) -> None:
    assert "ascend.com-npu.json" in offering.daemon.refused("AdoptSpec", "st", "other.json", "0")
    _, _, results = offering.daemon.call("AdoptSpec", "st", FILE, "0")
    assert results == [[str(path(offering)), "noop", ""]]
    _, _, results = offering.daemon.call("RepairSpecs", "t", "0")
    assert {os.path.basename(row[0]) for row in results} == {FILE, "hyperlight.dev-hypervisor.json"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("device", ["ascend.com/npu=7", "/dev/davinci7"])
def test_an_npu_that_is_not_there_is_refused(offering: NpuNode, device: str) -> None:
    assert check(offering, device) == (False, "device-missing")
    record = offering.daemon.wait_event("allocation-refused", DEVWARD_REASON="device-missing")
    assert record["DEVWARD_DEVICE"] == ["/dev/davinci7"]
