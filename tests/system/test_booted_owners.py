"""Who owns the vNPUs, on a booted system with the installed package: service, broker, kubelet, API server and name server."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nspawn_machine import until
from nspawn_owned import API_NAME, BROKER, CARD, CHECKPOINT, FASTER, Owned

from bench.setting import memory
from devward import names
from sim.recorded_cluster import CLAIMS, body, whole_name
from sim.snapshot_desk import NAMES

if os.geteuid() != 0:
    pytest.skip("needs root: a container is booted", allow_module_level=True)
pytest_plugins = ["nspawn_fixtures"]

STATE = "01"
VNPU = f"{names.ROOT_PATH}/vnpu/v0100"
RUNNING = next(uid for uid, name in NAMES.items() if name == "running")
#: For how many seconds the cost of looks is taken.
WINDOW = 10
#: MB. The broker's own bar is 16; the program that injects its environment is measured with it.
DAEMON_PSS, BROKER_PSS = 90, 16 + 2


@pytest.fixture(name="owned", scope="module")
def _owned(release: str, debs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owned]:
    with Owned.booted(release, debs, tmp_path_factory.mktemp("owners")) as owned:
        owned.create(owned.chips[0])
        owned.checkpoint(body(f"{whole_name(STATE)}.checkpoint.json"))
        owned.install()
        wait_known(owned)
        yield owned


def claims(owned: Owned) -> set[str]:
    """Return the names of the Pods that claim the first card, once nothing of the node is unknown; else nothing."""
    owned.tell("beat")
    uids: list[str] = owned.machine.get("Claims", f"{names.BUS_NAME}.Card", CARD) if not owned.blocked() else []
    return {NAMES[uid] for uid in uids}


def wait_known(owned: Owned) -> None:
    wanted = {word.rstrip("?") for word in CLAIMS[STATE][0].split()}
    until(lambda: claims(owned) == wanted, f"the claims; {owned.blocked()}")


def test_who_claims_a_card_is_shown_with_its_sources(owned: Owned) -> None:
    machine = owned.machine
    # A look that a slow machine breaks off knows nothing, until the next one; and root is asked about at every call.
    until(lambda: "protected" in machine.run("devwardctl", "cards"), "the card is protected")

    def explained() -> bool:
        text = machine.run("devwardctl", "explain", "p000")
        return all(word in text.lower() for word in ("default/running", "checkpoint", "api"))

    until(explained, "whose the card is, and by what that is known")

    def told() -> bool:
        ownership = owned.explain(CARD, "Card")["ownership"]
        claims = [
            (claim["pod"], set(claim["sources"]) >= {"checkpoint", "api"}) for claim in ownership["claims"] if claim["uid"] == RUNNING
        ]
        return claims == [("default/running", True)] and all(source["read"] for source in ownership["sources"])

    until(told, "the claim, with all its sources read")

    def shows_the_host() -> bool:
        """What the host shows, through the sandbox's broker; for whom nobody searches the processes who is protected anyway."""
        of_vnpu = owned.explain(VNPU, "Vnpu")
        bundles = of_vnpu["ownership"]["host"]["bundles"]["state"]
        return (bundles, of_vnpu["vnpu"]["verdict"], of_vnpu["host"]) == ("read", "protected", None)

    until(shows_the_host, "what the host shows")
    # A user without a session may not inspect.
    assert "default/running" not in json.dumps(owned.explain(CARD, "Card", user="daemon"))
    asked: set[str] = set()

    def is_asked() -> bool:
        asked.update(method for method, *_ in owned.tell("beat"))
        return bool(asked)

    until(is_asked, what="a request")
    assert asked == {"GET"}


def test_the_api_server_s_name_is_looked_up_by_the_service(owned: Owned) -> None:
    owned.kubeconfig(f"other.{API_NAME}")
    owned.wait_blocked("api-name-unresolved")
    owned.kubeconfig(API_NAME)
    wait_known(owned)
    owned.kubeconfig("127.0.0.1")
    wait_known(owned)


def test_without_the_api_server_it_is_said_why_nothing_is_known(owned: Owned) -> None:
    machine = owned.machine
    cursor = machine.cursor()
    owned.tell("always", "pods", "forbidden")
    owned.wait_blocked("api-forbidden")
    assert machine.get("Protection", f"{names.BUS_NAME}.Card", CARD) == "unknown"
    assert "api-forbidden" in machine.call("devwardctl", "status").text + machine.run("devwardctl", "explain", "p000")
    until(lambda: machine.records(cursor, DEVWARD_EVENT="finding", DEVWARD_REASON="owners-unknown"), "the record")
    owned.tell("always", "pods", "good")
    wait_known(owned)
    until(lambda: machine.records(cursor, DEVWARD_EVENT="finding-cleared", DEVWARD_REASON="owners-unknown"), "the other record")


def test_the_checkpoint_is_read_through_the_sandbox(owned: Owned) -> None:
    owned.machine.run("mv", CHECKPOINT, f"{CHECKPOINT}.away")
    owned.wait_blocked("checkpoint-missing")
    owned.machine.run("mv", f"{CHECKPOINT}.away", CHECKPOINT)
    wait_known(owned)


def test_what_it_costs(owned: Owned) -> None:
    machine = owned.machine
    pids = {"devwardd": machine.main_pid(), "broker": int(machine.unit("MainPID", BROKER))}
    # As the host sees the container's /proc.
    seen = {name: f"{machine.leader}/root/proc/{pid}" for name, pid in pids.items()}
    before = {name: cpu(path) for name, path in seen.items()}
    begin = time.monotonic()
    time.sleep(WINDOW)
    looks = (time.monotonic() - begin) * FASTER / 60
    for name, path in seen.items():
        used = memory(path)
        spent = (cpu(path) - before[name]) / looks
        print(f"{name}: PSS {used['pss']:.1f} MB, peak RSS {used['peak']:.1f} MB; {spent * 1000:.0f} ms CPU a look, one a minute elsewhere")
        assert used["pss"] <= {"devwardd": DAEMON_PSS, "broker": BROKER_PSS}[name]


def cpu(process: str) -> float:
    """CPU seconds of a process, by its directory in some /proc: utime and stime of proc_pid_stat(5)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
