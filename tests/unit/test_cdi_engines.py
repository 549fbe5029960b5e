"""What engines make of our file: rivals, shadows and directories that they do not read, found by events and told once."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from devward.cdi import store
from devward.cdi.judged import Allowance
from devward.model import DeviceKind, SpecState, Trigger
from devward.reasons import Reason
from sim.cdi_desk import GOOD, KVM, MSHV, Desk, candidate, document, rival, run_at_desk


# --- engines ---------------------------------------------------------------------------------------------------------
class TestEngines:
    def test_a_rival_in_the_directory_keeps_the_device_and_ours_leaves_it_out(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            desk.devices = [candidate(), candidate(kind=DeviceKind.MSHV)]
            desk.reconciler.nudge(Trigger.UDEV)
            await desk.quiet()
            assert desk.view.devices == (KVM, MSHV)
            path = desk.cdi / "rival.json"
            path.write_bytes(rival())
            await desk.until(lambda: desk.state is SpecState.CONFLICT)
            await desk.quiet()
            assert desk.path.read_bytes() == document(DeviceKind.MSHV)
            assert desk.view.devices == (MSHV,)
            assert str(path) in desk.view.text
            assert desk.reconciler.effective(KVM)[:2] == (False, Reason.CDI_CONFLICT)
            assert desk.reconciler.effective(MSHV)[0] is True
            assert path.read_bytes() == rival()
            assert len(desk.records("spec-conflict")) == 1
            await desk.advance(61)
            assert len(desk.records("spec-conflict")) == 1, "told once, not in every pass"
            path.unlink()
            await desk.until(lambda: desk.state is SpecState.TRUE)
            assert desk.path.read_bytes() == document(DeviceKind.KVM, DeviceKind.MSHV)

        run_at_desk(tmp_path, main)

    def test_a_rival_to_the_only_device_leaves_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "etc" / "cdi").mkdir(parents=True)
        (tmp_path / "etc" / "cdi" / "rival.yaml").write_bytes(rival())

        async def main(desk: Desk) -> None:
            assert not desk.path.exists()
            assert (desk.state, desk.view.devices) == (SpecState.CONFLICT, ())
            (desk.cdi / "rival.yaml").unlink()
            await desk.until(lambda: desk.state is SpecState.TRUE)

        run_at_desk(tmp_path, main)

    def test_a_rival_that_comes_during_a_write_is_found_in_the_same_breath(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def main(desk: Desk) -> None:
            assert desk.reconciler._watch is not None
            monkeypatch.setattr(desk.reconciler._watch, "_on_touched", lambda _touched: None)  # were its event lost
            real = store.write

            def late(*words: Any, **named: Any) -> str | None:
                (desk.cdi / "rival.json").write_bytes(rival())
                return real(*words, **named)

            monkeypatch.setattr(store, "write", late)
            desk.path.unlink()
            await desk.look()
            await desk.until(lambda: not desk.path.exists(), "ours gone")
            await desk.quiet()
            assert desk.state is SpecState.CONFLICT

        run_at_desk(tmp_path, main)

    def test_a_rival_once_seen_is_not_gone_because_nothing_can_be_seen(self, tmp_path: Path) -> None:
        (tmp_path / "etc" / "cdi").mkdir(parents=True)
        (tmp_path / "etc" / "cdi" / "rival.json").write_bytes(rival())

        async def main(desk: Desk) -> None:
            assert not desk.path.exists()
            desk.scans._hung = True  # as if a scan were given up on
            await desk.look(scan=True)
            assert not desk.path.exists()
            assert any(finding.code is Reason.CDI_TIMEOUT for finding in desk.reconciler.findings())
            assert desk.reconciler.effective(KVM)[:2] == (False, Reason.CDI_TIMEOUT)
            desk.scans._hung = False

        run_at_desk(tmp_path, main)

    def test_a_definition_of_higher_priority_shadows_ours(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            (desk.run_cdi / "x.json").write_bytes(rival())
            await desk.until(lambda: desk.state is SpecState.SHADOWED)
            assert desk.path.read_bytes() == GOOD
            assert desk.view.devices == (KVM,)
            assert desk.reconciler.effective(KVM)[:2] == (False, Reason.CDI_SHADOWED)
            assert any(finding.code is Reason.CDI_SHADOWED for finding in desk.reconciler.findings())
            since = desk.view.state_since_usec
            await desk.advance(61)
            await desk.advance(61)
            assert desk.view.state_since_usec == since
            assert len(desk.records("spec-conflict")) == 1, "told once, not in every pass"
            (desk.run_cdi / "x.json").unlink()
            await desk.until(lambda: desk.state is SpecState.TRUE)

        run_at_desk(tmp_path, main)

    def test_a_fifo_that_blocks_engines_is_told_of(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            os.mkfifo(desk.run_cdi / "x.json")
            await desk.until(lambda: desk.view.reason is Reason.CDI_ENGINE_BLOCKED)
            assert desk.state is SpecState.SHADOWED
            assert desk.reconciler.effective(KVM)[:2] == (False, Reason.CDI_ENGINE_BLOCKED)

        run_at_desk(tmp_path, main)

    def test_a_directory_that_engines_do_not_read_is_told_of(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            assert desk.path.read_bytes() == GOOD
            assert (desk.state, desk.view.reason) == (SpecState.SHADOWED, Reason.CDI_DIRECTORY_NOT_READ)
            assert desk.reconciler.effective(KVM)[:2] == (False, Reason.CDI_DIRECTORY_NOT_READ)
            assert [finding.code for finding in desk.reconciler.findings()].count(Reason.CDI_DIRECTORY_NOT_READ) == 1

        run_at_desk(tmp_path, main, engine_dirs=(str(tmp_path / "run" / "cdi"),))

    @pytest.mark.parametrize("engine_dirs", [("alias/cdi", "run/cdi"), ("alias/cdi", "etc/cdi"), ("etc/cdi", "alias/cdi")])
    def test_a_directory_that_engines_know_by_another_name_is_read(self, tmp_path: Path, engine_dirs: tuple[str, ...]) -> None:
        (tmp_path / "alias").symlink_to("etc")

        async def main(desk: Desk) -> None:
            assert desk.state is SpecState.TRUE
            assert desk.reconciler.effective(KVM)[0] is True

        run_at_desk(tmp_path, main, engine_dirs=tuple(str(tmp_path / one) for one in engine_dirs))

    def test_a_directory_behind_one_that_stops_engines_is_told_of(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()

        async def main(desk: Desk) -> None:
            assert (desk.state, desk.view.reason) == (SpecState.SHADOWED, Reason.CDI_DIRECTORY_UNREADABLE)
            assert desk.reconciler.effective(KVM)[:2] == (False, Reason.CDI_DIRECTORY_UNREADABLE)

        run_at_desk(tmp_path, main, engine_dirs=(str(tmp_path / "file"), str(tmp_path / "etc" / "cdi")))

    def test_what_happens_during_a_scan_is_scanned_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def main(desk: Desk) -> None:
            real = desk.reconciler._engines.scan

            async def scan() -> bool:
                done = await real()
                if not (desk.run_cdi / "x.json").exists():
                    (desk.run_cdi / "x.json").write_bytes(rival())
                    await asyncio.sleep(0.0)
                    await asyncio.sleep(0.0)  # the event comes while the scan has not returned
                return done

            monkeypatch.setattr(desk.reconciler._engines, "scan", scan)
            await desk.look(scan=True)
            await desk.until(lambda: desk.state is SpecState.SHADOWED)

        run_at_desk(tmp_path, main)

    def test_what_waits_to_be_examined_makes_ours_uncertain_and_is_examined_soon(self, tmp_path: Path) -> None:
        async def main(desk: Desk) -> None:
            spent = 0.0
            allowance = Allowance(0.3, 0.1, monotonic=desk.clock.monotonic, cpu=lambda: spent)
            desk.reconciler._engines._scanner._long = allowance
            with allowance.charged():
                spent = 2.3  # twenty seconds' worth too much
            (desk.cdi / "foreign.yaml").write_text("cdiVersion: 0.6.0\nkind: a/b\ndevices: [{name: c, containerEdits: {env: [A=b]}}]\n")
            await desk.until(lambda: desk.state is SpecState.SHADOWED)
            assert desk.reconciler.effective(KVM)[:2] == (False, Reason.CDI_UNCERTAIN)
            (finding,) = desk.reconciler.findings()
            assert (finding.code, "waits to be examined" in finding.text) == (Reason.CDI_FILE_UNREADABLE, True)
            await desk.quiet()
            passes = desk.passes
            await desk.advance(1.1)
            assert desk.state is SpecState.SHADOWED
            assert desk.passes > passes
            desk.loop.advance(20)
            await desk.until(lambda: desk.state is SpecState.TRUE)
            assert desk.reconciler.findings() == ()
            await desk.quiet()
            passes = desk.passes
            await desk.advance(30)
            assert desk.passes == passes

        run_at_desk(tmp_path, main)
