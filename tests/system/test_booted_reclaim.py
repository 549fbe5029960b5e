"""Reclaiming on a booted system with the installed package: what nobody owns goes, and every refusal can be read in the journal.

Service, broker, bus, polkit and journal are the real ones; the rules are the default ones, and only times are shorter. Until the test of
the destruction the kill switch is set.
"""

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nspawn_machine import LONG, until
from nspawn_owned import BROKER, BUNDLES, CHECKPOINT, DAEMON_DROP_IN, KUBECONFIG, PLACE, TEMPLATE, Owned

from devward import __version__, names
from devward.ctl.advice_reclaim import BLOCKED_ADVICE
from devward.npu.codes import DcmiCode
from sim.dcmi_simulator import Vnpu
from sim.kubelet_checkpoint import RESOURCE, Allocated, document, encoded, hami_response
from sim.recorded_cluster import DIES
from sim.snapshot_desk import NAMES

if os.geteuid() != 0:
    pytest.skip("needs root: a container is booted", allow_module_level=True)
pytest_plugins = ["nspawn_fixtures"]

CONFIG = "[reclaim]\ngrace = 4\ninterval = 1\n"
USER = "daemon"
DESTROY = "dcmi_set_destroy_vdevice"
UIDS = {name: uid for uid, name in NAMES.items()}
#: A process that has a device without opening it, as no driver is there to open it.
HOLDER = "import os, sys; os.open(sys.argv[1], os.O_PATH); print('ready', flush=True); sys.stdin.read()"
CONTAINER = f"{BUNDLES}/{'c0' * 32}"
OTHER_BOOT = "11111111-1111-4222-8333-444455556666"


