"""What the bus can ask of devward: the views, and the manual actions. Each action goes through the same loops as everything else."""

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from devward import changes, names, remembered
from devward import config as configuration
from devward.allocation import AllocationCheck, parse_device
from devward.audit import Audit, Record
from devward.cdi.reconciler import CdiReconciler, PassRequest
from devward.cdi.sources import qualified
from devward.clock import Clock
from devward.cluster.room import ClusterRoom
from devward.config import LoadedConfig
from devward.devices.registry import DeviceRegistry
from devward.errors import ConfigRefused, NoSuchNode, NoSuchSpec
from devward.metrics_room import MetricsRoom
from devward.model import (
    ActionRequest,
    ActionResult,
    Allocation,
    CdiMode,
    ConfigState,
    DeviceView,
    Finding,
    ManagerView,
    Outcome,
    ReclaimMode,
    SpecState,
    SpecView,
    Trigger,
)
from devward.npu.room import NpuRoom
from devward.pinning import Pinning
from devward.plugin.room import PluginRoom
from devward.readiness import IN_ORDER, DeviceStanding, NpuStanding, Readiness, judge
from devward.reasons import REASON_TEXT, Reason
from devward.reclaim.room import ReclaimRoom
from devward.remembered import Remembered
from devward.state import Pause, State

if TYPE_CHECKING:
    from devward.npu.views import CardView, VnpuView


@dataclass(frozen=True, slots=True)
class Identification:
    """Who this daemon is."""

    version: str
    node_name: str


