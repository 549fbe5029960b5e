"""What devward does on its own while it cannot write: it tries again, less and less often, and tells of it a few times and not for ever."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devward import names
from devward.cdi import store
from devward.cdi.backoff import LONGEST_WAIT
from devward.cdi.store import StoreError
from devward.cdi.trail import TOLD_FAILURES
from devward.model import CdiMode, Outcome, SpecState, Trigger
from devward.reasons import Reason
from sim.cdi_desk import GOOD, STALE, Desk, document, pause, run_at_desk


class Storage:
    """Stands between devward and the file: counts the attempts to write and lets none through while it is full."""

    def __init__(self, desk: Desk, patch: pytest.MonkeyPatch) -> None:
        self.attempts: list[int] = []
        self.reason: Reason | None = Reason.CDI_NO_SPACE
        self.meanwhile: Callable[[], object] = lambda: None
        real = store.write

        def write(*words: Any, **named: Any) -> str | None:
            self.attempts.append(1)
            self.meanwhile()
            if self.reason is not None:
                raise StoreError(self.reason, "as the test says")
            return real(*words, **named)

        patch.setattr(store, "write", write)


async def blocked(desk: Desk, patch: pytest.MonkeyPatch) -> Storage:
    """Take the file away while the storage is full, and wait for the first attempt to have failed."""
    desk.sink.clear()
    storage = Storage(desk, patch)
    desk.path.unlink()
    await desk.until(lambda: desk.state is SpecState.BLOCKED)
    await desk.quiet()
    return storage


def test_the_next_attempt_waits_a_second_then_twice_as_long_each_time_up_to_half_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        for wait in (1, 2, 4, 8, 16, 30, 30, 30):
            made, due = len(storage.attempts), desk.owned.retry_at
            assert due == pytest.approx(desk.owned._backoff.last + wait)
            await desk.advance(wait)
            assert len(storage.attempts) > made, "by the timer alone"

    run_at_desk(tmp_path, main)


def test_r8_when_the_cause_goes_without_a_sign_the_next_attempt_repairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        for _ in range(10):
            await desk.advance(LONGEST_WAIT)
        storage.reason = None
        await desk.advance(LONGEST_WAIT)
        assert desk.path.read_bytes() == GOOD
        assert desk.state is SpecState.TRUE

    run_at_desk(tmp_path, main)


@pytest.mark.parametrize("trigger", [Trigger.MOUNTS, Trigger.INOTIFY, Trigger.UDEV, Trigger.SIGNAL])
def test_r8_a_sign_that_the_cause_is_gone_leads_to_an_attempt_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trigger: Trigger
) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        for _ in range(5):
            await desk.advance(LONGEST_WAIT)
        await desk.advance(2)
        storage.reason = None
        desk.reconciler.nudge(trigger)
        await desk.quiet()
        assert desk.path.read_bytes() == GOOD

    run_at_desk(tmp_path, main)


def test_a_storm_of_events_leads_to_one_attempt_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        began = desk.loop.time()
        for number in range(200):
            (desk.cdi / "other.json").write_text(str(number))
            await desk.advance(0.1)
        elapsed = desk.loop.time() - began
        assert elapsed / 2 <= len(storage.attempts) <= elapsed + 1

    run_at_desk(tmp_path, main)


def test_a_sign_right_after_a_failure_is_made_up_for_a_second_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the sign comes with a pass that the timer asked for already."""

    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        for _ in range(5):
            await desk.advance(LONGEST_WAIT)
        storage.reason = None
        await desk.until(lambda: desk.owned.retry_at is not None)
        desk.reconciler.nudge(Trigger.TIMER)
        desk.reconciler.nudge(Trigger.INOTIFY)
        await desk.quiet()
        assert not desk.path.exists()
        await desk.advance(1)
        assert desk.path.read_bytes() == GOOD

    run_at_desk(tmp_path, main)


def test_a_sign_during_an_attempt_is_made_up_for_a_second_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        for _ in range(5):
            await desk.advance(LONGEST_WAIT)
        storage.attempts.clear()

        def sign() -> None:
            desk.loop.call_soon_threadsafe(desk.reconciler.nudge, Trigger.MOUNTS)

        storage.meanwhile = sign
        await desk.advance(LONGEST_WAIT)
        storage.meanwhile = lambda: None
        assert len(storage.attempts) == 1
        storage.reason = None
        await desk.advance(1)
        assert desk.path.read_bytes() == GOOD

    run_at_desk(tmp_path, main)


