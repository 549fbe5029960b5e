"""The unit as it is installed, with its sandbox, under a real service manager."""

import re

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
            assert allowed or reason in ("probe-timeout", "cdi-timeout", "helper-stuck"), reason
        code, out = vm.finish(reloads)
        assert code == 0, out
        warden.wait_well()
        condemned = {record["DEVWARD_REASON"] for record in warden.events(begin, "device-unusable")}
        assert condemned <= {"probe-timeout"}
    finally:
        vm.shell(f"rm {drop_in}; systemctl daemon-reload; systemctl restart devward")


def test_how_exposed_the_service_is(vm: Machine, warden: Warden, figures: dict[str, str]) -> None:
    out = vm.run("systemd-analyze", "security", "--no-pager", "devward.service")
    exposure = float(re.search(r"exposure level for devward.service: ([\d.]+)", out)[1])
    assert exposure <= 3.5
    figures["systemd-analyze security"] = str(exposure)
    unit = vm.run("systemctl", "show", "--property=FragmentPath", "--value", "devward").strip()
    # Debian leaves manual pages out of a minimal root, and the drop-in of the image is not the unit's.
    said = [line for line in vm.run("systemd-analyze", "verify", unit, check=False).splitlines() if "Command 'man" not in line]
    assert said == []
