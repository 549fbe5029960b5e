"""What administrators type: busctl, gdbus and systemctl's way to set the log level."""

import json
import shutil

import pytest
from bus_harness import KVM, Bus, as_nobody, command, needs_root, run, world

from devward import names

KVM_PATH = names.device_path("kvm")
SPEC_PATH = names.spec_path("hyperlight.dev-hypervisor.json")
needs_busctl = pytest.mark.skipif(shutil.which("busctl") is None, reason="needs busctl, which is not installed")
needs_gdbus = pytest.mark.skipif(shutil.which("gdbus") is None, reason="needs gdbus, which is not installed")
TO = (names.BUS_NAME, names.ROOT_PATH, names.MANAGER_INTERFACE)


@needs_busctl
def test_busctl(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address):

            async def busctl(*arguments: str) -> str:
                status, output, errors = await command("busctl", f"--address={bus.address}", *arguments)
                assert status == 0, errors
                return output

            tree = await busctl("tree", "--list", names.BUS_NAME)
            assert {KVM_PATH, SPEC_PATH, names.ROOT_PATH, names.LOG_CONTROL_PATH} <= set(tree.split())

            shown = {line.split()[0]: line.split()[1:] for line in (await busctl("introspect", *TO[:2])).splitlines() if line.strip()}
            assert shown[".Rescan"] == ["method", "t", "ssa(sss)", "-"]
            assert shown[".Version"][-1] == "const"
            assert shown[".CdiMode"][-1] == "emits-change"
            assert shown[".AuditDropped"][-1] == "-"
            assert shown[".RequestFinished"][:2] == ["signal", "ssa(sss)"]

            line = await busctl("call", *TO, "ListDevices")
            assert line == f'a(sssssto) 1 "kvm" "/dev/kvm" "valid" "healthy" "" {KVM.health_since_usec} "{KVM_PATH}"\n'
            assert (await busctl("call", *TO, "CheckAllocation", "s", "kvm")).startswith('bsss true "" "" "id-')
            assert (await busctl("call", *TO, "Rescan", "t", "0")).split()[2:] == ['"done"', "1", '"/dev/kvm"', '"success"', '""']
            values = await busctl("get-property", names.BUS_NAME, KVM_PATH, names.DEVICE_INTERFACE, "Health", "Number")
            assert values == 's "healthy"\ns "10:232"\n'
            everything = await busctl("--json=short", "call", *TO[:2], names.OBJECT_MANAGER_INTERFACE, "GetManagedObjects")
            found = json.loads(everything)
            assert set(found["data"][0]) == {KVM_PATH, SPEC_PATH}

    run(main)


@needs_busctl
@needs_root
def test_the_policy_file_lets_others_read_and_ask_but_not_own(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            for arguments in (
                ("tree", names.BUS_NAME),
                ("introspect", names.BUS_NAME, SPEC_PATH),
                ("get-property", names.BUS_NAME, SPEC_PATH, names.SPEC_INTERFACE, "State"),
                ("call", *TO, "CheckAllocation", "s", "kvm"),
                ("call", names.BUS_NAME, "/", names.PEER_INTERFACE, "Ping"),
            ):
                status, _, errors = await as_nobody(bus.address, *arguments)
                assert status == 0, errors
            assert made.backend.calls[0][1].caller.uid == 65534  # type: ignore[attr-defined]
            # Not through an interface that is not ours, and never the name.
            status, _, errors = await as_nobody(bus.address, "call", names.BUS_NAME, names.ROOT_PATH, "org.example.Other", "X")
            assert status != 0
            assert "ccess" in errors
            status, _, _ = await as_nobody(
                bus.address,
                *("call", "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "RequestName", "su"),
                *(names.BUS_NAME, "3"),
            )
            assert status != 0

    run(main)


@needs_busctl
@needs_root
def test_systemctl_can_set_the_log_level(bus: Bus) -> None:
    """`systemctl service-log-level` makes exactly this call."""

    async def main() -> None:
        async with world(bus.address, polkit=False) as made:
            to = (names.BUS_NAME, names.LOG_CONTROL_PATH, names.LOG_CONTROL_INTERFACE)
            status, _, errors = await command("busctl", f"--address={bus.address}", "set-property", *to, "LogLevel", "s", "debug")
            assert status == 0, errors
            assert made.log_control.level == "debug"
            status, _, errors = await as_nobody(bus.address, "set-property", *to, "LogLevel", "s", "info")
            assert status != 0
            assert made.log_control.level == "debug"
            status, output, _ = await as_nobody(bus.address, "get-property", *to, "LogLevel")
            assert (status, output) == (0, 's "debug"\n')

    run(main)


@needs_gdbus
def test_gdbus(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address):

            async def gdbus(verb: str, *arguments: str) -> str:
                to = ("--address", bus.address, "--dest", names.BUS_NAME)
                status, output, errors = await command("gdbus", verb, *to, *arguments)
                assert status == 0, errors
                return output

            shown = await gdbus("introspect", "--recurse", "--object-path", "/")
            for path in (KVM_PATH, SPEC_PATH, names.ROOT_PATH):
                assert f"node {path} " in shown
            assert "readonly s Health = 'healthy';" in shown
            line = await gdbus("call", "--object-path", names.ROOT_PATH, "--method", f"{names.MANAGER_INTERFACE}.ListDevices")
            assert line.startswith("([('kvm', '/dev/kvm', 'valid', 'healthy', '', ")

    run(main)
