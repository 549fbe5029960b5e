"""devwardctl and reclaiming: how it stands, what is asked for, what became of each vNPU, refusals, waiting."""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest
from bus_harness import CARD, MANAGER, VNPU, Bus, World, needs_root, run, world
from test_ctl_service import AS_NOBODY, PENDING, ctl, end, read_until, start, with_world

from devward import errors
from devward.model import ActionResult, Outcome, ReclaimMode, ReclaimState
from devward.npu.views import Verdict
from sim.polkit_stub import Mode

USEC = 1_700_000_000_000_000
POD = "11111111-2222-4333-8444-555555555555"
CANDIDATE = replace(
    VNPU,
    verdict=Verdict.CONFIRMING,
    verdict_reason="waiting-for-grace",
    grace_start_usec=USEC,
    confirmations=2,
    eligible_at_usec=USEC + 600_000_000,
)
RECLAIM = {
    "mode": "enforce",
    "state": "blocked",
    "paused_until_usec": 0,
    "blocked": [{"reason": "kill-switch", "text": "The kill\x1b switch is set."}],
    "counters": {"looks": 7, "vnpus_destroyed": 2, "destroy_errors": 0},
    "leaks": {
        "by_card": [{"of": "p007", "count": 1, "since_usec": USEC, "cores": 5.0}],
        "by_owner": [
            {"kind": "", "uid": "", "card": "p001", "count": 2, "since_usec": 0, "cores": 0.0},
            {"kind": "Pod", "uid": POD, "card": "p007", "count": 1, "since_usec": USEC, "cores": 5.0},
            {"kind": "Job", "uid": "j-1", "owner_name": "space/tr\x1bain", "card": "p007", "count": 1, "since_usec": USEC, "cores": 5.0},
        ],
        "more": 3,
    },
    "gone": [
        {
            "at_usec": USEC + number,
            "fate": "destroyed",
            "vdev": 200 + number,
            "card": "p007",
            "template": "vir05_1c_16g",
            "verdict": "eligible",
            "request_id": f"r-{number}",
        }
        for number in range(22)
    ],
}


def with_vnpu(made: World) -> None:
    made.backend.card_views, made.backend.vnpu_views = (CARD,), (CANDIDATE,)
    made.backend.view = replace(
        MANAGER,
        reclaim_mode=ReclaimMode.ENFORCE,
        reclaim_state=ReclaimState.BLOCKED,
        blocked_reasons=("kill-switch",),
        last_cycle_usec=USEC,
    )
    made.backend.described = {"reclaim": RECLAIM}
    made.service.publish()


