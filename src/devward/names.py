"""Every name that another program may rely on, each once.

Bus names and paths, interfaces, polkit actions, journal fields, message ids and file locations. Nothing here does I/O.
"""

import re
from typing import Final

# --- the bus -------------------------------------------------------------------------------------------------------
BUS_NAME: Final = "org.devward.Devward1"
ROOT_PATH: Final = "/org/devward/Devward1"
DEVICE_PATH_PREFIX: Final = ROOT_PATH + "/device/"
SPEC_PATH_PREFIX: Final = ROOT_PATH + "/spec/"
CARD_PATH_PREFIX: Final = ROOT_PATH + "/card/"
VNPU_PATH_PREFIX: Final = ROOT_PATH + "/vnpu/"
MANAGER_INTERFACE: Final = BUS_NAME + ".Manager"
DEVICE_INTERFACE: Final = BUS_NAME + ".Device"
SPEC_INTERFACE: Final = BUS_NAME + ".Spec"
CARD_INTERFACE: Final = BUS_NAME + ".Card"
VNPU_INTERFACE: Final = BUS_NAME + ".Vnpu"
ERROR_PREFIX: Final = BUS_NAME + ".Error."

LOG_CONTROL_PATH: Final = "/org/freedesktop/LogControl1"
LOG_CONTROL_INTERFACE: Final = "org.freedesktop.LogControl1"
PEER_INTERFACE: Final = "org.freedesktop.DBus.Peer"
INTROSPECTABLE_INTERFACE: Final = "org.freedesktop.DBus.Introspectable"
PROPERTIES_INTERFACE: Final = "org.freedesktop.DBus.Properties"
OBJECT_MANAGER_INTERFACE: Final = "org.freedesktop.DBus.ObjectManager"

# --- Kubernetes ----------------------------------------------------------------------------------------------------
#: The name of a Node: a DNS subdomain of RFC 1123 (Kubernetes documentation, "Object Names and IDs").
NODE_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)

# --- polkit --------------------------------------------------------------------------------------------------------
POLKIT_PREFIX: Final = "org.devward.devward1."
ACTION_CHECK: Final = POLKIT_PREFIX + "check"
ACTION_INSPECT: Final = POLKIT_PREFIX + "inspect"
ACTION_RESCAN: Final = POLKIT_PREFIX + "rescan"
ACTION_REPAIR_CDI: Final = POLKIT_PREFIX + "repair-cdi"
ACTION_PROTECT: Final = POLKIT_PREFIX + "protect"
ACTION_RELEASE: Final = POLKIT_PREFIX + "release"
ACTION_RECLAIM: Final = POLKIT_PREFIX + "reclaim"

# --- the journal ---------------------------------------------------------------------------------------------------
SYSLOG_IDENTIFIER: Final = "devwardd"
BROKER_SYSLOG_IDENTIFIER: Final = "devward-dcmi"
DOCUMENTATION: Final = "man:devwardd(8)"

FIELD_EVENT: Final = "DEVWARD_EVENT"
FIELD_OUTCOME: Final = "DEVWARD_OUTCOME"
FIELD_REQUEST_ID: Final = "DEVWARD_REQUEST_ID"
FIELD_TRIGGER: Final = "DEVWARD_TRIGGER"
FIELD_CALLER: Final = "DEVWARD_CALLER"
FIELD_CALLER_UID: Final = "DEVWARD_CALLER_UID"
FIELD_POLKIT_ACTION: Final = "DEVWARD_POLKIT_ACTION"
FIELD_DEVICE: Final = "DEVWARD_DEVICE"
#: The id of a vNPU, the name of an NPU as on the bus, and the Pods that have it or may have left it.
FIELD_VNPU: Final = "DEVWARD_VNPU"
FIELD_CARD: Final = "DEVWARD_CARD"
FIELD_POD_UID: Final = "DEVWARD_POD_UID"
FIELD_CDI_FILE: Final = "DEVWARD_CDI_FILE"
FIELD_CAUSE: Final = "DEVWARD_CAUSE"
FIELD_REASON: Final = "DEVWARD_REASON"
FIELD_EVIDENCE: Final = "DEVWARD_EVIDENCE"
FIELD_ERROR_NAME: Final = "DEVWARD_ERROR_NAME"
FIELD_SHA256_BEFORE: Final = "DEVWARD_SHA256_BEFORE"
FIELD_SHA256_AFTER: Final = "DEVWARD_SHA256_AFTER"
FIELD_DURATION_USEC: Final = "DEVWARD_DURATION_USEC"
FIELD_VERSION: Final = "DEVWARD_VERSION"
#: What a record is about where that is neither a device nor an owned file: a foreign file, a directory, a key.
FIELD_SUBJECT: Final = "DEVWARD_SUBJECT"
#: The method of the bus that was called.
FIELD_MEMBER: Final = "DEVWARD_MEMBER"
#: How many events a summary stands for, or how many attempts failed before the one that succeeded.
FIELD_COUNT: Final = "DEVWARD_COUNT"
#: How long ago a record's event was when the record was written, where damping held it back.
FIELD_DELAY_USEC: Final = "DEVWARD_DELAY_USEC"

