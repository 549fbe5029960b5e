"""A CDI reconciler with everything real around it, a file system, inotify, worker threads, a journal's socket, but devices and time.

Time is the held loop's: timers run when the test turns the clock, everything else as it happens.
"""

import asyncio
import contextlib
import hashlib
import io
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from devward import names
from devward.audit import Audit
from devward.cdi import spec
from devward.cdi.decision import Candidate
from devward.cdi.owned import Order, OwnedSpec
from devward.cdi.reconciler import CdiReconciler, PassRequest
from devward.cdi.sources import HypervisorSource, Source, qualified
from devward.clock import Clock
from devward.config import CdiConfig
from devward.model import (
    ActionRequest,
    ActionResult,
    Caller,
    CdiMode,
    DeviceKind,
    Health,
    Identity,
    RepairCause,
    SpecState,
    SpecView,
    Trigger,
    WithdrawPolicy,
)
from devward.reasons import Reason
from devward.remembered import Remembered
from devward.state import Pause, State, StateStore
from devward.worker import Worker
from sim.held_time import PATIENCE, HeldTimeLoop, run_held
from sim.journal_sink import DrainedJournal, JournalSink, Record

FILE = names.HYPERVISOR_CDI_FILE
KIND = names.HYPERVISOR_CDI_KIND
KVM, MSHV = f"{KIND}=kvm", f"{KIND}=mshv"
#: Seconds that waiting lets pass at a time.
_TURN = 0.002
#: 2026-01-01T00:00:00Z
EPOCH_USEC = 1_767_225_600_000_000


def document(*kinds: DeviceKind, uid: int = 65534, gid: int = 65534) -> bytes:
    """Return the document for these devices; for kvm if none is named."""
    return spec.render_hypervisor(kinds or (DeviceKind.KVM,), uid=uid, gid=gid)


GOOD, STALE = document(), document(uid=0)
FOREIGN = GOOD.replace(KIND.encode(), b"example.com/device")


def rival(device: str = KVM) -> bytes:
    """Return a document of somebody else that defines a device."""
    kind, _, name = device.partition("=")
    return json.dumps({"cdiVersion": "0.3.0", "kind": kind, "devices": [{"name": name, "containerEdits": {"env": ["A=b"]}}]}).encode()


def candidate(
    identity: Identity = Identity.VALID, health: Health = Health.HEALTHY, kind: DeviceKind = DeviceKind.KVM, reason: Reason = Reason.OK
) -> Candidate:
    """Return a device as the reconciler is told of it."""
    return Candidate(qualified(kind), f"/dev/{kind}", identity, health, reason)


class HeldClock(Clock):
    """Both clocks, moved by the loop's; the realtime one can be set like a host's."""

    def __init__(self, loop: HeldTimeLoop) -> None:
        self._loop = loop
        #: Seconds for which the host was suspended.
        self.suspended = 0.0
        self.jump_usec = 0

    def monotonic(self) -> float:
        return self._loop.time()

    def boottime(self) -> float:
        return self._loop.time() + self.suspended

    def realtime_usec(self) -> int:
        return EPOCH_USEC + round(self._loop.time() * 1e6) + self.jump_usec


