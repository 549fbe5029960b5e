"""Changes as sentences."""

from dataclasses import replace

import pytest

from devward.ctl import wording
from devward.ctl.facts import Device, Manager, Spec
from devward.ctl.npu_facts import Card, Vnpu
from devward.ctl.terminal import Tone
from devward.ctl.when import Times
from devward.model import Health, SpecState
from devward.npu.views import CardHealth, Management, Protection, Use

KVM = Device(kind="kvm", node="/dev/kvm", number="10:232", identity="valid", health="healthy")
SPEC = Spec(file="/etc/cdi/a.json", cdi_kind="x/y", devices=("x/y=kvm",), state="true")
CARD = Card(name="p007", node="/dev/davinci7", chip="Ascend 910B3", health="healthy")
VNPU = Vnpu(name="v0212", id=212, card="/org/devward/Devward1/card/p007", template="vir05_1c_16g", in_use="idle", verdict="unknown")
TIMES = Times(1_800_000_000_000_000, utc=True)


def texts(said: list[wording.Said]) -> list[str]:
    return [one.text for one in said]


def test_nothing_changed() -> None:
    assert wording.device_changes(KVM, replace(KVM, last_check_usec=5)) == []
    assert wording.spec_changes(SPEC, replace(SPEC, repair_count=5)) == []
    assert wording.manager_changes(Manager(), Manager(checking=True), TIMES) == []


@pytest.mark.parametrize(
    ("after", "said", "tone"),
    [
        (replace(KVM, health="unhealthy", reason="hypervisor-busy"), "/dev/kvm cannot be used: Another hypervisor holds", Tone.BAD),
        (
            replace(KVM, health="missing", identity="missing", reason="device-missing"),
            "/dev/kvm is missing: The device node does not",
            Tone.BAD,
        ),
        (replace(KVM, identity="invalid", reason="device-symlink"), "/dev/kvm is not the device that it claims to be: ", Tone.BAD),
        (replace(KVM, health="dreaming", reason="flux"), "the health of /dev/kvm is dreaming: The reason is flux", Tone.WARNING),
        (replace(KVM, number="10:1"), "/dev/kvm has the device number 10:1 now", Tone.WARNING),
    ],
)
def test_devices(after: Device, said: str, tone: Tone) -> None:
    (one,) = wording.device_changes(KVM, after)
    assert one.text.startswith(said)
    assert one.tone is tone


def test_a_device_comes_back() -> None:
    (one,) = wording.device_changes(replace(KVM, health="missing", identity="missing", reason="device-missing"), KVM)
    assert one == wording.Said("/dev/kvm is usable: a virtual machine can be started on it", Tone.GOOD)


@pytest.mark.parametrize("health", [*Health, "dreaming", ""])
def test_every_health_is_a_sentence(health: str) -> None:
    assert len(wording.device_changes(Device(health="other"), replace(KVM, health=health))) == 1


@pytest.mark.parametrize("state", [*SpecState, "half-true", ""])
def test_every_state_is_a_sentence(state: str) -> None:
    said = wording.spec_changes(replace(SPEC, state="other"), replace(SPEC, state=state, reason="flux\x1b"))
    assert len(said) == 1
    assert "\x1b" not in said[0].text


def test_a_file_loses_its_devices() -> None:
    assert texts(wording.spec_changes(SPEC, replace(SPEC, devices=()))) == ["/etc/cdi/a.json holds no device now"]


def test_the_daemon_itself() -> None:
    ready = Manager(ready=True, cdi_mode="repair", config_state="good")
    broken = replace(ready, ready=False, not_ready_reasons=("/dev/kvm: hypervisor-busy", "something new"))
    (said,) = wording.manager_changes(ready, broken, TIMES)
    assert said.text.startswith("this host is NOT READY: /dev/kvm: Another hypervisor")
    assert "something new" in said.text
    assert texts(wording.manager_changes(broken, ready, TIMES)) == ["this host is ready"]
    assert texts(wording.manager_changes(ready, replace(ready, cdi_mode="off"), TIMES)) == ["the mode for CDI files is off"]
    paused = replace(ready, cdi_paused_until_usec=1_800_000_060_000_000)
    assert texts(wording.manager_changes(ready, paused, TIMES)) == ["repairs of CDI files are paused until 2027-01-15T08:01:00.000Z"]
    assert texts(wording.manager_changes(paused, ready, TIMES)) == ["repairs of CDI files are not paused any more"]
    assert wording.manager_changes(ready, replace(ready, config_state="refused"), TIMES)[0].tone is Tone.BAD


def test_of_an_mshv_device_no_more_is_said_than_was_checked() -> None:
    assert "not checked" in wording.usable("mshv")
    assert "virtual machine" not in wording.usable("mshv")


