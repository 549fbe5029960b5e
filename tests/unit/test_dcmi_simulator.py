"""The simulated library for Ascend NPUs: symbols and layouts as a client in C finds them, and what the driver does and refuses."""

import ctypes
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sim.dcmi_asking import DcmiClient
from sim.dcmi_simulator import (
    FAMILIES,
    Chip,
    DcmiSimulator,
    Process,
    build_client,
    build_library,
    first_symbols,
    second_symbols,
)
from sim.dcmi_state import State, dump, load

NEXT_FREE = 0xFFFFFFFF
WHOLE_CHIP = 65535
UNFILLED = str(0xFFFFFFFF)


pytest_plugins = ["sim.dcmi_fixtures"]


# --- symbols and layouts ---


def test_every_symbol_is_there(client: DcmiClient, simulator: DcmiSimulator) -> None:
    names = sorted(first_symbols())
    assert len(names) == 26
    found = subprocess.run(["nm", "-D", "--defined-only", simulator.library], capture_output=True, text=True, check=True).stdout.split("\n")
    assert sorted(line.split()[2] for line in found if line) == names


@pytest.mark.parametrize(
    "absent", ["dcmi_get_dcmi_version", "dcmi_get_device_die_v2", "dcmi_get_vdevice_mode", "dcmi_get_device_chip_info_v2"]
)
def test_an_old_driver_lacks_symbols(cache: Path, tmp_path: Path, absent: str) -> None:
    with DcmiSimulator(tmp_path / "old", build_library(cache, absent=[absent])) as simulator:
        simulator.add_chip("910A")
        lines = DcmiClient(simulator, build_client(cache)).ask("list")
        assert lines[2]["name"] == b"910A".hex()
        with pytest.raises(AttributeError):
            getattr(ctypes.CDLL(str(simulator.library)), absent)


def test_the_second_generation_has_no_vnpus(cache: Path, tmp_path: Path) -> None:
    with DcmiSimulator(tmp_path / "second", build_library(cache, symbols=second_symbols())) as simulator:
        chips = [simulator.add_chip("950", logic=1 - phy) for phy in range(2)]
        lines = DcmiClient(simulator, build_client(cache)).ask("list-second")
        assert [(line["id"], line["phy"], line["die1"]) for line in lines[1:]] == [("1", "0", chips[0].vdie), ("0", "1", chips[1].vdie)]
        library = ctypes.CDLL(str(simulator.library))
        assert not any(hasattr(library, name) for name in first_symbols())


def test_a_symbol_that_does_not_exist_is_refused(cache: Path, simulator: DcmiSimulator) -> None:
    with pytest.raises(ValueError, match="no dcmi_nonsense"):
        build_library(cache, absent=["dcmi_nonsense"])
    with pytest.raises(ValueError, match="no dcmi_nonsense"):
        simulator.fault("dcmi_nonsense", "hang")