@pytest.mark.parametrize("wishes", [{"demanded": True}, {"request": True}, {"demanded": True, "adopt": True, "request": True}])
def test_what_somebody_asks_for_is_tried_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wishes: dict[str, bool]) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        made = len(storage.attempts)
        for number in range(3):
            asked = {**wishes, **({"request": desk.request(f"r-{number}")} if wishes.get("request") else {})}
            result = await desk.look(Trigger.DBUS, **asked)
            assert (result.outcome, result.reason) == (Outcome.FAILURE, Reason.CDI_NO_SPACE)
        assert len(storage.attempts) == made + 3
        if wishes.get("request"):
            assert {f"r-{number}" for number in range(3)} <= {record[names.FIELD_REQUEST_ID][0] for record in desk.records("spec-repair")}
        storage.reason = None
        assert (await desk.look(Trigger.DBUS, demanded=True)).outcome is Outcome.SUCCESS

    run_at_desk(tmp_path, main)


def test_in_between_the_state_is_that_of_the_latest_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        for reason in (Reason.CDI_NO_SPACE, Reason.CDI_READ_ONLY, Reason.CDI_IO_ERROR):
            storage.reason = reason
            await desk.advance(LONGEST_WAIT)
            result = await desk.look()
            assert (result.outcome, result.reason) == (Outcome.FAILURE, reason)
            assert (desk.state, desk.view.reason) == (SpecState.BLOCKED, reason)
            assert "as the test says" in desk.view.text
            assert desk.view.devices == ()
        assert [record[names.FIELD_REASON] for record in desk.records("spec-blocked")] == [
            [Reason.CDI_NO_SPACE],
            [Reason.CDI_READ_ONLY],
            [Reason.CDI_IO_ERROR],
        ]

    run_at_desk(tmp_path, main)


def test_success_ends_the_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        for _ in range(5):
            await desk.advance(LONGEST_WAIT)
        storage.reason = None
        assert (await desk.look(demanded=True)).outcome is Outcome.SUCCESS
        for _ in range(3):
            desk.path.unlink()
            await desk.quiet()
            assert desk.path.read_bytes() == GOOD, "at once"
        storage.reason = Reason.CDI_IO_ERROR
        desk.path.unlink()
        await desk.until(lambda: desk.state is SpecState.BLOCKED)
        assert desk.owned._backoff.failures == 1

    run_at_desk(tmp_path, main)


def test_a_file_that_somebody_else_puts_in_order_ends_the_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        desk.path.write_bytes(GOOD)
        desk.path.chmod(0o644)
        await desk.until(lambda: desk.state is SpecState.TRUE)
        made = len(storage.attempts)
        for _ in range(5):
            await desk.advance(LONGEST_WAIT)
        assert len(storage.attempts) == made
        assert (await desk.look(demanded=True)).outcome is Outcome.NOOP
        told = len(desk.outcomes())
        desk.path.unlink()
        await desk.quiet()
        assert len(storage.attempts) == made + 1, "at once"
        assert len(desk.outcomes()) == told + 1, "that is another story"
        assert desk.owned._backoff.failures == 1, "from the beginning"

    run_at_desk(tmp_path, main)


@pytest.mark.parametrize("how", ["observe", "off", "pause"])
def test_where_nothing_may_be_written_nothing_is_tried_and_no_pass_follows_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        change = pause(desk, 10_000) if how == "pause" else lambda state: dataclasses.replace(state, cdi_mode=CdiMode(how))
        await desk.remembered.update(change)
        await desk.look(Trigger.DBUS)
        made, passes = len(storage.attempts), desk.passes
        for _ in range(4):
            await desk.advance(LONGEST_WAIT)
        assert len(storage.attempts) == made
        assert desk.passes - passes <= 3
        await desk.remembered.update(lambda state: dataclasses.replace(state, cdi_mode=None, cdi_pause=None))
        storage.reason = None
        await desk.look(Trigger.DBUS)
        assert desk.path.read_bytes() == GOOD

    run_at_desk(tmp_path, main)


@pytest.mark.parametrize("wishes", [{"trigger": Trigger.TIMER}, {"trigger": Trigger.DBUS, "dry_run": True}])
def test_a_pass_that_is_no_sign_brings_nothing_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wishes: dict[str, Any]) -> None:
    async def main(desk: Desk) -> None:
        await blocked(desk, monkeypatch)
        for _ in range(5):
            await desk.advance(LONGEST_WAIT)
        due = desk.owned.retry_at
        await desk.look(**wishes)
        await desk.quiet()
        assert desk.owned.retry_at == due

    run_at_desk(tmp_path, main)


def test_a_dry_run_in_between_does_not_end_the_retries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        storage.reason = None
        assert (await desk.look(Trigger.DBUS, dry_run=True, demanded=True)).outcome is Outcome.DRY_RUN
        await desk.quiet()
        assert not desk.path.exists()
        await desk.advance(1)
        assert desk.path.read_bytes() == GOOD

    run_at_desk(tmp_path, main)


def test_passes_that_break_off_make_no_loop_of_retries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk) -> None:
        await blocked(desk, monkeypatch)
        calls: list[int] = []

        def fail() -> list[Any]:
            calls.append(1)
            raise ZeroDivisionError

        desk.list_devices = fail
        for _ in range(12):
            await desk.advance(5)
        assert len(calls) <= 8

    run_at_desk(tmp_path, main)


