"""What it costs to know who owns the vNPUs of a full node: the daemon's looks, and the broker's share of them, by the processor's time.

The daemon's times are divided, so that there is a look a second; each does what it does once a minute elsewhere. The API server, with TLS,
is a stand-in in the bench's own process. The host is a tree of files. The Pods protect every card, so that no vNPU is searched for in the
processes' descriptors: what that costs is a measurement of its own (descriptors).

From one look to the next some of the Pods change, as they do where containers fail and are tried again.

On another such node every Pod fails, so that no card is protected: all vNPUs are searched for, though among few processes, and each look
confirms every one of them, which shows on the bus.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.figure import Bar, Figure, Figures
from bench.npus import RESIDENT
from bench.setting import BROKER_UNIT, Broken, cpu_seconds, memory, need_kvm, scratch, unit_environment
from bench.snapshot import CARDS, PODS, full_checkpoint, full_dies, full_list, is_failing, pod_uid, registered
from devward.npu.protocol import ListAnswer, ListRequest
from sim.bundle_host import made
from sim.daemon_process import wait_for
from sim.dcmi_broker import BrokerHost
from sim.dcmi_simulator import DcmiSimulator, Vnpu, build_library
from sim.npu_node import SHARED, NpuNode
from sim.owned_node import SCALED, OwnedNode

TEMPLATE = "vir05_1c_8g"
PER_CARD = 16
#: Processes beside the first ones of the containers.
OTHERS = 64
#: When the tree's processes were started, in clock ticks.
STARTED = 77
FAILING = tuple(index for index in range(PODS) if is_failing(index))
#: Pods that are not what they were at the look before: those that fail are tried again every five minutes.
CHANGING = len(FAILING) // 5
#: Seconds between looks here, and the looks of one value.
INTERVAL = 60 / float(SCALED[1])
LOOKS = 5
#: Each look confirms, as those of every minute do; none is eligible before the bench is over, and nothing would be destroyed then.
CONFIRMING = '[reclaim]\nmode = "observe"\ngrace = 3600\ninterval = 1\n'
#: Of daemon and broker together.
WHOLE = Bar("median", 120)
ALL_CONFIRMING = Bar("median", 200)
LIGHT = Bar("median", 5)


def measure(quick: bool) -> Figures:
    """Yield what a whole look costs, and one that nobody needs as no vNPU is idle."""
    need_kvm()
    with tempfile.TemporaryDirectory(prefix="devward-bench-") as cache:
        try:
            library = build_library(Path(cache))
        except (OSError, RuntimeError) as error:
            raise Broken(f"the simulated library cannot be built: {error}") from error
        with _full_node(library) as owned:
            yield from _whole(owned, full_dies(), 2 if quick else 10)
            yield from _without_idle(owned, 2 if quick else 10)
        with _full_node(library, lambda _index: True, CONFIRMING) as owned:
            yield from _confirming(owned, 2 if quick else 10)


@contextlib.contextmanager
def _full_node(library: Path, fails: Callable[[int], bool] = is_failing, config: str = "") -> Iterator[OwnedNode]:
    """A full node whose Pods and cards are all known; `fails` tells which Pods cannot be started."""
    with scratch() as directory, BrokerHost(RESIDENT) as host, DcmiSimulator(host.directory / "node", library) as simulator:
        simulator.install(host.library)
        node = NpuNode(directory, host, simulator, program=SCALED, config=config)
        dies = full_dies()
        chips = [simulator.add_chip("910B4", vdie=die) for die in dies]
        vdevs = [(chip, chip.first_vdev + place) for chip in chips for place in range(PER_CARD)]
        with simulator.edit() as state:
            state.vnpus.extend(Vnpu(chip.card, chip.dev, vdev, TEMPLATE, vfid=None, aic=5, memory=8192, aicpu=1) for chip, vdev in vdevs)
        with OwnedNode(node) as owned, node.daemon as daemon:
            _bundles(owned, fails)
            owned.checkpoint.write_bytes(full_checkpoint())
            owned.api.bodies["pods"] = full_list(dies, fails=fails)
            host.start({**simulator.environment, **unit_environment(BROKER_UNIT)})
            with host.connect() as connection:
                if not isinstance(connection.ask(ListRequest(1)), ListAnswer):
                    raise Broken("the broker does not list the simulated NPUs")
            daemon.start()
            node.make(*SHARED, *(f"davinci{chip.phy}" for chip in chips), *(f"vdavinci{vdev}" for _, vdev in vdevs))
            wait_for(lambda: _known(owned, dies), deadline=120, what="the owners of all vNPUs")
            yield owned


def _bundles(owned: OwnedNode, fails: Callable[[int], bool]) -> None:
    """Let every Pod have a live sandbox, and a container in it that lives unless the Pod fails; and the host other processes."""
    container = made("containerd-vnpu.json")
    recorded = container["annotations"]["io.kubernetes.cri.sandbox-uid"]
    # A vNPU that a container names would be searched for with every look, as long as the driver does not say that it is in use.
    del container["linux"]["devices"], container["linux"]["resources"], container["hooks"]
    sandbox = json.loads(json.dumps(container))
    sandbox["annotations"]["io.kubernetes.cri.container-type"] = "sandbox"
    sandbox["process"]["env"] = ["PATH=/bin"]
    host = owned.witnessed.bundles
    for index in range(PODS):
        uid = pod_uid(index)
        for place, spec in enumerate((container, sandbox)):
            own = json.dumps(spec).replace(recorded, uid).replace(recorded.replace("-", "_"), uid.replace("-", "_"))
            own = own.replace("ASCEND_VISIBLE_DEVICES=3", f"ASCEND_VISIBLE_DEVICES={index % CARDS}")
            number = 2 * index + place
            if spec is sandbox or not fails(index):
                owned.witnessed.process(10_000 + number)
            host.task(f"{number:064x}", json.loads(own), pid=10_000 + number)
            host.runc(f"{number:064x}", 10_000 + number, STARTED)
    for index in range(OTHERS):
        owned.witnessed.process(20_000 + index)


def _known(owned: OwnedNode, dies: list[str]) -> bool:
    """Whether nothing is unknown of the node any more and HAMi manages its cards; it reports once more."""
    owned.beat("11")
    owned.api.bodies["node"] = registered(owned.api.bodies["node"], dies)
    said = _ownership(owned)
    if not said or said["blocked"]:
        return False
    return len(said["cards"]) == len(dies) and all(card["claims"] and card["managed"] == "managed" for card in said["cards"])


def _spent(owned: OwnedNode) -> dict[str, float]:
    return {name: cpu_seconds(pid) * 1000 for name, pid in _pids(owned).items()}


def _pids(owned: OwnedNode) -> dict[str, int]:
    return {"daemon": owned.daemon.pid, "broker": owned.node.host.processes[-1].pid}


def _whole(owned: OwnedNode, dies: list[str], count: int) -> Figures:
    """Looks at everything, a second apart."""

    def change(look: int) -> None:
        tried = frozenset(FAILING[(look * CHANGING + one) % len(FAILING)] for one in range(CHANGING))
        owned.api.bodies["pods"] = full_list(dies, tried)

    values = _spent_by_look(owned, count, change)
    if _ownership(owned)["host"].get("descriptors"):
        raise Broken("vNPUs are searched for, whose cost is measured apart")
    note = f"{PODS} Pods, {CHANGING} of them changed, {2 * PODS} bundles, {CARDS} x {PER_CARD} idle vNPUs; the list of NPUs is in it"
    yield Figure("owners: CPU of a whole look", "ms", values["both"], WHOLE, note, n=count * LOOKS)
    yield Figure("  the daemon's", "ms", values["daemon"], n=count * LOOKS)
    yield Figure("  the broker's", "ms", values["broker"], n=count * LOOKS)
    for name, pid, limit in ((name, pid, {"daemon": 90, "broker": 16}[name]) for name, pid in _pids(owned).items()):
        used = memory(pid)
        note = f"peak RSS {used['peak']:.1f} MB, {used['private']:.1f} MB private"
        yield Figure(f"owners: {name}'s PSS", "MB", [used["pss"]], Bar("median", limit), note)


def _spent_by_look(owned: OwnedNode, count: int, change: Callable[[int], None] = lambda _look: None) -> dict[str, list[float]]:
    """Return what looks cost each process and both, a value of some looks each; `change` is called before each look, with its number."""
    values: dict[str, list[float]] = {name: [] for name in (*_pids(owned), "both")}
    for turn in range(count):
        before, asked = _spent(owned), len(owned.api.asked("pods"))
        for step in range(LOOKS):
            change(turn * LOOKS + step)
            time.sleep(INTERVAL)
        after, looks = _spent(owned), len(owned.api.asked("pods")) - asked
        if not looks:
            raise Broken("nobody asked for the Pods")
        taken = {name: (after[name] - before[name]) / looks for name in before}
        for name, value in (*taken.items(), ("both", sum(taken.values()))):
            values[name].append(value)
    return values


def _confirming(owned: OwnedNode, count: int) -> Figures:
    """Looks where nobody has any of the vNPUs."""
    wait_for(lambda: _verdicts(owned) == {"confirming"}, deadline=60, what="all vNPUs to be confirmed")
    values = _spent_by_look(owned, count)
    if _verdicts(owned) != {"confirming"}:
        raise Broken("not all vNPUs were confirming all the time")
    note = f"{PODS} Pods that all fail, {2 * PODS} bundles, {CARDS} x {PER_CARD} vNPUs; each is searched for, and changes on the bus"
    yield Figure("owners: CPU of a look, all confirming", "ms", values["both"], ALL_CONFIRMING, note, n=count * LOOKS)
    yield Figure("  the daemon's", "ms", values["daemon"], n=count * LOOKS)
    yield Figure("  the broker's", "ms", values["broker"], n=count * LOOKS)


def _verdicts(owned: OwnedNode) -> set[str]:
    (vnpus,) = owned.daemon.call("ListVnpus")
    return {str(row[3]) for row in vnpus}  # type: ignore[attr-defined]


def _without_idle(owned: OwnedNode, count: int) -> Figures:
    """Looks where every vNPU is in use: each fifth asks for all but the Pods."""
    with owned.node.simulator.edit() as state:
        state.vnpus = [replace(vnpu, used=1) for vnpu in state.vnpus]
    owned.daemon.call("Rescan", "t", "0")
    wait_for(lambda: _listed(owned) is False, deadline=60, what="a look without Pods")
    asked = len(owned.api.asked("pods"))
    light: list[float] = []
    seldom: list[float] = []
    for _ in range(count * LOOKS):
        before, nodes = _spent(owned), len(owned.api.asked("node"))
        time.sleep(INTERVAL)
        after = _spent(owned)
        (light if len(owned.api.asked("node")) == nodes else seldom).append(sum(after.values()) - sum(before.values()))
    if len(owned.api.asked("pods")) != asked:
        raise Broken("the Pods were asked for though no vNPU is idle")
    yield Figure("owners: CPU of a look, no idle vNPU", "ms", light, LIGHT, "the list of NPUs, once a minute in any case, apart (npus)")
    if seldom:
        note = "each fifth look, which asks for all but the Pods, and for the list of NPUs"
        yield Figure("owners: CPU of a fifth one, no idle", "ms", seldom, None, note)


def _listed(owned: OwnedNode) -> bool:
    said = _ownership(owned)
    return bool(said["asked"]) if said else True


def _ownership(owned: OwnedNode) -> dict[str, Any]:
    """Return what the daemon describes of who owns what; empty: nothing yet."""
    said = owned.daemon.describe()["ownership"]
    return said if isinstance(said, dict) else {}
