"""devwardctl and daemons that are not this one: older, newer, hostile, and such as do not answer."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from bus_harness import DEADLINE, ROOT, Bus, close_bus, run
from dbus_next import Message, MessageType, Variant
from dbus_next.aio import MessageBus

from devward import names
from sim.patient_ctl import PATIENT_CTL, PLAIN_CTL

KVM_PATH = names.device_path("kvm")
SPEC_PATH = names.spec_path("a.json")
HOSTILE = "x\x1b[31m\x9b\u202e\ny"
#: Answers by member: a signature and a body; a text is the name of an error; None is silence, and so is an event, which is set.
Answers = dict[str, Any]
PLAIN: Answers = {
    "GetAll": ("a{sv}", [{"Version": Variant("s", "9.9"), "Ready": Variant("b", True)}]),
    "GetManagedObjects": (
        "a{oa{sa{sv}}}",
        [
            {
                KVM_PATH: {names.DEVICE_INTERFACE: {"Kind": Variant("s", "kvm"), "Node": Variant("s", "/dev/kvm")}},
                SPEC_PATH: {names.SPEC_INTERFACE: {"File": Variant("s", "/etc/cdi/a.json"), "State": Variant("s", "true")}},
            }
        ],
    ),
    "ListFindings": ("a(ssst)", [[]]),
    "Describe": ("s", ["{}"]),
    "Ping": ("", []),
}
ERROR = "org.freedesktop.DBus.Error."


@asynccontextmanager
async def daemon(address: str, answers: Answers) -> AsyncIterator[MessageBus]:
    """Own devward's name, and answer as told."""
    bus = await MessageBus(bus_address=address).connect()

    def answer(message: Message) -> Message | bool:
        if message.message_type is not MessageType.METHOD_CALL:
            return False
        told = answers.get(message.member, ERROR + "UnknownMethod")
        if isinstance(told, asyncio.Event):
            told.set()
            return True
        if told is None:
            return True
        if isinstance(told, str):
            return Message.new_error(message, told, "No\x1b such thing")
        return Message.new_method_return(message, *told)

    bus.add_message_handler(answer)
    await bus.request_name(names.BUS_NAME)
    try:
        yield bus
    finally:
        await close_bus(bus)


async def ctl(address: str, *arguments: str, program: tuple[str, ...] = PATIENT_CTL) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        "--bus",
        address,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "LANG": "C.UTF-8"},
    )
    async with asyncio.timeout(2 * DEADLINE):
        output, errors = await process.communicate()
    assert process.returncode is not None
    assert b"Traceback" not in output + errors
    assert b"\x1b" not in output + errors
    return process.returncode, output.decode(), errors.decode()


def with_daemon(bus: Bus, answers: Answers, *arguments: str, program: tuple[str, ...] = PATIENT_CTL) -> tuple[int, str, str]:
    ended: list[tuple[int, str, str]] = []

    async def main() -> None:
        async with daemon(bus.address, {**PLAIN, **answers}):
            ended.append(await ctl(bus.address, *arguments, program=program))

    run(main)
    return ended[0]


def test_an_older_daemon_that_has_less(bus: Bus) -> None:
    for arguments in (["status"], ["devices"], ["specs"], ["findings"], ["explain", "kvm"], ["explain", "a.json"], ["status", "--json"]):
        status, output, errors = with_daemon(bus, {"ListFindings": ERROR + "UnknownMethod"}, *arguments)
        assert (status, errors) == (0, ""), arguments
        assert output
    _, output, _ = with_daemon(bus, {}, "status")
    assert output.startswith("devward 9.9 on")
    assert "not told" in output


@pytest.mark.parametrize("what", ["cards", "vnpus"])
def test_an_older_daemon_that_knows_nothing_of_npus(bus: Bus, what: str) -> None:
    for more in ([], ["--json"]):
        status, output, errors = with_daemon(bus, {}, what, *more)
        assert (status, output) == (1, "")
        assert f"does not offer List{what.capitalize()}" in errors
        assert "another version" in errors
    # One that knows of them, and has none.
    signature = {"cards": "a(issddso)", "vnpus": "a(ussssoo)"}[what]
    status, output, errors = with_daemon(bus, {f"List{what.capitalize()}": (signature, [[]])}, what)
    assert (status, errors) == (0, "")
    assert output.startswith("No ")


