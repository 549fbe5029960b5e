"""The whole chain, from facts that a daemon publishes."""

from dataclasses import replace

import pytest

from devward.ctl.explain import explain, of_code
from devward.ctl.facts import Device, Finding, Manager, Snapshot, Spec
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.when import USEC, Times
from devward.reasons import Reason

NOW = 1_800_000_000 * USEC
KVM = "hyperlight.dev/hypervisor=kvm"
FILE = "/etc/cdi/hyperlight.dev-hypervisor.json"
DEVICE = Device(
    kind="kvm",
    node="/dev/kvm",
    number="10:232",
    identity="valid",
    identity_since_usec=NOW - 3600 * USEC,
    health="healthy",
    health_since_usec=NOW - 600 * USEC,
    last_check_usec=NOW - 60 * USEC,
    check_duration_usec=4200,
)
SPEC = Spec(
    FILE, "hyperlight.dev/hypervisor", (KVM,), "true", NOW - 300 * USEC, repair_count=2, last_repair_usec=NOW, last_repair_cause="stale"
)
WELL = Snapshot(Manager(ready=True, cdi_mode="repair"), (DEVICE,), (SPEC,), ())
TIMES = Times(NOW)


def told(what: str, snapshot: Snapshot) -> str:
    explained = explain(what, snapshot, {"/dev/kvm": {"mode": "0660", "uid": 0, "gid": 107, "acl": ["x"]}}, TIMES)
    steps = [step.text + " " + " ".join(step.commands) for step in explained.steps]
    return "\n".join([*explained.found, "--", *explained.means, "--", *steps])


@pytest.mark.parametrize("what", ["kvm", "/dev/kvm", KVM])
def test_a_good_device(what: str) -> None:
    text = told(what, WELL)
    assert "/dev/kvm is character device 10:232, and it is the device that it claims to be, for 60 minutes." in text
    assert "Its mode is 0660, its owner 0:107; it has an access control list." in text
    assert "It is usable, for 10 minutes: a virtual machine can be started on it." in text
    assert "The last complete check was 60 seconds ago and took 4 ms." in text
    assert f"The CDI file {FILE} is true" in text
    assert f"New containers that ask for {KVM} get it" in text
    assert "Nothing needs to be done." in text


def test_a_bad_device() -> None:
    bad = replace(DEVICE, health="unhealthy", reason="hypervisor-busy", text="")
    text = told("kvm", replace(WELL, devices=(bad,)))
    assert "It cannot be used, for 10 minutes. Another hypervisor holds" in text
    assert "(hypervisor-busy)" in text
    assert "devward does not vouch for the device" in text
    assert "lsmod | grep -e vbox -e vmmon" in text


def test_a_good_device_with_a_bad_file() -> None:
    blocked = replace(SPEC, state="blocked", reason="cdi-not-regular", devices=())
    snapshot = replace(WELL, specs=(blocked,), manager=Manager(cdi_mode="observe"))
    text = told("kvm", snapshot)
    assert "cannot be repaired, for 5 minutes" in text
    assert f"The file does not hold {KVM} now." in text
    assert "The mode for CDI files is observe: nothing is repaired." in text
    assert f"ls -ld {FILE}" in text
    assert f"ls -ld {FILE}" in told(FILE, snapshot)


@pytest.mark.parametrize("what", [FILE, "hyperlight.dev-hypervisor.json", "hyperlight.dev/hypervisor"])
def test_a_good_file(what: str) -> None:
    text = told(what, WELL)
    assert "it was repaired 2 times, last just now, as its content was not what the devices justify" in text
    assert "Container engines find these devices by this file." in text
    assert f"devwardctl history --file {FILE}" in text


def test_a_good_file_of_a_bad_device_says_so() -> None:
    text = told(FILE, replace(WELL, devices=(replace(DEVICE, health="unhealthy", reason="hypervisor-busy"),)))
    assert f"But new containers cannot use {KVM}" in text
    assert "devwardctl explain kvm" in text


def test_an_empty_file_says_whether_there_is_no_device_or_none_that_is_vouched_for() -> None:
    empty = replace(WELL, specs=(replace(SPEC, state="empty", devices=()),))
    assert "as there is none on this host" in told(FILE, replace(empty, devices=(replace(DEVICE, identity="missing"),)))
    covered = told(FILE, replace(empty, devices=(replace(DEVICE, identity="invalid", reason="device-covered"),)))
    assert "as devward vouches for none on this host now" in covered
    assert "there is none" not in covered


def test_a_device_of_a_daemon_that_says_nothing() -> None:
    text = told("kvm", Snapshot(Manager(), (Device(kind="kvm"),), (), ()))
    assert "It is not known whether" in text
    assert f"No CDI file defines {KVM}." in text
    assert "devwardctl status" in text


def test_a_finding() -> None:
    finding = Finding("cdi-file-malformed", "/etc/cdi/x y.json", "It is not JSON.\x1b", NOW - 120 * USEC)
    text = told("x y.json", replace(WELL, findings=(finding,)))
    assert "Finding, for 2 minutes: It is not JSON.\\x1b (cdi-file-malformed)" in text
    special = replace(finding, code="cdi-file-special")
    assert "ls -ld '/etc/cdi/x y.json'" in told("/etc/cdi/x y.json", replace(WELL, findings=(special,)))


def test_what_is_not_known() -> None:
    with pytest.raises(Failure) as refused:
        told("ghost\x1b", WELL)
    assert refused.value.status == ExitStatus.UNHEALTHY
    assert "ghost\\x1b" in refused.value.text
    assert "kvm" in refused.value.advice


@pytest.mark.parametrize("reason", [one for one in Reason if one])
def test_every_reason_alone(reason: Reason) -> None:
    explained = of_code(reason)
    assert explained.found
    assert explained.means
    assert explained.steps
