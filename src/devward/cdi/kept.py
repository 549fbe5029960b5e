"""One owned file together with the devices that belong in it: who joins, who leaves, and the order for a pass."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from devward.cdi import decision, spec
from devward.cdi.decision import LeftOut, Membership
from devward.cdi.engines import Engines
from devward.cdi.owned import Order, OwnedSpec
from devward.cdi.sources import Offer, Source
from devward.config import CdiConfig
from devward.model import ActionRequest, ActionResult, Finding, Identity, Trigger
from devward.reasons import Reason

_NOTHING: Final = Offer((), None, complete=False)


class KeptSpec:
    """What a pass does about one file; passes never overlap, which the reconciler sees to."""

    def __init__(self, source: Source, make_owned: Callable[[str, str], OwnedSpec]) -> None:
        """`make_owned` returns the file of a name and kind, in the configured directory."""
        self.source = source
        self._make_owned = make_owned
        self._offer = _NOTHING
        self.owned = make_owned(source.file_name, source.cdi_kind)
        self.membership = Membership()

    @property
    def active(self) -> bool:
        """Whether the file is looked at and published: of what this host never had, there is nothing to see."""
        return self.source.wanted or self.owned.known

    async def start(self) -> None:
        """Learn which devices the file holds from an earlier run."""
        content = await self.owned.found_devices()
        if content is None:
            return
        try:
            loaded = spec.load(content, self.source.file_name)
        except spec.SpecError:
            return
        if loaded.kind == self.source.cdi_kind:
            self.membership = Membership(frozenset(loaded.devices) - {self.source.aggregate})

    def move(self) -> None:
        """Keep a file in another directory from now on; the old one is left as it is."""
        self.owned = self._make_owned(self.source.file_name, self.source.cdi_kind)

    # --- a pass --------------------------------------------------------------------------------------------------------
    def consider(self, config: CdiConfig, now: float) -> None:
        """Ask which devices there are, at the beginning of a pass; `now` in monotonic seconds."""
        self._offer = self.source.offer(config)
        self.membership = decision.membership(
            self.membership,
            self._offer.candidates,
            config.withdraw,
            config.settle_time,
            now,
            complete=self._offer.complete,
            strict=self._offer.strict,
        )

    def objection(self, device: str) -> Reason:
        """Return why a device does not belong in the file, as of the latest pass; `ok` where it does, or stands for others."""
        candidate = next((one for one in self._offer.candidates if one.device == device), None)
        if candidate is None or candidate.identity is Identity.VALID:
            return Reason.OK
        return candidate.reason or Reason.CDI_NOT_PUBLISHED

    def devices(self, engines: Engines) -> list[str]:
        """Return the devices for the document: one that another file of the directory defines would be dead in both."""
        return _in_order(device for device in self._wanted() if not engines.rivals(self.owned.path, device))

    async def reconcile(
        self,
        devices: Sequence[str],
        config: CdiConfig,
        *,
        trigger: Trigger,
        may_write: bool,
        demanded: bool,
        adopt: bool,
        dry_run: bool,
        request: ActionRequest | None,
    ) -> ActionResult:
        """Bring the file to hold these devices."""
        offer = self._offer
        desired = None
        if devices and offer.render is not None:
            desired = offer.render(devices, _in_order(self.membership.published))
        unknown = bool(devices) and desired is None
        if not offer.strict:
            unknown = unknown or not offer.complete or decision.undecided(self.membership, offer.candidates, config.withdraw)
        return await self.owned.reconcile(
            Order(
                desired=desired,
                devices=tuple(devices),
                trigger=trigger,
                left_out=tuple(self._left_out(devices)),
                may_write=may_write,
                demanded=demanded,
                adopt=adopt,
                dry_run=dry_run,
                withdrawing=bool(offer.candidates),
                undecided=unknown,
                contested_after=config.contested_after,
                request=request,
            )
        )

    def publish(self, engines: Engines, devices: Sequence[str]) -> None:
        """Publish the result of a pass that was to bring these devices into the file."""
        self.owned.publish(engines.overlay(self.owned.path, devices, self._rivalled(devices)))

    def findings(self, engines: Engines) -> Iterator[Finding]:
        """Yield the devices that are left out for the sake of a foreign file."""
        path = self.owned.path
        for device in self._rivalled(self.devices(engines)):
            for rival in engines.rivals(path, device):
                yield Finding(Reason.CDI_CONFLICT, rival, f"it defines {device} too, which devward therefore leaves out of {path}")

    def _rivalled(self, devices: Sequence[str]) -> list[str]:
        """Return the devices that belong in the file and are not among `devices`."""
        return _in_order(self._wanted() - set(devices))

    def _wanted(self) -> frozenset[str]:
        """Return the devices that belong in the file, with the one that stands for all where there are any."""
        aggregate = {self.source.aggregate} if self.membership.published and self.source.aggregate else set()
        return self.membership.published | aggregate

    def _left_out(self, devices: Sequence[str]) -> Iterator[LeftOut]:
        """Yield the devices that there are, or that the file held, and that are not to be in the document."""
        reasons = {candidate.device: candidate.reason for candidate in self._offer.candidates}
        for device in _in_order(reasons.keys() | set(self.owned.view.devices)):
            if device not in devices and device != self.source.aggregate:
                rivalled = device in self.membership.published
                reason = Reason.CDI_CONFLICT if rivalled else reasons.get(device, Reason.DEVICE_MISSING)
                yield LeftOut(device, self.source.node(device), reason)


def _in_order(devices: "Iterator[str] | frozenset[str] | set[str]") -> list[str]:
    """Return names as people count: 2 before 10."""
    return sorted(devices, key=lambda device: (len(device), device))
