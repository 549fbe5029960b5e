"""Asks whether a hypervisor device can be used: runs the probe child and turns what it reports into a verdict.

`interpret` and `EpermPatience` are pure. The meaning of each error number: virt/kvm/kvm_main.c, drivers/char/misc.c and
Documentation/virt/kvm/api.rst of Linux.
"""

import errno
import functools
import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from devward.child import BoundedChild, ChildResult, ChildStatus
from devward.devices.health import ProbeVerdict
from devward.model import DeviceKind
from devward.reasons import Reason

#: The program of the child; it stands beside this module and is started by its path, so that it needs nothing of the package.
PROBE_PROGRAM: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe.py")
#: The child's name (proc(5), comm) is this and the kind.
PROBE_NAME_PREFIX: Final = "devward-"
KVM_API_VERSION: Final = 12
#: States of a process that holds nothing any more (proc(5), stat).
_ENDED: Final = frozenset({"Z", "X"})
#: EPERM counts against the device once a probe meets it this many seconds after the one that met it first.
EPERM_SECONDS: Final = 5.0

#: Local resource limits and interruptions, at whatever stage: they say nothing about the device.
_TRANSIENT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})

#: What the other errors of a stage mean; one that is not here is PROBE_FAILED.
_MEANING: Final[Mapping[str, Mapping[int, Reason]]] = MappingProxyType(
    {
        "open": {
            errno.ENOENT: Reason.DEVICE_MISSING,
            errno.ENODEV: Reason.DEVICE_NO_DRIVER,
            errno.ENXIO: Reason.DEVICE_STALE_MAJOR,
            errno.EACCES: Reason.PERMISSION_DENIED,
            errno.EPERM: Reason.DEVICE_CGROUP_DENIED,
            errno.ELOOP: Reason.DEVICE_SYMLINK,
        },
        # ENOTTY is what the kernel gives for a command that a device does not know; some drivers say EINVAL or ENOSYS.
        "api": {errno.ENOTTY: Reason.NOT_A_HYPERVISOR, errno.EINVAL: Reason.NOT_A_HYPERVISOR, errno.ENOSYS: Reason.NOT_A_HYPERVISOR},
        "ipa": {},
        "create": {
            errno.EBUSY: Reason.HYPERVISOR_BUSY,
            errno.EIO: Reason.CPU_ENABLE_FAILED,
            errno.EINVAL: Reason.MACHINE_TYPE,
            errno.ENOTTY: Reason.NOT_A_HYPERVISOR,
        },
    }
)
#: What people know a stage by.
_STAGE_NAME: Final[Mapping[str, str]] = MappingProxyType(
    {"open": "open", "api": "KVM_GET_API_VERSION", "ipa": "KVM_CHECK_EXTENSION", "create": "KVM_CREATE_VM"}
)
_STAGES: Final[Mapping[DeviceKind, frozenset[str]]] = MappingProxyType(
    {
        DeviceKind.KVM: frozenset({"setup", "identity", "open", "api", "ipa", "create", "done"}),
        # Creating a partition is not tried: the call differs between kernels (R10).
        DeviceKind.MSHV: frozenset({"setup", "identity", "open", "done"}),
    }
)


@dataclass(frozen=True, slots=True)
class _Report:
    """The child's line."""

    stage: str
    error: int | None
    api: int | None


def interpret(kind: DeviceKind, result: ChildResult) -> ProbeVerdict:
    """Say what a run of the probe child proves about the device.

    A verdict is complete only where the device itself answered, or kept the child from ending (R13). EPERM at open is never complete
    here: right after a systemd daemon-reload a device cgroup refuses for a moment; EpermPatience decides.
    """

    def verdict(reason: Reason, detail: str = "", *, completed: bool) -> ProbeVerdict:
        return ProbeVerdict(completed, completed and reason is Reason.OK, reason, detail, round(result.duration * 1e6))

    def inconclusive(detail: str) -> ProbeVerdict:
        return verdict(Reason.PROBE_INCONCLUSIVE, detail, completed=False)

    match result.status:
        case ChildStatus.DEADLINE:
            return verdict(Reason.PROBE_TIMEOUT, completed=True)
        case ChildStatus.STUCK:
            return verdict(Reason.HELPER_STUCK, completed=True)
        case ChildStatus.BUSY:
            return inconclusive("another check is still running")
        case ChildStatus.NOT_STARTED:
            return inconclusive(f"the checking process was not started: {_error_text(result.errno)}")
        case ChildStatus.SIGNALED:
            return inconclusive(f"the checking process was ended by {_signal_name(result.signal)}")
        case ChildStatus.EXITED:
            report = _parse(kind, result)

    if report is None:
        return inconclusive(f"the checking process gave no answer{_last_words(result.stderr)}")
    if report.stage == "done":
        return verdict(Reason.OK, completed=True)
    if report.error is None:
        if report.stage == "identity":
            return verdict(Reason.DEVICE_CHANGED, completed=False)
        return verdict(Reason.API_VERSION, f"it is {report.api}", completed=True)
    if report.error in _TRANSIENT or report.stage not in _MEANING:
        return inconclusive(f"{_STAGE_NAME.get(report.stage, report.stage)}: {_error_text(report.error)}")
    reason = _MEANING[report.stage].get(report.error, Reason.PROBE_FAILED)
    detail = f"{_STAGE_NAME[report.stage]}: {_error_text(report.error)}"
    return verdict(reason, detail, completed=reason is not Reason.DEVICE_CGROUP_DENIED)


