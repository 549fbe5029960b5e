"""Two system calls that Python does not have: statx(2) that asks no server, and kcmp(2).

Descriptors of other processes lead to any file system, also to one whose server is dead. A plain stat(2) would wait for it for ever;
with AT_STATX_DONT_SYNC the kernel answers from what it has, and a device number never changes.
"""

import ctypes
import os
import struct
from typing import Final

_AT_NO_AUTOMOUNT: Final = 0x800
_AT_STATX_DONT_SYNC: Final = 0x4000
_FLAGS: Final = _AT_NO_AUTOMOUNT | _AT_STATX_DONT_SYNC
_STATX_TYPE: Final = 0x1
#: struct statx of <linux/stat.h>: 256 bytes; stx_mode at 28, stx_rdev_major and stx_rdev_minor at 128.
_STATX_SIZE: Final = 256
_MODE_OFFSET: Final = 28
_MODE_AND_RDEV: Final = struct.Struct("=H98xII")

_KCMP_FILES: Final = 2
#: By machine(7), since kcmp has no function in libc; elsewhere the question has no answer.
_KCMP_NUMBERS: Final = {"x86_64": 312, "aarch64": 272, "riscv64": 272, "loongarch64": 272, "ppc64le": 354, "s390x": 343}


class Kernel:
    """The two calls, bound to the C library. For one thread at a time."""

    def __init__(self) -> None:
        """Bind; OSError or AttributeError where the C library is older than statx (glibc 2.28)."""
        library = ctypes.CDLL(None, use_errno=True)
        self._statx = library.statx
        self._statx.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
        self._statx.restype = ctypes.c_int
        self._buffer = ctypes.create_string_buffer(_STATX_SIZE)
        self._address = ctypes.addressof(self._buffer)
        self._syscall = library.syscall
        self._syscall.argtypes = [ctypes.c_long] * 6
        self._syscall.restype = ctypes.c_long
        self._kcmp_number = _KCMP_NUMBERS.get(os.uname().machine)

    def mode_and_number(self, directory: int, name: bytes) -> tuple[int, int, int]:
        """Return (st_mode, major, minor) of a file, links followed. OSError."""
        if self._statx(directory, name, _FLAGS, _STATX_TYPE, self._address) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        mode, major, minor = _MODE_AND_RDEV.unpack_from(self._buffer, _MODE_OFFSET)
        return mode, major, minor

    def share_descriptors(self, one: int, other: int) -> bool | None:
        """Whether two threads, of our own PID namespace, have one table of descriptors; None where that cannot be told."""
        if self._kcmp_number is None:
            return None
        answer = self._syscall(self._kcmp_number, one, other, _KCMP_FILES, 0, 0)
        return None if answer < 0 else answer == 0
