"""The return codes of DCMI, the vendor's management library, each with a sentence. Pure.

The values are those of the vendor's header dcmi_interface_api.h. A code says how a call went, and not what became of a vNPU: a destroy
that reports an error may have destroyed it all the same.
"""

from enum import IntEnum
from typing import Final


class DcmiCode(IntEnum):
    """What a DCMI call may return."""

    OK = 0
    INVALID_PARAMETER = -8001
    NOT_PERMITTED = -8002
    MEMORY_FAILED = -8003
    SECURE_FUNCTION_FAILED = -8004
    INTERNAL = -8005
    TIMEOUT = -8006
    INVALID_DEVICE_ID = -8007
    NO_SUCH_DEVICE = -8008
    IOCTL_FAILED = -8009
    SEND_FAILED = -8010
    RECEIVE_FAILED = -8011
    NOT_READY = -8012
    NOT_IN_CONTAINER = -8013
    FILE_FAILED = -8014
    RESET_FAILED = -8015
    RESET_ABORTED = -8016
    UPGRADING = -8017
    OCCUPIED = -8020
    PARTITION_INVALID = -8022
    CONFIG_MISSING = -8023
    NOT_SUPPORTED = -8255
    #: Not of the library: what the loaders of such libraries, and devward's, report themselves.
    SYMBOL_MISSING = -99998
    LIBRARY_MISSING = -99999


#: No subject and no full stop: "the library says: the device does not exist".
SENTENCES: Final[dict[DcmiCode, str]] = {
    DcmiCode.OK: "the call succeeded",
    DcmiCode.INVALID_PARAMETER: "a parameter is invalid, or the vNPU is in use",
    DcmiCode.NOT_PERMITTED: "the operation is not permitted to this process: wrong user, a virtual machine, or a container",
    DcmiCode.MEMORY_FAILED: "a memory operation failed",
    DcmiCode.SECURE_FUNCTION_FAILED: "a bounds-checked memory function failed",
    DcmiCode.INTERNAL: "an internal error; at initialisation: the driver cannot be reached",
    DcmiCode.TIMEOUT: "the driver did not answer in time",
    DcmiCode.INVALID_DEVICE_ID: "the device id is invalid",
    DcmiCode.NO_SUCH_DEVICE: "the device does not exist",
    DcmiCode.IOCTL_FAILED: "the driver refused the request, as it does of a process that it takes for a container",
    DcmiCode.SEND_FAILED: "a message to the device could not be sent",
    DcmiCode.RECEIVE_FAILED: "no message could be received from the device",
    DcmiCode.NOT_READY: "the device is not ready yet",
    DcmiCode.NOT_IN_CONTAINER: "this is not supported in a container, or the device is busy",
    DcmiCode.FILE_FAILED: "a file of the library, such as /etc/vnpu.cfg, could not be read or written",
    DcmiCode.RESET_FAILED: "the device failed to reset",
    DcmiCode.RESET_ABORTED: "the reset of the device was aborted",
    DcmiCode.UPGRADING: "the device's firmware is being upgraded",
    DcmiCode.OCCUPIED: "the resource is occupied: another process holds /etc/vnpu.cfg, or the vNPU mode is another",
    DcmiCode.PARTITION_INVALID: "the partition is invalid",
    DcmiCode.CONFIG_MISSING: "the configuration is missing",
    DcmiCode.NOT_SUPPORTED: "the chip or the driver does not support this",
    DcmiCode.SYMBOL_MISSING: "the library does not have this call",
    DcmiCode.LIBRARY_MISSING: "the library is not installed",
}


def sentence(code: int) -> str:
    """Return what a code means, with the number; a code that no header has is named as such."""
    try:
        return f"{SENTENCES[DcmiCode(code)]} ({code})"
    except ValueError:
        return f"a code that the vendor's header does not have ({code})"
