"""Who owns what, for the rest of the daemon: nothing before there are NPUs, nothing while it is switched off, and what is shown of it."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from devward import names
from devward.cluster import owners
from devward.cluster.api_result import ApiFault, ApiProblem
from devward.cluster.claimants import Claimant, Trace
from devward.cluster.claims import Claim, ClaimReason, Standing
from devward.cluster.evidence import Finding
from devward.cluster.node import NodeIdentity
from devward.cluster.observations import Scope
from devward.cluster.owners import OwnersWatcher
from devward.cluster.ownership import LASTS, Ownership
from devward.cluster.room import ClusterRoom
from devward.cluster.room import Standing as Published
from devward.cluster.statement import AskedVnpu, VnpuSight
from devward.cluster.views import CardState, Snapshot, Unknown
from devward.config import ClusterConfig
from devward.model import ClusterRead
from devward.npu.inventory import Picture, Unavailable
from devward.npu.views import CardView, Protection, Use, Verdict, VnpuView
from devward.reasons import Reason
from devward.service import Service
from sim.held_time import HeldTimeLoop, run_held, until
from sim.recorded_cluster import DIES
from sim.snapshot_desk import card_view
from sim.virtual_time import EPOCH_USEC, VirtualClock, VirtualTimeLoop, run_virtual

CARDS = (card_view(0, DIES[0]), card_view(1, DIES[1]))
VNPU = VnpuView(
    name="v0100", vdev=100, identity="", card="p000", template="vir05_1c_8g", vfid=1, cores=5.0, node="/dev/vdavinci100", use=Use.IDLE,
    verdict=Verdict.UNKNOWN, reason=Reason.OK, text="", first_seen_usec=1, grace_start_usec=0, confirmations=0, eligible_at_usec=0,
)  # fmt: skip
SIGHT = VnpuSight(AskedVnpu(100, 236, 100), Finding.HELD, Finding.CLEAN, Finding.CLEAN, ("process 7 XYZZY",))
CLAIM = Claim("uid-a", Standing.PROTECTED, ClaimReason.RUNNING, "XYZZY")


class FakeNpus:
    """The NPUs' room."""

    def __init__(self) -> None:
        self.shown: tuple[CardView, ...] = ()
        self.units: tuple[VnpuView, ...] = ()
        self.idle = False
        self.looks = 0

    def cards(self) -> tuple[CardView, ...]:
        return self.shown

    def vnpus(self) -> tuple[VnpuView, ...]:
        return self.units

    @property
    def may_have_idle(self) -> bool:
        return self.idle

    @property
    def picture(self) -> Picture:
        return Picture(cards=self.shown)

    async def fresh(self) -> None:
        self.looks += 1

    async def witness(self, *_: Any) -> Unavailable:
        return Unavailable(Reason.NPU_BROKER_UNREACHABLE, "gone")


class FakeWatcher:
    """Stands in the place of the watcher, and shows what it was told."""

    def __init__(self, *parts: Any, clock: Any, is_wanted: Callable[[], bool], on_change: Callable[[], None], pace: Any) -> None:
        self.parts = parts
        self.is_wanted = is_wanted
        self.pace = pace
        self.told: list[str] = []
        self.awake = False
        self.ownership = Ownership()
        self.next_look_in: float | None = None
        self.pod_watch: Any = None

    def wake(self) -> None:
        self.awake = True
        self.told.append("wake")

    def nudge(self, *, asked: bool = False) -> None:
        self.told.append("asked" if asked else "nudge")

    def accept(self, uid: str) -> None:
        self.told.append(f"accept {uid}")

    def forget(self) -> None:
        self.told.append("forget")
        self.ownership = Ownership()

    async def close(self) -> None:
        self.awake = False
        self.told.append("close")


class Silent:
    """Judges nothing."""

    interval = 60.0

    def ask_about(self, _: Picture) -> frozenset[str]:
        return frozenset()

    async def take(self, *_: Any) -> None:
        """Take a look in."""


class Desk:
    """The room, and what it works with."""

    def __init__(self, loop: VirtualTimeLoop | HeldTimeLoop, directory: str = "/nowhere", config: ClusterConfig | None = None) -> None:
        self.loop = loop
        self.npus = FakeNpus()
        self.clock = VirtualClock(loop)  # type: ignore[arg-type]
        self.pinned = False
        self.changes = 0
        self.room = ClusterRoom(
            config or ClusterConfig(),
            self.npus,  # type: ignore[arg-type]
            state_directory=directory,
            clock=self.clock,
            has_pinned=lambda: self.pinned,
            judge=Silent,
            on_change=self._changed,
        )

    def _changed(self) -> None:
        self.changes += 1

    @property
    def is_watched(self) -> bool:
        return self.room._watcher is not None

    @property
    def watcher(self) -> Any:
        return self.room._watcher

    def appear(self) -> None:
        """Let there be NPUs."""
        self.npus.shown = CARDS
        self.room.npus_changed()

    def publish(self, *states: CardState, is_asked: bool = True, unknowns: tuple[Unknown, ...] = (), **more: Any) -> Ownership:
        now = self.loop.time()
        said = Snapshot(now, self.clock.realtime_usec(), states or known(), unknowns, (), (), **more)
        self.watcher.ownership = Ownership(said, is_asked=is_asked, sights={"v0100": SIGHT}, certificate_expires_usec=9)
        made: Ownership = self.watcher.ownership
        return made


