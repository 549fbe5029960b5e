"""What is measured is what the daemon knows, and its counts never go back."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from devward.measuring import NO_SUCH_DEVICE, Measuring
from devward.metrics import DeviceMeasures, PluginMeasures, ReclaimMeasures
from devward.model import OWN_WISHES, CdiMode, ConfigState, DeviceKind, DeviceView, Health, Identity, ManagerView, RepairCause
from devward.npu.views import UNKNOWN_NUMBER, CardHealth, CardView, Management, Protection, Verdict
from devward.reasons import Reason

FILE = "hyperlight.dev-hypervisor.json"
MANAGER = ManagerView(
    "1.2.3", "node", True, (), False, CdiMode.REPAIR, 0, 4, ConfigState.GOOD, certificate_expires_usec=1_800_000_000_500_000
)
KVM = DeviceView(DeviceKind.KVM, "/dev/kvm", "10:232", Identity.VALID, 1, Health.HEALTHY, 1, Reason.OK, "", 1_700_000_000_250_000, 1000)
CARD = CardView(
    "p000", 0, 0, 0, 0, "DIE", "Ascend 910B4", "/dev/davinci0", "4000:0", Identity.VALID, CardHealth.HEALTHY, Management.MANAGED,
    Protection.NONE, (), 0, 0, UNKNOWN_NUMBER, Reason.OK, "",
)  # fmt: skip
PLUGIN = PluginMeasures("a/b", True, 1, 2, 3, 4, 5, 6, 7)


class Daemon:
    """Rooms that say what the test wants."""

    def __init__(self) -> None:
        self.shown = MANAGER
        self.views: list[DeviceView] = [KVM]
        self.units: list[CardView] = []
        self.verdicts: list[Verdict] = []
        self.watched = self.complete = True
        self.reclaiming = ReclaimMeasures(leaked_cores=2.0, reclaims={"destroyed": 7})
        self.plugin: PluginMeasures | None = None
        room: Any = self
        self.measuring = Measuring(room, room, room, room, plugin=lambda: self.plugin)

    def manager(self) -> ManagerView:
        return self.shown

    def specs(self) -> list[Any]:
        return [SimpleNamespace(file=f"/etc/cdi/{FILE}")]

    def cards(self) -> list[CardView]:
        return self.units

    def vnpus(self) -> list[Any]:
        return [SimpleNamespace(verdict=verdict) for verdict in self.verdicts]

    def measures(self) -> ReclaimMeasures:
        return self.reclaiming

    @property
    def trackers(self) -> list[Any]:
        return [SimpleNamespace(view=lambda view=view: view, checks=3, check_seconds=0.75) for view in self.views]


def test_the_daemons_own_state() -> None:
    daemon = Daemon()
    taken = daemon.measuring.take()
    assert (taken.version, taken.ready, taken.config_good, taken.audit_dropped) == ("1.2.3", True, True, 4)
    assert taken.certificate_expiry == 1_800_000_000.5
    assert taken.plugin is None
    daemon.shown = replace(MANAGER, ready=False, config_state=ConfigState.REFUSED, certificate_expires_usec=0)
    daemon.plugin = PLUGIN
    taken = daemon.measuring.take()
    assert (taken.ready, taken.config_good, taken.certificate_expiry, taken.plugin) == (False, False, None, PLUGIN)


def test_the_health_of_devices_is_unknown_until_it_is_known() -> None:
    daemon = Daemon()
    for health, healthy in ((Health.HEALTHY, True), (Health.UNHEALTHY, False), (Health.MISSING, False), (Health.UNKNOWN, None)):
        daemon.views = [replace(KVM, health=health)]
        assert daemon.measuring.take().devices == (DeviceMeasures("/dev/kvm", healthy, 1_700_000_000.25, 3, 0.75),)
    daemon.views = [replace(KVM, last_check_usec=0)]
    assert daemon.measuring.take().devices[0].last_check is None
    daemon.views = []
    for card, healthy in (
        (CARD, True),
        (replace(CARD, health=CardHealth.UNHEALTHY, reason=Reason.NPU_UNHEALTHY), False),
        (replace(CARD, reason=Reason.NPU_NODE_MISMATCH), False),
        (replace(CARD, health=CardHealth.UNKNOWN, reason=Reason.NPU_HEALTH_UNKNOWN), None),
    ):
        daemon.units = [card]
        assert daemon.measuring.take().devices == (DeviceMeasures("/dev/davinci0", healthy, checks=None),)
    daemon.units = [replace(CARD, node="")]
    assert daemon.measuring.take().devices[0].node == "p000"


def test_repairs_are_counted_by_cause_and_own_wishes_are_none() -> None:
    daemon = Daemon()
    mending = {(FILE, str(cause)): 0 for cause in RepairCause if cause not in OWN_WISHES}
    assert daemon.measuring.take().repairs == mending
    for cause in (*RepairCause, RepairCause.STALE):
        daemon.measuring.repaired(f"/etc/cdi/{FILE}", cause)
    daemon.measuring.repaired(f"/run/cdi/{FILE}", RepairCause.MISSING)  # of another directory, as after a reload
    expected = dict.fromkeys(mending, 1) | {(FILE, "stale"): 2, (FILE, "missing"): 2}
    assert daemon.measuring.take().repairs == expected
    assert daemon.measuring.take().repairs == expected, "taking them changes nothing"


def test_refusals_are_counted_and_names_that_are_thought_up_share_one_label() -> None:
    daemon = Daemon()
    daemon.measuring.refused("/dev/kvm", Reason.HYPERVISOR_BUSY)
    daemon.measuring.refused("/dev/kvm", Reason.HYPERVISOR_BUSY)
    daemon.measuring.refused("", Reason.DEVICE_MISSING)
    assert daemon.measuring.take().refusals == {("/dev/kvm", "hypervisor-busy"): 2, (NO_SUCH_DEVICE, "device-missing"): 1}


def test_vnpus_by_verdict_where_they_are_all_known() -> None:
    daemon = Daemon()
    daemon.verdicts = [Verdict.IN_USE, Verdict.IN_USE, Verdict.CONFIRMING]
    taken = daemon.measuring.take().reclaim
    assert taken is not None
    assert taken.vnpus == {str(verdict): 0 for verdict in Verdict} | {"in-use": 2, "confirming": 1}
    assert (taken.leaked_cores, taken.reclaims) == (2.0, {"destroyed": 7})
    daemon.complete = False
    assert daemon.measuring.take().reclaim == ReclaimMeasures(leaked_cores=2.0, reclaims={"destroyed": 7})
    daemon.watched = False
    assert daemon.measuring.take().reclaim is None