def test_every_field_is_where_clients_look_for_it(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("310P", card=3, phy=5, logic=2, health=7, board=11, pcb=12, bom=13, slot=14)
    mcu = simulator.add_chip("310P", card=3, dev=1, phy=0, type=1)
    vnpu = simulator.create(chip, "vir02_1c", vfg=2, status=9, used=1, container=0xABCDEF012345)
    with simulator.edit() as state:
        state.processes.append(Process(3, 0, 4321, 5 << 30))
    product, media = chip.product.encode().hex(), "jpegd=16 jpege=8 vpc=12 vdec=12 pngd=-1 venc=3"
    names = f"type={b'Ascend'.hex()} name={b'310P3'.hex()} version={b'V1'.hex()}"
    numbers, dies = "unit=0 logic=2 phy=5 health=7", f"die0={chip.ndie} die1={chip.vdie}"
    uses = "status=9 used=1 vfid=1 vfg=2 container=abcdef012345 base_vfg=2"
    unfilled = "aiv=-nan unfilled=ffff,ffffffff"
    assert client.run("list").stdout.splitlines() == [
        "cards code=0 count=1",
        "card id=3 code=0 npus=1 mcu=1 cpu=-1",
        f"chip card=3 dev=0 code=0 {names} cores=8 npu={b'310P3'.hex()} {numbers} {dies} board=11,12,13,14 product={product}",
        f"process card=3 dev=0 pid=4321 memory={5 << 30}",
        f"total card=3 dev=0 code=0 count=1 vfgs=4 bitmap=f aic=8 memory=24576 aicpu=7 {unfilled} {media}",
        f"free card=3 dev=0 vfgs=3 bitmap=b aic=6 memory=18432 aicpu=7 {unfilled} {media}",
        f"vdev card=3 dev=0 id=180 code=0 name={b'vir02_1c'.hex()} {uses} aic=2 memory=6144 aicpu=1 {unfilled}",
        f"activity id=180 code=0 total={6144 << 20}",
    ]
    assert (vnpu.id, mcu.dev) == (100 + 16 * 5, 1)


def test_what_the_driver_does_not_fill_reads_all_ones(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    simulator.create(chip, "vir05_1c_16g", vfg=None, vfid=None)
    vdev = next(line for line in client.ask("list") if line[""] == "vdev")
    assert (vdev["status"], vdev["vfg"], vdev["vfid"], vdev["container"]) == (UNFILLED, UNFILLED, UNFILLED, "000000000000")
    (line,) = client.ask("call", "dcmi_get_device_info", 0, 0, 1)
    reply = bytes.fromhex(line["bytes"])
    assert line["size"] == "360"
    assert reply[:8] == (1).to_bytes(4, "little") + (100).to_bytes(4, "little")
    assert reply[8:208] == b"\xff" * 200
    assert reply[360:] == bytes(512 - 360)


def test_a_reply_needs_its_room_and_an_answer_its_pointer(in_process: ctypes.CDLL, simulator: DcmiSimulator) -> None:
    simulator.add_chip("910B3")
    assert in_process.dcmi_init() == 0
    size = ctypes.c_uint(359)
    assert in_process.dcmi_get_device_info(0, 0, 52, 1, ctypes.create_string_buffer(359), ctypes.byref(size)) == -8001
    assert in_process.dcmi_get_device_info(0, 0, 52, 1, None, ctypes.byref(ctypes.c_uint(360))) == -8001
    assert in_process.dcmi_get_device_info(0, 0, 52, 9, ctypes.create_string_buffer(360), ctypes.byref(ctypes.c_uint(360))) == -8255
    assert in_process.dcmi_get_device_health(0, 0, None) == -8001
    assert in_process.dcmi_get_device_health(-1, 0, ctypes.byref(size)) == -8001
    assert in_process.dcmi_get_device_health(4, 0, ctypes.byref(size)) == -8008
    assert in_process.dcmi_get_card_list(ctypes.byref(ctypes.c_int()), (ctypes.c_int * 1)(), 0) == -8001
    assert in_process.dcmi_get_dcmi_version(ctypes.create_string_buffer(4), 4) == -8001
    version = ctypes.create_string_buffer(32)
    assert (in_process.dcmi_get_dcmi_version(version, 32), version.value) == (0, b"25.5.0")


def test_nothing_answers_before_init(simulator: DcmiSimulator) -> None:
    """Nor without a driver, nor over a state that nobody can read."""
    simulator.add_chip("910B3")
    program = "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); n = ctypes.c_int(); p = ctypes.byref(n); print("
    program += "l.dcmi_get_device_type(0, 0, p), l.dcmi_init(), l.dcmi_get_device_type(0, 0, p))"

    def answers() -> tuple[list[int], str]:
        command = [sys.executable, "-c", program, str(simulator.library)]
        done = subprocess.run(command, env=os.environ | simulator.environment, capture_output=True, text=True, check=True)
        return [int(word) for word in done.stdout.split()], done.stderr

    assert answers() == ([-8005, 0, 0], "")
    simulator.set_node(init_code=-8005)
    assert answers() == ([-8005, -8005, -8005], "")
    simulator.state_file.write_text("nonsense\n")
    codes, errors = answers()
    assert codes == [-8005, -8005, -8005]
    assert "is malformed" in errors
    simulator.state_file.unlink()
    codes, errors = answers()
    assert codes == [-8005, -8005, -8005]
    assert "No such file" in errors
    simulator.reset()


def test_both_sides_write_the_same_state(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910A", name="odd \x01\x7f\n%name\xff", memory=None, jpegd=0.5)
    simulator.create(chip, "sixteen-letters!", container=0xFFFFFFFFFFFFFFFE, used=None, vfid=None)
    simulator.fault("*", times=0, text="a b=c", value=-(2**40))
    before = simulator.read()
    assert load(dump(before)) == before
    client.ask("symbols")
    simulator.fault("dcmi_init", times=1)
    client.ask("create", 9, 9, "x")
    after = simulator.read()
    assert after.generation > before.generation
    assert replace_generation(after, before.generation, faults=1) == before
    (line,) = [line for line in client.ask("list") if line[""] == "vdev"]
    assert bytes.fromhex(line["name"]) == b"sixteen-letters!"
    assert bytes.fromhex(next(line for line in client.ask("list") if line[""] == "chip")["name"]) == b"odd \x01\x7f\n%name\xff"


def replace_generation(state: State, generation: int, *, faults: int) -> State:
    return replace(state, generation=generation, faults=state.faults[:faults])


# --- chips and ids ---


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"950"}))
def test_every_family_takes_its_templates_until_it_is_full(client: DcmiClient, simulator: DcmiSimulator, family: str) -> None:
    chip = simulator.add_chip(family)
    for template, cores, memory, _ in FAMILIES[family].templates:
        fits = min(FAMILIES[family].cores // cores, FAMILIES[family].memory // memory, FAMILIES[family].slots)
        assert [client.create(chip, template) for _ in range(fits)] == [(0, 100 + slot) for slot in range(fits)]
        assert client.create(chip, template)[0] == -8009
        assert {(vnpu.name, vnpu.aic, vnpu.memory) for vnpu in simulator.vnpus(chip)} == {(template, cores, memory)}
        assert client.destroy(chip, WHOLE_CHIP) == 0
    assert client.create(chip, "vir99")[0] == -8001


def test_a_950_has_nothing_to_split(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("950")
    assert client.create(chip, "vir02")[0] == -8255
    assert client.destroy(chip, 100) == -8255
    assert [line["code"] for line in client.ask("list") if line[""] == "total"] == ["-8255"]


def test_two_dies_of_a_910c_share_a_card(client: DcmiClient, simulator: DcmiSimulator) -> None:
    for _ in range(4):
        simulator.add_chip("910C")
    chips = [(line["card"], line["dev"], line["phy"]) for line in client.ask("list") if line[""] == "chip"]
    assert chips == [("0", "0", "0"), ("0", "1", "1"), ("1", "0", "2"), ("1", "1", "3")]


def test_ids_of_every_phy_id(in_process: ctypes.CDLL, simulator: DcmiSimulator) -> None:
    with simulator.edit() as state:
        state.templates += FAMILIES["910A"].template_lines("910A")
        state.chips += [
            Chip(card=63 - phy, dev=0, phy=phy, logic=(phy + 7) % 64, family="910A", cores=30, memory=32768) for phy in range(64)
        ]
    assert in_process.dcmi_init() == 0
    number, other, reply = ctypes.c_int(), ctypes.c_int(), (ctypes.c_uint * 13)()
    request = ctypes.create_string_buffer(104)
    for phy in range(64):
        assert in_process.dcmi_get_card_id_device_id_from_phyid(ctypes.byref(number), ctypes.byref(other), phy) == 0
        assert (number.value, other.value) == (63 - phy, 0)
        assert in_process.dcmi_get_device_logicid_from_phyid(phy, ctypes.byref(other)) == 0
        assert other.value == (phy + 7) % 64
        assert in_process.dcmi_get_card_id_device_id_from_logicid(ctypes.byref(number), ctypes.byref(reply), other.value) == 0
        assert number.value == 63 - phy
        for wanted, made in ((NEXT_FREE, 0), (100 + 16 * phy + 15, 15), (NEXT_FREE, 1)):
            request.raw = wanted.to_bytes(4, "little") + b"\xff" * 4 + b"vir02".ljust(96, b"\0")
            assert in_process.dcmi_create_vdevice(63 - phy, 0, request, reply) == 0
            assert reply[0] == 100 + 16 * phy + made
        for wrong in (100 + 16 * phy - 1, 100 + 16 * phy + 16, 100 + 16 * phy, 0):
            request.raw = wrong.to_bytes(4, "little") + b"\xff" * 4 + b"vir02".ljust(96, b"\0")
            assert in_process.dcmi_create_vdevice(63 - phy, 0, request, reply) == -8001
    assert in_process.dcmi_get_card_id_device_id_from_phyid(ctypes.byref(number), ctypes.byref(other), 64) == -8007
    assert all(vnpu.vfid == (vnpu.id - 100) % 16 + 1 for vnpu in simulator.vnpus())


def test_the_lowest_free_slot_is_taken_again(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910A", phy=3)
    assert [client.create(chip, "vir02")[1] for _ in range(3)] == [148, 149, 150]
    assert client.destroy(chip, 149) == 0
    assert client.create(chip, "vir04") == (0, 149)
    assert [line["id"] for line in client.ask("list") if line[""] == "vdev"] == ["148", "149", "150"]


def test_vgroups_belong_to_the_310p(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("310P")
    assert [client.create(chip, "vir01", NEXT_FREE, group)[0] for group in (3, 4)] == [0, -8001]
    assert client.create(chip, "vir01")[0] == 0
    assert [vnpu.vfg for vnpu in simulator.vnpus(chip)] == [3, 0]
    assert client.create(simulator.add_chip("910B3"), "vir05_1c_16g", NEXT_FREE, 1)[0] == -8001


# --- destroying ---


def test_a_vnpu_in_use_is_not_destroyed(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    simulator.occupy(vnpu)
    assert client.destroy(chip, vnpu.id) == -8001
    assert simulator.vnpus(chip)[0].used == 1
    simulator.release(vnpu)
    assert client.destroy(chip, vnpu.id) == 0
    assert client.destroy(chip, vnpu.id) == -8008


def test_a_privileged_container_does_not_protect(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    simulator.occupy(vnpu, privileged=True)
    assert client.destroy(chip, vnpu.id) == 0


def test_a_dead_holder_is_forgotten_at_a_destroy(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    with subprocess.Popen(["sleep", "600"]) as holder:
        simulator.occupy(vnpu, occupant=holder.pid)
        assert client.destroy(chip, vnpu.id) == -8001
        holder.kill()
    assert next(line["used"] for line in client.ask("list") if line[""] == "vdev") == "1"
    assert client.destroy(chip, vnpu.id) == 0


@pytest.mark.parametrize("vdev", [0, 99, 115, 132, 1124, 65534, NEXT_FREE])
def test_an_id_outside_the_window_is_refused(client: DcmiClient, simulator: DcmiSimulator, vdev: int) -> None:
    chip = simulator.add_chip("910B3", phy=1)
    simulator.create(chip, "vir05_1c_16g", vdev=vdev, recorded=False)
    assert client.destroy(chip, vdev) == -8001
    assert len(simulator.vnpus(chip)) == 1


def test_the_wildcard_destroys_all_that_is_idle(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chips = [simulator.add_chip("910B3") for _ in range(2)]
    made = [[simulator.create(chip, "vir05_1c_16g") for _ in range(3)] for chip in chips]
    simulator.occupy(made[0][1])
    assert client.destroy(chips[0], WHOLE_CHIP) == -8001
    assert [vnpu.id for vnpu in simulator.vnpus()] == [101, 116, 117, 118]
    simulator.release(made[0][1])
    assert client.destroy(chips[0], WHOLE_CHIP) == 0
    assert [vnpu.id for vnpu in simulator.vnpus()] == [116, 117, 118]
    assert [line.split(":")[1] for line in simulator.cfg_lines()] == ["116", "117", "118"]
    assert [call.arguments["id"] for call in simulator.calls("dcmi_set_destroy_vdevice")] == [WHOLE_CHIP, WHOLE_CHIP]
