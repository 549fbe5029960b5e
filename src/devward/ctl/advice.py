"""What each reason code means for containers, and what to do about it: the knowledge behind `devwardctl explain`. Pure.

FILE and DEVICE stand for the path that is asked about; they stand in commands only, and are quoted for the shell. devward notices by
itself what an administrator mends, so no step says to tell it.
"""

import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from devward.ctl.advice_npu import NPU_ADVICE
from devward.ctl.step import Advice, Step
from devward.model import RepairCause
from devward.reasons import Reason
from devward.text import printable

__all__ = ["ADVICE", "CAUSES", "NOT_SAVED", "Advice", "Step", "advice", "cause", "deed", "quoted_path"]

#: Of a change that an administrator asked for.
NOT_SAVED: Final = "It is in force, but could not be saved and is lost at a restart."


def _step(text: str, *commands: str) -> Step:
    return Step(text, commands)


_REFUSED: Final = (
    "devward does not vouch for the device and refuses it to whoever asks. A new container that gets it all the same cannot start a"
    " virtual machine. Containers that run keep what they have."
)
_WITHDRAWN: Final = (
    "devward does not vouch for the device and refuses it to whoever asks. After a settling time the device leaves its CDI file, and"
    " container engines then refuse new containers that ask for it (unresolvable CDI devices). Containers that run keep what they have."
)
_UNTRUE: Final = (
    "Container engines may give new containers no device, or another one than the file should name. devward refuses the device to whoever"
    " asks. Containers that run are not affected."
)
_UNRESOLVED: Final = (
    "Container engines cannot use the device by its CDI name, and refuse new containers that ask for it."
    " Containers that run are not affected."
)
_SKIPPED: Final = "Container engines do not get the devices that this file defines. Those that devward keeps are judged on their own."
_NO_EFFECT: Final = "Containers are not affected."
_UNCLEAR: Final = "devward refuses the device until it knows better. Containers that run are not affected."

_WHO: Final = _step(
    "Find out who put it there: a container that has the host's /dev mounted can do that. An audit watch names the process.",
    "auditctl -w DEVICE -p wa -k devward",
    "ausearch -k devward -i",
)
_ANEW: Final = _step(
    "Let the kernel make the node anew: with no virtual machine running, unload and load the module (kvm_amd on AMD), or reboot.",
    "modprobe -r kvm_intel kvm",
    "modprobe kvm_intel",
)
_LOAD: Final = _step(
    "See whether the module is loaded, and load it: kvm_intel, kvm_amd or mshv_root.", "lsmod | grep -e kvm -e mshv", "modprobe kvm_intel"
)
_KERNEL: Final = _step("See what the kernel says.", "journalctl -k -g 'kvm|mshv'")
_WRITER: Final = _step(
    "Find the other writer: another CDI generator, configuration management, a container with /etc/cdi mounted. An audit watch names it.",
    "auditctl -w FILE -p wa -k devward",
    "ausearch -k devward -i",
)
_REPAIR: Final = _step(
    "devward repairs it by itself, unless repairs are paused or off. To see that, and to have it done now:",
    "devwardctl status",
    "devwardctl repair",
)
_FINDINGS: Final = _step("See which entry it is.", "devwardctl findings")
_DENIED: Final = _step("See whether a security module denied it.", "journalctl -k -g denied", "ausearch -m avc -ts recent")
_COVERED: Final = _step("See what is mounted there, and unmount it once it is clear who mounted it.", "findmnt DEVICE", "umount DEVICE")
_REPORT: Final = _step("If it stays, collect what is needed to find it.", "devwardctl report")
_DISK: Final = _step("See what the kernel says about the disk.", "journalctl -k -p err")