def test_an_npu() -> None:
    assert wording.card_changes(CARD, replace(CARD, used_cores=5.0, logic_id=3)) == []
    assert wording.card_changes(Card(), CARD) == [wording.Said("the NPU p007 (/dev/davinci7) is healthy", Tone.GOOD)]
    (said,) = wording.card_changes(CARD, replace(CARD, health="unhealthy", reason="flux"))
    assert said.text.startswith("the NPU p007 (/dev/davinci7) is not healthy; devward does not vouch for it: The reason is flux")
    assert said.tone is Tone.BAD
    (said,) = wording.card_changes(CARD, replace(CARD, reason="flux\x1b"))
    assert said.tone is Tone.WARNING
    assert "\x1b" not in said.text
    assert texts(wording.card_changes(CARD, replace(CARD, node=""))) == ["the NPU p007 has no device node any more; it was /dev/davinci7"]


@pytest.mark.parametrize("health", [*CardHealth, "dreaming", ""])
def test_every_health_of_an_npu_is_a_sentence(health: str) -> None:
    assert len(wording.card_changes(replace(CARD, health="other"), replace(CARD, health=health))) == 1


def test_a_vnpu() -> None:
    assert wording.vnpu_changes(VNPU, replace(VNPU, confirmations=3)) == []
    assert texts(wording.vnpu_changes(Vnpu(), VNPU)) == ["the vNPU v0212 is on p007, made with vir05_1c_16g; it is idle"]
    assert texts(wording.vnpu_changes(VNPU, replace(VNPU, in_use="in-use"))) == ["the vNPU v0212: it is in use"]
    (said,) = wording.vnpu_changes(VNPU, replace(VNPU, reason="flux"))
    assert said.text.startswith("the vNPU v0212 has the verdict unknown: The reason is flux")


@pytest.mark.parametrize("use", [*Use, "asleep", ""])
def test_every_use_is_a_sentence(use: str) -> None:
    assert len(wording.vnpu_changes(replace(VNPU, in_use="other"), replace(VNPU, in_use=use))) == 1


def test_who_owns_an_npu() -> None:
    owned = replace(CARD, managed="managed", protection="protected", claims=("u-1", "u-2"))
    assert texts(wording.card_changes(replace(CARD, managed="unknown", protection="not-evaluated"), owned)) == [
        "HAMi hands out the NPU p007 (/dev/davinci7) now",
        "a Pod has the NPU p007 (/dev/davinci7), or may have it: its vNPUs are protected",
        "Pods that claim the NPU p007 (/dev/davinci7): u-1, u-2",
    ]
    assert texts(wording.card_changes(owned, replace(owned, claims=("u-2", "u\x1b")))) == [
        "Pods that claim the NPU p007 (/dev/davinci7): u\\x1b",
        "Pods that claim no more the NPU p007 (/dev/davinci7): u-1",
    ]
    assert wording.card_changes(owned, replace(owned, protection="unknown"))[0].tone is Tone.WARNING
    assert len(wording.card_changes(Card(), owned)) == 1, "of one that is new its health alone"


@pytest.mark.parametrize("value", [*Protection, *Management, "odd\x1b"])
def test_every_management_and_protection_is_a_sentence(value: str) -> None:
    said = wording.card_changes(replace(CARD, managed="other", protection="other"), replace(CARD, managed=value, protection=value))
    assert len(said) == 2
    assert "\x1b" not in "".join(texts(said))
    assert wording.card_changes(replace(CARD, managed=value, protection=value), CARD) == [], "an older daemon came back"


def test_whether_owners_are_known() -> None:
    blocked = Manager(ready=True, blocked_reasons=("api-forbidden", "annotation-malformed u\x1b", "a", "b", "c"))
    (said,) = wording.manager_changes(Manager(ready=True), blocked, TIMES)
    assert said == wording.Said(
        "it is not known who owns the vNPUs: api-forbidden, annotation-malformed u\\x1b, a, b and 1 more", Tone.WARNING
    )
    assert wording.manager_changes(blocked, replace(blocked, last_cycle_usec=5), TIMES) == []
    (said,) = wording.manager_changes(Manager(ready=True), Manager(ready=True, blocked_reasons=("kubelet-not-found",)), TIMES)
    assert said.tone is Tone.PLAIN, "nothing needs to be mended on a host without Kubernetes"
    (said,) = wording.manager_changes(blocked, Manager(ready=True), TIMES)
    assert said == wording.Said("it is known again who owns the vNPUs", Tone.GOOD)


def test_npus_are_counted() -> None:
    assert wording.npu_summary([CARD], [VNPU, replace(VNPU, in_use="in-use")]) == "1 Ascend NPU (1 healthy), 2 vNPUs (1 in use)"
