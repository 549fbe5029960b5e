"""The gate: denied by default, root passes, everybody else needs a clear yes from polkit."""

import asyncio
from types import MappingProxyType

import pytest
from bus_harness import DEADLINE, TIMES, VNPU, VNPU_TARGET, Bus, Client, Mode, as_nobody, needs_root, pretend_uid, run, until, world
from dbus_next import Variant

from devward import names
from devward.bus import auth
from devward.bus.auth import RULES, Open, rule_action
from devward.model import CdiMode

INTERACTIVE = 4  # ALLOW_INTERACTIVE_AUTHORIZATION
#: Every guarded call, and the action that it needs.
GUARDED = [
    ("CheckAllocation", "s", ["kvm"], names.ACTION_CHECK),
    ("Rescan", "t", [0], names.ACTION_RESCAN),
    ("Reload", "t", [0], names.ACTION_RESCAN),
    ("RepairSpecs", "t", [0], names.ACTION_REPAIR_CDI),
    ("RepairSpecs", "t", [1], names.ACTION_REPAIR_CDI),
    ("AdoptSpec", "st", ["a.json", 0], names.ACTION_RELEASE),
    ("AdoptSpec", "st", ["a.json", 1], names.ACTION_RELEASE),
    ("SetCdiMode", "st", ["repair", 0], names.ACTION_RELEASE),
    ("SetCdiMode", "st", ["observe", 0], names.ACTION_PROTECT),
    ("SetCdiMode", "st", ["off", 0], names.ACTION_PROTECT),
    ("PauseCdi", "tst", [60, "why", 0], names.ACTION_PROTECT),
    ("ResumeCdi", "t", [0], names.ACTION_RELEASE),
    ("ReclaimVnpu", "ust", [212, VNPU.identity, 0], names.ACTION_RECLAIM),
    ("ReclaimVnpu", "ust", [212, VNPU.identity, 1], names.ACTION_RECLAIM),
    ("ReclaimOrphans", "t", [0], names.ACTION_RECLAIM),
    ("ReclaimOrphans", "t", [3], names.ACTION_RECLAIM),
    ("ReleaseBreaker", "t", [0], names.ACTION_RELEASE),
    ("SetReclaimMode", "st", ["enforce", 0], names.ACTION_RELEASE),
    ("SetReclaimMode", "st", ["observe", 0], names.ACTION_PROTECT),
    ("SetReclaimMode", "st", ["off", 0], names.ACTION_PROTECT),
    ("PauseReclaim", "tst", [60, "why", 0], names.ACTION_PROTECT),
    ("ResumeReclaim", "t", [0], names.ACTION_RELEASE),
    ("Pin", "sst", [VNPU_TARGET, "why", 0], names.ACTION_PROTECT),
    ("Unpin", "st", [VNPU_TARGET, 0], names.ACTION_RELEASE),
    ("AcceptNode", "st", ["3d3b4fd6-1d45-4b7b-9f5b-0c6a1e1f9a11", 0], names.ACTION_RELEASE),
]


def test_the_list_above_is_every_guarded_member() -> None:
    guarded = {member for (interface, member), rule in RULES.items() if interface == names.MANAGER_INTERFACE and not isinstance(rule, Open)}
    assert {member for member, *_ in GUARDED} == guarded


