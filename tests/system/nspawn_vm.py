"""Run in a container: a guest. Creates a virtual machine, prints "running", and adds a processor to it for each line of standard input.

What it prints then is "running" again, or why not. The numbers are of <linux/kvm.h>.
"""

import fcntl
import os
import sys

KVM_CREATE_VM = 0xAE01
KVM_CREATE_VCPU = 0xAE41


def main() -> None:
    """Hold the descriptors until standard input ends."""
    machine = fcntl.ioctl(os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC), KVM_CREATE_VM, 0)
    print("running", flush=True)
    for number, _ in enumerate(sys.stdin):
        try:
            fcntl.ioctl(machine, KVM_CREATE_VCPU, number)
            print("running", flush=True)
        except OSError as error:
            print(error, flush=True)


if __name__ == "__main__":
    main()
