"""Whether devward says that it can vouch for something, and the one line that it says it in."""

import pytest

from devward.model import ConfigState, DeviceKind, DeviceView, Health, Identity, SpecState, SpecView
from devward.readiness import DeviceStanding, NpuStanding, Readiness, judge
from devward.reasons import Reason

KVM_FILE = "/etc/cdi/hyperlight.dev-hypervisor.json"


def device(
    health: Health = Health.HEALTHY,
    reason: Reason = Reason.OK,
    *,
    effective: bool = True,
    why: Reason = Reason.OK,
    kind: DeviceKind = DeviceKind.KVM,
) -> DeviceStanding:
    view = DeviceView(kind, f"/dev/{kind}", "10:232", Identity.VALID, 1, health, 1, reason, "", 1, 1)
    return DeviceStanding(view, effective, why)


def spec(state: SpecState = SpecState.TRUE, reason: Reason = Reason.OK) -> SpecView:
    return SpecView(KVM_FILE, "hyperlight.dev/hypervisor", (), state, 1, reason, "", 0, 0, "")


def judged(
    *devices: DeviceStanding, file: SpecView | None = None, started: bool = True, config: ConfigState = ConfigState.GOOD
) -> Readiness:
    return judge(started=started, devices=devices, spec=file or spec(), config_state=config)


def test_nothing_to_watch_is_ready() -> None:
    assert judged(file=spec(SpecState.EMPTY)) == Readiness(ready=True, reasons=(), status="nothing to watch on this host")


def with_npus(*devices: DeviceStanding, npus: NpuStanding) -> Readiness:
    return judge(started=True, devices=devices, spec=spec(), config_state=ConfigState.GOOD, npus=npus)


def test_an_npu_that_containers_can_have_is_enough() -> None:
    npus = NpuStanding(1, 2, 1, (Reason.NPU_UNHEALTHY,))
    told = "1 of 2 NPUs can be vouched for"
    assert with_npus(npus=npus) == Readiness(ready=True, reasons=(), status=told)
    assert with_npus(device(), npus=npus).status == f"/dev/kvm usable, its CDI file true; {told}"
    assert with_npus(device(Health.UNHEALTHY), npus=npus).ready


def test_npus_of_which_none_is_for_containers_are_not_enough() -> None:
    npus = NpuStanding(0, 2, 0, (Reason.NPU_UNHEALTHY, Reason.NPU_NODE_MISSING))
    result = with_npus(npus=npus)
    assert (result.ready, result.reasons) == (False, ("NPUs: npu-unhealthy", "NPUs: npu-node-missing"))
    assert result.status == "0 of 2 NPUs can be vouched for"
    assert with_npus(device(), npus=npus).ready, "one device is enough"
    beside = with_npus(device(Health.UNHEALTHY, Reason.HYPERVISOR_BUSY), npus=npus)
    assert set(beside.reasons) == {"NPUs: npu-unhealthy", "NPUs: npu-node-missing", "/dev/kvm: hypervisor-busy"}


def test_npus_that_are_well_and_in_no_true_file_are_not_enough() -> None:
    result = with_npus(npus=NpuStanding(2, 2, 0, (Reason.CDI_READ_ONLY,)))
    assert (result.ready, result.reasons) == (False, ("NPUs: cdi-read-only",))
    assert result.status.startswith("2 of 2 NPUs can be vouched for, but 0 are for containers: ")


def test_a_host_whose_npus_are_not_known_yet_is_not_one_without() -> None:
    result = with_npus(npus=NpuStanding(reasons=(Reason.NPU_BROKER_SILENT,)))
    assert (result.ready, result.reasons) == (False, ("NPUs: npu-broker-silent",))
    assert result.status.startswith("of NPUs nothing is known: ")
    assert with_npus(device(), npus=NpuStanding(reasons=(Reason.NPU_BROKER_SILENT,))).ready


def test_not_ready_before_the_first_pass() -> None:
    assert judged(device(), started=False) == Readiness(ready=False, reasons=("devwardd: starting",), status="starting")


def test_one_usable_device_is_enough() -> None:
    other = device(Health.MISSING, Reason.DEVICE_MISSING, kind=DeviceKind.MSHV)
    result = judged(device(), other)
    assert result.ready
    assert result.status.startswith("/dev/kvm usable, its CDI file true; /dev/mshv missing: The device node does not exist")


@pytest.mark.parametrize("state", sorted(set(SpecState) - {SpecState.TRUE, SpecState.CONFLICT, SpecState.SHADOWED}))
def test_a_healthy_device_without_a_true_file_is_not_ready(state: SpecState) -> None:
    result = judged(device(), file=spec(state, Reason.CDI_READ_ONLY))
    assert not result.ready
    assert result.reasons == (f"{KVM_FILE}: cdi-read-only",)
    assert f"is {state}" in result.status


@pytest.mark.parametrize("health", sorted(set(Health) - {Health.HEALTHY}))
def test_an_unusable_device_is_not_ready(health: Health) -> None:
    result = judged(device(health, Reason.HYPERVISOR_BUSY))
    assert result.reasons == ("/dev/kvm: hypervisor-busy",)
    assert "Another hypervisor holds the CPU" in result.status


@pytest.mark.parametrize("reason", [Reason.CDI_SHADOWED, Reason.CDI_CONFLICT, Reason.CDI_ENGINE_BLOCKED, Reason.CDI_DIRECTORY_NOT_READ])
def test_a_file_that_engines_do_not_use_is_not_ready(reason: Reason) -> None:
    result = judged(device(effective=False, why=reason), file=spec(SpecState.SHADOWED, reason))
    assert not result.ready
    assert result.reasons == (f"/dev/kvm: {reason}",)


def test_a_refused_configuration_is_not_ready_though_everything_works() -> None:
    result = judged(device(), config=ConfigState.REFUSED)
    assert result.reasons == ("configuration: config-refused",)
    assert result.status.endswith("the configuration on disk is refused")


def test_a_device_plugin_that_is_not_ready_is_said_beside_what_else_is_wrong() -> None:
    def with_plugin(*reasons: str, line: str = "x offered", config: ConfigState = ConfigState.GOOD) -> Readiness:
        return judge(started=True, devices=[device()], spec=spec(), config_state=config, plugin=reasons, plugin_line=line)

    assert with_plugin() == Readiness(ready=True, reasons=(), status="/dev/kvm usable, its CDI file true; x offered")
    answer = with_plugin("device plugin: plugin-taken", line="x not offered", config=ConfigState.REFUSED)
    assert not answer.ready
    assert answer.reasons == ("device plugin: plugin-taken", "configuration: config-refused")
    assert answer.status == "/dev/kvm usable, its CDI file true; x not offered; the configuration on disk is refused"
