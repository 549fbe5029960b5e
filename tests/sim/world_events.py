"""Everything that can happen to the world, each by its name: here, that time passes, and what happens to Pods and their containers.

What happens to the kubelet and the API server is in world_cluster_events.py, to vNPUs, the host and the broker in world_host_events.py, and
to the daemon in world_daemon_events.py. An event that finds nothing to happen to does
nothing, and is not counted.
"""

from collections.abc import Callable
from typing import Any, Final

from devward.cluster.containers import FAILING, STARTING
from sim import pod_desk
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


@event("pod-mounts-vnpu")
def _mounts_vnpu(scene: Scene, number: int) -> None:
    """One that no attempt starts, and that would take up the same vNPU at each."""
    vnpus = sorted(scene.world.hardware.vnpus)
    if vnpus:
        reason = scene.world.dice.choice(_FAILING)
        _made(scene, "pod-mounts-vnpu", "mounting", mounts=scene.world.dice.choice(vnpus), fails=-1, reason=reason, has_end=number % 3 == 0)


@event("pod-stranger")
def _stranger(scene: Scene, number: int) -> None:
    """One that has no card and may open any device."""
    if scene.plan.blind.shows_holders:
        _made(scene, "pod-stranger", "stranger")


@event("stranger-opens")
def _stranger_opens(scene: Scene, number: int) -> None:
    world = scene.world
    strangers = [pod.main for pod in world.pods.values() if pod.main is not None and pod.main.alive and pod.main.privileged]
    if strangers and world.hardware.vnpus and scene.plan.blind.shows_holders:
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
        world.count("state:terminated:Error")
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
        scene.world.count(f"state:terminated:{reason}")
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