def test_the_status_of_reclaiming(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        ended = await ctl(bus.address, "reclaim", "status", "--utc")
        assert ended.status == 0
        shown = ended.output
        assert shown.startswith(
            "Reclaiming is blocked: no vNPU is destroyed (mode enforce).\n  - The kill\\x1b switch is set. (kill-switch)\n"
            "  1 vNPU belongs to nobody, as far as can be seen: 1 waiting.\n  What to do: devwardctl explain kill-switch\n"
        )
        words = [line.split() for line in shown.splitlines()]
        assert ["p007", "1", "5", "2023-11-14T22:13:20.000Z"] in words
        assert ["Pod", POD, "p007", "1", "5", "2023-11-14T22:13:20.000Z"] in words
        assert ["Job", "space/tr\\x1bain", "p007", "1", "5", "2023-11-14T22:13:20.000Z"] in words
        assert ["no", "one", "owner", "that", "is", "known", "p001", "2", "0"] in words
        assert "3 more lines are left out; these left the most.\n" in shown
        assert any(line[1:] == ["221", "p007", "vir05_1c_16g", "destroyed", "eligible", "r-21"] for line in words)
        assert not any("r-1" in line for line in words), "only the last of them"
        assert "2 more went before; --json has all of them.\n" in shown
        assert "  looks: 7\n  vnpus destroyed: 2\n" in shown
        assert "destroy errors" not in shown
        assert (await ctl(bus.address, "reclaim", "status", "--json")).json == RECLAIM
        assert "not known now" not in shown
        leaks = RECLAIM["leaks"]
        assert isinstance(leaks, dict)
        made.backend.described = {"reclaim": {**RECLAIM, "leaks": {**leaks, "known": True, "unknown": 2}}}
        assert "\nOf 2 more vNPUs that is not known now.\n" in (await ctl(bus.address, "reclaim", "status")).output
        made.backend.described = {"reclaim": {**RECLAIM, "leaks": {"known": False, "unknown": 2, "by_card": [], "by_owner": [], "more": 0}}}
        assert "\n\nWhat lies about unused is not known now.\n\n" in (await ctl(bus.address, "reclaim", "status")).output
        made.backend.described = {}
        ended = await ctl(bus.address, "reclaim", "status")
        assert (ended.status, ended.output) == (1, "")
        assert "does not offer reclaiming" in ended.errors

    with_world(bus, work)


def test_the_status_says_why_it_is_not_known_who_owns_the_vnpus(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        text = "The API server refuses the connection."
        made.backend.view = replace(made.backend.view, blocked_reasons=("api-connection-refused",))
        made.backend.explained = {
            "ownership": {"blocked": [{"reason": "api-connection-refused", "who": "pods", "since_usec": USEC, "text": text}]}
        }
        made.backend.described = {
            **made.backend.explained,
            "reclaim": {**RECLAIM, "blocked": [{"reason": "api-connection-refused", "text": text}]},
        }
        made.service.publish()
        shown = (await ctl(bus.address, "reclaim", "status")).output
        assert shown.count("api-connection-refused") == 2, "and in the command that says more"
        assert f"(mode enforce).\n  - {text} (api-connection-refused)\n" in shown
        assert "\n  What to do: devwardctl explain api-connection-refused\n" in shown
        shown = " ".join((await ctl(bus.address, "status")).output.split())
        assert shown.count(f"{text} (api-connection-refused)") == 1, "among what is said of owners"
        assert shown.count("devwardctl explain api-connection-refused") == 1

    with_world(bus, work)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"leaks": 5, "gone": [5, {}], "counters": []},
        {"leaks": {"by_card": [{"of": 1}], "by_owner": [5, {}], "more": "x"}, "gone": [{"at_usec": 1 << 62}]},
    ],
)
def test_an_odd_description_is_shown_as_far_as_it_goes(bus: Bus, odd: object) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        made.backend.described = {"reclaim": odd}
        ended = await ctl(bus.address, "reclaim", "status")
        assert (ended.status, ended.errors) == (0, "")
        assert ended.output.startswith("Reclaiming is blocked")

    with_world(bus, work)


