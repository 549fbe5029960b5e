"""devwardd as a process on a host with NPUs, a kubelet and an API server: who claims which NPU, and why that is not known."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bus_harness import NOBODY

from sim.api_faults import EXPECTED
from sim.api_pki import DAY
from sim.daemon_process import BUS_NAME, ROOT_PATH, wait_for
from sim.dcmi_broker import CRASH, GO, WAIT, BrokerHost
from sim.dcmi_simulator import DcmiSimulator
from sim.npu_node import NpuNode
from sim.owned_node import REMEMBERING, SCALED, OwnedNode
from sim.recorded_cluster import CLAIMS, DIES, NODE, STATES
from sim.snapshot_desk import NAMES

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes")]

STATE = "01"
RUNNING = next(uid for uid, name in NAMES.items() if name == "running")
ODD_POD = "99999999-8888-4777-8666-555555555555"
#: What only a Pod's name shows: `running` is a reason, too.
POD_NAMES = ("runerror", "crashloop", "todelete", "default/")
#: Seconds after which a broker ends whose look at the host hangs.
HANG_LIMIT = 2
VNPU_SPEC = "ascend.com-vnpu.json"
DEVICE = "ascend.com/vnpu=100"
#: What every process sees of a kubelet: its socket, on a file system that only this namespace has.
KUBELET_SOCKET = """mount -t tmpfs devward-test /var/lib
mkdir -p /var/lib/kubelet/device-plugins
touch /var/lib/kubelet/device-plugins/kubelet.sock"""


@contextlib.contextmanager
def owned_node(directory: Path, library: Path) -> Iterator[OwnedNode]:
    """A host with two cards and an idle vNPU, whose looks come once a second."""
    with BrokerHost() as host, DcmiSimulator(host.directory / "node", library) as simulator:
        simulator.install(host.library)
        node = NpuNode(directory, host, simulator, program=SCALED)
        with OwnedNode(node) as made, node.daemon as daemon:
            daemon.start()
            start_broker(made)
            first, _ = made.chips()
            node.create(first, "vir05_1c_8g")
            yield made
            assert not daemon.process_ended(), daemon.output.read_text()


@pytest.fixture(name="own")
def _own(tmp_path: Path, library: Path) -> Iterator[OwnedNode]:
    """A host that the test may leave in whatever state."""
    with owned_node(tmp_path, library) as made:
        yield made


@pytest.fixture(name="shared", scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[OwnedNode]:
    with owned_node(tmp_path_factory.mktemp("owned"), library) as made:
        yield made


@pytest.fixture(name="owned")
def _owned(shared: OwnedNode) -> Iterator[OwnedNode]:
    """A host whose owners are known before the test, and must be known by themselves after what the test breaks is mended."""
    shared.state(STATE)
    wait_claims(shared, STATE)
    yield shared
    shared.state(STATE)
    wait_claims(shared, STATE)
    assert {request.method for request in shared.api.requests} == {"GET"}


def start_broker(owned: OwnedNode) -> "subprocess.Popen[bytes]":
    """Start a broker that ends when a look at the host hangs."""
    return owned.node.host.start(owned.node.simulator.environment, hang_limit=HANG_LIMIT)


def ownership(owned: OwnedNode) -> dict[str, Any]:
    document: Any = owned.daemon.describe()
    return document["ownership"] or {}


def blocked(owned: OwnedNode) -> list[str]:
    reasons: Any = owned.daemon.get("", "Manager", "BlockedReasons")
    return list(reasons)


def rescan(owned: OwnedNode) -> None:
    """Have everything looked at now."""
    owned.daemon.call("Rescan", "t", "0")


def wait_blocked(owned: OwnedNode, *reasons: str) -> None:
    """Wait until these are among the reasons for which nothing of the node is known."""
    rescan(owned)
    wait_for(lambda: set(reasons) <= set(blocked(owned)), what=f"{reasons} among {blocked(owned)}")


def wait_known(owned: OwnedNode, state: str) -> None:
    """Wait until nothing of the node is unknown, while HAMi goes on reporting."""

    def known() -> bool:
        owned.beat(state)
        said = ownership(owned)
        return bool(said) and not said["blocked"] and all(card["managed"] == "managed" for card in said["cards"])

    wait_for(known, what=f"who owns what; {blocked(owned)}")


def claims(owned: OwnedNode) -> tuple[str, ...]:
    """Return the claims on each card as data/README.md has them."""
    marks = {"protected": "", "candidate": "?", "unknown": "!"}

    def shown(claim: dict[str, Any]) -> str:
        return NAMES.get(claim["uid"], "odd") + ("(gone)" if claim["reason"].startswith("only-") else "") + marks[claim["standing"]]

    return tuple(" ".join(sorted(map(shown, card["claims"]))) for card in ownership(owned)["cards"])


def wait_claims(owned: OwnedNode, state: str, wanted: tuple[str, ...] | None = None) -> None:
    """Wait until the claims on the cards are known and as they should be in a state."""
    wanted = tuple(" ".join(sorted(card.split())) for card in wanted or CLAIMS[state[:2]])

    def is_so() -> bool:
        owned.beat(state)
        return not ownership(owned)["blocked"] and claims(owned) == wanted

    wait_known(owned, state)
    wait_for(is_so, what=f"the claims of {state}, which are {claims(owned)}")


def findings(owned: OwnedNode) -> set[str]:
    """Return the codes of what keeps the owners from being known, as the findings name them at their ends."""
    document: Any = owned.daemon.describe()
    return {finding["text"] for finding in document["findings"] if finding["code"] == "owners-unknown"}


# --- the API server ----------------------------------------------------------------------------------------------------
def test_the_recorded_sequence_gives_its_claims_through_the_daemon(own: OwnedNode) -> None:
    for state in STATES:
        own.state(state)
        wait_claims(own, state)
    assert own.daemon.get("", "Manager", "BlockedReasons") == []
    assert {request.method for request in own.api.requests} == {"GET"}


def test_every_fault_of_the_api_server_is_named_and_passes_by_itself(owned: OwnedNode) -> None:
    for number, (name, fault) in enumerate(EXPECTED.items()):
        kind = ("pods", "node", "lease")[number % 3]
        owned.api.always(kind, name)
        wait_blocked(owned, f"api-{fault}")
        protections = {card["protection"] for card in ownership(owned)["cards"]}
        assert protections == {"unknown"}, name
        owned.api.always(kind, None)
        # Nobody asks for a look here.
        wait_for(lambda: not blocked(owned), what=f"the end of {name}: {blocked(owned)}")


def test_a_finding_of_the_api_server_comes_to_the_journal_and_goes(owned: OwnedNode) -> None:
    owned.api.always("pods", "forbidden")
    wait_blocked(owned, "api-forbidden")
    wait_for(lambda: any("(api-forbidden)" in text for text in findings(owned)), what="the finding")
    owned.daemon.wait_event("finding", DEVWARD_REASON="owners-unknown")
    cleared = len(owned.daemon.events("finding-cleared", DEVWARD_REASON="owners-unknown"))
    owned.api.always("pods", None)
    wait_for(lambda: not findings(owned), what="the end of the finding")
    wait_for(lambda: len(owned.daemon.events("finding-cleared", DEVWARD_REASON="owners-unknown")) > cleared, what="its record")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("other-node", "other-node"), ("null-list", ""), ("paginated", "paginated"), ("versionless", "no-version")],
)
def test_a_list_that_is_no_evidence_is_none(owned: OwnedNode, fault: str, reason: str) -> None:
    owned.api.always("pods", fault)
    if reason:
        wait_blocked(owned, reason)
    else:
        # Go writes an empty list so: it says that there are no Pods, which frees nobody.
        wait_claims(owned, STATE, gone(STATE))
    owned.api.always("pods", None)


@pytest.mark.parametrize("fault", ["empty-list", "restored-backup"])
def test_pods_that_the_api_server_forgot_go_on_protecting(owned: OwnedNode, fault: str) -> None:
    owned.api.always("pods", fault)
    kept = "crashloop" if fault == "restored-backup" else ""
    wait_claims(owned, STATE, gone(STATE, but=kept))
    owned.api.always("pods", None)


def gone(state: str, but: str = "") -> tuple[str, ...]:
    """Return the claims of a state of whose Pods the API server knows none but one."""
    known = (
        " ".join(word if but and word.startswith(but) else f"{word.rstrip('?')}(gone)" for word in card.split()) for card in CLAIMS[state]
    )
    return tuple(known)


def test_a_certificate_that_expired_is_said_and_a_rotated_one_is_taken(owned: OwnedNode) -> None:
    authority = owned.api.authority
    before: Any = owned.daemon.get("", "Manager", "CertificateExpiresUSec")
    owned.identify(authority.client(f"system:node:{NODE}", begins=-2 * DAY, ends=-DAY), "kubelet-client-2.pem")
    wait_blocked(owned, "api-certificate-expired")
    wait_for(lambda: "cluster-certificate" in owned.node.codes(), what="the finding")
    assert int(str(owned.daemon.get("", "Manager", "CertificateExpiresUSec"))) < before
    owned.identify(authority.client(f"system:node:{NODE}", ends=30 * DAY), "kubelet-client-3.pem")
    wait_known(owned, STATE)
    assert "cluster-certificate" not in owned.node.codes()
    assert 0 < int(str(owned.daemon.get("", "Manager", "CertificateExpiresUSec"))) < before


# --- the Node ----------------------------------------------------------------------------------------------------------
def test_a_node_that_was_made_anew_blocks_until_it_is_accepted(owned: OwnedNode) -> None:
    made_anew = "11111111-2222-4333-8444-555555555555"
    old = json.loads(owned.api.bodies["node"])["metadata"]["uid"]
    with changed_node(owned, lambda node: node["metadata"].update(uid=made_anew)):
        wait_blocked(owned, "node-uid-changed")
        assert "node-uid-changed" in blocked(owned)
        owned.daemon.refused("AcceptNode", "st", "another", "0")
        owned.daemon.call("AcceptNode", "st", made_anew, "0")
        wait_for(lambda: not blocked(owned), what=f"the new Node; {blocked(owned)}")
    wait_blocked(owned, "node-uid-changed")
    owned.daemon.call("AcceptNode", "st", old, "0")


def test_a_second_manager_blocks_the_node(owned: OwnedNode) -> None:
    with changed_node(owned, lambda node: node["status"]["capacity"].update({"huawei.com/npu-core": "1"})):
        wait_blocked(owned, "foreign-manager")


def test_a_node_of_another_host_says_nothing(owned: OwnedNode) -> None:
    with changed_node(owned, lambda node: node["status"]["nodeInfo"].update(bootID="another", machineID="another")):
        wait_blocked(owned, "node-boot-differs", "node-machine-differs")


@contextlib.contextmanager
def changed_node(owned: OwnedNode, change: Callable[[Any], object]) -> Iterator[None]:
    """Let the API server have another Node for a while."""
    before = owned.api.bodies["node"]
    owned.change("node", change)
    yield
    owned.api.bodies["node"] = before


def test_a_pod_whose_annotation_cannot_be_read_is_named(owned: OwnedNode) -> None:
    def add(pods: Any) -> None:
        # One that nothing else names a card of: not the checkpoint, and no earlier look.
        pod = json.loads(json.dumps(next(pod for pod in pods["items"] if pod["metadata"]["uid"] == RUNNING)))
        pod["metadata"] |= {"uid": ODD_POD, "name": "odd"}
        pod["metadata"]["annotations"]["hami.io/Ascend910B4-devices-allocated"] = "nonsense:;"
        pods["items"].append(pod)

    owned.change("pods", add)
    wait_blocked(owned, f"annotation-malformed {ODD_POD}")
    assert {card["protection"] for card in ownership(owned)["cards"]} == {"unknown"}


# --- the kubelet -------------------------------------------------------------------------------------------------------
def test_a_kubelet_that_goes_or_has_a_second_beside_it_or_is_another(owned: OwnedNode) -> None:
    owned.kubelet(900)
    wait_blocked(owned, "several-kubelets")
    owned.end_kubelet(900)
    wait_for(lambda: "several-kubelets" not in blocked(owned), what="one kubelet")
    owned.end_kubelet()
    wait_blocked(owned, "kubelet-not-found")
    owned.kubelet(901)
    wait_blocked(owned, "kubelet-young")
    wait_known(owned, STATE)
    owned.end_kubelet(901)
    owned.kubelet()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "checkpoint-missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), "checkpoint-not-json"),
        (
            lambda path: path.write_bytes(path.read_bytes().replace(b"vir05", b"vir06").replace(b'"Checksum":', b'"Checksum":1')),
            "checkpoint-",
        ),
    ],
    ids=["absent", "cut off", "checksum"],
)
def test_a_checkpoint_that_is_no_evidence_blocks(owned: OwnedNode, damage: Callable[[Path], object], reason: str) -> None:
    damage(owned.checkpoint)
    rescan(owned)
    wait_for(lambda: any(word.startswith(reason) for word in blocked(owned)), what=reason)


def test_a_checkpoint_that_lags_behind_takes_nothing_from_a_pod(owned: OwnedNode) -> None:
    owned.state(STATE, checkpoint="00")
    rescan(owned)
    wait_claims(owned, STATE)


# --- the broker --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", [CRASH, WAIT])
def test_a_broker_that_dies_or_hangs_while_it_testifies(owned: OwnedNode, order: str) -> None:
    host = owned.node.host
    host.set_look(order)
    rescan(owned)
    assert host.processes[-1].wait(30) != 0
    wait_for(lambda: "host-unseen" in blocked(owned), what=f"host-unseen among {blocked(owned)}")
    host.set_look(GO)
    start_broker(owned)


# --- who may know ------------------------------------------------------------------------------------------------------
def test_who_may_not_inspect_is_told_of_no_pod_s_name(owned: OwnedNode) -> None:
    def ask(path: str, interface: str, member: str, *words: str) -> tuple[str, str]:
        command = [f"--address={owned.daemon.bus.address}", "call", BUS_NAME, f"{ROOT_PATH}{path}", f"{BUS_NAME}.{interface}", member]
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        answers = [subprocess.run([*who, "busctl", *command], capture_output=True, text=True, check=True).stdout for who in ([], user)]
        return answers[0], answers[1]

    def told(path: str, interface: str, member: str) -> tuple[str, str]:
        """The same, once the daemon learns within a second that it is root who asks: on a busy machine it may not."""
        answers: list[tuple[str, str]] = []

        def is_full() -> bool:
            answers.append(ask(path, interface, member))
            return "default/running" in answers[-1][0]

        wait_for(is_full, what=f"the Pod's name in {member}")
        return answers[-1]

    owned.api.always("node", "forbidden")
    wait_blocked(owned, "api-forbidden")
    for full, redacted in (ask("", "Manager", "Describe"), ask("", "Manager", "ListFindings")):
        assert "api-forbidden" in full
        assert not [name for name in POD_NAMES if name in redacted]
    owned.api.always("node", None)
    wait_claims(owned, STATE)
    for path, interface, member in (("", "Manager", "Describe"), ("/card/p000", "Card", "Explain"), ("/vnpu/v0100", "Vnpu", "Explain")):
        full, redacted = told(path, interface, member)
        assert RUNNING in full
        assert RUNNING in redacted
        assert not [name for name in POD_NAMES if name in redacted], redacted


# --- what follows from it ----------------------------------------------------------------------------------------------
def test_a_pinned_vnpu_is_offered_exactly_while_no_pod_has_to_do_with_its_npu(own: OwnedNode) -> None:
    daemon = own.daemon
    spec = daemon.cdi / VNPU_SPEC

    def offered() -> bool:
        return spec.exists()

    def check() -> tuple[bool, str]:
        answer: Any = daemon.call("CheckAllocation", "s", DEVICE)
        return bool(answer[0]), str(answer[1])

    def agree(*, allowed: bool, reason: str) -> None:
        wait_for(lambda: (offered(), check()) == (allowed, (allowed, reason)), what=f"{allowed}, {reason}: {offered()}, {check()}")

    daemon.inside(KUBELET_SOCKET)
    wait_known(own, "00")
    daemon.call("Pin", "sst", f"{DIES[0]}/100/vir05_1c_8g", "a training", "0")
    agree(allowed=True, reason="")
    own.api.always("pods", "forbidden")
    agree(allowed=False, reason="vnpu-claims-unknown")
    own.api.always("pods", None)
    agree(allowed=True, reason="")
    own.state(STATE)
    agree(allowed=False, reason="vnpu-npu-claimed")


def test_what_was_seen_of_pods_outlasts_a_restart_and_a_file_that_is_damaged_protects(own: OwnedNode) -> None:
    daemon = own.daemon
    wait_known(own, STATE)
    own.state(STATE)
    wait_claims(own, STATE)
    kept = daemon.state / "owners.json"
    # What was seen is shown first, and then saved.
    wait_for(lambda: RUNNING in kept.read_text(), what="the Pod to be kept")
    with devices_of(own) as holder:
        daemon.stop(signal.SIGKILL)
        # Everybody has forgotten the Pods meanwhile, and devwardd has not.
        own.state("00")
        daemon.start(devices_of=holder, program=REMEMBERING)
        wait_known(own, "00")
        assert "running(gone)" in claims(own)[0]
        daemon.stop()
        kept.write_bytes(kept.read_bytes()[:-20])
        daemon.start(devices_of=holder)
        # Which Node was this host's is lost as well, and only an administrator can say.
        wait_for(lambda: {"memory-lost", "node-uid-lost"} <= set(blocked(own)), what=f"both among {blocked(own)}")
        assert {card["protection"] for card in ownership(own)["cards"]} == {"unknown"}
        daemon.call("AcceptNode", "st", json.loads(own.api.bodies["node"])["metadata"]["uid"], "0")
        # The rest ends when no Pod that was forgotten would protect any more.
        wait_known(own, "00")
        assert claims(own) == ("", "")


@contextlib.contextmanager
def devices_of(owned: OwnedNode) -> Iterator[int]:
    """The pid of a process that keeps the host's devices while devwardd is started anew."""
    with subprocess.Popen(
        ["nsenter", f"--mount=/proc/{owned.daemon.pid}/ns/mnt", "sleep", "infinity"], stdin=subprocess.DEVNULL
    ) as process:
        mine = os.readlink("/proc/self/ns/mnt")
        wait_for(lambda: os.readlink(f"/proc/{process.pid}/ns/mnt") != mine, what="the namespace")
        try:
            yield process.pid
        finally:
            process.kill()


def test_nobody_is_asked_where_reading_is_off_until_it_is_on_again(owned: OwnedNode) -> None:
    daemon = owned.daemon
    daemon.write_config('[cluster]\nread = "off"\n')
    daemon.call("Reload", "t", "0")
    wait_for(lambda: not ownership(owned), what="nothing")
    asked = len(owned.api.asked("node"))
    rescan(owned)
    assert daemon.get("/card/p000", "Card", "Claims") == []
    assert daemon.get("/card/p000", "Card", "Protection") == "not-evaluated"
    assert blocked(owned) == ["not-evaluated"], "nothing can be reclaimed where nobody is asked"
    assert len(owned.api.asked("node")) == asked
    daemon.write_config("")
    daemon.call("Reload", "t", "0")
