"""What devward remembers takes effect at once, and reaches the disk in order, again and again until it does."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from devward.errors import StateError
from devward.model import MAXIMUM_PAUSE_SECONDS, CdiMode
from devward.remembered import SAVE_DEADLINE, Remembered, with_bounded_pause, without_pause, without_reclaim_pause
from devward.state import DIGESTS, Pause, State, StateStore
from devward.worker import Worker
from sim.held_time import HeldTimeLoop, run_held, until

PATH = "/etc/cdi/hyperlight.dev-hypervisor.json"
DIGEST, OTHER = "a" * 64, "b" * 64


class RecordingStore:
    """Keeps every state that it was given, or fails."""

    def __init__(self) -> None:
        self.saved: list[State] = []
        self.threads: set[int] = set()
        self.failure: Exception | None = None
        self.hanging: threading.Event | None = None

    def save(self, state: State) -> bool:
        self.threads.add(threading.get_ident())
        if self.hanging is not None:
            self.hanging.wait(30)
        if self.failure is not None:
            raise self.failure
        self.saved.append(state)
        return True

    def backup(self, name: str, data: bytes) -> str:
        return f"{name}:{len(data)}"


class Desk:
    def __init__(self, state: State) -> None:
        self.store = RecordingStore()
        self.worker = Worker("files")
        self.remembered = Remembered(state, self.store, self.worker)


def run(main: Callable[[Desk, HeldTimeLoop], Coroutine[Any, Any, None]]) -> None:
    """Run a test with an empty state."""

    async def enter(loop: HeldTimeLoop) -> None:
        desk = Desk(State())
        try:
            await main(desk, loop)
        finally:
            desk.worker.close()

    run_held(enter)


def test_a_change_is_in_force_at_once_and_saved_off_the_loop() -> None:
    async def main(desk: Desk, _loop: HeldTimeLoop) -> None:
        saving = asyncio.ensure_future(desk.remembered.update(lambda state: dataclasses.replace(state, cdi_mode=CdiMode.OFF)))
        await asyncio.sleep(0)
        assert desk.remembered.state.cdi_mode is CdiMode.OFF
        assert await saving is True
        assert desk.store.saved == [State(cdi_mode=CdiMode.OFF)]
        assert threading.get_ident() not in desk.store.threads

    run(main)


def test_what_does_not_change_is_not_saved() -> None:
    async def main(desk: Desk, _loop: HeldTimeLoop) -> None:
        assert await desk.remembered.update(lambda state: state)
        assert await desk.remembered.update(without_pause)
        assert desk.store.saved == []
        assert await desk.remembered.add_digest(PATH, DIGEST)
        assert await desk.remembered.add_digest(PATH, DIGEST)
        assert len(desk.store.saved) == 1

    run(main)


@pytest.mark.parametrize("failure", [StateError("full"), OSError(28, "full"), TimeoutError(110, "timed out")])
def test_a_save_that_fails_is_told_and_tried_again_with_the_next_change(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def main(desk: Desk, _loop: HeldTimeLoop) -> None:
        desk.store.failure = failure
        assert await desk.remembered.add_digest(PATH, DIGEST) is False
        assert desk.remembered.known_digests(PATH) == (DIGEST,), "the change stands in memory all the same"
        assert "could not be saved" in caplog.text
        desk.store.failure = None
        assert await desk.remembered.add_digest(PATH, DIGEST) is True
        assert desk.store.saved == [State().with_digest(PATH, DIGEST)]
        assert await desk.remembered.update(lambda state: state)
        assert len(desk.store.saved) == 1

    run(main)


def test_a_programming_error_of_the_store_is_no_failed_save() -> None:
    async def main(desk: Desk, _loop: HeldTimeLoop) -> None:
        desk.store.failure = KeyError("x")
        with pytest.raises(KeyError):
            await desk.remembered.add_digest(PATH, DIGEST)

    run(main)


def test_a_save_that_hangs_is_given_up_and_made_up_for() -> None:
    async def main(desk: Desk, loop: HeldTimeLoop) -> None:
        desk.store.hanging = threading.Event()
        saving = asyncio.ensure_future(desk.remembered.add_digest(PATH, DIGEST))
        await until(lambda: desk.store.threads)
        loop.advance(SAVE_DEADLINE + 0.1)
        assert await saving is False
        assert await desk.remembered.update(lambda state: dataclasses.replace(state, cdi_mode=CdiMode.OFF)) is False
        desk.store.hanging.set()
        await until(lambda: not desk.worker.hung)
        assert await desk.remembered.update(lambda state: state) is True
        assert desk.store.saved[-1] == State(cdi_mode=CdiMode.OFF).with_digest(PATH, DIGEST)

    run(main)


def test_concurrent_changes_are_all_kept_and_saved_in_order() -> None:
    async def main(desk: Desk, _loop: HeldTimeLoop) -> None:
        digests = [f"{number:064x}" for number in range(5)]
        assert all(await asyncio.gather(*(desk.remembered.add_digest(PATH, digest) for digest in digests)))
        assert [state.digests[PATH] for state in desk.store.saved] == [tuple(digests[: count + 1]) for count in range(5)]
        assert desk.remembered.known_digests(PATH) == tuple(digests)

    run(main)


def test_the_latest_content_is_the_last_of_a_bounded_number() -> None:
    async def main(desk: Desk, _loop: HeldTimeLoop) -> None:
        for number in range(DIGESTS + 3):
            await desk.remembered.add_digest(PATH, f"{number:064x}")
        assert len(desk.remembered.known_digests(PATH)) == DIGESTS
        await desk.remembered.add_digest(PATH, f"{5:064x}")
        assert desk.remembered.known_digests(PATH)[-1] == f"{5:064x}"
        assert len(desk.remembered.known_digests(PATH)) == DIGESTS

    run(main)


def test_forgetting_concerns_one_path_only() -> None:
    async def main(desk: Desk, _loop: HeldTimeLoop) -> None:
        await desk.remembered.add_digest(PATH, DIGEST)
        await desk.remembered.add_digest("/other", OTHER)
        assert await desk.remembered.forget(PATH)
        assert desk.remembered.known_digests(PATH) == ()
        assert desk.remembered.known_digests("/other") == (OTHER,)
        assert dict(desk.store.saved[-1].digests) == {"/other": (OTHER,)}

    run(main)


def test_without_pause_keeps_the_rest() -> None:
    state = State(cdi_mode=CdiMode.OBSERVE, cdi_pause=Pause(5, "why", 0)).with_digest(PATH, DIGEST)
    assert without_pause(state) == State(cdi_mode=CdiMode.OBSERVE).with_digest(PATH, DIGEST)


def test_each_pause_ends_alone() -> None:
    pause = Pause(5, "why", 0)
    both = State(cdi_pause=pause, reclaim_pause=pause)
    assert without_pause(both) == State(reclaim_pause=pause)
    assert without_reclaim_pause(both) == State(cdi_pause=pause)


def test_a_pause_lasts_no_longer_than_can_be_asked_for_whatever_the_clock_said() -> None:
    usable = State(cdi_pause=Pause(5_000_000, "why", 0))
    assert with_bounded_pause(usable, 0) == usable
    assert with_bounded_pause(State(), 0) == State()
    from_the_future = State(cdi_pause=Pause(10**18, "why", 7))
    assert with_bounded_pause(from_the_future, 1) == State(cdi_pause=Pause(MAXIMUM_PAUSE_SECONDS * 1_000_000 + 1, "why", 7))


def test_until_when_a_pause_of_reclaiming_was_asked_for_stays_on_record() -> None:
    pause = Pause(10**18, "why", 7)
    assert with_bounded_pause(State(cdi_pause=pause, reclaim_pause=pause), 1).reclaim_pause == pause


def test_it_all_comes_back_after_a_restart(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    copies: list[str] = []

    async def main(desk: Desk, _loop: HeldTimeLoop) -> None:
        store = StateStore(str(directory), realtime_usec=lambda: 1)
        remembered = Remembered(store.load().state, store, desk.worker)
        await remembered.add_digest(PATH, DIGEST)
        await remembered.update(lambda state: dataclasses.replace(state, cdi_pause=Pause(5, "why", 7)))
        again = Remembered(StateStore(str(directory), realtime_usec=lambda: 1).load().state, store, desk.worker)
        assert again.known_digests(PATH) == (DIGEST,)
        assert again.state.cdi_pause == Pause(5, "why", 7)
        copies.append(await again.backup("name.json", b"content"))

    run(main)
    assert Path(copies[0]).read_bytes() == b"content"
