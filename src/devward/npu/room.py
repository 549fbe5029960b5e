"""The NPUs of the daemon: nothing but this and a look at names until the host shows the first node of one; then all the rest is loaded."""

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from devward import names
from devward.audit import Audit
from devward.clock import Clock
from devward.config import NpuConfig
from devward.model import REASON_TEXT, Finding, NpuDevices, Reason, Trigger

if TYPE_CHECKING:  # a host without NPUs loads nothing of them
    from devward.npu.document import Outfit
    from devward.npu.inventory import Picture
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
    ) -> None:
        """Load nothing yet. `has_pins` tells whether it matters who else hands NPUs out."""
        self._config = config
        self._audit = audit
        self._clock = clock
        self._call = call
        self._on_change = on_change
        self._has_pins = has_pins
        self._watcher: NpuWatcher | None = None
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

    def describe(self) -> dict[str, object]:
        """Return everything, for Describe."""
        host = self._watcher.host if self._watcher is not None else {}
        outfit = self.outfit
        return {
            "host": host,
            "kubelet": outfit.kubelet if outfit is not None else "",
            "cards": [asdict(view) for view in self.cards()],
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

    def explain_card(self, name: str) -> str:
        """Return what is known of an NPU, as JSON."""
        card = next((view for view in self.cards() if view.name == name), None)
        return json.dumps({"name": name} if card is None else {"card": asdict(card)}, ensure_ascii=True)

    def explain_vnpu(self, name: str, pinned: Mapping[str, object]) -> str:
        """Return what is known of a vNPU and where from, as JSON; `pinned` is what is to be told of its pins."""
        vnpu = next((view for view in self.vnpus() if view.name == name), None)
        if vnpu is None:
            return json.dumps({"name": name})
        card = next((view for view in self.cards() if view.name == vnpu.card), None)
        told = {"vnpu": asdict(vnpu), "card": asdict(card) if card is not None else None, **pinned}
        return json.dumps(told, ensure_ascii=True)

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

        return offers.objection(device, self.cards(), self.vnpus(), self._watcher.outfit)

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

        client = BrokerClient(self._clock, lambda: kill_broker(self._audit, self._call))
        self._worker = Worker("npu", lambda: self.look(Trigger.TIMER))
        return NpuWatcher(
            client,
            self._worker,
            clock=self._clock,
            on_change=changed,
            on_lost_events=trail.lost_events,
            has_pins=self._has_pins,
        )
