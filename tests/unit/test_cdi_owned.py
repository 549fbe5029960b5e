"""One owned file: each pass looks, decides, acts and records, in that order, and publishes what it found, once."""

import asyncio
import hashlib
import json
import os
import stat
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from devward import names
from devward.cdi import owned, store
from devward.cdi.owned import OwnedSpec, Standing
from devward.cdi.store import NotAsWritten, StoreError
from devward.errors import StateError
from devward.model import ActionResult, DeviceKind, Outcome, RepairCause, SpecState
from devward.reasons import Reason
from devward.state import State, StateStore
from sim.cdi_desk import FILE, KVM, MSHV, Desk, cdi_desk, document, rival
from sim.entries import fingerprint
from sim.held_time import HeldTimeLoop, run_held, until

GOOD = document()
STALE = document(uid=0)
FOREIGN = GOOD.replace(b"hyperlight.dev/hypervisor", b"example.com/device")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: owners and labels")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def on_a_desk(tmp_path: Path, main: Callable[[Desk, OwnedSpec], Coroutine[Any, Any, None]], *, known: bool = True, **settings: Any) -> None:
    """Run a test with an owned file that devward has written before, unless told otherwise."""
    path = str(tmp_path / "etc" / "cdi" / FILE)
    kept = State().with_digest(path, digest(GOOD)) if known else State()

    async def enter(loop: HeldTimeLoop) -> None:
        async with cdi_desk(loop, tmp_path, start=False, kept=kept, **settings) as desk:
            await main(desk, desk.make_owned())

    run_held(enter)


async def one_pass(spec: OwnedSpec, order: owned.Order, engines: Standing | None = None) -> ActionResult:
    result = await spec.reconcile(order)
    spec.publish(engines)
    return result


# --- causes -------------------------------------------------------------------------------------------------------------------
def _edit(change: Callable[[Any], object]) -> Callable[[Path], object]:
    def tamper(path: Path) -> None:
        loaded = json.loads(GOOD)
        change(loaded)
        path.write_text(json.dumps(loaded))

    return tamper


def _node(**values: object) -> Callable[[Path], object]:
    return _edit(lambda loaded: loaded["devices"][0]["containerEdits"]["deviceNodes"][0].update(values))


def _extra(key: str, value: object) -> Callable[[Path], object]:
    return _edit(lambda loaded: loaded["devices"][0]["containerEdits"].update({key: value}))


#: R3 and R4: what somebody may do to the file, and the cause that devward gives.
TAMPERING: dict[str, tuple[Callable[[Path], object], RepairCause]] = {
    "missing": (lambda path: path.unlink(), RepairCause.MISSING),
    "directory missing": (lambda path: (path.unlink(), path.parent.rmdir()), RepairCause.MISSING),
    "empty": (lambda path: path.write_bytes(b""), RepairCause.MALFORMED),
    "torn": (lambda path: path.write_bytes(GOOD[:40]), RepairCause.MALFORMED),
    "binary": (lambda path: path.write_bytes(b"\xff\xfe\0"), RepairCause.MALFORMED),
    "too large": (lambda path: os.truncate(path, store.MAXIMUM_SIZE + 1), RepairCause.MALFORMED),
    "key twice": (lambda path: path.write_bytes(GOOD.replace(b"{", b'{"kind": "a/b",', 1)), RepairCause.MALFORMED),
    "kind": (lambda path: path.write_bytes(FOREIGN), RepairCause.STALE),
    "version": (_edit(lambda loaded: loaded.update(cdiVersion="0.6.0")), RepairCause.STALE),
    "device name": (_edit(lambda loaded: loaded["devices"][0].update(name="kvm2")), RepairCause.STALE),
    "device twice": (_edit(lambda loaded: loaded["devices"].append(loaded["devices"][0])), RepairCause.STALE),
    "no device": (_edit(lambda loaded: loaded.update(devices=[])), RepairCause.STALE),
    "path": (_node(path="/dev/null"), RepairCause.STALE),
    "permissions": (_node(permissions="rwm"), RepairCause.STALE),
    "uid": (_node(uid=0), RepairCause.STALE),
    "gid": (_node(gid=0), RepairCause.STALE),
    "host path": (_node(hostPath="/dev/sda"), RepairCause.STALE),
    "major": (_node(major=1), RepairCause.STALE),
    "second node": (
        _edit(lambda loaded: loaded["devices"][0]["containerEdits"]["deviceNodes"].append({"path": "/dev/sda"})),
        RepairCause.STALE,
    ),
    "environment": (_extra("env", ["HYPERLIGHT_HYPERVISOR=mshv"]), RepairCause.STALE),
    "mounts": (_extra("mounts", [{"hostPath": "/", "containerPath": "/host"}]), RepairCause.STALE),
    "hooks": (_extra("hooks", [{"hookName": "prestart", "path": "/bin/sh"}]), RepairCause.STALE),
    "global edits": (_edit(lambda loaded: loaded.update(containerEdits={"env": ["A=b"]})), RepairCause.STALE),
    "annotations": (_edit(lambda loaded: loaded.update(annotations={"a": "b"})), RepairCause.STALE),
    "mode 0600": (lambda path: path.chmod(0o600), RepairCause.MODE),
    "mode 0666": (lambda path: path.chmod(0o666), RepairCause.MODE),
    "mode 4644": (lambda path: path.chmod(0o4644), RepairCause.MODE),
    "hard link": (lambda path: os.link(path, path.parent.parent / "other"), RepairCause.HARD_LINK),
}
ROOT_TAMPERING: dict[str, tuple[Callable[[Path], object], RepairCause]] = {
    "owner": (lambda path: os.chown(path, 1234, -1), RepairCause.OWNER),
    "group": (lambda path: os.chown(path, -1, 1234), RepairCause.OWNER),
    "label": (lambda path: os.setxattr(path, store.LABEL_ATTRIBUTE, b"system_u:object_r:user_tmp_t:s0\0"), RepairCause.LABEL),
}


