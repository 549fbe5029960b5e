"""Verdicts about hypervisor devices: rules R9 to R14, R19 and R25 from the child's line to the answer, and the children of earlier runs."""

import asyncio
import errno
import gc
import itertools
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.child import ChildResult, ChildStatus
from devward.devices import hypervisor
from devward.devices.health import ProbeVerdict
from devward.devices.hypervisor import PROBE_PROGRAM, EpermPatience, HypervisorProber, interpret
from devward.model import DeviceKind
from devward.reasons import Reason
from sim import tracing
from sim.cgroups import FreezerGroup, has_pending_kill, is_alive
from sim.held_time import PATIENCE, HeldTimeLoop, outcome, run_held, until
from sim.tracing import TracedPython, script

KVM = "/dev/kvm"
#: Runs of the suite at the same time must not find each other's children.
INSTANCE = f"/run/devward-test-{os.getpid()}"
needs_kvm = pytest.mark.skipif(not os.access(KVM, os.R_OK | os.W_OK), reason="needs /dev/kvm: and the right to open it")

#: Stage, errno, API version; reason, whether it completes the check. All rows of the error table, and what is like them.
BAD_ROWS = [
    ("open", errno.ENOENT, None, Reason.DEVICE_MISSING),
    ("open", errno.ENODEV, None, Reason.DEVICE_NO_DRIVER),
    ("open", errno.ENXIO, None, Reason.DEVICE_STALE_MAJOR),
    ("open", errno.EACCES, None, Reason.PERMISSION_DENIED),
    ("open", errno.ELOOP, None, Reason.DEVICE_SYMLINK),
    ("open", errno.EBUSY, None, Reason.PROBE_FAILED),
    ("open", errno.EIO, None, Reason.PROBE_FAILED),
    ("api", errno.ENOTTY, None, Reason.NOT_A_HYPERVISOR),
    ("api", errno.EINVAL, None, Reason.NOT_A_HYPERVISOR),
    ("api", errno.ENOSYS, None, Reason.NOT_A_HYPERVISOR),
    ("api", errno.EACCES, None, Reason.PROBE_FAILED),
    ("api", None, 11, Reason.API_VERSION),
    ("api", None, 0, Reason.API_VERSION),
    ("ipa", errno.EINVAL, 12, Reason.PROBE_FAILED),
    ("create", errno.EBUSY, 12, Reason.HYPERVISOR_BUSY),
    ("create", errno.EIO, 12, Reason.CPU_ENABLE_FAILED),
    ("create", errno.EINVAL, 12, Reason.MACHINE_TYPE),
    ("create", errno.ENOTTY, 12, Reason.NOT_A_HYPERVISOR),
    ("create", errno.EPERM, 12, Reason.PROBE_FAILED),
    ("create", errno.EBADF, 12, Reason.PROBE_FAILED),
    ("create", 4095, 12, Reason.PROBE_FAILED),
]
TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
INCONCLUSIVE_ROWS = [
    *((stage, number, None, Reason.PROBE_INCONCLUSIVE) for stage in ("open", "api", "create") for number in TRANSIENT),
    ("open", errno.EPERM, None, Reason.DEVICE_CGROUP_DENIED),
    ("identity", None, None, Reason.DEVICE_CHANGED),
    ("identity", errno.EBADF, None, Reason.PROBE_INCONCLUSIVE),
    ("setup", errno.EPERM, None, Reason.PROBE_INCONCLUSIVE),
]


def line(stage: str, number: int | None = None, api: int | None = None) -> bytes:
    return json.dumps({"stage": stage, "errno": number, "api": api}).encode() + b"\n"


def exited(stdout: bytes, code: int | None = 0, stderr: bytes = b"") -> ChildResult:
    return ChildResult(ChildStatus.EXITED, 0.25, exit_code=code, stdout=stdout, stderr=stderr)


@pytest.fixture(name="null")
def _null() -> Iterator[int]:
    descriptor = os.open("/dev/null", os.O_PATH)
    yield descriptor
    os.close(descriptor)


