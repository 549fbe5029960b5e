"""Changes as sentences."""

from dataclasses import replace

import pytest

from devward.ctl import wording
from devward.ctl.facts import Device, Manager, Spec
from devward.ctl.terminal import Tone
from devward.ctl.when import Times
from devward.model import Health, SpecState

KVM = Device(kind="kvm", node="/dev/kvm", number="10:232", identity="valid", health="healthy")
SPEC = Spec(file="/etc/cdi/a.json", cdi_kind="x/y", devices=("x/y=kvm",), state="true")
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