def known(*claims: Claim) -> tuple[CardState, ...]:
    standing = Standing.PROTECTED if claims else Standing.NONE
    return tuple(CardState(card.name, card.phy_id, card.die_id, standing, standing, claims, claimed_cores=0.0) for card in CARDS)


def run(main: Callable[[Desk], Coroutine[Any, Any, None]], **more: Any) -> None:
    async def with_desk(loop: VirtualTimeLoop) -> None:
        desk = Desk(loop, **more)
        try:
            await main(desk)
        finally:
            await desk.room.close()

    run_virtual(with_desk)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "OwnersWatcher", FakeWatcher)


# --- without NPUs -----------------------------------------------------------------------------------------------------------


def test_nothing_of_it_is_loaded_before_there_are_npus() -> None:
    program = """
import sys, json, asyncio, devward.app
from devward.clock import Clock
from devward.cluster.room import ClusterRoom
from devward.config import ClusterConfig
class Npus:
    def cards(self): return ()
room = ClusterRoom(ClusterConfig(), Npus(), state_directory="/nowhere", clock=Clock(), has_pinned=bool, judge=bool, on_change=int)
room.npus_changed(); room.look(); room.dressed([]); room.standing(); room.findings(); room.describe(full=True)
room.explain(None, "v0100", full=True); room.objection("die"); room.accept_node("uid")
asyncio.run(room.configure(ClusterConfig(kubeconfig="/other"))); asyncio.run(room.close())
print(json.dumps(sorted(name for name in sys.modules if name.startswith(("devward.cluster", "kubernetes")))))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert json.loads(done.stdout) == ["devward.cluster", "devward.cluster.room"]


def test_without_npus_there_is_nothing_to_say_and_nothing_to_do() -> None:
    async def main(desk: Desk) -> None:
        room = desk.room
        room.npus_changed()
        room.look()
        room.accept_node("uid")
        await room.configure(ClusterConfig(kubeconfig="/etc/other"))
        assert desk.watcher is None
        assert (room.ownership, room.standing(), room.findings(), room.describe(full=True)) == (None, Published(), (), None)
        assert room.dressed(CARDS) is CARDS
        assert room.objection(DIES[0]) == (Reason.VNPU_CLAIMS_UNKNOWN, "")
        assert room.explain(None, "", full=True) == {"ownership": None}
        assert room.explain(CARDS[0], "v0100", full=True) == {"ownership": None, "host": None}
        assert room.node_seen() == ("", False)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


# --- when it is looked ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("faked")
def test_the_first_npu_wakes_it_and_each_change_is_an_event() -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        assert desk.watcher.told == ["wake"]
        desk.room.npus_changed()
        desk.room.look()
        desk.room.accept_node("uid")
        assert desk.watcher.told == ["wake", "nudge", "asked", "accept uid"]
        desk.npus.shown = ()
        desk.room.npus_changed()
        assert len(desk.watcher.told) == 4, "an NPU that has gone is no news of who owns what"

    run(main)


@pytest.mark.usefixtures("faked")
@pytest.mark.parametrize(("idle", "pinned"), [(False, False), (True, False), (False, True)])
def test_it_matters_while_a_vnpu_is_idle_or_pinned(idle: bool, pinned: bool) -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        desk.npus.idle, desk.pinned = idle, pinned
        assert desk.watcher.is_wanted() is (idle or pinned)

    run(main)


@pytest.mark.usefixtures("faked")
def test_switched_off_nothing_begins() -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        desk.room.look()
        assert not desk.is_watched
        assert desk.room.objection(DIES[0]) == (Reason.VNPU_CLAIMS_UNKNOWN, ""), "what nobody looks at is not known"
        await desk.room.configure(ClusterConfig(read=ClusterRead.AUTO))
        assert desk.watcher.told == ["wake", "asked"]

    run(main, config=ClusterConfig(read=ClusterRead.OFF))


@pytest.mark.usefixtures("faked")
def test_switched_off_all_is_forgotten_and_switched_on_it_goes_on() -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        desk.publish()
        assert desk.room.objection(DIES[0]) is None
        await desk.room.configure(ClusterConfig(read=ClusterRead.OFF))
        assert desk.watcher.told == ["wake", "close", "forget"]
        desk.room.npus_changed()
        desk.room.look()
        assert desk.watcher.told == ["wake", "close", "forget"]
        assert desk.room.objection(DIES[0]) == (Reason.VNPU_CLAIMS_UNKNOWN, "")
        assert desk.room.describe(full=True) is None
        before = desk.watcher
        await desk.room.configure(ClusterConfig(read=ClusterRead.AUTO))
        assert desk.watcher is before, "which remembers what it saw"
        assert desk.watcher.told == ["wake", "close", "forget", "wake", "asked"]

    run(main)


@pytest.mark.usefixtures("faked")
def test_other_settings_are_looked_with_soon_and_the_same_ones_are_no_news() -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        await desk.room.configure(ClusterConfig())
        assert desk.watcher.told == ["wake"]
        other = ClusterConfig(kubeconfig="/etc/other")
        await desk.room.configure(other)
        assert desk.watcher.told == ["wake", "nudge", "asked"]
        assert desk.watcher.parts[0]._config == other

    run(main)


@pytest.mark.usefixtures("faked")
def test_after_the_end_nothing_begins() -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        await desk.room.close()
        desk.room.npus_changed()
        desk.room.look()
        await desk.room.configure(ClusterConfig(kubeconfig="/etc/other"))
        assert desk.watcher.told == ["wake", "close"]

    run(main)


def test_the_real_watcher_looks_keeps_and_ends(tmp_path: Path) -> None:
    kept = tmp_path / "state" / names.OWNERS_FILE

    async def main(loop: HeldTimeLoop) -> None:
        desk = Desk(loop, str(kept.parent))
        desk.clock.monotonic = desk.clock.boottime = loop.time  # type: ignore[method-assign]
        desk.clock.realtime_usec = lambda: EPOCH_USEC  # type: ignore[method-assign]
        desk.appear()
        assert isinstance(desk.watcher, OwnersWatcher)
        await until(lambda: desk.changes and kept.exists(), "the first look is kept")
        assert desk.npus.looks == 1
        assert "host-unseen" in desk.room.standing().blocked_reasons
        assert 60_000_000 <= desk.room.standing().next_cycle_usec - EPOCH_USEC <= 66_000_000
        await desk.room.close()
        await until(lambda: not {"cluster", "owners"} & {thread.name for thread in threading.enumerate()}, "the threads end")

    run_held(main)


# --- what is shown ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("faked")
def test_before_the_first_look_cards_are_as_they_are() -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        assert desk.room.dressed(CARDS) is CARDS
        assert desk.room.standing() == Published()
        assert desk.room.explain(CARDS[0], "v0100", full=True) == {"ownership": None, "host": None}
        assert desk.room.objection(DIES[0]) == (Reason.VNPU_CLAIMS_UNKNOWN, "")

    run(main)


@pytest.mark.usefixtures("faked")
def test_a_card_is_the_same_object_while_nothing_changed_and_another_as_soon_as_anything_did() -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        desk.publish(*known(CLAIM))
        first = desk.room.dressed(CARDS)
        assert [card.protection for card in first] == [Protection.PROTECTED] * 2
        desk.publish(*known(CLAIM))
        assert list(map(id, desk.room.dressed(CARDS))) == list(map(id, first)), "the next look found the same"
        moved = (replace(CARDS[0], used_cores=5.0), CARDS[1])
        second = desk.room.dressed(moved)
        assert (second[0].used_cores, second[1] is first[1]) == (5.0, True)
        desk.publish(*known())
        assert [card.protection for card in desk.room.dressed(moved)] == [Protection.NONE] * 2
        desk.publish(*known(), is_asked=False)
        assert [card.protection for card in desk.room.dressed(moved)] == [Protection.NOT_EVALUATED] * 2
        desk.publish(*known())
        await asyncio.sleep(LASTS + 1)
        assert [card.protection for card in desk.room.dressed(moved)] == [Protection.UNKNOWN] * 2
        assert len(desk.room.dressed(moved[:1])) == 1
        assert desk.room._dressed.keys() == {"p000"}, "what is shown no more is not kept"

    run(main)


@pytest.mark.usefixtures("faked")
def test_what_is_published_of_the_daemon() -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        desk.publish(unknowns=(Unknown(Scope.NODE, "api-closed", "node", 7, "It was closed."),))
        desk.watcher.next_look_in = 12.5
        now = desk.clock.realtime_usec()
        assert desk.room.standing() == Published(("api-closed",), 7, now, now + 12_500_000, 9)
        desk.watcher.next_look_in = None
        assert desk.room.standing().next_cycle_usec == 0
        assert [finding.code for finding in desk.room.findings()] == [Reason.OWNERS_UNKNOWN]

    run(main)


@pytest.mark.usefixtures("faked")
def test_an_objection_is_by_the_die_that_is_there_now() -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        desk.publish()
        assert desk.room.objection(DIES[1]) is None
        for die in ("another", "", DIES[1].lower()):
            assert desk.room.objection(die) == (Reason.VNPU_CLAIMS_UNKNOWN, "")
        desk.npus.shown = (CARDS[0], replace(CARDS[1], die_id="another"))
        assert desk.room.objection("another") == (Reason.VNPU_CLAIMS_UNKNOWN, "what was known of it is too old")
        desk.publish(*known(CLAIM))
        assert desk.room.objection(DIES[0]) == (Reason.VNPU_NPU_CLAIMED, "uid-a")

    run(main)


@pytest.mark.usefixtures("faked")
def test_the_node_that_was_read_last() -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        desk.publish(identity=NodeIdentity.CHANGED, node_uid="uid\n")
        assert desk.room.node_seen() == ("uid\\x0a", True)
        desk.publish(identity=NodeIdentity.SAME, node_uid="uid")
        assert desk.room.node_seen() == ("uid", False)

    run(main)


def service(desk: Desk) -> Service:
    pins = SimpleNamespace(of_vnpu=lambda name, full: {"pins": [name, full]})
    nothing: Any = None
    return Service(
        identification=nothing,
        registry=nothing,
        reconciler=nothing,
        npus=desk.npus,  # type: ignore[arg-type]
        cluster=desk.room,
        reclaim=SimpleNamespace(judged=lambda vnpus: vnpus, explain=lambda name, full: {"evidence": None}),  # type: ignore[arg-type]
        pins=pins,  # type: ignore[arg-type]
        plugin=nothing,
        metrics=nothing,
        remembered_state=nothing,
        audit=nothing,
        clock=desk.clock,
        allocation=nothing,
        reload_configuration=nothing,
        dropped=lambda: 0,
        loaded=nothing,
    )


@pytest.mark.usefixtures("faked")
def test_what_is_explained_of_a_card_and_of_a_vnpu() -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        desk.npus.units = (VNPU, replace(VNPU, name="v0101", card="gone"))
        blocked = (Unknown(Scope.NODE, "api-closed", "node", 7, "XYZZY"),)
        desk.publish(*known(CLAIM), unknowns=blocked, claimants=(Claimant("uid-a", "XYZZY", "XYZZY", (Trace.API,)),))
        made = service(desk)
        told = json.loads(made.explain_card("p000", full=True))
        assert told["card"] == json.loads(json.dumps(asdict(desk.room.dressed(CARDS)[0])))
        assert told["card"]["claims"] == ["uid-a"]
        assert told["ownership"]["claims"][0]["pod"] == "XYZZY/XYZZY"
        assert told["ownership"]["blocked"][0]["text"] == "XYZZY"
        assert "host" not in told, "which is of vNPUs"
        told = json.loads(made.explain_vnpu("v0100", full=True))
        assert (told["vnpu"]["name"], told["card"]["name"], told["pins"]) == ("v0100", "p000", ["v0100", True])
        assert (told["ownership"]["protection"], told["host"]["finding"]) == ("protected", "held")
        assert "XYZZY" in json.dumps(told["host"])
        for text in (made.explain_card("p000", full=False), made.explain_vnpu("v0100", full=False)):
            assert "XYZZY" not in text
            assert "uid-a" in text
        orphan = json.loads(made.explain_vnpu("v0101", full=True))
        assert (orphan["card"], orphan["ownership"], orphan["host"]) == (None, None, None)
        for explain in (made.explain_card, made.explain_vnpu):
            assert json.loads(explain("nothing", full=True)) == {"name": "nothing"}
        assert "XYZZY" not in json.dumps(desk.room.describe(full=False))
        assert "XYZZY" in json.dumps(desk.room.describe(full=True))

    run(main)


@pytest.mark.usefixtures("faked")
def test_how_the_watch_on_pods_does_is_described() -> None:
    async def main(desk: Desk) -> None:
        desk.appear()
        desk.publish(*known())
        assert cast(dict[str, Any], desk.room.describe(full=True))["watch"] is None
        desk.watcher.pod_watch = SimpleNamespace(problem=None)
        assert cast(dict[str, Any], desk.room.describe(full=True))["watch"] == {"reason": "", "at_usec": 0}
        desk.watcher.pod_watch.problem = ApiProblem(ApiFault.CLOSED, "It is closed.", desk.loop.time() - 5)
        at = desk.clock.realtime_usec() - 5_000_000
        told = {"reason": "api-closed", "at_usec": at, "text": "It is closed."}
        assert cast(dict[str, Any], desk.room.describe(full=True))["watch"] == told
        del told["text"]
        assert cast(dict[str, Any], desk.room.describe(full=False))["watch"] == told

    run(main)
