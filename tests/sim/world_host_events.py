"""Everything that can happen to vNPUs, to the host, and to the broker."""

from typing import Final

from devward.model import Pin, ReclaimMode
from devward.reclaim.controls import Switch
from devward.reclaim.look import Cut
from sim.world_api import BOOTS
from sim.world_broker import Blind, DestroyFault, ListLie
from sim.world_events import event
from sim.world_scene import Scene
from sim.world_truth import FOREIGN_TEMPLATE, TEMPLATES, Container, Vnpu

#: Boots begin here, in seconds of the monotonic clock.
_BOOT: Final = 40.0


def _some_vnpu(scene: Scene, *, owned: bool | None = None) -> Vnpu | None:
    found = [vnpu for _, vnpu in sorted(scene.world.hardware.vnpus.items()) if owned is None or vnpu.is_owned is owned]
    return scene.world.dice.choice(found) if found else None


def _some_docker(scene: Scene) -> Container | None:
    found = [container for container in scene.world.containers if not container.uid]
    return scene.world.dice.choice(found) if found else None


# --- vNPUs -------------------------------------------------------------------------------------------------------------
@event("orphan-made")
def _orphan(scene: Scene, number: int) -> None:
    """An attempt of a Pod that is long gone left one behind."""
    world = scene.world
    vnpu = world.hardware.make(world.dice.randrange(scene.plan.managed), world.dice.choice(sorted(TEMPLATES)), world.time.now)
    if vnpu is not None:
        world.count("orphan-made")
        world.mark()


@event("id-reused")
def _reused(scene: Scene, number: int) -> None:
    """One that nobody owns goes, and another one takes its id: of an attempt that fails, or of a docker user who keeps it."""
    world = scene.world
    vnpu = _some_vnpu(scene, owned=False)
    if vnpu is None:
        return
    world.hardware.destroy(vnpu)
    template = vnpu.template if number % 4 else world.dice.choice(sorted(TEMPLATES))
    again = world.hardware.make(vnpu.phy, template, world.time.now, vdev=vnpu.vdev)
    if again is None:
        return
    world.count("id-reused")
    if number % 2 and scene.plan.blind is not Blind.VNPUS:
        _docker(scene, again)
    world.mark()


@event("vnpu-vanishes")
def _vanishes(scene: Scene, number: int) -> None:
    """Somebody else destroys one that is idle: HAMi's older cleanup does so with those of Pods."""
    vnpu = _some_vnpu(scene)
    if vnpu is not None and not vnpu.is_flagged:
        scene.world.hardware.destroy(vnpu)
        scene.world.count("vnpu-vanishes")
        scene.world.mark()


def _docker(scene: Scene, vnpu: Vnpu) -> None:
    world = scene.world
    container = world.new_container("", alive=True, has_bundle=True, phy=vnpu.phy, template=vnpu.template, vnpu=vnpu)
    # Where nothing but the driver's flag tells of it, it uses the vNPU at once and for good.
    container.privileged = world.dice.random() < 0.3 and scene.plan.blind.shows_holders
    container.since = world.time.now
    vnpu.owner = container
    world.tell(f"docker's {container.id} has vNPU {vnpu.vdev} ({vnpu.serial})")
    world.mark()
    if not scene.plan.blind.shows_holders:
        world.open(container)
    elif world.dice.random() < 0.5:
        world.time.after(world.dice.choice((1.0, 500.0)), world.open, container)


@event("docker-user")
def _docker_user(scene: Scene, number: int) -> None:
    world = scene.world
    if scene.plan.blind is Blind.VNPUS:
        return
    vnpu = world.hardware.make(world.dice.randrange(scene.plan.managed), world.dice.choice(sorted(TEMPLATES)), world.time.now)
    if vnpu is not None:
        _docker(scene, vnpu)
        world.count("docker-user")


@event("docker-adopts")
def _docker_adopts(scene: Scene, number: int) -> None:
    """A docker user takes one that nobody owns."""
    vnpu = _some_vnpu(scene, owned=False)
    if vnpu is not None and scene.plan.blind is not Blind.VNPUS:
        _docker(scene, vnpu)
        scene.world.count("docker-adopts")


