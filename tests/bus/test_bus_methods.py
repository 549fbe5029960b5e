"""The methods of the Manager interface: arguments, states, results, errors and signals."""

import asyncio
from dataclasses import replace

import pytest
from bus_harness import CARD_TARGET, FINDING, KVM, MSHV, SPEC, VNPU, VNPU_TARGET, Bus, Client, Mode, pretend_uid, run, until, world

from devward import names
from devward.bus import manager
from devward.bus.manager import overall, redacted
from devward.errors import (
    AccessDenied,
    BusError,
    ConfigRefused,
    DevwardError,
    InvalidArguments,
    LimitsExceeded,
    NoSuchDevice,
    NoSuchPin,
    NoSuchSpec,
    NoSuchVnpu,
)
from devward.model import ActionResult, Allocation, CdiMode, Finding, Outcome, ReclaimMode, RepairCause, SpecState, Trigger
from devward.reasons import REASON_TEXT, Reason

#: member, signature, arguments, and what the backend is asked (after the request).
ACTIONS = [
    ("Rescan", "t", [0], ("rescan",)),
    ("RepairSpecs", "t", [0], ("repair_specs", False)),
    ("RepairSpecs", "t", [1], ("repair_specs", True)),
    ("AdoptSpec", "st", ["hyperlight.dev-hypervisor.json", 0], ("adopt_spec", "hyperlight.dev-hypervisor.json", False)),
    ("AdoptSpec", "st", ["/etc/cdi/a/b.json", 1], ("adopt_spec", "/etc/cdi/a/b.json", True)),
    ("SetCdiMode", "st", ["repair", 0], ("set_cdi_mode", CdiMode.REPAIR)),
    ("SetCdiMode", "st", ["observe", 0], ("set_cdi_mode", CdiMode.OBSERVE)),
    ("SetCdiMode", "st", ["off", 0], ("set_cdi_mode", CdiMode.OFF)),
    ("PauseCdi", "tst", [1, "a new rack", 0], ("pause_cdi", 1, "a new rack")),
    ("PauseCdi", "tst", [604800, "é" * 200, 0], ("pause_cdi", 604800, "é" * 200)),
    ("ResumeCdi", "t", [0], ("resume_cdi",)),
    ("ReclaimVnpu", "ust", [212, VNPU.identity, 0], ("reclaim_vnpu", 212, VNPU.identity, False, False)),
    ("ReclaimVnpu", "ust", [212, VNPU.identity, 1], ("reclaim_vnpu", 212, VNPU.identity, True, False)),
    ("ReclaimVnpu", "ust", [212, VNPU.identity, 2], ("reclaim_vnpu", 212, VNPU.identity, False, True)),
    ("ReclaimVnpu", "ust", [1123, f"-/1123/-/{'0' * 16}", 3], ("reclaim_vnpu", 1123, f"-/1123/-/{'0' * 16}", True, True)),
    ("ReclaimOrphans", "t", [0], ("reclaim_orphans", False, False)),
    ("ReclaimOrphans", "t", [1], ("reclaim_orphans", True, False)),
    ("ReclaimOrphans", "t", [2], ("reclaim_orphans", False, True)),
    ("ReleaseBreaker", "t", [0], ("release_breaker",)),
    *(("SetReclaimMode", "st", [str(mode), 0], ("set_reclaim_mode", mode)) for mode in ReclaimMode),
    ("PauseReclaim", "tst", [1, "a new rack", 0], ("pause_reclaim", 1, "a new rack")),
    ("PauseReclaim", "tst", [604800, "é" * 200, 0], ("pause_reclaim", 604800, "é" * 200)),
    ("ResumeReclaim", "t", [0], ("resume_reclaim",)),
    ("Pin", "sst", [VNPU_TARGET, "a training", 0], ("pin", VNPU_TARGET, "a training")),
    ("Pin", "sst", [CARD_TARGET, " " + "é" * 200 + " ", 0], ("pin", CARD_TARGET, "é" * 200)),
    ("Unpin", "st", [VNPU_TARGET, 0], ("unpin", VNPU_TARGET)),
    ("Unpin", "st", [CARD_TARGET, 0], ("unpin", CARD_TARGET)),
    ("AcceptNode", "st", ["3d3b4fd6-1d45-4b7b-9f5b-0c6a1e1f9a11", 0], ("accept_node", "3d3b4fd6-1d45-4b7b-9f5b-0c6a1e1f9a11")),
    ("Reload", "t", [0], ("reload",)),
]