def prober(
    python: str = sys.executable, *, kind: DeviceKind = DeviceKind.KVM, monotonic: Callable[[], float] = time.monotonic
) -> HypervisorProber:
    return HypervisorProber(kind, instance=INSTANCE, python=python, monotonic=monotonic)


def probe_once(python: str, descriptor: int, kind: DeviceKind = DeviceKind.KVM) -> ProbeVerdict:
    """Probe with a budget that no machine overruns."""

    async def main() -> ProbeVerdict:
        one = prober(python, kind=kind)
        try:
            return await one.probe(descriptor, budget=PATIENCE)
        finally:
            one.close()

    return asyncio.run(main())


def probe_path(path: str, python: str = sys.executable) -> ProbeVerdict:
    descriptor = os.open(path, os.O_PATH)
    try:
        return probe_once(python, descriptor)
    finally:
        os.close(descriptor)


def said(directory: Path, text: bytes) -> str:
    """Return an interpreter that only says this."""
    return script(directory / "python", f"printf %s {shlex.quote(text.decode())}")


# --- what a line means -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "number", "api", "reason"), BAD_ROWS)
def test_r9_what_the_device_answers_completes_the_check(
    stage: str, number: int | None, api: int | None, reason: Reason, tmp_path: Path, null: int
) -> None:
    verdict = interpret(DeviceKind.KVM, exited(line(stage, number, api)))
    assert (verdict.completed, verdict.healthy, verdict.reason, verdict.duration_usec) == (True, False, reason, 250_000)
    expected = f"it is {api}" if number is None else errno.errorcode.get(number, str(number))
    assert expected in verdict.detail
    through_child = probe_once(said(tmp_path, line(stage, number, api)), null)
    assert (through_child.completed, through_child.healthy, through_child.reason) == (True, False, reason)
    assert through_child.detail == verdict.detail


@pytest.mark.parametrize(("stage", "number", "api", "reason"), INCONCLUSIVE_ROWS)
def test_local_failures_say_nothing_about_the_device(
    stage: str, number: int | None, api: int | None, reason: Reason, tmp_path: Path, null: int
) -> None:
    verdict = interpret(DeviceKind.KVM, exited(line(stage, number, api)))
    assert (verdict.completed, verdict.healthy, verdict.reason) == (False, False, reason)
    through_child = probe_once(said(tmp_path, line(stage, number, api)), null)
    assert (through_child.completed, through_child.healthy, through_child.reason) == (False, False, reason)


def test_good_answers() -> None:
    kvm = interpret(DeviceKind.KVM, exited(line("done", None, 12)))
    assert kvm == ProbeVerdict(True, True, Reason.OK, "", 250_000)
    mshv = interpret(DeviceKind.MSHV, exited(line("done")))
    assert mshv == ProbeVerdict(True, True, Reason.OK, "", 250_000)


def test_r10_mshv_has_the_errors_of_open_and_no_others() -> None:
    assert interpret(DeviceKind.MSHV, exited(line("open", errno.ENODEV))).reason is Reason.DEVICE_NO_DRIVER
    assert interpret(DeviceKind.MSHV, exited(line("create", errno.EBUSY))).reason is Reason.PROBE_INCONCLUSIVE


@pytest.mark.parametrize(
    "result",
    [
        exited(b""),
        exited(b"not json\n"),
        exited(b"[" * 4096),
        exited(b"\xff\xfe\n"),
        exited(b"[]\n"),
        exited(b'{"stage": "done", "errno": null}\n'),
        exited(b'{"stage": "done", "errno": null, "api": 12, "more": 1}\n'),
        exited(b'{"stage": [], "errno": null, "api": 12}\n'),
        exited(b'{"stage": "done", "errno": null, "api": true}\n'),
        exited(b'{"stage": "done", "errno": "0", "api": 12}\n'),
        exited(line("elsewhere")),
        exited(line("done", None, 11)),
        exited(line("done", None, None)),
        exited(line("done", errno.EIO, 12)),
        exited(line("open")),
        exited(line("create", None, 12)),
        exited(line("api", None, 12)),
        exited(line("api")),
        exited(line("done", None, 12) * 2),
        exited(line("done", None, 12), code=1),
        exited(line("done", None, 12), code=None),
        ChildResult(ChildStatus.SIGNALED, 0.1, signal=11, stdout=line("done", None, 12)),
        ChildResult(ChildStatus.SIGNALED, 0.1, signal=99),
        ChildResult(ChildStatus.NOT_STARTED, 0.1, errno=errno.EMFILE),
        ChildResult(ChildStatus.NOT_STARTED, 0.1, errno=errno.ENOENT),
        ChildResult(ChildStatus.BUSY, 0.1),
    ],
)
def test_child_that_fails_says_nothing_about_the_device(result: ChildResult) -> None:
    verdict = interpret(DeviceKind.KVM, result)
    assert (verdict.completed, verdict.healthy, verdict.reason) == (False, False, Reason.PROBE_INCONCLUSIVE)
    assert verdict.detail


