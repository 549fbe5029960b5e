"""Boards with two dies, as with the 910C: each die is an NPU of its own, with its own ids, claims and slots.

HAMi lists dies by their die ids, and gives them out by physical ids; the vendor's library has them as two devices of one card. What is
destroyed must be named by the board and the device on it, and what protects it is by the die.
"""

import asyncio
import functools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devward.cluster import gatherer
from devward.cluster.api import ApiSettings
from devward.cluster.checkpoint import CheckpointReading, parse_checkpoint
from devward.cluster.claims import KnownCard, Moment, Standing
from devward.cluster.gatherer import Gatherer, Readers
from devward.cluster.managers import Drivers
from devward.cluster.owners import Seen
from devward.cluster.ownership import Ownership
from devward.cluster.parts import HostFacts
from devward.cluster.recollection import Recollection
from devward.cluster.snapshot import take_snapshot
from devward.cluster.statement import AskedVnpu, Statement
from devward.cluster.transport import Timeouts
from devward.config import ClusterConfig, ReclaimConfig
from devward.npu.facts import Chip, Expected
from devward.npu.inventory import assess
from devward.npu.memory import NO_MEMORY
from devward.npu.numbering import window
from devward.reclaim.aftermath import Aftermath
from devward.reclaim.reasons import Verdict
from devward.reclaim.warden import LastWord
from devward.worker import Worker
from sim.api_pki import Authority, write_identity, write_kubeconfig
from sim.api_server import ApiServer
from sim.held_time import PATIENCE, HeldTimeLoop, outcome, run_held
from sim.kubelet_checkpoint import Allocated, document, encoded, hami_response
from sim.npu_host import around, chip, die, inventory, vnpu
from sim.pod_desk import UID, Desk, annotated, container, given, listing, pod, standings, waiting
from sim.reclaim_warden import Scene, World
from sim.recorded_cluster import BOOT_ID, MACHINE_ID, NODE, RESOURCE, WORD, node_of
from sim.statements import clean

WORD_910C = "Ascend910C"
RESOURCE_910C = f"huawei.com/{WORD_910C}"
PROTECTED, UNKNOWN, CANDIDATE, NONE = Standing
#: On three boards.
DIES = 6
#: Until the kubelet is proven, and the wait after that is over, with the look of the cycle that destroys.
LOOKS = 10