class Service:
    """Implements the bus's Backend."""

    def __init__(
        self,
        *,
        identification: Identification,
        registry: DeviceRegistry,
        reconciler: CdiReconciler,
        npus: NpuRoom,
        cluster: ClusterRoom,
        reclaim: ReclaimRoom,
        pins: Pinning,
        plugin: PluginRoom,
        metrics: MetricsRoom,
        remembered_state: Remembered,
        audit: Audit,
        clock: Clock,
        allocation: AllocationCheck,
        reload_configuration: Callable[[Trigger], Awaitable[None]],
        dropped: Callable[[], int],
        loaded: LoadedConfig,
    ) -> None:
        """Hold what the answers are made of; `reload_configuration` raises ConfigRefused."""
        self._identification = identification
        self._registry = registry
        self._reconciler = reconciler
        self._npus = npus
        self._cluster = cluster
        self._reclaim = reclaim
        self._pins = pins
        self._plugin = plugin
        self._metrics = metrics
        self._remembered = remembered_state
        self._audit = audit
        self._clock = clock
        self._allocation = allocation
        self._reload_configuration = reload_configuration
        self._dropped = dropped
        self.loaded = loaded
        self.config_problem = ""
        self.started = False
        self.stopping_now = False
        self._found: tuple[Finding, ...] = ()

    # --- views -------------------------------------------------------------------------------------------------------
    def ready_for_actions(self) -> bool:
        """Whether the first pass is done."""
        return self.started

    def stopping(self) -> bool:
        """Whether no new action is taken."""
        return self.stopping_now

    def standings(self) -> list[DeviceStanding]:
        """Return every device, and whether engines find it by our definition."""
        standings = []
        for tracker in self._registry.trackers:
            effective, reason, _ = self._reconciler.effective(qualified(tracker.state.kind))
            standings.append(DeviceStanding(tracker.view(), effective, reason))
        return standings

    def readiness(self) -> Readiness:
        """Judge whether devward can vouch for something here."""
        return judge(
            started=self.started,
            devices=self.standings(),
            spec=self._reconciler.view(names.HYPERVISOR_CDI_KIND),
            config_state=self._config_state(),
            npus=self._npu_standing(),
            plugin=self._plugin.not_ready(),
            plugin_line=self._plugin.line(),
        )

    def _npu_standing(self) -> NpuStanding:
        cards = self._npus.cards()
        if not self._npus.watched:
            return NpuStanding()
        if not cards:
            found = [finding.code for finding in self._npus.findings()]
            return NpuStanding() if self._npus.complete else NpuStanding(reasons=tuple(found[:1]) or (Reason.NOT_CHECKED,))
        view = self._reconciler.view(names.NPU_CDI_KIND)
        in_order = view.state in IN_ORDER
        usable = offered = 0
        reasons: dict[Reason, None] = {}
        for card in cards:
            if card.reason is not Reason.OK:
                reasons[card.reason] = None
                continue
            usable += 1
            device = f"{names.NPU_CDI_KIND}={card.phy_id}"
            effective, reason, _ = self._reconciler.effective(device)
            if in_order and effective and device in view.devices:
                offered += 1
            else:
                reasons[reason if in_order and not effective else view.reason or Reason.CDI_NOT_PUBLISHED] = None
        return NpuStanding(usable, len(cards), offered, tuple(reasons))

    @property
    def checking(self) -> bool:
        """Whether something is being checked that Ready may depend on."""
        return self._registry.busy or self._reconciler.busy or not self.started

    def manager(self) -> ManagerView:
        """Return what is published of the daemon."""
        readiness = self.readiness()
        standing = self._cluster.standing()
        blocked = (*(code for code, _ in self._reclaim.blocked), *standing.blocked_reasons)
        standing = replace(standing, blocked_reasons=blocked)
        return ManagerView(
            version=self._identification.version,
            node_name=self._identification.node_name,
            ready=readiness.ready,
            not_ready_reasons=readiness.reasons,
            checking=self.checking,
            cdi_mode=self._reconciler.mode,
            cdi_paused_until_usec=self._reconciler.paused_until_usec,
            audit_dropped=self._dropped(),
            config_state=self._config_state(),
            **asdict(standing),
            reclaim_mode=self._reclaim.mode,
            reclaim_state=self._reclaim.state,
            reclaim_paused_until_usec=self._reclaim.paused_until_usec,
        )

    def devices(self) -> Sequence[DeviceView]:
        """Return every device."""
        return [tracker.view() for tracker in self._registry.trackers]

    def specs(self) -> Sequence[SpecView]:
        """Return every owned CDI file."""
        return self._reconciler.views

    def cards(self) -> "Sequence[CardView]":
        """Return every NPU."""
        return self._cluster.dressed(self._npus.cards())

    def vnpus(self) -> "Sequence[VnpuView]":
        """Return every vNPU."""
        return self._reclaim.judged(self._npus.vnpus())

    def explain_card(self, name: str, *, full: bool) -> str:
        """Return what is known of an NPU, as explain_vnpu()."""
        card = next((view for view in self.cards() if view.name == name), None)
        told = {"name": name} if card is None else {"card": asdict(card), **self._cluster.explain(card, "", full=full)}
        return json.dumps(told, ensure_ascii=True)

    def explain_vnpu(self, name: str, *, full: bool) -> str:
        """Return what is known of a vNPU, as JSON; without `full`, nothing that only an administrator may read."""
        vnpu = next((view for view in self.vnpus() if view.name == name), None)
        if vnpu is None:
            return json.dumps({"name": name})
        card = next((view for view in self.cards() if view.name == vnpu.card), None)
        told = {
            "vnpu": asdict(vnpu),
            "card": asdict(card) if card is not None else None,
            **self._pins.of_vnpu(name, full=full),
            **self._cluster.explain(card, name, full=full),
            **self._reclaim.explain(name, full=full),
        }
        return json.dumps(told, ensure_ascii=True)

    def findings(self) -> Sequence[Finding]:
        """Return what an administrator should know, with the time when each was first seen."""
        since = {(finding.code, finding.subject, finding.text): finding.since_usec for finding in self._found}
        now = self._clock.realtime_usec()
        self._found = tuple(
            replace(finding, since_usec=since.get((finding.code, finding.subject, finding.text), now))
            for finding in self._current_findings()
        )
        return self._found

    def describe(self, *, full: bool) -> str:
        """Return everything as JSON; without `full`, nothing that only an administrator may read."""
        pause = self._remembered.state.cdi_pause
        paused = self._reconciler.paused_until_usec
        document: dict[str, object] = {
            "manager": asdict(self.manager()),
            "devices": [self._describe_device(view) for view in self.devices()],
            "specs": [asdict(view) for view in self.specs()],
            "npus": self._npus.describe(self.cards()),
            "ownership": self._cluster.describe(full=full),
            "reclaim": self._reclaim.describe(full=full),
            "pins": self._pins.describe(full=full),
            "device_plugin": self._plugin.describe(full=full),
            # The text of a finding may name what another tool or workload has; the general sentence does not.
            "findings": [asdict(finding if full else replace(finding, text=REASON_TEXT[finding.code])) for finding in self.findings()],
            "event_source": self._registry.event_source,
        }
        if full:
            document["config"] = [
                {"key": key, "value": value, "source": source} for key, value, source in configuration.effective(self.loaded)
            ]
            document["config_problem"] = self.config_problem
            document["cdi_pause"] = asdict(pause) if pause is not None and paused else None
        return json.dumps(document, ensure_ascii=True)

    # --- actions -----------------------------------------------------------------------------------------------------
    async def check_allocation(self, request: ActionRequest, device: str) -> Allocation:
        """Check one device for a caller that is about to give it to a container."""
        return await self._allocation.check(parse_device(device), request)

    async def rescan(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """Look at and probe every device, scan the engines' directories, and see to the files."""
        with self._audit.begin("action", "Rescan was asked for", member="Rescan", request=request) as record:
            # They are looked at by and by: whoever asked waits for no vendor's library.
            self._npus.look(request.trigger)
            self._cluster.look()
            checks = await self._registry.check_all(request.trigger)
            results = [
                ActionResult(
                    result.state.node,
                    Outcome.SUCCESS if result.verdict is None or result.verdict.completed else Outcome.FAILURE,
                    result.state.reason if result.verdict is None or result.verdict.completed else result.verdict.reason,
                )
                for result in checks.values()
            ]
            passed = await self._reconciler.run(PassRequest(request.trigger, scan=True, request=request))
            results += passed.values()
            _conclude(record, "Rescan", results)
            return tuple(results)

    async def repair_specs(self, request: ActionRequest, *, dry_run: bool) -> tuple[ActionResult, ...]:
        """Repair every owned file that differs, also a contested one; with `dry_run` only say what would be done."""
        with self._audit.begin("action", "RepairSpecs was asked for", member="RepairSpecs", request=request) as record:
            every = frozenset(view.cdi_kind for view in self._reconciler.views)
            passed = await self._reconciler.run(PassRequest(request.trigger, demanded=every, scan=True, dry_run=dry_run, request=request))
            results = tuple(passed.values())
            if dry_run:
                record.dry_run("RepairSpecs was a dry run", evidence=_evidence(results))
            else:
                _conclude(record, "RepairSpecs", results)
            return results

    async def adopt_spec(self, request: ActionRequest, file: str, *, dry_run: bool) -> tuple[ActionResult, ...]:
        """Take over a file of another kind that stands at an owned path, keeping a copy of it. Raises NoSuchSpec."""
        views = self._reconciler.views
        view = next((view for view in views if file in (view.file, os.path.basename(view.file))), None)
        if view is None:
            raise NoSuchSpec(f"devward owns no CDI file of that name; it owns {', '.join(view.file for view in views)}")
        with self._audit.begin(
            "action", f"AdoptSpec was asked for: {view.file}", member="AdoptSpec", cdi_file=view.file, request=request
        ) as record:
            if view.state is not SpecState.FOREIGN:
                record.noop("AdoptSpec: the file is devward's own already, or there is none")
                return (ActionResult(view.file, Outcome.NOOP, Reason.OK),)
            kind = view.cdi_kind
            wish = PassRequest(request.trigger, demanded=frozenset({kind}), scan=True, adopt=kind, dry_run=dry_run, request=request)
            results = ((await self._reconciler.run(wish))[kind],)
            if dry_run:
                record.dry_run("AdoptSpec was a dry run", evidence=_evidence(results))
            else:
                _conclude(record, "AdoptSpec", results)
            return results

    async def set_cdi_mode(self, request: ActionRequest, mode: CdiMode) -> tuple[ActionResult, ...]:
        """Set the mode over the configuration's, until it is set again."""
        return await self._change(request, "SetCdiMode", f": {mode}", lambda state: replace(state, cdi_mode=mode))

    async def pause_cdi(self, request: ActionRequest, seconds: int, reason: str) -> tuple[ActionResult, ...]:
        """Stop repairs for some seconds, so that an administrator can take a file away."""
        until = self._clock.realtime_usec() + seconds * 1_000_000
        pause = Pause(until, reason, request.caller.uid if request.caller is not None else 0)
        return await self._change(request, "PauseCdi", f": {seconds} s, {reason}", lambda state: replace(state, cdi_pause=pause))

    async def resume_cdi(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """End a pause."""
        return await self._change(request, "ResumeCdi", "", remembered.without_pause)

    async def pin(self, request: ActionRequest, target: str, reason: str) -> tuple[ActionResult, ...]:
        """Keep a vNPU, or all those of an NPU, for ever."""
        return await self._pins.pin(request, target, reason)

    async def unpin(self, request: ActionRequest, target: str) -> tuple[ActionResult, ...]:
        """Take a pin away. Raises NoSuchPin."""
        return await self._pins.unpin(request, target)

    async def accept_node(self, request: ActionRequest, uid: str) -> tuple[ActionResult, ...]:
        """Take the API server's Node with this UID for this host's. Raises NoSuchNode."""
        seen, is_changed = self._cluster.node_seen()
        if uid != seen:
            known = f"it has {seen}" if seen else "it could not be read"
            raise NoSuchNode(f"The API server's Node of this host has not that UID; {known}.")
        with self._audit.begin("action", f"AcceptNode was asked for: {uid}", member="AcceptNode", subject=uid, request=request) as record:
            if not is_changed:
                record.noop("AcceptNode: the Node is taken for this host's already")
                return (ActionResult(uid, Outcome.NOOP, Reason.OK),)
            self._cluster.accept_node(uid)
            record.succeed("The Node is taken for this host's from the next look on, and all waiting begins again")
            return (ActionResult(uid, Outcome.SUCCESS, Reason.OK),)

    async def reclaim_vnpu(
        self, request: ActionRequest, vdev: int, identity: str, *, dry_run: bool, shorten: bool
    ) -> tuple[ActionResult, ...]:
        """Have one vNPU reclaimed by all the rules, or say what is against it. Raises NoSuchVnpu."""
        return await self._reclaim.actions.reclaim_vnpu(request, vdev, identity, dry_run=dry_run, shorten=shorten)

    async def reclaim_orphans(self, request: ActionRequest, *, dry_run: bool, shorten: bool) -> tuple[ActionResult, ...]:
        """Have every vNPU reclaimed that nobody seems to have, by all the rules, or say what is against each."""
        return await self._reclaim.actions.reclaim_orphans(request, dry_run=dry_run, shorten=shorten)

    async def release_breaker(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """Agree to what was eligible while too much of it was."""
        return await self._reclaim.actions.release_breaker(request)

    async def set_reclaim_mode(self, request: ActionRequest, mode: ReclaimMode) -> tuple[ActionResult, ...]:
        """Set the mode over the configuration's, until it is set again."""
        return await self._reclaim.actions.set_mode(request, mode)

    async def pause_reclaim(self, request: ActionRequest, seconds: int, reason: str) -> tuple[ActionResult, ...]:
        """Destroy nothing for some seconds."""
        return await self._reclaim.actions.pause(request, seconds, reason)

    async def resume_reclaim(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """End a pause of reclaiming."""
        return await self._reclaim.actions.resume(request)

    async def reload(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """Apply the configuration on disk. Raises ConfigRefused, and then the old one stays in force."""
        with self._audit.begin("action", "Reload was asked for", member="Reload", request=request) as record:
            try:
                await self._reload_configuration(request.trigger)
            except ConfigRefused as error:
                record.fail(Reason.CONFIG_REFUSED, f"Reload: {error}")
                raise
            record.succeed("The configuration on disk is in force")
        return (ActionResult("configuration", Outcome.SUCCESS, Reason.OK),)

    async def _change(self, request: ActionRequest, member: str, what: str, change: Callable[[State], State]) -> tuple[ActionResult, ...]:
        """Change what is remembered, and let a pass act on it."""

        async def then(*, saved: bool) -> Reason:
            await self._reconciler.run(PassRequest(request.trigger, scan=True))
            return Reason.OK

        return await changes.change(self._audit, self._remembered, request, member, "cdi", what, change, then)

    # --- parts -------------------------------------------------------------------------------------------------------
    def _config_state(self) -> ConfigState:
        return ConfigState.REFUSED if self.config_problem else ConfigState.GOOD

    def _current_findings(self) -> list[Finding]:
        found = list(self.loaded.warnings)
        if self.config_problem:
            found.append(Finding(Reason.CONFIG_REFUSED, "configuration", self.config_problem))
        expected = self.loaded.config.hypervisor
        for tracker in self._registry.trackers:
            found += tracker.drift(expected)
        return [
            *found,
            *self._registry.findings(),
            *self._reconciler.findings(),
            *self._npus.findings(),
            *self._cluster.findings(),
            *self._reclaim.findings(),
            *self._pins.findings(),
            *self._metrics.findings(),
        ]

    def _describe_device(self, view: DeviceView) -> Mapping[str, object]:
        tracker = next(tracker for tracker in self._registry.trackers if tracker.state.kind is view.kind)
        facts = tracker.state.facts
        described = asdict(view) | {"probes": tracker.probes}
        if facts is not None:
            described |= {"mode": f"{facts.mode:04o}", "uid": facts.uid, "gid": facts.gid, "acl": list(facts.acl)}
        return described


def own_request(new_id: Callable[[], str], trigger: Trigger) -> ActionRequest:
    """Make the request of an action that nobody asked for over the bus, such as SIGHUP."""
    return ActionRequest(new_id(), None, trigger)


def _conclude(record: Record, member: str, results: Sequence[ActionResult]) -> None:
    failed = [result for result in results if result.outcome is Outcome.FAILURE]
    if failed:
        record.fail(
            failed[0].reason, f"{member} did not succeed for {', '.join(result.target for result in failed)}", evidence=_evidence(results)
        )
    elif all(result.outcome is Outcome.NOOP for result in results):
        record.noop(f"{member}: nothing to do", evidence=_evidence(results))
    else:
        record.succeed(f"{member} done", evidence=_evidence(results))


def _evidence(results: Sequence[ActionResult]) -> dict[str, object]:
    return {"results": [[result.target, str(result.outcome), str(result.reason)] for result in results]}
