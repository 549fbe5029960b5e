"""What virtual machines that start and stop cost: each sends two `change` uevents of kvm, which must lead to nothing."""

import fcntl
import os
import time

from bench.figure import Bar, Figure, Figures
from bench.setting import Broken, children_cpu_seconds, cpu_seconds, daemon, need_kvm
from bench.uevents import counted
from sim.daemon_process import DaemonProcess

KVM_CREATE_VM = 0xAE01  # linux/kvm.h


def measure(quick: bool) -> Figures:
    """Yield the probes that the events led to, and what they cost."""
    need_kvm()
    machines = 200 if quick else 5_000
    # No probe by the timer shall be among those that are counted.
    with daemon("[hypervisor]\nprobe_interval = 86400\n") as process, counted() as seen:
        probes = _probes(process)
        before = cpu_seconds(process.pid) + children_cpu_seconds(process.pid)
        begin = time.monotonic()
        device = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
        try:
            for _ in range(machines):
                os.close(fcntl.ioctl(device, KVM_CREATE_VM, 0))
        finally:
            os.close(device)
        took = time.monotonic() - begin
        # What is still on its way to the daemon, and the longest that a probe may be put off (2 s).
        time.sleep(3)
        cost = cpu_seconds(process.pid) + children_cpu_seconds(process.pid) - before
        probes = _probes(process) - probes
    total = seen["create"] + seen["destroy"]
    if total < 2 * machines:
        raise Broken(f"the kernel sent {total} events for {machines} machines")
    note = f"{machines} VMs in {took:.1f} s" + (f"; {seen['other']} other events came from elsewhere" if seen["other"] else "")
    yield Figure("events: probes run", "probes", [probes], Bar("worst", 0), note, total)
    yield Figure("events: CPU of devwardd", "us/event", [cost / total * 1e6], None, f"{cost:.2f} s in all", total)


def _probes(process: DaemonProcess) -> int:
    devices = process.describe()["devices"]
    assert isinstance(devices, list)
    return int(devices[0]["probes"])