#: MESSAGE_ID by event kind (the value of DEVWARD_EVENT); systemd/devward.catalog has an entry for each.
MESSAGE_IDS: Final[dict[str, str]] = {
    "started": "debf4a4dbd804db0bfa891a5097a9f8a",
    "stopped": "db316d2625734f2db1433e7abde67314",
    "ready": "c86e9602e0f8476caa3d9e8e9eec9e4b",
    "degraded": "bde0a572e21f4916a3d1225694ccd3da",
    "config-loaded": "b6a7df777b4d41a28b8dca5b871c33d1",
    "config-refused": "83e8079e1e8945608d38b498ea8396ed",
    "device-usable": "168d564b096f4540810a521d5f1217ff",
    "device-unusable": "244d278fd3304b83a8d91c4dfa4ed8c2",
    "device-gone": "dedd9a3554eb45f0ac47a7509bd192c7",
    "device-drift": "11d61ce810c443a5a55a4eb11c643c7a",
    "check-inconclusive": "90db615be1494145ad7d4b7990c0c9c7",
    "helper-stuck": "910bd8b25c7f47ac9ee5db51c4015c6a",
    "spec-repair": "d643b23a310d404d91a074fc045af443",
    "spec-withdraw": "b6cad42f05c8476e9cf29b1d7ccd8f94",
    "spec-blocked": "6e73ceb4379a4878b93ff9ecb8fbacdf",
    "spec-restored": "5296aa0098914fe08112ddcc6ce4bb1d",
    "spec-drifted": "1021e8cb53814ca381d50f7e8289a9d2",
    "spec-contested": "14fcbbf13edc42659482a83b92169f5f",
    "spec-conflict": "16fb7b8d02e445d4bab8bcf2b5b8a09a",
    "spec-foreign": "ed67510f61644b1d9d91426a2dbd46bc",
    "finding": "d4ed5601e1994ca59ae424e174df08d3",
    "finding-cleared": "660efb72e56b4c72956b1f7e71261d6f",
    "pause-ended": "dbdbc1e4ac5b40aa9edf4b168fd492a9",
    "action": "1ae41388778d40e6832ae16e4b62611c",
    "action-denied": "aaba8bf3a3e34ccc9ecfd087b3eb01a7",
    "allocation-refused": "38f5ef6d92c14ad8be2a07b87eae85f6",
    "udev-overflow": "6aa87909350f433488a889b87639361e",
    "card-usable": "108ed37446624e4196004f43e79a5ca5",
    "card-unknown": "4e07824d7dd443aab4b6a482c14d0d27",
    "card-gone": "09cdbce3915448ecb7345a6427af8b78",
    "vnpu-appeared": "37cac3ce9b9d43c2aa0238e112e047ca",
    "vnpu-gone": "7b72c4c231be42b69b6948b409d8de5e",
    "vnpu-reclaim": "5f5cd9233ddc461f8c3b36d2fd7f392a",
    "vnpu-kept": "8ffc1e581c8e4c428d98b91d375b57bb",
    "reclaim-refused": "c288f855c9cd41fd9e5c1f3962bb06c1",
    "reclaim-blocked": "55305fcd748c4466ae750518e15f5bda",
    "reclaim-unblocked": "869a1f1d62554488a1e1533cace7a37c",
    "mass-reclaim": "fc883fbda8bb408285915a32447f6f17",
    "vnpu-vanished": "51a4d5a7361442bfbbd1ebc1c1f6c27a",
    "broker-kill": "4cfc8fb563fe41f6ac265c69567fa33a",
    "plugin-registered": "4f44dad8298a4637a236e2d6effaafe7",
    "plugin-taken": "b86a021133d9491daa5a3e08d5b00d2e",
    "plugin-failed": "a2302437f6ca4d5baf43e4d7ad454544",
    "flapping": "ba3f2c1a48124ba9a032e0203a7f2f59",
    "internal-error": "9bbe19bf73c143e19be94ef0b108eb41",
    "state-damaged": "c6d835adf4124aa1bb67b546446e073c",
    "leftovers-swept": "f6fca9550b3946f48474792b48f902f0",
    "bus-lost": "3b58532155514c5884d0a4e7480f5b40",
}

