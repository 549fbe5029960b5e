"""Everything that can happen to the daemon, and what its administrator sets; pins are in world_host_events.py."""

from devward.model import ReclaimMode
from devward.reclaim.controls import Switch
from devward.reclaim.look import Cut
from sim.world_events import event
from sim.world_scene import Scene


@event("daemon-restarted")
def _restarted(scene: Scene, number: int) -> None:
    scene.world.count("daemon-restarted")
    scene.ends, scene.is_stopped = True, number % 2 == 0


@event("memory-lost")
def _memory_lost(scene: Scene, number: int) -> None:
    """What is kept is damaged when the daemon begins again."""
    if not scene.plan.blind.shows_holders:
        return
    scene.settings.kept = {"version": 0}
    scene.world.count("memory-lost")
    scene.ends = True


@event("nudge")
def _nudge(scene: Scene, number: int) -> None:
    """A device event, a watch or an administrator has the daemon look at once."""
    daemon, now = scene.daemon, scene.world.time.now
    if now < daemon.next_at < float("inf"):
        daemon.next_at = now
        scene.world.count("nudge")


@event("daemon-slow")
def _slow(scene: Scene, number: int) -> None:
    """Each step takes longer: more can happen in between."""
    scene.daemon.pace = 1.0 + number % 4
    scene.world.count("daemon-slow")
    scene.world.time.after(200.0, _fast, scene)


def _fast(scene: Scene) -> None:
    scene.daemon.pace = 0.05


@event("pause")
def _pause(scene: Scene, number: int) -> None:
    scene.settings.paused = True
    scene.daemon.noticed()
    scene.world.count("pause")
    scene.world.time.after(scene.world.dice.choice((50.0, 700.0)), _resume, scene)


def _resume(scene: Scene) -> None:
    if scene.settings.paused:
        scene.settings.paused = False
        scene.daemon.interrupt(Cut.PAUSE_ENDED)
        scene.world.count("pause-ended")


@event("mode")
def _mode(scene: Scene, number: int) -> None:
    scene.settings.mode = (ReclaimMode.OBSERVE, ReclaimMode.OFF)[number % 2]
    scene.daemon.interrupt(Cut.MODE_CHANGED)
    scene.world.count("mode")
    scene.world.time.after(scene.world.dice.choice((50.0, 700.0)), _enforce, scene)


def _enforce(scene: Scene) -> None:
    if scene.settings.mode is not ReclaimMode.ENFORCE:
        scene.settings.mode = ReclaimMode.ENFORCE
        scene.daemon.interrupt(Cut.MODE_CHANGED)


@event("kill-switch")
def _kill_switch(scene: Scene, number: int) -> None:
    scene.settings.kill_switch = (Switch.PRESENT, Switch.UNREADABLE)[number % 2]
    scene.world.count("kill-switch")
    scene.world.time.after(scene.world.dice.choice((1.0, 50.0, 700.0)), _no_kill_switch, scene)


def _no_kill_switch(scene: Scene) -> None:
    scene.settings.kill_switch = Switch.ABSENT
    scene.daemon.interrupt(Cut.KILL_SWITCH_REMOVED)


@event("journal-refuses")
def _journal(scene: Scene, number: int) -> None:
    scene.settings.journal = False
    scene.world.count("journal-refuses")
    scene.world.time.after(scene.world.dice.choice((10.0, 300.0)), _journal_takes, scene)


def _journal_takes(scene: Scene) -> None:
    scene.settings.journal = True


@event("state-refuses")
def _state(scene: Scene, number: int) -> None:
    scene.settings.saves = False
    scene.world.count("state-refuses")
    scene.world.time.after(scene.world.dice.choice((10.0, 300.0)), _state_takes, scene)


def _state_takes(scene: Scene) -> None:
    scene.settings.saves = True


@event("reload")
def _reload(scene: Scene, number: int) -> None:
    scene.daemon.interrupt(Cut.RELOADED)
    scene.world.count("reload")


@event("breaker-released")
def _released(scene: Scene, number: int) -> None:
    # One that is not kept is only of this run, and its answer says so.
    if scene.daemon.reclaimer.is_latched and scene.settings.saves:
        scene.checks.released()
        scene.daemon.reclaimer.release()
        scene.world.count("breaker-released")