class Node:
    """Three NPUs with idle vNPUs: one has a Pod that runs, one a Pod that fails to start, and one is none that HAMi hands out."""

    def __init__(self, owned: Owned) -> None:
        self.owned, self.machine = owned, owned.machine
        self.claimed = owned.create(owned.chips[0])
        self.orphan, self.pinned, self.held = (owned.create(owned.chips[1]) for _ in range(3))
        self.strange = owned.create(owned.chip())
        owned.tell("pods", "running", "runerror@1")
        allocated = {"running": 0, "runerror": 1}
        entries = [Allocated(UIDS[name], [f"{DIES[card]}-0"], hami_response([card], TEMPLATE)) for name, card in allocated.items()]
        owned.checkpoint(encoded(document(entries, {RESOURCE: [f"{die}-0" for die in DIES]})))
        self.machine.shell(f"mkdir -p {names.CONFIG_DROPIN_DIRECTORY}; touch {names.KILL_SWITCH}")
        self.machine.path(f"{names.CONFIG_DROPIN_DIRECTORY}/test.toml").write_text(CONFIG)
        self.cursor = self.machine.cursor()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something while HAMi goes on reporting."""

        def holds() -> object:
            self.owned.tell("beat")
            # A look comes once a second, and the journal is dear to read.
            return condition() or time.sleep(0.3)

        until(holds, what)

    def verdict(self, vnpu: Vnpu) -> str:
        path = f"{names.ROOT_PATH}/vnpu/v{vnpu.id:04d}"
        return str(self.machine.get("Verdict", f"{names.BUS_NAME}.Vnpu", path))

    def records(self, event: str, **fields: str) -> list[dict[str, Any]]:
        return self.machine.records(self.cursor, DEVWARD_EVENT=event, **fields)


@pytest.fixture(scope="module", name="release")
def _release() -> str:
    """Once: what differs between the releases is tried elsewhere."""
    return "12"


@pytest.fixture(name="node", scope="module")
def _node(release: str, debs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Owned.booted(release, debs, tmp_path_factory.mktemp("reclaim")) as owned:
        node = Node(owned)
        owned.install()
        node.machine.run("devwardctl", "pin", f"v{node.pinned.id:04d}", "--reason", "a training")
        yield node


# --- what is refused, and where that is read -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Row:
    """Something that stops reclaiming as a whole: how it comes and goes, in the container, or with `api:` at the API server."""

    reason: str
    begin: str
    end: str


CONFIG_DIRECTORY = os.path.dirname(names.KILL_SWITCH)
#: After the one that has its looks come sooner.
NO_RECLAIM = "/etc/systemd/system/devward.service.d/zz-no-reclaim.conf"
NO_RECLAIM_DROP_IN = DAEMON_DROP_IN.rstrip().replace("\n", "\\n") + " --no-reclaim"
ROWS = (
    Row("mode-off", "devwardctl mode reclaim off", "devwardctl mode reclaim enforce"),
    Row("mode-observe", "devwardctl mode reclaim observe", "devwardctl mode reclaim enforce"),
    Row("paused", "devwardctl pause reclaim 1h a look around", "devwardctl resume reclaim"),
    Row("api-forbidden", "api: always pods forbidden", "api: always pods good"),
    Row(
        "foreign-manager",
        'api: set node status|capacity|huawei.com/Ascend910 "8"',
        "api: set node status|capacity|huawei.com/Ascend910",
    ),
    Row("node-boot-differs", f"api: host {OTHER_BOOT} MACHINE", "api: host BOOT MACHINE"),
    Row("checkpoint-not-json", f"cp {CHECKPOINT} /root/good; truncate -s -9 {CHECKPOINT}", f"mv /root/good {CHECKPOINT}"),
    Row("api-connection-refused", f"cp {KUBECONFIG} /root/good; sed -i 's/1:[0-9]*/1:9/' {KUBECONFIG}", f"mv /root/good {KUBECONFIG}"),
    # Nothing can be looked up below a link to itself.
    Row(
        "kill-switch-unreadable",
        f"mv {CONFIG_DIRECTORY} /root/devward; ln -s devward {CONFIG_DIRECTORY}",
        f"rm {CONFIG_DIRECTORY}; mv /root/devward {CONFIG_DIRECTORY}",
    ),
    # What is eligible on each of the node's cards at a time is too much.
    Row("mass-reclaim", "api: pods running=done runerror@1", "devwardctl reclaim release"),
    # Without the kill switch, whose reason would be told first.
    Row(
        "no-reclaim",
        f"printf '{NO_RECLAIM_DROP_IN}' >{NO_RECLAIM}; systemctl daemon-reload; systemctl stop devward;"
        f" rm {names.KILL_SWITCH}; systemctl start devward",
        f"touch {names.KILL_SWITCH}; rm {NO_RECLAIM}; systemctl daemon-reload",
    ),
    Row(
        "state-damaged",
        f"systemctl stop devward; echo '{{' >{names.STATE_DIRECTORY}/{names.STATE_FILE}; rm {names.KILL_SWITCH}; systemctl start devward",
        f"touch {names.KILL_SWITCH}; devwardctl pin vPINNED --reason 'a training'; devwardctl mode reclaim enforce",
    ),
)


def do(node: Node, what: str) -> None:
    boot, machine = node.owned.host
    if what.startswith("api: "):
        node.owned.tell(*what.removeprefix("api: ").replace("BOOT", boot).replace("MACHINE", machine).split())
    else:
        node.machine.shell(what.replace("PINNED", f"{node.pinned.id:04d}"))


def values(record: dict[str, Any], field: str) -> list[str]:
    """Return the values of a field of devward's, of which it may have several."""
    found = record[f"DEVWARD_{field}"]
    return found if isinstance(found, list) else [found]