@pytest.mark.parametrize(
    ("tamper", "cause"),
    [
        *(pytest.param(*value, id=key) for key, value in TAMPERING.items()),
        *(pytest.param(*value, id=key, marks=needs_root) for key, value in ROOT_TAMPERING.items()),
    ],
)
def test_r3_r4_every_difference_is_repaired_to_the_exact_content(
    tmp_path: Path, tamper: Callable[[Path], object], cause: RepairCause
) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        store.write(str(desk.cdi), FILE, GOOD)
        tamper(desk.path)
        before = digest(desk.path.read_bytes()) if desk.path.exists() and cause is not RepairCause.MISSING else ""
        result = await one_pass(spec, desk.order())
        assert result == ActionResult(str(desk.path), Outcome.SUCCESS, cause)
        assert desk.path.read_bytes() == GOOD
        facts = desk.path.stat()
        assert (stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid, facts.st_nlink) == (0o644, os.geteuid(), os.getegid(), 1)
        assert stat.S_IMODE(desk.cdi.stat().st_mode) == 0o755
        assert os.listdir(desk.cdi) == [FILE]
        assert (spec.view.state, spec.view.devices) == (SpecState.TRUE, (KVM,))
        assert (spec.view.repair_count, spec.view.last_repair_cause) == (1, cause)
        assert spec.view.last_repair_usec == desk.clock.realtime_usec()
        assert desk.repairs == [cause]
        assert desk.outcomes() == [("success", cause)]
        intent, outcome = desk.records("spec-repair")
        for record in (intent, outcome):
            assert record[names.FIELD_CDI_FILE] == [str(desk.path)]
            if cause is not RepairCause.MALFORMED:
                assert record.get(names.FIELD_SHA256_BEFORE, [""]) == [before]
        assert outcome[names.FIELD_SHA256_AFTER] == [digest(GOOD)]
        assert await one_pass(spec, desk.order()) == ActionResult(str(desk.path), Outcome.NOOP, Reason.OK)

    on_a_desk(tmp_path, main)


@needs_root
def test_a_label_that_is_wrong_at_the_start_already_is_repaired(tmp_path: Path) -> None:
    """The label that a file should have is that of a fresh one in the directory."""

    async def main(desk: Desk, spec: OwnedSpec) -> None:
        store.write(str(desk.cdi), FILE, GOOD)
        os.setxattr(desk.path, store.LABEL_ATTRIBUTE, b"wrong\0")
        assert (await one_pass(spec, desk.order())).reason == RepairCause.LABEL
        assert store.look(str(desk.cdi), FILE).label == store.fresh_label(str(desk.cdi), FILE)

    on_a_desk(tmp_path, main)


