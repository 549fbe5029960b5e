"""The loop around an owned CDI file, end to end on a scratch directory: real inotify, real files, a real journal's socket, held time."""

import asyncio
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devward import names
from devward.cdi import contest, store
from devward.model import CdiMode, DeviceKind, Health, Identity, Outcome, RepairCause, SpecState, Trigger, WithdrawPolicy
from devward.reasons import Reason
from devward.remembered import without_pause
from devward.state import Pause
from sim.cdi_desk import (
    EPOCH_USEC,
    FILE,
    FOREIGN,
    GOOD,
    KVM,
    MSHV,
    STALE,
    Desk,
    candidate,
    document,
    leave_file,
    pause,
    rival,
    run_at_desk,
)
from sim.entries import DEVICE, OBSTRUCTIONS, OpenWatch, fingerprint

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: owners and device nodes")


# --- the first pass --------------------------------------------------------------------------------------------------
class TestStart:
    def test_a_missing_file_is_written_and_published(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            assert desk.path.read_bytes() == GOOD
            assert (desk.state, desk.view.devices) == (SpecState.TRUE, (KVM,))
            assert desk.reconciler.effective(KVM) == (True, Reason.OK, "")
            assert [view.file for view in desk.reconciler.views] == [str(desk.path)]
            assert desk.passes > 0
            assert not desk.reconciler.busy
            assert desk.outcomes() == [("success", "published")]

        run_at_desk(tmp_path, main)

    def test_a_true_file_is_not_touched(self, tmp_path: Path) -> None:
        kept = leave_file(tmp_path)
        before = fingerprint(tmp_path / "etc" / "cdi" / FILE)

        async def main(desk: Desk) -> None:
            assert desk.state is SpecState.TRUE
            assert fingerprint(desk.path) == before
            assert desk.records() == []

        run_at_desk(tmp_path, main, kept=kept)

    def test_leftovers_of_a_crash_are_swept_and_told_of(self, tmp_path: Path) -> None:
        kept = leave_file(tmp_path)
        leftover = tmp_path / "etc" / "cdi" / f".devward.{FILE}.0123456789abcdef.tmp"
        leftover.touch()

        async def main(desk: Desk) -> None:
            assert not leftover.exists()
            (record,) = desk.records("leftovers-swept")
            assert record[names.FIELD_COUNT] == ["1"]
            assert json.loads(record[names.FIELD_EVIDENCE][0])["files"] == [leftover.name]

        run_at_desk(tmp_path, main, kept=kept)

    @pytest.mark.parametrize("mode", [CdiMode.OBSERVE, CdiMode.OFF])
    def test_where_nothing_may_be_written_nothing_is_swept_either(self, tmp_path: Path, mode: CdiMode) -> None:
        kept = leave_file(tmp_path)
        leftover = tmp_path / "etc" / "cdi" / f".devward.{FILE}.0123456789abcdef.tmp"
        leftover.touch()
        before = fingerprint(leftover.parent)

        async def main(_desk: Desk) -> None:
            assert fingerprint(leftover.parent) == before

        run_at_desk(tmp_path, main, kept=kept, mode=mode)

    def test_a_device_that_the_file_holds_stays_while_it_is_not_judged(self, tmp_path: Path) -> None:
        kept = leave_file(tmp_path, document(DeviceKind.KVM, DeviceKind.MSHV))

        async def main(desk: Desk) -> None:
            desk.devices = [candidate(Identity.UNKNOWN, Health.UNKNOWN), candidate(Identity.UNKNOWN, Health.UNKNOWN, DeviceKind.MSHV)]
            await desk.reconciler.start()
            await desk.quiet()
            assert desk.path.read_bytes() == document(DeviceKind.KVM, DeviceKind.MSHV)
            assert desk.state is SpecState.TRUE
            await desk.advance(100)
            assert desk.path.read_bytes() == document(DeviceKind.KVM, DeviceKind.MSHV)

        run_at_desk(tmp_path, main, kept=kept, start=False)

    @pytest.mark.parametrize("data", [STALE, b"{"], ids=["our kind", "torn"])
    @pytest.mark.parametrize("known", [False, True])
    def test_no_file_goes_before_the_devices_are_judged(self, tmp_path: Path, data: bytes, known: bool) -> None:
        """Never break a working node: the first pass may come before the first look at the devices."""
        kept = leave_file(tmp_path, data)
        if known and data == STALE:
            kept = leave_file(tmp_path, b"{}")

        async def main(desk: Desk) -> None:
            desk.devices = [candidate(Identity.UNKNOWN, Health.UNKNOWN)]
            before = fingerprint(desk.path)
            await desk.reconciler.start()
            await desk.quiet()
            assert fingerprint(desk.path) == before
            assert (desk.state, desk.view.reason) == (SpecState.UNKNOWN, Reason.NOT_CHECKED)
            desk.devices = [candidate()]
            desk.reconciler.nudge(Trigger.UDEV)
            await desk.quiet()
            assert desk.path.read_bytes() == GOOD
            assert desk.records("spec-withdraw") == []

        run_at_desk(tmp_path, main, kept=kept if known else None, start=False)

    def test_a_nudge_before_the_start_does_nothing(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.reconciler.nudge(Trigger.UDEV)
            await desk.quiet()
            assert desk.passes == 0
            assert (desk.state, desk.view.devices) == (SpecState.UNKNOWN, ())
            assert desk.reconciler.effective(KVM)[0] is False

        run_at_desk(tmp_path, main, start=False)


# --- repair by inotify -----------------------------------------------------------------------------------------------
TAMPERING: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: path.unlink(), "missing"),
    "directory missing": (lambda path: shutil.rmtree(path.parent), "missing"),
    "parent missing": (lambda path: shutil.rmtree(path.parent.parent), "missing"),
    "directory moved away": (lambda path: path.parent.rename(path.parent.parent / "away"), "missing"),
    "renamed": (lambda path: path.rename(path.parent / "x.bak"), "missing"),
    "malformed": (lambda path: path.write_bytes(b"{"), "malformed"),
    "emptied": (lambda path: os.truncate(path, 0), "malformed"),
    "stale": (lambda path: path.write_bytes(STALE), "stale"),
    "stale by rename": (lambda path: ((path.parent / ".x").write_bytes(STALE), (path.parent / ".x").rename(path)), "stale"),
    "another kind": (lambda path: path.write_bytes(FOREIGN), "stale"),
    "mode": (lambda path: path.chmod(0o640), "mode"),
    "hard link": (lambda path: os.link(path, path.parent.parent / "second"), "hard-link"),
}
ROOT_TAMPERING: dict[str, tuple[Callable[[Path], object], str]] = {
    "owner": (lambda path: os.chown(path, 1, 1), "owner"),
    "label": (lambda path: os.setxattr(path, store.LABEL_ATTRIBUTE, b"user_tmp_t\0"), "label"),
}


