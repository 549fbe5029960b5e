"""devwardd as a process on a host with NPUs, a kubelet and an API server: who claims which NPU, and why that is not known."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.daemon_process import wait_for
from sim.dcmi_broker import BrokerHost
from sim.dcmi_simulator import DcmiSimulator
from sim.npu_node import NpuNode
from sim.owned_node import SCALED, OwnedNode
from sim.recorded_cluster import CLAIMS, STATES
from sim.snapshot_desk import NAMES

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes")]


@pytest.fixture
def owned(tmp_path: Path, library: Path) -> Iterator[OwnedNode]:
    """A host with two cards and an idle vNPU, whose looks come once a second."""
    with BrokerHost() as host, DcmiSimulator(host.directory / "node", library) as simulator:
        simulator.install(host.library)
        node = NpuNode(tmp_path, host, simulator, program=SCALED)
        with OwnedNode(node) as made, node.daemon as daemon:
            daemon.start()
            node.start_broker()
            first, _ = made.chips()
            node.create(first, "vir05_1c_8g")
            yield made
            assert not daemon.process_ended(), daemon.output.read_text()


def ownership(owned: OwnedNode) -> dict[str, Any]:
    document: Any = owned.daemon.describe()
    return document["ownership"] or {}


def wait_known(owned: OwnedNode, state: str) -> None:
    """Wait until nothing of the node is unknown, while HAMi goes on reporting."""

    def known() -> bool:
        owned.beat(state)
        said = ownership(owned)
        return bool(said) and not said["blocked"] and all(card["managed"] == "managed" for card in said["cards"])

    wait_for(known, what="who owns what")


def claims(owned: OwnedNode) -> tuple[str, ...]:
    """Return the claims on each card as data/README.md has them."""
    marks = {"protected": "", "candidate": "?", "unknown": "!"}

    def shown(claim: dict[str, Any]) -> str:
        return NAMES[claim["uid"]] + ("(gone)" if claim["reason"].startswith("only-") else "") + marks[claim["standing"]]

    return tuple(" ".join(sorted(map(shown, card["claims"]))) for card in ownership(owned)["cards"])


def test_the_recorded_sequence_gives_its_claims_through_the_daemon(owned: OwnedNode) -> None:
    for state in STATES:
        number = state[:2]
        owned.state(state)
        wanted = tuple(" ".join(sorted(card.split())) for card in CLAIMS[number])

        def is_so(state: str = state, wanted: tuple[str, ...] = wanted) -> bool:
            owned.beat(state)
            return not ownership(owned)["blocked"] and claims(owned) == wanted

        wait_known(owned, state)
        wait_for(is_so, what=f"the claims of {state}, which are {claims(owned)}")
    assert owned.daemon.get("", "Manager", "BlockedReasons") == []
    assert {request.method for request in owned.api.requests} == {"GET"}