def test_every_refusal_is_read_in_the_journal_with_its_sentence_and_what_to_do(node: Node) -> None:
    machine, told = node.machine, set()

    def is_blocked(reason: str) -> bool:
        return bool(node.records("reclaim-blocked", DEVWARD_REASON=reason))

    def stays(vnpu: Vnpu, reason: str) -> None:
        def is_told() -> bool:
            return any(str(vnpu.id) in values(one, "VNPU") for one in node.records("vnpu-kept", DEVWARD_REASON=reason))

        node.until(is_told, f"{vnpu.id}: {reason}")
        told.add(reason)

    node.until(lambda: is_blocked("kill-switch"), "kill-switch")
    with node.owned.process("-c", HOLDER, f"/dev/vdavinci{node.held.id}"):
        stays(node.pinned, "pinned")
        stays(node.held, "held-on-host")
        stays(node.claimed, "running")
        stays(node.strange, "card-not-registered")
    with container(node, 2):
        stays(node.strange, "card-named-by-container")
    # Of two it is not known whose word counts.
    with node.owned.process(f"{PLACE}/sim/kubelet.py", "--directory=/run/second/device-plugins", "--listen-only", "--root-dir=/run/second"):
        node.until(lambda: is_blocked("no-kubelet"), "no-kubelet")
    node.until(lambda: node.verdict(node.orphan) == "eligible", "the wait of the orphan ends")
    do(node, 'api: set node metadata|annotations|hami.io/mutex.lock "hami,2026-12-01T00:00:00Z"')
    stays(node.orphan, "hami-locked")
    do(node, "api: set node metadata|annotations|hami.io/mutex.lock")
    for row in ROWS:
        do(node, row.begin)
        node.until(lambda row=row: is_blocked(row.reason), row.reason)  # type: ignore[misc]
        do(node, row.end)
    assert node.records("mass-reclaim")
    do(node, "api: pods running runerror@1")
    told |= {"kill-switch", "no-kubelet", *(row.reason for row in ROWS)}
    assert all(node.owned.is_there(one) for one in (node.claimed, node.orphan, node.pinned, node.held, node.strange))
    assert not node.records("vnpu-reclaim")

    # As an administrator reads it: with what it means, and the command that says what to do.
    text = machine.run("journalctl", "--catalog", "--no-pager", f"--after-cursor={node.cursor}", "--unit=devward.service")
    for reason in told:
        assert f"devwardctl explain {reason}\n" in text, reason
        sentence = next(one["MESSAGE"] for kind in ("reclaim-blocked", "vnpu-kept") for one in node.records(kind, DEVWARD_REASON=reason))
        assert re.search(r": \w.*\.$", sentence), sentence
    assert "@DEVWARD" not in text
    for reason in ("hami-locked", "checkpoint-not-json"):
        assert "What to do" in machine.run("devwardctl", "explain", reason)


@contextlib.contextmanager
def container(node: Node, card: int) -> Iterator[None]:
    """A container that no Pod has and that names an NPU; its first process is that of the whole container."""
    spec = {"ociVersion": "1.1.0", "process": {"args": ["sleep"], "env": [f"ASCEND_VISIBLE_DEVICES={card}"]}, "linux": {}}
    node.machine.run("mkdir", CONTAINER)
    node.machine.path(f"{CONTAINER}/config.json").write_text(json.dumps(spec))
    node.machine.path(f"{CONTAINER}/init.pid").write_text("1")
    yield
    node.machine.run("rm", "-r", CONTAINER)


# --- who may see and do what -----------------------------------------------------------------------------------------------
DENIED = {
    ("reclaim", "now", "v0116"): names.ACTION_RECLAIM,
    ("reclaim", "now"): names.ACTION_RECLAIM,
    ("pause", "reclaim", "1h", "why"): names.ACTION_PROTECT,
    ("mode", "reclaim", "off"): names.ACTION_PROTECT,
    ("mode", "reclaim", "enforce"): names.ACTION_RELEASE,
    ("pin", "v0116", "--reason", "why"): names.ACTION_PROTECT,
    ("unpin", "v0117"): names.ACTION_RELEASE,
}