def test_a_vnpu_of_a_daemon_that_does_not_explain(bus: Bus) -> None:
    path = names.vnpu_path("v0100")
    objects = {path: {names.VNPU_INTERFACE: {"Id": Variant("u", 100), "Reason": Variant("s", HOSTILE), "Template": Variant("s", HOSTILE)}}}
    answers = {"GetManagedObjects": ("a{oa{sa{sv}}}", [objects])}
    for told in (ERROR + "UnknownMethod", ERROR + "UnknownObject"):
        status, output, errors = with_daemon(bus, {**answers, "Explain": told}, "explain", "100")
        assert (status, errors) == (0, "")
        assert "It is the vNPU 100" in output
    for body in ("no JSON", "[1]"):
        status, _, errors = with_daemon(bus, {**answers, "Explain": ("s", [body])}, "explain", "100")
        assert status == 1
        assert "cannot be read" in errors


def test_an_action_that_an_older_daemon_does_not_have(bus: Bus) -> None:
    status, _, errors = with_daemon(bus, {}, "reload")
    assert status == 1
    assert "does not offer Reload" in errors


def test_a_newer_daemon_that_has_more(bus: Bus) -> None:
    more = {"Health": Variant("s", "dreaming"), "Reason": Variant("s", "flux"), "Dreams": Variant("a(sv)", [["a", Variant("u", 1)]])}
    manager = {
        "Version": Variant("s", "10"),
        "Ready": Variant("b", False),
        "NotReadyReasons": Variant("as", ["/dev/kvm: flux", "odd", "", ": "]),
        "CdiMode": Variant("s", "wishful"),
        "ConfigState": Variant("s", "fine"),
    }
    objects = {
        KVM_PATH: {names.DEVICE_INTERFACE: {"Kind": Variant("s", "kvm"), "Node": Variant("s", "/dev/kvm"), **more}, "org.x.New": {}},
        "/org/devward/Devward1/card/p007": {"org.devward.Devward1.Card": {"PhyId": Variant("u", 7)}},
        SPEC_PATH: {
            names.SPEC_INTERFACE: {
                "File": Variant("s", "/a.json"),
                "State": Variant("s", "half-true"),
                "LastRepairCause": Variant("s", "whim"),
            }
        },
    }
    answers = {
        "GetAll": ("a{sv}", [manager]),
        "GetManagedObjects": ("a{oa{sa{sv}}}", [objects]),
        "ListFindings": ("a(ssst)", [[["new-finding", "/x", "Something new.", 5]]]),
    }
    status, output, _ = with_daemon(bus, answers, "status")
    assert status == 1
    for said in ("dreaming", "half-true", "wishful, which this devwardctl does not know", "new-finding", "Something new."):
        assert said in output
    assert "The reason is flux, which this devwardctl does not know. (flux)" in output
    status, output, _ = with_daemon(bus, answers, "explain", "kvm")
    assert status == 0
    assert "does not know what that means for containers" in output
    status, output, _ = with_daemon(bus, answers, "devices", "--json")
    assert json.loads(output)[0]["dreams"] == [["a", 1]], "what is not known here is handed on"


def test_new_outcomes_and_states(bus: Bus) -> None:
    answers = {"RepairSpecs": ("ssa(sss)", ["id", "resting", [["/a", "postponed", "flux"], ["/b", "success", ""]]])}
    status, output, _ = with_daemon(bus, answers, "repair")
    assert status == 5, "what is not known is not a success"
    assert "/a: postponed; The reason is flux" in output


@pytest.mark.parametrize(
    "answer",
    [("s", ["x"]), ("", []), ("ssa(ss)", ["id", "done", []]), ("a{sv}", [{}])],
    ids=lambda answer: answer[0] or "nothing",
)
def test_an_answer_of_another_shape(bus: Bus, answer: tuple[str, list[object]]) -> None:
    status, output, errors = with_daemon(bus, {"RepairSpecs": answer}, "repair")
    assert (status, output) == (1, "")
    assert "RepairSpecs" in errors


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"config": 5, "devices": [1, {"node": 2}]}'])
def test_a_description_of_another_shape(bus: Bus, text: str) -> None:
    assert with_daemon(bus, {"Describe": ("s", [text])}, "config")[0] in (1, 4)
    assert with_daemon(bus, {"Describe": ("s", [text])}, "explain", "kvm")[0] in (0, 1)


def test_settings_of_another_shape(bus: Bus) -> None:
    odd = [{"key": 5, "value": {"a": [1]}, "source": None}, "text", {"value": HOSTILE}, {}]
    status, output, _ = with_daemon(bus, {"Describe": ("s", [json.dumps({"config": odd})])}, "config")
    assert status == 0
    assert "\u202e" not in output


def test_a_hostile_error(bus: Bus) -> None:
    status, _, errors = with_daemon(bus, {"Rescan": "org.devward.Devward1.Error.Flux"}, "rescan")
    assert status == 1
    assert "Rescan failed: org.devward.Devward1.Error.Flux: No\\x1b such thing." in errors


