"""The recorded states in their order, through the whole join: who claims which card, and the same with one file of the moment before."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from devward.cluster.bundles import BundleScan
from devward.cluster.cgroups import CgroupScan
from devward.cluster.claims import ClaimReason, Standing
from devward.cluster.descriptors import DescriptorScan
from devward.cluster.evidence import Finding, SourceState
from devward.cluster.kubelet_facts import KubeletScan
from devward.cluster.local import LocalEvidence
from devward.cluster.node import NodeIdentity
from devward.cluster.parts import Parts, SnapshotBounds
from devward.cluster.podlist import parse_pod_list
from devward.cluster.uda import UdaScan
from devward.cluster.views import Snapshot
from sim.bundle_host import BundleHost
from sim.recorded_cluster import CLAIMS, DATA, NODE, pods_of
from sim.snapshot_desk import KUBELET, NAMES, SnapshotDesk, codes, shown

NUMBERS: Final = list(CLAIMS)
#: What a file that lags behind by one state changes in the table: by file and state, for each card what it shows instead.
LATE: Final[dict[tuple[str, str], dict[int, dict[str, str]]]] = {
    # The Pods are in the checkpoint and not yet in the list: that protects as well.
    ("pods", "01"): {0: {name: f"{name.rstrip('?')}(gone)" for name in CLAIMS["01"][0].split()}},
    ("pods", "02"): {0: {"todelete(gone)": "todelete"}},
    ("pods", "04"): {1: {"noannot": "noannot(gone)"}},
    ("pods", "05"): {1: {"noannot(gone)": "noannot"}},
    # Only its annotation, which is in the list, names the second card too; which is protected by another Pod.
    ("pods", "06"): {0: {"with-init": "with-init(gone)"}, 1: {"with-init": ""}},
    ("pods", "08"): {0: {"static-npu-lab": "static-npu-lab(gone)"}},
    ("pods", "09"): {0: {"crashloop(gone)": "crashloop?", "whole": "whole(gone)"}, 1: {"whole": ""}},
    # They have not ended yet by the list of before.
    ("pods", "10"): {0: {"": "runerror? with-init"}, 1: {"": "with-init"}},
    # A Pod without annotations may have any card until the plugin's answer is there.
    ("checkpoint", "04"): {0: {"": "noannot"}},
    ("checkpoint", "08"): {1: {"": "static-npu-lab"}},
    # Only the plugin's answer names the first card; which is protected by others.
    ("checkpoint", "09"): {0: {"whole": ""}},
}


def in_order(text: str) -> str:
    return " ".join(sorted(text.split()))


def claims_of(snapshot: Snapshot) -> tuple[str, ...]:
    return tuple(shown(card.claims) for card in snapshot.cards)


def standing_of(names: str) -> Standing:
    if any("?" not in name for name in names.split()):
        return Standing.PROTECTED
    return Standing.CANDIDATE if names else Standing.NONE


def settled() -> SnapshotDesk:
    desk = SnapshotDesk()
    desk.settle()
    return desk


def test_the_states_in_their_order_have_the_claims_of_the_table() -> None:
    desk = settled()
    for number, expected in CLAIMS.items():
        snapshot = desk.look(number, after=6)
        assert snapshot.unknowns == (), number
        assert claims_of(snapshot) == tuple(map(in_order, expected)), number
        assert tuple(card.protection for card in snapshot.cards) == tuple(map(standing_of, expected)), number
        assert all(card.is_managed for card in snapshot.cards)
        assert snapshot.identity is NodeIdentity.SAME
        # HAMi's lock is held in one of them, and only puts off.
        assert snapshot.is_deferred is (number == "04")


def test_with_the_gates_of_that_minute_all_of_it_is_unknown_and_the_claims_are_the_same() -> None:
    desk = SnapshotDesk()
    for number, expected in CLAIMS.items():
        snapshot = desk.look(number, after=6)
        assert "kubelet-young" in codes(snapshot)
        assert {card.protection for card in snapshot.cards} == {Standing.UNKNOWN}
        assert claims_of(snapshot) == tuple(map(in_order, expected)), number


@pytest.mark.parametrize("late", ["node", "lease", "pods", "checkpoint"])
@pytest.mark.parametrize("number", NUMBERS[1:])
def test_a_file_of_the_moment_before_lowers_no_protection(number: str, late: str) -> None:
    desk = settled()
    for earlier in NUMBERS[: int(number)]:
        desk.look(earlier, after=6)
    before = NUMBERS[int(number) - 1]
    if late == "lease":
        lease = desk.parts(number).lease.body
        snapshot = desk.look(number, lambda parts: _with_lease(parts, lease), after=6)
    else:
        snapshot = desk.look(number, after=6, **{late: before})
    expected = []
    for card, names in enumerate(CLAIMS[number]):
        change = LATE.get((late, number), {}).get(card, {})
        expected.append(in_order(" ".join([*(change.get(name, name) for name in names.split()), change.get("", "")])))
    assert snapshot.unknowns == ()
    assert claims_of(snapshot) == tuple(expected)
    assert tuple(card.protection for card in snapshot.cards) == tuple(map(standing_of, CLAIMS[number]))
    # And the moment after has the table's claims again.
    assert claims_of(desk.look(number, after=6)) == tuple(map(in_order, CLAIMS[number]))


def _with_lease(parts: Parts, lease: bytes) -> Parts:
    return replace(parts, lease=replace(parts.lease, body=lease))


def test_pods_that_are_gone_for_long_leave_the_table() -> None:
    desk = SnapshotDesk(bounds=SnapshotBounds(lease_looks=400))
    desk.settle()
    for number, expected in CLAIMS.items():
        for _ in range(4):
            snapshot = desk.look(number, after=301)
        without = [in_order(" ".join(name for name in card.split() if "(gone)" not in name)) for card in expected]
        assert list(claims_of(snapshot)) == without, number


@pytest.fixture
def bundles(tmp_path: Path) -> BundleScan:
    """The containers that lived in state 11, read as on the host."""
    host = BundleHost(tmp_path)
    for path in sorted((DATA / "11-bundles").glob("*.json")):
        host.task(path.stem, json.loads(path.read_bytes()))
    return host.scanner().scan()


def test_the_host_of_the_last_state_agrees_with_its_table(bundles: BundleScan) -> None:
    desk = settled()
    for number in NUMBERS:
        desk.look(number, after=6)
    desk.host = LocalEvidence(DescriptorScan(frozenset()), bundles, CgroupScan(SourceState.READ), UdaScan(SourceState.NOT_PRESENT))
    snapshot = desk.look("11", after=6)
    assert snapshot.unknowns == ()
    assert claims_of(snapshot) == tuple(map(in_order, CLAIMS["11"]))
    # Everybody who is said to run lives there by its bundle, the static Pod by its hash.
    for claim in snapshot.cards[0].claims:
        if claim.reason is ClaimReason.RUNNING:
            uids = next(pod.uids for pod in parse_pod_list(pods_of("11"), NODE).pods if pod.uid == claim.uid)
            assert Finding.HELD in {desk.host.pod(uid, containers_only=True) for uid in uids}
    # Those that ended, and those that are gone, do not.
    gone = [uid for uid, name in NAMES.items() if name in ("done", "failed", "todelete", "noannot", "crashloop", "runerror", "with-init")]
    assert gone
    assert {desk.host.pod(uid, containers_only=False) for uid in gone} == {Finding.CLEAN}


def test_a_pod_that_lives_by_its_bundle_alone_protects_for_as_long_as_it_does(bundles: BundleScan) -> None:
    """As if the API server had been restored to a state in which it knew no Pod, and the checkpoint been lost."""
    desk = settled()
    desk.host = LocalEvidence(DescriptorScan(frozenset()), bundles, CgroupScan(SourceState.READ), UdaScan(SourceState.NOT_PRESENT))
    desk.look("11", after=6)
    for _ in range(30):
        snapshot = desk.look("00")
    assert snapshot.unknowns == ()
    assert claims_of(snapshot) == ("running(gone) static-npu-lab(gone) whole(gone)", "whole(gone)")


def test_the_checkpoint_of_a_restart_is_that_of_before_and_resets_all_the_same() -> None:
    desk = settled()
    desk.look("09", after=6)

    def restarted(parts: Parts) -> Parts:
        return replace(parts, kubelet=replace(parts.kubelet, value=KubeletScan(replace(KUBELET, pid=913, started=9000))))

    snapshot = desk.look("10", restarted, after=6)
    assert codes(snapshot) == ["kubelet-young"]
    assert ("node", "kubelet-restarted") in {(reset.scope.value, reset.reason) for reset in snapshot.resets}
    assert {card.protection for card in snapshot.cards} == {Standing.UNKNOWN}