# --- files ---------------------------------------------------------------------------------------------------------
CONFIG_FILE: Final = "/etc/devward/devward.toml"
CONFIG_DROPIN_DIRECTORY: Final = "/etc/devward/conf.d"
#: Whatever is there stops all reclaiming.
KILL_SWITCH: Final = "/etc/devward/reclaim.disabled"
#: Where Debian's node_exporter looks for files of metrics.
METRICS_DIRECTORY: Final = "/var/lib/prometheus/node-exporter"
METRICS_FILE: Final = "devward.prom"
STATE_DIRECTORY: Final = "/var/lib/devward"
RUNTIME_DIRECTORY: Final = "/run/devward"
LOCK_FILE: Final = "devwardd.lock"
STATE_FILE: Final = "state.json"
#: Which Pods were seen with NPUs since boot, and which Node is this host's.
OWNERS_FILE: Final = "owners.json"
#: Whether the breaker of reclaiming is latched, and what the hour has seen.
RECLAIM_FILE: Final = "reclaim.json"
BACKUP_DIRECTORY: Final = "backup"
#: Of the broker of the vendor's library: its socket, made by devward-dcmi.socket, and what it holds while it destroys.
BROKER_SOCKET: Final = "/run/devward-dcmi/socket"
BROKER_LOCK_FILE: Final = "/run/devward-dcmi/destroy.lock"
JOURNAL_SOCKET: Final = "/run/systemd/journal/socket"
UDEV_CONTROL_SOCKET: Final = "/run/udev/control"
CDI_DIRECTORY: Final = "/etc/cdi"
CDI_ENGINE_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
DEVICE_DIRECTORY: Final = "/dev"
SYSFS: Final = "/sys"

# --- CDI -----------------------------------------------------------------------------------------------------------
HYPERVISOR_CDI_KIND: Final = "hyperlight.dev/hypervisor"
HYPERVISOR_CDI_FILE: Final = "hyperlight.dev-hypervisor.json"
NPU_CDI_KIND: Final = "ascend.com/npu"
NPU_CDI_FILE: Final = "ascend.com-npu.json"
VNPU_CDI_KIND: Final = "ascend.com/vnpu"
VNPU_CDI_FILE: Final = "ascend.com-vnpu.json"
OWNED_CDI_FILES: Final = (HYPERVISOR_CDI_FILE, NPU_CDI_FILE, VNPU_CDI_FILE)
#: Temporary files of ours are `.devward.<target>.<random>.tmp`: engines read only names that end in .json or .yaml.
TEMPORARY_PREFIX: Final = ".devward."
TEMPORARY_SUFFIX: Final = ".tmp"


def path_element(text: str) -> str:
    """Make a D-Bus object path element of any text.

    ASCII letters and digits stay; every other byte becomes `_` and its two hexadecimal digits, so that two texts never give
    one element (D-Bus specification, "Valid Object Paths").
    """
    return "".join(
        chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else f"_{byte:02x}" for byte in text.encode("utf-8", "surrogateescape")
    )


def device_path(kind: str) -> str:
    """Return the object path of the device of this kind (`kvm`, `mshv`)."""
    return DEVICE_PATH_PREFIX + path_element(kind)


def spec_path(file_name: str) -> str:
    """Return the object path of the owned spec with this file name (no directory)."""
    return SPEC_PATH_PREFIX + path_element(file_name)


def card_path(name: str) -> str:
    """Return the object path of the NPU with this name, such as `p007`."""
    return CARD_PATH_PREFIX + path_element(name)


def vnpu_path(name: str) -> str:
    """Return the object path of the vNPU with this name, such as `v0100`."""
    return VNPU_PATH_PREFIX + path_element(name)