@pytest.mark.parametrize(("member", "signature", "arguments", "asked"), ACTIONS)
def test_an_action_reaches_the_backend_and_is_done(
    bus: Bus, member: str, signature: str, arguments: list[object], asked: tuple[object, ...]
) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            request_id, state, results = await client.ok(member, signature, arguments)
            assert (state, results) == ("done", [["/dev/kvm", "success", ""]])
            ((name, request, *rest),) = made.backend.calls
            assert (name, *rest) == asked
            assert request.request_id == request_id  # type: ignore[attr-defined]
            assert request.trigger is Trigger.DBUS  # type: ignore[attr-defined]
            assert request.caller.sender == client.bus.unique_name  # type: ignore[attr-defined]
            await client.settle()
            (signal,) = client.seen("RequestFinished")
            assert signal.body == [request_id, "success", results]
            assert signal.path == names.ROOT_PATH

    run(main)


@pytest.mark.parametrize(
    ("member", "signature", "arguments"),
    [
        ("Rescan", "t", [1]),
        ("Rescan", "t", [2]),
        ("Reload", "t", [1 << 63]),
        ("RepairSpecs", "t", [2]),
        ("RepairSpecs", "t", [3]),
        ("AdoptSpec", "st", ["a.json", 4]),
        ("AdoptSpec", "st", ["", 0]),
        ("AdoptSpec", "st", ["a\nb", 0]),
        ("AdoptSpec", "st", ["x" * 5000, 0]),
        ("SetCdiMode", "st", ["REPAIR", 0]),
        ("SetCdiMode", "st", ["", 0]),
        ("SetCdiMode", "st", ["off", 1]),
        ("PauseCdi", "tst", [0, "why", 0]),
        ("PauseCdi", "tst", [604801, "why", 0]),
        ("PauseCdi", "tst", [2**64 - 1, "why", 0]),
        ("PauseCdi", "tst", [60, "", 0]),
        ("PauseCdi", "tst", [60, "   ", 0]),
        ("PauseCdi", "tst", [60, "x" * 201, 0]),
        ("PauseCdi", "tst", [60, "line\nbreak", 0]),
        ("PauseCdi", "tst", [60, "esc\x1b[31m", 0]),
        ("PauseCdi", "tst", [60, "bidi\u202eedoc", 0]),
        ("PauseCdi", "tst", [60, "line\u2028break", 0]),
        ("PauseCdi", "tst", [60, "why", 1]),
        ("ResumeCdi", "t", [1]),
        ("ReclaimVnpu", "ust", [212, VNPU.identity, 4]),
        ("ReclaimVnpu", "ust", [212, VNPU.identity, 1 << 63]),
        ("ReclaimVnpu", "ust", [212, "", 0]),
        ("ReclaimVnpu", "ust", [212, VNPU_TARGET, 0]),
        ("ReclaimVnpu", "ust", [212, VNPU.identity.lower(), 0]),
        ("ReclaimVnpu", "ust", [212, VNPU.identity + "\n", 0]),
        ("ReclaimVnpu", "ust", [212, VNPU.identity[:-1], 0]),
        ("ReclaimVnpu", "ust", [212, VNPU.identity[:-1] + "G", 0]),
        ("ReclaimVnpu", "ust", [213, VNPU.identity, 0]),
        ("ReclaimVnpu", "ust", [0, VNPU.identity, 0]),
        ("ReclaimVnpu", "ust", [1124, f"-/1124/-/{'0' * 16}", 0]),
        ("ReclaimVnpu", "ust", [65535, f"-/65535/-/{'0' * 16}", 0]),
        ("ReclaimOrphans", "t", [4]),
        ("ReclaimOrphans", "t", [7]),
        ("ReleaseBreaker", "t", [1]),
        ("SetReclaimMode", "st", ["ENFORCE", 0]),
        ("SetReclaimMode", "st", ["repair", 0]),
        ("SetReclaimMode", "st", ["enforce", 1]),
        ("PauseReclaim", "tst", [0, "why", 0]),
        ("PauseReclaim", "tst", [604801, "why", 0]),
        ("PauseReclaim", "tst", [60, " ", 0]),
        ("PauseReclaim", "tst", [60, "line\nbreak", 0]),
        ("PauseReclaim", "tst", [60, "why", 2]),
        ("ResumeReclaim", "t", [1]),
        ("Pin", "sst", [VNPU_TARGET, "", 0]),
        ("Pin", "sst", [VNPU_TARGET, " ", 0]),
        ("Pin", "sst", [VNPU_TARGET, "x" * 201, 0]),
        ("Pin", "sst", [VNPU_TARGET, "line\nbreak", 0]),
        ("Pin", "sst", [VNPU_TARGET, "bidi\u202eedoc", 0]),
        ("Pin", "sst", [VNPU_TARGET, "why", 1]),
        ("Pin", "sst", ["", "why", 0]),
        ("Pin", "sst", ["v0212", "why", 0]),
        ("Pin", "sst", [CARD_TARGET.lower(), "why", 0]),
        ("Pin", "sst", [VNPU_TARGET + "\n", "why", 0]),
        ("Pin", "sst", [f"{CARD_TARGET}/65535/vir05_1c_16g", "why", 0]),
        ("Unpin", "st", [VNPU_TARGET, 1]),
        ("Unpin", "st", [f"{CARD_TARGET}/*", 0]),
        ("AcceptNode", "st", ["", 0]),
        ("AcceptNode", "st", ["a b", 0]),
        ("AcceptNode", "st", ["x" * 129, 0]),
        ("AcceptNode", "st", ["x", 1]),
        ("CheckAllocation", "s", [""]),
        ("CheckAllocation", "s", ["a\tb"]),
        ("CheckAllocation", "s", ["x" * 5000]),
    ],
)
def test_wrong_arguments_are_refused_before_anything_else(bus: Bus, member: str, signature: str, arguments: list[object]) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            assert await client.error(member, signature, arguments) == "InvalidArgs"
            assert not made.backend.calls
            assert not made.polkit.checks

    run(main)