def test_status_and_lists(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        shown = (await ctl(bus.address, "status")).output
        assert "Who owns the vNPUs is known." in shown
        assert "\nReclaiming is blocked: no vNPU is destroyed (mode enforce).\n  - The kill\\x1b switch is set. (kill-switch)\n" in shown
        document = (await ctl(bus.address, "status", "--json")).json
        assert isinstance(document, dict)
        assert document["reclaim"] == {"mode": "enforce", "state": "blocked", "paused_until_usec": 0, "blocked": ["kill-switch"]}
        made.backend.error = RuntimeError("by the test")
        assert "  - kill-switch\n" in (await ctl(bus.address, "status")).output, "the status stands without the sentences"
        made.backend.error = None
        narrow = (await ctl(bus.address, "vnpus", COLUMNS="80")).output.splitlines()
        assert narrow[0].split()[:6] == ["VNPU", "NPU", "TEMPLATE", "USE", "VERDICT", "REASON"]
        assert narrow[1].split()[:6] == ["v0212", "p007", "vir05_1c_16g", "idle", "confirming", "waiting-for-grace"]
        assert all(len(line) <= 80 for line in narrow)
        head, row = (await ctl(bus.address, "vnpus", "--utc")).output.splitlines()
        assert "WAITS SINCE" in head
        assert "RECLAIMED AT" in head
        assert row.split()[6:8] == ["2023-11-14T22:13:20.000Z", "stopped"]
        made.backend.view = replace(made.backend.view, reclaim_state=ReclaimState.ENFORCING, blocked_reasons=())
        made.service.publish()
        assert (await ctl(bus.address, "vnpus", "--utc")).output.splitlines()[1].split()[7] == "2023-11-14T22:23:20.000Z"
        assert "may be now" in (await ctl(bus.address, "vnpus")).output

    with_world(bus, work)


def test_a_host_without_npus_says_nothing_of_reclaiming(bus: Bus) -> None:
    async def work(made: World) -> None:
        made.backend.view = replace(MANAGER, reclaim_mode=ReclaimMode.ENFORCE, reclaim_state=ReclaimState.BLOCKED)
        made.service.publish()
        shown = (await ctl(bus.address, "status")).output
        assert "eclaim" not in shown
        assert "NPU" not in shown

    with_world(bus, work)


def test_explain(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        found = {
            "text": "Nobody has it.",
            "last_reset": "pause-ended",
            "suspects": [POD],
            "seconds_ago": {"reset": 5.0},
            "looked_at_usec": USEC,
        }
        made.backend.explained = {"evidence": found}
        told = (await ctl(bus.address, "explain", "v0212")).output
        assert "The verdict is confirming: Nobody has it. (waiting-for-grace)\n" in told
        assert "A pause of reclaiming ended. (pause-ended)\n" in told
        assert f"Pods that may have left it behind: {POD}.\n" in told
        assert "Now it is not destroyed, as reclaiming is blocked.\n" in told
        document = (await ctl(bus.address, "explain", "v0212", "--json")).json
        assert isinstance(document, dict)
        assert document["evidence"]["evidence"] == found
        # Without a daemon, too.
        ended = await ctl("unix:path=/nonexistent", "explain", "waiting-for-grace")
        assert ended.status == 0
        assert "the time that it must stay so is not over" in ended.output

    with_world(bus, work)


@pytest.mark.parametrize(
    ("options", "flags"), [([], (False, False)), (["--dry-run"], (True, False)), (["--shorten", "--dry-run"], (True, True))]
)
@pytest.mark.parametrize("said", ["v0212", "212", "/dev/vdavinci212", VNPU.identity])
def test_one_vnpu_is_asked_for_with_its_identity(bus: Bus, said: str, options: list[str], flags: tuple[bool, bool]) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        made.backend.results = (ActionResult(VNPU.identity, Outcome.DRY_RUN if flags[0] else Outcome.SUCCESS, ""),)
        ended = await ctl(bus.address, "reclaim", "now", said, *options)
        assert ended.status == 0, ended.errors
        assert ended.output.startswith("v0212: would be destroyed now" if flags[0] else "v0212: destroyed\nrequest id-1")
        ((name, _, *asked),) = made.backend.calls
        assert (name, asked) == ("reclaim_vnpu", [212, VNPU.identity, *flags])

    with_world(bus, work)


def test_what_became_of_each(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        other = VNPU.identity.replace("/212/", "/213/")
        made.backend.results = (
            ActionResult(VNPU.identity, Outcome.SUCCESS, ""),
            ActionResult(other, Outcome.FAILURE, "waiting-for-grace"),
        )
        ended = await ctl(bus.address, "reclaim", "now", COLUMNS="200")
        assert ended.status == 5
        assert ended.output == (
            f"v0212: destroyed\n{other}: not destroyed; Nobody has the vNPU; the time that it must stay so is not over."
            " (waiting-for-grace)\n"
            "request id-1\n"
        )
        document = (await ctl(bus.address, "reclaim", "now", "--json")).json
        assert isinstance(document, dict)
        assert (document["outcome"], document["results"][1]["reason"]) == ("partial", "waiting-for-grace")
        made.backend.results = made.backend.results[1:]
        assert (await ctl(bus.address, "reclaim", "now")).status == 1
        made.backend.results = ()
        ended = await ctl(bus.address, "reclaim", "now")
        assert (ended.status, ended.output) == (0, "There is no vNPU that nobody seems to have.\nrequest id-4\n")

    with_world(bus, work)


def test_what_is_not_there_is_not_asked_for(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        for what in ("v0213", "p007", "7", ""):
            ended = await ctl(bus.address, "reclaim", "now", what)
            assert (ended.status, ended.output) == (1, "")
            assert "devward sees no vNPU named" in ended.errors
            assert "devwardctl vnpus" in ended.errors
        assert not made.backend.calls

    with_world(bus, work)


REFUSALS: Sequence[tuple[list[str], Exception, int, str]] = [
    (["reclaim", "now", "v0212"], errors.NoSuchVnpu("There is no vNPU 212 of that identity."), 1, "devwardctl vnpus"),
    (["accept-node", POD], errors.NoSuchNode("The API server's Node of this host has not that UID."), 1, "kubectl get node"),
    (["reclaim", "now"], errors.NotReady("The first look is not done."), 1, "try again"),
    (["reclaim", "release"], errors.Stopping("devwardd is being stopped."), 1, "once it runs again"),
    (["mode", "reclaim", "off"], errors.AccessDenied("It is denied."), 4, "sudo"),
]


@pytest.mark.parametrize(
    ("arguments", "error", "status", "advice"), REFUSALS, ids=lambda value: value[0] if isinstance(value, list) else ""
)
def test_refusals_say_what_to_do(bus: Bus, arguments: list[str], error: Exception, status: int, advice: str) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        made.backend.error = error
        ended = await ctl(bus.address, *arguments)
        assert (ended.status, ended.output) == (status, "")
        assert str(error) in " ".join(ended.errors.split())
        assert advice in " ".join(ended.errors.split())

    with_world(bus, work)


@needs_root
@pytest.mark.parametrize(
    "arguments",
    [["reclaim", "now"], ["reclaim", "release"], ["mode", "reclaim", "enforce"], ["pause", "reclaim", "1h", "x"], ["accept-node", POD]],
)
def test_who_may_not_is_told_so(bus: Bus, arguments: list[str]) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        made.polkit.mode = Mode.DENY
        ended = await end(await start(bus.address, *arguments, prefix=AS_NOBODY))
        assert ended.status == 4
        assert "sudo" in ended.errors
        assert not made.backend.calls

    with_world(bus, work)


def test_modes_and_pauses_say_what_is_in_force(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        made.backend.results = (ActionResult("reclaim", Outcome.SUCCESS, ""),)
        for mode in ReclaimMode:
            assert (await ctl(bus.address, "mode", "reclaim", mode)).output.startswith(f"The mode for reclaiming is {mode}.\n")
        assert (await ctl(bus.address, "mode", "reclaim")).output == "The mode for reclaiming is enforce.\n"
        assert (await ctl(bus.address, "mode", "reclaim", "--json")).json == {"mode": "enforce"}
        assert (await ctl(bus.address, "mode", "cdi")).output == "The mode for CDI files is repair.\n"
        said = (await ctl(bus.address, "pause", "reclaim", "2h", "a", "visit")).output
        assert said.startswith("Reclaiming is paused for 2 hours, until ")
        assert "devwardctl resume reclaim" in said
        assert (await ctl(bus.address, "resume", "reclaim")).output.startswith("Reclaiming is not paused.\n")
        made.backend.results = (ActionResult("breaker", Outcome.NOOP, ""),)
        assert (await ctl(bus.address, "reclaim", "release")).output.startswith("The breaker does not stop reclaiming.\n")
        made.backend.results = (ActionResult("breaker", Outcome.SUCCESS, ""), ActionResult(VNPU.identity, Outcome.SUCCESS, ""))
        said = (await ctl(bus.address, "reclaim", "release")).output
        assert said.startswith(f"The breaker does not stop reclaiming.\nagreed to {VNPU.identity}\n")
        made.backend.results = (ActionResult("reclaim", Outcome.FAILURE, "not-saved"),)
        ended = await ctl(bus.address, "pause", "reclaim", "2h", "x")
        assert ended.status == 1
        assert "is paused" not in ended.output
        assert "lost at a restart" in ended.output

    with_world(bus, work)


def test_a_long_wait_is_waited_for(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        made.backend.gate.clear()
        made.backend.results = (ActionResult(VNPU.identity, Outcome.SUCCESS, ""),)
        process = await start(bus.address, "reclaim", "now", "v0212", "--shorten")
        assert process.stderr is not None
        async with asyncio.timeout(120):
            assert b"still at it" in await process.stderr.readline()
        made.backend.gate.set()
        ended = await end(process)
        assert (ended.status, ended.output) == (0, "v0212: destroyed\nrequest id-1\n")

    with_world(bus, work, PENDING)


def test_monitor_tells_what_became_of_vnpus(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            with_vnpu(made)
            process = await start(bus.address, "monitor")
            await read_until(process, "there are 1 Ascend NPU")
            made.backend.results = (ActionResult(VNPU.identity, Outcome.FAILURE, "waiting-for-grace"),)
            await ctl(bus.address, "reclaim", "now", "v0212")
            await read_until(process, "not destroyed; Nobody has the vNPU")
            made.backend.view = replace(made.backend.view, reclaim_state=ReclaimState.ENFORCING, blocked_reasons=())
            made.service.publish()
            await read_until(process, "reclaiming is enforcing now")
            made.service.vnpu_reclaimed(212, 7, "vir05_1c_16g", "id-9")
            await read_until(process, "devward destroyed vNPU 212 (vir05_1c_16g) of the NPU 7, which nobody owned; request id-9")
            made.backend.results = (ActionResult("", Outcome.FAILURE, "no-such-pin"),)
            await ctl(bus.address, "reclaim", "now", "v0212")
            await read_until(process, "failed; Nothing of that name is pinned. (no-such-pin)")
            process.send_signal(signal.SIGINT)
            assert (await end(process)).status == 0

    run(main)


def test_completion(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_vnpu(made)
        assert (await ctl(bus.address, "complete", "vnpus")).output.split() == ["v0212"]
        assert {"kill-switch", "waiting-for-grace", "limit-per-hour", "vnpu-gone"} <= set(
            (await ctl(bus.address, "complete", "explain")).output.split()
        )

    with_world(bus, work)