def test_anybody_sees_the_verdicts_without_names_and_root_alone_acts(node: Node) -> None:
    machine = node.machine
    wanted = ((node.orphan, "eligible"), (node.pinned, "pinned"), (node.claimed, "protected"), (node.strange, "unmanaged"))

    def shows_all() -> bool:
        """Whether one answer has them all: a look that a slow machine breaks off knows nothing of anybody, until the next one."""
        shown = machine.run("devwardctl", "vnpus", user=USER)
        return all(re.search(rf"^v{vnpu.id:04d} .* {verdict} ", shown, re.MULTILINE) for vnpu, verdict in wanted)

    node.until(shows_all, "every verdict")
    assert "kill-switch" in machine.call("devwardctl", "status", user=USER).text
    assert "kill-switch" in machine.run("devwardctl", "reclaim", "status", user=USER)
    by_pod = rf"Pod {UIDS['runerror']} +p001 +[12] "
    node.until(lambda: re.search(by_pod, machine.run("devwardctl", "reclaim", "status", user=USER)), "who leaves them behind")
    node.until(lambda: "default/running" in machine.run("devwardctl", "explain", f"v{node.claimed.id:04d}"), "whose the claimed one is")
    explained = machine.run("devwardctl", "explain", f"v{node.claimed.id:04d}", user=USER)
    assert "running" in explained
    assert "default/" not in explained
    history = machine.call("devwardctl", "history", user=USER)
    assert history.status == 4
    assert "may not read the system's journal" in history.err
    history = machine.call("devwardctl", "history", "--vnpu", str(node.claimed.id))
    assert "stays: A container of the Pod is running" in " ".join(history.out.split())

    cursor = machine.cursor()
    for words, action in DENIED.items():
        done = machine.call("devwardctl", *words, user=USER)
        assert (done.status, done.out) == (4, ""), (words, done.text)
        (record, *_) = machine.records(cursor, DEVWARD_EVENT="action-denied", DEVWARD_POLKIT_ACTION=action)
        assert record["DEVWARD_OUTCOME"] == "denied"
        assert record["DEVWARD_CALLER_UID"] == machine.run("id", "-u", USER).strip()
    assert machine.get("ReclaimMode") == "enforce"
    assert machine.get("ReclaimPausedUntilUSec") == 0
    assert "kill-switch" in machine.run("devwardctl", "reclaim", "now", "v0116", "--dry-run")
    (record,) = machine.records(cursor, DEVWARD_EVENT="action", DEVWARD_OUTCOME="dry-run")
    assert (record["DEVWARD_MEMBER"], record["DEVWARD_CALLER_UID"]) == ("ReclaimVnpu", "0")


def test_what_a_user_makes_of_its_own_control_groups_stops_nothing(node: Node) -> None:
    machine = node.machine
    machine.run("systemd-run", "--quiet", "--unit=groups", f"--uid={USER}", "--property=Delegate=yes", "sleep", "infinity")
    group = f"/sys/fs/cgroup{machine.run('systemctl', 'show', '--property=ControlGroup', '--value', 'groups.service').strip()}"
    deep, pod = "/".join("deeper" for _ in range(20)), f"pod{UIDS['runerror']}"
    machine.run("mkdir", "-p", f"{group}/{deep}", f"{group}/{pod}/{'c1' * 32}", user=USER)
    made_usec = time.time_ns() // 1000

    def looked_usec() -> int:
        explained = json.loads(machine.run("devwardctl", "explain", f"v{node.orphan.id:04d}", "--json"))
        judged = explained["evidence"]["evidence"]
        return int(judged["looked_at_usec"]) if judged is not None else 0

    # A look takes a moment: one that ends so much later began after they were made.
    node.until(lambda: looked_usec() > made_usec + 5_000_000 and node.verdict(node.orphan) == "eligible", "a look that they do not disturb")
    machine.run("systemctl", "stop", "groups.service")