@needs_root
@pytest.mark.parametrize("wishes", [{"may_write": False}, {"dry_run": True}])
def test_nothing_is_written_to_learn_a_label_where_nothing_may_be_written(
    tmp_path: Path, wishes: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        store.write(str(desk.cdi), FILE, GOOD)
        os.setxattr(desk.path, store.LABEL_ATTRIBUTE, b"wrong\0")
        monkeypatch.setattr(store, "fresh_label", lambda *_words: pytest.fail("a temporary file was made"))
        await one_pass(spec, desk.order(**wishes))

    on_a_desk(tmp_path, main)


@needs_root
def test_a_label_that_cannot_be_told_is_no_reason_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        store.write(str(desk.cdi), FILE, GOOD)
        os.setxattr(desk.path, store.LABEL_ATTRIBUTE, b"some\0")

        def fail(*_words: str) -> str:
            raise StoreError(Reason.CDI_READ_ONLY, "read-only")

        monkeypatch.setattr(store, "fresh_label", fail)
        assert (await one_pass(spec, desk.order())).outcome is Outcome.NOOP
        assert spec.view.state is SpecState.TRUE

    on_a_desk(tmp_path, main)


def test_equal_content_is_never_rewritten(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        compact = json.dumps(json.loads(GOOD), separators=(",", ":"), sort_keys=True).encode()
        desk.path.write_bytes(compact)
        desk.path.chmod(0o644)
        before = fingerprint(desk.path), desk.path.stat().st_ctime_ns
        for _ in range(100):
            assert (await one_pass(spec, desk.order())).outcome is Outcome.NOOP
        assert (fingerprint(desk.path), desk.path.stat().st_ctime_ns) == before
        assert desk.records() == []
        assert (spec.view.state, spec.view.repair_count) == (SpecState.TRUE, 0)

    on_a_desk(tmp_path, main)


# --- the order of things ---------------------------------------------------------------------------------------------------------
def test_intent_and_digest_are_on_record_before_the_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        seen: list[tuple[list[str], bool, bool]] = []
        real = store.write

        def spy(directory: str, name: str, data: bytes, **more: Any) -> str | None:
            kept = StateStore(str(desk.state_directory), realtime_usec=lambda: 1).load().state
            seen.append(
                (
                    [record[names.FIELD_OUTCOME][0] for record in desk.records("spec-repair")],
                    digest(data) in kept.digests.get(str(desk.path), ()),
                    desk.path.exists(),
                )
            )
            return real(directory, name, data, **more)

        monkeypatch.setattr(store, "write", spy)
        await one_pass(spec, desk.order())
        assert seen == [(["intent"], True, False)]
        assert desk.outcomes() == [("success", "published")]

    on_a_desk(tmp_path, main, known=False)


def test_a_manual_action_gives_its_records_its_request_id(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        await one_pass(spec, desk.order(request=desk.request("r-42")))
        assert [record[names.FIELD_REQUEST_ID] for record in desk.records("spec-repair")] == [["r-42"], ["r-42"]]
        assert all(record[names.FIELD_CALLER_UID] == ["0"] for record in desk.records("spec-repair"))

    on_a_desk(tmp_path, main)


def test_the_record_holds_what_was_found(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        desk.path.write_bytes(STALE)
        desk.path.chmod(0o600)
        os.utime(desk.path, ns=(1, 1_700_000_000_000_000_000))
        await one_pass(spec, desk.order())
        evidence = json.loads(desk.records("spec-repair")[0][names.FIELD_EVIDENCE][0])
        assert evidence["found"] == {
            "mode": "0600",
            "uid": os.geteuid(),
            "gid": os.getegid(),
            "links": 1,
            "mtime_usec": 1_700_000_000_000_000,
        }
        assert any("uid" in difference for difference in evidence["differences"])

    on_a_desk(tmp_path, main)


# --- failure ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reason", [Reason.CDI_READ_ONLY, Reason.CDI_NO_SPACE, Reason.CDI_IO_ERROR, Reason.CDI_UNWRITABLE])
def test_r8_a_failing_write_is_recorded_published_and_made_up_for(tmp_path: Path, reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        desk.path.write_bytes(STALE)
        desk.path.chmod(0o644)

        def fail(*_words: object, **_named: object) -> str:
            raise StoreError(reason, "as the test says")

        monkeypatch.setattr(store, "write", fail)
        assert await one_pass(spec, desk.order()) == ActionResult(str(desk.path), Outcome.FAILURE, reason)
        assert (spec.view.state, spec.view.reason, spec.view.repair_count) == (SpecState.BLOCKED, reason, 0)
        assert spec.view.devices == (KVM,), "what engines find in it still"
        assert desk.outcomes() == [("failure", "stale")]
        assert [record[names.FIELD_REASON] for record in desk.records("spec-blocked")] == [[reason]]
        desk.loop.advance(1)
        await one_pass(spec, desk.order())
        assert len(desk.records("spec-blocked")) == 1, "told once"
        assert desk.outcomes() == [("failure", "stale")]
        assert desk.repairs == []
        monkeypatch.undo()
        desk.loop.advance(2)
        await one_pass(spec, desk.order())
        assert spec.view.state is SpecState.TRUE
        assert len(desk.records("spec-restored")) == 1
        assert not spec.contest.repairs, "a repair that failed is no repair that was undone"

    on_a_desk(tmp_path, main)


def test_a_first_write_that_fails_leaves_the_path_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise whatever an administrator puts there later would be replaced as if it were ours."""

    async def main(desk: Desk, spec: OwnedSpec) -> None:
        def fail(*_words: object, **_named: object) -> str:
            raise StoreError(Reason.CDI_READ_ONLY, "read-only")

        with monkeypatch.context() as patch:
            patch.setattr(store, "write", fail)
            await one_pass(spec, desk.order())
        assert not spec.known
        desk.path.write_bytes(FOREIGN)
        await one_pass(spec, desk.order())
        assert spec.view.state is SpecState.FOREIGN
        assert desk.path.read_bytes() == FOREIGN

    on_a_desk(tmp_path, main, known=False)


def test_a_write_that_fails_does_not_make_a_known_path_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        def fail(*_words: object, **_named: object) -> str:
            raise StoreError(Reason.CDI_READ_ONLY, "read-only")

        monkeypatch.setattr(store, "write", fail)
        await one_pass(spec, desk.order())
        assert spec.known

    on_a_desk(tmp_path, main)


def test_an_exception_in_the_middle_still_gives_one_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        def fail(*_words: object, **_named: object) -> str:
            raise ZeroDivisionError

        monkeypatch.setattr(store, "write", fail)
        with pytest.raises(ZeroDivisionError):
            await spec.reconcile(desk.order())
        assert desk.outcomes() == [("failure", "missing")]
        assert desk.repairs == []

    on_a_desk(tmp_path, main)


def test_a_directory_that_is_replaced_all_the_time_ends_the_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        calls: list[int] = []

        def fail(*_words: object, **_named: object) -> str:
            calls.append(1)
            raise StoreError(Reason.CDI_MISSING, "the directory was replaced")

        monkeypatch.setattr(store, "write", fail)
        result = await one_pass(spec, desk.order())
        assert result == ActionResult(str(desk.path), Outcome.FAILURE, Reason.DEADLINE)
        assert len(calls) == owned.ATTEMPTS
        assert (spec.view.state, spec.view.reason) == (SpecState.BLOCKED, Reason.CDI_MISSING)
        assert desk.outcomes() == [("failure", "missing")], "told once"
        await one_pass(spec, desk.order())
        assert (spec.view.state, spec.view.reason) == (SpecState.BLOCKED, Reason.CDI_MISSING)
        assert len(calls) == owned.ATTEMPTS, "and tried again later, not at once"

    on_a_desk(tmp_path, main)


def test_a_directory_that_is_replaced_once_is_written_in_the_same_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        real = os.fsync
        swapped: list[int] = []

        def replace(file: int) -> None:
            real(file)
            if not swapped and stat.S_ISREG(os.fstat(file).st_mode) and "etc/cdi" in os.readlink(f"/proc/self/fd/{file}"):
                swapped.append(1)
                desk.cdi.rename(desk.cdi.parent / "gone")
                desk.cdi.mkdir()

        monkeypatch.setattr(os, "fsync", replace)
        assert (await one_pass(spec, desk.order())).outcome is Outcome.SUCCESS
        assert swapped == [1]
        assert desk.path.read_bytes() == GOOD
        assert desk.outcomes() == [("failure", "missing"), ("success", "missing")]

    on_a_desk(tmp_path, main)


def test_a_hang_is_published_and_what_it_left_is_found_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        entered, let_go = threading.Event(), threading.Event()
        real = store.write

        def hang(*words: Any, **named: Any) -> str | None:
            entered.set()
            let_go.wait(30)
            return real(*words, **named)

        monkeypatch.setattr(store, "write", hang)
        task = asyncio.ensure_future(one_pass(spec, desk.order()))
        await until(entered.is_set)
        desk.loop.advance(owned.FILE_DEADLINE + 0.1)
        assert await task == ActionResult(str(desk.path), Outcome.FAILURE, Reason.CDI_TIMEOUT)
        assert (spec.view.state, spec.view.reason) == (SpecState.BLOCKED, Reason.CDI_TIMEOUT)
        assert (await one_pass(spec, desk.order())).reason == Reason.CDI_TIMEOUT
        assert desk.outcomes() == [("failure", "missing")]
        let_go.set()
        await until(lambda: not desk.files.hung)
        assert (await one_pass(spec, desk.order())).outcome is Outcome.NOOP
        assert spec.view.state is SpecState.TRUE

    on_a_desk(tmp_path, main)


# --- a repair war -----------------------------------------------------------------------------------------------------------------
def test_repairs_that_are_undone_are_spaced_out_and_told_once_a_step(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        await one_pass(spec, desk.order())
        desk.sink.clear()
        made = 0
        for _ in range(400):
            desk.path.write_bytes(STALE)
            result = await one_pass(spec, desk.order())
            made += result.outcome is Outcome.SUCCESS
            if result.outcome is Outcome.NOOP:
                assert result.reason == Reason.CDI_CONTESTED
                assert (spec.view.state, spec.view.reason) == (SpecState.CONTESTED, Reason.CDI_CONTESTED)
            desk.loop.advance(0.25)
        waits = [json.loads(record[names.FIELD_EVIDENCE][0])["wait_seconds"] for record in desk.records("spec-contested")]
        assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
        assert made == 5 + 7, "five in a row, and then one after each wait"

    on_a_desk(tmp_path, main, contested_after=5)


def test_a_repair_on_demand_goes_through_at_once(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        await one_pass(spec, desk.order())
        for _ in range(5):
            desk.path.write_bytes(STALE)
            await one_pass(spec, desk.order())
        desk.path.write_bytes(STALE)
        assert (await one_pass(spec, desk.order())).reason == Reason.CDI_CONTESTED
        assert spec.view.devices == (KVM,)
        assert (await one_pass(spec, desk.order(demanded=True))).outcome is Outcome.SUCCESS
        assert desk.path.read_bytes() == GOOD
        assert (spec.view.state, spec.view.devices) == (SpecState.CONTESTED, (KVM,)), "and stays contested"

    on_a_desk(tmp_path, main, contested_after=5)


def test_a_minute_of_quiet_ends_the_contest(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        await one_pass(spec, desk.order())
        for _ in range(5):
            desk.path.write_bytes(STALE)
            await one_pass(spec, desk.order())
        result = await one_pass(spec, desk.order())
        assert (result.outcome, result.reason) == (Outcome.NOOP, Reason.OK)
        assert spec.view.state is SpecState.CONTESTED
        desk.loop.advance(59.9)
        await one_pass(spec, desk.order())
        assert spec.view.state is SpecState.CONTESTED
        desk.loop.advance(0.2)
        await one_pass(spec, desk.order())
        assert spec.view.state is SpecState.TRUE

    on_a_desk(tmp_path, main, contested_after=5)


def test_what_devward_itself_wants_otherwise_is_no_contest(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        for number in range(12):
            wishes: dict[str, Any] = (
                {"desired": None, "devices": ()} if number % 3 == 2 else {"desired": document(uid=number), "devices": (KVM,)}
            )
            assert (await one_pass(spec, desk.order(**wishes))).outcome is Outcome.SUCCESS
        assert not spec.contest.repairs
        assert desk.records("spec-contested") == []

    on_a_desk(tmp_path, main, contested_after=2)


@pytest.mark.parametrize("wishes", [{"dry_run": True}, {"may_write": False}])
def test_a_pass_that_did_not_write_does_not_make_the_next_write_a_contest(tmp_path: Path, wishes: dict[str, bool]) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        await one_pass(spec, desk.order())
        other = document(uid=7)
        await one_pass(spec, desk.order(desired=other, **wishes))
        await one_pass(spec, desk.order(desired=other))
        assert not spec.contest.repairs

    on_a_desk(tmp_path, main, contested_after=1)


def test_a_file_that_never_reads_back_is_contested_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system without modes, or where somebody rewrites it within the same millisecond: each pass would cause the next."""

    async def main(desk: Desk, spec: OwnedSpec) -> None:
        def fail(*_words: object, **_named: object) -> str:
            raise NotAsWritten("it does not read back")

        monkeypatch.setattr(store, "write", fail)
        results = [await one_pass(spec, desk.order()) for _ in range(7)]
        assert [result.reason for result in results] == [Reason.CDI_IO_ERROR] * 5 + [Reason.CDI_CONTESTED] * 2
        assert len(desk.records("spec-contested")) == 1

    on_a_desk(tmp_path, main, contested_after=5)


# --- first contact ------------------------------------------------------------------------------------------------------------------
def backups(desk: Desk) -> list[bytes]:
    folder = desk.state_directory / names.BACKUP_DIRECTORY
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.exists() else []


@pytest.mark.parametrize("data", [STALE, b"", b"{", b"not CDI at all"], ids=["our kind", "empty", "torn", "text"])
def test_at_first_contact_the_file_is_copied_and_taken_over(tmp_path: Path, data: bytes) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        desk.path.write_bytes(data)
        assert (await one_pass(spec, desk.order())).reason == RepairCause.TAKE_OVER
        assert desk.path.read_bytes() == GOOD
        assert backups(desk) == [data]
        assert spec.known
        desk.path.write_bytes(FOREIGN)
        assert (await one_pass(spec, desk.order())).reason == RepairCause.STALE, "from now on it is ours"
        assert backups(desk) == [data]

    on_a_desk(tmp_path, main, known=False)


def test_a_foreign_file_is_left_alone_until_it_is_adopted(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        desk.path.write_bytes(FOREIGN)
        before = fingerprint(desk.path)
        for wishes in ({}, {"demanded": True}, {"desired": None, "devices": ()}):
            result = await one_pass(spec, desk.order(**wishes))
            assert (result.outcome, result.reason) == (Outcome.FAILURE, Reason.CDI_FOREIGN)
        assert (spec.view.state, spec.view.devices) == (SpecState.FOREIGN, ())
        assert fingerprint(desk.path) == before
        assert [record[names.FIELD_CDI_FILE] for record in desk.records("spec-foreign")] == [[str(desk.path)]]
        assert (await one_pass(spec, desk.order(adopt=True))).reason == RepairCause.ADOPTED
        assert desk.path.read_bytes() == GOOD
        assert backups(desk) == [FOREIGN]
        assert (await one_pass(spec, desk.order())).outcome is Outcome.NOOP
        assert len(desk.records("spec-restored")) == 1

    on_a_desk(tmp_path, main, known=False)


@pytest.mark.parametrize("error", [StateError("full"), OSError(28, "no space"), TimeoutError(110, "timed out")])
def test_without_a_copy_nothing_is_replaced(tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        def fail(*_words: object) -> str:
            raise error

        monkeypatch.setattr(desk.store, "backup", fail)
        for data, wishes in ((STALE, {}), (FOREIGN, {"adopt": True}), (STALE, {"desired": None, "devices": ()})):
            desk.path.write_bytes(data)
            result = await one_pass(spec, desk.order(**wishes))
            assert (result.outcome, result.reason) == (Outcome.FAILURE, Reason.CDI_IO_ERROR)
            assert desk.path.read_bytes() == data
            assert not spec.known

    on_a_desk(tmp_path, main, known=False)


def test_a_foreign_file_too_large_to_copy_is_not_adopted(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        desk.path.write_bytes(b"x" * (store.MAXIMUM_SIZE + 1))
        for wishes in ({}, {"adopt": True}):
            result = await one_pass(spec, desk.order(**wishes))
            assert (result.outcome, result.reason) == (Outcome.FAILURE, Reason.CDI_MALFORMED)
        assert desk.path.stat().st_size == store.MAXIMUM_SIZE + 1

    on_a_desk(tmp_path, main, known=False)


def test_a_file_that_arrives_between_the_copy_and_the_act_is_judged_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        desk.path.write_bytes(STALE)
        real = desk.store.backup

        def swap(name: str, data: bytes) -> str:
            kept = real(name, data)
            desk.path.write_bytes(FOREIGN)
            return kept

        monkeypatch.setattr(desk.store, "backup", swap)
        result = await one_pass(spec, desk.order())
        assert (result.outcome, result.reason) == (Outcome.FAILURE, Reason.CDI_FOREIGN)
        assert desk.path.read_bytes() == FOREIGN

    on_a_desk(tmp_path, main, known=False)


def test_an_equal_file_becomes_ours_without_being_touched(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        store.write(str(desk.cdi), FILE, GOOD)
        before = fingerprint(desk.path)
        assert (await one_pass(spec, desk.order())).outcome is Outcome.NOOP
        assert spec.known
        assert fingerprint(desk.path) == before

    on_a_desk(tmp_path, main, known=False)


# --- what is published ----------------------------------------------------------------------------------------------------------------
def test_before_the_first_pass_nothing_is_claimed(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        store.write(str(desk.cdi), FILE, GOOD)
        assert (spec.view.state, spec.view.reason, spec.view.devices) == (SpecState.UNKNOWN, Reason.NOT_CHECKED, ())
        spec.publish(None)
        assert spec.view.state is SpecState.UNKNOWN

    on_a_desk(tmp_path, main)


@pytest.mark.parametrize("data", [None, STALE, b"{", FOREIGN], ids=["missing", "stale", "torn", "foreign"])
def test_a_dry_run_changes_nothing_at_all(tmp_path: Path, data: bytes | None) -> None:
    """Neither file nor state nor what is published nor what is remembered."""

    async def main(desk: Desk, spec: OwnedSpec) -> None:
        if data is not None:
            desk.path.write_bytes(data)
        before = (spec.view, spec.contest, desk.remembered.state, sorted(os.listdir(desk.state_directory)))
        found = fingerprint(desk.cdi)
        for wishes in ({}, {"adopt": True}, {"demanded": True}, {"desired": None, "devices": ()}):
            result = await spec.reconcile(desk.order(dry_run=True, **wishes))
            assert result.outcome in (Outcome.DRY_RUN, Outcome.NOOP, Outcome.FAILURE)
        assert (spec.view, spec.contest, desk.remembered.state, sorted(os.listdir(desk.state_directory))) == before
        assert fingerprint(desk.cdi) == found
        assert desk.records() == []
        spec.publish(None)
        assert spec.view == before[0], "what it found is not published later either"

    on_a_desk(tmp_path, main, known=False)


@pytest.mark.parametrize(
    ("data", "known", "wishes", "result"),
    [
        (None, True, {}, (Outcome.DRY_RUN, RepairCause.MISSING)),
        (STALE, True, {}, (Outcome.DRY_RUN, RepairCause.STALE)),
        (STALE, False, {}, (Outcome.DRY_RUN, RepairCause.TAKE_OVER)),
        (FOREIGN, False, {}, (Outcome.FAILURE, Reason.CDI_FOREIGN)),
        (FOREIGN, False, {"adopt": True}, (Outcome.DRY_RUN, RepairCause.ADOPTED)),
        (STALE, True, {"desired": None, "devices": ()}, (Outcome.DRY_RUN, RepairCause.WITHDRAWN)),
        (None, True, {"desired": None, "devices": ()}, (Outcome.NOOP, Reason.OK)),
    ],
    ids=["missing", "stale", "take-over", "foreign", "adopted", "withdrawn", "empty"],
)
def test_a_dry_run_says_what_would_be_done(
    tmp_path: Path, data: bytes | None, known: bool, wishes: dict[str, Any], result: tuple[Outcome, str]
) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        if data is not None:
            desk.path.write_bytes(data)
        told = await spec.reconcile(desk.order(dry_run=True, **wishes))
        assert (told.outcome, told.reason) == result

    on_a_desk(tmp_path, main, known=known)


def test_a_dry_run_learns_nothing_from_an_equal_file(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        store.write(str(desk.cdi), FILE, GOOD)
        assert (await spec.reconcile(desk.order(dry_run=True))).outcome is Outcome.NOOP
        assert not spec.known

    on_a_desk(tmp_path, main, known=False)


def test_where_nothing_may_be_written_the_drift_is_published(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        desk.path.write_bytes(document(uid=0))
        for data, devices in ((document(uid=0), (KVM,)), (b"{", ()), (FOREIGN, ()), (None, ())):
            desk.path.write_bytes(data) if data is not None else desk.path.unlink()
            result = await one_pass(spec, desk.order(may_write=False, demanded=True))
            assert (result.outcome, result.reason) == (Outcome.NOOP, Reason.CDI_PAUSED)
            assert (spec.view.state, spec.view.devices) == (SpecState.DRIFTED, devices), "what engines find there"
        assert [record[names.FIELD_EVENT] for record in desk.records()] == [["spec-drifted"]]

    on_a_desk(tmp_path, main)


SHADOWED = Standing(SpecState.SHADOWED, Reason.CDI_SHADOWED, "x wins")


def test_what_engines_make_of_a_true_file_is_published_in_its_place(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        for _ in range(3):
            await one_pass(spec, desk.order(), SHADOWED)
            assert (spec.view.state, spec.view.reason, spec.view.devices) == (SpecState.SHADOWED, Reason.CDI_SHADOWED, (KVM,))
            assert "x wins" in spec.view.text
        since = spec.view.state_since_usec
        desk.loop.advance(100)
        await one_pass(spec, desk.order(), SHADOWED)
        assert spec.view.state_since_usec == since
        assert len(desk.records("spec-conflict")) == 1, "told once, not in every pass"
        assert desk.records("spec-restored") == []
        await one_pass(spec, desk.order())
        assert spec.view.state is SpecState.TRUE
        assert spec.view.state_since_usec == desk.clock.realtime_usec()
        assert len(desk.records("spec-restored")) == 1

    on_a_desk(tmp_path, main)


def test_what_engines_make_of_a_file_that_is_not_in_order_is_of_no_interest(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        desk.path.mkdir()
        await one_pass(spec, desk.order(), SHADOWED)
        assert (spec.view.state, spec.view.reason) == (SpecState.BLOCKED, Reason.CDI_NOT_REGULAR)
        spec.switched_off()
        assert (spec.view.state, spec.view.reason) == (SpecState.UNKNOWN, Reason.CDI_PAUSED)
        spec.broke_off(ValueError("secret"))
        assert (spec.view.state, spec.view.reason) == (SpecState.UNKNOWN, Reason.NOT_CHECKED)
        assert "ValueError" in spec.view.text
        assert "secret" not in spec.view.text

    on_a_desk(tmp_path, main)


def test_two_devices_are_published_by_their_qualified_names(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        desired = document(DeviceKind.KVM, DeviceKind.MSHV)
        await one_pass(spec, desk.order(desired=desired, devices=(KVM, MSHV)))
        assert spec.view.devices == (KVM, MSHV)
        assert desk.path.read_bytes() == desired
        await one_pass(spec, desk.order(desired=None, devices=()))
        assert (spec.view.state, spec.view.devices) == (SpecState.EMPTY, ())
        assert not desk.path.exists()
        assert desk.outcomes("spec-withdraw") == [("success", "withdrawn")]

    on_a_desk(tmp_path, main)


def test_content_for_the_first_pass_is_that_of_our_own_file_only(tmp_path: Path) -> None:
    async def main(desk: Desk, spec: OwnedSpec) -> None:
        desk.path.write_bytes(rival())
        assert await spec.found_devices() is None
        await desk.remembered.add_digest(str(desk.path), digest(GOOD))
        assert await spec.found_devices() == rival()

    on_a_desk(tmp_path, main, known=False)
