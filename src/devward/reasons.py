"""The stable codes of reasons, and a sentence for each. Pure: no I/O and no clock.

The codes are part of the D-Bus contract (dbus/*.xml lists them) and never change their meaning.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Reason(StrEnum):
    """Stable reason codes; REASON_TEXT has the sentence for each."""

    OK = ""
    NOT_CHECKED = "not-checked"
    # identity
    DEVICE_MISSING = "device-missing"
    DEVICE_SYMLINK = "device-symlink"
    DEVICE_NOT_CHAR = "device-not-char"
    DEVICE_NUMBER_MISMATCH = "device-number-mismatch"
    DEVICE_NO_DRIVER = "device-no-driver"
    DEVICE_COVERED = "device-covered"
    DEVICE_CHANGED = "device-changed"
    DEVICE_UNREADABLE = "device-unreadable"
    # usability
    PERMISSION_DENIED = "permission-denied"
    DEVICE_CGROUP_DENIED = "device-cgroup-denied"
    DEVICE_STALE_MAJOR = "device-stale-major"
    NOT_A_HYPERVISOR = "not-a-hypervisor"
    API_VERSION = "api-version"
    HYPERVISOR_BUSY = "hypervisor-busy"
    CPU_ENABLE_FAILED = "cpu-enable-failed"
    MACHINE_TYPE = "machine-type"
    PROBE_FAILED = "probe-failed"
    PROBE_TIMEOUT = "probe-timeout"
    HELPER_STUCK = "helper-stuck"
    PROBE_INCONCLUSIVE = "probe-inconclusive"
    # CDI files
    CDI_MISSING = "cdi-missing"
    CDI_MALFORMED = "cdi-malformed"
    CDI_STALE = "cdi-stale"
    CDI_METADATA = "cdi-metadata"
    CDI_NOT_REGULAR = "cdi-not-regular"
    CDI_FOREIGN = "cdi-foreign"
    CDI_CONFLICT = "cdi-conflict"
    CDI_SHADOWED = "cdi-shadowed"
    CDI_CONTESTED = "cdi-contested"
    CDI_UNWRITABLE = "cdi-unwritable"
    CDI_READ_ONLY = "cdi-read-only"
    CDI_NO_SPACE = "cdi-no-space"
    CDI_IO_ERROR = "cdi-io-error"
    CDI_IMMUTABLE = "cdi-immutable"
    CDI_TIMEOUT = "cdi-timeout"
    CDI_DIRECTORY_LINK = "cdi-directory-link"
    CDI_DIRECTORY_NOT_READ = "cdi-directory-not-read"
    CDI_PAUSED = "cdi-paused"
    CDI_NOT_PUBLISHED = "cdi-not-published"
    CDI_ENGINE_BLOCKED = "cdi-engine-blocked"
    CDI_UNCERTAIN = "cdi-uncertain"
    # foreign files in the engines' directories, and settings
    CDI_FILE_MALFORMED = "cdi-file-malformed"
    CDI_FILE_UNREADABLE = "cdi-file-unreadable"
    CDI_FILE_SPECIAL = "cdi-file-special"
    CDI_DIRECTORY_UNREADABLE = "cdi-directory-unreadable"
    CDI_DIRECTORY_WRITABLE = "cdi-directory-writable"
    CDI_FILE_REMARK = "cdi-file-remark"
    CDI_DEVICE_DUPLICATE = "cdi-device-duplicate"
    DEVICE_DRIFT = "device-drift"
    NOT_WATCHED = "not-watched"
    CONFIG_REFUSED = "config-refused"
    CONFIG_FALLBACK = "config-fallback"
    PLUGIN_MANY_SLOTS = "plugin-many-slots"
    METRICS_UNWRITABLE = "metrics-unwritable"
    # NPUs and vNPUs
    NPU_BROKER_UNREACHABLE = "npu-broker-unreachable"
    NPU_BROKER_SILENT = "npu-broker-silent"
    NPU_BROKER_GARBLED = "npu-broker-garbled"
    NPU_BROKER_CONFINED = "npu-broker-confined"
    NPU_LIBRARY_UNUSABLE = "npu-library-unusable"
    NPU_DRIVER_FAILED = "npu-driver-failed"
    NPU_LIST_INCOMPLETE = "npu-list-incomplete"
    NPU_MODE_UNKNOWN = "npu-mode-unknown"
    NPU_ANSWER_ODD = "npu-answer-odd"
    NPU_UNREADABLE = "npu-unreadable"
    NPU_NOT_READY = "npu-not-ready"
    NPU_ID_UNKNOWN = "npu-id-unknown"
    NPU_ID_SHARED = "npu-id-shared"
    NPU_DIE_UNKNOWN = "npu-die-unknown"
    NPU_DIE_SHARED = "npu-die-shared"
    NPU_DIE_CHANGED = "npu-die-changed"
    NPU_HEALTH_UNKNOWN = "npu-health-unknown"
    NPU_UNHEALTHY = "npu-unhealthy"
    NPU_VNPUS_UNKNOWN = "npu-vnpus-unknown"
    NPU_WINDOW = "npu-window"
    NPU_NODES_UNREADABLE = "npu-nodes-unreadable"
    NPU_NODE_MISSING = "npu-node-missing"
    NPU_NODE_MISMATCH = "npu-node-mismatch"
    NPU_NODE_UNMATCHED = "npu-node-unmatched"
    NPU_SHARED_NODE_MISSING = "npu-shared-node-missing"
    NPU_MOUNTS_UNREADABLE = "npu-mounts-unreadable"
    NPU_DIVIDED = "npu-divided"
    VNPU_ID_SHARED = "vnpu-id-shared"
    VNPU_FUNCTION_MISMATCH = "vnpu-function-mismatch"
    VNPU_TEMPLATE_UNKNOWN = "vnpu-template-unknown"
    VNPU_USE_UNKNOWN = "vnpu-use-unknown"
    VNPU_IN_USE = "vnpu-in-use"
    VNPU_CLAIMS_UNKNOWN = "vnpu-claims-unknown"
    VNPU_NPU_CLAIMED = "vnpu-npu-claimed"
    VNPU_NOT_RECORDED = "vnpu-not-recorded"
    VNPU_RECORD_UNMATCHED = "vnpu-record-unmatched"
    VNPU_RECORDS_UNREADABLE = "vnpu-records-unreadable"
    OWNERS_UNKNOWN = "owners-unknown"
    OWNERS_NOT_KEPT = "owners-not-kept"
    CLUSTER_CERTIFICATE = "cluster-certificate"
    MASS_RECLAIM = "mass-reclaim"
    RECLAIM_BLOCKED = "reclaim-blocked"
    PIN_UNMATCHED = "pin-unmatched"
    PIN_OTHER_IDENTITY = "pin-other-identity"
    VNPU_DESTROYED = "vnpu-destroyed"
    DESTRUCTION_BEGUN = "destruction-begun"
    # the daemon
    STARTING = "starting"
    NO_USABLE_DEVICE = "no-usable-device"
    DEADLINE = "deadline"


REASON_TEXT: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.OK: "",
        Reason.NOT_CHECKED: "No check has completed yet.",
        Reason.DEVICE_MISSING: "The device node does not exist: the kernel module is not loaded, the CPU has no support,"
        " or nested virtualization is off.",
        Reason.DEVICE_SYMLINK: "The device path is a symbolic link; a device node was expected there.",
        Reason.DEVICE_NOT_CHAR: "The path is not a character device.",
        Reason.DEVICE_NUMBER_MISMATCH: "The node's device number is not the one that the kernel gives this device.",
        Reason.DEVICE_NO_DRIVER: "The node exists, but no driver stands behind it: the kernel module is not loaded.",
        Reason.DEVICE_COVERED: "Something else is mounted over the device node.",
        Reason.DEVICE_CHANGED: "The node was replaced while it was being checked.",
        Reason.DEVICE_UNREADABLE: "The device directory or the kernel's record of the device cannot be read.",
        Reason.PERMISSION_DENIED: "Opening the device was denied by its mode, its ACL or a nodev mount.",
        Reason.DEVICE_CGROUP_DENIED: "Opening the device was denied by a device cgroup or a security module.",
        Reason.DEVICE_STALE_MAJOR: "The node's major number belongs to no driver: the node is stale.",
        Reason.NOT_A_HYPERVISOR: "The device does not answer as a hypervisor does.",
        Reason.API_VERSION: "The device answers with an API version other than 12.",
        Reason.HYPERVISOR_BUSY: "Another hypervisor holds the CPU's virtualization, or the system is shutting down.",
        Reason.CPU_ENABLE_FAILED: "The kernel could not enable virtualization on every CPU.",
        Reason.MACHINE_TYPE: "The kernel refused the machine type of an empty virtual machine.",
        Reason.PROBE_FAILED: "The check of the device ended with an error that has no name of its own.",
        Reason.PROBE_TIMEOUT: "The device did not answer within the check's two seconds.",
        Reason.HELPER_STUCK: "The process that checks the device cannot be ended: the driver holds it in the kernel.",
        Reason.PROBE_INCONCLUSIVE: "The check could not be completed for want of a local resource; the last result stands.",
        Reason.CDI_MISSING: "The CDI file is missing.",
        Reason.CDI_MALFORMED: "The CDI file cannot be parsed.",
        Reason.CDI_STALE: "The CDI file's content differs from what the devices justify.",
        Reason.CDI_METADATA: "The CDI file's mode, owner, label or link count is wrong.",
        Reason.CDI_NOT_REGULAR: "Something that is not a regular file stands at the CDI file's path; it is left alone: remove it.",
        Reason.CDI_FOREIGN: "A file of another CDI kind stands at the path; it is left alone until AdoptSpec.",
        Reason.CDI_CONFLICT: "Another file in the same directory defines the same device, which makes both unusable.",
        Reason.CDI_SHADOWED: "A directory of higher priority defines the same device, and container engines use that definition.",
        Reason.CDI_CONTESTED: "Something else keeps changing the CDI file; repairs are spaced out.",
        Reason.CDI_UNWRITABLE: "The CDI directory cannot be written, or does not belong to root.",
        Reason.CDI_READ_ONLY: "The CDI directory is on a read-only file system.",
        Reason.CDI_NO_SPACE: "The file system of the CDI directory is full or over quota.",
        Reason.CDI_IO_ERROR: "Reading or writing the CDI directory ended with an input/output error.",
        Reason.CDI_IMMUTABLE: "The CDI file or its directory is immutable or protected by a security module.",
        Reason.CDI_TIMEOUT: "The file system of the CDI directory does not answer.",
        Reason.CDI_DIRECTORY_LINK: "The CDI directory is a symbolic link or not a directory; it is not followed.",
        Reason.CDI_DIRECTORY_NOT_READ: "The directory that devward writes is not among those that container engines read.",
        Reason.CDI_PAUSED: "Repairs are paused or switched off.",
        Reason.CDI_NOT_PUBLISHED: "The device is not in the CDI file.",
        Reason.CDI_ENGINE_BLOCKED: "A foreign entry keeps container engines from reading the CDI directories.",
        Reason.CDI_UNCERTAIN: "A file in the CDI directories could not be examined and may define the same device.",
        Reason.CDI_FILE_MALFORMED: "Container engines skip this file: it cannot be loaded.",
        Reason.CDI_FILE_UNREADABLE: "The file cannot be read.",
        Reason.CDI_FILE_SPECIAL: "An entry with the name of a CDI file is not a regular file; a FIFO blocks container engines for ever.",
        Reason.CDI_DIRECTORY_UNREADABLE: "The directory cannot be read; container engines stop there and skip the later ones.",
        Reason.CDI_DIRECTORY_WRITABLE: "Users other than root may change the directory.",
        Reason.CDI_FILE_REMARK: "The file loads, but holds something that a careful reader would not accept.",
        Reason.CDI_DEVICE_DUPLICATE: "Two files of one directory define the same device; container engines can use neither.",
        Reason.DEVICE_DRIFT: "Mode, owner or ACL of the device node differ from what is configured.",
        Reason.NOT_WATCHED: "Changes there give no event, for want of inotify watches; they are noticed once a minute.",
        Reason.CONFIG_REFUSED: "The configuration on disk is refused; the previous one stays in force.",
        Reason.CONFIG_FALLBACK: "A setting was out of range and its default is used instead.",
        Reason.PLUGIN_MANY_SLOTS: "The kubelet is offered more slots of a device than it can keep cheaply.",
        Reason.METRICS_UNWRITABLE: "The metrics file cannot be written, or, where it is no longer kept, not be removed.",
        Reason.NPU_BROKER_UNREACHABLE: "The broker of the vendor's library of NPUs cannot be asked, or ended without an answer.",
        Reason.NPU_BROKER_SILENT: "The broker of the vendor's library of NPUs does not answer in time.",
        Reason.NPU_BROKER_GARBLED: "The broker of the vendor's library of NPUs answers what cannot be, or in another version.",
        Reason.NPU_BROKER_CONFINED: "To the driver, the broker of the vendor's library of NPUs is not the host's administrator.",
        Reason.NPU_LIBRARY_UNUSABLE: "The vendor's library of NPUs is missing, not safe to load, or not one that devward can use.",
        Reason.NPU_DRIVER_FAILED: "The vendor's library cannot reach the driver, or cannot list the NPUs.",
        Reason.NPU_LIST_INCOMPLETE: "The list of NPUs is not complete, or changed while it was read.",
        Reason.NPU_MODE_UNKNOWN: "The driver does not say whether vNPUs are made for containers or for virtual machines.",
        Reason.NPU_ANSWER_ODD: "The vendor's library gives an answer that cannot be, about something on which nothing depends.",
        Reason.NPU_UNREADABLE: "The vendor's library does not say what kind of device this is.",
        Reason.NPU_NOT_READY: "The NPU is being reset, updated or started.",
        Reason.NPU_ID_UNKNOWN: "The physical id of the NPU cannot be learned, or does not lead back to it.",
        Reason.NPU_ID_SHARED: "Two NPUs claim the same physical id.",
        Reason.NPU_DIE_UNKNOWN: "The die id of the NPU cannot be read.",
        Reason.NPU_DIE_SHARED: "Two NPUs claim the same die id.",
        Reason.NPU_DIE_CHANGED: "The NPU is not the one that devward first saw there: it was swapped, moved or numbered anew.",
        Reason.NPU_HEALTH_UNKNOWN: "The health of the NPU cannot be learned.",
        Reason.NPU_UNHEALTHY: "The vendor's library calls the NPU unhealthy.",
        Reason.NPU_VNPUS_UNKNOWN: "The vNPUs of the NPU cannot be listed whole.",
        Reason.NPU_WINDOW: "The NPU lists vNPUs whose ids are not among the sixteen that follow from its physical id.",
        Reason.NPU_NODES_UNREADABLE: "The device nodes of NPUs, or the kernel's record of them, cannot be read.",
        Reason.NPU_NODE_MISSING: "There is no device node for something that the vendor's library lists.",
        Reason.NPU_NODE_MISMATCH: "The device node is not the one that the kernel made for this NPU or vNPU.",
        Reason.NPU_NODE_UNMATCHED: "There are device nodes of NPUs or vNPUs that the vendor's library does not list.",
        Reason.NPU_SHARED_NODE_MISSING: "A device node is missing that every container with an NPU needs.",
        Reason.NPU_MOUNTS_UNREADABLE: "A list of the files that containers with an NPU need cannot be read whole, or is not root's alone.",
        Reason.NPU_DIVIDED: "The NPU is divided into vNPUs, and cannot be given away as a whole.",
        Reason.VNPU_ID_SHARED: "Two NPUs list a vNPU of the same id.",
        Reason.VNPU_FUNCTION_MISMATCH: "The virtual function of the vNPU is not the one that its id stands for.",
        Reason.VNPU_TEMPLATE_UNKNOWN: "The template of the vNPU is not given, or is no template's name.",
        Reason.VNPU_USE_UNKNOWN: "The driver does not say whether the vNPU is in use.",
        Reason.VNPU_IN_USE: "The vNPU is in use, and cannot be given to another container.",
        Reason.VNPU_CLAIMS_UNKNOWN: "A kubelet runs on this host, and whether a Pod claims the vNPU's NPU is not known.",
        Reason.VNPU_NPU_CLAIMED: "A Pod claims the vNPU's NPU, which may be given to nobody else.",
        Reason.VNPU_NOT_RECORDED: "vNPUs have no line in /etc/vnpu.cfg: they are gone after a reboot.",
        Reason.VNPU_RECORD_UNMATCHED: "Lines of /etc/vnpu.cfg are of vNPUs that do not exist: the driver makes them at the next boot.",
        Reason.VNPU_RECORDS_UNREADABLE: "The file /etc/vnpu.cfg cannot be read whole.",
        Reason.OWNERS_UNKNOWN: "Who owns the vNPUs of this host cannot be told, and so every one of them counts as used.",
        Reason.OWNERS_NOT_KEPT: "Which Pods were seen with NPUs could not be saved, and would be forgotten at a restart of devwardd.",
        Reason.CLUSTER_CERTIFICATE: "The certificate with which the API server is asked expires soon, or has expired.",
        Reason.MASS_RECLAIM: "vNPUs on too many NPUs became eligible at a time; none is reclaimed until an administrator releases that.",
        Reason.RECLAIM_BLOCKED: "Reclaiming is stopped by a fault of this host or of devward, whatever is known of owners.",
        Reason.PIN_UNMATCHED: "The pin matches no NPU and no vNPU; it stays, for one that may come.",
        Reason.PIN_OTHER_IDENTITY: "The vNPU is not known to be the one that was pinned, as after a reboot: it is protected all the same,"
        " and must be pinned again to be offered.",
        Reason.VNPU_DESTROYED: "It, or a vNPU of it, was being destroyed when it was pinned, and is gone; the pin is in force"
        " for what is left.",
        Reason.DESTRUCTION_BEGUN: "It is in force, but a destruction had begun before, and what comes of that is not known.",
        Reason.STARTING: "The first pass over devices and files is not done yet.",
        Reason.NO_USABLE_DEVICE: "No device is healthy with a true CDI file.",
        Reason.DEADLINE: "The answer could not be established in time.",
    }
)
