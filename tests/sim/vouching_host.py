"""A device plugin whose checks are the real CheckAllocation over a real CDI file; the test says how /dev/kvm is."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from devward.allocation import AllocationCheck
from devward.cdi.reconciler import PassRequest
from devward.devices import health
from devward.devices.health import DeviceState, IdentityVerdict, NodeFacts, ProbeVerdict
from devward.devices.tracker import CheckResult
from devward.model import ActionRequest, DeviceKind, Health, Identity, Trigger
from devward.plugin.decision import Vouched
from devward.readiness import DeviceStanding
from devward.reasons import Reason
from sim.cdi_desk import KIND, KVM, Desk, candidate
from sim.plugin_host import PluginHost

GOOD = ProbeVerdict(completed=True, healthy=True, reason=Reason.OK, detail="", duration_usec=1)
UNUSABLE = replace(GOOD, healthy=False, reason=Reason.NOT_A_HYPERVISOR)
UNFINISHED = replace(GOOD, completed=False, healthy=False, reason=Reason.PROBE_INCONCLUSIVE)
NODE = NodeFacts(1, 1, "10:232", 0o20666, 0, 0, 1, ())
VALID = IdentityVerdict(Identity.VALID, Reason.OK, facts=NODE)
MISSING = IdentityVerdict(Identity.MISSING, Reason.DEVICE_MISSING)


class Device:
    """In the tracker's and the registry's place: the state is moved by the real rules, identity and probe are what the test says."""

    def __init__(self, host: "VouchingHost") -> None:
        self._host = host
        self.identity = VALID
        self.verdict: ProbeVerdict | None = GOOD
        self.state = DeviceState(DeviceKind.KVM, "/dev/kvm")

    def tracker(self, _: DeviceKind) -> "Device":
        return self

    def look(self) -> None:
        self.state = health.with_identity(self.state, self.identity, self._host.clock.realtime_usec())

    async def check(self, _: Trigger) -> CheckResult:
        """Look and probe; a verdict of None is a probe that hangs."""
        self.look()
        if self.verdict is None:
            await asyncio.Event().wait()
        assert self.verdict is not None
        verdict = self.verdict if self.state.identity is Identity.VALID else None
        if verdict is not None:
            now = self._host.desk.clock.monotonic()
            self.state = health.with_probe(self.state, verdict, self._host.clock.realtime_usec(), now)
        self._host.publish()
        return CheckResult(self.state, verdict)


class VouchingHost(PluginHost):
    """The plugin on a host with /etc/cdi, of which the test may change anything."""

    def __init__(self, base: Path, **settings: Any) -> None:
        super().__init__(base / "dp", **settings)
        self._base = base
        self.check = self._allocation

    def __enter__(self) -> "VouchingHost":
        self._thread.start()

        async def make() -> None:
            host = self

            class PublishingDesk(Desk):
                def _changed(self) -> None:
                    host.publish()

            self.desk = PublishingDesk(cast(Any, asyncio.get_running_loop()), self._base)
            self.clock = self.desk.clock
            self.device = Device(self)
            self.desk.list_devices = lambda: [candidate(self.device.state.identity, self.device.state.health)]
            # CheckAllocation asks nothing of NPUs about a hypervisor.
            self._checking = AllocationCheck(
                cast(Any, self.device), cast(Any, None), self.desk.reconciler, self.desk.clock, lambda *_: None
            )
            self.plugin = self._make_plugin()
            self.device.look()
            await self.desk.reconciler.start()
            await self.device.check(Trigger.STARTUP)
            await self.desk.reconciler.run(PassRequest(Trigger.TIMER, scan=True))
            self.publish()
            self.plugin.start()

        self.run(make)
        return self

    def __exit__(self, *raised: Any) -> None:
        async def close() -> None:
            await self.desk.reconciler.close()
            self.desk.close()

        try:
            self.run(close)
        finally:
            super().__exit__(*raised)

    async def _allocation(self, kind: DeviceKind) -> Vouched:
        allocation = await self._checking.check(f"{KIND}={kind}", ActionRequest("id", None, Trigger.DBUS))
        state = self.device.state
        return Vouched(allocation, state.good_monotonic if state.health is Health.HEALTHY else None)

    def publish(self) -> None:
        """Tell the plugin how device and file are, as the daemon does after each change."""
        reconciler = self.desk.reconciler
        usable, reason, _ = reconciler.effective(KVM)
        self.plugin.offer([DeviceStanding(health.view(self.device.state), usable, reason)], reconciler.view(KIND))

    def recheck(self) -> None:
        """Make the slow pass: look, probe, and go over the files."""

        async def main() -> None:
            await self.device.check(Trigger.TIMER)
            await self.desk.reconciler.run(PassRequest(Trigger.TIMER, scan=True))
            self.publish()

        self.run(main)
