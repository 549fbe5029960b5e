"""CheckAllocation: what is refused, what passes, and within what time, with stand-ins for the device and the file."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from devward import allocation
from devward.allocation import AllocationCheck, parse_device
from devward.cdi.reconciler import PassRequest
from devward.clock import Clock
from devward.devices.health import DeviceState, ProbeVerdict
from devward.devices.tracker import CheckResult
from devward.errors import InvalidArguments, NoSuchDevice
from devward.model import ActionRequest, ActionResult, Allocation, DeviceKind, Health, Identity, Outcome, SpecState, SpecView, Trigger
from devward.reasons import Reason

NOW = 1000.0
KIND = "hyperlight.dev/hypervisor"
KVM = f"{KIND}=kvm"
REQUEST = ActionRequest("id-1", None, Trigger.DBUS)
GOOD = ProbeVerdict(completed=True, healthy=True, reason=Reason.OK, detail="", duration_usec=1)
BAD = ProbeVerdict(completed=True, healthy=False, reason=Reason.HYPERVISOR_BUSY, detail="", duration_usec=1)
UNFINISHED = ProbeVerdict(completed=False, healthy=False, reason=Reason.PROBE_INCONCLUSIVE, detail="EMFILE", duration_usec=1)
HEALTHY = DeviceState(DeviceKind.KVM, "/dev/kvm", identity=Identity.VALID, health=Health.HEALTHY, reason=Reason.OK, good_monotonic=NOW - 5)
FILE = SpecView("/etc/cdi/x.json", "hyperlight.dev/hypervisor", (KVM,), SpecState.TRUE, 1, Reason.OK, "", 0, 0, "")
DONE = ActionResult(FILE.file, Outcome.NOOP, Reason.OK)


class FixedClock(Clock):
    def monotonic(self) -> float:
        return NOW


class World:
    """A device and a file whose answers the test sets; None: it does not answer."""

    def __init__(self) -> None:
        self.state = HEALTHY
        self.verdict: ProbeVerdict | BaseException | None = GOOD
        self.hang_probe = self.hang_file = False
        self.file = FILE
        self.result: ActionResult | BaseException = DONE
        self.usable = (True, Reason.OK, "")
        self.refusals: list[tuple[str, str, Allocation, ActionRequest]] = []
        self.known = True

    def tracker(self, _: DeviceKind) -> "World | None":
        return self if self.known else None

    async def check(self, _: Trigger) -> CheckResult:
        if self.hang_probe:
            await asyncio.Event().wait()
        if isinstance(self.verdict, BaseException):
            raise self.verdict
        return CheckResult(self.state, self.verdict)

    async def run(self, request: PassRequest) -> dict[str, ActionResult]:
        assert request.demanded == {KIND}
        if self.hang_file:
            await asyncio.Event().wait()
        if isinstance(self.result, BaseException):
            raise self.result
        return {KIND: self.result}

    def view(self, _: str) -> SpecView:
        return self.file

    def objection(self, _: str) -> Reason:
        return Reason.OK

    def effective(self, _: str) -> tuple[bool, Reason, str]:
        return self.usable

    def asked(self) -> Allocation:
        async def main() -> Allocation:
            check = AllocationCheck(
                cast(Any, self), cast(Any, None), cast(Any, self), FixedClock(), lambda *told: self.refusals.append(told)
            )
            return await check.check(KVM, REQUEST)

        return asyncio.run(main())

    def refused(self) -> Reason:
        answer = self.asked()
        assert not answer.allowed
        assert answer.text
        assert self.refusals == [(KVM, "/dev/kvm", answer, REQUEST)], "a refusal is told once, with the request that it answers"
        return answer.reason


def test_a_good_device_with_a_true_file_may_be_given() -> None:
    world = World()
    assert world.asked() == Allocation(allowed=True, reason=Reason.OK, text="/dev/kvm may be given to a container")
    assert world.refusals == []


def test_r15_a_completed_bad_check_refuses_though_the_last_one_was_good() -> None:
    world = World()
    world.verdict = BAD
    assert world.refused() is Reason.HYPERVISOR_BUSY


def test_an_unfinished_check_passes_on_a_good_one_younger_than_30_seconds_only() -> None:
    world = World()
    world.verdict = UNFINISHED
    assert world.asked().allowed
    for state in (
        replace(HEALTHY, good_monotonic=NOW - 30),
        replace(HEALTHY, good_monotonic=None),
        replace(HEALTHY, health=Health.UNHEALTHY, reason=Reason.HYPERVISOR_BUSY),
        replace(HEALTHY, health=Health.UNKNOWN, reason=Reason.NOT_CHECKED),
    ):
        world = World()
        world.verdict, world.state = UNFINISHED, state
        assert world.refused() is Reason.PROBE_INCONCLUSIVE


@pytest.mark.parametrize(
    ("identity", "health", "reason"),
    [
        (Identity.MISSING, Health.MISSING, Reason.DEVICE_MISSING),
        (Identity.INVALID, Health.UNHEALTHY, Reason.DEVICE_COVERED),
        (Identity.UNKNOWN, Health.UNKNOWN, Reason.NOT_CHECKED),
    ],
)
@pytest.mark.parametrize("verdict", [None, GOOD])
def test_r18_no_verdict_outweighs_the_identity(identity: Identity, health: Health, reason: Reason, verdict: ProbeVerdict | None) -> None:
    world = World()
    world.state, world.verdict = replace(HEALTHY, identity=identity, health=health, reason=reason), verdict
    assert world.refused() is reason


def test_a_node_that_was_swapped_during_the_check_is_refused() -> None:
    world = World()
    world.verdict = None
    assert world.refused() is Reason.DEVICE_CHANGED


def test_a_node_that_was_swapped_after_a_good_check_is_refused() -> None:
    world = World()
    world.state = replace(HEALTHY, health=Health.UNKNOWN, reason=Reason.NOT_CHECKED, good_monotonic=None)
    assert world.refused() is Reason.DEVICE_CHANGED


def test_a_device_that_is_no_object_is_missing() -> None:
    world = World()
    world.known = False
    assert world.refused() is Reason.DEVICE_MISSING


@pytest.mark.parametrize("state", sorted(set(SpecState) - {SpecState.TRUE, SpecState.CONFLICT, SpecState.SHADOWED}))
def test_r1_a_file_that_is_not_in_order_refuses(state: SpecState) -> None:
    world = World()
    world.file = replace(FILE, state=state, reason=Reason.CDI_READ_ONLY)
    world.result = ActionResult(FILE.file, Outcome.FAILURE, Reason.CDI_READ_ONLY)
    assert world.refused() is Reason.CDI_READ_ONLY


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.NOOP])
def test_a_contested_file_that_this_pass_left_true_passes(outcome: Outcome) -> None:
    world = World()
    world.file = replace(FILE, state=SpecState.CONTESTED, reason=Reason.CDI_CONTESTED)
    world.result = ActionResult(FILE.file, outcome, Reason.OK)
    assert world.asked().allowed
    world = World()
    world.file = replace(FILE, state=SpecState.CONTESTED, reason=Reason.CDI_CONTESTED)
    world.result = ActionResult(FILE.file, Outcome.NOOP, Reason.CDI_CONTESTED)
    assert world.refused() is Reason.CDI_CONTESTED


def test_a_file_that_engines_do_not_use_or_without_the_device_refuses() -> None:
    world = World()
    world.usable = (False, Reason.CDI_SHADOWED, "/run/cdi/x.json wins")
    assert world.refused() is Reason.CDI_SHADOWED
    world = World()
    world.file = replace(FILE, devices=())
    assert world.refused() is Reason.CDI_NOT_PUBLISHED


def test_what_hangs_or_breaks_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "DEADLINE", 0.05)
    for change, reason in (
        ({"hang_probe": True}, Reason.PROBE_TIMEOUT),
        ({"hang_file": True}, Reason.CDI_TIMEOUT),
        ({"verdict": RuntimeError("x")}, Reason.DEADLINE),
        ({"result": RuntimeError("x")}, Reason.DEADLINE),
    ):
        world = World()
        for name, value in change.items():
            setattr(world, name, value)
        assert world.refused() is reason


@pytest.mark.parametrize("name", ["kvm", "/dev/kvm", KVM])
def test_the_three_names_of_a_device(name: str) -> None:
    assert parse_device(name) == KVM


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("ascend.com/npu=7", "ascend.com/npu=7"),
        ("/dev/davinci7", "ascend.com/npu=7"),
        ("ascend.com/npu=all", "ascend.com/npu=all"),
        ("ascend.com/vnpu=164", "ascend.com/vnpu=164"),
        ("/dev/vdavinci164", "ascend.com/vnpu=164"),
    ],
)
def test_the_names_of_an_npu(name: str, device: str) -> None:
    assert parse_device(name) == device


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257, "\x1b[31m"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(InvalidArguments):
        parse_device(name)


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu=0",
        "/dev/null",
        "KVM",
        "hyperlight.dev/hypervisor=other",
        "ascend.com/npu=07",
        "ascend.com/vnpu=all",
        "/dev/davinci7 ",
    ],
)
def test_what_is_not_known(name: str) -> None:
    with pytest.raises(NoSuchDevice):
        parse_device(name)
