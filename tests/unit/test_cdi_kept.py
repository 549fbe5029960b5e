"""Several owned files in one loop: each with its own devices, state and waits, and none in the way of another."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from devward.cdi import spec, store
from devward.cdi.decision import Candidate
from devward.cdi.reconciler import PassRequest
from devward.cdi.sources import Offer
from devward.config import CdiConfig
from devward.model import Health, Identity, Outcome, SpecState, SpecView, Trigger
from devward.reasons import Reason
from sim.cdi_desk import GOOD, KIND, KVM, Desk, rival, run_at_desk

OTHER_KIND, OTHER_FILE = "example.org/part", "example.org-part.json"
ALL = f"{OTHER_KIND}=all"


def part(name: object) -> str:
    return f"{OTHER_KIND}={name}"


def valid(name: object, identity: Identity = Identity.VALID) -> Candidate:
    return Candidate(part(name), f"/dev/part{name}", identity, Health.HEALTHY, Reason.OK)


class Parts:
    """A second source of devices, that the test sets."""

    file_name = OTHER_FILE
    cdi_kind = OTHER_KIND
    aggregate = ALL

    def __init__(self) -> None:
        self.wanted = False
        self.parts: list[Candidate] = []
        self.complete = True
        self.is_known = True
        self.strict = False

    def node(self, device: str) -> str:
        return f"/dev/part{device.rpartition('=')[2]}"

    def offer(self, _: CdiConfig) -> Offer:
        return Offer(tuple(self.parts), self._render if self.is_known else None, complete=self.complete, strict=self.strict)

    @staticmethod
    def _render(devices: "list[str]", members: "list[str]") -> bytes:  # type: ignore[override]
        made = [
            {
                "name": device.rpartition("=")[2],
                "containerEdits": {"env": [f"PARTS={','.join(members)}"] if device == ALL else ["PART=1"]},
            }
            for device in devices
        ]
        return json.dumps({"cdiVersion": "0.5.0", "kind": OTHER_KIND, "devices": made}).encode()


class Two:
    """A desk with a second file."""

    def __init__(self, desk: Desk, parts: Parts) -> None:
        self.desk, self.parts = desk, parts
        self.path = desk.cdi / OTHER_FILE

    @property
    def view(self) -> SpecView:
        return self.desk.reconciler.view(OTHER_KIND)

    def devices(self) -> tuple[str, ...]:
        return tuple(name.rpartition("=")[2] for name in spec.load(self.path.read_bytes(), OTHER_FILE).devices)

    async def has(self, *parts: Candidate) -> None:
        """Let these be there, and passes follow."""
        self.parts.wanted = True
        self.parts.parts = list(parts)
        self.desk.reconciler.nudge(Trigger.UDEV)
        await self.desk.quiet()


def run_two(base: Path, main, **settings) -> None:  # type: ignore[no-untyped-def]
    parts = Parts()

    async def enter(desk: Desk) -> None:
        await main(Two(desk, parts))

    run_at_desk(base, enter, more_sources=(parts,), **settings)


# --- there or not --------------------------------------------------------------------------------------------------------
def test_a_file_that_never_concerned_the_host_is_not_looked_at_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = store.look

    def look(directory: str, name: str) -> store.Found:
        looked.append(name)
        return real(directory, name)

    monkeypatch.setattr(store, "look", look)

    async def main(two: Two) -> None:
        two.path.write_bytes(b"somebody else's")
        await two.desk.look(scan=True)
        assert OTHER_FILE not in looked
        assert [view.cdi_kind for view in two.desk.reconciler.views] == [KIND]
        assert two.path.read_bytes() == b"somebody else's"

    run_two(tmp_path, main)


def test_devices_come_and_go_with_the_one_that_stands_for_all(tmp_path: Path) -> None:
    async def main(two: Two) -> None:
        await two.has(*(valid(number) for number in (10, 2, 1)))
        assert two.devices() == ("1", "2", "10", "all")
        assert (two.view.state, two.view.devices) == (SpecState.TRUE, (part(1), part(2), part(10), ALL))
        assert two.desk.path.read_bytes() == GOOD
        await two.has(valid(1))
        await two.desk.advance(11)
        assert two.devices() == ("1", "all")
        await two.has()
        await two.desk.advance(11)
        assert not two.path.exists()
        assert two.view.state is SpecState.EMPTY
        assert two.desk.state is SpecState.TRUE

    run_two(tmp_path, main)


def test_what_is_not_among_the_candidates_stays_while_they_are_not_complete(tmp_path: Path) -> None:
    async def main(two: Two) -> None:
        await two.has(valid(1), valid(2))
        two.parts.complete = False
        await two.has(valid(1))
        await two.desk.advance(60)
        assert two.devices() == ("1", "2", "all")
        await two.has(valid(1, Identity.INVALID))
        await two.desk.advance(11)
        assert two.devices() == ("2", "all"), "what is established leaves all the same"
        two.parts.complete = True
        await two.has()
        await two.desk.advance(11)
        assert not two.path.exists()

    run_two(tmp_path, main)


def test_a_file_of_an_earlier_run_stays_until_it_is_known_what_it_should_say(tmp_path: Path) -> None:
    async def before(two: Two) -> None:
        await two.has(valid(1), valid(2))

    run_two(tmp_path, before)
    content = (tmp_path / "etc/cdi" / OTHER_FILE).read_bytes()
    parts = Parts()
    parts.complete = parts.is_known = False

    async def main(desk: Desk) -> None:
        two = Two(desk, parts)
        assert two.view.state is SpecState.UNKNOWN
        await desk.advance(60)
        assert two.path.read_bytes() == content
        # Whatever is there may be wrong, and is not vouched for.
        two.path.write_bytes(b"{")
        await desk.quiet()
        assert two.view.state is SpecState.UNKNOWN
        parts.complete = parts.is_known = True
        await two.has(valid(1), valid(2))
        assert two.path.read_bytes() == content
        assert two.view.state is SpecState.TRUE

    run_at_desk(tmp_path, main, more_sources=(parts,))


def test_of_a_strict_source_nothing_stays_that_nobody_can_vouch_for(tmp_path: Path) -> None:
    async def before(two: Two) -> None:
        await two.has(valid(1), valid(2))

    run_two(tmp_path, before)
    content = (tmp_path / "etc/cdi" / OTHER_FILE).read_bytes()
    parts = Parts()
    parts.strict, parts.wanted, parts.is_known = True, True, False
    parts.parts = [valid(1, Identity.UNKNOWN), valid(2, Identity.UNKNOWN)]

    async def main(desk: Desk) -> None:
        two = Two(desk, parts)
        await desk.advance(8)
        assert two.path.read_bytes() == content, "an answer may yet come"
        await desk.advance(3)
        assert not two.path.exists()
        parts.is_known = True
        await two.has(valid(1), valid(2))
        assert two.path.read_bytes() == content
        await two.has(valid(1), valid(2, Identity.INVALID))
        assert two.devices() == ("1", "all")
        await two.has()
        assert not two.path.exists()

    run_at_desk(tmp_path, main, more_sources=(parts,))


def test_a_file_of_an_earlier_run_goes_where_there_is_nothing_any_more(tmp_path: Path) -> None:
    async def before(two: Two) -> None:
        await two.has(valid(1))

    run_two(tmp_path, before)

    async def main(two: Two) -> None:
        assert two.path.exists(), "it settles first"
        assert [view.cdi_kind for view in two.desk.reconciler.views] == [KIND, OTHER_KIND]
        await two.desk.advance(11)
        assert not two.path.exists()

    run_two(tmp_path, main)


# --- apart ---------------------------------------------------------------------------------------------------------------
def test_a_demand_for_one_file_does_not_repair_a_contested_other(tmp_path: Path) -> None:
    async def main(two: Two) -> None:
        await two.has(valid(1))
        for _ in range(5):
            two.path.write_bytes(b"{")
            await two.desk.quiet()
        assert two.view.state is SpecState.CONTESTED
        two.path.write_bytes(b"{")
        await two.desk.quiet()
        await two.desk.look(demanded=True)
        assert two.path.read_bytes() == b"{"
        results = await two.desk.reconciler.run(PassRequest(Trigger.DBUS, demanded=frozenset({OTHER_KIND})))
        assert results[OTHER_KIND].outcome is Outcome.SUCCESS
        assert two.devices() == ("1", "all")
        assert two.desk.state is SpecState.TRUE

    run_two(tmp_path, main, contested_after=3)


def test_demands_for_different_files_share_a_pass(tmp_path: Path) -> None:
    async def main(two: Two) -> None:
        await two.has(valid(1))
        passes = two.desk.passes
        wishes = [PassRequest(Trigger.DBUS, demanded=frozenset({kind})) for kind in (KIND, OTHER_KIND)]
        first, second = await asyncio.gather(*(two.desk.reconciler.run(wish) for wish in wishes))
        assert first == second
        assert set(first) == {KIND, OTHER_KIND}
        assert two.desk.passes - passes == 1

    run_two(tmp_path, main)


def test_adoption_takes_over_one_file_alone(tmp_path: Path) -> None:
    async def main(two: Two) -> None:
        foreign = GOOD.replace(KIND.encode(), b"example.com/device")
        two.path.write_bytes(foreign)
        await two.has(valid(1))
        assert two.view.state is SpecState.FOREIGN
        await two.desk.look(adopt=True)
        assert two.path.read_bytes() == foreign
        await two.desk.reconciler.run(PassRequest(Trigger.DBUS, adopt=OTHER_KIND))
        assert two.devices() == ("1", "all")

    run_two(tmp_path, main)


def test_a_rival_of_one_file_leaves_the_other_alone_and_all_means_all(tmp_path: Path) -> None:
    async def main(two: Two) -> None:
        await two.has(valid(1), valid(2))
        (two.desk.cdi / "rival.json").write_bytes(rival(part(1)).replace(b"0.3.0", b"0.5.0"))
        await two.desk.quiet()
        assert two.devices() == ("2", "all")
        assert f"{part(1)},{part(2)}".encode() in two.path.read_bytes()
        assert (two.view.state, two.desk.state) == (SpecState.CONFLICT, SpecState.TRUE)
        assert two.desk.reconciler.effective(part(1))[1] is Reason.CDI_CONFLICT
        assert two.desk.reconciler.effective(KVM)[0] is True
        (finding,) = [one for one in two.desk.reconciler.findings() if one.code is Reason.CDI_CONFLICT]
        assert part(1) in finding.text
        (two.desk.cdi / "rival.json").write_bytes(rival(ALL).replace(b"0.3.0", b"0.5.0"))
        await two.desk.quiet()
        assert two.devices() == ("1", "2")

    run_two(tmp_path, main)


def test_an_obstruction_of_one_file_leaves_the_other_alone(tmp_path: Path) -> None:
    async def main(two: Two) -> None:
        await two.has(valid(1))
        two.path.unlink()
        two.path.mkdir()
        await two.desk.quiet()
        assert (two.view.state, two.desk.state) == (SpecState.BLOCKED, SpecState.TRUE)
        two.desk.path.unlink()
        await two.desk.until(lambda: two.desk.path.exists() and two.desk.path.read_bytes() == GOOD)
        two.path.rmdir()
        await two.desk.quiet()
        assert two.view.state is SpecState.TRUE

    run_two(tmp_path, main)


def test_what_breaks_about_one_file_is_its_own(tmp_path: Path) -> None:
    async def main(two: Two) -> None:
        await two.has(valid(1))

        def fail(_: CdiConfig) -> Offer:
            raise ZeroDivisionError

        two.parts.offer = fail  # type: ignore[method-assign]
        two.desk.path.unlink()
        await two.desk.until(lambda: two.desk.path.exists() and two.desk.path.read_bytes() == GOOD)
        assert (await two.desk.look(demanded=True)).outcome is Outcome.NOOP
        assert (two.desk.state, two.view.state) == (SpecState.TRUE, SpecState.UNKNOWN)
        assert "ZeroDivisionError" in two.view.text
        with pytest.raises(ZeroDivisionError):
            await two.desk.reconciler.run(PassRequest(Trigger.DBUS, demanded=frozenset({OTHER_KIND})))
        del two.parts.offer  # type: ignore[method-assign]
        await two.desk.look()
        assert two.view.state is SpecState.TRUE

    run_two(tmp_path, main)


def test_both_files_move_with_the_directory(tmp_path: Path) -> None:
    async def main(two: Two) -> None:
        await two.has(valid(1))
        other = tmp_path / "elsewhere"
        other.mkdir()
        config = two.desk.config
        await two.desk.reconciler.configure(
            CdiConfig(**{**{name: getattr(config, name) for name in config.__slots__}, "directory": str(other)})
        )
        await two.desk.quiet()
        assert sorted(os.listdir(other)) == [OTHER_FILE, two.desk.path.name]
        assert two.path.exists(), "the old one is left"

    run_two(tmp_path, main)


def test_devices_that_leave_are_named_in_the_record(tmp_path: Path) -> None:
    async def main(two: Two) -> None:
        await two.has(valid(1), valid(2))
        await two.has(valid(1), valid(2, Identity.MISSING))
        await two.desk.advance(11)
        (record,) = [one for one in two.desk.records("spec-withdraw") if one["DEVWARD_OUTCOME"] == ["success"]]
        assert record["DEVWARD_DEVICE"] == ["/dev/part2"]

    run_two(tmp_path, main)
