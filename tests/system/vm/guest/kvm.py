"""A workload with a virtual machine: what a container that is given /dev/kvm does. Standard library only; x86.

    kvm.py check        create a virtual machine and run it once; print what was found as JSON
    kvm.py run FILE     run one for ever; FILE says how many times its program came round

The machine's program counts in a register and gives the count out through a port, which ends each KVM_RUN (Documentation/virt/kvm/api.rst).
"""

import fcntl
import json
import mmap
import os
import struct
import sys
import time

# linux/kvm.h
GET_API_VERSION, CREATE_VM, GET_VCPU_MMAP_SIZE, CREATE_VCPU, RUN = 0xAE00, 0xAE01, 0xAE04, 0xAE41, 0xAE80
SET_USER_MEMORY_REGION, SET_REGS, GET_SREGS, SET_SREGS = 0x4020AE46, 0x4090AE82, 0x8138AE83, 0x4138AE84
EXIT_IO = 2
SREGS_SIZE, CS_BASE, CS_SELECTOR = 312, 0, 12
EXIT_REASON, IO_DATA_OFFSET = 8, 40

ADDRESS = 0x1000
#: inc al; out 0x10, al; jmp to the start
PROGRAM = bytes.fromhex("fec0 e610 ebfa")


class Guest:
    """A virtual machine with one processor in real mode."""

    def __init__(self) -> None:
        """Create it. Raises OSError."""
        kvm = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
        self.api = fcntl.ioctl(kvm, GET_API_VERSION, 0)
        self.machine = fcntl.ioctl(kvm, CREATE_VM, 0)
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.memory[: len(PROGRAM)] = PROGRAM
        address = address_of(self.memory)
        fcntl.ioctl(self.machine, SET_USER_MEMORY_REGION, struct.pack("<IIQQQ", 0, 0, ADDRESS, mmap.PAGESIZE, address))
        self.processor = fcntl.ioctl(self.machine, CREATE_VCPU, 0)
        self.state = mmap.mmap(self.processor, fcntl.ioctl(kvm, GET_VCPU_MMAP_SIZE, 0))
        segments = bytearray(SREGS_SIZE)
        fcntl.ioctl(self.processor, GET_SREGS, segments)
        struct.pack_into("<Q", segments, CS_BASE, 0)
        struct.pack_into("<H", segments, CS_SELECTOR, 0)
        fcntl.ioctl(self.processor, SET_SREGS, bytes(segments))
        # 16 general registers, then rip and rflags
        fcntl.ioctl(self.processor, SET_REGS, struct.pack("<18Q", *[0] * 16, ADDRESS, 2))
        os.close(kvm)

    def turn(self) -> int:
        """Let it go round once; return its count. Raises OSError, and RuntimeError where it stops for another reason."""
        fcntl.ioctl(self.processor, RUN, 0)
        (reason,) = struct.unpack_from("<I", self.state, EXIT_REASON)
        if reason != EXIT_IO:
            raise RuntimeError(f"exit reason {reason}")
        (offset,) = struct.unpack_from("<Q", self.state, IO_DATA_OFFSET)
        return self.state[offset]


def address_of(memory: mmap.mmap) -> int:
    """Return where a mapping lies."""
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def main(arguments: list[str]) -> None:
    """Do what is asked."""
    guest = Guest()
    if arguments == ["check"]:
        count = guest.turn()
        print(json.dumps({"api": guest.api, "count": count, "uid": os.getuid(), "env": os.environ.get("HYPERLIGHT_HYPERVISOR", "")}))
        return
    _, path = arguments
    turns = 0
    while True:
        assert guest.turn() == (turns + 1) % 256
        turns += 1
        with open(path, "w", encoding="ascii") as file:
            file.write(str(turns))
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1:])
