"""devwardctl and pins: the list, what may be named, and what is told of the outcome."""

from dataclasses import replace

import pytest
from bus_harness import CARD, CARD_TARGET, VNPU, VNPU_TARGET, Bus, World
from test_ctl_service import ctl, with_world

from devward import errors
from devward.model import ActionResult, Outcome

USEC = 1_700_000_000_000_008
PIN = {
    "target": VNPU_TARGET,
    "since_usec": USEC,
    "reason": "a training\x1b[31m",
    "caller_uid": 1000,
    "standing": "matched",
    "matches": ["v0212"],
    "code": "",
    "text": "",
}
CARD_PIN = {"target": CARD_TARGET, "since_usec": USEC, "standing": "unknown", "matches": [], "code": "npu-list-incomplete", "text": "It."}


def with_npus(made: World) -> None:
    made.backend.card_views, made.backend.vnpu_views = (CARD,), (replace(VNPU, identity=f"{VNPU_TARGET}/0123456789abcdef"),)
    made.backend.described = {"pins": [PIN, CARD_PIN]}
    made.service.publish()


def test_the_list(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_npus(made)
        shown = (await ctl(bus.address, "pins", "--utc")).output.splitlines()
        assert shown[0].split() == ["PIN", "STANDING", "MATCHES", "REASON", "SINCE", "BY"]
        assert shown[1].split() == [VNPU_TARGET, "matched", "v0212", "a", "training\\x1b[31m", "2023-11-14T22:13:20.000Z", "uid", "1000"]
        assert shown[2].split() == [CARD_TARGET, "unknown", "2023-11-14T22:13:20.000Z"]
        assert (await ctl(bus.address, "pins", "--json")).json == [PIN, CARD_PIN]
        narrow = (await ctl(bus.address, "pins", COLUMNS="80")).output
        assert VNPU_TARGET in narrow
        assert "a training" in narrow
        made.backend.described = {"pins": []}
        assert (await ctl(bus.address, "pins")).output == "No pins.\n"
        assert (await ctl(bus.address, "pins", "--json")).json == []

    with_world(bus, work)


def test_a_daemon_that_knows_of_no_pins_is_not_one_that_has_none(bus: Bus) -> None:
    async def work(made: World) -> None:
        for described in ({}, {"pins": "none"}):
            made.backend.described = described
            ended = await ctl(bus.address, "pins")
            assert (ended.status, ended.output) == (1, "")
            assert "does not offer pins" in ended.errors

    with_world(bus, work)


@pytest.mark.parametrize("command", ["pin", "unpin"])
@pytest.mark.parametrize(
    ("said", "target"),
    [
        ("212", VNPU_TARGET),
        ("v0212", VNPU_TARGET),
        ("/dev/vdavinci212", VNPU_TARGET),
        (f"{VNPU_TARGET}/0123456789abcdef", VNPU_TARGET),
        (VNPU_TARGET, VNPU_TARGET),
        ("p007", CARD_TARGET),
        ("/dev/davinci7", CARD_TARGET),
        (CARD_TARGET, CARD_TARGET),
        (CARD_TARGET + "/213/vir10", CARD_TARGET + "/213/vir10"),
    ],
)
def test_what_may_be_named(bus: Bus, command: str, said: str, target: str) -> None:
    async def work(made: World) -> None:
        with_npus(made)
        made.backend.results = (ActionResult(target, Outcome.SUCCESS, ""),)
        ended = await ctl(bus.address, command, said)
        assert ended.status == 0, ended.errors
        assert ended.output.startswith(f"{target} is {'' if command == 'pin' else 'not '}pinned")
        ((name, _, asked, *_),) = made.backend.calls
        assert (name, asked) == (command, target)

    with_world(bus, work)


@pytest.mark.parametrize("said", ["7", "213", "v0213", "p008", "kvm", "", "p007/212/vir05_1c_16g", "/org/devward", CARD_TARGET[:-1]])
def test_what_is_not_there_is_not_guessed(bus: Bus, said: str) -> None:
    async def work(made: World) -> None:
        with_npus(made)
        for command in ("pin", "unpin"):
            ended = await ctl(bus.address, command, said)
            assert (ended.status, ended.output) == (1, "")
            assert "devward sees no NPU and no vNPU" in ended.errors
        assert not made.backend.calls

    with_world(bus, work)


def test_what_cannot_be_named_in_full_is_not_pinned(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_npus(made)
        for vnpu, lacks in (
            (replace(VNPU, template="", identity=f"{CARD_TARGET}/212/-/0"), "template"),
            (replace(VNPU, identity="-/212/vir05_1c_16g/0"), "die id"),
        ):
            made.backend.card_views, made.backend.vnpu_views = (replace(CARD, die_id=""),), (vnpu,)
            made.service.publish()
            ended = await ctl(bus.address, "pin", "v0212")
            assert ended.status == 1
            assert f"The {lacks}" in ended.errors
        assert "The die id is not known for p007" in (await ctl(bus.address, "pin", "p007")).errors
        assert not made.backend.calls

    with_world(bus, work)


def test_a_target_that_the_daemon_refuses_is_wrong_usage(bus: Bus) -> None:
    async def work(made: World) -> None:
        ended = await ctl(bus.address, "pin", f"{CARD_TARGET}/65535/vir05_1c_16g")
        assert ended.status == 2
        assert "DIE or DIE/VDEV/TEMPLATE" in ended.errors

    with_world(bus, work)


@pytest.mark.parametrize("reason", ["pin-unmatched", "npu-list-incomplete"])
def test_a_pin_that_matches_nothing_says_so(bus: Bus, reason: str) -> None:
    async def work(made: World) -> None:
        for outcome in (Outcome.SUCCESS, Outcome.NOOP):
            made.backend.results = (ActionResult(VNPU_TARGET, outcome, reason),)
            ended = await ctl(bus.address, "pin", VNPU_TARGET)
            assert ended.status == 0
            assert f"{VNPU_TARGET} is pinned.\n" in ended.output
            assert f"({reason})" in " ".join(ended.output.split())
        document = (await ctl(bus.address, "pin", VNPU_TARGET, "--json")).json
        assert isinstance(document, dict)
        assert document["results"] == [{"target": VNPU_TARGET, "outcome": "noop", "reason": reason}]

    with_world(bus, work)


def test_refusals_say_what_to_do(bus: Bus) -> None:
    async def work(made: World) -> None:
        made.backend.error = errors.NoSuchPin("There is no such pin.")
        ended = await ctl(bus.address, "unpin", VNPU_TARGET)
        assert (ended.status, ended.output) == (1, "")
        assert "devwardctl pins" in ended.errors
        made.backend.error = errors.LimitsExceeded("There are 2048 pins already.")
        ended = await ctl(bus.address, "pin", VNPU_TARGET)
        assert ended.status == 1
        assert "devwardctl unpin" in ended.errors
        assert "try again in a moment" not in ended.errors

    with_world(bus, work)


def test_explain_and_completion(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_npus(made)
        made.backend.explained = {"pins": [PIN, {**CARD_PIN, "reason": "", "caller_uid": 0}], "not_offerable_because": "It went."}
        said = " ".join((await ctl(bus.address, "explain", "v0212", "--utc")).output.split())
        assert "It is pinned, since 2023-11-14T22:13:20.000Z by uid 1000: a training\\x1b[31m." in said
        assert "It is pinned, with all vNPUs of its NPU, since 2023-11-14T22:13:20.000Z by uid 0." in said
        assert "It is not offered to containers in a CDI file. It went." in said
        made.backend.explained = {"pins": {"odd": 1}}
        assert "pinned" not in (await ctl(bus.address, "explain", "v0212")).output
        assert (await ctl(bus.address, "complete", "npus")).output.split() == ["p007", "v0212"]
        assert (await ctl(bus.address, "complete", "pins")).output.split() == [VNPU_TARGET, CARD_TARGET]
        made.backend.described = {}
        assert (await ctl(bus.address, "complete", "pins")).output == ""

    with_world(bus, work)