def of_die(phy: int, *vdevs: int, **fields: Any) -> Chip:
    """Return one die: two follow each other on a board."""
    name = {"chip_name": "Ascend910", "npu_name": "Ascend910_9362"}
    return chip(phy, *vdevs, card=phy // 2, device=phy % 2, **name, **fields)


# --- claims ----------------------------------------------------------------------------------------------------------------
CARDS = tuple(KnownCard(phy, die(phy)) for phy in range(DIES))


def desk() -> Desk:
    return Desk(CARDS, {WORD_910C: frozenset(one.die for one in CARDS)})


def pod_910c(*dies: str, **more: Any) -> dict[str, Any]:
    """Return a Pod that asks for dies of a 910C; HAMi gave it these."""
    annotations = {key.replace(WORD, WORD_910C): value.replace(WORD, WORD_910C) for key, value in annotated(*dies).items()}
    wanted = {**container(), "resources": {"limits": {RESOURCE_910C: "1"}}}
    return pod(annotations=annotations if dies else None, containers=[wanted], **more)


def test_a_claim_is_of_the_die_that_is_named_and_not_of_its_board() -> None:
    allocated = given(1, resource=RESOURCE_910C)
    assert standings(desk().look(pod_910c(die(1)), given=[allocated])) == (NONE, PROTECTED, *(NONE,) * 4)
    assert standings(desk().look(pod_910c(), given=[allocated])) == (NONE, PROTECTED, *(NONE,) * 4)
    assert standings(desk().look(pod_910c(die(1)))) == (NONE, PROTECTED, *(NONE,) * 4)


def test_where_answer_and_annotation_name_different_dies_both_are_claimed() -> None:
    claims = desk().look(pod_910c(die(0)), given=[given(1, resource=RESOURCE_910C)])
    assert standings(claims) == (PROTECTED, PROTECTED, *(NONE,) * 4)


def test_a_whole_board_claims_both_of_its_dies() -> None:
    # In super Pods HAMi makes a request for one into one for two.
    claims = desk().look(pod_910c(die(2), die(3)), given=[given(2, 3, resource=RESOURCE_910C)])
    assert standings(claims) == (NONE, NONE, PROTECTED, PROTECTED, NONE, NONE)


def test_what_nothing_names_may_be_any_die_of_any_board() -> None:
    assert standings(desk().look(pod_910c(), given=[given(resource=RESOURCE_910C)])) == (PROTECTED,) * DIES


def test_a_pod_that_cannot_start_is_a_candidate_on_its_own_die_alone() -> None:
    failing = pod_910c(die(1), states={"main": waiting("RunContainerError")}, phase="Pending")
    assert standings(desk().look(failing, given=[given(1, resource=RESOURCE_910C)])) == (NONE, CANDIDATE, *(NONE,) * 4)


def test_a_die_whose_id_cannot_be_read_leaves_a_claim_on_it_unknown_for_the_node() -> None:
    known = Desk(CARDS[:1], {WORD_910C: frozenset({die(0), die(1)})})
    assert standings(known.look(pod_910c(die(1)), given=[given(1, resource=RESOURCE_910C)])) == (UNKNOWN,)


# --- from what is gathered to what is destroyed ----------------------------------------------------------------------------
class Boards:
    """The NPUs of a host with such boards, as the watcher of NPUs has them."""

    def __init__(self, loop: HeldTimeLoop, *dies: Chip) -> None:
        self._loop = loop
        self._memory = NO_MEMORY
        self.dies = dies
        self._assess()

    def _assess(self) -> None:
        said = inventory(*self.dies, boot_id=BOOT_ID)
        self.picture, self._memory = assess(said, around(said), self._memory, 1_796_083_200_000_000)

    async def fresh(self) -> None:
        self._loop.advance(0.5)
        self._assess()

    async def witness(self, vnpus: tuple[AskedVnpu, ...], runtime: str | None) -> Statement:
        return clean(*vnpus)

    def remove(self, vdev: int) -> None:
        """Let a vNPU be gone."""
        kept = [tuple(one for one in dies.vnpus or () if one.vdev != vdev) for dies in self.dies]
        self.dies = tuple(replace(dies, vnpus=vnpus) for dies, vnpus in zip(self.dies, kept, strict=True))


class Destroying(World):
    """The rest of the daemon: what is destroyed goes from the boards."""

    boards: Boards

    async def destroy(self, expected: Expected, runtime: str | None, request_id: str, last_word: LastWord) -> Aftermath:
        came = await super().destroy(expected, runtime, request_id, last_word)
        if came.result.value == "destroyed":
            self.boards.remove(expected.vdev)
        return came


class Node:
    """Three boards with two dies each, looked at by the real gatherer and judged by the real reconciler."""

    def __init__(self, loop: HeldTimeLoop, directory: Path, server: ApiServer, kubeconfig: str) -> None:
        self._loop = loop
        self._server = server
        self.entries: list[Allocated] = []
        self._beats = 0
        self._known = Recollection()
        self.world = Destroying()
        self.world.during["switch"] = self._pass
        self.scene = Scene(loop, directory, self.world, ReclaimConfig(grace=120, confirmations=2))
        self.worker = Worker("cluster")
        readers = Readers(self._checkpoint, lambda _: Drivers(), lambda _: HostFacts(NODE, BOOT_ID, frozenset({MACHINE_ID})))
        self.world.boards = self.boards = Boards(loop, *(of_die(phy) for phy in range(DIES)))
        self.gatherer = Gatherer(
            ClusterConfig(kubeconfig=kubeconfig, node_name=NODE),
            self.boards,
            worker=self.worker,
            clock=self.scene.clock,
            ask_about=self.scene.reconciler.ask_about,
            readers=readers,
        )
        server.bodies["pods"] = listing()

    async def _pass(self) -> None:
        self._loop.advance(0.1)

    def _checkpoint(self, _: str) -> CheckpointReading:
        ids = [f"{die(phy)}-0" for phy in range(DIES)]
        return CheckpointReading(parse_checkpoint(encoded(document(self.entries, {RESOURCE_910C: ids}))))

    def run_pod(self, phy: int, **more: Any) -> None:
        """Let a Pod have a die: the plugin answered with its physical id, and the kubelet's own choice is another one."""
        self._server.bodies["pods"] = listing(pod_910c(die(phy), **more))
        chosen = [f"{die(phy ^ 1)}-0"]
        self.entries = [Allocated(UID, chosen, hami_response([phy], "vir05_1c_16g"), resource=RESOURCE_910C)]

    def _beat(self) -> None:
        self._beats += 1
        node = json.loads(node_of("00"))
        annotations = node["metadata"]["annotations"]
        del annotations[f"hami.io/node-register-{WORD}"], annotations[f"hami.io/node-handshake-{WORD}"]
        annotations[f"hami.io/node-register-{WORD_910C}"] = json.dumps([{"id": die(phy), "index": phy} for phy in range(DIES)])
        annotations[f"hami.io/node-handshake-{WORD_910C}"] = f"Reported_2026.12.01 00:{self._beats:02}:00"
        self._server.bodies["node"] = json.dumps(node).replace(RESOURCE, RESOURCE_910C).encode()

    async def _see(self) -> Seen:
        self._beat()
        gathered = await self.gatherer.gather(pods=True)
        now = Moment(self._loop.time(), self.scene.clock.realtime_usec())
        snapshot, self._known = take_snapshot(gathered.parts, gathered.facts, self._known, now)
        return Seen(gathered, snapshot, is_asked=True, blocked=Ownership(snapshot, is_asked=True).blocked)

    async def look(self, times: int = 1) -> None:
        """Take so many looks in, a minute apart."""
        for _ in range(times):
            self._loop.advance(60.0)
            await outcome(asyncio.ensure_future(self._cycle()))

    async def _cycle(self) -> None:
        await self.scene.reconciler.take(await self._see(), self._see)


AUTHORITY = Authority()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    # On a slow machine no connection is given up, after which nothing would be known for some looks.
    monkeypatch.setattr(gatherer, "ApiSettings", functools.partial(ApiSettings, timeouts=Timeouts(PATIENCE, PATIENCE)))
    with ApiServer(authority=AUTHORITY, server=AUTHORITY.server()) as stand_in:
        stand_in.renews_lease = True
        yield stand_in


def play(server: ApiServer, directory: Path, story: Any) -> None:
    """Play a story on a node."""
    link = str(write_identity(directory, AUTHORITY.client(f"system:node:{NODE}")))
    user = {"client-certificate": link, "client-key": link}
    kubeconfig = str(write_kubeconfig(directory / "kubelet.conf", server.url, AUTHORITY.certificate, user))

    async def main(loop: HeldTimeLoop) -> None:
        node = Node(loop, directory, server, kubeconfig)
        try:
            await story(node)
        finally:
            node.gatherer.close()
            node.worker.close()
            node.scene.close()

    run_held(main)


def test_an_orphan_is_reclaimed_by_board_and_device_and_what_is_claimed_or_in_doubt_on_other_dies_stays(
    server: ApiServer, tmp_path: Path
) -> None:
    async def story(node: Node) -> None:
        own, claimed, orphan, first, second = window(1)[0], window(2)[0], window(3)[1], window(4)[0], window(5)[0]
        # Die 1 lists an id that only die 0 can have, and dies 4 and 5 give one die id: nothing of them can be told.
        strange = replace(vnpu(own), vdev=window(0)[2])
        dies = of_die(0), replace(of_die(1), vnpus=(vnpu(own), strange)), of_die(2, claimed), of_die(3, orphan)
        node.boards.dies = (*dies, of_die(4, first), of_die(5, second, die=die(4)))
        node.run_pod(2)
        await node.look(LOOKS)
        ((expected, _),) = node.world.asked
        assert (expected.card, expected.device, expected.phy, expected.die) == (1, 1, 3, die(3))
        assert (expected.vdev, expected.vfid, expected.template) == (orphan, 2, "vir05_1c_16g")
        (record,) = node.scene.records("vnpu-reclaim", DEVWARD_OUTCOME="success")
        evidence = json.loads(record["DEVWARD_EVIDENCE"][0])
        assert evidence["recreate"] == f"npu-smi set -t create-vnpu -i 1 -c 1 -f vir05_1c_16g -v {orphan}"
        assert (record["DEVWARD_CARD"], evidence["card"]["die"]) == (["p003"], die(3))
        verdicts = {one.vdev: one.verdict for one in node.scene.reconciler.standing.judgements.values()}
        doubtful = dict.fromkeys((own, strange.vdev, first, second), Verdict.UNKNOWN)
        assert verdicts == {claimed: Verdict.PROTECTED, **doubtful}

    play(server, tmp_path, story)


def test_what_a_failing_pod_left_on_its_die_is_reclaimed_and_what_is_used_on_the_other_is_not(server: ApiServer, tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        used, left = window(0)[0], window(1)[0]
        node.boards.dies = (replace(of_die(0), vnpus=(vnpu(used, in_use=True),)), of_die(1, left), *map(of_die, range(2, DIES)))
        node.run_pod(1, states={"main": waiting("RunContainerError")}, phase="Pending")
        await node.look(LOOKS)
        assert node.scene.destroyed == [left]
        assert node.scene.verdict(used) == "in-use"

    play(server, tmp_path, story)
