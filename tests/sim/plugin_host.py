"""A host with a device plugin: the real one, over real gRPC, with stand-ins for the checks of devices and for their CDI file."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pytest

from devward.breakages import Breakages
from devward.cdi import engines, owned, reconciler
from devward.clock import Clock
from devward.model import Allocation, DeviceKind, DeviceView, Health, Identity, SpecState, SpecView
from devward.plugin import registration, server
from devward.plugin.decision import Verdict, Vouched
from devward.plugin.device_plugin import DevicePlugin
from devward.plugin.settings import PluginSettings
from devward.plugin.status import PluginStatus, RegistrationState, not_ready
from devward.readiness import DeviceStanding
from devward.reasons import REASON_TEXT, Reason
from sim.held_time import PATIENCE

T = TypeVar("T")

RESOURCE = "hyperlight.dev/hypervisor"
SPEC = SpecView("/etc/cdi/x.json", RESOURCE, (f"{RESOURCE}=kvm", f"{RESOURCE}=mshv"), SpecState.TRUE, 1, Reason.OK, "", 0, 0, "")


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be given up because the machine is slow; a test of one of these times sets it itself."""
    for module, name, seconds in [
        (registration, "REGISTER_DEADLINE", PATIENCE),
        (registration, "_FILE_DEADLINE", PATIENCE),
        # Within what closing the host may take.
        (server, "STOP_GRACE", PATIENCE / 2),
        (owned, "FILE_DEADLINE", PATIENCE),
        (engines, "SCAN_DEADLINE", PATIENCE),
        (reconciler, "SCAN_DEADLINE", PATIENCE),
    ]:
        monkeypatch.setattr(module, name, seconds)


def view(kind: DeviceKind = DeviceKind.KVM, health: Health = Health.HEALTHY) -> DeviceView:
    return DeviceView(kind, f"/dev/{kind}", "10:232", Identity.VALID, 1, health, 1, Reason.OK, "", 1, 1)


def standing(kind: DeviceKind = DeviceKind.KVM, health: Health = Health.HEALTHY, *, effective: bool = True) -> DeviceStanding:
    return DeviceStanding(view(kind, health), effective, Reason.OK)


def allowed(now: float) -> Vouched:
    return Vouched(Allocation(allowed=True, reason=Reason.OK, text=""), now)


def refused(reason: Reason, good: float | None = None) -> Vouched:
    """Return a refusal; `good` is when the latest good check of the node that stands there now was completed."""
    return Vouched(Allocation(allowed=False, reason=reason, text=REASON_TEXT[reason]), good)


class PluginHost:
    """Runs a plugin on an event loop in a thread, so that a test can wait for a kubelet."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.settings = PluginSettings(directory=str(directory), **{"slots": 2, **settings})
        self.clock = Clock()
        #: What a check says; a coroutine function.
        self.check: Callable[[DeviceKind], Any] = self.good
        self.checks = 0
        self.kept_ids: Sequence[str] | None = ()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.refusals: list[tuple[DeviceKind | None, Verdict]] = []
        self.problems: list[dict[str, Any]] = []
        self._loop.set_exception_handler(self._note)

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # grpcio has one queue for all loops of a process: what was under way when another test's loop was closed is taken from it here.
        if "PollerCompletionQueue" not in context["message"] or str(context.get("exception")) != "Event loop is closed":
            self.problems.append(context)

    async def good(self, _: DeviceKind) -> Vouched:
        return allowed(self.clock.monotonic())

    async def hang(self, _: DeviceKind) -> Vouched:
        await asyncio.Event().wait()
        raise AssertionError

    def bad(self, reason: Reason, good: float | None = None) -> Callable[[DeviceKind], Any]:
        async def check(_: DeviceKind) -> Vouched:
            return refused(reason, good)

        return check

    async def _check(self, kind: DeviceKind) -> Vouched:
        self.checks += 1
        answer: Vouched = await self.check(kind)
        return answer

    def __enter__(self) -> "PluginHost":
        self._thread.start()

        def make() -> DevicePlugin:
            plugin = self._make_plugin()
            plugin.start()
            return plugin

        self.plugin = self.run(make)
        return self

    def _make_plugin(self) -> DevicePlugin:
        return DevicePlugin(
            self.settings,
            check=self._check,
            kept_ids=lambda: self.kept_ids,
            clock=self.clock,
            on_change=lambda: None,
            on_refused=lambda kind, verdict: self.refusals.append((kind, verdict)),
            breakages=Breakages(),
        )

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        try:
            self.run(self.plugin.close)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE)
            self._loop.close()
        assert error is not None or not self.problems, self.problems

    def run(self, call: Callable[[], Any]) -> Any:
        """Run something on the plugin's loop, and return its result."""

        async def called() -> Any:
            result = call()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(PATIENCE)

    def offer(self, *devices: DeviceStanding, spec: SpecState = SpecState.TRUE) -> None:
        """Let the devices be like this; without any, a healthy kvm."""
        self.run(lambda: self.plugin.offer(devices or (standing(),), replace(SPEC, state=spec)))

    @property
    def status(self) -> PluginStatus:
        status: PluginStatus = self.run(lambda: self.plugin.status)
        return status

    def wait(self, condition: Callable[[PluginStatus], object], what: str = "the status") -> PluginStatus:
        end = time.monotonic() + 2 * PATIENCE
        while not condition(status := self.status):
            assert time.monotonic() < end, f"{what} did not come true: {status}"
            time.sleep(0.005)
        return status

    def wait_ready(self) -> PluginStatus:
        return self.wait(lambda status: not not_ready(status), "readiness")

    def wait_state(self, state: RegistrationState) -> PluginStatus:
        return self.wait(lambda status: status.state is state, state)