class Desk:
    """What the tests hold in hands."""

    def __init__(
        self, loop: HeldTimeLoop, base: Path, *, kept: State | None = None, more_sources: Sequence[Source] = (), **settings: Any
    ) -> None:
        self.loop = loop
        self.clock = HeldClock(loop)
        self.cdi, self.run_cdi, self.state_directory = base / "etc" / "cdi", base / "run" / "cdi", base / "state"
        for directory in (self.cdi, self.run_cdi):
            directory.mkdir(parents=True, exist_ok=True)
        self.state_directory.mkdir(mode=0o700, exist_ok=True)
        self.path = self.cdi / FILE
        self.config = CdiConfig(
            **{
                "mode": CdiMode.REPAIR,
                "directory": str(self.cdi),
                "engine_dirs": (str(self.cdi), str(self.run_cdi)),
                "device_uid": 65534,
                "device_gid": 65534,
                "withdraw": WithdrawPolicy.IDENTITY,
                "settle_time": 10,
                "contested_after": 1000,
                **settings,
            }
        )
        self.devices: list[Candidate] = [candidate()]
        self.list_devices: Callable[[], list[Candidate]] = lambda: list(self.devices)
        self.more_sources: Sequence[Source] = more_sources
        self.repairs: list[RepairCause] = []
        self.passes = 0
        self.stderr = io.StringIO()
        self._ids = 0
        self.sink = JournalSink(str(base / f"journal-{time.monotonic_ns()}"))
        self.journal = DrainedJournal(self.sink, stderr=self.stderr)
        self.audit = Audit(self.journal, version="1.2.3", new_id=self._new_id, monotonic=self.clock.monotonic)
        self.files = Worker("files", self._recovered)
        self.scans = Worker("scan", self._recovered)
        self.store = StateStore(str(self.state_directory), realtime_usec=self.clock.realtime_usec)
        self.remembered = Remembered(kept or self.store.load().state, self.store, self.files)
        self.reconciler = CdiReconciler(
            self.config,
            sources=(HypervisorSource(self._list_devices), *self.more_sources),
            files=self.files,
            scans=self.scans,
            remembered=self.remembered,
            audit=self.audit,
            clock=self.clock,
            on_change=self._changed,
            on_repair=lambda _file, cause: self.repairs.append(cause),
        )

    def make_owned(self) -> OwnedSpec:
        """Return an owned file without the loop around it."""
        return OwnedSpec(
            str(self.cdi),
            FILE,
            KIND,
            worker=self.files,
            remembered=self.remembered,
            audit=self.audit,
            clock=self.clock,
            on_repair=lambda _file, cause: self.repairs.append(cause),
        )

    def close(self) -> None:
        """Give back what is not the loop's."""
        self.files.close()
        self.scans.close()
        self.journal.close()
        self.sink.close()

    # --- what is seen ------------------------------------------------------------------------------------------------
    @property
    def state(self) -> SpecState:
        """The state of the file, as published."""
        return self.view.state

    @property
    def view(self) -> SpecView:
        """What is published of the hypervisor's file."""
        return self.reconciler.view(KIND)

    @property
    def owned(self) -> OwnedSpec:
        """The hypervisor's file."""
        return self.reconciler._of_kind(KIND).owned

    def records(self, kind: str | None = None, **fields: str) -> list[Record]:
        """Return the audit records so far, of one kind and with these values."""
        return self.sink.records(**({names.FIELD_EVENT: kind} if kind else {}), **fields)

    def outcomes(self, kind: str = "spec-repair") -> list[tuple[str, str]]:
        """Return outcome and cause of each record of an act, and hold each request id to one intent and then its outcomes.

        There are several outcomes only where an act failed and was tried again.
        """
        told: dict[str, list[str]] = {}
        for record in self.records(kind):
            told.setdefault(record[names.FIELD_REQUEST_ID][0], []).append(record[names.FIELD_OUTCOME][0])
        for words in told.values():
            assert words[0] == "intent", told
            assert len(words) > 1, told
            assert set(words[1:-1]) <= {"failure"}, told
            assert words[-1] != "intent", told
        return [
            (record[names.FIELD_OUTCOME][0], record[names.FIELD_CAUSE][0])
            for record in self.records(kind)
            if record[names.FIELD_OUTCOME] != ["intent"]
        ]

    # --- what is done ------------------------------------------------------------------------------------------------
    async def until(self, condition: Callable[[], object], what: str = "the condition") -> None:
        """Wait for a condition; the loop's time passes by some milliseconds only, for what is coalesced."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"{what} did not come true; the file is {self.view}"
            await self._turn()

    async def quiet(self) -> None:
        """Wait until no pass is under way and none follows from what has happened; a loop of passes never ends."""
        idle, end = 0, time.monotonic() + PATIENCE
        while idle < 3:
            assert time.monotonic() < end, f"passes follow one another without end: {self.passes}"
            passes = self.passes
            await self._turn()
            # inotify queues an event within the call that causes it, so that the turn has taken in everything.
            waits = self.reconciler._tasks or self.reconciler._touches.pending
            idle = idle + 1 if passes == self.passes and not waits else 0

    async def advance(self, seconds: float) -> None:
        """Let time pass, and what is due then happen."""
        self.loop.advance(seconds)
        await self.quiet()

    async def look(self, trigger: Trigger = Trigger.TIMER, *, demanded: bool = False, adopt: bool = False, **wishes: Any) -> ActionResult:
        """Make one pass, and return what became of the hypervisor's file."""
        request = PassRequest(trigger, demanded=frozenset({KIND} if demanded else ()), adopt=KIND if adopt else "", **wishes)
        return (await self.reconciler.run(request))[KIND]

    def request(self, request_id: str = "r-1") -> ActionRequest:
        """Return a manual action."""
        return ActionRequest(request_id, Caller(":1.7", 0, 4242), Trigger.DBUS)

    def order(self, **wishes: Any) -> Order:
        """Return an order for an owned file; for a document with kvm if not told otherwise."""
        base = Order(document(), (KVM,), Trigger.TIMER, withdrawing=True, contested_after=self.config.contested_after)
        return replace(base, **wishes)

    async def _turn(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)
        # As fast as real time and no faster: a slow disk must not miss a deadline of the held clock.
        time.sleep(_TURN)  # noqa: ASYNC251 # the loop's clock stands still
        self.loop.advance(_TURN)

    def _new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    def _list_devices(self) -> list[Candidate]:
        return self.list_devices()

    def _changed(self) -> None:
        self.passes += 1

    def _recovered(self) -> None:
        self.reconciler.nudge(Trigger.TIMER, scan=True)


@contextlib.asynccontextmanager
async def cdi_desk(loop: HeldTimeLoop, base: Path, *, start: bool = True, **settings: Any) -> AsyncIterator[Desk]:
    """Open a desk, with the first pass made unless told otherwise, and close it."""
    desk = Desk(loop, base, **settings)
    try:
        if start:
            await desk.reconciler.start()
            await desk.quiet()
        yield desk
    finally:
        await desk.reconciler.close()
        desk.close()


def run_at_desk(base: Path, main: Callable[[Desk], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Run a test with a started reconciler, unless `start=False`, on held time."""

    async def enter(loop: HeldTimeLoop) -> None:
        async with cdi_desk(loop, base, **settings) as desk:
            await main(desk)

    run_held(enter)


def leave_file(base: Path, data: bytes = GOOD) -> State:
    """Put a file of an earlier run there, and return what devward remembers of it."""
    path = base / "etc" / "cdi" / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o644)
    return State().with_digest(str(path), hashlib.sha256(data).hexdigest())


def pause(desk: Desk, seconds: float) -> Callable[[State], State]:
    """Return the change of the remembered state that a pause of so many seconds is."""
    until = desk.clock.realtime_usec() + round(seconds * 1e6)
    return lambda state: replace(state, cdi_pause=Pause(until, "by the test", 0))
