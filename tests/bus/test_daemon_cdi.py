"""devwardd as a process: what happens to its CDI file, and what an administrator can see of it and do about it."""

import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from sim.daemon_process import DaemonProcess, wait_for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: uid 0 passes the authorization gate"),
    pytest.mark.skipif(not os.path.exists("/dev/kvm"), reason="needs /dev/kvm: a hypervisor to publish"),
]

SPEC = "/spec/hyperlight_2edev_2dhypervisor_2ejson"
RIVAL = {
    "cdiVersion": "0.3.0",
    "kind": "hyperlight.dev/hypervisor",
    "devices": [{"name": "kvm", "containerEdits": {"env": ["A=b"]}}],
}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path) as process:
        yield process.start()


def document(daemon: DaemonProcess) -> dict[str, object]:
    loaded = json.loads(daemon.spec.read_bytes())
    assert isinstance(loaded, dict)
    return loaded


def edit(change: Callable[[dict[str, object]], None]) -> Callable[[DaemonProcess], None]:
    def tamper(daemon: DaemonProcess) -> None:
        loaded = document(daemon)
        change(loaded["devices"][0])  # type: ignore[index] # the document of one device
        replace(daemon, json.dumps(loaded))

    return tamper


def replace(daemon: DaemonProcess, content: str) -> None:
    """Put content at the path in one step, so that devward never meets a half of it."""
    temporary = daemon.cdi / "editor.tmp"
    temporary.write_text(content)
    temporary.rename(daemon.spec)


def edit_node(**values: object) -> Callable[[DaemonProcess], None]:
    return edit(lambda device: device["containerEdits"]["deviceNodes"][0].update(values))  # type: ignore[index]


def remove_directory(daemon: DaemonProcess) -> None:
    daemon.cdi.rename(daemon.directory / "cdi-gone")  # in one step: a repair in between would keep the directory alive


TAMPERING: dict[str, tuple[Callable[[DaemonProcess], object], str]] = {
    "missing": (lambda daemon: daemon.spec.unlink(), "missing"),
    "directory missing": (remove_directory, "missing"),
    "empty": (lambda daemon: daemon.spec.write_text(""), "malformed"),
    "half": (lambda daemon: replace(daemon, daemon.spec.read_text()[:50]), "malformed"),
    "kind": (lambda daemon: replace(daemon, daemon.spec.read_text().replace("hyperlight.dev/hyp", "other.dev/hyp")), "stale"),
    "device name": (edit(lambda device: device.update(name="kvm2")), "stale"),
    "path": (edit_node(path="/dev/null"), "stale"),
    "permissions": (edit_node(permissions="rwm"), "stale"),
    "uid": (edit_node(uid=0), "stale"),
    "gid": (edit_node(gid=0), "stale"),
    "extra edits": (edit(lambda device: device["containerEdits"].update(mounts=[])), "stale"),  # type: ignore[attr-defined]
    "host path": (edit_node(hostPath="/dev/null"), "stale"),
    "mode": (lambda daemon: daemon.spec.chmod(0o600), "mode"),
    "owner": (lambda daemon: os.chown(daemon.spec, 1, 1), "owner"),
    "hard link": (lambda daemon: os.link(daemon.spec, daemon.directory / "other-name"), "hard-link"),
}