@event("docker-stops")
def _docker_stops(scene: Scene, number: int) -> None:
    container = _some_docker(scene)
    if container is not None:
        scene.world.end_container(container, cleans=number % 2 == 0)
        scene.world.count("docker-stops")


@event("admin-makes")
def _admin_makes(scene: Scene, number: int) -> None:
    """An administrator makes one to keep: on a card that is not HAMi's, of a template that is not, pinned, or in none of these ways."""
    world = scene.world
    way = number % 4
    phy = scene.plan.managed if way == 0 and scene.plan.unmanaged else world.dice.randrange(scene.plan.managed)
    template = FOREIGN_TEMPLATE if way == 1 else world.dice.choice(sorted(TEMPLATES))
    vnpu = world.hardware.make(phy, template, world.time.now)
    if vnpu is None:
        return
    vnpu.is_admins = True
    world.hardware.recorded[vnpu.vdev] = (template, True)
    world.count("admin-makes")
    if way == 2:
        _pin(scene, vnpu)
    world.mark()


def _pin(scene: Scene, vnpu: Vnpu) -> None:
    die = scene.world.hardware.cards[vnpu.phy].die
    target = f"{die}/{vnpu.vdev}/{vnpu.template}"
    if any(pin.target == target for pin in scene.settings.pins):
        return
    _add_pin(scene, target)
    scene.world.count("pin")


def _add_pin(scene: Scene, target: str) -> None:
    scene.checks.pinned(target)
    scene.settings.pins += (Pin(target, "it is wanted", 0, scene.world.time.realtime_usec),)
    scene.daemon.noticed()


@event("pin")
def _pins(scene: Scene, number: int) -> None:
    vnpu = _some_vnpu(scene)
    if vnpu is not None:
        _pin(scene, vnpu)


@event("pin-card")
def _pins_card(scene: Scene, number: int) -> None:
    die = scene.world.hardware.cards[number % scene.plan.managed].die
    if all(pin.target != die for pin in scene.settings.pins):
        _add_pin(scene, die)
        scene.world.count("pin-card")


@event("unpin")
def _unpins(scene: Scene, number: int) -> None:
    pins = scene.settings.pins
    if pins:
        which = number % len(pins)
        target = pins[which].target
        scene.settings.pins = (*pins[:which], *pins[which + 1 :])
        # What an administrator made is given up with its pin.
        scene.daemon.interrupt(Cut.UNPINNED, _identities(scene, target))
        scene.world.count("unpin")


def _identities(scene: Scene, target: str) -> frozenset[str]:
    return frozenset(view.identity for view in scene.daemon.picture.vnpus if view.identity.startswith(target))


@event("node-touched")
def _touched(scene: Scene, number: int) -> None:
    vnpu = _some_vnpu(scene)
    if vnpu is not None:
        scene.world.hardware.touch(vnpu, scene.world.time.now)
        scene.world.count("node-touched")


@event("udev-lost")
def _udev_lost(scene: Scene, number: int) -> None:
    hardware = scene.world.hardware
    hardware.deaf, hardware.deaf_silently = 1 + number % 3, number % 2 == 1
    scene.world.count("udev-lost")


@event("card-unhealthy")
def _unhealthy(scene: Scene, number: int) -> None:
    card = scene.world.hardware.cards[number % len(scene.world.hardware.cards)]
    card.health = 3
    scene.world.count("card-unhealthy")
    scene.world.time.after(scene.world.dice.choice((30.0, 400.0)), _healthy, scene, card.phy)


def _healthy(scene: Scene, phy: int) -> None:
    scene.world.hardware.cards[phy].health = 0


# --- the host ----------------------------------------------------------------------------------------------------------
@event("host-unreadable")
def _unreadable(scene: Scene, number: int) -> None:
    scene.world.host_unreadable = True
    scene.world.count("host-unreadable")
    scene.world.time.after(scene.world.dice.choice((30.0, 300.0)), _readable, scene)


