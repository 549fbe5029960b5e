"""The probe child: asks one hypervisor device whether it works, writes one line about it, and exits.

Run by the daemon as ``python3 -I -S -E probe.py KIND FD INSTANCE``. FD is an O_PATH descriptor of the node that the daemon has
identified; INSTANCE is not used here: it marks the process, so that a daemon that starts again finds what it left behind. The line is
``{"stage": "...", "errno": N or null, "api": N or null}``: how far it came, the error that ended it, the KVM API version.

It is a process of its own because open, ioctl and close may hang in the driver beyond the reach of SIGKILL, and because it can then
give up every capability. It imports nothing of devward and little else: it is started for every check.
"""

import ctypes
import fcntl
import os
import resource
import stat
import sys

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
# linux/capability.h: version 3 takes 64 capabilities as two sets of 32
LINUX_CAPABILITY_VERSION_3 = 0x20080522
CAPABILITY_NUMBERS = 64

# linux/kvm.h; Documentation/virt/kvm/api.rst, sections 4.1, 4.2 and 4.4
KVM_GET_API_VERSION = 0xAE00
KVM_CREATE_VM = 0xAE01
KVM_CHECK_EXTENSION = 0xAE03
KVM_CAP_ARM_VM_IPA_SIZE = 165
KVM_API_VERSION = 12

EPERM, EINVAL, SIGKILL = 1, 22, 9


class Report:
    """How far the probe came."""

    def __init__(self) -> None:
        """Start before the first step."""
        self.stage = "setup"
        self.errno: int | None = None
        self.api: int | None = None

    def line(self) -> bytes:
        """Return the line for the daemon; written without `json`, whose import would cost more than the probe."""
        errno, api = ("null" if number is None else str(number) for number in (self.errno, self.api))
        return f'{{"stage": "{self.stage}", "errno": {errno}, "api": {api}}}\n'.encode()


def confine(kind: str) -> None:
    """Tie this process to the daemon's life and give up everything that a hypervisor device does not ask for. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(option: int, argument: int, name: bytes | None = None) -> None:
        value = ctypes.c_char_p(name) if name is not None else ctypes.c_ulong(argument)
        if libc.prctl(ctypes.c_int(option), value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
            raise OSError(ctypes.get_errno(), "prctl")

    # A daemon that died before this line leaves a child that ends by itself; one that hangs is found by the next daemon.
    prctl(PR_SET_PDEATHSIG, SIGKILL)
    # The name stays readable when the process hangs in its exit, where its command line is gone already.
    prctl(PR_SET_NAME, 0, b"devward-" + kind.encode())
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    # The bounding set first: leaving it takes CAP_SETPCAP, which goes with the others.
    for capability in range(CAPABILITY_NUMBERS):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            # EINVAL: beyond the last one that this kernel knows. EPERM: no CAP_SETPCAP; the set stays, and no_new_privs makes it
            # worthless.
            if error.errno in {EINVAL, EPERM}:
                break
            raise
    # The ambient set empties with these: it never holds what is not both permitted and inheritable (capabilities(7)).
    header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, twice
    if libc.capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def is_same_node(one: os.stat_result, other: os.stat_result) -> bool:
    """Tell whether two descriptors stand for one node with one device number."""
    return (one.st_dev, one.st_ino, one.st_rdev) == (other.st_dev, other.st_ino, other.st_rdev)


def machine_type(kvm: int, machine: str) -> int:
    """Return the machine type of an ordinary VM.

    0 everywhere but on arm64, where it stands for 40 bits of guest address space and fails on hosts that have less; the host's own
    limit always works there. Raises OSError.
    """
    if machine != "aarch64":
        return 0
    return max(0, fcntl.ioctl(kvm, KVM_CHECK_EXTENSION, KVM_CAP_ARM_VM_IPA_SIZE))


def probe(kind: str, descriptor: int, report: Report) -> None:
    """Go through the stages and leave in `report` where it ended. Raises OSError of the stage."""
    confine(kind)
    report.stage = "identity"
    identified = os.fstat(descriptor)
    if not stat.S_ISCHR(identified.st_mode):
        return
    report.stage = "open"
    device = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    report.stage = "identity"
    if not is_same_node(os.fstat(device), identified):
        return
    if kind == "kvm":
        report.stage = "api"
        report.api = fcntl.ioctl(device, KVM_GET_API_VERSION, 0)
        if report.api != KVM_API_VERSION:
            return
        report.stage = "ipa"
        kvm_type = machine_type(device, os.uname().machine)
        report.stage = "create"
        os.close(fcntl.ioctl(device, KVM_CREATE_VM, kvm_type))
    os.close(device)
    report.stage = "done"


def main(arguments: list[str]) -> int:
    """Probe, write the line, and return the exit code: 0 whenever there is a line."""
    kind, descriptor, _instance = arguments
    if kind not in {"kvm", "mshv"}:
        return 2
    report = Report()
    try:
        probe(kind, int(descriptor), report)
    except OSError as error:
        report.errno = error.errno
    os.write(1, report.line())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