@pytest.mark.parametrize("what", sorted(TAMPERING))
def test_r3_r4_every_difference_is_repaired_told_and_recorded(daemon: DaemonProcess, what: str) -> None:
    good = daemon.spec.read_bytes()
    count = daemon.get(SPEC, "Spec", "RepairCount")
    tamper, cause = TAMPERING[what]
    tamper(daemon)
    wait_for(lambda: daemon.get(SPEC, "Spec", "RepairCount") != count, what="a repair")
    wait_for(lambda: daemon.get(SPEC, "Spec", "State") == "true", what="the file true")
    assert daemon.spec.read_bytes() == good
    status = daemon.spec.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_nlink) == (0o644, 0, 0, 1)
    assert stat.S_IMODE(daemon.cdi.stat().st_mode) == 0o755
    assert os.listdir(daemon.cdi) == [daemon.spec.name]
    record = daemon.wait_event("spec-repair", DEVWARD_OUTCOME="success", DEVWARD_CAUSE=cause)
    (intent,) = daemon.events("spec-repair", DEVWARD_OUTCOME="intent", DEVWARD_REQUEST_ID=record["DEVWARD_REQUEST_ID"][0])
    assert intent["DEVWARD_CDI_FILE"] == [str(daemon.spec)]


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "directory", "device"])
def test_r6_an_obstruction_is_refused_left_alone_and_its_removal_recovers(daemon: DaemonProcess, kind: str) -> None:
    victim = daemon.directory / "victim"
    victim.write_text("precious")
    daemon.call("PauseCdi", "tst", "600", "putting something there", "0")
    daemon.spec.unlink()
    if kind == "link":
        daemon.spec.symlink_to(victim)
    elif kind == "dangling":
        daemon.spec.symlink_to(daemon.directory / "nothing")
    elif kind == "fifo":
        os.mkfifo(daemon.spec)
    elif kind == "directory":
        daemon.spec.mkdir()
    else:
        os.mknod(daemon.spec, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    inode = daemon.spec.lstat().st_ino
    daemon.call("ResumeCdi", "t", "0")
    daemon.wait_property(SPEC, "Spec", "Reason", "cdi-not-regular")
    assert daemon.get(SPEC, "Spec", "State") == "blocked"
    assert daemon.get("", "Manager", "Ready") is False
    assert daemon.allocation("kvm")[:2] == (False, "cdi-not-regular")
    assert daemon.call("RepairSpecs", "t", "0")[2] == [[str(daemon.spec), "failure", "cdi-not-regular"]]
    assert daemon.spec.lstat().st_ino == inode
    assert victim.read_text() == "precious"
    if kind == "directory":
        daemon.spec.rmdir()
    else:
        daemon.spec.unlink()
    daemon.wait_property(SPEC, "Spec", "State", "true")
    assert daemon.allocation("kvm")[0] is True
    daemon.wait_event("spec-restored")


def test_r7_other_files_are_never_touched(daemon: DaemonProcess) -> None:
    sentinels = {}
    for name, content in {"nvidia.yaml": "a: b", "broken.json": "{", "notes.txt": "x", ".devward-not-ours": "y", "z.json": "[]"}.items():
        path = daemon.cdi / name
        path.write_text(content)
        sentinels[path] = (path.read_bytes(), path.stat())
    for _ in range(3):
        daemon.spec.unlink()
        daemon.call("RepairSpecs", "t", "0")
    daemon.call("Rescan", "t", "0")
    for path, (content, status) in sentinels.items():
        assert path.read_bytes() == content
        now = path.stat()
        assert (now.st_ino, now.st_mtime_ns, now.st_ctime_ns) == (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def test_r8_read_only_storage_is_survived_and_recovers_without_restart(tmp_path: Path) -> None:
    mount = f"mkdir -p {tmp_path}/cdi && mount -t tmpfs -o mode=0755 devward-test {tmp_path}/cdi"
    with DaemonProcess(tmp_path, private_devices=True, setup=mount) as daemon:
        daemon.start()
        good = daemon.inside(f"cat {daemon.spec}")
        daemon.call("PauseCdi", "tst", "600", "taking the file away", "0")
        daemon.inside(f"rm {daemon.spec}; mount -o remount,ro {daemon.cdi}")
        daemon.call("ResumeCdi", "t", "0")
        daemon.wait_property(SPEC, "Spec", "Reason", "cdi-read-only")
        assert daemon.get(SPEC, "Spec", "State") == "blocked"
        assert daemon.allocation("kvm")[:2] == (False, "cdi-read-only")
        daemon.wait_property("", "Manager", "Ready", value=False)
        daemon.wait_event("spec-blocked", DEVWARD_REASON="cdi-read-only")
        daemon.inside(f"mount -o remount,rw {daemon.cdi}")
        daemon.wait_property(SPEC, "Spec", "State", "true")
        assert daemon.inside(f"cat {daemon.spec}") == good
        assert daemon.allocation("kvm")[0] is True


@pytest.mark.parametrize("tampered", ["{}", ""])
def test_r1_the_file_is_in_order_before_devward_says_that_it_is_ready(daemon: DaemonProcess, tampered: str) -> None:
    good = daemon.spec.read_bytes()
    daemon.stop()
    if tampered:
        daemon.spec.write_text(tampered)
    else:
        daemon.spec.unlink()
    before = len(daemon.events("started")), len(daemon.events("ready"))
    daemon.start()
    assert daemon.spec.read_bytes() == good
    daemon.wait_property("", "Manager", "Ready", value=True)
    assert (len(daemon.events("started")), len(daemon.events("ready"))) == (before[0] + 1, before[1] + 1)
    told = [
        (record["DEVWARD_EVENT"][0], record.get("DEVWARD_OUTCOME", [""])[0])
        for record in daemon.journal.records()
        if "DEVWARD_EVENT" in record
    ]
    latest = told[len(told) - told[::-1].index(("started", "")) :]
    assert latest.index(("spec-repair", "success")) < latest.index(("ready", ""))


def test_r1_an_allocation_repairs_the_file_before_it_is_answered(daemon: DaemonProcess) -> None:
    good = daemon.spec.read_bytes()
    for _ in range(20):
        daemon.spec.write_text("{}")
        assert daemon.allocation("kvm")[:2] == (True, "")
        assert daemon.spec.read_bytes() == good


@pytest.mark.parametrize("mode", ["observe", "off", "paused"])
def test_modes_and_pause_write_nothing_and_refuse_what_is_stale(daemon: DaemonProcess, mode: str) -> None:
    if mode == "paused":
        assert daemon.call("PauseCdi", "tst", "600", "maintenance", "0")[1] == "done"
        assert int(str(daemon.get("", "Manager", "CdiPausedUntilUSec"))) > 0
    else:
        assert daemon.call("SetCdiMode", "st", mode, "0")[1] == "done"
        assert daemon.get("", "Manager", "CdiMode") == mode
    assert daemon.allocation("kvm")[:2] == (True, "")
    daemon.spec.write_text("{}")
    assert daemon.allocation("kvm")[0] is False
    assert daemon.spec.read_text() == "{}"
    _, _, results = daemon.call("RepairSpecs", "t", "0")
    assert [one[1:] for one in cast(list[list[str]], results)] == [["noop", "cdi-paused"]]
    assert daemon.get("", "Manager", "Ready") is False
    # both survive a restart
    daemon.stop()
    daemon.start()
    assert daemon.spec.read_text() == "{}"
    if mode == "paused":
        assert int(str(daemon.get("", "Manager", "CdiPausedUntilUSec"))) > 0
        daemon.call("ResumeCdi", "t", "0")
    else:
        assert daemon.get("", "Manager", "CdiMode") == mode
        daemon.call("SetCdiMode", "st", "repair", "0")
    daemon.wait_property(SPEC, "Spec", "State", "true")
    assert daemon.spec.read_text() != "{}"


def test_a_pause_ends_by_itself(daemon: DaemonProcess) -> None:
    daemon.call("PauseCdi", "tst", "1", "a moment", "0")
    daemon.spec.unlink()
    assert "a moment" in daemon.wait_event("pause-ended")["MESSAGE"][0]
    # Not its state: that is true, too, as long as the daemon has not seen that the file is gone.
    wait_for(daemon.spec.exists, what="the repair")
    daemon.wait_property(SPEC, "Spec", "State", "true")
    assert daemon.get("", "Manager", "CdiPausedUntilUSec") == 0


def test_a_rival_in_the_same_directory_is_a_conflict_until_it_goes(daemon: DaemonProcess) -> None:
    rival = daemon.cdi / "rival.json"
    rival.write_text(json.dumps(RIVAL))
    daemon.wait_property(SPEC, "Spec", "State", "conflict")
    assert not daemon.spec.exists()
    assert rival.exists()
    assert "rival.json" in str(daemon.get(SPEC, "Spec", "Text"))
    assert daemon.allocation("kvm")[:2] == (False, "cdi-conflict")
    daemon.wait_event("spec-conflict")
    assert [line[:2] for line in daemon.call("ListFindings")[0]] == [["cdi-conflict", str(rival)]]  # type: ignore[attr-defined, index]
    rival.unlink()
    daemon.wait_property(SPEC, "Spec", "State", "true")
    assert daemon.allocation("kvm")[0] is True


def test_a_rival_that_comes_right_after_the_directory_was_made_again_is_seen(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, config="[cdi]\ncontested_after = 1000\n") as daemon:
        daemon.start()
        for turn in range(10):
            daemon.cdi.rename(daemon.directory / f"gone-{turn}")
            wait_for(daemon.spec.exists, what="the repair")
            rival = daemon.cdi / "rival.json"
            rival.write_text(json.dumps(RIVAL))
            wait_for(lambda: not daemon.spec.exists(), what="the device left out")
            rival.unlink()
            wait_for(daemon.spec.exists, what="the file")


def test_a_definition_of_higher_priority_shadows_ours(daemon: DaemonProcess) -> None:
    daemon.high.mkdir()
    (daemon.high / "other.json").write_text(json.dumps(RIVAL))
    daemon.wait_property(SPEC, "Spec", "State", "shadowed")
    assert daemon.allocation("kvm")[:2] == (False, "cdi-shadowed")
    assert daemon.get("", "Manager", "Ready") is False
    (daemon.high / "other.json").unlink()
    daemon.wait_property(SPEC, "Spec", "State", "true")


def test_first_contact_takes_over_our_kind_with_a_copy_and_leaves_another_until_adopted(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        daemon.cdi.mkdir()
        old = json.dumps({**RIVAL, "cdiVersion": "0.6.0"})
        daemon.spec.write_text(old)
        daemon.start()
        daemon.wait_event("spec-repair", DEVWARD_OUTCOME="success", DEVWARD_CAUSE="take-over")
        (copy,) = (daemon.state / "backup").iterdir()
        assert copy.read_text() == old
    other = tmp_path / "other"
    other.mkdir()
    with DaemonProcess(other) as daemon:
        daemon.cdi.mkdir()
        foreign = json.dumps({**RIVAL, "kind": "vendor.com/class"})
        daemon.spec.write_text(foreign)
        daemon.start()
        assert daemon.get(SPEC, "Spec", "State") == "foreign"
        assert daemon.spec.read_text() == foreign
        assert daemon.call("AdoptSpec", "st", daemon.spec.name, "1")[2] == [[str(daemon.spec), "dry-run", "adopted"]]
        assert daemon.spec.read_text() == foreign
        assert daemon.call("AdoptSpec", "st", str(daemon.spec), "0")[2] == [[str(daemon.spec), "success", "adopted"]]
        assert daemon.get(SPEC, "Spec", "State") == "true"
        assert "owns no CDI file of that name" in daemon.refused("AdoptSpec", "st", "/etc/passwd", "0")


def test_contested_files_are_spaced_out_but_allocations_repair(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, config="[cdi]\ncontested_after = 3\n") as daemon:
        daemon.start()
        good = daemon.spec.read_bytes()
        wait_for(lambda: _tampered_until_contested(daemon), what="contested")
        daemon.wait_event("spec-contested")
        daemon.spec.write_text("{}")
        assert daemon.allocation("kvm")[0] is True
        assert daemon.spec.read_bytes() == good


def _tampered_until_contested(daemon: DaemonProcess) -> bool:
    daemon.spec.write_text("{}")
    return daemon.get(SPEC, "Spec", "State") == "contested"


def test_crash_leftovers_are_swept_and_a_killed_daemon_starts_again(daemon: DaemonProcess) -> None:
    good = daemon.spec.read_bytes()
    daemon.stop(signal.SIGKILL)
    leftover = daemon.cdi / f".devward.{daemon.spec.name}.0123456789abcdef.tmp"
    leftover.write_text("half")
    daemon.start()
    assert not leftover.exists()
    daemon.wait_event("leftovers-swept")
    assert daemon.spec.read_bytes() == good
    assert daemon.get(SPEC, "Spec", "RepairCount") == 0


def test_dry_run_changes_nothing(daemon: DaemonProcess) -> None:
    daemon.call("SetCdiMode", "st", "observe", "0")
    daemon.spec.write_text("{}")
    daemon.wait_property(SPEC, "Spec", "State", "drifted")
    assert daemon.wait_event("spec-drifted")["DEVWARD_CDI_FILE"] == [str(daemon.spec)]
    assert daemon.call("RepairSpecs", "t", "1")[2] == [[str(daemon.spec), "dry-run", "stale"]]
    assert daemon.spec.read_text() == "{}"


def test_a_file_that_cannot_be_examined_makes_ours_uncertain(daemon: DaemonProcess) -> None:
    (daemon.cdi / "huge.json").write_text(" " * (2 << 20))
    daemon.wait_property(SPEC, "Spec", "Reason", "cdi-uncertain")
    assert daemon.allocation("kvm")[:2] == (False, "cdi-uncertain")
    (daemon.cdi / "huge.json").unlink()
    daemon.wait_property(SPEC, "Spec", "State", "true")
    assert daemon.allocation("kvm")[0] is True


def test_a_refusal_is_on_record_under_the_id_of_the_answer(daemon: DaemonProcess) -> None:
    daemon.call("SetCdiMode", "st", "observe", "0")
    daemon.spec.write_text("{}")
    allowed, _, _, request_id = daemon.allocation("kvm")
    assert allowed is False
    record = daemon.wait_event("allocation-refused", DEVWARD_REQUEST_ID=str(request_id))
    assert record["DEVWARD_CALLER_UID"] == ["0"]
    assert record["DEVWARD_DEVICE"] == ["/dev/kvm"]


def test_whoever_makes_many_broken_files_does_not_fill_the_journal(daemon: DaemonProcess) -> None:
    for turn in range(5):
        for number in range(60):
            (daemon.cdi / f"broken-{turn}-{number}.json").write_text("{")
        daemon.call("Rescan", "t", "0")
    records = daemon.events("finding")
    assert records
    assert len(records) < 40, "300 files, counted and not written one by one"
    assert daemon.get("", "Manager", "AuditDropped") == 0


def test_a_link_to_a_file_of_roots_tells_nobody_what_is_in_it(daemon: DaemonProcess) -> None:
    secret = daemon.directory / "secret"
    secret.write_text("root:$s3cr3t:19000:0:99999:7:::\n")
    secret.chmod(0o600)
    for name in ("x.json", "x.yaml"):
        (daemon.cdi / name).symlink_to(secret)
        daemon.wait_event("finding", DEVWARD_SUBJECT=str(daemon.cdi / name))
    told = repr((daemon.call("ListFindings"), daemon.describe(), daemon.journal.records()))
    assert "it is a symbolic link" in told
    assert "s3cr3t" not in told
