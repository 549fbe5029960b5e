"""One hypervisor device: when its node is looked at and when it is probed.

A look at the identity is cheap and is done at once. A probe starts a virtual machine, and every start and stop of one emits a `change`
uevent on kvm, so nothing that a probe causes may lead to a probe: events that name a virtual machine are ignored, other changes are
looked at only, and a change of the node's attributes leads to a probe only when they differ from those at the last one, each time after
a longer wait while they do not come to rest.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from devward.clock import Clock, Coalescer
from devward.config import HypervisorConfig
from devward.devices import health
from devward.devices.health import DeviceState, IdentityVerdict, NodeFacts, ProbeVerdict, another_node
from devward.devices.identity import IdentifiedNode, drift
from devward.model import DeviceKind, DeviceView, Finding, Health, Identity, Trigger
from devward.reasons import Reason

_log = logging.getLogger(__name__)

#: Seconds within which a check must end, the wait for an earlier child included (R11).
PROBE_BUDGET = 2.0
#: Seconds of quiet after which a burst of events is answered, and the longest that it may delay the answer.
LOOK_QUIET, LOOK_CEILING = 0.02, 0.1
PROBE_QUIET, PROBE_CEILING = 0.25, 2.0
#: The first retry after a bad or incomplete check, and the least between two probes for attributes that changed, in seconds; each
#: further one waits twice as long.
FIRST_RETRY = 1.0


class Prober(Protocol):
    """Checks whether an identified node can be used; HypervisorProber is the real one."""

    async def probe(self, fd: int, *, budget: float = PROBE_BUDGET) -> ProbeVerdict:
        """Probe the node behind an O_PATH descriptor within `budget` seconds; cancelling the caller ends the child."""

    def close(self) -> None:
        """End what can be ended."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds between the checks of a usable device, and the longest between those of an unusable one."""

    probe: float
    retry: float


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one requested check established: the device's state after it, and the verdict (None: the node was not fit to be probed)."""

    state: DeviceState
    verdict: ProbeVerdict | None


