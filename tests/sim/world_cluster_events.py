"""Everything that can happen to the kubelet, its checkpoint, the API server, HAMi, and who else hands out NPUs."""

from typing import Final

from sim.world_api import Lie, Trouble
from sim.world_events import Happening, event
from sim.world_scene import Scene


# --- the kubelet -------------------------------------------------------------------------------------------------------
@event("kubelet-restarted")
def _kubelet_restarted(scene: Scene, number: int) -> None:
    world = scene.world
    if world.kubelet.running:
        world.kubelet.restart()
        world.kubelet.listens = False
        world.kubelet.registered = number % 2 == 0
        world.time.after(world.dice.choice((0.5, 4.0)), _listens, scene)
        world.time.after(world.dice.choice((3.0, 40.0)), _registers, scene)
        world.count("kubelet-restarted")


def _listens(scene: Scene) -> None:
    scene.world.kubelet.listens = True


def _registers(scene: Scene) -> None:
    kubelet = scene.world.kubelet
    kubelet.registered = True
    if kubelet.running:
        kubelet.write()


@event("kubelet-stopped")
def _kubelet_stopped(scene: Scene, number: int) -> None:
    world = scene.world
    if world.kubelet.running:
        world.kubelet.running = False
        world.kubelet.since = world.time.now
        world.time.after(world.dice.choice((5.0, 70.0, 500.0)), _kubelet_starts, scene)
        world.count("kubelet-stopped")


def _kubelet_starts(scene: Scene) -> None:
    world = scene.world
    if not world.kubelet.running:
        world.kubelet.running = True
        world.kubelet.restart()
        world.beat()
        world.report_all()


@event("checkpoint-lost")
def _checkpoint_lost(scene: Scene, number: int) -> None:
    scene.world.kubelet.content = None
    scene.world.count("checkpoint-lost")
    scene.world.time.after(scene.world.dice.choice((20.0, 300.0)), _writes, scene)


@event("checkpoint-corrupted")
def _checkpoint_corrupted(scene: Scene, number: int) -> None:
    scene.world.tell(scene.world.kubelet.spoil(scene.world.dice))
    scene.world.count("checkpoint-corrupted")
    scene.world.time.after(scene.world.dice.choice((20.0, 300.0)), _writes, scene)


def _writes(scene: Scene) -> None:
    """The kubelet writes again, at some message of a plugin."""
    scene.world.kubelet.cannot_write = False
    if scene.world.kubelet.running:
        scene.world.kubelet.write()


@event("checkpoint-stale")
def _checkpoint_stale(scene: Scene, number: int) -> None:
    """The disk is full: what the kubelet knows does not come into the file."""
    scene.world.kubelet.cannot_write = True
    scene.world.count("checkpoint-stale")
    scene.world.time.after(scene.world.dice.choice((100.0, 900.0)), _writes, scene)


@event("checkpoint-pruned")
def _checkpoint_pruned(scene: Scene, number: int) -> None:
    """Only Pods that the kubelet counts as active stay in the file; one that was deleted by force and runs on is not among them."""
    kubelet = scene.world.kubelet
    before = len(kubelet.entries)
    if kubelet.running:
        kubelet.prune(scene.world.active_uids())
        kubelet.write()
        if len(kubelet.entries) < before:
            scene.world.count("checkpoint-pruned")


@event("checkpoint-restored")
def _checkpoint_restored(scene: Scene, number: int) -> None:
    kubelet = scene.world.kubelet
    if kubelet.earlier:
        kubelet.content = kubelet.earlier[number % len(kubelet.earlier)]
        scene.world.count("checkpoint-restored")


# --- the API server ----------------------------------------------------------------------------------------------------
def _restore(scene: Scene, what: str, value: object) -> None:
    setattr(scene.world.api, what, value)


_DURATIONS: Final = (0.4, 30.0, 150.0, 700.0)


@event("api-lag")
def _api_lag(scene: Scene, number: int) -> None:
    """What the kubelet reports does not come through."""
    scene.world.lags = True
    scene.world.count("api-lag")
    scene.world.time.after(scene.world.dice.choice(_DURATIONS), _catches_up, scene)


def _catches_up(scene: Scene) -> None:
    scene.world.lags = False
    scene.world.report_all()


@event("api-outage")
def _api_outage(scene: Scene, number: int) -> None:
    trouble = list(Trouble)[1 + number % (len(Trouble) - 1)]
    scene.world.api.trouble = trouble
    scene.world.count("api-outage")
    scene.world.count(f"api-outage:{trouble}")
    scene.world.time.after(scene.world.dice.choice(_DURATIONS), _restore, scene, "trouble", Trouble.NONE)


def _lies(lie: Lie) -> Happening:
    def happen(scene: Scene, number: int) -> None:
        if lie is Lie.RESTORED and scene.world.api.backup is None:
            return
        scene.world.api.lie = lie
        scene.world.count(f"api-{lie}")
        scene.world.time.after(scene.world.dice.choice(_DURATIONS), _restore, scene, "lie", Lie.NONE)

    return happen


for _lie in list(Lie)[1:]:
    event(f"api-{_lie}")(_lies(_lie))


@event("api-backup")
def _backup(scene: Scene, number: int) -> None:
    scene.world.api.keep_backup()
    scene.world.count("api-backup")


@event("node-recreated")
def _recreated(scene: Scene, number: int) -> None:
    """The Node object is made anew; with it PodGC deletes the Pods, whose containers run on a while."""
    world = scene.world
    world.api.uids += 1
    world.count("node-recreated")
    if number % 2:
        for pod in list(world.api.pods.values()):
            if pod.shape != "static":
                pod.ended = True
                world.forget(pod)
                world.time.after(world.dice.choice((5.0, 1000.0)), world.kill, pod)
    world.time.after(world.dice.choice((100.0, 600.0)), _accept, scene)


def _accept(scene: Scene) -> None:
    """An administrator accepts the Node."""
    scene.settings.accepted = scene.world.api.node_uid
    scene.world.count("node-accepted")


# --- HAMi and others ---------------------------------------------------------------------------------------------------
@event("hami-silent")
def _hami_silent(scene: Scene, number: int) -> None:
    scene.world.hami_alive = False
    scene.world.count("hami-silent")
    scene.world.time.after(scene.world.dice.choice((60.0, 400.0, 900.0)), _hami_reports, scene)


def _hami_reports(scene: Scene) -> None:
    scene.world.hami_alive = True


@event("lock-left-behind")
def _lock_left(scene: Scene, number: int) -> None:
    scene.world.api.lock = f"2026-12-01T00:00:00Z,default,{number}"
    scene.world.count("lock-left-behind")
    scene.world.time.after(scene.world.dice.choice((20.0, 200.0, 800.0)), _restore, scene, "lock", "")


@event("second-manager")
def _second_manager(scene: Scene, number: int) -> None:
    """Another plugin or driver shows, and one day is gone again."""
    world = scene.world
    world.count("second-manager")
    if number % 2:
        world.api.annotations["huawei.com/AscendReal"] = "Ascend910-0"
    else:
        world.drivers = frozenset({"npu.huawei.com"})
    world.time.after(world.dice.choice((100.0, 800.0)), _alone_again, scene)


def _alone_again(scene: Scene) -> None:
    scene.world.api.annotations.pop("huawei.com/AscendReal", None)
    scene.world.drivers = frozenset()
