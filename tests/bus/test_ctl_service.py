"""devwardctl against the daemon's own bus service with a backend that does what the test says: answers, refusals, prompts, waiting."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from bus_harness import (
    CARD_TARGET,
    DEADLINE,
    FINDING,
    KVM,
    MANAGER,
    MSHV,
    NOBODY,
    ROOT,
    SPEC,
    VNPU_TARGET,
    Bus,
    World,
    close_bus,
    needs_root,
    run,
    world,
)
from dbus_next import Message, MessageType
from dbus_next.aio import MessageBus

from devward import errors, names
from devward.model import ActionResult, Allocation, ConfigState, Health, Outcome, SpecState
from devward.reasons import Reason
from sim.patient_ctl import PATIENT_CTL
from sim.polkit_stub import Mode

#: None of the tests is about the time that it waits for an answer.
COMMAND = [sys.executable, *PATIENT_CTL]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "LANG": "C.UTF-8"}
ACTIONS = [
    (["repair"], ("repair_specs", False)),
    (["repair", "--dry-run"], ("repair_specs", True)),
    (["adopt", "a.json"], ("adopt_spec", "a.json", False)),
    (["adopt", "--dry-run", "a.json"], ("adopt_spec", "a.json", True)),
    (["rescan"], ("rescan",)),
    (["reload"], ("reload",)),
    (["mode", "cdi", "observe"], ("set_cdi_mode", "observe")),
    (["pause", "cdi", "1h30m", "two", "words"], ("pause_cdi", 5400, "two words")),
    (["resume", "cdi"], ("resume_cdi",)),
    (["pin", VNPU_TARGET, "--reason", " two words "], ("pin", VNPU_TARGET, "two words")),
    (["pin", CARD_TARGET], ("pin", CARD_TARGET, "none was given")),
    (["unpin", VNPU_TARGET], ("unpin", VNPU_TARGET)),
    (["mode", "reclaim", "enforce"], ("set_reclaim_mode", "enforce")),
    (["pause", "reclaim", "2h", "two", "words"], ("pause_reclaim", 7200, "two words")),
    (["resume", "reclaim"], ("resume_reclaim",)),
    (["reclaim", "release"], ("release_breaker",)),
    (["reclaim", "now"], ("reclaim_orphans", False, False)),
    (["reclaim", "now", "--dry-run"], ("reclaim_orphans", True, False)),
    (["reclaim", "now", "--shorten"], ("reclaim_orphans", False, True)),
    (["accept-node", "11111111-2222-4333-8444-555555555555"], ("accept_node", "11111111-2222-4333-8444-555555555555")),
]


class Ended:
    """How a run of devwardctl ended."""

    def __init__(self, status: int, output: str, errors_: str) -> None:
        self.status, self.output, self.errors = status, output, errors_
        assert "Traceback" not in output + errors_

    @property
    def json(self) -> object:
        return json.loads(self.output)


async def start(address: str, *arguments: str, prefix: Sequence[str] = (), **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *prefix,
        *COMMAND,
        "--bus",
        address,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**ENVIRONMENT, **environment},
    )


async def end(process: asyncio.subprocess.Process) -> Ended:
    async with asyncio.timeout(2 * DEADLINE):
        output, errors_ = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, output.decode(), errors_.decode())


async def ctl(address: str, *arguments: str, **environment: str) -> Ended:
    return await end(await start(address, *arguments, **environment))


AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


#: Seconds after which an action is `pending`, for the tests that want it to be.
PENDING = 0.1


def with_world(bus: Bus, work: Callable[[World], Awaitable[None]], reply_seconds: float = DEADLINE) -> None:
    async def main() -> None:
        async with world(bus.address, reply_seconds=reply_seconds) as made:
            await work(made)

    run(main)


# --- reading ---------------------------------------------------------------------------------------------------------


def test_status_when_all_is_well(bus: Bus) -> None:
    async def work(made: World) -> None:
        ended = await ctl(bus.address, "status", "--utc")
        assert ended.status == 0
        assert ended.output.startswith("devward 1.2.3 on node-a is ready.\n")
        assert "/dev/kvm  valid     healthy  2023-11-14T22:13:20.000Z" in ended.output
        assert "/etc/cdi/hyperlight.dev-hypervisor.json  true" in ended.output
        assert "cdi-file-malformed" in ended.output
        assert "Blocked" not in ended.output
        document = (await ctl(bus.address, "--json")).json
        assert isinstance(document, dict)
        assert set(document) == {
            "manager",
            "devices",
            "specs",
            "findings",
            "blocked",
            "cards",
            "vnpus",
            "ownership",
            "reclaim",
            "device_plugin",
        }
        assert document["manager"]["node_name"] == "node-a"
        assert document["devices"][0]["health_since_usec"] == KVM.health_since_usec
        assert document["findings"] == [
            {"code": "cdi-file-malformed", "subject": FINDING.subject, "text": FINDING.text, "since_usec": FINDING.since_usec}
        ]

    with_world(bus, work)


def test_status_says_why_not_and_what_is_blocked_since_when(bus: Bus) -> None:
    async def work(made: World) -> None:
        made.backend.view = replace(
            MANAGER,
            ready=False,
            not_ready_reasons=("/dev/kvm: hypervisor-busy",),
            config_state=ConfigState.REFUSED,
            cdi_paused_until_usec=4_000_000_000_000_000,
            audit_dropped=3,
            checking=True,
        )
        bad = replace(KVM, health=Health.UNHEALTHY, reason=Reason.HYPERVISOR_BUSY)
        made.backend.device_views = [bad, replace(MSHV, reason=Reason.DEVICE_MISSING, text="It is gone.")]
        made.backend.finding_list = []
        made.service.publish()
        ended = await ctl(bus.address, "status", "--utc")
        assert ended.status == 1
        shown = ended.output
        assert "is NOT READY." in shown
        assert "  - /dev/kvm: Another hypervisor holds the CPU's virtualization" in shown
        assert "paused until 2096-10-02T07:06:40.000Z" in shown
        assert "The configuration on disk is refused" in shown
        assert "3 audit records were not taken" in shown
        assert "containers that ask for hyperlight.dev/hypervisor=kvm, since 2023-11-14T22:13:20.000Z (hypervisor-busy)" in shown
        assert (
            "containers that ask for hyperlight.dev/hypervisor=mshv, since 2023-11-14T22:13:20.000Z: It is gone. (device-missing)" in shown
        )
        assert "devwardctl explain kvm" in shown
        assert "No findings." in shown

    with_world(bus, work)


def test_lists(bus: Bus) -> None:
    async def work(made: World) -> None:
        for command in ("devices", "specs", "findings"):
            ended = await ctl(bus.address, command)
            assert ended.status == 0
            assert len(ended.output.splitlines()) == 2
            rows = (await ctl(bus.address, command, "--json")).json
            assert isinstance(rows, list)
            assert len(rows) == 1
        made.backend.device_views = []
        made.backend.spec_views = []
        made.backend.finding_list = []
        made.service.publish()
        assert [(await ctl(bus.address, command)).output for command in ("devices", "specs", "findings")] == [
            "No devices.\n",
            "No CDI files.\n",
            "No findings.\n",
        ]

    with_world(bus, work)


def test_hostile_text_reaches_no_terminal(bus: Bus) -> None:
    async def work(made: World) -> None:
        hostile = "a\x1b[2J\x9b31m\u202e\nb"
        made.backend.view = replace(MANAGER, ready=False, not_ready_reasons=(hostile, f"{hostile}: {hostile}"))
        made.backend.device_views = [replace(KVM, number=hostile, text=hostile, reason=Reason.PROBE_FAILED, health=Health.UNHEALTHY)]
        made.backend.spec_views = [replace(SPEC, text=hostile, devices=(hostile,), state=SpecState.BLOCKED, reason=Reason.CDI_IO_ERROR)]
        made.backend.finding_list = [replace(FINDING, subject=hostile, text=hostile)]
        made.service.publish()
        for arguments in (
            ["status"],
            ["devices"],
            ["specs"],
            ["findings"],
            ["explain", "kvm"],
            ["explain", SPEC.file],
            ["complete", "specs"],
        ):
            for more in ([], ["--json"]):
                for columns in ("40", "200"):
                    ended = await ctl(bus.address, *arguments, *more, COLUMNS=columns)
                    for bad in ("\x1b", "\x9b", "\u202e"):
                        assert bad not in ended.output + ended.errors, arguments

    with_world(bus, work)


def test_explain_needs_a_description_that_can_be_read(bus: Bus) -> None:
    async def work(made: World) -> None:
        ended = await ctl(bus.address, "explain", "kvm")
        assert ended.status == 0
        assert "New containers that ask for hyperlight.dev/hypervisor=kvm get it" in ended.output
        document = (await ctl(bus.address, "explain", "kvm", "--json")).json
        assert isinstance(document, dict)
        assert set(document) == {"what", "kind", "found", "means", "next"}
        assert document["next"] == [{"text": "Nothing needs to be done.", "commands": []}]
        assert (await ctl(bus.address, "explain", "ghost")).status == 1
        made.backend.describe = lambda *, full: "[1]"  # type: ignore[method-assign]
        assert "cannot be read" in (await ctl(bus.address, "explain", "kvm")).errors

    with_world(bus, work)


def test_config(bus: Bus) -> None:
    async def work(made: World) -> None:
        settings = [{"key": "cdi.mode", "value": "observe", "source": "/etc/devward/devward.toml"}]
        made.backend.describe = lambda *, full: json.dumps({"config": settings, "config_problem": ""} if full else {})  # type: ignore[method-assign]
        ended = await ctl(bus.address, "config")
        assert ended.status == 0
        assert 'cdi.mode  "repair"  set at run time' in ended.output, "the mode in force is not the file's"
        assert (await ctl(bus.address, "config", "--json")).json == {
            "state": "good",
            "problem": "",
            "settings": [{"key": "cdi.mode", "value": "repair", "source": "set at run time", "configured": "observe"}],
        }
        made.backend.view = replace(MANAGER, config_state=ConfigState.REFUSED)
        made.backend.describe = lambda *, full: json.dumps({"config": settings, "config_problem": "f: cdi.mode: bad"})  # type: ignore[method-assign]
        made.service.publish()
        ended = await ctl(bus.address, "config")
        assert ended.status == 1
        assert "f: cdi.mode: bad" in ended.output

    with_world(bus, work)


@needs_root
def test_config_is_for_administrators(bus: Bus) -> None:
    async def work(made: World) -> None:
        made.polkit.mode = Mode.DENY
        ended = await end(await start(bus.address, "config", prefix=AS_NOBODY))
        assert ended.status == 4
        assert "administrators only" in ended.errors
        assert "sudo" in ended.errors

    with_world(bus, work)


# --- acting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "call"), ACTIONS, ids=lambda value: " ".join(map(str, value)))
def test_every_action_says_what_is_meant(bus: Bus, arguments: list[str], call: tuple[object, ...]) -> None:
    async def work(made: World) -> None:
        ended = await ctl(bus.address, *arguments)
        assert ended.status == 0
        assert ended.output.endswith("request id-1\n")
        assert [(one[0], *one[2:]) for one in made.backend.calls] == [call]
        document = (await ctl(bus.address, *arguments, "--json")).json
        assert document == {
            "request_id": "id-2",
            "outcome": "success",
            "results": [{"target": "/dev/kvm", "outcome": "success", "reason": ""}],
        }

    with_world(bus, work)


def result(outcome: Outcome, reason: str = "") -> ActionResult:
    return ActionResult("/etc/cdi/a.json", outcome, reason)


@pytest.mark.parametrize(
    ("results", "status", "said"),
    [
        ([result(Outcome.SUCCESS, "stale")], 0, "a.json: repaired, as its content was not what the devices justify"),
        ([result(Outcome.SUCCESS, "published")], 0, "a.json: written, as the devices or the configuration have changed"),
        ([result(Outcome.SUCCESS, "withdrawn")], 0, "a.json: removed, as no device justifies it any more"),
        ([result(Outcome.DRY_RUN, "withdrawn")], 0, "a.json: would be removed, as no device justifies it any more"),
        ([result(Outcome.NOOP)], 0, "a.json: nothing to do"),
        ([result(Outcome.NOOP, "cdi-paused")], 0, "a.json: nothing done; Repairs are paused or switched off. (cdi-paused)"),
        ([result(Outcome.DRY_RUN, "missing")], 0, "a.json: would be repaired, as it was missing"),
        ([result(Outcome.FAILURE, "cdi-read-only")], 1, "a.json: failed; The CDI directory is on a read-only file system. (cdi-read-only)"),
        ([result(Outcome.FAILURE, "not-saved")], 1, "a.json: failed; It is in force, but could not be saved"),
        ([result(Outcome.SUCCESS, "stale"), result(Outcome.FAILURE, "flux")], 5, "a.json: failed; The reason is flux"),
        ([], 0, ""),
    ],
)
def test_results_and_exit_statuses(bus: Bus, results: list[ActionResult], status: int, said: str) -> None:
    async def work(made: World) -> None:
        made.backend.results = tuple(results)
        ended = await ctl(bus.address, "repair")
        assert ended.status == status
        assert said in ended.output

    with_world(bus, work)


def test_a_change_of_mode_that_could_not_be_saved_is_no_success(bus: Bus) -> None:
    async def work(made: World) -> None:
        made.backend.results = (ActionResult("cdi", Outcome.FAILURE, "not-saved"),)
        ended = await ctl(bus.address, "mode", "cdi", "off")
        assert ended.status == 1
        assert "The mode for CDI files is off." not in ended.output
        assert "lost at a restart" in ended.output

    with_world(bus, work)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.NoSuchSpec("devward owns no file x."), 1),
        (errors.ConfigRefused("f: bad"), 1),
        (errors.InvalidArguments("the flags are wrong"), 2),
        (ValueError("a secret"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refusals(bus: Bus, error: Exception, status: int) -> None:
    async def work(made: World) -> None:
        made.backend.error = error
        ended = await ctl(bus.address, "repair")
        assert ended.status == status
        assert ended.output == ""
        assert ended.errors.startswith("devwardctl: ")
        assert "secret" not in ended.errors
        assert "org.devward" not in ended.errors

    with_world(bus, work)


def test_not_ready_and_stopping(bus: Bus) -> None:
    async def work(made: World) -> None:
        made.backend.is_ready = False
        ended = await ctl(bus.address, "rescan")
        assert (ended.status, "first pass" in ended.errors) == (1, True)
        made.backend.is_stopping = True
        ended = await ctl(bus.address, "rescan")
        assert (ended.status, "stopping" in ended.errors) == (1, True)

    with_world(bus, work)


def test_check(bus: Bus) -> None:
    async def work(made: World) -> None:
        made.backend.allocation = Allocation(allowed=True, reason=Reason.OK, text="/dev/kvm may be given to a container")
        ended = await ctl(bus.address, "check", "kvm")
        assert (ended.status, ended.output) == (0, "allowed: /dev/kvm may be given to a container\nrequest id-1\n")
        made.backend.allocation = Allocation(allowed=False, reason=Reason.CDI_NOT_REGULAR, text="A link stands there.")
        ended = await ctl(bus.address, "check", "hyperlight.dev/hypervisor=kvm")
        assert ended.status == 1
        assert ended.output.startswith("refused: A link stands there. (cdi-not-regular)\n")
        assert f"\n      ls -ld {SPEC.file}\n" in ended.output
        assert (await ctl(bus.address, "check", "kvm", "--json")).json == {
            "device": "kvm",
            "allowed": False,
            "reason": "cdi-not-regular",
            "text": "A link stands there.",
            "request_id": "id-3",
        }

    with_world(bus, work)


def test_a_pending_action_is_waited_for(bus: Bus) -> None:
    async def work(made: World) -> None:
        made.backend.gate.clear()
        made.backend.results = (result(Outcome.SUCCESS, "stale"), result(Outcome.FAILURE, "cdi-timeout"))
        process = await start(bus.address, "repair")
        assert process.stderr is not None
        line = await process.stderr.readline()
        assert b"still at it (request id-1)" in line
        await forge(bus.address)
        made.backend.gate.set()
        ended = await end(process)
        assert ended.status == 5
        assert "its content was not what the devices justify" in ended.output
        assert "forged" not in ended.output

    with_world(bus, work, PENDING)


async def forge(address: str) -> None:
    """Tell everybody, as somebody who is not the daemon, that the request is finished."""
    forger = await MessageBus(bus_address=address).connect()
    body = ["id-1", "success", [["forged", "success", ""]]]
    await forger.send(
        Message(
            message_type=MessageType.SIGNAL,
            path=names.ROOT_PATH,
            interface=names.MANAGER_INTERFACE,
            member="RequestFinished",
            signature="ssa(sss)",
            body=body,
        )
    )
    reply = await forger.call(Message(destination="org.freedesktop.DBus", path="/", interface="org.freedesktop.DBus", member="ListNames"))
    for name in reply.body[0]:
        # Directly, too: that needs no match rule of the receiver.
        if name.startswith(":"):
            await forger.send(
                Message(
                    message_type=MessageType.SIGNAL,
                    destination=name,
                    path=names.ROOT_PATH,
                    interface=names.MANAGER_INTERFACE,
                    member="RequestFinished",
                    signature="ssa(sss)",
                    body=body,
                )
            )
    await forger.call(Message(destination="org.freedesktop.DBus", path="/", interface="org.freedesktop.DBus", member="GetId"))
    await close_bus(forger)


def test_ctrl_c_leaves_a_pending_action_to_the_daemon(bus: Bus) -> None:
    async def work(made: World) -> None:
        made.backend.gate.clear()
        process = await start(bus.address, "repair")
        assert process.stderr is not None
        await process.stderr.readline()
        process.send_signal(signal.SIGINT)
        ended = await end(process)
        assert ended.status == 130
        assert "the request id-1 goes on" in ended.errors
        assert "devwardctl history --request id-1" in ended.errors
        assert made.backend.cancelled == 0
        made.backend.gate.set()

    with_world(bus, work, PENDING)


def test_a_daemon_that_ends_during_a_pending_action(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address, reply_seconds=PENDING) as made:
            made.backend.gate.clear()
            process = await start(bus.address, "repair")
            assert process.stderr is not None
            await process.stderr.readline()
            await made.service.close()
            ended = await end(process)
            assert ended.status in (1, 3), "it is told that the daemon stops, or finds it gone"
            assert ended.status == 1 or "is not known" in ended.errors

    run(main)


# --- authorization ---------------------------------------------------------------------------------------------------


@needs_root
def test_denied(bus: Bus) -> None:
    async def work(made: World) -> None:
        made.polkit.mode = Mode.DENY
        ended = await end(await start(bus.address, "repair", prefix=AS_NOBODY))
        assert ended.status == 4
        assert "sudo" in ended.errors
        assert made.backend.calls == []

    with_world(bus, work)


@needs_root
def test_nobody_can_be_asked_without_a_terminal(bus: Bus) -> None:
    async def work(made: World) -> None:
        made.polkit.mode = Mode.CHALLENGE
        ended = await end(await start(bus.address, "repair", prefix=AS_NOBODY))
        assert ended.status == 4
        assert "nobody could be asked" in ended.errors
        assert [check.flags for check in made.polkit.checks] == [0]

    with_world(bus, work)


@needs_root
def test_at_a_terminal_polkit_may_ask_through_an_agent_that_is_ended(bus: Bus, tmp_path: Path) -> None:
    """The agent is a stand-in: it notes that it was asked to serve us, closes the descriptor, and waits for its end."""
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    agent = tmp_path / "pkttyagent"
    agent.write_text(
        f'#!/bin/sh\ntrap "echo ended >> {tmp_path}/log; exit" TERM\necho "$1 $3 $PPID $DBUS_SYSTEM_BUS_ADDRESS" > {tmp_path}/log\n'
        'eval "exec $2>&-"\nwhile :; do sleep 0.05; done\n'
    )
    agent.chmod(0o755)
    controller, terminal = os.openpty()

    async def work(made: World) -> None:
        made.polkit.mode = Mode.CHALLENGE
        process = await asyncio.create_subprocess_exec(
            *AS_NOBODY,
            *COMMAND,
            "--bus",
            bus.address,
            "repair",
            stdin=terminal,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )
        ended = await end(process)
        assert ended.status == 0, ended.errors
        assert [check.flags for check in made.polkit.checks] == [1], "interaction is allowed"
        assert (tmp_path / "log").read_text().splitlines() == [f"--notify-fd --fallback {process.pid} {bus.address}", "ended"]
        # Reading never asks.
        (tmp_path / "log").unlink()
        made.polkit.checks.clear()
        process = await asyncio.create_subprocess_exec(
            *AS_NOBODY, *COMMAND, "--bus", bus.address, "findings", stdin=terminal, stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT
        )
        assert (await process.communicate())[0]
        assert [check.flags for check in made.polkit.checks] == [0]
        assert not (tmp_path / "log").exists()

    try:
        with_world(bus, work)
    finally:
        os.close(controller)
        os.close(terminal)


# --- following -------------------------------------------------------------------------------------------------------


async def read_until(process: asyncio.subprocess.Process, text: str) -> str:
    """Read lines until one has the text; return them all."""
    assert process.stdout is not None
    lines: list[str] = []
    async with asyncio.timeout(DEADLINE):
        while not lines or text not in lines[-1]:
            line = await process.stdout.readline()
            assert line, f"ended before {text!r}: {lines}"
            lines.append(line.decode())
    return "".join(lines)


def test_monitor_follows_in_plain_sentences_and_outlives_the_daemon(bus: Bus) -> None:
    async def main() -> None:
        process = await start(bus.address, "monitor")
        await read_until(process, "devwardd is not running; waiting for it")
        async with world(bus.address) as made:
            await read_until(process, "devwardd 1.2.3 on node-a has started and is ready")
            await read_until(process, f"{SPEC.file} holds hyperlight.dev/hypervisor=kvm now")
            made.backend.device_views = [replace(KVM, health=Health.UNHEALTHY, reason=Reason.HYPERVISOR_BUSY)]
            made.backend.view = replace(MANAGER, ready=False, not_ready_reasons=("/dev/kvm: hypervisor-busy",))
            made.service.publish()
            shown = await read_until(process, "/dev/kvm cannot be used: Another hypervisor holds")
            shown += await read_until(process, "NOT READY") if "NOT READY" not in shown else ""
            made.backend.device_views = [KVM, MSHV]
            made.service.publish()
            await read_until(process, "/dev/mshv is missing")
            made.backend.device_views = [KVM]
            made.service.publish()
            await read_until(process, "/dev/mshv is not kept any more")
            from devward.model import RepairCause

            made.service.spec_repaired(SPEC.file, RepairCause.STALE)
            await read_until(process, f"{SPEC.file} was repaired, as its content was not what the devices justify")
            made.service.spec_repaired(SPEC.file, RepairCause.PUBLISHED)
            await read_until(process, f"{SPEC.file} was written, as the devices or the configuration have changed")
            made.service.spec_repaired(SPEC.file, RepairCause.WITHDRAWN)
            await read_until(process, f"{SPEC.file} was removed, as no device justifies it any more")
            await ctl(bus.address, "rescan")
            await read_until(process, "request id-1 is finished, success: /dev/kvm: done")
            await forge(bus.address)
        shown = await read_until(process, "devwardd is gone; waiting for it to come back")
        assert "forged" not in shown
        async with world(bus.address):
            await read_until(process, "devwardd 1.2.3 on node-a is back and is ready")
        process.send_signal(signal.SIGINT)
        ended = await end(process)
        assert ended.status == 0
        assert ended.errors == ""

    run(main)


def test_monitor_in_json(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            process = await start(bus.address, "monitor", "--json")
            first = json.loads(await read_until(process, "daemon-present"))
            assert (first["version"], first["ready"]) == ("1.2.3", True)
            made.backend.device_views = [replace(KVM, health=Health.UNHEALTHY, reason=Reason.HYPERVISOR_BUSY)]
            made.service.publish()
            changed = json.loads(await read_until(process, '"changed"'))
            assert changed["object"] == names.device_path("kvm")
            assert changed["interface"] == names.DEVICE_INTERFACE
            assert changed["properties"] == {"health": "unhealthy", "reason": "hypervisor-busy"}
            assert len(changed["text"]) == 1
            await ctl(bus.address, "rescan")
            finished = json.loads(await read_until(process, "request-finished"))
            assert finished["results"] == [{"target": "/dev/kvm", "outcome": "success", "reason": ""}]
        assert json.loads(await read_until(process, "daemon-gone"))["time_usec"] > 0
        process.terminate()
        assert (await end(process)).status == 0

    run(main)


def test_monitor_ends_with_the_bus(own_bus: Bus) -> None:
    async def main() -> None:
        process = await start(own_bus.address, "monitor")
        await read_until(process, "not running")
        own_bus.kill()
        ended = await end(process)
        assert ended.status == 3
        assert "The message bus is gone." in ended.errors

    run(main)


def test_monitor_into_a_pipe_that_nobody_reads(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            reading, writing = os.pipe()
            process = await asyncio.create_subprocess_exec(
                *COMMAND, "--bus", bus.address, "monitor", stdout=writing, stderr=asyncio.subprocess.PIPE, env=ENVIRONMENT
            )
            os.close(writing)
            await asyncio.get_running_loop().run_in_executor(None, os.read, reading, 1)
            os.close(reading)
            for health in (Health.UNHEALTHY, Health.HEALTHY) * 2:
                made.backend.device_views = [replace(KVM, health=health)]
                made.service.publish()
                await asyncio.sleep(0)
            ended = await end_without_output(process)
            assert ended == (141, "")

    run(main)


async def end_without_output(process: asyncio.subprocess.Process) -> tuple[int, str]:
    async with asyncio.timeout(DEADLINE):
        _, errors_ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors_.decode()


# --- absence ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["status"], ["check", "kvm"], ["repair"], ["config"]], ids=" ".join)
def test_no_daemon(bus: Bus, arguments: list[str]) -> None:
    async def main() -> None:
        ended = await ctl(bus.address, *arguments)
        assert ended.status == 3
        assert ended.output == ""
        assert ended.errors == (
            "devwardctl: devwardd is not running.\n  Start it with: systemctl start devward.service. What it said last:"
            " journalctl -u devward.service -n 20.\n"
        )

    run(main)


def test_completion(bus: Bus) -> None:
    async def main() -> None:
        for what in ("devices", "specs"):
            ended = await ctl(bus.address, "complete", what)
            assert (ended.status, ended.output, ended.errors) == (0, "", "")
        async with world(bus.address):
            assert (await ctl(bus.address, "complete", "devices")).output == "kvm\n"
            assert (await ctl(bus.address, "complete", "specs")).output == f"{SPEC.file}\n"
            assert {"kvm", SPEC.file, "hypervisor-busy"} <= set((await ctl(bus.address, "complete", "explain")).output.split())

    run(main)


@needs_root
def test_a_report_of_a_plain_user_says_what_it_lacks(bus: Bus, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)

    async def work(made: World) -> None:
        made.polkit.mode = Mode.DENY
        made.backend.describe = lambda *, full: "{}"  # type: ignore[method-assign]
        ended = await end(await start(bus.address, "report", str(tmp_path / "r.tar.gz"), "--json", prefix=AS_NOBODY))
        assert ended.status == 5
        document = ended.json
        assert isinstance(document, dict)
        assert any("administrators only" in problem for problem in document["problems"])
        assert {"README.txt", "status.json", "describe.json", "problems.txt", "versions.txt"} <= set(document["members"])

    with_world(bus, work)


def test_a_report_without_a_daemon(bus: Bus, tmp_path: Path) -> None:
    async def main() -> None:
        ended = await ctl(bus.address, "report", str(tmp_path / "r.tar.gz"))
        assert ended.status == 5
        assert "devwardd is not running" in ended.output

    run(main)