ADVICE: Final[Mapping[Reason, Advice]] = MappingProxyType(
    {
        Reason.OK: Advice("New containers can be given the device.", (_step("Nothing needs to be done."),)),
        Reason.NOT_CHECKED: Advice(
            _UNCLEAR, (_step("Wait a few seconds for the first check, or have one made now.", "devwardctl rescan"),)
        ),
        # identity
        Reason.DEVICE_MISSING: Advice(
            _WITHDRAWN,
            (
                _LOAD,
                _step(
                    "See whether the CPU offers virtualization; 0 means that the firmware has it off.", "grep -E -c 'vmx|svm' /proc/cpuinfo"
                ),
                _step("In a virtual machine, see whether its host offers nested virtualization."),
                _KERNEL,
            ),
        ),
        Reason.DEVICE_SYMLINK: Advice(
            _WITHDRAWN, (_step("See where the link leads.", "ls -l DEVICE"), _WHO, _step("Remove the link."), _ANEW)
        ),
        Reason.DEVICE_NOT_CHAR: Advice(_WITHDRAWN, (_step("See what stands there.", "stat DEVICE"), _WHO, _step("Remove it."), _ANEW)),
        Reason.DEVICE_NUMBER_MISMATCH: Advice(
            "The node leads to another device than its name says: whoever opens it does not get the hypervisor. " + _WITHDRAWN,
            (_step("Compare the numbers.", "stat -c %Hr:%Lr DEVICE", "grep . /sys/class/misc/*/dev"), _WHO, _ANEW),
        ),
        Reason.DEVICE_NO_DRIVER: Advice(_WITHDRAWN, (_LOAD, _KERNEL)),
        Reason.DEVICE_COVERED: Advice(_WITHDRAWN, (_COVERED,)),
        Reason.DEVICE_CHANGED: Advice(
            _UNCLEAR, (_step("devward checks again by itself. If it comes back, somebody keeps replacing the node."), _WHO)
        ),
        Reason.DEVICE_UNREADABLE: Advice(
            _UNCLEAR,
            (
                _step("See whether the directories can be read.", "ls -ld /dev /sys/class/misc"),
                _step("See whether a drop-in of the unit hides them: PrivateDevices= must be off.", "systemctl cat devward.service"),
            ),
        ),
        # usability
        Reason.PERMISSION_DENIED: Advice(
            _REFUSED,
            (
                _step("See mode, owner and ACL of the node.", "ls -l DEVICE", "getfacl DEVICE"),
                _step("See whether its file system is mounted with nodev.", "findmnt -T DEVICE"),
            ),
        ),
        Reason.DEVICE_CGROUP_DENIED: Advice(
            _REFUSED,
            (
                _step(
                    "See whether the unit may open it.", "systemctl show -p DevicePolicy -p DeviceAllow -p PrivateDevices devward.service"
                ),
                _DENIED,
            ),
        ),
        Reason.DEVICE_STALE_MAJOR: Advice(_REFUSED, (_LOAD, _ANEW)),
        Reason.NOT_A_HYPERVISOR: Advice(
            "Something else stands behind the node: whoever opens it does not get the hypervisor. " + _REFUSED, (_COVERED, _WHO, _ANEW)
        ),
        Reason.API_VERSION: Advice(
            _REFUSED, (_step("Linux has had version 12 since 2007: what answers is not the kernel's own driver."), _KERNEL, _ANEW)
        ),
        Reason.HYPERVISOR_BUSY: Advice(
            _REFUSED,
            (
                _step("See whether another hypervisor is loaded. Stop it, or unload its module.", "lsmod | grep -e vbox -e vmmon"),
                _KERNEL,
                _step("While the system shuts down this is as it should be."),
            ),
        ),
        Reason.CPU_ENABLE_FAILED: Advice(
            _REFUSED,
            (_KERNEL, _step("Usually the firmware has virtualization off on some CPU: turn it on and reboot, or update the firmware.")),
        ),
        Reason.MACHINE_TYPE: Advice(_REFUSED, (_KERNEL, _REPORT)),
        Reason.PROBE_FAILED: Advice(_REFUSED, (_step("The sentence above holds the error that came."), _KERNEL, _REPORT)),
        Reason.PROBE_TIMEOUT: Advice(
            _REFUSED,
            (
                _step("See whether the host is overloaded.", "uptime", "cat /proc/pressure/cpu"),
                _KERNEL,
                _step("devward tries again by itself. To have it tried now:", "devwardctl rescan"),
            ),
        ),
        Reason.HELPER_STUCK: Advice(
            "Any process that opens the device hangs in the same way, and cannot be ended. devward refuses the device to whoever asks.",
            (
                _step("Drain the node."),
                _step(
                    "See where it hangs, with the stack of each such process.",
                    "ps -eo pid,stat,wchan:32,args | grep ' D'",
                    "cat /proc/PID/stack",
                ),
                _step("A reboot is usually the only way out."),
            ),
        ),
        Reason.PROBE_INCONCLUSIVE: Advice(
            _NO_EFFECT + " The result of the last complete check stands, and the check is made again.",
            (_step("If it stays, see the host's memory and the unit's limits.", "free -m", "systemctl status devward.service"),),
        ),
        # CDI files
        Reason.CDI_MISSING: Advice(_UNRESOLVED, (_REPAIR,)),
        Reason.CDI_MALFORMED: Advice(_UNRESOLVED, (_REPAIR,)),
        Reason.CDI_STALE: Advice(_UNTRUE, (_REPAIR,)),
        Reason.CDI_METADATA: Advice(_UNTRUE, (_REPAIR,)),
        Reason.CDI_NOT_REGULAR: Advice(
            _UNRESOLVED,
            (
                _step("See what stands there.", "ls -ld FILE"),
                _step("Move it away, once it is clear who put it there. devward then writes its file by itself."),
            ),
        ),
        Reason.CDI_FOREIGN: Advice(
            _UNRESOLVED,
            (
                _step("See whose file it is. If it is needed, move it to another name.", "cat FILE"),
                _step("If not, let devward take its place; it keeps a copy in /var/lib/devward/backup.", "devwardctl adopt FILE"),
            ),
        ),
        Reason.CDI_CONFLICT: Advice(
            "devward leaves the device out of its own file, so that the other file's definition works: containers get the device by that"
            " one, and devward does not vouch for it.",
            (_step("See which file it is, and remove one of the two definitions.", "devwardctl findings"),),
        ),
        Reason.CDI_SHADOWED: Advice(
            "Containers get the device by the other file's definition. devward does not vouch for that one and refuses the device.",
            (_step("See which file it is, and remove it, or the device from it, if it is not wanted.", "devwardctl findings"),),
        ),
        Reason.CDI_CONTESTED: Advice(
            "In between container engines may read a wrong file. A request for the device still has the file repaired at once.",
            (_WRITER, _step("Stop it, or give it another file. A minute of quiet ends this state.")),
        ),
        Reason.CDI_UNWRITABLE: Advice(
            _UNTRUE,
            (
                _step("See whose the directory is. It must be root's, and no other user's to write.", "ls -ld /etc/cdi"),
                _step("See whether the unit may write there.", "systemctl show -p ReadWritePaths -p ProtectSystem devward.service"),
            ),
        ),
        Reason.CDI_READ_ONLY: Advice(
            _UNTRUE,
            (
                _step("See how it is mounted, and mount it for writing.", "findmnt -T FILE"),
                _step("Or name another directory in cdi.directory and cdi.engine_dirs, and in the engine's own configuration."),
            ),
        ),
        Reason.CDI_NO_SPACE: Advice(_UNTRUE, (_step("See what is full, and make room.", "df -h FILE", "df -i FILE"),)),
        Reason.CDI_IO_ERROR: Advice(_UNTRUE, (_DISK, _step("Take the node out of service if the disk fails."))),
        Reason.CDI_IMMUTABLE: Advice(
            _UNTRUE,
            (
                _step(
                    "See its attributes and those of its directory, and take i off if it is not wanted.", "lsattr -d FILE", "chattr -i FILE"
                ),
                _DENIED,
            ),
        ),
        Reason.CDI_TIMEOUT: Advice(
            _UNTRUE,
            (
                _step("See whether the file system hangs, and which one it is.", "ls -l FILE", "findmnt -T FILE"),
                _step("See what the kernel says.", "journalctl -k -g 'blocked for more than|I/O error'"),
            ),
        ),
        Reason.CDI_DIRECTORY_LINK: Advice(
            _UNTRUE,
            (
                _step("See what it is, and make it a directory.", "ls -ld /etc/cdi"),
                _step("Or name the directory that is meant in cdi.directory of devward.toml."),
            ),
        ),
        Reason.CDI_DIRECTORY_NOT_READ: Advice(
            "Container engines never look where devward writes, so no container gets the device by its CDI name.",
            (
                _step(
                    "Compare cdi.directory and cdi.engine_dirs with cdi_spec_dirs of the engine (containerd, CRI-O).", "devwardctl config"
                ),
            ),
        ),
        Reason.CDI_PAUSED: Advice(
            "Containers are given what the file says, true or not. devward refuses the device to whoever asks while the file is not true.",
            (_step("End the pause, or switch repairs on.", "devwardctl resume cdi", "devwardctl mode cdi repair"),),
        ),
        Reason.CDI_NOT_PUBLISHED: Advice(
            _UNRESOLVED,
            (_step("See why it was left out, and since when.", "devwardctl status", "devwardctl history --event spec-withdraw"),),
        ),
        Reason.CDI_ENGINE_BLOCKED: Advice(
            "Container engines stop at that entry and do not see the files after it, devward's among them.",
            (_FINDINGS, _step("Remove or mend it.")),
        ),
        Reason.CDI_UNCERTAIN: Advice(
            "devward cannot tell whether container engines would use its definition or that file's, and does not vouch for the device.",
            (_FINDINGS, _step("Make the file readable and smaller than 1 MiB, or remove it.")),
        ),
        # foreign files in the engines' directories, and settings
        Reason.CDI_FILE_MALFORMED: Advice(_SKIPPED, (_step("Mend the file, or have the program that owns it write it anew."),)),
        Reason.CDI_FILE_UNREADABLE: Advice(_SKIPPED, (_step("See its mode, owner and attributes.", "ls -l FILE", "lsattr FILE"), _DISK)),
        Reason.CDI_FILE_SPECIAL: Advice(
            "A FIFO keeps container engines from starting any container that asks for a CDI device, for ever; other entries are skipped.",
            (_step("See what it is, and remove it.", "ls -ld FILE"),),
        ),
        Reason.CDI_DIRECTORY_UNREADABLE: Advice(
            "Container engines stop there and do not see the directories after it.",
            (_step("See its mode and owner, and make it readable.", "ls -ld FILE"),),
        ),
        Reason.CDI_DIRECTORY_WRITABLE: Advice(
            "Whoever may write there can give containers any device of the host.",
            (
                _step("See who may.", "ls -ld FILE", "getfacl FILE"),
                _step("Take it back.", "chown root:root FILE", "chmod 0755 FILE"),
            ),
        ),
        Reason.CDI_FILE_REMARK: Advice(
            _NO_EFFECT, (_step("Tell whoever makes the program that owns the file; nothing needs to be done here."),)
        ),
        Reason.CDI_DEVICE_DUPLICATE: Advice(
            "Container engines refuse new containers that ask for a device that two files of one directory define.",
            (_FINDINGS, _step("Remove one of the two definitions.")),
        ),
        Reason.NOT_WATCHED: Advice(
            "A change there is repaired or published up to a minute late; CheckAllocation looks at once, as always.",
            (
                _step("See how many inotify instances and watches root may have, and raise the limit.", "sysctl fs.inotify"),
                _step("devward tries again by itself."),
            ),
        ),
        Reason.DEVICE_DRIFT: Advice(
            "Workloads that do not run as root may lose, or gain, access to the device.",
            (
                _step(
                    "See what it is, and what is expected (hypervisor.expected_...).", "ls -l DEVICE", "getfacl DEVICE", "devwardctl config"
                ),
                _step("Mend the udev rule that sets them, or the expectation. devward only reports this."),
            ),
        ),
        Reason.CONFIG_REFUSED: Advice(
            _NO_EFFECT + " But a restart of devwardd would fail.",
            (_step("See what is wrong, mend it, and have it read again.", "devwardctl config --check", "devwardctl reload"),),
        ),
        Reason.CONFIG_FALLBACK: Advice(
            _NO_EFFECT, (_step("See which setting it is, mend it, and have it read again.", "devwardctl findings", "devwardctl reload"),)
        ),
        Reason.PLUGIN_MANY_SLOTS: Advice(
            _NO_EFFECT + " But each change of the device costs the kubelet more.",
            (_step("Set device_plugin.slots to what Pods of this host can need, and have it read again.", "devwardctl reload"),),
        ),
        Reason.METRICS_UNWRITABLE: Advice(
            _NO_EFFECT + " But Prometheus goes on reading the last metrics that were written, if any, whatever has happened since.",
            (
                _step("See what is against it.", "devwardctl findings", "devwardctl config"),
                _step(
                    "Where the file system is read-only, let the service write there: metrics.conf among the examples in devward's"
                    " documentation is a drop-in for that.",
                    "systemctl edit devward.service",
                    "systemctl restart devward.service",
                ),
                _step("Once metrics are off, remove a file that is left.", "rm FILE"),
            ),
        ),
        **NPU_ADVICE,
        # the daemon
        Reason.STARTING: Advice(_UNCLEAR, (_step("Wait a second. If it stays:", "systemctl status devward.service"),)),
        Reason.NO_USABLE_DEVICE: Advice(_REFUSED, (_step("See each device and file.", "devwardctl status"),)),
        Reason.DEADLINE: Advice(
            _UNCLEAR, (_step("Ask again. If it stays, something hangs.", "devwardctl status", "uptime", "journalctl -k -n 50"),)
        ),
    }
)

