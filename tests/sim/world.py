"""The world in which devward reclaims: a node with NPUs, its Pods, kubelet, HAMi, runtime and API server, with what is true of each.

What happens by itself happens here, in virtual time: allocations, attempts to make a container, retries, ends, reports of the kubelet. What
happens to it is in world_events.py. The dice are set anew for each event, so that a history without one of them is still the same history.
"""

import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Final

from sim import pod_desk
from sim.pod_desk import BEGIN_USEC
from sim.world_api import BOOTS, ApiServer
from sim.world_kubelet import KubeletProcess
from sim.world_time import Agenda
from sim.world_truth import Card, Container, Hardware, Pod, Shown, Vnpu

BEGIN: Final = 5000.0
_HANDSHAKE: Final = 30.0
_RENEWAL: Final = 10.0


class World:
    """All of it."""

    def __init__(self, seed: int, *, managed: int = 4, unmanaged: int = 1, tell: bool = False) -> None:
        """A node that is at rest. With `tell` it keeps a story."""
        cards = [Card(phy, phy < managed) for phy in range(managed + unmanaged)]
        self.seed = seed
        self.time = Agenda(BEGIN, BEGIN_USEC)
        self.dice = random.Random(seed)
        self.hardware = Hardware(cards)
        self.api = ApiServer(cards)
        self.kubelet = KubeletProcess(cards)
        self.boots = 1
        self.pods: dict[str, Pod] = {}
        self.containers: list[Container] = []
        self.counts: Counter[str] = Counter()
        self.story: list[str] | None = [] if tell else None
        #: Reports of the kubelet do not get through, though the API server answers us.
        self.lags = False
        self.hami_alive = True
        #: The runtime's bundles cannot be read.
        self.host_unreadable = False
        self.drivers: frozenset[str] = frozenset()
        #: When devward last saw a container of a card being made, which protects that card for a moment.
        self.seen_making: dict[int, float] = {}
        #: Attempts fail at once.
        self.is_calm = False
        #: Pods that are bound and do not have their device yet.
        self.in_flight = 0
        self._number = 0
        self.begin_beats()

    # --- telling -------------------------------------------------------------------------------------------------------
    def tell(self, *words: object) -> None:
        """Add to the story."""
        if self.story is not None:
            self.story.append(f"{self.time.now:10.2f}  {' '.join(map(str, words))}")

    def count(self, name: str) -> None:
        """Count an event that really happened."""
        self.counts[name] += 1

    def new_uid(self) -> str:
        """Return the UID of a Pod that never was."""
        self._number += 1
        return f"{self.seed & 0xFFFFFFFF:08x}-0000-4000-8000-{self._number:012d}"

    # --- what goes on by itself ----------------------------------------------------------------------------------------
    def begin_beats(self) -> None:
        """Begin what goes on and on, as after a boot."""
        self._beat()

    def _beat(self) -> None:
        self.beat()
        self.time.after(_RENEWAL, self._beat)

    def beat(self) -> None:
        """Let the kubelet renew its Lease, and HAMi's plugin report."""
        if self.kubelet.running:
            self.api.renewed = int((self.time.now + self.boots * 1_000_000) // _RENEWAL * _RENEWAL)
            self.api.ready = "True"
            if self.api.boot_id != BOOTS.format(self.boots):
                self.api.boot_id = BOOTS.format(self.boots)
        elif not self.kubelet.running and self.time.now - self.kubelet.since > 40:
            self.api.ready = "Unknown"
        if self.hami_alive:
            self.api.handshake = int((self.time.now + self.boots * 1_000_000) // _HANDSHAKE)

    @property
    def boot_id(self) -> str:
        """Of the boot that it is."""
        return BOOTS.format(self.boots)

    # --- vNPUs ---------------------------------------------------------------------------------------------------------
    def mark(self) -> None:
        """Write down which vNPUs nobody owns from now on."""
        for vnpu in self.hardware.vnpus.values():
            if vnpu.is_owned:
                vnpu.abandoned_at = None
            elif vnpu.abandoned_at is None:
                vnpu.abandoned_at = self.time.now
                self.count("orphaned")
                self.tell(f"vNPU {vnpu.vdev} ({vnpu.serial}) is nobody's")

    def end_container(self, container: Container, *, cleans: bool) -> None:
        """Let a container end; the runtime's hook destroys its vNPU, or does not."""
        was_there = container.is_there
        container.making = container.alive = container.has_bundle = False
        if container in self.containers:
            self.containers.remove(container)
        vnpu = container.vnpu
        for other in self.hardware.vnpus.values():
            if container in other.opened_by:
                other.opened_by.remove(container)
        if vnpu is not None and self.hardware.vnpus.get(vnpu.vdev) is vnpu and was_there:
            if cleans and not vnpu.is_admins and not any(one.alive for one in vnpu.opened_by):
                self.tell(f"the runtime destroys vNPU {vnpu.vdev} ({vnpu.serial})")
                self.hardware.destroy(vnpu)
            else:
                self.count("left-behind")
        self.mark()

    def new_container(self, uid: str, **more: Any) -> Container:
        """Return a container that is there from now on."""
        self._number += 1
        container = Container(f"c{self._number}", uid, **more)
        self.containers.append(container)
        return container

    def calm(self) -> None:
        """Let everything be well: what lives or only waits goes, Pods that cannot start go on failing."""
        api, kubelet = self.api, self.kubelet
        self.is_calm = True
        api.trouble, api.lie, api.lock, api.ready = type(api.trouble)(""), type(api.lie)(""), "", "True"
        api.annotations.clear()
        api.boot_id = self.boot_id
        self.lags, self.hami_alive, self.host_unreadable, self.drivers = False, True, False, frozenset()
        self.hardware.deaf = 0
        for card in self.hardware.cards.values():
            card.health = 0
        kubelet.running = kubelet.listens = kubelet.registered = True
        kubelet.cannot_write = False
        for pod in list(self.pods.values()):
            if pod.fails >= 0 or pod.deleting or not pod.allocated or pod.stuck is not None or not pod.in_api:
                pod.ended = True
                self.kill(pod)
                self.forget(pod)
        for container in [container for container in self.containers if not container.uid]:
            self.end_container(container, cleans=False)
        kubelet.prune(self.active_uids())
        kubelet.write()
        self.report_all()
        self.beat()
        self.mark()

    # --- Pods ----------------------------------------------------------------------------------------------------------
    def add_pod(self, pod: Pod) -> None:
        """Bind a Pod to this node: HAMi's lock is taken, and the kubelet will ask for its device."""
        self.pods[pod.uid] = pod
        self.api.pods[pod.shown_uid] = pod
        self.api.changed(pod)
        if pod.has_card:
            self.in_flight += 1
            self.api.lock = f"2026-12-01T00:00:00Z,default,{pod.shown_uid}"
        self.tell(f"Pod {pod.uid[-4:]} ({pod.shape}) is bound, card {pod.phy}, fails {pod.fails} {pod.reason or pod.stuck or ''}")
        self.time.after(self.dice.uniform(0.2, 3.0), self._allocate, pod)

    def is_active(self, pod: Pod) -> bool:
        """Whether the kubelet still has it among those that have their devices."""
        return not pod.ended and (pod.in_api or pod.shape == "static") and self.pods.get(pod.uid) is pod

    def _allocate(self, pod: Pod) -> None:
        if not self.is_active(pod) or pod.deleting or pod.allocated:
            self._unlock(pod)
            return
        if not self.kubelet.running:
            self.time.after(7.0, self._allocate, pod)
            return
        if not pod.has_card:
            self.time.after(0.5, self._start, pod)
            return
        self.count("allocate-in-flight")
        self.time.after(self.dice.choice((0.05, 0.3, 1.0, 4.0, 20.0)), self._allocated, pod)

    def _allocated(self, pod: Pod) -> None:
        self._unlock(pod)
        if not self.is_active(pod) or not self.kubelet.running or pod.allocated:
            return
        if any(entry.pod_uid not in self.active_uids() for entry in self.kubelet.entries):
            self.count("checkpoint-pruned")
        self.kubelet.prune(self.active_uids())
        self.kubelet.add(pod.uid, pod.phy, "" if pod.is_soft else pod.template, self.dice)
        self.kubelet.write()
        pod.allocated = True
        self.tell(f"Pod {pod.uid[-4:]} has its device")
        self.say(pod, "Pending", pod_desk.waiting("ContainerCreating"))
        self.time.after(self.dice.uniform(0.1, 2.0), self._start, pod)

    def resume(self, pod: Pod) -> None:
        """Begin with a Pod again, after a boot."""
        self.say(pod, "Pending", pod_desk.waiting("ContainerCreating"))
        self.time.after(self.dice.uniform(0.2, 3.0), self._start if pod.allocated or not pod.has_card else self._allocate, pod)

    def active_uids(self) -> set[str]:
        """Return the Pods that the kubelet counts as active."""
        return {pod.uid for pod in self.pods.values() if self.is_active(pod)}

    def _unlock(self, pod: Pod) -> None:
        if pod.has_card and not pod.allocated:
            self.in_flight = sum(one.in_api and not one.allocated and one.has_card and one is not pod for one in self.pods.values())
        if self.api.lock.endswith(pod.shown_uid):
            self.api.lock = ""

    def _start(self, pod: Pod) -> None:
        if not self.is_active(pod) or pod.deleting or pod.sandbox is not None:
            return
        pod.sandbox = self.new_container(pod.uid, is_sandbox=True, alive=True, has_bundle=True)
        if pod.stuck is not None:
            self.say(pod, "Pending", pod_desk.waiting(None if pod.stuck == "-" else pod.stuck))
            return
        self._attempt(pod)

    def _attempt(self, pod: Pod) -> None:
        if not self.is_active(pod) or pod.deleting or pod.lives_here or pod.stuck is not None:
            return
        if not self.kubelet.running:
            self.time.after(9.0, self._attempt, pod)
            return
        pod.attempts += 1
        privileged = pod.shape in ("privileged", "stranger")
        container = self.new_container(
            pod.uid,
            making=True,
            has_bundle=self.dice.random() < 0.8,
            privileged=privileged,
            all_devices=privileged or pod.shape == "mount",
            phy=pod.phy if pod.has_card else -1,
            template=pod.template if pod.wants_vnpu else "",
        )
        pod.main = container
        if pod.wants_vnpu:
            vnpu = self.hardware.make(pod.phy, pod.template, self.time.now)
            if vnpu is None:
                self.count("card-full")
                self.time.after(self.dice.choice((0.1, 2.0)), self._fail, pod, container)
                return
            vnpu.owner, container.vnpu = container, vnpu
            self.count("vnpu-before-container")
            self.tell(f"vNPU {vnpu.vdev} ({vnpu.serial}) is made for Pod {pod.uid[-4:]}")
        fails = pod.fails < 0 or pod.attempts <= pod.fails
        takes = 0.01 if self.is_calm else self.dice.choice((0.05, 0.4, 2.0, 15.0))
        self.time.after(takes, self._fail if fails else self._live, pod, container)

    def _fail(self, pod: Pod, container: Container) -> None:
        if not container.making:
            return
        self.end_container(container, cleans=False)
        pod.main = None
        end = pod_desk.ended(128, "StartError", finished=self.stamp(), startedAt="1970-01-01T00:00:00Z") if pod.has_end else None
        if end is not None:
            self.count("state:terminated:StartError")
        phase = "Pending" if pod.attempts % 2 else "Running"
        self.say(pod, phase, pod_desk.waiting(pod.reason or "RunContainerError"), end)
        self.tell(f"an attempt of Pod {pod.uid[-4:]} failed: {pod.reason}")
        self.count("retried" if pod.attempts > 1 else "failed-to-start")
        self._try_later(pod)

    def _try_later(self, pod: Pod) -> None:
        """Let the kubelet wait before the next attempt: ever longer, up to five minutes."""
        self.time.after(min(300.0, pod.back_off * 2 ** min(5, pod.attempts - 1)), self._attempt, pod)

    def _live(self, pod: Pod, container: Container) -> None:
        if not container.making:
            return
        container.making, container.alive, container.has_bundle = False, True, True
        container.since = self.time.now
        self.say(pod, "Running", {"running": {"startedAt": self.stamp()}})
        self.tell(f"Pod {pod.uid[-4:]} runs")
        if self.dice.random() < 0.6:
            self.time.after(self.dice.choice((0.5, 30.0, 400.0)), self.open, container)
        if pod.lives:
            self.time.after(pod.lives, self._end, pod, container)

    def open(self, container: Container, vnpu: Vnpu | None = None) -> None:
        """Let a container's process open its vNPU, or another one."""
        vnpu = vnpu or container.vnpu
        if container.alive and vnpu is not None and self.hardware.vnpus.get(vnpu.vdev) is vnpu:
            vnpu.opened_by.append(container)
            self.hardware.version += 1
            if container.privileged:
                self.count("privileged-flag-0")
            self.mark()

    def _end(self, pod: Pod, container: Container) -> None:
        if not container.alive or pod.main is not container:
            return
        self.end_container(container, cleans=self.dice.random() < 0.7)
        pod.main = None
        reason = ("Error", "OOMKilled", "ContainerCannotRun")[pod.attempts % 3] if pod.exit_code else "Completed"
        end = pod_desk.ended(pod.exit_code, reason, finished=self.stamp(), startedAt=self.stamp(-pod.lives))
        if pod.exit_code:
            # The next look at its back-off, or at its end.
            self.count(f"state:terminated:{reason}")
            self.say(pod, "Running", *((pod_desk.waiting("CrashLoopBackOff"), end) if pod.attempts % 4 else (end, None)))
            self._try_later(pod)
        else:
            pod.ended = True
            self.end_sandbox(pod)
            self.count("state:terminated:Completed")
            self.say(pod, "Succeeded", end)

    def end_sandbox(self, pod: Pod) -> None:
        """Let the sandbox of a Pod go."""
        if pod.sandbox is not None:
            self.end_container(pod.sandbox, cleans=False)
            pod.sandbox = None

    def kill(self, pod: Pod, *, cleans: float = 0.7) -> None:
        """Let whatever of a Pod runs end."""
        if pod.main is not None:
            self.end_container(pod.main, cleans=self.dice.random() < cleans)
            pod.main = None
        self.end_sandbox(pod)
        if pod.ended and not pod.in_api and self.pods.get(pod.uid) is pod:
            del self.pods[pod.uid]

    def forget(self, pod: Pod) -> None:
        """Remove a Pod's object from the API server."""
        if pod.in_api:
            pod.in_api = False
            self.api.pods.pop(pod.shown_uid, None)
            self.api.changed(pod)
            self._unlock(pod)
        if pod.ended and not pod.lives_here and pod.sandbox is None:
            self.pods.pop(pod.uid, None)

    # --- what is said of them ------------------------------------------------------------------------------------------
    def say(self, pod: Pod, phase: str, state: dict[str, Any] | None, last: dict[str, Any] | None = None) -> None:
        """Let the kubelet say something of a Pod; the API server has it once it is reported."""
        pod.said = Shown(phase, state, last)
        self.report(pod)

    def report(self, pod: Pod) -> None:
        """Let the kubelet report, if it can."""
        if pod.in_api and self.kubelet.running and not self.lags and pod.shown is not pod.said:
            pod.shown = pod.said
            waits = (pod.said.state or {}).get("waiting")
            if waits is not None:
                self.count(f"state:{waits.get('reason', '-')}")
            self.api.changed(pod)

    def report_all(self) -> None:
        """Let the kubelet report everything that it could not."""
        for pod in self.pods.values():
            self.report(pod)

    def stamp(self, seconds: float = 0.0) -> str:
        """Return the time by the wall clock, so many seconds from now, as Kubernetes writes it."""
        return datetime.fromtimestamp(self.time.realtime_usec // 1_000_000 + int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