def test_what_is_no_target_is_told_what_one_looks_like(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            for member, signature, rest in (("Pin", "sst", ["why", 0]), ("Unpin", "st", [0])):
                reply = await client.call(member, signature, ["v0212\x1b", *rest])
                (text,) = reply.body
                assert "'v0212\\x1b'" in text
                assert "DIE or DIE/VDEV/TEMPLATE" in text

    run(main)


@pytest.mark.parametrize(("member", "signature", "arguments", "asked"), ACTIONS)
def test_actions_wait_for_the_first_pass_and_end_with_the_daemon(
    bus: Bus, member: str, signature: str, arguments: list[object], asked: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            pretend_uid(made, 1000, monkeypatch)
            client = await made.client()
            made.backend.is_ready = False
            assert await client.error(member, signature, arguments) == names.ERROR_PREFIX + "NotReady"
            made.backend.is_ready, made.backend.is_stopping = True, True
            assert await client.error(member, signature, arguments) == names.ERROR_PREFIX + "Stopping"
            assert not made.backend.calls
            assert not made.polkit.checks, "nobody is asked in vain"

    run(main)


def test_an_action_that_takes_long_is_pending_and_finishes_later(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address, reply_seconds=0.05) as made:
            client = await made.client()
            made.backend.gate.clear()
            request_id, state, results = await client.ok("Rescan", "t", [0])
            assert (state, results) == ("pending", [])
            assert not client.seen("RequestFinished")
            made.backend.gate.set()
            await until_seen(client, "RequestFinished")
            assert client.seen("RequestFinished")[0].body == [request_id, "success", [["/dev/kvm", "success", ""]]]

    run(main)


def test_work_goes_on_when_its_caller_leaves(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            watcher, client = await made.client(), await made.client()
            made.backend.gate.clear()
            call = asyncio.ensure_future(client.call("Rescan", "t", [0]))
            await until(lambda: made.backend.started)
            await client.close()
            await asyncio.gather(call, return_exceptions=True)
            made.clients.remove(client)
            made.backend.gate.set()
            await until_seen(watcher, "RequestFinished")
            assert watcher.seen("RequestFinished")[0].body[1] == "success"
            await made.alive()

    run(main)


def test_closing_ends_the_work_and_answers_who_waits(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            made.backend.gate.clear()
            call = asyncio.ensure_future(client.error("Rescan", "t", [0]))
            await until(lambda: made.backend.started)
            await made.service.close()
            assert await call == names.ERROR_PREFIX + "Stopping"
            assert made.backend.cancelled == 1
            await until_seen(client, "RequestFinished")
            assert client.seen("RequestFinished")[0].body[1:] == ["failure", [["", "failure", "stopping"]]]

    run(main)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (InvalidArguments("The file is no good."), "InvalidArgs"),
        (NoSuchSpec("There is no such file."), names.ERROR_PREFIX + "NoSuchSpec"),
        (NoSuchPin("There is no such pin."), names.ERROR_PREFIX + "NoSuchPin"),
        (NoSuchVnpu("It is another one by now."), names.ERROR_PREFIX + "NoSuchVnpu"),
        (LimitsExceeded("There are too many."), "LimitsExceeded"),
        (ConfigRefused("devward.toml: a key is unknown."), names.ERROR_PREFIX + "ConfigRefused"),
        (AccessDenied("No."), "AccessDenied"),
    ],
)
def test_errors_of_the_backend_have_their_names_and_sentences(bus: Bus, error: DevwardError, name: str) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            made.backend.error = error
            reply = await client.call("Reload", "t", [0])
            assert reply.error_name.removeprefix("org.freedesktop.DBus.Error.") == name
            assert reply.body == [str(error)]
            await client.settle()
            assert client.seen("RequestFinished")[0].body[1:] == ["failure", [["", "failure", error.code]]]

    run(main)


@pytest.mark.parametrize("error", [ValueError("/secret/path"), BusError("/secret/path"), RecursionError()])
def test_an_error_that_nobody_meant_gets_an_id_and_no_detail(bus: Bus, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            made.backend.error = error
            for member, signature, arguments in (("Describe", "", []), ("Rescan", "t", [0]), ("CheckAllocation", "s", ["kvm"])):
                caplog.clear()
                reply = await client.call(member, signature, arguments)
                assert reply.error_name == names.ERROR_PREFIX + "Internal"
                (text,) = reply.body
                assert "secret" not in text
                identifier = text.rstrip(".").split()[-1]
                assert any(identifier in record.getMessage() and record.exc_info for record in caplog.records)
            await made.alive()

    run(main)


def test_a_result_that_does_not_fit_the_signature_is_an_internal_error(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            made.backend.allocation = Allocation(allowed="yes", reason=Reason.OK, text="")  # type: ignore[arg-type]
            assert await client.error("CheckAllocation", "s", ["kvm"]) == names.ERROR_PREFIX + "Internal"
            await made.alive()

    run(main)


def test_check_allocation_answers(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            for name in ("kvm", "/dev/kvm", "hyperlight.dev/hypervisor=kvm"):
                allowed, reason, text, request_id = await client.ok("CheckAllocation", "s", [name])
                assert (allowed, reason, text) == (True, "", "")
                assert made.backend.calls[-1][1].request_id == request_id  # type: ignore[attr-defined]
                assert made.backend.calls[-1][2] == name
            made.backend.allocation = Allocation(allowed=False, reason=Reason.CDI_SHADOWED, text="It is shadowed.")
            assert (await client.ok("CheckAllocation", "s", ["kvm"]))[:3] == [False, "cdi-shadowed", "It is shadowed."]
            made.backend.error = NoSuchDevice("There is no such device.")
            assert await client.error("CheckAllocation", "s", ["nvme"]) == names.ERROR_PREFIX + "NoSuchDevice"

    run(main)


def test_check_allocation_refuses_what_cannot_be_established_in_time(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "CHECK_SECONDS", 0.05)

    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            made.backend.gate.clear()
            allowed, reason, text, _ = await client.ok("CheckAllocation", "s", ["kvm"])
            assert (allowed, reason, text) == (False, "deadline", REASON_TEXT[Reason.DEADLINE])
            await until(lambda: made.backend.cancelled)

    run(main)


def test_check_allocation_before_the_first_pass_and_at_the_end(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            made.backend.is_ready = False
            assert (await client.ok("CheckAllocation", "s", ["kvm"]))[:2] == [False, "starting"]
            made.backend.is_stopping = True
            assert await client.error("CheckAllocation", "s", ["kvm"]) == names.ERROR_PREFIX + "Stopping"
            assert not made.backend.calls

    run(main)


def test_lists(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.backend.device_views = [KVM, MSHV]
            client = await made.client()
            (devices,) = await client.ok("ListDevices")
            assert devices == [
                ["kvm", "/dev/kvm", "valid", "healthy", "", KVM.health_since_usec, names.device_path("kvm")],
                ["mshv", "/dev/mshv", "missing", "missing", "", MSHV.health_since_usec, names.device_path("mshv")],
            ]
            (specs,) = await client.ok("ListSpecs")
            path = names.spec_path("hyperlight.dev-hypervisor.json")
            assert specs == [[SPEC.file, SPEC.cdi_kind, "true", "", 2, SPEC.last_repair_usec, path]]
            made.backend.device_views, made.backend.spec_views, made.backend.finding_list = [], [], []
            for member in ("ListDevices", "ListSpecs", "ListFindings"):
                assert await client.ok(member) == [[]]

    run(main)


def test_vnpu_reclaimed_reaches_everybody(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            made.service.vnpu_reclaimed(212, 7, "vir05_1c_16g", "id-7")
            await client.settle()
            (signal,) = client.seen("VnpuReclaimed")
            assert (signal.path, signal.body) == (names.ROOT_PATH, [212, 7, "vir05_1c_16g", "id-7"])

    run(main)


def test_spec_repaired_reaches_everybody_with_every_cause(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            for cause in RepairCause:
                made.service.spec_repaired(SPEC.file, cause)
            await client.settle()
            assert [signal.body for signal in client.seen("SpecRepaired")] == [[SPEC.file, cause.value] for cause in RepairCause]

    run(main)


RESULT = {outcome: ActionResult("t", outcome, "") for outcome in Outcome}


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([], "noop"),
        ([Outcome.NOOP], "noop"),
        ([Outcome.SUCCESS], "success"),
        ([Outcome.SUCCESS, Outcome.NOOP], "success"),
        ([Outcome.FAILURE], "failure"),
        ([Outcome.DENIED, Outcome.FAILURE], "failure"),
        ([Outcome.FAILURE, Outcome.SUCCESS], "partial"),
        ([Outcome.FAILURE, Outcome.NOOP], "partial"),
        ([Outcome.DRY_RUN], "dry-run"),
        ([Outcome.DRY_RUN, Outcome.NOOP], "dry-run"),
    ],
)
def test_overall_outcome(outcomes: list[Outcome], expected: str) -> None:
    assert overall([RESULT[outcome] for outcome in outcomes]) == expected


def test_every_overall_outcome_and_result_is_reached_on_the_bus(bus: Bus) -> None:
    reached: set[str] = set()
    told: set[str] = set()

    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            for outcomes in ([], [Outcome.SUCCESS], [Outcome.FAILURE], [Outcome.FAILURE, Outcome.NOOP], [Outcome.DRY_RUN]):
                made.backend.results = tuple(RESULT[outcome] for outcome in outcomes)
                _, _, results = await client.ok("RepairSpecs", "t", [1])
                told.update(outcome for _, outcome, _ in results)  # type: ignore[attr-defined]
            await client.settle()
            reached.update(signal.body[1] for signal in client.seen("RequestFinished"))
            finished = made.service.contract.interfaces[names.MANAGER_INTERFACE].signals["RequestFinished"]
            assert reached == finished.arguments[1].values
            assert told == finished.arguments[2].column_values["outcome"]

    run(main)


@pytest.mark.parametrize(("mode", "text"), [(Mode.ALLOW, FINDING.text), (Mode.DENY, REASON_TEXT[FINDING.code])])
def test_findings_show_their_text_to_those_who_may_inspect(bus: Bus, mode: Mode, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.polkit.mode = mode
            pretend_uid(made, 1000, monkeypatch)
            client = await made.client()
            (rows,) = await client.ok("ListFindings")
            assert rows == [[FINDING.code.value, FINDING.subject, text, FINDING.since_usec]]
            (state,) = await client.ok("Describe", flags=4)
            assert state == ('{"full": true}' if mode is Mode.ALLOW else '{"full": false}')
            assert {(check.action, check.flags) for check in made.polkit.checks} == {(names.ACTION_INSPECT, 0)}
            assert not made.audit.denials, "what is only shown shorter is not refused"

    run(main)


def test_redaction_leaves_nothing_of_the_text() -> None:
    for reason in Reason:
        shown = redacted(Finding(reason, "subject", "pod secret-pod", 5))
        assert "secret" not in shown.text
        assert (shown.code, shown.subject, shown.since_usec) == (reason, "subject", 5)


def test_a_long_answer_is_refused_and_not_sent(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            made.backend.device_views = []
            monkeypatch.setattr(made.backend, "describe", lambda *, full: "x" * (5 * 1024 * 1024))
            assert await client.error("Describe") == "LimitsExceeded"
            monkeypatch.setattr(made.backend, "describe", lambda *, full: "容" * (3 * 1024 * 1024))
            (text,) = await client.ok("Describe")
            assert len(text) == 3 * 1024 * 1024  # type: ignore[arg-type]

    run(main)


def test_text_that_cannot_travel_is_escaped(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NUL or a lone surrogate in a message would make the bus end our connection."""

    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            monkeypatch.setattr(made.backend, "describe", lambda *, full: "a\0b\udcffc\ud800d é 容器")
            assert await client.ok("Describe") == ["a\\x00b\\udcffc\\ud800d é 容器"]
            made.backend.error = InvalidArguments("bad \0 \udcff name")
            reply = await client.call("Reload", "t", [0])
            assert reply.body == ["bad \\x00 \\xff name"]
            made.backend.spec_views = [replace(SPEC, text="x\0\udcff", state=SpecState.BLOCKED)]
            made.service.publish()
            await client.settle()
            (changed,) = client.seen("PropertiesChanged")
            assert changed.body[1]["Text"].value == "x\\x00\\udcff"
            await made.alive()

    run(main)


async def until_seen(client: Client, member: str) -> None:
    await until(lambda: client.seen(member))
