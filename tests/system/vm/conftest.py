"""One virtual machine for all tests of this directory: it boots once, and each test leaves it as it was."""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from system.vm.boot import Boot
from system.vm.image import build
from system.vm.machine import Machine
from system.vm.warden import Warden

#: What was measured, by name; printed at the end and judged by nobody.
_figures: dict[str, str] = {}


@pytest.fixture(scope="session", name="machine")
def _machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Boot]]:
    if os.geteuid() != 0:
        pytest.skip("needs root: the disk of a virtual machine is made")
    scratch = tmp_path_factory.mktemp("vm")
    try:
        began = time.monotonic()
        image = build(scratch)
        _figures["image of the machine made"] = f"{time.monotonic() - began:.1f} s"
        began = time.monotonic()
        with Machine(image, scratch) as machine:
            machine.run("systemctl", "is-system-running", "--wait", check=False)
            _figures["first boot, until all is quiet"] = f"{time.monotonic() - began:.1f} s"
            yield machine, Boot.of(machine)
    finally:
        for name in ("disk", "later"):
            (scratch / name).unlink(missing_ok=True)


@pytest.fixture(name="vm")
def _vm(machine: tuple[Machine, Boot]) -> Machine:
    return machine[0]


@pytest.fixture(name="first_boot")
def _first_boot(machine: tuple[Machine, Boot]) -> Boot:
    """How the machine came up, before any test did anything."""
    return machine[1]


@pytest.fixture(name="warden")
def _warden(vm: Machine) -> Warden:
    """The devward of the machine, well at the start of each test."""
    warden = Warden(vm)
    warden.wait_well()
    return warden


@pytest.fixture(name="figures", scope="session")
def _figures_fixture() -> dict[str, str]:
    return _figures


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was measured."""
    if _figures:
        terminalreporter.section("measured in the virtual machine")
        for name, value in _figures.items():
            terminalreporter.write_line(f"{name}: {value}")