def test_details_name_the_cause() -> None:
    kvm = DeviceKind.KVM
    assert interpret(kvm, exited(line("create", errno.EBUSY, 12))).detail == "KVM_CREATE_VM: EBUSY"
    assert interpret(kvm, ChildResult(ChildStatus.SIGNALED, 0, signal=11)).detail == "the checking process was ended by SIGSEGV"
    assert interpret(kvm, ChildResult(ChildStatus.NOT_STARTED, 0, errno=errno.EMFILE)).detail.endswith("not started: EMFILE")
    words = interpret(kvm, exited(b"", code=1, stderr=b"Traceback\n  ...\nImportError: no \x1b[31mctypes\xff" + b"x" * 4000)).detail
    assert words.startswith("the checking process gave no answer: ImportError: no [31mctypes")
    assert words.isprintable()
    assert len(words) < 300


@given(
    st.sampled_from(DeviceKind), st.binary(max_size=200) | st.builds(line, st.text(), st.integers() | st.none(), st.integers() | st.none())
)
def test_any_output_gives_a_verdict_and_only_one_a_good_one(kind: DeviceKind, stdout: bytes) -> None:
    verdict = interpret(kind, exited(stdout))
    assert verdict.completed or not verdict.healthy
    assert verdict.healthy == (verdict.completed and verdict.reason is Reason.OK)
    assert not verdict.healthy or json.loads(stdout)["stage"] == "done"


def test_r13_a_device_that_does_not_answer_is_unhealthy() -> None:
    timeout = interpret(DeviceKind.KVM, ChildResult(ChildStatus.DEADLINE, 1.9))
    assert (timeout.completed, timeout.healthy, timeout.reason) == (True, False, Reason.PROBE_TIMEOUT)
    stuck = interpret(DeviceKind.KVM, ChildResult(ChildStatus.STUCK, 1.97))
    assert (stuck.completed, stuck.healthy, stuck.reason) == (True, False, Reason.HELPER_STUCK)


# --- patience with EPERM ---------------------------------------------------------------------------------------------

DENIED = ProbeVerdict(False, False, Reason.DEVICE_CGROUP_DENIED, "open: EPERM", 1)
GOOD = ProbeVerdict(True, True, Reason.OK, "", 1)
BAD = ProbeVerdict(True, False, Reason.HYPERVISOR_BUSY, "", 1)
LOCAL = ProbeVerdict(False, False, Reason.PROBE_INCONCLUSIVE, "", 1)


def judged(*events: tuple[float, ProbeVerdict]) -> list[bool]:
    """Return which verdicts in this history are complete."""
    patience, completed = EpermPatience(), []
    for now, verdict in events:
        patience, verdict = patience.judge(verdict, now)  # noqa: PLW2901  # the judged verdict takes its place
        assert verdict.reason is not Reason.DEVICE_CGROUP_DENIED or not verdict.healthy
        completed.append(verdict.completed)
    return completed


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([(100, DENIED)], [False], id="one is never enough"),
        pytest.param([(100, DENIED), (104.9, DENIED)], [False, False], id="not yet 5 s"),
        pytest.param([(100, DENIED), (105, DENIED)], [False, True], id="5 s over two probes"),
        pytest.param([(100, DENIED), (101, DENIED), (106, DENIED), (107, DENIED)], [False, False, True, True], id="stays bad"),
        pytest.param([(100, DENIED), (104, GOOD), (106, DENIED)], [False, True, False], id="a good check starts over"),
        pytest.param([(100, DENIED), (104, BAD), (106, DENIED)], [False, True, False], id="a bad check starts over"),
        pytest.param([(100, DENIED), (104, LOCAL), (106, DENIED)], [False, False, True], id="a local failure changes nothing"),
        pytest.param([(0, DENIED), (5, DENIED)], [False, True], id="the clock may begin at zero"),
    ],
)
def test_eperm_is_inconclusive_until_it_lasts(events: list[tuple[float, ProbeVerdict]], expected: list[bool]) -> None:
    assert judged(*events) == expected