# --- the records ---------------------------------------------------------------------------------------------------------
def test_storage_that_is_full_for_hours_gives_a_handful_of_records_and_its_end_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        for turn in range(300):
            await desk.advance(LONGEST_WAIT)
            if turn % 10 == 0:
                await desk.look(Trigger.DBUS, demanded=True)  # an allocation is asked for
        failures = len(storage.attempts)
        assert failures > 300
        assert [record[names.FIELD_EVENT][0] for record in desk.records()] == ["spec-repair", "spec-repair", "spec-blocked"]
        storage.reason = None
        await desk.advance(LONGEST_WAIT)
        assert desk.state is SpecState.TRUE
        intent, failure, success = desk.records("spec-repair")
        assert [record[names.FIELD_OUTCOME] for record in (intent, failure, success)] == [["intent"], ["failure"], ["success"]]
        assert failure[names.FIELD_REASON] == [Reason.CDI_NO_SPACE]
        assert len({record[names.FIELD_REQUEST_ID][0] for record in (intent, failure, success)}) == 1
        assert success[names.FIELD_COUNT] == [str(failures)]
        assert f"after {failures} attempts that failed" in success["MESSAGE"][0]
        assert len(desk.records("spec-restored")) == 1
        desk.sink.clear()
        desk.path.unlink()
        await desk.until(desk.path.exists)
        await desk.quiet()
        (_, success) = desk.records("spec-repair")
        assert names.FIELD_COUNT not in success, "that is another story"

    run_at_desk(tmp_path, main)


def test_what_is_found_otherwise_meanwhile_is_told_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk) -> None:
        storage = await blocked(desk, monkeypatch)
        for number in range(20):
            desk.path.write_bytes(document(uid=number))
            await desk.advance(2)
        assert desk.outcomes()[:2] == [("failure", "missing"), ("failure", "stale")]
        assert len(desk.outcomes()) == TOLD_FAILURES
        assert len(desk.records("spec-blocked")) == 1
        storage.reason = None
        await desk.advance(LONGEST_WAIT)
        assert desk.outcomes()[-1] == ("success", "stale")
        assert desk.path.read_bytes() == GOOD

    run_at_desk(tmp_path, main)


def test_a_removal_that_fails_is_tried_again_and_told_once_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk) -> None:
        desk.sink.clear()
        real, made = store.remove, []

        def fail(*_words: object, **_named: object) -> bool:
            made.append(1)
            raise StoreError(Reason.CDI_IMMUTABLE, "as the test says")

        monkeypatch.setattr(store, "remove", fail)
        desk.devices = []
        await desk.look()
        await desk.advance(10.1)
        for _ in range(5):
            await desk.advance(LONGEST_WAIT)
        assert len(made) > 3
        assert desk.outcomes("spec-withdraw") == [("failure", "withdrawn")]
        assert (desk.state, desk.view.reason) == (SpecState.BLOCKED, Reason.CDI_IMMUTABLE)
        monkeypatch.setattr(store, "remove", real)
        await desk.advance(LONGEST_WAIT)
        assert desk.state is SpecState.EMPTY
        assert desk.outcomes("spec-withdraw") == [("failure", "withdrawn"), ("success", "withdrawn")]

    run_at_desk(tmp_path, main)


def test_what_devward_wants_otherwise_stays_its_own_wish_when_the_first_attempt_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(desk: Desk) -> None:
        desk.sink.clear()
        storage = Storage(desk, monkeypatch)
        await desk.reconciler.configure(dataclasses.replace(desk.config, device_uid=7))
        await desk.quiet()
        await desk.advance(LONGEST_WAIT)
        storage.reason = None
        await desk.advance(LONGEST_WAIT)
        assert desk.path.read_bytes() == document(uid=7)
        assert desk.outcomes() == [("failure", "published"), ("success", "published")]
        assert desk.view.repair_count == 0

    run_at_desk(tmp_path, main)


def test_an_exception_in_an_attempt_that_is_not_told_is_told_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(desk: Desk) -> None:
        await blocked(desk, monkeypatch)

        def fail(*_words: object, **_named: object) -> str:
            raise ZeroDivisionError

        monkeypatch.setattr(store, "write", fail)
        with pytest.raises(ZeroDivisionError):
            await desk.look(demanded=True)
        assert desk.outcomes() == [("failure", "missing"), ("failure", "missing")]
        assert desk.records("spec-repair")[-1][names.FIELD_REASON] == ["unfinished"]

    run_at_desk(tmp_path, main)


def test_stale_content_is_published_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What engines find in the file is told though it is not what it should be."""

    async def main(desk: Desk) -> None:
        await blocked(desk, monkeypatch)
        desk.path.write_bytes(STALE)
        await asyncio.sleep(0)
        await desk.quiet()
        assert desk.state is SpecState.BLOCKED
        assert len(desk.view.devices) == 1

    run_at_desk(tmp_path, main)