#: Why a file was written or removed, as half a sentence after its name.
CAUSES: Final[Mapping[RepairCause, str]] = MappingProxyType(
    {
        RepairCause.MISSING: "it was missing",
        RepairCause.MALFORMED: "it could not be parsed",
        RepairCause.STALE: "its content was not what the devices justify",
        RepairCause.MODE: "its mode was wrong",
        RepairCause.OWNER: "its owner was wrong",
        RepairCause.LABEL: "its security label was wrong",
        RepairCause.HARD_LINK: "it had a second name (hard link)",
        RepairCause.TAKE_OVER: "it was there before devward, and was taken over",
        RepairCause.ADOPTED: "an administrator had it taken over",
        RepairCause.WITHDRAWN: "no device justifies it any more",
        RepairCause.PUBLISHED: "the devices or the configuration have changed",
    }
)


def advice(reason: str, *, device: str = "DEVICE", file: str = "FILE") -> Advice:
    """Return the advice for a reason code, about this device and file; for a code that is not known here, how to find out."""
    try:
        found = ADVICE[Reason(reason)]
    except ValueError:
        return Advice(
            "This devwardctl is older than the daemon and does not know what that means for containers.",
            (_step("The sentence above is the daemon's own. Update devwardctl."),),
        )

    def named(command: str) -> str:
        return command.replace("DEVICE", quoted_path(device)).replace("FILE", quoted_path(file))

    return Advice(found.means, tuple(Step(step.text, tuple(map(named, step.commands))) for step in found.steps))


def quoted_path(path: str) -> str:
    """Return a path as it can be pasted into a shell, whatever who named it had in mind."""
    return shlex.quote(printable(path, 4096))


def deed(code: str) -> str:
    """Return what is done to a file for a cause."""
    deeds: dict[str, str] = {RepairCause.WITHDRAWN: "removed", RepairCause.PUBLISHED: "written"}
    return deeds.get(code, "repaired")


def cause(code: str) -> str:
    """Return why a file was written, as half a sentence; empty for a cause that is not known here."""
    try:
        return CAUSES[RepairCause(code)]
    except ValueError:
        return ""