# --- what is destroyed -----------------------------------------------------------------------------------------------------
def test_what_a_failing_pod_left_behind_is_reclaimed_once_it_can_be_recorded(node: Node) -> None:
    machine, owned = node.machine, node.owned
    node.until(lambda: node.verdict(node.orphan) == "eligible", "the orphan is eligible")
    # In the daemon's own sandbox alone, so that the journal itself goes on.
    inside = ("nsenter", f"--mount=/proc/{machine.main_pid()}/ns/mnt")
    machine.run(*inside, "mount", "--bind", "/dev/null", names.JOURNAL_SOCKET)
    machine.run(*inside, "mount", "--bind", names.STATE_DIRECTORY, names.STATE_DIRECTORY)
    machine.run(*inside, "mount", "-o", "remount,bind,ro", names.STATE_DIRECTORY)
    machine.run("rm", names.KILL_SWITCH)
    node.until(lambda: "journal-refuses" in owned.blocked(), "the record is not taken")
    machine.run(*inside, "umount", names.JOURNAL_SOCKET)
    wait_refused(node, "state-not-saved")
    assert not owned.simulator.calls(DESTROY), "nothing was tried by then"
    owned.simulator.fault(DESTROY, "code", value=int(DcmiCode.NOT_PERMITTED), effect=False)
    machine.run(*inside, "umount", names.STATE_DIRECTORY)
    wait_refused(node, "destroying-not-permitted")
    assert owned.is_there(node.orphan)
    owned.simulator.clear_faults()
    *_, mended = BLOCKED_ADVICE["destroying-not-permitted"].steps
    explained = machine.run("devwardctl", "explain", "destroying-not-permitted")
    broker = machine.unit("MainPID", BROKER)
    for command in mended.commands:
        assert command in explained
        machine.run(*command.split())
    assert machine.unit("MainPID", BROKER) != broker
    node.until(lambda: not owned.is_there(node.orphan), "the destruction")
    node.until(lambda: node.records("vnpu-reclaim", DEVWARD_OUTCOME="success"), "the outcome")
    owned.drop_node(node.orphan)
    # What was said meanwhile went to the service manager, which has it in the journal as lines.
    lines = machine.run("journalctl", "--output=cat", "--no-pager", f"--after-cursor={node.cursor}", "_TRANSPORT=stdout")
    assert "The journal did not take the record of what was about to be done" in lines

    of_orphan = node.records("vnpu-reclaim", DEVWARD_VNPU=str(node.orphan.id))
    assert {one["DEVWARD_REASON"] for one in of_orphan if one["DEVWARD_OUTCOME"] == "failure"} == {"try-not-saved", "destroy-8002"}
    intent, success = [one for one in of_orphan if one["DEVWARD_OUTCOME"] != "failure"][-2:]
    assert (intent["DEVWARD_OUTCOME"], success["DEVWARD_OUTCOME"]) == ("intent", "success")
    assert intent["DEVWARD_REQUEST_ID"] == success["DEVWARD_REQUEST_ID"]
    for record in (intent, success):
        assert (record["DEVWARD_VNPU"], record["DEVWARD_CARD"], record["DEVWARD_TRIGGER"]) == (str(node.orphan.id), "p001", "timer")
        evidence = json.loads(record["DEVWARD_EVIDENCE"])
        assert evidence["recreate"] == f"npu-smi set -t create-vnpu -i 1 -c 0 -f {TEMPLATE} -v {node.orphan.id}"
        assert (evidence["host"]["all"], evidence["suspects"], evidence["confirmations"] >= 3) == ("clean", [UIDS["runerror"]], True)
    asked = [one for one in broker_records(node) if one.get("DEVWARD_REQUEST_ID") == success["DEVWARD_REQUEST_ID"]]
    assert [one.get("DEVWARD_OUTCOME") for one in asked] == [None, "destroyed"]
    text = machine.run("journalctl", "-x", "--no-pager", f"DEVWARD_REQUEST_ID={success['DEVWARD_REQUEST_ID']}")
    assert f"Reclaiming the vNPU {node.orphan.id}: success" in text
    assert evidence["recreate"] in text
    shown = " ".join(machine.run("devwardctl", "history", "--request", success["DEVWARD_REQUEST_ID"]).split())
    assert f"vNPU {node.orphan.id} ({TEMPLATE}) of card p001 was destroyed" in shown
    assert f" {node.orphan.id} " in machine.run("devwardctl", "reclaim", "status", user=USER)
    assert all(owned.is_there(one) for one in (node.claimed, node.pinned, node.strange))


def wait_refused(node: Node, reason: str) -> None:
    """Wait until nothing is reclaimed for a reason, and read that as an administrator does."""
    found: list[dict[str, Any]] = []
    node.until(lambda: found.extend(node.records("reclaim-blocked", DEVWARD_REASON=reason)) or found, reason)
    assert re.search(r": \w.*\.$", found[-1]["MESSAGE"]), found[-1]["MESSAGE"]
    text = node.machine.run("journalctl", "-x", "--no-pager", "DEVWARD_EVENT=reclaim-blocked", f"DEVWARD_REASON={reason}")
    assert f"devwardctl explain {reason}\n" in text