def test_access_that_the_bus_denies(bus: Bus) -> None:
    status, _, errors = with_daemon(bus, {"GetAll": ERROR + "AccessDenied"}, "status")
    assert status == 4
    assert "sudo" in errors


def test_reading_from_a_daemon_that_never_answers_ends(bus: Bus) -> None:
    status, output, errors = with_daemon(bus, {"GetManagedObjects": None}, "status", program=PLAIN_CTL)
    assert (status, output) == (3, "")
    assert "devwardd runs, but did not answer GetManagedObjects within 5 seconds." in errors
    assert "systemctl restart devward.service" in errors


def test_a_daemon_that_is_replaced_in_the_middle_of_a_call(bus: Bus) -> None:
    async def main() -> None:
        asked = asyncio.Event()
        async with daemon(bus.address, {**PLAIN, "RepairSpecs": asked}):
            running = asyncio.ensure_future(ctl(bus.address, "repair"))
            called = asyncio.ensure_future(asked.wait())
            await asyncio.wait({called, running}, return_when=asyncio.FIRST_COMPLETED)
            assert called.done(), running.result()
        async with daemon(bus.address, PLAIN):
            status, _, errors = await running
        assert status == 3
        assert "whether RepairSpecs was carried out is not known" in errors

    run(main)


def test_a_daemon_that_hangs_while_an_action_is_pending(bus: Bus) -> None:
    answers = {"Rescan": ("ssa(sss)", ["id-9", "pending", []]), "Ping": None}
    status, _, errors = with_daemon(bus, answers, "rescan", program=PLAIN_CTL)
    assert status == 3
    assert "still at it (request id-9)" in errors
    assert "devwardd runs, but did not answer Ping within 4 seconds during Rescan." in errors
    assert "whether" not in errors


def test_an_action_that_a_hanging_daemon_never_answers(bus: Bus) -> None:
    for arguments, member in ((["check", "kvm"], "CheckAllocation"), (["repair"], "RepairSpecs")):
        status, output, errors = with_daemon(bus, {member: None, "Ping": None}, *arguments, program=PLAIN_CTL)
        assert (status, output) == (3, "")
        assert f"devwardd runs, but did not answer {member} within 5 seconds." in errors


def test_monitor_and_signals_of_another_shape(bus: Bus) -> None:
    async def main() -> None:
        async with daemon(bus.address, PLAIN) as served:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *PATIENT_CTL,
                "--bus",
                bus.address,
                "monitor",
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "LANG": "C.UTF-8"},
            )
            assert process.stdout is not None
            async with asyncio.timeout(DEADLINE):
                assert b"devwardd 9.9" in await process.stdout.readline()

            async def send(
                member: str, signature: str, body: list[object], interface: str = names.MANAGER_INTERFACE, path: str = names.ROOT_PATH
            ) -> None:
                await served.send(
                    Message(message_type=MessageType.SIGNAL, path=path, interface=interface, member=member, signature=signature, body=body)
                )

            await send("SpecRepaired", "s", ["x"])
            await send("Dreamt", "s", [HOSTILE])
            await send("RequestFinished", "ssa(sss)", [HOSTILE, HOSTILE, [[HOSTILE, HOSTILE, HOSTILE]]])
            changed = [names.DEVICE_INTERFACE, {"Health": Variant("u", 5), "Dreams": Variant("s", HOSTILE)}, ["Gone"]]
            await send("PropertiesChanged", "sa{sv}as", changed, names.PROPERTIES_INTERFACE, KVM_PATH)
            await send("PropertiesChanged", "sa{sv}as", ["x.y", {}, []], names.PROPERTIES_INTERFACE, "/never/heard/of")
            await send("InterfacesRemoved", "oas", ["/never/heard/of", ["x.y"]], names.OBJECT_MANAGER_INTERFACE)
            await send(
                "InterfacesAdded",
                "oa{sa{sv}}",
                [SPEC_PATH, {names.SPEC_INTERFACE: {"State": Variant("s", HOSTILE)}}],
                names.OBJECT_MANAGER_INTERFACE,
            )
            await send("SpecRepaired", "ss", [HOSTILE, "whim"])
            shown = b""
            async with asyncio.timeout(DEADLINE):
                while b"whim" not in shown:
                    line = await process.stdout.readline()
                    assert line, (await process.stderr.read() if process.stderr else b"").decode()
                    shown += line
            assert b"\x1b" not in shown
            assert "\u202e".encode() not in shown
            process.terminate()
            _, errors = await process.communicate()
            assert (process.returncode, errors) == (0, b"")

    run(main)