def _readable(scene: Scene) -> None:
    scene.world.host_unreadable = False


@event("reboot")
def _reboot(scene: Scene, number: int) -> None:
    """The host boots: the driver makes again what its file has, nobody's but an administrator's."""
    world = scene.world
    world.count("reboot")
    world.boots += 1
    lines = world.hardware.boot()
    world.containers.clear()
    world.time.forget()
    world.time.begin_again(_BOOT)
    for pod in list(world.pods.values()):
        pod.main = pod.sandbox = None
        if not pod.in_api and pod.shape != "static":
            pod.ended = True
            del world.pods[pod.uid]
    for vdev, template, admins in lines:
        vnpu = world.hardware.make((vdev - 100) // 16, template, world.time.now, vdev=vdev)
        if vnpu is not None:
            vnpu.is_admins = admins
            world.hardware.recorded[vdev] = (template, admins)
            world.count("made-again-at-boot")
    world.host_unreadable, world.lags, world.hami_alive = False, False, True
    world.drivers = frozenset()
    world.api.trouble, world.api.lie, world.api.lock = type(world.api.trouble)(""), type(world.api.lie)(""), ""
    world.api.annotations.clear()
    for card in world.hardware.cards.values():
        card.health = 0
    scene.broker.is_away = scene.broker.is_stuck = False
    settings = scene.settings
    settings.paused, settings.mode, settings.kill_switch = False, ReclaimMode.ENFORCE, Switch.ABSENT
    settings.journal = settings.saves = True
    scene.daemon.pace = 0.05
    kubelet = world.kubelet
    kubelet.cannot_write, kubelet.listens, kubelet.running, kubelet.registered = False, True, True, True
    kubelet.restart()
    world.mark()
    world.time.after(world.dice.choice((1.0, 60.0)), _settle, scene)
    scene.ends, scene.is_stopped = True, False


def _settle(scene: Scene) -> None:
    """The kubelet is there again: it reports, and begins with its Pods."""
    world = scene.world
    world.api.boot_id = BOOTS.format(world.boots)
    world.begin_beats()
    world.kubelet.write()
    for pod in list(world.pods.values()):
        if pod.deleting:
            pod.ended = True
            world.forget(pod)
        elif not pod.ended:
            world.resume(pod)


@event("suspend")
def _suspend(scene: Scene, number: int) -> None:
    """The host sleeps: the monotonic clock stands, the wall clock goes on."""
    world = scene.world
    seconds = world.dice.choice((5, 3600, 86400))
    world.time.offset_usec += seconds * 1_000_000
    world.time.suspended += seconds
    scene.daemon.interrupt(Cut.RESUMED)
    world.count("suspend")


@event("clock-jump")
def _jump(scene: Scene, number: int) -> None:
    """The wall clock is set."""
    world = scene.world
    world.time.offset_usec += world.dice.choice((-86400, -600, 600, 86400)) * 1_000_000
    scene.daemon.interrupt(Cut.CLOCK)
    world.count("clock-jump")


# --- the broker --------------------------------------------------------------------------------------------------------
@event("broker-hangs")
def _hangs(scene: Scene, number: int) -> None:
    _away(scene, "broker-hangs", scene.world.dice.choice((40.0, 300.0)))


@event("broker-crashes")
def _crashes(scene: Scene, number: int) -> None:
    _away(scene, "broker-crashes", scene.world.dice.choice((0.1, 2.0)))


def _away(scene: Scene, name: str, seconds: float) -> None:
    scene.broker.is_away = True
    scene.world.count(name)
    scene.world.time.after(seconds, _back, scene)


def _back(scene: Scene) -> None:
    scene.broker.is_away = False


@event("list-lies")
def _list_lies(scene: Scene, number: int) -> None:
    scene.broker.list_lies.append(list(ListLie)[number % len(ListLie)])
    scene.world.count("list-lies")


@event("destroy-fault")
def _destroy_fault(scene: Scene, number: int) -> None:
    scene.broker.faults.append(list(DestroyFault)[number % len(DestroyFault)])
    scene.world.count("destroy-fault")
