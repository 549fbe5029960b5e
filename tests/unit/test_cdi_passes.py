"""When passes are made, how they are shared, what ends one early, the end of the loop, and another configuration."""

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from devward.cdi import reconciler as cdi
from devward.cdi import store
from devward.cdi.reconciler import CdiReconciler, PassRequest
from devward.errors import Stopping
from devward.model import ActionResult, CdiMode, Outcome, RepairCause, SpecState, Trigger
from devward.reasons import Reason
from sim.cdi_desk import FILE, GOOD, Desk, candidate, document, rival, run_at_desk
from sim.entries import fingerprint


# --- time and passes -------------------------------------------------------------------------------------------------
class TestPasses:
    def test_in_quiet_there_is_one_pass_a_minute(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            passes = desk.passes
            for _ in range(40):
                await desk.advance(30)
            assert 19 <= desk.passes - passes <= 21

        run_at_desk(tmp_path, main)

    @pytest.mark.parametrize("mode", list(CdiMode))
    def test_a_withdrawal_that_is_due_makes_no_loop_whatever_the_mode(self, tmp_path: Path, mode: CdiMode) -> None:
        async def main(desk: Desk) -> None:
            desk.devices = []
            await desk.look()
            await desk.remembered.update(lambda state: dataclasses.replace(state, cdi_mode=mode))
            await desk.look()
            passes = desk.passes
            for _ in range(12):
                await desk.advance(10)
            assert desk.passes - passes <= 6
            assert not desk.reconciler.busy

        run_at_desk(tmp_path, main)

    def test_many_nudges_are_one_pass(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            passes = desk.passes
            for _ in range(1000):
                desk.reconciler.nudge(Trigger.UDEV)
            await desk.quiet()
            assert desk.passes - passes == 1

        run_at_desk(tmp_path, main)

    def test_a_caller_gets_a_pass_that_begins_after_it_asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def main(desk: Desk) -> None:
            begun: list[float] = []
            real = CdiReconciler._pass
            gate = asyncio.Event()

            async def slow(self: CdiReconciler, request: PassRequest) -> dict[str, ActionResult]:
                begun.append(desk.loop.time())
                await gate.wait()
                return await real(self, request)

            monkeypatch.setattr(CdiReconciler, "_pass", slow)
            first = asyncio.ensure_future(desk.look())
            await asyncio.sleep(0.0)
            await asyncio.sleep(0.0)
            assert len(begun) == 1
            desk.loop.advance(1)
            later = [asyncio.ensure_future(desk.look(demanded=demanded)) for demanded in (False, True, False)]
            for _ in range(10):
                await asyncio.sleep(0.0)
            overlapping = len(begun) > 1
            gate.set()  # before anything is held against it, or nothing would ever end
            assert not overlapping
            await asyncio.gather(first, *later)
            assert len(begun) == 2, "those that wait share one"
            assert begun[1] > begun[0]

        run_at_desk(tmp_path, main)

    def test_a_shared_pass_does_what_each_of_its_callers_wants(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def main(desk: Desk) -> None:
            requests: list[PassRequest] = []
            real = CdiReconciler._pass

            async def spy(self: CdiReconciler, request: PassRequest) -> dict[str, ActionResult]:
                requests.append(request)
                return await real(self, request)

            monkeypatch.setattr(CdiReconciler, "_pass", spy)
            wishes: list[dict[str, Any]] = [
                {},
                {"scan": True},
                {"demanded": True},
                {"dry_run": True},
                {"request": desk.request("r-1")},
                {"request": desk.request("r-2")},
                {"adopt": True},
                {},
            ]
            await asyncio.gather(*(desk.look(**wish) for wish in wishes))
            assert [
                (bool(one.demanded), one.scan, one.dry_run, bool(one.adopt), one.request.request_id if one.request else "")
                for one in requests
            ] == [
                (True, True, False, False, ""),
                (False, False, True, False, ""),
                (False, False, False, False, "r-1"),
                (False, False, False, False, "r-2"),
                (False, False, False, True, ""),
                (False, False, False, False, ""),
            ]

        run_at_desk(tmp_path, main)

    def test_a_caller_that_goes_away_does_not_break_off_the_pass(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.path.unlink()
            task = asyncio.ensure_future(desk.look())
            await asyncio.sleep(0.0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await desk.quiet()
            assert desk.path.read_bytes() == GOOD
            assert desk.state is SpecState.TRUE

        run_at_desk(tmp_path, main)

    def test_a_dry_run_changes_nothing_at_all(self, tmp_path: Path) -> None:
        """A device that is fit and a file that is missing: nothing may be published as true but what was seen to be."""

        async def main(desk: Desk) -> None:
            desk.devices = []
            await desk.reconciler.start()
            await desk.quiet()
            assert desk.state is SpecState.EMPTY
            desk.devices = [candidate()]
            before = desk.view, desk.remembered.state, fingerprint(desk.cdi), sorted(os.listdir(desk.state_directory))
            result = await desk.look(dry_run=True, demanded=True, scan=True)
            assert (result.outcome, result.reason) == (Outcome.DRY_RUN, RepairCause.PUBLISHED)
            assert (desk.view, desk.remembered.state, fingerprint(desk.cdi), sorted(os.listdir(desk.state_directory))) == before
            assert desk.records() == []
            assert desk.repairs == []

        run_at_desk(tmp_path, main, start=False)

    def test_a_dry_run_publishes_nothing_of_what_it_sees(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def main(desk: Desk) -> None:
            assert desk.reconciler._watch is not None
            monkeypatch.setattr(desk.reconciler._watch, "_on_touched", lambda _touched: None)
            before = desk.view
            (desk.run_cdi / "x.json").write_bytes(rival())
            await desk.look(dry_run=True, scan=True)
            assert desk.view == before
            await desk.look()
            assert desk.state is SpecState.SHADOWED

        run_at_desk(tmp_path, main)

    def test_a_pass_that_breaks_off_is_published_as_unknown_and_made_up_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main(desk: Desk) -> None:
            passes = desk.passes

            def fail(*_words: object, **_named: object) -> str:
                raise ZeroDivisionError

            with monkeypatch.context() as patch:
                patch.setattr(store, "write", fail)
                desk.sink.clear()
                desk.path.unlink()
                with pytest.raises(ZeroDivisionError):
                    await desk.look()
                await desk.quiet()
                assert (desk.state, desk.view.reason) == (SpecState.UNKNOWN, Reason.NOT_CHECKED)
                assert desk.view.devices == ()
                assert desk.passes > passes
                assert set(desk.outcomes()) == {("failure", "missing")}
                assert "a pass over the CDI files failed" in caplog.text
                seen = desk.reconciler.last_pass_monotonic
                await desk.advance(1)
                assert desk.reconciler.last_pass_monotonic == seen, "what breaks off is no sign of life for the watchdog"
            await desk.advance(cdi.AFTER_FAILURE)
            assert desk.path.read_bytes() == GOOD
            assert desk.state is SpecState.TRUE

        run_at_desk(tmp_path, main)

    def test_passes_that_break_off_again_and_again_make_no_loop(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            calls: list[int] = []

            def fail() -> list[Any]:
                calls.append(1)
                raise ZeroDivisionError

            desk.devices = []
            await desk.look()
            desk.list_devices = fail
            with pytest.raises(ZeroDivisionError):
                await desk.look()
            for _ in range(12):
                await desk.advance(5)
            assert len(calls) <= 7
            assert desk.state is SpecState.UNKNOWN

        run_at_desk(tmp_path, main)

    def test_without_inotify_the_slow_pass_repairs_and_inotify_is_tried_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main(desk: Desk) -> None:
            with monkeypatch.context() as patch:

                def full(*_words: object) -> None:
                    raise OSError(24, "Too many open files")

                patch.setattr(cdi, "DirectoryWatch", full)
                await desk.reconciler.start()
                await desk.quiet()
                desk.path.unlink()
                await desk.advance(1)
                assert not desk.path.exists()
                await desk.advance(60)
                assert desk.path.read_bytes() == GOOD
                assert caplog.text.count("cannot be watched") == 1
            await desk.advance(61)
            desk.path.unlink()
            await desk.until(desk.path.exists, "a repair by inotify")

        run_at_desk(tmp_path, main, start=False)


# --- the end ---------------------------------------------------------------------------------------------------------
class TestClose:
    def test_after_close_nothing_moves(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            await desk.reconciler.close()
            passes = desk.passes
            desk.path.unlink()
            desk.reconciler.nudge(Trigger.UDEV)
            await desk.advance(200)
            assert desk.passes == passes
            assert not desk.path.exists()
            with pytest.raises(Stopping):
                await desk.look()
            await desk.reconciler.close()

        run_at_desk(tmp_path, main)

    def test_passes_that_were_asked_for_are_finished_and_no_other_begins(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.path.unlink()
            asked = asyncio.ensure_future(desk.look())
            await asyncio.sleep(0.0)
            closing = asyncio.ensure_future(desk.reconciler.close())
            await asyncio.sleep(0.0)
            desk.reconciler.nudge(Trigger.UDEV)
            late = asyncio.ensure_future(desk.look())
            await closing
            assert (await asked).outcome is Outcome.SUCCESS
            assert desk.path.read_bytes() == GOOD
            with pytest.raises(Stopping):
                await late
            assert not desk.reconciler._tasks
            passes = desk.passes
            await desk.advance(100)
            assert desk.passes == passes

        run_at_desk(tmp_path, main)


# --- another configuration -------------------------------------------------------------------------------------------
class TestConfigure:
    def test_another_directory_means_another_file_and_the_old_one_stays(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            other = tmp_path / "opt" / "cdi"
            other.mkdir(parents=True)
            leftover = other / f".devward.{FILE}.0123456789abcdef.tmp"
            leftover.touch()
            before = fingerprint(desk.path)
            await desk.reconciler.configure(dataclasses.replace(desk.config, directory=str(other), engine_dirs=(str(other),)))
            await desk.quiet()
            assert (other / FILE).read_bytes() == GOOD
            assert not leftover.exists()
            assert desk.view.file == str(other / FILE)
            assert desk.state is SpecState.TRUE
            assert fingerprint(desk.path) == before
            (other / FILE).unlink()
            await desk.until((other / FILE).exists, "a repair in the new directory")
            desk.path.unlink()
            await desk.quiet()
            assert not desk.path.exists(), "the old directory is no concern any more"

        run_at_desk(tmp_path, main)

    def test_other_ids_are_written_at_once_and_are_no_contest(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            for uid in range(10):
                await desk.reconciler.configure(dataclasses.replace(desk.config, device_uid=uid))
                await desk.quiet()
                assert desk.path.read_bytes() == document(uid=uid)
            assert desk.state is SpecState.TRUE
            assert desk.records("spec-contested") == []

        run_at_desk(tmp_path, main, contested_after=3)

    def test_other_engine_directories_are_scanned_and_watched(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            other = tmp_path / "opt" / "cdi"
            other.mkdir(parents=True)
            await desk.reconciler.configure(dataclasses.replace(desk.config, engine_dirs=(str(desk.cdi), str(other))))
            await desk.quiet()
            (desk.run_cdi / "x.json").write_bytes(rival())
            await desk.quiet()
            await desk.look(scan=True)
            assert desk.state is SpecState.TRUE
            (other / "x.json").write_bytes(rival())
            await desk.until(lambda: desk.state is SpecState.SHADOWED)

        run_at_desk(tmp_path, main)