class DeviceTracker:
    """Keeps the state of one device; `on_change(before, after, trigger)` is called for every change.

    All methods are for the thread of the running loop.
    """

    def __init__(
        self,
        kind: DeviceKind,
        node: str,
        *,
        identify: Callable[[], IdentifiedNode],
        prober: Prober,
        clock: Clock,
        intervals: Intervals,
        on_change: Callable[[DeviceState, DeviceState, Trigger], None],
    ) -> None:
        """Start unknown; `look` and `check` fill the state."""
        self.state = DeviceState(kind, node)
        self.intervals = intervals
        self.probes = 0
        #: Probes that were completed, and the seconds that these took in all.
        self.checks = 0
        self.check_seconds = 0.0
        self._identify = identify
        self._prober = prober
        self._clock = clock
        self._on_change = on_change
        self._probe: asyncio.Task[CheckResult] | None = None
        #: The node as it was when the last probe began.
        self._probed_facts: NodeFacts | None = None
        self._probe_wanted_anyway = False
        self._failures = 0
        self._timer: asyncio.TimerHandle | None = None
        #: How often in a row attributes led to a probe, the loop time before which they do not again, and the timer for then.
        self._restless = 0
        self._attributes_not_before = float("-inf")
        self._attributes_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._look_trigger = Trigger.STARTUP
        self._looks = Coalescer(self._look_again, quiet=LOOK_QUIET, ceiling=LOOK_CEILING, leading=True)
        self._probes = Coalescer(self._settled, quiet=PROBE_QUIET, ceiling=PROBE_CEILING, leading=False)

    @property
    def busy(self) -> bool:
        """Whether a probe runs or is about to."""
        return self._probe is not None or self._probes.pending or self._looks.pending

    def view(self) -> DeviceView:
        """Return what is published."""
        return health.view(self.state)

    def drift(self, expected: HypervisorConfig) -> list[Finding]:
        """Name what about the node differs from the configured expectation."""
        if self.state.facts is None:
            return []
        differences = drift(self.state.facts, mode=expected.expected_mode, uid=expected.expected_uid, gid=expected.expected_gid)
        return [Finding(Reason.DEVICE_DRIFT, self.state.node, difference) for difference in differences]

    def event(self, action: str, kvm_event: str) -> None:
        """Take in a uevent of this device."""
        if action == "change" and kvm_event:
            return
        if action != "change":
            self._want_probe()
        self.look(Trigger.UDEV)

    def look(self, trigger: Trigger) -> None:
        """Look at the node's identity: the first time in a burst at once, then once at its end.

        A node that came back, is another, or has other attributes than when it was last probed, is probed once it has settled.
        """
        if not self._closed:
            self._look_trigger = trigger
            self._looks.trigger()

    async def check(self, trigger: Trigger) -> CheckResult:
        """Look, and probe the device by a check that completes after this call; callers that overlap share one.

        Cancelling one caller leaves the check, and the others that wait for it, alone (R14). Raises RuntimeError after `close`.
        """
        if self._closed:
            raise RuntimeError(f"{self.state.node} is no longer watched")
        result = CheckResult(self.state, None)
        for _ in range(2):  # a node that was replaced during the first probe gets a second one
            self._look_now(trigger)
            if self.state.identity is not Identity.VALID:
                return CheckResult(self.state, None)
            result = await asyncio.shield(self._start_probe(trigger))
            if result.verdict is None or result.verdict.reason is not Reason.DEVICE_CHANGED:
                break
        return result

    async def close(self) -> None:
        """Stop looking; a probe in progress is ended, and the checks that wait for it are cancelled."""
        self._closed = True
        self._looks.cancel()
        self._probes.cancel()
        for timer in (self._timer, self._attributes_timer):
            if timer is not None:
                timer.cancel()
        try:
            if self._probe is not None:
                self._probe.cancel()
                await asyncio.gather(self._probe, return_exceptions=True)
        finally:
            self._prober.close()

    def configure(self, intervals: Intervals) -> None:
        """Apply other intervals; the wait for the next check begins anew."""
        changed, self.intervals = intervals != self.intervals, intervals
        if changed and self._timer is not None:
            self._schedule()

    def _look_again(self) -> None:
        self._look_now(self._look_trigger)

    def _look_now(self, trigger: Trigger) -> None:
        stood = self.state.inconclusive is Reason.OK
        with self._identify() as node:
            self._take_in(node.verdict, trigger)
        if node.verdict.identity is Identity.UNKNOWN and stood and self._probe is None:
            # The first of a row starts the retries; the probe that ends each of them arranges for the next.
            self._failures += 1
            self._schedule()

    def _take_in(self, verdict: IdentityVerdict, trigger: Trigger) -> None:
        """Let the state follow a look, and ask for a probe where the look shows something that no probe has seen."""
        if verdict.identity is Identity.VALID:
            if self.state.identity is not Identity.VALID or another_node(self.state.facts, verdict.facts):
                # Also where the node that was probed is back before anything was done about the other one.
                self._failures = 0
                self._want_probe()
            elif verdict.facts != self._probed_facts and not self._closed:
                self._probes.trigger()
        self._set(health.with_identity(self.state, verdict, self._clock.realtime_usec()), trigger)

    def _want_probe(self) -> None:
        """Ask for a probe that begins once the events have come to rest, whether or not the node differs then."""
        if not self._closed:
            self._probe_wanted_anyway = True
            self._probes.trigger()

    def _set(self, state: DeviceState, trigger: Trigger) -> None:
        before, self.state = self.state, state
        if before != state:
            self._on_change(before, state, trigger)

    def _settled(self) -> None:
        """A burst of events is over: probe, unless nothing about the node differs from when the last probe began."""
        if self._probe is not None:
            self._probes.trigger()  # what came during a probe is answered by one that begins after it
            return
        wanted, self._probe_wanted_anyway = self._probe_wanted_anyway, False
        if not self._checkable or (not wanted and self.state.facts == self._probed_facts):
            return
        if wanted or self._attributes_may_lead():
            self._start_probe(self._look_trigger)

    @property
    def _checkable(self) -> bool:
        """Whether a probe can find anything out: there is a node to be probed, or the last look could not be completed."""
        return self.state.identity is Identity.VALID or self.state.inconclusive is not Reason.OK

    def _attributes_may_lead(self) -> bool:
        """Tell whether other attributes may lead to a probe now; if not, they are looked at again when they may.

        Something that answers each probe's uevents by changing the node would otherwise keep both going for ever.
        """
        loop = asyncio.get_running_loop()
        if self._attributes_timer is not None:
            self._attributes_timer.cancel()
            self._attributes_timer = None
        if loop.time() < self._attributes_not_before:
            self._attributes_timer = loop.call_at(self._attributes_not_before, self._settled)
            return False
        calm = loop.time() - self._attributes_not_before >= self.intervals.retry
        self._restless = 0 if calm else self._restless + 1
        self._attributes_not_before = loop.time() + self._growing(self._restless)
        return True

    def _growing(self, times: int) -> float:
        """Return a wait that doubles each time, up to the retry interval."""
        return min(FIRST_RETRY * 2.0 ** min(times, 20), self.intervals.retry)

    def _start_probe(self, trigger: Trigger) -> "asyncio.Task[CheckResult]":
        """Start a probe, or share the one that is under way."""
        if self._probe is None:
            self._probe = asyncio.get_running_loop().create_task(self._probe_once(trigger), name=f"probe {self.state.kind}")
            self._probe.add_done_callback(self._probe_done)
        return self._probe

    async def _probe_once(self, trigger: Trigger) -> CheckResult:
        """Identify, probe that very node, and see that the path still leads to it."""
        with self._identify() as node:
            self._take_in(node.verdict, trigger)
            # Whatever asked for a probe up to now has it.
            self._probes.cancel()
            self._probe_wanted_anyway = False
            if node.verdict.identity is not Identity.VALID:
                return CheckResult(self.state, _not_looked_at(node.verdict))
            self._probed_facts = node.verdict.facts
            self.probes += 1
            verdict = await self._prober.probe(node.descriptor, budget=PROBE_BUDGET)
        with self._identify() as again:
            self._take_in(again.verdict, trigger)
            if again.verdict.identity is Identity.UNKNOWN:
                verdict = replace(verdict, completed=False, reason=again.verdict.reason, detail=again.verdict.detail)
            elif again.verdict.identity is not Identity.VALID:
                return CheckResult(self.state, None)
            elif another_node(node.verdict.facts, again.verdict.facts):
                verdict = replace(verdict, completed=False, reason=Reason.DEVICE_CHANGED, detail="")
        if verdict.completed:
            self.checks += 1
            self.check_seconds += verdict.duration_usec / 1e6
        self._set(health.with_probe(self.state, verdict, self._clock.realtime_usec(), self._clock.monotonic()), trigger)
        return CheckResult(self.state, verdict)

    def _probe_done(self, task: asyncio.Task[CheckResult]) -> None:
        self._probe = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("the check of %s failed", self.state.node, exc_info=error)
            self._failures += 1
        else:
            result = task.result()
            good = result.verdict is not None and result.verdict.completed and result.verdict.healthy
            self._failures = 0 if good else self._failures + 1
        self._schedule()

    def _schedule(self) -> None:
        """Set the timer for the next check; a node that is missing or not the device is looked at by events and the slow pass only."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed or not self._checkable:
            return
        if self.state.health is Health.HEALTHY and self._failures == 0:
            delay = self.intervals.probe
        else:
            delay = self._growing(max(self._failures - 1, 0))
        self._timer = asyncio.get_running_loop().call_later(delay, self._check_is_due)

    def _check_is_due(self) -> None:
        self._timer = None
        self._start_probe(Trigger.TIMER)


def _not_looked_at(verdict: IdentityVerdict) -> ProbeVerdict | None:
    """Return the incomplete check that an incomplete look makes, None where the look says that there is nothing to probe."""
    if verdict.identity is not Identity.UNKNOWN:
        return None
    return ProbeVerdict(completed=False, healthy=False, reason=verdict.reason, detail=verdict.detail, duration_usec=0)