def test_prober_is_patient_with_eperm(tmp_path: Path, null: int) -> None:
    async def main() -> None:
        clock = itertools.chain([50.0, 54.0, 55.0])
        one = prober(said(tmp_path, line("open", errno.EPERM)), monotonic=lambda: next(clock))
        verdicts = [await one.probe(null, budget=PATIENCE) for _ in range(3)]
        assert [verdict.completed for verdict in verdicts] == [False, False, True]
        assert {verdict.reason for verdict in verdicts} == {Reason.DEVICE_CGROUP_DENIED}
        one.close()

    asyncio.run(main())


# --- real devices and a real child -----------------------------------------------------------------------------------


@needs_kvm
def test_r9_kvm_of_this_machine_is_usable() -> None:
    verdict = probe_path(KVM)
    assert (verdict.completed, verdict.healthy, verdict.reason) == (True, True, Reason.OK)
    assert verdict.duration_usec > 0


def test_device_that_is_no_hypervisor() -> None:
    verdict = probe_path("/dev/null")
    assert (verdict.completed, verdict.healthy, verdict.reason) == (True, False, Reason.NOT_A_HYPERVISOR)


def test_r10_mshv_is_judged_by_opening_it(null: int) -> None:
    verdict = probe_once(sys.executable, null, DeviceKind.MSHV)
    assert (verdict.completed, verdict.healthy, verdict.reason) == (True, True, Reason.OK)


