"""The simulated library for Ascend NPUs on its host: vnpu.cfg, modes, who may change vNPUs, and several processes at once."""

import ctypes
import fcntl
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.dcmi_asking import DcmiClient
from sim.dcmi_simulator import DcmiSimulator, build_client, build_library

ROUNDS = 200
WILDCARD = 65535


pytest_plugins = ["sim.dcmi_fixtures"]


# --- vnpu.cfg ---


def test_vnpu_cfg_follows(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("310P", card=2, phy=1)
    other = simulator.add_chip("910B3", card=5)
    assert client.create(chip, "vir02") == (0, 116)
    assert client.create(other, "vir05_1c_16g") == (0, 132)
    lines = [
        "1:116:npu-smi set -t create-vnpu -i 2 -c 0 -f vir02 -v 116 -g 0",
        "2:132:npu-smi set -t create-vnpu -i 5 -c 0 -f vir05_1c_16g -v 132",
    ]
    text = "vnpu_config_recover:enable\n[vnpu-config start]\n{}\n[vnpu-config end]\n"
    assert simulator.cfg.read_text() == text.format("\n".join(lines))
    assert Path(f"{simulator.cfg}.bak").read_text() == simulator.cfg.read_text()
    assert client.destroy(chip, 116) == 0
    assert simulator.cfg.read_text() == text.format(lines[1])
    simulator.create(chip, "vir02")
    assert simulator.cfg_lines() == [lines[1], lines[0]]


def test_vnpu_cfg_keeps_what_others_wrote(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    stranger = "0:101:npu-smi set -t create-vnpu -i 0 -c 0 -f vir10_3c_32g -v 101"
    simulator.create(chip, "vir05_1c_16g", recorded=False)
    simulator.write_cfg([stranger])
    assert client.destroy(chip, 100) == 0
    assert simulator.cfg_lines() == [stranger]
    assert client.destroy(chip, 101) == -8008
    assert simulator.cfg_lines() == [stranger]


def test_without_recover_vnpu_cfg_is_left_alone(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    simulator.write_cfg(simulator.cfg_lines(), recover=False)
    before = simulator.cfg.read_bytes()
    assert client.destroy(chip, vnpu.id) == 0
    assert client.create(chip, "vir10_3c_32g")[0] == 0
    assert simulator.cfg.read_bytes() == before


def test_a_line_that_cannot_be_removed_brings_the_vnpu_back(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    Path(f"{simulator.cfg}.new").mkdir()
    assert client.destroy(chip, vnpu.id) == -8014
    assert [each.id for each in simulator.vnpus(chip)] == [vnpu.id]
    assert len(simulator.cfg_lines()) == 1
    assert client.create(chip, "vir05_1c_16g")[0] == -8014
    assert len(simulator.vnpus(chip)) == 1


def test_a_vnpu_that_cannot_be_recorded_is_taken_back(in_process: ctypes.CDLL, simulator: DcmiSimulator) -> None:
    """Also for the process that tried to make it."""
    simulator.add_chip("910B3")
    Path(f"{simulator.cfg}.new").mkdir()
    request, reply = ctypes.create_string_buffer(b"\xff" * 8 + b"vir05_1c_16g", 104), (ctypes.c_uint * 13)()
    assert in_process.dcmi_init() == 0
    assert in_process.dcmi_create_vdevice(0, 0, request, reply) == -8014
    total = (ctypes.c_uint * 90)()
    assert in_process.dcmi_get_device_info(0, 0, 52, 1, total, ctypes.byref(ctypes.c_uint(360))) == 0
    assert total[0] == 0
    assert simulator.vnpus() == []


def test_an_unreadable_vnpu_cfg_refuses_both(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g", recorded=False)
    simulator.cfg.mkdir()
    assert client.destroy(chip, vnpu.id) == -8014
    assert client.create(chip, "vir05_1c_16g")[0] == -8014
    assert [each.id for each in simulator.vnpus(chip)] == [vnpu.id]


def test_a_held_lock_of_vnpu_cfg_is_occupied(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    simulator.set_node(cfg_lock_ms=20)
    with open(simulator.directory / "vnpu_cfg_lock_flag", "wb") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        assert client.destroy(chip, vnpu.id) == -8020
    assert client.destroy(chip, vnpu.id) == 0


# --- modes ---

ASK_MODES = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
mode = ctypes.c_int(-7)
library.dcmi_init()
print(getattr(library, "dcmi_get_" + sys.argv[2])(ctypes.byref(mode)), mode.value)
for wanted in sys.argv[3:]:
    print(getattr(library, "dcmi_set_" + sys.argv[2])(int(wanted)))
"""


def ask_modes(simulator: DcmiSimulator, *words: str) -> list[str]:
    command = [sys.executable, "-c", ASK_MODES, str(simulator.library), *words]
    done = subprocess.run(command, env=os.environ | simulator.environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def test_vm_mode_makes_no_vnpus(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    assert ask_modes(simulator, "vdevice_mode", "1") == ["0 0", "-8020"]
    assert client.destroy(chip, vnpu.id) == 0
    assert ask_modes(simulator, "vdevice_mode", "2", "1") == ["0 0", "-8001", "0"]
    assert ask_modes(simulator, "vdevice_mode") == ["0 1"]
    assert client.create(chip, "vir05_1c_16g")[0] == -8020
    assert client.destroy(chip, vnpu.id) == -8020
    simulator.set_node(supports_mode=0, supports_recover=0)
    assert ask_modes(simulator, "vdevice_mode", "0") == ["-8255 -7", "-8255"]
    assert ask_modes(simulator, "vnpu_config_recover_mode", "0") == ["-8255 -7", "-8255"]


def test_the_recover_mode_is_in_vnpu_cfg(simulator: DcmiSimulator) -> None:
    assert ask_modes(simulator, "vnpu_config_recover_mode", "7", "0") == ["0 1", "-8001", "0"]
    assert simulator.cfg.read_text().startswith("vnpu_config_recover:disable\n")
    assert ask_modes(simulator, "vnpu_config_recover_mode", "1") == ["0 0", "0"]
    assert simulator.cfg.read_text().startswith("vnpu_config_recover:enable\n")


# --- who may ---


@pytest.fixture(name="open_simulator")
def _open_simulator(cache: Path) -> Iterator[DcmiSimulator]:
    """A node that any user can reach."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        library = directory / "libdcmi.so"
        with DcmiSimulator(directory / "node", build_library(cache)) as simulator:
            simulator.install(library)
            simulator.library = library
            simulator.directory.chmod(0o777)
            Path(f"{simulator.state_file}.lock").chmod(0o666)
            simulator.log.chmod(0o666)
            (directory / "client").write_bytes(build_client(cache).read_bytes())
            (directory / "client").chmod(0o755)
            yield simulator


def test_only_root_may_change_vnpus_where_that_is_asked(open_simulator: DcmiSimulator) -> None:
    simulator = open_simulator
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g", recorded=False)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    client = DcmiClient(simulator, simulator.library.parent / "client", *as_nobody)
    for permission in ("root", "host"):
        simulator.set_node(permission=permission)
        assert client.destroy(chip, vnpu.id) == -8002
        assert client.create(chip, "vir05_1c_16g")[0] == -8002
    assert [line["count"] for line in client.listed("total")] == ["1"]
    simulator.set_node(permission="any", cfg="", cfg_lock="")
    assert client.destroy(chip, vnpu.id) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace of its own")
def test_root_in_a_container_may_not(simulator: DcmiSimulator, cache: Path) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    simulator.set_node(permission="host")
    in_namespace = ["unshare", "--mount", "--propagation", "private"]
    inside = DcmiClient(simulator, build_client(cache), *in_namespace, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all")
    assert inside.destroy(chip, vnpu.id) == -8009
    # Process 1 of this one sees itself, so that its namespace is the host's.
    assert DcmiClient(simulator, build_client(cache), *in_namespace, "--pid", "--fork", "--mount-proc").destroy(chip, vnpu.id) == 0


# --- several processes ---


def test_processes_share_the_state(client: DcmiClient, simulator: DcmiSimulator) -> None:
    """Two make and destroy on one chip while a third hand edits the file; nobody's change is lost."""
    chip = simulator.add_chip("910B3")
    other = simulator.add_chip("310P")
    kept = [simulator.create(other, "vir01") for _ in range(2)]
    churners = [client.start("churn", chip.card, chip.dev, "vir05_1c_16g", ROUNDS) for _ in range(2)]
    edits = 0
    for churner in churners:
        while churner.poll() is None:
            simulator.set_chip(other, health=edits)
            edits += 1
            time.sleep(0.005)  # the lock is not fair: the others want their turn
    outputs = [churner.communicate()[0] for churner in churners]
    assert outputs == [f"churn made={ROUNDS} full=0 lost=0\n"] * 2
    assert simulator.vnpus() == kept
    assert [line.split(":")[1] for line in simulator.cfg_lines()] == [str(vnpu.id) for vnpu in kept]
    assert simulator.read().chip(other.card).health == edits - 1
    made = simulator.calls("dcmi_create_vdevice")
    destroyed = simulator.calls("dcmi_set_destroy_vdevice")
    assert [len(made), len(destroyed)] == [2 * ROUNDS] * 2
    assert {call.code for call in made + destroyed} == {0}
    assert {call.arguments["detail"] for call in made} == {"vir05_1c_16g"}
    assert WILDCARD not in {call.arguments["id"] for call in destroyed}


def test_threads_of_one_process_share_the_state(in_process: ctypes.CDLL, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910A")
    assert in_process.dcmi_init() == 0
    ids: list[int] = []

    def make() -> None:
        for _ in range(3):
            request, reply = ctypes.create_string_buffer(b"\xff" * 8 + b"vir02", 104), (ctypes.c_uint * 13)()
            assert in_process.dcmi_create_vdevice(0, 0, request, reply) == 0
            ids.append(reply[0])

    threads = [threading.Thread(target=make) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids) == [vnpu.id for vnpu in simulator.vnpus(chip)] == list(range(100, 115))


def test_a_log_is_not_needed(client: DcmiClient, simulator: DcmiSimulator) -> None:
    simulator.set_node(log="")
    client.ask("list")
    assert simulator.calls() == []


def test_the_state_stands_where_the_library_sees_it(cache: Path, tmp_path: Path) -> None:
    """As on a system that sees the directory under another name."""
    seen = tmp_path / "seen"
    seen.symlink_to(tmp_path / "real")
    with DcmiSimulator(tmp_path / "real", build_library(cache), seen_as=seen) as simulator:
        assert simulator.environment == {"DEVWARD_SIM_DCMI_STATE": f"{seen}/dcmi.state"}
        assert simulator.read().node.log == f"{seen}/dcmi.log"
        chip = simulator.add_chip("910B3")
        assert DcmiClient(simulator, build_client(cache)).create(chip, "vir05_1c_16g") == (0, 100)
        assert len(simulator.cfg_lines()) == 1
