"""The NPUs of the daemon: nothing but this and a look at names until the host shows the first node of one; then all the rest is loaded."""

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from devward import names
from devward.audit import Audit
from devward.clock import Clock
from devward.config import NpuConfig
from devward.model import Finding, NpuDevices, Trigger
from devward.reasons import REASON_TEXT, Reason

if TYPE_CHECKING:  # a host without NPUs loads nothing of them
    from devward.cluster.statement import AskedVnpu, Statement
    from devward.npu.client import BrokerClient, Destruction
    from devward.npu.document import Outfit
    from devward.npu.facts import Expected
    from devward.npu.inventory import Picture, Unavailable
    from devward.npu.pins import Sight
    from devward.npu.views import CardView, VnpuView
    from devward.npu.watcher import NpuWatcher
    from devward.worker import Worker

#: Calls a method over the bus. BusError.
Call = Callable[..., Awaitable[object]]


class NpuRoom:
    """Cards and vNPUs as they are published. Asking it is free; it never makes anybody wait."""

    def __init__(
        self,
        config: NpuConfig,
        *,
        audit: Audit,
        clock: Clock,
        call: Call,
        on_change: Callable[[], None],
        has_pins: Callable[[], bool],
        claims: Callable[[str], tuple[Reason, str] | None],
    ) -> None:
        """Load nothing yet.

        `has_pins` tells whether it matters who else hands NPUs out. `claims` tells, by the die id of an NPU, why a vNPU of it may be a
        Pod's, as code and what is to be said; None: no Pod has to do with it.
        """
        self._config = config
        self._audit = audit
        self._clock = clock
        self._call = call
        self._on_change = on_change
        self._has_pins = has_pins
        self.claims = claims
        self._watcher: NpuWatcher | None = None
        self._client: BrokerClient | None = None
        self._worker: Worker | None = None
        #: Before the daemon is ready a sight is only noted: reading the code would hold it up.
        self._opened = False
        self._seen = False

    # --- for the CDI files ---------------------------------------------------------------------------------------------
    @property
    def config(self) -> NpuConfig:
        """The settings in force."""
        return self._config

    @property
    def watched(self) -> bool:
        """Whether there was an NPU, and it was looked at, since the daemon began."""
        return self._watcher is not None

    @property
    def complete(self) -> bool:
        """Whether an NPU or vNPU that is not shown does not exist, or is none of devward's business."""
        if self._config.devices is NpuDevices.OFF:
            return True
        return not self._watcher.picture.in_doubt if self._watcher is not None else not self._seen

    @property
    def outfit(self) -> "Outfit | None":
        """What containers need beside the NPUs; None if that is not known."""
        return self._watcher.outfit if self._watcher is not None else None

    # --- for the look at who owns vNPUs --------------------------------------------------------------------------------
    @property
    def picture(self) -> "Picture":
        """The latest look."""
        from devward.npu.inventory import Picture

        return self._watcher.picture if self._watcher is not None else Picture(in_doubt=True)

    @property
    def may_have_idle(self) -> bool:
        """Whether there is a vNPU that is idle, or may be."""
        return self._watcher.picture.may_have_idle if self._watcher is not None else False

    async def witness(self, vnpus: "tuple[AskedVnpu, ...]", runtime: str | None) -> "Statement | Unavailable":
        """Have the broker say what the host shows; as BrokerClient.witness()."""
        if self._client is None:
            from devward.npu.inventory import Unavailable

            return Unavailable(Reason.NPU_BROKER_UNREACHABLE, "there are no NPUs")
        return await self._client.witness(vnpus, runtime)

    def sequence(self, vdev: int) -> int | None:
        """Return a number that grows with each event by which a vNPU's node may have become another one; None: it cannot be told."""
        return self._watcher.sequence(vdev) if self._watcher is not None else None

    async def destroy(
        self, expected: "Expected", runtime: str, request: str, last_word: "Callable[[], Awaitable[str]] | None" = None
    ) -> "Destruction":
        """Have the broker destroy a vNPU, once, and look at the NPUs again; as BrokerClient.destroy()."""
        if self._client is None:
            from devward.npu.client import Unasked

            return Unasked(Reason.NPU_BROKER_UNREACHABLE, "there are no NPUs")
        try:
            return await self._client.destroy(expected, runtime, request, last_word)
        finally:
            self.look(Trigger.TIMER)

    def destroy_may_run(self) -> bool:
        """Tell whether some broker may be in the call that destroys a vNPU; what cannot be learned counts as that it is.

        One that an earlier run of the daemon asked may be before there is a client, and where NPUs were switched off meanwhile.
        """
        try:
            os.lstat(names.BROKER_LOCK_FILE)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        from devward.npu.client import destroy_may_run

        return destroy_may_run(names.BROKER_LOCK_FILE)

    # --- views -------------------------------------------------------------------------------------------------------
    def cards(self) -> "Sequence[CardView]":
        """Return every NPU."""
        return self._watcher.picture.cards if self._watcher is not None else ()

    def vnpus(self) -> "Sequence[VnpuView]":
        """Return every vNPU."""
        return self._watcher.picture.vnpus if self._watcher is not None else ()

    def findings(self) -> Sequence[Finding]:
        """Return what an administrator should know of NPUs."""
        if self._watcher is None:
            return ()
        picture, outfit = self._watcher.picture, self._watcher.outfit
        if outfit is None or not picture.cards:
            return picture.findings
        from devward.npu import offers

        return (*picture.findings, *offers.findings(picture.cards, outfit))

    def describe(self, cards: "Sequence[CardView]") -> dict[str, object]:
        """Return everything, for Describe, with the NPUs as they are published."""
        host = self._watcher.host if self._watcher is not None else {}
        outfit = self.outfit
        return {
            "host": host,
            "kubelet": outfit.kubelet if outfit is not None else "",
            "cards": [asdict(view) for view in cards],
            "vnpus": [asdict(view) for view in self.vnpus()],
        }

    def sight(self) -> "Sight":
        """Return what pins are matched with."""
        from devward.npu.pins import Sight

        if self._watcher is not None:
            picture = self._watcher.picture
            return Sight(picture.cards, picture.vnpus, picture.lasting, picture.in_doubt)
        is_wanted = self._seen and self._config.devices is not NpuDevices.OFF
        return Sight(in_doubt=is_wanted or not self._opened)

    async def fresh(self) -> None:
        """Wait for a look that begins after this call, if there are NPUs. The caller bounds the time: a broker may hang."""
        if self._watcher is not None:
            await self._watcher.fresh()

    def may_have(self, device: str, node: str) -> bool:
        """Tell whether there may be an NPU or vNPU of this CDI name: it was listed at the latest look, or has its node."""
        kind, _, name = device.partition("=")
        if self._watcher is None:
            return False
        ids = {str(view.vdev) for view in self.vnpus()} if kind == names.VNPU_CDI_KIND else {str(view.phy_id) for view in self.cards()}
        return name in ids or name == "all" or os.path.lexists(node)

    def objection(self, device: str) -> tuple[Reason, str] | None:
        """Return why an NPU or vNPU, by its CDI name, may not be given to a container now, as code and sentence; None if it may."""
        if self._watcher is None or self._watcher.outfit is None:
            return Reason.DEVICE_MISSING, REASON_TEXT[Reason.DEVICE_MISSING]
        from devward.npu import offers

        return offers.objection(device, self.cards(), self.vnpus(), self._watcher.outfit, self.claims)

    # --- looking -----------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """The daemon is ready: look at what was seen meanwhile."""
        self._opened = True
        if self._seen:
            self.seen(Trigger.STARTUP)

    def seen(self, trigger: Trigger) -> None:
        """There is a node of an NPU, or something happened to one."""
        self._seen = True
        if not self._opened or self._config.devices is NpuDevices.OFF:
            return
        if self._watcher is None:
            self._watcher = self._make_watcher()
        # What only comes by every minute needs no look of its own where one comes anyway.
        if trigger is not Trigger.TIMER or not self._watcher.awake:
            self._watcher.wake(trigger)

    def look(self, trigger: Trigger) -> None:
        """Look because an administrator wants it; nobody waits for that."""
        if self._watcher is not None and self._watcher.awake:
            self._watcher.wake(trigger, urgent=True)

    async def configure(self, config: NpuConfig) -> None:
        """Apply a new configuration."""
        was, self._config = self._config.devices, config
        if config.devices is NpuDevices.OFF and self._watcher is not None:
            await self._watcher.close()
            self._watcher.forget()
        elif config.devices is not was and self._seen:
            self.seen(Trigger.SIGNAL)
        else:
            self.look(Trigger.SIGNAL)

    async def close(self) -> None:
        """Stop looking, whatever is under way."""
        self._opened = False
        if self._watcher is not None:
            await self._watcher.close()
        if self._worker is not None:
            self._worker.close()

    def _make_watcher(self) -> "NpuWatcher":
        from devward.npu.client import BrokerClient
        from devward.npu.trail import Trail, kill_broker
        from devward.npu.watcher import NpuWatcher
        from devward.worker import Worker

        trail = Trail(self._audit)

        def changed(before: "Picture", after: "Picture", trigger: Trigger) -> None:
            trail.record(before, after, trigger)
            self._on_change()

        client = self._client = BrokerClient(self._clock, lambda: kill_broker(self._audit, self._call))
        self._worker = Worker("npu", lambda: self.look(Trigger.TIMER))
        return NpuWatcher(
            client,
            self._worker,
            clock=self._clock,
            on_change=changed,
            on_lost_events=trail.lost_events,
            has_pins=self._has_pins,
        )
