"""A desk that takes snapshots of the recorded node, minute by minute: by default every part is good, and of now."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from devward.cluster.answers import Answer, Failure
from devward.cluster.checkpoint import CheckpointReading, parse_checkpoint
from devward.cluster.claims import Claim, HostEvidence, Moment, Standing
from devward.cluster.evidence import Doubt
from devward.cluster.kubelet_facts import Kubelet, KubeletScan
from devward.cluster.managers import Drivers
from devward.cluster.parts import HostFacts, Part, Parts, SnapshotBounds
from devward.cluster.podlist import parse_pod_list
from devward.cluster.recollection import Recollection
from devward.cluster.snapshot import take_snapshot
from devward.cluster.views import Snapshot
from devward.model import Identity
from devward.npu.inventory import Picture
from devward.npu.views import UNKNOWN_NUMBER, CardHealth, CardView, Management, Protection
from devward.reasons import Reason
from sim.pod_desk import BEGIN_USEC, HostSays
from sim.recorded_cluster import BOOT_ID, DIES, MACHINE_ID, NODE, STATES, body, node_of, pods_of, whole_name

FACTS = HostFacts(NODE, BOOT_ID, frozenset({MACHINE_ID}))
KUBELET = Kubelet(812, 4711, "kubelet", "/var/lib/kubelet", "/var/lib/kubelet/device-plugins", "/var/lib/kubelet", "/var/lib/kubelet")
BROKEN = Failure("made-up", "It was made up.")
NAMES = {uid: pod.name for state in STATES for pod in parse_pod_list(pods_of(state), NODE).pods for uid in pod.uids}

Change = Callable[[Parts], Parts]


def card_view(phy: int, die: str, **more: Any) -> CardView:
    """Return a card as the picture of NPUs has it when all is well."""
    view = CardView(
        name=f"p{phy:03d}",
        phy_id=phy,
        logic_id=phy,
        card=phy,
        device=0,
        die_id=die,
        chip="Ascend 910B4",
        node=f"/dev/davinci{phy}",
        number=f"236:{phy}",
        identity=Identity.VALID,
        health=CardHealth.HEALTHY,
        managed=Management.UNKNOWN,
        protection=Protection.NOT_EVALUATED,
        claims=(),
        used_cores=0.0,
        claimed_cores=float(UNKNOWN_NUMBER),
        total_cores=20.0,
        reason=Reason.OK,
        text="",
    )
    return replace(view, **more)


PICTURE = Picture(cards=tuple(card_view(phy, die) for phy, die in enumerate(DIES)))


def checkpoint_of(state: str) -> CheckpointReading:
    """Return what the checkpoint of a state says, by the real parser."""
    name = f"{whole_name(state)}.checkpoint.json"
    checkpoint = parse_checkpoint(body(name))
    return CheckpointReading(checkpoint, tuple(Doubt(defect, name) for defect in checkpoint.defects))


class SnapshotDesk:
    """Takes one snapshot after the other."""

    def __init__(self, facts: HostFacts = FACTS, bounds: SnapshotBounds | None = None) -> None:
        self.facts = facts
        self.bounds = bounds or SnapshotBounds()
        self.known = Recollection()
        self.now = Moment(10_000.0, BEGIN_USEC)
        self.looks = 0
        self.accepted = ""
        self.host: HostEvidence = HostSays()

    def parts(self, state: str, *, pods: str = "", checkpoint: str = "", node: str = "") -> Parts:
        """Return the parts of a recorded state; single files may be of another one. All of them are of now, and the Lease is renewed."""
        at = self.now.monotonic
        lease = body("lease-1.json").replace(b"00:58:26.628880Z", f"{self.looks // 60 % 24:02}:{self.looks % 60:02}:26.628880Z".encode())
        annotations = node_of(node or state).replace(b"Reported_2026.12.01 00:", b"Reported_2026.12.%02d 00:" % (self.looks % 28 + 1))

        def answer(data: bytes) -> Answer:
            return Answer(at - 1, at - 0.5, 200, data, verified=True)

        return Parts(
            node=answer(annotations),
            lease=answer(lease),
            pods=answer(pods_of(pods or state)),
            checkpoint=Part(at - 1, checkpoint_of(checkpoint or state)),
            kubelet=Part(at - 1, KubeletScan(KUBELET)),
            drivers=Part(at - 1, Drivers()),
            host=Part(at - 1, self.host),
            npus=Part(at - 1, PICTURE),
        )

    def look(self, state: str, change: Change = lambda parts: parts, *, after: float = 60.0, **files: str) -> Snapshot:
        """Take the next snapshot."""
        self.looks += 1
        self.now = Moment(self.now.monotonic + after, self.now.realtime_usec + int(after * 1_000_000))
        return self.take(change(self.parts(state, **files)))

    def take(self, parts: Parts) -> Snapshot:
        """Take a snapshot of these parts, now."""
        snapshot, self.known = take_snapshot(parts, self.facts, self.known, self.now, accepted=self.accepted, bounds=self.bounds)
        return snapshot

    def settle(self, state: str = "00") -> Snapshot:
        """Look until kubelet, Lease and handshakes are proven; return the last snapshot."""
        for _ in range(6):
            self.look(state)
        return self.look(state)


def shown(claims: tuple[Claim, ...]) -> str:
    """Return claims as the tables of the recordings have them: by the Pod's name, with its mark."""
    marks = {Standing.PROTECTED: "", Standing.CANDIDATE: "?", Standing.UNKNOWN: "!"}
    return " ".join(
        sorted(NAMES[claim.uid] + ("(gone)" if claim.reason.value.startswith("only-") else "") + marks[claim.standing] for claim in claims)
    )


def codes(snapshot: Snapshot) -> list[str]:
    """Return the reasons of what is unknown."""
    return [unknown.reason for unknown in snapshot.unknowns]