@dataclass(frozen=True, slots=True)
class EpermPatience:
    """How long opening the device has been refused with EPERM.

    Any completed check, good or bad, starts it over; a check that failed for a local reason leaves it as it is.
    """

    #: Monotonic seconds of the first refusal, None where the last completed check was none.
    since: float | None = None

    def judge(self, verdict: ProbeVerdict, now: float) -> "tuple[EpermPatience, ProbeVerdict]":
        """Take in a verdict of `interpret` at monotonic time `now`; the refusal completes the check once it has lasted."""
        if verdict.completed:
            return EpermPatience(), verdict
        if verdict.reason is not Reason.DEVICE_CGROUP_DENIED:
            return self, verdict
        since = now if self.since is None else self.since
        return EpermPatience(since), replace(verdict, completed=now - since >= EPERM_SECONDS)


class HypervisorProber:
    """Probes one hypervisor device with a child process that has no privileges and at most two seconds."""

    def __init__(self, kind: DeviceKind, *, instance: str, python: str, monotonic: Callable[[], float]) -> None:
        """Make a prober.

        `instance` is the daemon's runtime directory: it marks the child as this daemon's. `python` is the absolute path of the
        interpreter, `monotonic` gives seconds.
        """
        self._kind = kind
        self._instance = instance
        self._python = python
        self._monotonic = monotonic
        self._child = BoundedChild()
        self._patience = EpermPatience()

    @property
    def stuck(self) -> bool:
        """Whether a child that cannot be ended is still there."""
        return self._child.stuck

    @property
    def pids(self) -> tuple[int, ...]:
        """The children that are there, those of an earlier run included."""
        return self._child.pids

    async def probe(self, fd: int, *, budget: float = 2.0) -> ProbeVerdict:
        """Probe the node behind an O_PATH descriptor, which stays the caller's, within `budget` seconds (R9 to R13).

        Cancelling the caller ends the child and gives no verdict; the next probe waits for its end within its own budget (R14).
        """
        argv = (self._python, "-I", "-S", "-E", PROBE_PROGRAM, self._kind, str(fd), self._instance)
        result = await self._child.run(argv, budget=budget, pass_fds=(fd,))
        self._patience, verdict = self._patience.judge(interpret(self._kind, result), self._monotonic())
        return verdict

    def find_leftovers(self, proc: str = "/proc") -> tuple[int, ...]:
        """Return the probe children of this device that an earlier run of this daemon left behind, sorted."""
        mine = {os.getpid(), *self._child.pids}
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdecimal() and name.isascii())
        return tuple(pid for pid in pids if pid not in mine and self._is_leftover(proc, pid))

    def adopt_leftovers(self, proc: str = "/proc") -> tuple[int, ...]:
        """Let every leftover count as the outstanding child until it is gone (R12), and return their pids. Needs the running loop."""
        return tuple(
            pid for pid in self.find_leftovers(proc) if self._child.adopt(pid, confirm=functools.partial(self._is_leftover, proc, pid))
        )

    def close(self) -> None:
        """End what can be ended, waiting for it briefly. A probe in progress is cancelled."""
        self._child.close()

    def _is_leftover(self, proc: str, pid: int) -> bool:
        """Tell whether a process of our user in our cgroup is a probe child of this device and instance.

        The command line is read last: reading it takes a lock of the process, which a stranger in a bad state may hold for ever. One
        that hangs in its exit has no command line any more, only its name.
        """
        try:
            if os.stat(f"{proc}/{pid}").st_uid != os.geteuid() or _tracking_cgroups(proc, str(pid)) != _tracking_cgroups(proc, "self"):
                return False
            arguments = _read(f"{proc}/{pid}/cmdline").split("\0")[:-1]
            if not arguments:
                before, _, after = _read(f"{proc}/{pid}/stat").rpartition(")")
                return before.partition("(")[2] == PROBE_NAME_PREFIX + self._kind and after.split()[0] not in _ENDED
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False
        match arguments:
            case [_, "-I", "-S", "-E", program, kind, descriptor, instance]:
                return (program, kind, instance) == (PROBE_PROGRAM, self._kind, self._instance) and descriptor.isdecimal()
            case _:
                return False


def _parse(kind: DeviceKind, result: ChildResult) -> _Report | None:
    """Return the child's report, None where it is not exactly what the probe of this kind writes."""
    if result.exit_code != 0:
        return None
    try:
        data = json.loads(result.stdout)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or set(data) != {"stage", "errno", "api"}:
        return None
    stage, error, api = data["stage"], data["errno"], data["api"]
    if not isinstance(stage, str) or stage not in _STAGES[kind] or not _is_number_or_none(error) or not _is_number_or_none(api):
        return None
    if stage == "done" and (error is not None or api != (KVM_API_VERSION if kind is DeviceKind.KVM else None)):
        return None
    # Only two stages end without an error: another node, and another API version.
    if stage not in {"done", "identity"} and error is None and not (stage == "api" and api not in {None, KVM_API_VERSION}):
        return None
    return _Report(stage, error, api)


def _is_number_or_none(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _error_text(number: int | None) -> str:
    return errno.errorcode.get(number or 0, f"error {number}")


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _last_words(stderr: bytes) -> str:
    """Return the last line of stderr as printable text of bounded length, with a separator before it."""
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return ": " + "".join(filter(str.isprintable, lines[-1]))[:200] if lines else ""


def _tracking_cgroups(proc: str, process: str) -> frozenset[str]:
    """Return where a process stands in the hierarchies that track processes: version 2 and the named one of systemd (cgroups(7)).

    Resource controllers of version 1 are left out, since an administrator may move single processes there; they stand in where a host
    has nothing else.
    """
    lines = _read(f"{proc}/{process}/cgroup").splitlines()
    return frozenset(line for line in lines if line.startswith("0::") or ":name=" in line.partition("/")[0]) or frozenset(lines)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
