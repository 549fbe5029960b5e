"""Everything that can happen to the world, each by its name: to Pods and their containers, the kubelet, the API server and HAMi.

What happens to vNPUs, the host, the broker and the daemon is in world_host_events.py. An event that finds nothing to happen to does
nothing, and is not counted.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from devward.cluster.containers import FAILING, STARTING
from sim import pod_desk
from sim.world_api import Lie, Trouble
from sim.world_broker import Blind
from sim.world_scene import Scene
from sim.world_truth import TEMPLATES, Pod

Happening = Callable[[Scene, int], None]
EVENTS: Final[dict[str, Happening]] = {}

_FAILING: Final = sorted(FAILING - {"CrashLoopBackOff"})
_STARTING: Final = sorted(STARTING - {"ContainerCreating", "PodInitializing"})
_UNTOLD: Final = ("", "-", "NeverHeardOf", "ContainerStatusUnknown")
_BACK_OFFS: Final = (10.0, 40.0, 160.0, 300.0, 300.0)


def event(name: str) -> Callable[[Happening], Happening]:
    """Give an event its name."""

    def keep(happening: Happening) -> Happening:
        def counted(scene: Scene, number: int) -> None:
            before = scene.world.counts[name]
            happening(scene, number)
            if scene.world.counts[name] > before:
                scene.world.tell(f"--- {name}")

        EVENTS[name] = counted
        return happening

    return keep


# --- time --------------------------------------------------------------------------------------------------------------
@event("wait")
def _wait(scene: Scene, number: int) -> None:
    scene.world.count("wait")
    scene.wait((0.5, 3.0, 10.0, 20.0, 40.0)[number % 5])


@event("wait-long")
def _wait_long(scene: Scene, number: int) -> None:
    scene.world.count("wait-long")
    scene.wait((0.6, 1.2, 1.6)[number % 3] * scene.plan.grace + 200.0)


# --- Pods --------------------------------------------------------------------------------------------------------------
def make_pod(scene: Scene, shape: str = "normal", **more: Any) -> Pod | None:
    """Bind a new Pod; None: there are enough."""
    world = scene.world
    if len(world.api.pods) >= 5:
        over = next((pod for pod in world.api.pods.values() if pod.ended and not pod.lives_here), None)
        if over is None:
            return None
        world.forget(over)
    uid = world.new_uid()
    own = f"{world.dice.getrandbits(128):032x}" if shape == "static" else uid
    phy = world.dice.randrange(scene.plan.managed)
    template = world.dice.choice(sorted(TEMPLATES))
    pod = Pod(own, uid, shape, phy, template, back_off=world.dice.choice(_BACK_OFFS), **more)
    world.add_pod(pod)
    world.count("pod-created")
    return pod


def _made(scene: Scene, name: str, shape: str = "normal", **more: Any) -> None:
    if make_pod(scene, shape, **more) is not None:
        scene.world.count(name)


@event("pod-runs")
def _runs(scene: Scene, number: int) -> None:
    _made(scene, "pod-runs", lives=scene.world.dice.choice((0.0, 0.0, 90.0, 700.0)))


@event("pod-fails")
def _fails(scene: Scene, number: int) -> None:
    reason = scene.world.dice.choice(_FAILING)
    _made(scene, "pod-fails", fails=scene.world.dice.choice((-1, -1, 2, 5)), reason=reason, has_end=number % 3 == 0)


@event("pod-crashes")
def _crashes(scene: Scene, number: int) -> None:
    _made(scene, "pod-crashes", lives=scene.world.dice.choice((1.0, 30.0)), exit_code=1)


@event("pod-stuck")
def _stuck(scene: Scene, number: int) -> None:
    reasons = [*_STARTING, "PodInitializing", *_UNTOLD[1:]]
    _made(scene, "pod-stuck", stuck=reasons[number % len(reasons)])


@event("pod-soft")
def _soft(scene: Scene, number: int) -> None:
    _made(scene, "pod-soft", "soft")


@event("pod-privileged")
def _privileged(scene: Scene, number: int) -> None:
    _made(scene, "pod-privileged", scene.world.dice.choice(("privileged", "mount")))


@event("pod-stranger")
def _stranger(scene: Scene, number: int) -> None:
    """One that has no card and may open any device."""
    if scene.plan.blind is not Blind.VNPUS:
        _made(scene, "pod-stranger", "stranger")


@event("stranger-opens")
def _stranger_opens(scene: Scene, number: int) -> None:
    world = scene.world
    strangers = [pod.main for pod in world.pods.values() if pod.main is not None and pod.main.alive and pod.main.privileged]
    if strangers and world.hardware.vnpus and scene.plan.blind is not Blind.VNPUS:
        world.open(world.dice.choice(strangers), world.dice.choice(sorted(world.hardware.vnpus.values(), key=lambda vnpu: vnpu.vdev)))
        world.count("stranger-opens")


@event("pod-static")
def _static(scene: Scene, number: int) -> None:
    _made(scene, "pod-static", "static", fails=world_choice(scene, (0, 0, -1)), reason="RunContainerError")


def world_choice(scene: Scene, values: tuple[Any, ...]) -> Any:
    """Draw one of some values."""
    return scene.world.dice.choice(values)


def _some(scene: Scene, fits: Callable[[Pod], bool]) -> Pod | None:
    found = [pod for pod in scene.world.pods.values() if fits(pod)]
    return scene.world.dice.choice(found) if found else None


@event("mirror-missing")
def _mirror(scene: Scene, number: int) -> None:
    """The mirror of a static Pod is deleted; the Pod runs on."""
    pod = _some(scene, lambda pod: pod.shape == "static" and pod.in_api)
    if pod is not None:
        scene.world.forget(pod)
        scene.world.count("mirror-missing")


@event("pod-deleted")
def _deleted(scene: Scene, number: int) -> None:
    pod = _some(scene, lambda pod: pod.in_api and not pod.deleting and pod.shape != "static")
    if pod is not None:
        pod.deleting = True
        scene.world.api.changed(pod)
        scene.world.count("pod-deleted")
        scene.world.time.after(scene.world.dice.choice((0.5, 5.0, 30.0)), _finish_deletion, scene, pod)


def _finish_deletion(scene: Scene, pod: Pod) -> None:
    world = scene.world
    if world.pods.get(pod.uid) is not pod:
        return
    if not world.kubelet.running or world.lags:
        world.time.after(20.0, _finish_deletion, scene, pod)
        return
    pod.ended = True
    world.kill(pod)
    world.forget(pod)
    world.tell(f"Pod {pod.uid[-4:]} is gone")


@event("pod-force-deleted")
def _force_deleted(scene: Scene, number: int) -> None:
    pod = _some(scene, lambda pod: pod.in_api and pod.shape != "static")
    if pod is None:
        return
    world = scene.world
    was_alive = pod.lives_here
    pod.ended = True
    world.forget(pod)
    world.count("pod-force-deleted")
    seconds = world.dice.choice((1.0, 30.0, 900.0, 2500.0))
    if was_alive and seconds > 60:
        world.count("force-deleted-runs-on")
    world.time.after(seconds, world.kill, pod)


@event("pod-evicted")
def _evicted(scene: Scene, number: int) -> None:
    pod = _some(scene, lambda pod: pod.in_api and not pod.ended and pod.shape != "static")
    if pod is None or not scene.world.kubelet.running:
        return
    world = scene.world
    pod.ended = True
    world.count("pod-evicted")
    if number % 2:
        # Before 1.27 the kubelet said so first.
        world.say(pod, "Failed", pod.said.state)
        world.time.after(20.0, world.kill, pod)
    else:
        world.kill(pod)
        world.say(pod, "Failed", pod_desk.ended(137, "Error", finished=world.stamp()))


@event("pod-gc-failed")
def _collected(scene: Scene, number: int) -> None:
    """PodGC marks a Pod Failed that runs on."""
    pod = _some(scene, lambda pod: pod.in_api and pod.lives_here and pod.shape != "static")
    if pod is None:
        return
    world = scene.world
    pod.ended = True
    pod.shown = type(pod.shown)("Failed", pod.shown.state if number % 2 else None, pod.shown.last)
    pod.said = pod.shown
    world.api.changed(pod)
    world.count("pod-gc-failed")
    if number % 3 == 0:
        world.forget(pod)
    world.time.after(world.dice.choice((30.0, 1500.0)), world.kill, pod)


@event("container-lost")
def _lost(scene: Scene, number: int) -> None:
    """The kubelet lost track of a container, which may run on."""
    pod = _some(scene, lambda pod: pod.in_api and pod.lives_here and not pod.ended)
    if pod is not None and scene.world.kubelet.running:
        reason = ("ContainerStatusUnknown", "Unknown", "NeverHeardOf")[number % 3]
        scene.world.say(pod, "Running", pod_desk.ended(137, reason, finished=None))
        scene.world.count("container-lost")


@event("state-flaps")
def _flaps(scene: Scene, number: int) -> None:
    """The kubelet has forgotten why a container failed, and says that it begins; or says something that nobody knows."""
    pod = _some(scene, lambda pod: pod.in_api and not pod.ended and not pod.lives_here and pod.attempts > 0)
    if pod is not None and scene.world.kubelet.running:
        reason = ("ContainerCreating", "NeverHeardOf", None, "CrashLoopBackOff")[number % 4]
        scene.world.say(pod, "Running", pod_desk.waiting(reason))
        scene.world.count("state-flaps")


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


def names() -> Iterator[str]:
    """Yield every event's name."""
    yield from EVENTS
