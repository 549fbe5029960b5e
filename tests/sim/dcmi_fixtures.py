"""Fixtures of the tests of the simulated NPU library: the simulator, the client in C, and the library in the test's own process."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.dcmi_asking import DcmiClient
from sim.dcmi_simulator import DcmiSimulator, build_client, build_library


@pytest.fixture(name="cache", scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "dcmi-cache"


@pytest.fixture(name="simulator")
def _simulator(cache: Path, tmp_path: Path) -> Iterator[DcmiSimulator]:
    with DcmiSimulator(tmp_path / "node", build_library(cache)) as simulator:
        yield simulator


@pytest.fixture(name="client")
def _client(simulator: DcmiSimulator, cache: Path) -> DcmiClient:
    return DcmiClient(simulator, build_client(cache))


@pytest.fixture(name="in_process")
def _in_process(simulator: DcmiSimulator, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    for name, value in simulator.environment.items():
        monkeypatch.setenv(name, value)
    return ctypes.CDLL(str(simulator.library))
