"""Destroys one vNPU: the expected one and no other, that nobody uses, once, and says what became of it.

Everything about it is looked at twice, before and after the scan of the host's processes, which takes a while; whatever differs from what
was expected, or is not known, ends it before the library is called. The driver refuses a vNPU that a container has open, which covers the
moment between the last look and the call; a privileged container's use it does not see, the scan does.
"""

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from devward.cluster.evidence import DeviceNumber, Finding
from devward.npu.codes import DcmiCode, sentence
from devward.npu.facts import Chip, Expected, Mode, Node, Outcome, Refusal, Refused, Vnpu
from devward.npu.numbering import WILDCARD, vfid_of, window
from devward.npu.protocol import DestroyAnswer, DestroyRequest, answer_text
from devward.npu.survey import listed_vdevs, read_chip, read_mode
from devward.npu.vendor import DcmiError, Vendor

DEVICE_DIRECTORY: Final = "/dev"
#: How often a lock is asked for that somebody has, and for how many seconds each time is put off.
LOCK_TRIES: Final = 5
LOCK_PAUSE: Final = 0.01


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Whether a vNPU is held, by the host's processes and containers, and what shows it."""

    finding: Finding
    text: str


class Scan(Protocol):
    """Looks for users of a vNPU on the host."""

    def __call__(self, vdev: int, number: DeviceNumber, runtime: str) -> ScanResult:
        """Scan now, for one vNPU and the number of its node; `runtime` is the Node's container runtime, with its version."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is there where the expected vNPU should be."""

    boot_id: str
    chip: Chip | None
    mode: Mode
    node: Node


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a destruction needs besides the library."""

    boot_id: Callable[[], str]
    #: Device number and times of /dev/vdavinciN, which is never opened. Refused.
    node: Callable[[int], Node]
    scan: Scan
    #: Told what may hang next, apart from calls of the library.
    step: Callable[[str], None]
    #: Held from before the first look until after the last. Refused: another process destroys.
    lock: Callable[[], contextlib.AbstractContextManager[None]]
    #: Whether the caller still waits. Refused.
    require_wanted: Callable[[], None]
    #: Around the one call: nobody ends this process meanwhile. Refused: it is being ended.
    call: Callable[[], contextlib.AbstractContextManager[None]]
    #: Told what the library returned, before anything else.
    called: Callable[[int], None]


def destroy(vendor: Vendor, request: DestroyRequest, around: Surroundings) -> DestroyAnswer:
    """Destroy the expected vNPU. Refused: the library was not called. DcmiError: it was not called to destroy."""
    expected = request.expected
    require_own_id(expected.phy, expected.vdev)
    with around.lock():
        _require_same(vendor, expected, around)
        _require_unused(request, around)
        _require_same(vendor, expected, around)
        around.require_wanted()
        with around.call():
            code = vendor.destroy(expected.card, expected.device, expected.vdev)
        around.called(code)
        outcome = _outcome(vendor, expected, around)
    return DestroyAnswer(request.id, outcome, code, answer_text(describe(outcome, code)))


def describe(outcome: Outcome, code: int) -> str:
    """Return a sentence about a call, without its subject."""
    said = f"the library says: {sentence(code)}"
    if outcome is Outcome.DESTROYED:
        return "it is not listed any more" if code == DcmiCode.OK else f"it is not listed any more, although {said}"
    if outcome is Outcome.STILL_PRESENT:
        return f"it is still listed; {said}"
    return f"it is not known whether it is still there; {said}"


def require_own_id(phy: int, vdev: int) -> None:
    """Refused: the id is not of the window of the chip with this physical id. Pure."""
    if vdev == WILDCARD:
        raise Refused(Refusal.WILDCARD, f"the id {vdev} stands for every vNPU of a chip")
    if vdev not in window(phy):
        raise Refused(Refusal.OUTSIDE_WINDOW, f"the id {vdev} cannot be a vNPU of the chip with the physical id {phy}")


def require_same(expected: Expected, seen: Seen) -> None:
    """Refused: what is there is not exactly the expected vNPU, idle, on a healthy chip whose ids make sense. Pure."""
    if seen.boot_id != expected.boot_id:
        raise Refused(Refusal.BOOT_DIFFERS, "the host was booted again since that vNPU was seen")
    chip = seen.chip
    if chip is None:
        raise Refused(Refusal.NO_SUCH_CHIP, f"device {expected.device} of card {expected.card} is not an NPU")
    _require_chip(expected, chip)
    if seen.mode is Mode.VM:
        raise Refused(Refusal.VM_MODE, "vNPUs of this host are made for virtual machines")
    if seen.mode is not Mode.DOCKER:
        raise Refused(Refusal.MODE_UNKNOWN, "it is not known whether vNPUs of this host are made for virtual machines")
    vnpu = next((one for one in chip.vnpus or () if one.vdev == expected.vdev), None)
    if vnpu is None:
        raise Refused(Refusal.VNPU_ABSENT, f"the chip has no vNPU {expected.vdev}")
    _require_vnpu(expected, vnpu)
    if seen.node != expected.node:
        raise Refused(
            Refusal.NODE_DIFFERS, f"the device node of vNPU {expected.vdev} is not the one that was seen: it was made or changed again"
        )


def _require_chip(expected: Expected, chip: Chip) -> None:
    if any(problem.vdev is None for problem in chip.problems):
        what = ", ".join(sorted({problem.aspect for problem in chip.problems if problem.vdev is None}))
        raise Refused(Refusal.CHIP_UNKNOWN, f"not all is known of the chip: {what}")
    if chip.phy != expected.phy:
        raise Refused(Refusal.PHY_DIFFERS, f"the chip has the physical id {chip.phy} and not {expected.phy}")
    if chip.die != expected.die:
        raise Refused(Refusal.DIE_DIFFERS, f"the chip has the die id {chip.die} and not {expected.die}")
    if chip.health != 0:
        raise Refused(Refusal.CHIP_UNHEALTHY, f"the chip is not healthy: {chip.health}")
    if chip.vnpus is None:
        raise Refused(Refusal.CHIP_UNKNOWN, "the vNPUs of the chip cannot be listed")
    vdevs = [vnpu.vdev for vnpu in chip.vnpus]
    if len(set(vdevs)) != len(vdevs):
        raise Refused(Refusal.CHIP_UNKNOWN, "the chip lists a vNPU twice")
    for vdev in vdevs:
        # A chip that numbers otherwise than is known here: what its ids mean is not known either.
        require_own_id(chip.phy, vdev)


def _require_vnpu(expected: Expected, vnpu: Vnpu) -> None:
    if vnpu.vfid != expected.vfid or vnpu.vfid != vfid_of(vnpu.vdev):
        raise Refused(Refusal.VFID_DIFFERS, f"vNPU {vnpu.vdev} has the function {vnpu.vfid} and not {expected.vfid}")
    if vnpu.template != expected.template:
        raise Refused(Refusal.TEMPLATE_DIFFERS, f"vNPU {vnpu.vdev} has the template {vnpu.template} and not {expected.template}")
    if vnpu.in_use is None:
        raise Refused(Refusal.USE_UNKNOWN, f"the driver does not say whether vNPU {vnpu.vdev} is in use")
    if vnpu.in_use:
        raise Refused(Refusal.IN_USE, f"the driver says that vNPU {vnpu.vdev} is in use")


def _require_same(vendor: Vendor, expected: Expected, around: Surroundings) -> None:
    """Look, and compare. Refused, DcmiError."""
    seen = Seen(
        boot_id=around.boot_id(),
        chip=read_chip(vendor, expected.card, expected.device),
        mode=read_mode(vendor),
        node=around.node(expected.vdev),
    )
    require_same(expected, seen)


def _require_unused(request: DestroyRequest, around: Surroundings) -> None:
    expected = request.expected
    around.step("the scan of the host's processes and containers")
    result = around.scan(expected.vdev, DeviceNumber(expected.node.major, expected.node.minor), request.runtime)
    if result.finding is Finding.HELD:
        raise Refused(Refusal.SCAN_IN_USE, f"vNPU {expected.vdev} is held: {result.text}")
    if result.finding is not Finding.CLEAN:
        raise Refused(Refusal.SCAN_UNKNOWN, f"it is not known whether vNPU {expected.vdev} is held: {result.text}")


def _outcome(vendor: Vendor, expected: Expected, around: Surroundings) -> Outcome:
    """List again, and say by that what became of the vNPU. Whatever goes wrong here leaves it unknown."""
    try:
        vdevs = listed_vdevs(vendor, expected.card, expected.device)
        if vdevs is None:
            return Outcome.UNKNOWN
        if expected.vdev not in vdevs:
            return Outcome.DESTROYED
        # The id may be another vNPU's by now: the driver gives the lowest free one.
        return Outcome.STILL_PRESENT if around.node(expected.vdev) == expected.node else Outcome.UNKNOWN
    except (DcmiError, Refused):
        return Outcome.UNKNOWN


def read_node(vdev: int, directory: str = DEVICE_DIRECTORY) -> Node:
    """Return what /dev/vdavinciN is, without opening it, which the driver would take for use. Refused."""
    path = os.path.join(directory, f"vdavinci{vdev}")
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        raise Refused(Refusal.NODE_MISSING, f"there is no {path}") from None
    except OSError as error:
        raise Refused(Refusal.NODE_UNREADABLE, f"{path} cannot be examined: {error.strerror}") from error
    if not stat.S_ISCHR(found.st_mode):
        raise Refused(Refusal.NODE_DIFFERS, f"{path} is not a character device")
    return Node(inode=found.st_ino, ctime_ns=found.st_ctime_ns, major=os.major(found.st_rdev), minor=os.minor(found.st_rdev))


def _take_lock(descriptor: int) -> None:
    """Take the lock, also where the daemon is just looking whether anybody has it. OSError."""
    for _ in range(LOCK_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(LOCK_PAUSE)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def destroy_lock(path: str) -> Iterator[None]:
    """Hold the lock that one process of the host can hold; it goes with the process, however that ends. Refused: another has it.

    A broker that hangs in a destroy beyond the reach of signals holds it until the kernel lets the process go.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise Refused(Refusal.LOCK_UNUSABLE, f"{path} cannot be opened: {error.strerror}") from error
    try:
        _take_lock(descriptor)
    except BlockingIOError:
        raise Refused(Refusal.DESTROY_RUNNING, "another broker is still destroying a vNPU") from None
    except OSError as error:
        raise Refused(Refusal.LOCK_UNUSABLE, f"{path} cannot be locked: {error.strerror}") from error
    else:
        yield
    finally:
        os.close(descriptor)
