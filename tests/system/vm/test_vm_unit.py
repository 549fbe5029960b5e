"""The unit as it is installed, with its sandbox, under a real service manager."""

import re

from sim.daemon_process import SLOW
from system.vm.machine import Machine
from system.vm.warden import SPEC, Warden


def test_the_sandboxed_daemon_makes_a_removed_directory_again(vm: Machine, warden: Warden) -> None:
    run, before = warden.run_id(), vm.run("cat", SPEC)
    for _ in range(3):
        vm.run("rm", "-rf", "/etc/cdi")
        warden.wait_allocation((True, ""))
        assert vm.run("cat", SPEC) == before
        assert vm.run("stat", "--format=%a %u:%g", "/etc/cdi") == "755 0:0\n"
    assert warden.run_id() == run


def test_a_reload_of_the_service_manager_during_checks_condemns_nothing(vm: Machine, warden: Warden) -> None:
    """Where a unit has a device policy, a daemon-reload refuses devices for a moment: so that is tried as well."""
    drop_in = "/run/systemd/system/devward.service.d/device-policy.conf"
    example = "/usr/share/doc/devward/examples/device-policy.conf"
    vm.shell(f"mkdir -p $(dirname {drop_in}); zcat -f {example}* >{drop_in}; systemctl daemon-reload")
    try:
        vm.run("systemctl", "restart", "devward")
        begin = warden.now()
        warden.wait_well()
        reloads = vm.start("sh", "-ec", "for i in $(seq 4); do systemctl daemon-reload; done", timeout=600)
        for _ in range(3):
            allowed, reason = warden.allocation()
            assert allowed or reason in SLOW, reason
        code, out = vm.finish(reloads, timeout=600)
        assert code == 0, out
        warden.wait_well()
        condemned = {record["DEVWARD_REASON"] for record in warden.events(begin, "device-unusable")}
        assert condemned <= SLOW
    finally:
        vm.shell(f"rm {drop_in}; systemctl daemon-reload; systemctl restart devward")


#: Sends a datagram to each address, and prints what came of it.
_SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    for address in sys.argv[1:]:
        try:
            sender.sendto(b"x", (address, 9))
            print(address, "sent")
        except OSError as error:
            print(address, error.strerror)
"""


def test_the_dropin_for_the_api_server_lets_no_other_address_be_reached(vm: Machine, warden: Warden) -> None:
    """Which only a kernel of its own shows: in a container systemd may not have the kernel filter packets."""
    example = "/usr/share/doc/devward/examples/api-server-only.conf"
    unit = "/run/systemd/system/devward-send.service"
    # They lead back here: any address can be sent to then.
    vm.run("busybox", "ip", "route", "add", "local", "192.0.2.0/24", "dev", "lo")
    vm.write("/run/send.py", _SEND)
    command = "Type=oneshot\nExecStart=/usr/bin/python3 /run/send.py 127.0.0.1 192.0.2.10 192.0.2.11\nStandardOutput=truncate:/run/sent\n"
    try:
        vm.write(unit, vm.run("zcat", "-f", example) + command)
        vm.shell("systemctl daemon-reload; systemctl start devward-send.service")
        assert vm.run("cat", "/run/sent").splitlines() == ["127.0.0.1 sent", "192.0.2.10 sent", "192.0.2.11 Operation not permitted"]
        vm.write(unit, "[Service]\n" + command)
        vm.shell("systemctl daemon-reload; systemctl start devward-send.service")
        assert vm.run("cat", "/run/sent").splitlines()[-1] == "192.0.2.11 sent", "it is the drop-in that closes it"
    finally:
        vm.shell(f"rm -f {unit} /run/send.py /run/sent; systemctl daemon-reload")
        vm.run("busybox", "ip", "route", "del", "local", "192.0.2.0/24", "dev", "lo")


def test_how_exposed_the_service_is(vm: Machine, warden: Warden, figures: dict[str, str]) -> None:
    out = vm.run("systemd-analyze", "security", "--no-pager", "devward.service")
    exposure = float(re.search(r"exposure level for devward.service: ([\d.]+)", out)[1])
    assert exposure <= 3.5
    figures["systemd-analyze security"] = str(exposure)
    unit = vm.run("systemctl", "show", "--property=FragmentPath", "--value", "devward").strip()
    # Debian leaves manual pages out of a minimal root, and the drop-in of the image is not the unit's.
    said = [line for line in vm.run("systemd-analyze", "verify", unit, check=False).splitlines() if "Command 'man" not in line]
    assert said == []