def broker_records(node: Node) -> list[dict[str, Any]]:
    out = node.machine.run("journalctl", "-o", "json", "--all", f"--after-cursor={node.cursor}")
    return [one for one in map(json.loads, out.splitlines()) if one.get("_SYSTEMD_UNIT") == BROKER]


def destroying(node: Node) -> Vnpu:
    """Have a vNPU destroyed by a library that hangs in it; return which of the orphans it is."""
    node.machine.run("rm", "-f", names.KILL_SWITCH)
    node.owned.simulator.clear_calls()
    node.owned.simulator.fault(DESTROY, "hang", effect=True)
    node.owned.create(node.owned.chips[1])
    # The library lists it no more as soon as it is called.
    there = node.owned.simulator.vnpus()
    node.until(lambda: node.owned.simulator.calls(DESTROY), "the destruction begins")
    (call,) = node.owned.simulator.calls(DESTROY)
    return next(one for one in there if one.id == int(call.arguments["id"]))


def test_a_pin_that_comes_too_late_waits_and_says_so(node: Node) -> None:
    machine, owned, vnpu = node.machine, node.owned, destroying(node)
    cursor = machine.cursor()
    command = machine.enter("devwardctl", "pin", f"v{vnpu.id:04d}", "--reason", "too late")
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pin:
        try:
            until(lambda: machine.records(cursor, DEVWARD_MEMBER="Pin", DEVWARD_OUTCOME="intent"), "the pin is asked for")
            until(lambda: f"/{vnpu.id}/" in machine.run("devwardctl", "pins", user=USER), "the pin is in force")
            assert pin.poll() is None
        finally:
            owned.simulator.clear_faults()
        out, _ = pin.communicate(timeout=60)
    assert (pin.returncode, "was being destroyed when it was pinned, and is gone" in " ".join(out.split())) == (1, True), out
    assert not owned.is_there(vnpu)
    (record,) = machine.records(cursor, DEVWARD_MEMBER="Pin", DEVWARD_OUTCOME="failure")
    assert record["DEVWARD_REASON"] == "vnpu-destroyed"
    assert "What to do" in machine.run("devwardctl", "explain", "vnpu-destroyed")
    machine.run("devwardctl", "unpin", record["DEVWARD_SUBJECT"])
    owned.drop_node(vnpu)


def test_an_upgrade_waits_for_a_destruction(node: Node) -> None:
    machine, owned = node.machine, node.owned
    before, cursor = machine.main_pid(), machine.cursor()
    destroying(node)
    command = machine.enter("dpkg", "--install", machine.package(__version__))
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as upgrade:
        try:
            until(lambda: machine.unit("ActiveState") == "deactivating", "devward is told to end")
            until(lambda: machine.unit("ActiveState", BROKER) in ("deactivating", "inactive", "failed"), "the broker is told to end")
            (call,) = owned.simulator.calls(DESTROY)
            vdev = int(call.arguments["id"])
            assert (call.code, upgrade.poll(), machine.main_pid()) == (None, None, before), "all of them wait"
        finally:
            owned.simulator.clear_faults()
        out, _ = upgrade.communicate(timeout=LONG)
    assert upgrade.returncode == 0, out
    assert vdev not in [one.id for one in owned.simulator.vnpus()]
    machine.active_again(after=before)
    intent, success = machine.records(cursor, DEVWARD_EVENT="vnpu-reclaim", DEVWARD_VNPU=str(vdev))
    assert (intent["_PID"], success["_PID"]) == (str(before), str(before)), "by the daemon that began it"
    assert (success["DEVWARD_OUTCOME"], success["DEVWARD_REQUEST_ID"]) == ("success", intent["DEVWARD_REQUEST_ID"])
    assert [call.arguments["id"] for call in owned.simulator.calls(DESTROY)].count(vdev) == 1
    owned.wait_shown()
