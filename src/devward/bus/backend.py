"""What the bus needs of the rest of the daemon, as protocols: this room knows nothing of devices, files or the journal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from devward.model import ActionRequest, ActionResult, Allocation, Caller, CdiMode, DeviceView, Finding, ManagerView, ReclaimMode, SpecView

if TYPE_CHECKING:  # a host without NPUs loads nothing of them
    from devward.npu.views import CardView, VnpuView


class Backend(Protocol):
    """The daemon behind the bus.

    What is asked without `await` is answered from memory at once. An action raises a DevwardError where it refuses, and otherwise
    returns a line for each of its targets; it may be cancelled when the daemon stops.
    """

    def manager(self) -> ManagerView:
        """Return the state of the daemon."""

    def devices(self) -> Sequence[DeviceView]:
        """Return the devices that are objects on the bus; at most one of a kind."""

    def specs(self) -> Sequence[SpecView]:
        """Return the owned CDI files; at most one of a file name."""

    def cards(self) -> "Sequence[CardView]":
        """Return the NPUs; at most one of a name. A view that is the same object as before is taken for unchanged at no cost."""

    def vnpus(self) -> "Sequence[VnpuView]":
        """Return the vNPUs; at most one of a name. As cards()."""

    def explain_card(self, name: str, *, full: bool) -> str:
        """Return what is known of the NPU with this name, as explain_vnpu()."""

    def explain_vnpu(self, name: str, *, full: bool) -> str:
        """Return what is known of the vNPU with this name, as JSON; without what names other people's workloads unless `full`."""

    def findings(self) -> Sequence[Finding]:
        """Return what an administrator should know."""

    def describe(self, *, full: bool) -> str:
        """Return everything as JSON; without what names other people's workloads unless `full`."""

    def ready_for_actions(self) -> bool:
        """Whether the first pass is done."""

    def stopping(self) -> bool:
        """Whether the daemon takes no new action any more."""

    async def rescan(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """Look at every device and file now."""

    async def repair_specs(self, request: ActionRequest, *, dry_run: bool) -> tuple[ActionResult, ...]:
        """Bring the owned CDI files in order, or tell what would be done."""

    async def adopt_spec(self, request: ActionRequest, file: str, *, dry_run: bool) -> tuple[ActionResult, ...]:
        """Take over a foreign file at the path of an owned one. NoSuchSpec where no owned file has that name or path."""

    async def set_cdi_mode(self, request: ActionRequest, mode: CdiMode) -> tuple[ActionResult, ...]:
        """Set what may be done to CDI files."""

    async def pause_cdi(self, request: ActionRequest, seconds: int, reason: str) -> tuple[ActionResult, ...]:
        """Stop writing CDI files for so many seconds, for a reason that is recorded."""

    async def resume_cdi(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """End a pause."""

    async def reclaim_vnpu(
        self, request: ActionRequest, vdev: int, identity: str, *, dry_run: bool, shorten: bool
    ) -> tuple[ActionResult, ...]:
        """Destroy the vNPU with this id and identity if nobody owns it, or tell what would be done; `shorten` waits less and asks no less.

        The target of its line is the identity. NoSuchVnpu where there is none of that id and identity.
        """

    async def reclaim_orphans(self, request: ActionRequest, *, dry_run: bool, shorten: bool) -> tuple[ActionResult, ...]:
        """Destroy the vNPUs that nobody owns, within the limits, as reclaim_vnpu(); a line for each that seems to be nobody's."""

    async def release_breaker(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """Agree to what was eligible while too much of it was. The target of its first line is `breaker`; each vNPU has one of its own."""

    async def set_reclaim_mode(self, request: ActionRequest, mode: ReclaimMode) -> tuple[ActionResult, ...]:
        """Set what may be done with vNPUs that nobody owns. The target of its line, and of those of a pause, is `reclaim`."""

    async def pause_reclaim(self, request: ActionRequest, seconds: int, reason: str) -> tuple[ActionResult, ...]:
        """Destroy nothing for so many seconds, for a reason that is recorded."""

    async def resume_reclaim(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """End a pause of reclaiming."""

    async def pin(self, request: ActionRequest, target: str, reason: str) -> tuple[ActionResult, ...]:
        """Keep the vNPU or NPU of this target, in its printed form, for a reason that is recorded. LimitsExceeded at too many pins."""

    async def unpin(self, request: ActionRequest, target: str) -> tuple[ActionResult, ...]:
        """Take the pin of this target away. NoSuchPin where there is none."""

    async def accept_node(self, request: ActionRequest, uid: str) -> tuple[ActionResult, ...]:
        """Take the API server's Node with this UID for this host's. NoSuchNode where the one that was read last has another."""

    async def reload(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """Read the configuration again. ConfigRefused where it is bad."""

    async def check_allocation(self, request: ActionRequest, device: str) -> Allocation:
        """Judge whether the device works in a container now, within 2 seconds. NoSuchDevice or InvalidArguments for its name."""


class DenialAudit(Protocol):
    """Where refusals are recorded; it limits their number itself."""

    def denied(self, *, caller: Caller | None, sender: str, action: str, member: str, reason: str, text: str) -> None:
        """Record that a member was refused, with the code and the sentence of why; `caller` is None where the bus cannot tell who it is."""


class LogControl(Protocol):
    """The daemon's own logging, as org.freedesktop.LogControl1 shows and sets it."""

    def log_level(self) -> str:
        """Return the highest level that is logged, as a syslog keyword: emerg, alert, crit, err, warning, notice, info or debug."""

    def set_log_level(self, level: str) -> None:
        """Set the level to one of these keywords."""

    def log_target(self) -> str:
        """Return where log messages go: auto, journal or console."""

    def set_log_target(self, target: str) -> None:
        """Set the target to one of these words."""