@pytest.mark.parametrize(("member", "signature", "arguments", "action"), GUARDED)
def test_a_guarded_call_needs_its_action(
    bus: Bus, member: str, signature: str, arguments: list[object], action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            pretend_uid(made, 1000, monkeypatch)
            client = await made.client()
            made.polkit.mode = Mode.DENY
            assert await client.error(member, signature, arguments) == "AccessDenied"
            assert not made.backend.calls
            ((caller, sender, asked, denied, reason),) = made.audit.denials
            assert (caller.uid, caller.pid, caller.sender) == (1000, 4321, sender)  # type: ignore[union-attr]
            assert (sender, asked, denied) == (client.bus.unique_name, action, member)
            assert reason

            made.polkit.mode = Mode.ALLOW
            await client.ok(member, signature, arguments)
            assert made.backend.calls[0][1].caller.uid == 1000  # type: ignore[attr-defined]
            check = made.polkit.checks[-1]
            assert (check.kind, check.sender, check.action) == ("system-bus-name", client.bus.unique_name, action)
            assert check.flags == 0, "no prompt unless the message allows it"

            made.polkit.allowed = set()
            await client.error(member, signature, arguments)
            made.polkit.allowed = {action}
            await client.ok(member, signature, arguments)

    run(main)


def test_root_needs_no_polkit(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address, polkit=False) as made:
            pretend_uid(made, 0, monkeypatch)
            client = await made.client()
            for member, signature, arguments, _ in GUARDED:
                await client.ok(member, signature, arguments)
            assert len(made.backend.calls) == len(GUARDED)
            assert await client.ok("Describe") == ['{"full": true}']

    run(main)


def test_without_polkit_everybody_but_root_is_denied(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address, polkit=False) as made:
            pretend_uid(made, 1000, monkeypatch)
            client = await made.client()
            for member, signature, arguments, _ in GUARDED:
                assert await client.error(member, signature, arguments, flags=INTERACTIVE) == "AccessDenied"
            assert len(made.audit.denials) == len(GUARDED)
            assert not made.backend.calls
            assert await client.ok("Describe") == ['{"full": false}']
            await client.ok("ListDevices")

    run(main)


@pytest.mark.parametrize("mode", [Mode.ERROR, Mode.ODD])
def test_a_failing_polkit_denies(bus: Bus, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.polkit.mode = mode
            pretend_uid(made, 1000, monkeypatch)
            client = await made.client()
            assert await client.error("Rescan", "t", [0]) == "AccessDenied"
            assert await client.ok("Describe") == ['{"full": false}']
            assert len(made.audit.denials) == 1
            assert not made.backend.calls

    run(main)


@pytest.mark.parametrize(
    "body",
    [
        [[True, False]],
        [[1, 0, {}]],
        [],
        [[True, False, {}], 1],
        [True, False, {}],
        ["yes"],
    ],
)
def test_only_the_exact_shape_of_an_answer_allows(body: list[object]) -> None:
    assert not auth._answer(body).authorized
    assert auth._answer([[True, False, {}]]).authorized
    assert not auth._answer([[False, True, {}]]).authorized


def test_a_challenge_is_told_apart_and_prompts_only_where_the_message_allows(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.polkit.mode = Mode.CHALLENGE
            pretend_uid(made, 1000, monkeypatch)
            client = await made.client()
            assert await client.error("Rescan", "t", [0]) == "InteractiveAuthorizationRequired"
            assert [denial[3] for denial in made.audit.denials] == ["Rescan"]
            await client.ok("Rescan", "t", [0], flags=INTERACTIVE)
            assert [check.flags for check in made.polkit.checks] == [0, 1]
            # Never a prompt for what is only shown.
            assert await client.ok("Describe", flags=INTERACTIVE) == ['{"full": false}']
            assert made.polkit.checks[-1].flags == 0

    run(main)


def test_a_hanging_polkit_is_a_no_and_its_check_is_cancelled(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "POLKIT_SECONDS", 0.05)
    monkeypatch.setattr(auth, "PROMPT_SECONDS", 0.15)
    monkeypatch.setattr(auth, "INSPECT_SECONDS", 0.05)

    async def main() -> None:
        async with world(bus.address) as made:
            made.polkit.mode = Mode.HANG
            pretend_uid(made, 1000, monkeypatch)
            client = await made.client()
            for flags in (0, INTERACTIVE):
                assert await client.error("Rescan", "t", [0], flags=flags) == "AccessDenied"
            assert await client.ok("Describe") == ['{"full": false}']
            await until(lambda: len(made.polkit.cancelled) == 3)
            assert sorted(made.polkit.cancelled) == sorted(check.cancellation for check in made.polkit.checks)
            assert len({check.cancellation for check in made.polkit.checks}) == 3
            made.polkit.release(Mode.ALLOW)  # the late yes
            await made.alive()
            assert not made.backend.calls

    run(main)


def test_what_waits_how_long() -> None:
    seconds = {what: value for what, (_, _, value) in TIMES.items()}
    assert seconds == {"polkit": 5, "prompt": 120, "inspect": 1, "credentials": 5, "check": 2, "reply": 20, "setup": 5}


@pytest.mark.parametrize("flags", [0, INTERACTIVE])
def test_a_caller_that_leaves_while_polkit_asks_cancels_the_check(bus: Bus, flags: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.polkit.mode = Mode.HANG
            pretend_uid(made, 1000, monkeypatch)
            client = await Client.connect(bus.address)
            call = asyncio.ensure_future(client.call("Rescan", "t", [0], flags=flags))
            await until(lambda: made.polkit.checks)
            await client.close()
            await asyncio.gather(call, return_exceptions=True)
            await until(lambda: made.polkit.cancelled)
            assert made.polkit.cancelled == [made.polkit.checks[0].cancellation]
            made.polkit.release(Mode.ALLOW)
            await made.alive()
            assert not made.backend.calls
            assert not made.audit.denials, "nobody was refused"

    run(main)


def test_a_caller_that_is_gone_before_it_is_asked_about_gets_nothing(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name was never watched while it was there: the bus is asked whether it still is."""

    async def main() -> None:
        async with world(bus.address) as made:
            made.polkit.mode = Mode.HANG
            gate = made.service._gate
            asking = asyncio.ensure_future(gate._ask(":1.999999", names.ACTION_RESCAN, {}, within=DEADLINE, interactive=False))
            with pytest.raises(auth.CallerGone):
                await asking

    run(main)


def test_closing_cancels_what_polkit_was_asked(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.polkit.mode = Mode.HANG
            pretend_uid(made, 1000, monkeypatch)
            client = await made.client()
            call = asyncio.ensure_future(client.error("Rescan", "t", [0], flags=INTERACTIVE))
            await until(lambda: made.polkit.checks)
            await made.service.close()
            assert await call == names.ERROR_PREFIX + "Stopping"
            await until(lambda: made.polkit.cancelled)

    run(main)


def test_after_a_prompt_everything_is_looked_at_again(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            pretend_uid(made, 1000, monkeypatch)
            client = await made.client()
            for member, signature, arguments in (("Rescan", "t", [0]), ("CheckAllocation", "s", ["kvm"])):
                made.polkit.mode = Mode.HANG
                made.polkit.checks.clear()
                made.backend.is_stopping = False
                call = asyncio.ensure_future(client.error(member, signature, arguments, flags=INTERACTIVE))
                await until(lambda: made.polkit.checks)
                made.backend.is_stopping = True
                made.polkit.release(Mode.ALLOW)
                assert await call == names.ERROR_PREFIX + "Stopping"
            assert not made.backend.calls

    run(main)


def test_prompts_are_limited_by_uid_and_leave_root_alone(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.polkit.mode = Mode.HANG
            pretend_uid(made, 1000, monkeypatch)
            clients = [await made.client() for _ in range(3)]
            calls = [asyncio.ensure_future(clients[n % 3].call("Rescan", "t", [0], flags=INTERACTIVE)) for n in range(10)]
            await until(lambda: sum(call.done() for call in calls) == 10 - auth.MAX_PROMPTS_PER_UID)
            assert {call.result().error_name for call in calls if call.done()} == {"org.freedesktop.DBus.Error.LimitsExceeded"}
            await until(lambda: len(made.polkit.checks) == auth.MAX_PROMPTS_PER_UID)
            pretend_uid(made, 0, monkeypatch)
            await (await made.client()).ok("Rescan", "t", [0], flags=INTERACTIVE)
            assert len(made.polkit.checks) == auth.MAX_PROMPTS_PER_UID
            made.polkit.release(Mode.ALLOW)
            await asyncio.gather(*calls)
            await clients[0].ok("Rescan", "t", [0], flags=INTERACTIVE)
            assert not made.service._gate._prompts, "every slot was given back"

    run(main)


def test_credentials_are_asked_once_for_each_name_and_bounded(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_CALLERS", 2)

    async def main() -> None:
        async with world(bus.address) as made:
            asked: list[str] = []
            real = made.service.connection.call_bus

            async def call_bus(member: str, signature: str, body: list[object], *, expect: str, within: float) -> object:
                if member == "GetConnectionCredentials":
                    asked.append(str(body[0]))
                return await real(member, signature, body, expect=expect, within=within)

            monkeypatch.setattr(made.service.connection, "call_bus", call_bus)
            client = await made.client()
            await asyncio.gather(*(client.ok("Rescan", "t", [0]) for _ in range(20)))
            await client.ok("Rescan", "t", [0])
            assert asked == [client.bus.unique_name]
            for _ in range(2):
                await (await made.client()).ok("Rescan", "t", [0])
            assert len(made.service._gate._callers) == 2
            await client.ok("Rescan", "t", [0])
            assert asked.count(client.bus.unique_name) == 2

    run(main)


@pytest.mark.parametrize("answer", [{}, {"ProcessID": Variant("u", 1)}, {"UnixUserID": Variant("s", "0")}, "nobody", None])
def test_who_cannot_be_known_is_denied(bus: Bus, answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            real = made.service.connection.call_bus

            async def call_bus(member: str, signature: str, body: list[object], *, expect: str, within: float) -> object:
                if member != "GetConnectionCredentials":
                    return await real(member, signature, body, expect=expect, within=within)
                if answer is None:  # an error from the bus
                    return await real(member, signature, [":1.999999"], expect=expect, within=within)
                return (answer,)

            monkeypatch.setattr(made.service.connection, "call_bus", call_bus)
            client = await made.client()
            assert await client.error("Rescan", "t", [0]) == "AccessDenied"
            assert await client.ok("Describe") == ['{"full": false}']
            ((caller, sender, *_),) = made.audit.denials
            assert (caller, sender) == (None, client.bus.unique_name)
            assert not made.polkit.checks

    run(main)


def test_a_member_without_a_rule_is_denied_even_to_root(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            pretend_uid(made, 0, monkeypatch)
            client = await made.client()
            for missing in (("Rescan", "t", [0]), ("ListDevices", "", [])):
                rules = dict(RULES)
                del rules[names.MANAGER_INTERFACE, missing[0]]
                monkeypatch.setattr(made.service.dispatcher, "_rules", MappingProxyType(rules))
                assert await client.error(*missing) == "AccessDenied"
            assert [denial[2:4] for denial in made.audit.denials] == [("none", "Rescan"), ("none", "ListDevices")]
            assert not made.backend.calls

    run(main)


def test_a_rule_that_guards_a_reading_member_is_obeyed(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is answered from memory goes through the same gate."""

    async def main() -> None:
        async with world(bus.address) as made:
            pretend_uid(made, 1000, monkeypatch)
            rules = RULES | {(names.MANAGER_INTERFACE, "ListDevices"): names.ACTION_INSPECT}  # type: ignore[operator]
            monkeypatch.setattr(made.service.dispatcher, "_rules", rules)
            client = await made.client()
            made.polkit.mode = Mode.DENY
            assert await client.error("ListDevices") == "AccessDenied"
            made.polkit.mode = Mode.ALLOW
            await client.ok("ListDevices")

    run(main)


@pytest.mark.parametrize("member", ["SetCdiMode", "SetReclaimMode"])
def test_a_mode_is_release_for_everything_but_the_safe_words(member: str) -> None:
    rule = RULES[names.MANAGER_INTERFACE, member]
    for mode in ("repair", "enforce", "REPAIR", "", "observe ", "Off"):
        assert rule_action(rule, (mode, 0)) == names.ACTION_RELEASE
    for mode in (CdiMode.OBSERVE, CdiMode.OFF, "observe", "off"):
        assert rule_action(rule, (mode, 0)) == names.ACTION_PROTECT


def test_polkit_learns_the_arguments_escaped(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            pretend_uid(made, 1000, monkeypatch)
            client = await made.client()
            await client.ok("CheckAllocation", "s", ["hyperlight.dev/hypervisor=kvm"])
            assert made.polkit.checks[-1].details == {"device": "hyperlight.dev/hypervisor=kvm"}
            await client.ok("PauseCdi", "tst", [60, "new\u00a0rack", 0])
            assert made.polkit.checks[-1].details == {"seconds": "60", "reason": "new\\xa0rack", "flags": "0"}
            await client.ok("Unpin", "st", [VNPU_TARGET, 0])
            assert made.polkit.checks[-1].details == {"target": VNPU_TARGET, "flags": "0"}
            await client.ok("ReclaimVnpu", "ust", [212, VNPU.identity, 1])
            assert made.polkit.checks[-1].details == {"vdev": "212", "identity": VNPU.identity, "flags": "1"}
            await client.ok("AdoptSpec", "st", ["x" * 4000, 0])
            assert len(made.polkit.checks[-1].details["file"]) <= 200

    run(main)


@needs_root
def test_a_second_uid_is_seen_as_itself_and_needs_polkit(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            to = (names.BUS_NAME, names.ROOT_PATH, names.MANAGER_INTERFACE)
            made.polkit.mode = Mode.DENY
            status, _, errors = await as_nobody(bus.address, "call", *to, "Rescan", "t", "0")
            assert status != 0
            assert "ccess denied" in errors
            assert made.audit.denials[0][0].uid == 65534  # type: ignore[union-attr]
            made.polkit.mode = Mode.CHALLENGE
            status, _, errors = await as_nobody(bus.address, "--allow-interactive-authorization=no", "call", *to, "Rescan", "t", "0")
            assert status != 0
            assert "authenticat" in errors
            status, output, _ = await as_nobody(bus.address, "call", *to, "Rescan", "t", "0")  # busctl lets polkit ask
            assert (status, output.split()[2]) == (0, '"done"')
            assert made.backend.calls[0][1].caller.uid == 65534  # type: ignore[attr-defined]
            # Reading needs nothing, and the policy file lets it through.
            made.polkit.mode = Mode.DENY
            for member in ("ListDevices", "ListSpecs", "ListFindings", "Describe"):
                status, _, errors = await as_nobody(bus.address, "call", *to, member)
                assert status == 0, errors

    run(main)


@needs_root
def test_root_is_seen_as_root(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address, polkit=False) as made:
            client = await made.client()
            await client.ok("Rescan", "t", [0])
            caller = made.backend.calls[0][1].caller  # type: ignore[attr-defined]
            assert caller.uid == 0
            assert caller.pid > 0

    run(main)