class TestRepair:
    @pytest.mark.parametrize(
        ("tamper", "cause"),
        [
            *(pytest.param(*value, id=key) for key, value in TAMPERING.items()),
            *(pytest.param(*value, id=key, marks=needs_root) for key, value in ROOT_TAMPERING.items()),
        ],
    )
    def test_r3_tampering_is_repaired_by_its_own_event(self, tmp_path: Path, tamper: Callable[[Path], object], cause: str) -> None:
        async def main(desk: Desk) -> None:
            desk.sink.clear()
            desk.repairs.clear()
            passes = desk.passes
            tamper(desk.path)
            await desk.until(lambda: desk.repairs, "a repair")
            await desk.quiet()
            assert desk.path.read_bytes() == GOOD
            assert desk.cdi.stat().st_mode & 0o7777 == 0o755
            assert desk.repairs == [cause]
            assert desk.outcomes() == [("success", cause)]
            assert all(record["DEVWARD_TRIGGER"] == ["inotify"] for record in desk.records("spec-repair"))
            assert desk.state is SpecState.TRUE
            assert desk.passes - passes <= 4, "own writes lead to a pass or two that find nothing, and no further"

        run_at_desk(tmp_path, main)

    def test_a_burst_is_coalesced(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            passes = desk.passes
            for number in range(50):
                desk.path.write_bytes(document(uid=number))
                for _ in range(10):  # time enough for a pass, but the clock stands still
                    await asyncio.sleep(0.0)
                    time.sleep(0.0005)  # noqa: ASYNC251 # same
            await desk.quiet()
            assert desk.path.read_bytes() == GOOD
            assert desk.passes - passes <= 5

        run_at_desk(tmp_path, main)

    def test_equal_content_is_never_rewritten(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.path.write_bytes(json.dumps(json.loads(GOOD), indent=7).encode())
            await desk.quiet()
            before = fingerprint(desk.path)
            for _ in range(100):
                await desk.look(scan=True, demanded=True)
            assert fingerprint(desk.path) == before
            assert desk.view.repair_count == 0

        run_at_desk(tmp_path, main)

    def test_r7_other_files_are_never_touched(self, tmp_path: Path) -> None:
        cdi_directory = tmp_path / "etc" / "cdi"
        cdi_directory.mkdir(parents=True)
        for name in (
            "nvidia.yaml",
            "broken.json",
            "notes.txt",
            ".hidden.json",
            ".devward-not-ours",
            f"{FILE}.bak",
            f"{FILE}~",
            "other.json",
        ):
            (cdi_directory / name).write_text(f"content of {name}")
        (cdi_directory / "rival-elsewhere.json").write_bytes(FOREIGN)
        for kind, (_, make) in OBSTRUCTIONS.items():
            make(cdi_directory / f"{kind}.json" if kind != "FIFO" else cdi_directory / "FIFO")
        names_before = sorted(os.listdir(cdi_directory))
        before = {name: fingerprint(cdi_directory / name) for name in names_before}

        async def main(desk: Desk) -> None:
            for act in (desk.path.unlink, lambda: desk.path.write_bytes(STALE), lambda: desk.path.chmod(0)):
                act()
                await desk.quiet()
                await desk.look(scan=True, demanded=True)
            desk.devices = []
            await desk.advance(1)
            await desk.look()
            await desk.advance(11)
            assert not desk.path.exists()
            assert sorted(os.listdir(cdi_directory)) == names_before
            assert {name: fingerprint(cdi_directory / name) for name in names_before} == before

        run_at_desk(tmp_path, main)

    @pytest.mark.parametrize(
        ("entry", "make"),
        [
            *(pytest.param(*value, id=key) for key, value in OBSTRUCTIONS.items()),
            pytest.param(*DEVICE, id="device", marks=needs_root),
        ],
    )
    def test_r6_an_obstruction_is_left_alone_and_its_removal_recovers(
        self, tmp_path: Path, entry: str, make: Callable[[Path], None]
    ) -> None:
        async def main(desk: Desk) -> None:
            await desk.remembered.update(pause(desk, 100))
            desk.path.unlink()
            make(desk.path)
            await desk.remembered.update(lambda state: dataclasses.replace(state, cdi_pause=None))
            before, watch = fingerprint(desk.path), OpenWatch(desk.path)
            for _ in range(3):
                result = await desk.look(demanded=True)
                assert (result.outcome, result.reason) == (Outcome.FAILURE, Reason.CDI_NOT_REGULAR)
            await desk.advance(61)
            assert (desk.state, desk.view.devices) == (SpecState.BLOCKED, ())
            assert entry in desk.view.text
            if entry != "symbolic link":  # the scan of what engines read follows a link, as they do
                assert not watch.opened()
            else:
                watch.opened()
            assert fingerprint(desk.path) == before
            assert len(desk.records("spec-blocked")) == 1
            shutil.rmtree(desk.path) if entry == "directory" else desk.path.unlink()
            await desk.until(lambda: desk.state is SpecState.TRUE, "recovery")
            assert desk.path.read_bytes() == GOOD
            assert len(desk.records("spec-restored")) == 1

        run_at_desk(tmp_path, main)

    def test_a_directory_that_becomes_a_link_is_not_followed_and_recovers(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            elsewhere = tmp_path / "elsewhere"
            elsewhere.mkdir()
            await desk.remembered.update(pause(desk, 100))
            shutil.rmtree(desk.cdi)
            desk.cdi.symlink_to(elsewhere)
            await desk.remembered.update(lambda state: dataclasses.replace(state, cdi_pause=None))
            result = await desk.look(demanded=True)
            assert (result.outcome, result.reason) == (Outcome.FAILURE, Reason.CDI_DIRECTORY_LINK)
            assert desk.state is SpecState.BLOCKED
            assert os.listdir(elsewhere) == []
            desk.cdi.unlink()
            await desk.until(lambda: desk.state is SpecState.TRUE, "recovery")
            assert desk.path.read_bytes() == GOOD

        run_at_desk(tmp_path, main)

    @needs_root
    def test_a_directory_of_another_user_is_left_alone_and_recovers(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            os.chown(desk.cdi, 1234, 1234)
            await desk.until(lambda: desk.view.reason is Reason.CDI_UNWRITABLE)
            desk.path.write_bytes(STALE)
            await desk.quiet()
            assert desk.path.read_bytes() == STALE
            os.chown(desk.cdi, 0, 0)
            await desk.until(lambda: desk.state is SpecState.TRUE, "recovery")

        run_at_desk(tmp_path, main)

    @pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: permissions do not bind root")
    def test_r8_without_root_an_unwritable_directory_is_survived_and_recovers(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.path.unlink()
            desk.cdi.chmod(0o555)
            await desk.until(lambda: desk.view.reason is Reason.CDI_UNWRITABLE)
            assert (await desk.look(demanded=True)).outcome is Outcome.FAILURE
            desk.cdi.chmod(0o755)
            await desk.until(lambda: desk.state is SpecState.TRUE, "recovery")
            assert desk.path.read_bytes() == GOOD

        run_at_desk(tmp_path, main)


# --- first contact ---------------------------------------------------------------------------------------------------
class TestFirstContact:
    def test_a_file_of_our_kind_is_taken_over_with_a_copy(self, tmp_path: Path) -> None:
        leave_file(tmp_path, STALE)

        async def main(desk: Desk) -> None:
            assert desk.path.read_bytes() == GOOD
            assert desk.repairs == [RepairCause.TAKE_OVER]
            (copy,) = (desk.state_directory / names.BACKUP_DIRECTORY).iterdir()
            assert copy.read_bytes() == STALE

        run_at_desk(tmp_path, main)

    def test_a_foreign_file_stays_until_it_is_adopted(self, tmp_path: Path) -> None:
        leave_file(tmp_path, FOREIGN)

        async def main(desk: Desk) -> None:
            before = fingerprint(desk.path)
            await desk.advance(61)
            assert (desk.state, desk.view.devices) == (SpecState.FOREIGN, ())
            assert (await desk.look(adopt=True, dry_run=True)).outcome is Outcome.DRY_RUN
            assert fingerprint(desk.path) == before
            result = await desk.look(adopt=True, request=desk.request("r-adopt"))
            assert (result.outcome, result.reason) == (Outcome.SUCCESS, RepairCause.ADOPTED)
            assert desk.state is SpecState.TRUE
            assert {record[names.FIELD_REQUEST_ID][0] for record in desk.records("spec-repair")} == {"r-adopt"}
            desk.path.write_bytes(FOREIGN)
            await desk.until(lambda: desk.path.read_bytes() == GOOD, "a repair of what is ours now")

        run_at_desk(tmp_path, main)

    def test_a_foreign_file_that_goes_makes_room(self, tmp_path: Path) -> None:
        leave_file(tmp_path, FOREIGN)

        async def main(desk: Desk) -> None:
            desk.path.unlink()
            await desk.until(lambda: desk.state is SpecState.TRUE)
            assert desk.path.read_bytes() == GOOD

        run_at_desk(tmp_path, main)


# --- withdrawal ------------------------------------------------------------------------------------------------------
class TestWithdrawal:
    @pytest.mark.parametrize(
        ("policy", "device", "leaves"),
        [
            (WithdrawPolicy.IDENTITY, candidate(Identity.MISSING, Health.MISSING), True),
            (WithdrawPolicy.IDENTITY, candidate(Identity.INVALID), True),
            (WithdrawPolicy.IDENTITY, candidate(Identity.VALID, Health.UNHEALTHY), False),
            (WithdrawPolicy.IDENTITY, candidate(Identity.UNKNOWN, Health.UNKNOWN), False),
            (WithdrawPolicy.USABILITY, candidate(Identity.VALID, Health.UNHEALTHY), True),
            (WithdrawPolicy.USABILITY, candidate(Identity.VALID, Health.UNKNOWN), False),
            (WithdrawPolicy.NEVER, candidate(Identity.MISSING, Health.MISSING), False),
        ],
    )
    def test_a_device_leaves_by_policy_after_it_has_settled_and_comes_back_at_once(
        self, tmp_path: Path, policy: WithdrawPolicy, device: Any, leaves: bool
    ) -> None:
        async def main(desk: Desk) -> None:
            desk.devices = [dataclasses.replace(device, reason=Reason.DEVICE_COVERED)]
            desk.reconciler.nudge(Trigger.UDEV)
            await desk.quiet()
            assert desk.path.read_bytes() == GOOD
            assert desk.reconciler.busy is leaves, "a withdrawal that settles keeps devward busy"
            await desk.advance(9)
            assert desk.path.read_bytes() == GOOD
            await desk.advance(1.1)  # the timer alone
            assert desk.path.exists() is not leaves
            if leaves:
                assert (desk.state, desk.view.devices) == (SpecState.EMPTY, ())
                assert desk.outcomes("spec-withdraw") == [("success", "withdrawn")]
                for record in desk.records("spec-withdraw"):
                    assert record[names.FIELD_TRIGGER] == ["timer"]
                    assert record[names.FIELD_DEVICE] == ["/dev/kvm"]
                    assert record[names.FIELD_REASON] == [Reason.DEVICE_COVERED]
                    assert "/dev/kvm (device-covered)" in record["MESSAGE"][0]
            assert not desk.reconciler.busy
            desk.devices = [candidate()]
            desk.reconciler.nudge(Trigger.UDEV)
            await desk.quiet()
            assert desk.path.read_bytes() == GOOD
            assert desk.state is SpecState.TRUE

        run_at_desk(tmp_path, main, withdraw=policy)

    def test_one_of_two_devices_leaves_and_the_other_stays(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.devices = [candidate(), candidate(kind=DeviceKind.MSHV)]
            desk.reconciler.nudge(Trigger.UDEV)
            await desk.quiet()
            desk.devices = [candidate(Identity.MISSING, reason=Reason.DEVICE_MISSING), candidate(kind=DeviceKind.MSHV)]
            desk.reconciler.nudge(Trigger.UDEV)
            await desk.quiet()
            await desk.advance(10.1)
            assert desk.path.read_bytes() == document(DeviceKind.MSHV)
            assert desk.view.devices == (MSHV,)
            assert desk.outcomes("spec-withdraw") == [("success", "published")]
            for record in desk.records("spec-withdraw"):
                assert record[names.FIELD_DEVICE] == ["/dev/kvm"]
                assert record[names.FIELD_REASON] == [Reason.DEVICE_MISSING]

        run_at_desk(tmp_path, main)

    def test_devices_that_leave_together_are_named_one_by_one(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.devices = [
                candidate(Identity.MISSING, reason=Reason.DEVICE_MISSING),
                candidate(Identity.INVALID, kind=DeviceKind.MSHV, reason=Reason.DEVICE_SYMLINK),
            ]
            await desk.reconciler.start()
            await desk.advance(10.1)
            (_, done) = desk.records("spec-withdraw")
            assert done[names.FIELD_DEVICE] == ["/dev/kvm", "/dev/mshv"]
            assert done[names.FIELD_REASON] == [Reason.DEVICE_MISSING, Reason.DEVICE_SYMLINK]

        run_at_desk(tmp_path, main, start=False, kept=leave_file(tmp_path, document(DeviceKind.KVM, DeviceKind.MSHV)))

    def test_a_device_that_a_rival_defines_is_withdrawn_for_that_reason(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            (desk.cdi / "rival.json").write_bytes(rival())
            await desk.until(lambda: not desk.path.exists())
            await desk.quiet()
            (_, done) = desk.records("spec-withdraw")
            assert done[names.FIELD_DEVICE] == ["/dev/kvm"]
            assert done[names.FIELD_REASON] == [Reason.CDI_CONFLICT]

        run_at_desk(tmp_path, main)

    def test_the_device_is_named_though_nothing_of_ours_is_in_the_file_any_more(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            await desk.remembered.update(pause(desk, 60))
            desk.path.write_bytes(b"{")
            desk.devices = [candidate(Identity.INVALID, reason=Reason.DEVICE_SYMLINK)]
            await desk.look()
            await desk.advance(11)
            await desk.advance(60)
            (_, done) = desk.records("spec-withdraw")
            assert (done[names.FIELD_DEVICE], done[names.FIELD_REASON]) == (["/dev/kvm"], [Reason.DEVICE_SYMLINK])

        run_at_desk(tmp_path, main)

    def test_a_device_that_is_not_watched_any_more_is_named_too(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.devices = []
            await desk.look()
            await desk.advance(10.1)
            (_, done) = desk.records("spec-withdraw")
            assert done[names.FIELD_DEVICE] == ["/dev/kvm"]

        run_at_desk(tmp_path, main)

    def test_a_device_that_somebody_wrote_into_the_file_is_no_withdrawal(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.devices.append(candidate(Identity.INVALID, kind=DeviceKind.MSHV, reason=Reason.DEVICE_NOT_CHAR))
            await desk.look()
            desk.sink.clear()
            desk.path.write_bytes(document(DeviceKind.KVM, DeviceKind.MSHV))
            await desk.until(lambda: desk.path.read_bytes() == GOOD)
            await desk.quiet()
            assert desk.records("spec-withdraw") == []
            assert desk.outcomes() == [("success", "stale")]
            assert all(names.FIELD_DEVICE not in record for record in desk.records("spec-repair"))

        run_at_desk(tmp_path, main)

    def test_a_file_of_our_kind_that_is_not_ours_goes_with_a_copy_where_no_device_is_fit(self, tmp_path: Path) -> None:
        leave_file(tmp_path, STALE)

        async def main(desk: Desk) -> None:
            desk.devices = [candidate(Identity.MISSING, Health.MISSING)]
            await desk.reconciler.start()
            await desk.quiet()
            assert not desk.path.exists()
            (copy,) = (desk.state_directory / names.BACKUP_DIRECTORY).iterdir()
            assert copy.read_bytes() == STALE

        run_at_desk(tmp_path, main, start=False)

    def test_a_file_of_our_kind_that_is_not_ours_stays_where_there_is_nothing_to_watch(self, tmp_path: Path) -> None:
        leave_file(tmp_path, STALE)

        async def main(desk: Desk) -> None:
            desk.devices = []
            before = fingerprint(desk.path)
            await desk.reconciler.start()
            await desk.advance(61)
            assert fingerprint(desk.path) == before
            assert desk.state is SpecState.EMPTY

        run_at_desk(tmp_path, main, start=False)


# --- what devward itself wants otherwise ------------------------------------------------------------------------------
class TestOwnWish:
    """A write because devices or configuration changed is no repair: nobody did anything to the file."""

    @staticmethod
    def _held(desk: Desk, *causes: RepairCause, repairs: int = 0) -> None:
        assert desk.repairs == list(causes), "each write is told"
        view = desk.view
        assert view.repair_count == repairs
        assert (view.last_repair_usec > 0, view.last_repair_cause) == (repairs > 0, causes[-1] if repairs else "")

    def test_the_first_file_is_published(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            self._held(desk, RepairCause.PUBLISHED)

        run_at_desk(tmp_path, main)

    def test_a_device_that_comes_and_goes_is_published_and_withdrawn(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.devices.append(candidate(kind=DeviceKind.MSHV))
            await desk.look()
            assert desk.path.read_bytes() == document(DeviceKind.KVM, DeviceKind.MSHV)
            desk.devices = []
            await desk.look()
            await desk.advance(10.1)
            assert not desk.path.exists()
            desk.devices = [candidate()]
            await desk.look()
            assert desk.path.read_bytes() == GOOD
            self._held(desk, RepairCause.PUBLISHED, RepairCause.PUBLISHED, RepairCause.WITHDRAWN, RepairCause.PUBLISHED)
            assert {cause for _, cause in desk.outcomes()} == {"published"}

        run_at_desk(tmp_path, main)

    def test_another_configuration_is_published(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            await desk.reconciler.configure(dataclasses.replace(desk.config, device_uid=7))
            await desk.quiet()
            assert desk.path.read_bytes() == document(uid=7)
            self._held(desk, RepairCause.PUBLISHED, RepairCause.PUBLISHED)

        run_at_desk(tmp_path, main)

    def test_a_configuration_that_changed_while_devward_was_down_is_published(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            assert desk.path.read_bytes() == GOOD
            self._held(desk, RepairCause.PUBLISHED)

        run_at_desk(tmp_path, main, kept=leave_file(tmp_path, STALE))

    @pytest.mark.parametrize("tampered", [STALE, None, b"{"], ids=["stale", "missing", "malformed"])
    def test_what_was_done_to_the_file_while_devward_was_down_is_repaired(self, tmp_path: Path, tampered: bytes | None) -> None:
        kept = leave_file(tmp_path, document(uid=3))
        path = tmp_path / "etc" / "cdi" / FILE
        path.unlink() if tampered is None else path.write_bytes(tampered)

        async def main(desk: Desk) -> None:
            assert desk.path.read_bytes() == GOOD
            assert desk.view.repair_count == 1

        run_at_desk(tmp_path, main, kept=kept)

    @pytest.mark.parametrize("how", ["content", "an older document", "mode", "gone", "broken"])
    def test_tampering_together_with_another_configuration_is_a_repair(self, tmp_path: Path, how: str) -> None:
        async def main(desk: Desk) -> None:
            await desk.reconciler.configure(dataclasses.replace(desk.config, device_uid=6))
            await desk.quiet()
            await desk.remembered.update(pause(desk, 100))
            if how == "mode":
                desk.path.chmod(0o666)
            elif how == "gone":
                desk.path.unlink()
            else:
                desk.path.write_bytes({"content": STALE, "an older document": GOOD, "broken": b"{"}[how])
            await desk.reconciler.configure(dataclasses.replace(desk.config, device_uid=7))
            await desk.quiet()
            await desk.remembered.update(lambda state: dataclasses.replace(state, cdi_pause=None))
            await desk.look()
            assert desk.path.read_bytes() == document(uid=7)
            assert desk.view.repair_count == 1
            assert desk.repairs[-1] is not RepairCause.PUBLISHED

        run_at_desk(tmp_path, main)

    def test_a_file_that_somebody_put_where_none_should_be_is_not_devwards_wish(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.devices = []
            await desk.look()
            await desk.advance(10.1)
            await desk.remembered.update(pause(desk, 100))
            desk.path.write_bytes(STALE)
            await desk.quiet()
            desk.devices = [candidate()]
            await desk.remembered.update(lambda state: dataclasses.replace(state, cdi_pause=None))
            await desk.look()
            assert desk.repairs[-1] is RepairCause.STALE

        run_at_desk(tmp_path, main)


# --- modes and pauses ------------------------------------------------------------------------------------------------
class TestModes:
    @pytest.mark.parametrize("how", ["observe", "off", "pause"])
    def test_nothing_is_written_and_repairs_come_afterwards(self, tmp_path: Path, how: str) -> None:
        async def main(desk: Desk) -> None:
            if how == "pause":
                await desk.remembered.update(pause(desk, 1000))
            else:
                await desk.remembered.update(lambda state: dataclasses.replace(state, cdi_mode=CdiMode(how)))
            desk.path.write_bytes(STALE)
            await desk.quiet()
            for wishes in ({}, {"demanded": True}, {"demanded": True, "adopt": True}):
                result = await desk.look(**wishes)
                assert (result.outcome, result.reason) == (Outcome.NOOP, Reason.CDI_PAUSED)
            await desk.advance(61)
            assert desk.path.read_bytes() == STALE
            assert desk.state is (SpecState.UNKNOWN if how == "off" else SpecState.DRIFTED)
            assert desk.reconciler.mode is (CdiMode.REPAIR if how == "pause" else CdiMode(how))
            assert bool(desk.reconciler.paused_until_usec) is (how == "pause")
            desk.devices = []
            await desk.look()
            await desk.advance(61)
            assert desk.path.exists(), "nothing is withdrawn either"
            desk.devices = [candidate()]
            await desk.remembered.update(lambda state: dataclasses.replace(state, cdi_pause=None, cdi_mode=None))
            desk.reconciler.nudge(Trigger.DBUS)
            await desk.quiet()
            assert desk.path.read_bytes() == GOOD
            assert desk.state is SpecState.TRUE

        run_at_desk(tmp_path, main)

    def test_mode_off_publishes_nothing_of_a_true_file(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            assert (desk.state, desk.view.reason) == (SpecState.UNKNOWN, Reason.CDI_PAUSED)
            assert desk.view.devices == ()

        run_at_desk(tmp_path, main, kept=leave_file(tmp_path), mode=CdiMode.OFF)

    def test_the_mode_set_over_the_bus_comes_before_the_configured_one(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            assert not desk.path.exists()
            await desk.remembered.update(lambda state: dataclasses.replace(state, cdi_mode=CdiMode.REPAIR))
            await desk.look()
            assert desk.path.exists()

        run_at_desk(tmp_path, main, mode=CdiMode.OBSERVE)

    def test_a_pause_ends_by_its_timer(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            await desk.remembered.update(pause(desk, 30))
            desk.path.unlink()
            await desk.quiet()
            assert desk.state is SpecState.DRIFTED
            await desk.advance(29)
            assert not desk.path.exists()
            await desk.advance(1.1)
            assert desk.path.read_bytes() == GOOD
            assert desk.reconciler.paused_until_usec == 0

        run_at_desk(tmp_path, main)

    def test_a_clock_set_forward_ends_a_pause_with_the_next_pass(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            await desk.remembered.update(pause(desk, 1000))
            desk.path.unlink()
            await desk.quiet()
            desk.clock.jump_usec = 2000 * 1_000_000
            await desk.advance(61)
            assert desk.path.read_bytes() == GOOD

        run_at_desk(tmp_path, main)

    def test_a_clock_set_back_does_not_lengthen_a_pause(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            await desk.remembered.update(pause(desk, 30))
            await desk.look()
            desk.path.unlink()
            await desk.quiet()
            desk.clock.jump_usec = -20_000 * 1_000_000
            passes = desk.passes
            await desk.advance(28)
            assert not desk.path.exists()
            assert desk.reconciler.paused_until_usec
            await desk.advance(2.1)
            assert desk.path.read_bytes() == GOOD
            assert desk.reconciler.paused_until_usec == 0
            assert desk.passes - passes <= 5
            assert desk.remembered.state.cdi_pause is None, "nor does it come back with a restart"
            assert len(desk.records("pause-ended")) == 1

        run_at_desk(tmp_path, main)

    def test_a_pause_that_follows_another_has_its_own_end(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            for _ in range(2):
                await desk.remembered.update(pause(desk, 30))
                await desk.look()
                await desk.advance(20)
            desk.path.unlink()
            await desk.advance(9)
            assert not desk.path.exists()
            await desk.advance(1.1)
            assert desk.path.read_bytes() == GOOD
            assert len(desk.records("pause-ended")) == 1

        run_at_desk(tmp_path, main)

    def test_the_end_of_a_pause_is_recorded_once_and_remembered(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            await desk.remembered.update(pause(desk, 30))
            desk.path.unlink()
            await desk.quiet()
            desk.sink.clear()
            await desk.look(dry_run=True)
            await desk.advance(31)
            await desk.advance(61)
            record, *others = desk.records()
            assert record[names.FIELD_EVENT] == ["pause-ended"]
            assert "by the test" in record["MESSAGE"][0]
            assert json.loads(record[names.FIELD_EVIDENCE][0])["caller_uid"] == 0
            assert [other[names.FIELD_EVENT][0] for other in others] == ["spec-repair", "spec-repair", "spec-restored"]
            assert desk.store.load().state.cdi_pause is None

        run_at_desk(tmp_path, main)

    def test_a_pause_that_ended_while_devward_was_down_is_recorded_at_the_start(self, tmp_path: Path) -> None:
        kept = dataclasses.replace(leave_file(tmp_path), cdi_pause=Pause(EPOCH_USEC, "an upgrade", 1000))

        async def main(desk: Desk) -> None:
            await desk.look(dry_run=True)
            assert desk.records() == []
            assert desk.remembered.state == kept, "a dry run changes nothing"
            await desk.reconciler.start()
            (record,) = desk.records()
            assert record[names.FIELD_EVENT] == ["pause-ended"]
            assert "uid 1000" in record["MESSAGE"][0]
            assert desk.remembered.state.cdi_pause is None

        run_at_desk(tmp_path, main, kept=kept, start=False)

    def test_a_pause_that_somebody_ends_is_not_recorded_as_having_run_out(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            await desk.remembered.update(pause(desk, 30))
            await desk.look()
            await desk.remembered.update(without_pause)
            await desk.look()
            await desk.advance(61)
            assert desk.records("pause-ended") == []

        run_at_desk(tmp_path, main)

    # --- drift that is not repaired ---
    @pytest.mark.parametrize("how", ["observe", "pause"])
    def test_drift_is_recorded_once_an_episode_and_so_is_its_end(self, tmp_path: Path, how: str) -> None:
        async def main(desk: Desk) -> None:
            change = pause(desk, 10_000) if how == "pause" else lambda state: dataclasses.replace(state, cdi_mode=CdiMode.OBSERVE)
            await desk.remembered.update(change)
            await desk.look()
            for _ in range(2):
                desk.sink.clear()
                for tampered in (STALE, b"{", None, document(uid=9)):
                    desk.path.unlink() if tampered is None else desk.path.write_bytes(tampered)
                    await desk.quiet()
                await desk.advance(61)
                (record,) = desk.records()
                assert record[names.FIELD_EVENT] == ["spec-drifted"]
                assert (record[names.FIELD_CDI_FILE], record[names.FIELD_CAUSE]) == ([str(desk.path)], ["stale"])
                evidence = json.loads(record[names.FIELD_EVIDENCE][0])
                assert any("uid" in difference for difference in evidence["differences"])
                assert evidence["found"]["uid"] == os.geteuid()
                desk.path.write_bytes(GOOD)
                await desk.quiet()
                assert [one[names.FIELD_EVENT][0] for one in desk.records()] == ["spec-drifted", "spec-restored"]

        run_at_desk(tmp_path, main)

    def test_an_episode_goes_on_where_nobody_looks_in_between(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.sink.clear()
            for mode in (CdiMode.OBSERVE, CdiMode.OFF, CdiMode.OBSERVE):
                await desk.remembered.update(lambda state, mode=mode: dataclasses.replace(state, cdi_mode=mode))  # type: ignore[misc] # a default argument
                desk.path.write_bytes(STALE)
                await desk.look()
                await desk.quiet()
            assert len(desk.records()) == 1
            await desk.remembered.update(lambda state: dataclasses.replace(state, cdi_mode=CdiMode.OFF))
            await desk.look()
            desk.path.write_bytes(GOOD)
            await desk.remembered.update(lambda state: dataclasses.replace(state, cdi_mode=CdiMode.OBSERVE))
            await desk.look()
            assert [one[names.FIELD_EVENT][0] for one in desk.records()] == ["spec-drifted", "spec-restored"]

        run_at_desk(tmp_path, main)


# --- contests --------------------------------------------------------------------------------------------------------
class TestContest:
    #: Seconds, in place of one: a slow disk takes some of the wait.
    WAIT = 20.0

    @pytest.fixture(autouse=True)
    def _long_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contest, "FIRST_WAIT", self.WAIT)

    async def _contest(self, desk: Desk) -> None:
        for _ in range(5):
            desk.path.write_bytes(STALE)
            await desk.look()
        await desk.quiet()
        desk.path.write_bytes(STALE)
        await desk.until(lambda: desk.path.read_bytes() == STALE and desk.state is SpecState.CONTESTED)
        await desk.quiet()

    def test_a_contested_file_is_repaired_when_its_wait_is_over_by_the_timer(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            await self._contest(desk)
            assert desk.path.read_bytes() == STALE
            assert len(desk.records("spec-contested")) == 1
            await desk.advance(self.WAIT)
            assert desk.path.read_bytes() == GOOD
            assert desk.state is SpecState.CONTESTED
            assert len(desk.records("spec-contested")) == 2
            await desk.advance(30)
            assert desk.state is SpecState.CONTESTED
            await desk.advance(31)
            await desk.advance(31)
            assert desk.state is SpecState.TRUE, "a minute of quiet, seen by the slow pass"

        run_at_desk(tmp_path, main, contested_after=5)

    def test_r1_a_demanded_repair_goes_through(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            await self._contest(desk)
            assert (await desk.look(demanded=True)).outcome is Outcome.SUCCESS
            assert desk.path.read_bytes() == GOOD

        run_at_desk(tmp_path, main, contested_after=5)

    def test_a_pause_during_a_contest_writes_nothing_and_the_wait_goes_on(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            await self._contest(desk)
            await desk.remembered.update(pause(desk, 0.25 * self.WAIT))
            await desk.look()
            assert desk.state is SpecState.DRIFTED
            passes = desk.passes
            await desk.advance(0.3 * self.WAIT)  # the pause is over, the wait is not
            assert desk.path.read_bytes() == STALE
            assert desk.state is SpecState.CONTESTED
            assert desk.passes - passes <= 3
            await desk.advance(self.WAIT)
            assert desk.path.read_bytes() == GOOD

        run_at_desk(tmp_path, main, contested_after=5)