def test_regular_file_is_not_opened_and_is_inconclusive(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    verdict = probe_path(str(tmp_path / "file"))
    assert (verdict.completed, verdict.healthy, verdict.reason) == (False, False, Reason.DEVICE_CHANGED)


@needs_kvm
def test_r19_recovery_is_automatic_and_the_node_is_left_as_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        busy = TracedPython(tmp_path, "-P", KVM, "-e", "trace=ioctl", "-e", "inject=ioctl:error=EBUSY")
        python = tmp_path / "either"
        python.symlink_to(busy.path)
        descriptor = os.open(KVM, os.O_PATH)
        before = os.fstat(descriptor)
        one = prober(str(python))
        assert (await one.probe(descriptor, budget=PATIENCE)).healthy is False
        python.unlink()
        script(python, f'exec {sys.executable} "$@"')
        assert (await one.probe(descriptor, budget=PATIENCE)).healthy is True
        after = os.fstat(descriptor)
        os.close(descriptor)
        one.close()
        for field in ("st_mode", "st_uid", "st_gid", "st_rdev", "st_ino", "st_nlink"):
            assert getattr(before, field) == getattr(after, field), field

    asyncio.run(main())


def test_interpreter_that_is_not_there_is_inconclusive(null: int) -> None:
    verdict = probe_once("/nonexistent/python3", null)
    assert (verdict.completed, verdict.reason) == (False, Reason.PROBE_INCONCLUSIVE)
    assert "ENOENT" in verdict.detail


def test_daemon_out_of_descriptors_is_inconclusive(null: int) -> None:
    async def main() -> None:
        one = prober()
        # Or some of other tests might go meanwhile, and there were more to be had.
        gc.collect()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(null)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
        try:
            verdict = await one.probe(null, budget=PATIENCE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert (verdict.completed, verdict.reason) == (False, Reason.PROBE_INCONCLUSIVE)
        assert "EMFILE" in verdict.detail
        assert (await one.probe(null, budget=PATIENCE)).completed
        one.close()

    asyncio.run(main())


# --- a child that hangs, is cancelled, or cannot be ended ------------------------------------------------------------


@pytest.fixture(name="hanging")
def _hanging(tmp_path: Path) -> Path:
    """An interpreter that hangs while a file named `hang` is beside it, and works else."""
    (tmp_path / "hang").touch()
    path = tmp_path / "python"
    script(path, f'[ -e {tmp_path}/hang ] && exec sleep 600\nexec {sys.executable} "$@"')
    return path


async def started(one: HypervisorProber) -> int:
    await until(lambda: one.pids, "a child")
    (pid,) = one.pids
    return pid


def test_r25_cancelled_helper_does_not_poison_the_next_check(hanging: Path, null: int) -> None:
    async def main() -> None:
        one = prober(str(hanging))
        cancelled = asyncio.create_task(one.probe(null, budget=PATIENCE))
        pid = await started(one)
        cancelled.cancel()
        (hanging.parent / "hang").unlink()
        verdict = await one.probe(null, budget=PATIENCE)
        assert (verdict.completed, verdict.reason) == (True, Reason.NOT_A_HYPERVISOR)
        assert cancelled.cancelled()
        assert not is_alive(pid)
        one.close()

    asyncio.run(main(), debug=True)


def test_r11_hanging_helper_is_a_timeout_within_the_budget(hanging: Path, null: int) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        one = prober(str(hanging))
        task = asyncio.create_task(one.probe(null))
        await started(one)
        loop.advance(1.9)
        verdict = await outcome(task)
        assert (verdict.completed, verdict.healthy, verdict.reason) == (True, False, Reason.PROBE_TIMEOUT)
        assert verdict.duration_usec < 2_000_000
        one.close()

    run_held(main)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to make a freezer group")
def test_r13_helper_that_outlives_sigkill_is_unhealthy_and_recovers(hanging: Path, null: int) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        with FreezerGroup("prober") as freezer:
            one = prober(str(hanging))
            first = asyncio.create_task(one.probe(null))
            pid = await started(one)
            freezer.freeze(pid)
            loop.advance(1.85)
            await until(lambda: has_pending_kill(pid), "SIGKILL")
            loop.advance(0.13)
            verdict = await outcome(first)
            assert (verdict.completed, verdict.healthy, verdict.reason) == (True, False, Reason.HELPER_STUCK)
            assert verdict.duration_usec < 2_000_000
            assert one.stuck
            assert is_alive(pid)

            (hanging.parent / "hang").unlink()
            second = asyncio.create_task(one.probe(null))
            await asyncio.sleep(0)
            loop.advance(1.5)
            assert (await outcome(second)).reason is Reason.HELPER_STUCK
            assert one.pids == (pid,), "a second helper was started"

            freezer.thaw()
            recovered = await one.probe(null)
            assert (recovered.completed, recovered.reason) == (True, Reason.NOT_A_HYPERVISOR)
            assert not one.stuck
            one.close()

    run_held(main)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to make a freezer group")
def test_r14_cancellation_while_waiting_for_a_cancelled_helper(hanging: Path, null: int) -> None:
    async def main() -> None:
        with FreezerGroup("prober") as freezer:
            one = prober(str(hanging))
            first = asyncio.create_task(one.probe(null, budget=PATIENCE))
            pid = await started(one)
            freezer.freeze(pid)
            first.cancel()
            waiting = asyncio.create_task(one.probe(null, budget=PATIENCE))
            await until(lambda: has_pending_kill(pid), "SIGKILL")
            waiting.cancel()
            await asyncio.gather(first, waiting, return_exceptions=True)
            assert (first.cancelled(), waiting.cancelled()) == (True, True)
            assert one.pids == (pid,)
            (hanging.parent / "hang").unlink()
            freezer.thaw()
            assert (await one.probe(null, budget=PATIENCE)).reason is Reason.NOT_A_HYPERVISOR
            one.close()

    asyncio.run(main(), debug=True)


# --- children of an earlier run --------------------------------------------------------------------------------------


@pytest.fixture(name="leave_behind")
def _leave_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts processes with the command line of a probe child that never end; the probe program is another while this is in use."""
    program = tmp_path / "probe.py"
    program.write_text(
        "import os, sys, time\nif sys.argv[2] == '777777':\n    time.sleep(600)\n"
        f"os.execv(sys.executable, [sys.executable, '-I', '-S', '-E', {PROBE_PROGRAM!r}, *sys.argv[1:]])\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(hypervisor, "PROBE_PROGRAM", str(program))
    processes = []

    def leave(*, kind: str = "kvm", instance: str = INSTANCE, flags: tuple[str, ...] = ("-I", "-S", "-E")) -> "subprocess.Popen[bytes]":
        processes.append(subprocess.Popen([sys.executable, *flags, program, kind, "777777", instance]))
        return processes[-1]

    yield leave
    for process in processes:
        process.kill()
        process.wait()


def among(found: tuple[int, ...], *processes: "subprocess.Popen[bytes]") -> tuple[int, ...]:
    """Return which of these were found; one of another test that is about to end has no command line any more, and may be found as well."""
    return tuple(pid for pid in found if pid in {process.pid for process in processes})


def test_r12_leftover_of_an_earlier_run_counts_as_the_outstanding_helper(
    leave_behind: Callable[..., "subprocess.Popen[bytes]"], null: int
) -> None:
    async def main() -> None:
        one = prober()
        process = leave_behind()
        others = [leave_behind(kind="mshv"), leave_behind(instance="/run/other"), leave_behind(flags=("-I",))]
        assert among(one.find_leftovers(), process, *others) == (process.pid,)
        assert among(one.adopt_leftovers(), process, *others) == (process.pid,)
        assert among(one.pids, process, *others) == (process.pid,)
        assert among(one.find_leftovers(), process, *others) == (), "one that is held is no leftover any more"
        assert (await one.probe(null, budget=PATIENCE)).completed
        assert one.pids == ()
        assert process.wait() == -signal.SIGKILL
        assert all(other.poll() is None for other in others), "a stranger was killed"
        one.close()

    asyncio.run(main())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to make a freezer group")
def test_r13_leftover_that_cannot_be_ended_is_a_stuck_helper(leave_behind: Callable[..., "subprocess.Popen[bytes]"], null: int) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        with FreezerGroup("leftover") as freezer:
            process = leave_behind()
            freezer.freeze(process.pid)
            one = prober()
            assert among(one.adopt_leftovers(), process) == (process.pid,)
            task = asyncio.create_task(one.probe(null))
            await asyncio.sleep(0)
            loop.advance(1.5)
            assert (await outcome(task)).reason is Reason.HELPER_STUCK
            assert one.stuck
            freezer.thaw()
            assert (await one.probe(null)).completed
            one.close()

    run_held(main)


def test_leftover_that_became_another_process_is_left_alone(
    leave_behind: Callable[..., "subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        one = prober()
        stranger = leave_behind(instance="/run/other")
        monkeypatch.setattr(one, "find_leftovers", lambda _proc: (stranger.pid,))
        assert one.adopt_leftovers() == ()
        assert stranger.poll() is None
        one.close()

    asyncio.run(main())


def test_running_child_is_recognised_by_its_command_line_and_its_name(tmp_path: Path) -> None:
    """The real child, held before it opens the device: what a daemon that starts then would find."""

    async def main() -> None:
        descriptor = os.open("/dev/null", os.O_PATH)
        traced = TracedPython(tmp_path, "-e", "trace=openat", "-P", f"/proc/self/fd/{descriptor}", "-e", "inject=openat:delay_enter=600s")
        one, restarted = prober(traced.path), prober()
        task = asyncio.create_task(one.probe(descriptor, budget=600))
        pid = await started(one)
        try:
            await until(lambda: read(f"/proc/{pid}/comm") == "devward-kvm\n", "the name")
            assert pid in restarted.find_leftovers()
            assert pid not in one.find_leftovers()
        finally:
            task.cancel()
            tracing.kill_held(pid)
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: not one.pids, "the end")
            one.close()
            restarted.close()
            os.close(descriptor)

    def read(path: str) -> str:
        return Path(path).read_text(encoding="utf-8")

    asyncio.run(main())


UNIT = "0::/system.slice/devward.service\n"


def fake_process(proc: Path, pid: int | str, *, cmdline: bytes, comm: str = "python3", state: str = "D", cgroup: str = UNIT) -> None:
    directory = proc / str(pid)
    directory.mkdir()
    (directory / "cmdline").write_bytes(cmdline)
    (directory / "stat").write_text(f"{pid} ({comm}) {state} 1 1 1 0\n", encoding="utf-8")
    (directory / "cgroup").write_text(cgroup, encoding="utf-8")


def command_line(*arguments: str) -> bytes:
    return b"".join(argument.encode() + b"\0" for argument in arguments)


OURS = command_line("/usr/bin/python3", "-I", "-S", "-E", PROBE_PROGRAM, "kvm", "9", INSTANCE)


@pytest.mark.parametrize(
    ("process", "is_ours"),
    [
        pytest.param({"cmdline": OURS}, True, id="ours"),
        pytest.param({"cmdline": OURS, "cgroup": "0::/user.slice\n"}, False, id="another cgroup"),
        pytest.param({"cmdline": OURS, "cgroup": "7:freezer:/elsewhere\n" + UNIT}, True, id="moved in a resource hierarchy only"),
        pytest.param({"cmdline": OURS, "cgroup": "1:name=systemd:/x\n" + UNIT}, False, id="another unit on a hybrid host"),
        pytest.param({"cmdline": OURS.replace(b"kvm", b"mshv")}, False, id="another device"),
        pytest.param({"cmdline": OURS.replace(INSTANCE.encode(), b"/run/x")}, False, id="another instance"),
        pytest.param({"cmdline": OURS.replace(b"probe.py", b"prober.py")}, False, id="another program"),
        pytest.param({"cmdline": OURS.replace(b"\x009\0", b"\0x\0")}, False, id="no descriptor"),
        pytest.param({"cmdline": b"strace\0" + OURS}, False, id="one that runs ours"),
        pytest.param({"cmdline": OURS + b"more\0"}, False, id="more arguments"),
        pytest.param({"cmdline": b"sleep\0"}, False, id="a stranger"),
        pytest.param({"cmdline": b"", "comm": "devward-kvm"}, True, id="hangs in its exit"),
        pytest.param({"cmdline": b"", "comm": "devward-kvm", "state": "Z"}, False, id="a zombie"),
        pytest.param({"cmdline": b"", "comm": "devward-mshv"}, False, id="another device hangs in its exit"),
        pytest.param({"cmdline": b"", "comm": "kworker/0:1"}, False, id="a kernel thread"),
        pytest.param({"cmdline": b"bash\0", "comm": "devward-kvm"}, False, id="a name alone"),
    ],
)
def test_what_counts_as_a_leftover(process: dict[str, str], is_ours: bool, tmp_path: Path) -> None:
    fake_process(tmp_path, "self", cmdline=b"devwardd\0")
    fake_process(tmp_path, 4000000, **process)  # type: ignore[arg-type]  # rows of the table above
    (tmp_path / "4000001").mkdir()  # gone while it is looked at
    (tmp_path / "uptime").touch()
    assert prober().find_leftovers(str(tmp_path)) == ((4000000,) if is_ours else ())


def test_leftovers_where_only_resource_hierarchies_exist(tmp_path: Path) -> None:
    fake_process(tmp_path, "self", cmdline=b"devwardd\0", cgroup="2:cpu:/a\n")
    fake_process(tmp_path, 4000000, cmdline=OURS, cgroup="2:cpu:/a\n")
    fake_process(tmp_path, 4000001, cmdline=OURS, cgroup="2:cpu:/b\n")
    assert prober().find_leftovers(str(tmp_path)) == (4000000,)


def test_process_of_another_user_is_no_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_process(tmp_path, "self", cmdline=b"devwardd\0")
    fake_process(tmp_path, 4000000, cmdline=OURS)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert prober().find_leftovers(str(tmp_path)) == ()
