"""Fixtures of the tests on booted containers; a test module names this one in `pytest_plugins`.

`release` runs everything once for each Debian. `machine` is a booted one with devward installed from the freshly built package and the
devtmpfs of the host at /dev, shared by the tests of a module, which leave it as they found it: `host` is that machine, looked at before and
after each test. `bare` is one for a single test, without devward and with systemd-nspawn's own /dev.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nspawn_machine import DROP_IN, NEXT, SITE, SPEC, Machine
from package_root import SYSTEM, host_environment

from devward import __version__


@pytest.fixture(scope="session", name="debs")
def _debs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package of this tree, and the same with a higher version."""
    place = tmp_path_factory.mktemp("debs")
    environment = {**host_environment(), "DEB_BUILD_OPTIONS": "nocheck"}
    for version in (__version__, NEXT):
        subprocess.run([str(SYSTEM / "build_packages"), "--only", "deb", "--version", version, str(place)], check=True, env=environment)
    return place


@pytest.fixture(scope="module", name="release", params=["12", "13"], ids=["debian12", "debian13"])
def _release(request: pytest.FixtureRequest) -> str:
    release: str = request.param
    return release


@pytest.fixture(scope="module", name="machine")
def _machine(release: str, debs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if not Path("/dev/kvm").exists():
        pytest.skip("needs /dev/kvm: a host that devward vouches for")
    with Machine(release, tmp_path_factory.mktemp("machine"), debs) as machine:
        machine.show_devtmpfs()
        machine.install()
        yield machine


@pytest.fixture(name="host")
def _host(machine: Machine) -> Iterator[Machine]:
    machine.healthy()
    yield machine
    machine.healthy()
    assert machine.run("ls", "-A", os.path.dirname(SPEC)) == f"{os.path.basename(SPEC)}\n"
    assert [path for path in (DROP_IN, SITE) if machine.path(path).exists()] == []
    assert machine.get("CdiMode") == "repair"
    assert machine.get("CdiPausedUntilUSec") == 0


@pytest.fixture(name="bare")
def _bare(release: str, debs: Path, tmp_path: Path) -> Iterator[Machine]:
    with Machine(release, tmp_path, debs) as machine:
        yield machine
