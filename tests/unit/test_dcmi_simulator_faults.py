"""The simulated library for Ascend NPUs when it misbehaves: each fault does what it says, when it says, and nothing beyond its buffers."""

import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.dcmi_asking import DcmiClient
from sim.dcmi_simulator import DcmiSimulator, build_client, build_library

DESTROY = "dcmi_set_destroy_vdevice"
INFO = "dcmi_get_device_info"
TOTAL = 1

RETURN_CODES = [*range(-8017, -8000), -8020, -8022, -8023, -8255, -99999, -99998, -99997, -99996, 0, 7]


@pytest.fixture(name="cache", scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "dcmi-cache"


@pytest.fixture(name="simulator", params=[False, True], ids=["plain", "sanitized"], scope="module")
def _simulator(request: pytest.FixtureRequest, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> DcmiSimulator:
    library = build_library(cache, sanitize=request.param)
    return DcmiSimulator(tmp_path_factory.mktemp("node"), library)


@pytest.fixture(name="client")
def _client(request: pytest.FixtureRequest, simulator: DcmiSimulator, cache: Path) -> Iterator[DcmiClient]:
    with simulator:
        yield DcmiClient(simulator, build_client(cache, sanitize=request.node.callspec.params["simulator"]))


def total(client: DcmiClient, card: int = 0) -> tuple[int, int, tuple[int, ...]]:
    """Code, count and ids of the list of vNPUs of a chip."""
    line = client.call(INFO, card, 0, TOTAL)
    count, *ids = struct.unpack_from("<33I", bytes.fromhex(line["bytes"]))
    return int(line["code"]), count, tuple(ids)


# --- return codes, with and without the work ---


def test_every_return_code(client: DcmiClient, simulator: DcmiSimulator) -> None:
    simulator.add_chip("910B3", health=5)
    for code in RETURN_CODES:
        simulator.fault("dcmi_get_device_health", "code", value=code, times=1)
        line = client.call("dcmi_get_device_health")
        assert (line["code"], line["bytes"][:8]) == (str(code), "00000000")
    assert client.call("dcmi_get_device_health")["bytes"][:8] == "05000000"


def test_success_without_destroying(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    simulator.fault(DESTROY, "code", value=0, times=1)
    assert client.destroy(chip, vnpu.id) == 0
    assert [each.id for each in simulator.vnpus(chip)] == [vnpu.id]
    assert len(simulator.cfg_lines()) == 1
    assert client.destroy(chip, vnpu.id) == 0
    assert simulator.vnpus(chip) == []


def test_an_error_after_destroying(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    simulator.fault(DESTROY, "code", value=-8014, effect=True)
    assert client.destroy(chip, vnpu.id) == -8014
    assert simulator.vnpus(chip) == []
    assert simulator.cfg_lines() == []
    (call,) = simulator.calls(DESTROY)
    assert (call.arguments, call.code) == ({"card": 0, "dev": 0, "id": vnpu.id}, -8014)


# --- which calls ---


def test_a_fault_is_for_the_calls_that_it_names(client: DcmiClient, simulator: DcmiSimulator) -> None:
    for _ in range(2):
        chip = simulator.add_chip("910C")
        simulator.create(chip, "vir05_1c_16g")
    simulator.fault("dcmi_get_device_health", "code", value=-8012, card=0, dev=1)
    assert [client.call("dcmi_get_device_health", 0, dev)["code"] for dev in (0, 1)] == ["0", "-8012"]
    simulator.fault(DESTROY, "code", value=-8006, id=65535)
    simulator.fault(INFO, "code", value=-8009, sub=2)
    assert [client.call(INFO, 0, 0, sub)["code"] for sub in (1, 2)] == ["0", "-8009"]
    assert [client.call(DESTROY, 0, 0, vdev)["code"] for vdev in (65535, 100)] == ["-8006", "0"]
    simulator.clear_faults()
    simulator.fault("*", "code", value=-8005)
    assert client.run("list").returncode == 2
    simulator.clear_faults()
    assert client.call("dcmi_get_device_health", 0, 1)["code"] == "0"


def test_a_fault_comes_when_it_is_due_and_goes_when_it_is_spent(client: DcmiClient, simulator: DcmiSimulator) -> None:
    simulator.add_chip("910B3")
    simulator.fault("dcmi_get_device_health", "code", value=-8006, skip=1, times=2)
    last = simulator.fault("dcmi_get_device_health", "code", value=-8012, skip=3)
    codes = [client.call("dcmi_get_device_health")["code"] for _ in range(7)]
    # While one skips and the other waits the call passes; each that skips counts the calls that no earlier one took.
    assert codes == ["0", "-8006", "-8006", "0", "0", "-8012", "-8012"]
    simulator.clear_faults(last)
    assert client.call("dcmi_get_device_health")["code"] == "0"


# --- hanging, slow, crashing ---


def test_a_hung_call_changes_nothing_and_lets_the_others_through(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    simulator.fault(DESTROY, "hang", times=1)
    with client.start("destroy", 0, 0, vnpu.id) as hung:
        simulator.wait_for(DESTROY)
        assert total(client)[1] == 1
        hung.kill()
    assert [call.code for call in simulator.calls(DESTROY)] == [None]
    assert [each.id for each in simulator.vnpus(chip)] == [vnpu.id]


def test_a_hung_call_goes_on_when_it_may(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    simulator.fault(DESTROY, "hang")
    with client.start("destroy", 0, 0, vnpu.id) as hung:
        simulator.wait_for(DESTROY)
        assert simulator.vnpus(chip) == [vnpu]
        simulator.clear_faults()
        assert hung.communicate()[0] == "destroy code=0\n"
    assert simulator.vnpus(chip) == []


def test_a_call_hangs_after_its_work(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    simulator.fault(DESTROY, "hang", effect=True)
    with client.start("destroy", 0, 0, vnpu.id) as hung:
        deadline = time.monotonic() + 60
        while simulator.vnpus(chip):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert hung.poll() is None
        simulator.clear_faults()
        assert hung.communicate()[0] == "destroy code=0\n"


@pytest.mark.parametrize(("action", "status"), [("abort", -signal.SIGABRT), ("segv", -signal.SIGSEGV), ("exit", 9)])
@pytest.mark.parametrize("effect", [False, True])
def test_a_crash(client: DcmiClient, simulator: DcmiSimulator, action: str, status: int, effect: bool) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    simulator.fault(DESTROY, action, value=9, effect=effect, times=1)
    assert client.run("destroy", 0, 0, vnpu.id).returncode == status
    assert [call.code for call in simulator.calls(DESTROY)] == [None]
    assert simulator.vnpus(chip) == ([] if effect else [vnpu])
    assert client.destroy(chip, vnpu.id) == (-8008 if effect else 0)


def test_a_slow_call_works_in_the_end(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    simulator.fault(DESTROY, delay=300)
    begin = time.monotonic()
    with client.start("destroy", 0, 0, vnpu.id) as slow:
        simulator.wait_for(DESTROY)
        assert client.call("dcmi_get_device_health")["code"] == "0"
        assert slow.communicate()[0] == "destroy code=0\n"
    assert time.monotonic() - begin >= 0.3
    assert simulator.vnpus(chip) == []


# --- lies ---


def test_garbage_fills_the_reply_and_no_more(client: DcmiClient, simulator: DcmiSimulator) -> None:
    simulator.add_chip("910B3")
    true = client.call("dcmi_get_device_chip_info")["bytes"]
    simulator.fault("dcmi_get_device_chip_info", "garbage", value=1)
    first, again = (client.call("dcmi_get_device_chip_info")["bytes"] for _ in range(2))
    simulator.clear_faults()
    simulator.fault("dcmi_get_device_chip_info", "garbage", value=2)
    assert first == again != client.call("dcmi_get_device_chip_info")["bytes"]
    assert first[:200] != true[:200]
    assert first[200:] == true[200:] == "00" * 412


def test_a_patch_lands_where_it_is_aimed(client: DcmiClient, simulator: DcmiSimulator) -> None:
    simulator.add_chip("910B3")
    simulator.fault(INFO, "patch", sub=TOTAL, text="4:FEEDFACE", times=1)
    assert total(client)[:2] == (0, 0)
    simulator.fault(INFO, "patch", sub=TOTAL, text="4:FEEDFACE", times=1)
    assert total(client)[2][0] == int.from_bytes(bytes.fromhex("FEEDFACE"), "little")
    simulator.fault(INFO, "patch", text="1/0:00100000", times=1)
    assert client.call(INFO, 0, 0, TOTAL)["size"] == "4096"
    simulator.fault("dcmi_get_device_chip_info", "patch", text="99:ffffff", times=1)  # one byte fits
    assert client.call("dcmi_get_device_chip_info")["bytes"][192:206] == "140000ff000000"


@pytest.mark.parametrize(
    ("action", "value", "expected"),
    [
        ("half", 0, (4, (100, 101, None, None))),
        ("short", 0, (2, (100, 101))),
        ("long", 0, (33, (100, 101, 102, 103, None))),
        ("long", 2**32 - 1, (2**32 - 1, (100, 101, 102, 103, None))),
        ("outside", 65535, (5, (100, 101, 102, 103, 65535))),
        ("outside", 7, (5, (100, 101, 102, 103, 7))),
        ("duplicate", 0, (5, (100, 101, 102, 103, 100))),
    ],
)
def test_a_list_of_vnpus_lies(
    client: DcmiClient, simulator: DcmiSimulator, action: str, value: int, expected: tuple[int, tuple[int | None, ...]]
) -> None:
    chip = simulator.add_chip("910B3")
    for _ in range(4):
        simulator.create(chip, "vir05_1c_16g")
    simulator.fault(INFO, action, value=value, sub=TOTAL)
    code, count, ids = total(client)
    seen = tuple(None if vdev == 2**32 - 1 else vdev for vdev in ids[: len(expected[1])])
    assert (code, count, seen) == (0, *expected)


@pytest.mark.parametrize(
    ("action", "value", "count"), [("half", 0, 2), ("short", 0, 1), ("long", 0, 65), ("long", 2**31, -(2**31)), ("outside", 999, 3)]
)
def test_a_list_of_cards_lies(client: DcmiClient, simulator: DcmiSimulator, action: str, value: int, count: int) -> None:
    for _ in range(2):
        simulator.add_chip("910B3")
    simulator.fault("dcmi_get_card_list", action, value=value)
    lines = client.lines(client.run("list").stdout)
    assert lines[0] == {"": "cards", "code": "0", "count": str(count)}
    asked = [call.arguments["card"] for call in simulator.calls("dcmi_get_device_id_in_card")]
    assert asked == {"half": [0, -1], "short": [0], "outside": [0, 1, 999]}.get(action, [0, 1, -1] if count > 0 else [])


def test_thirty_two_vnpus_on_a_chip(client: DcmiClient, simulator: DcmiSimulator) -> None:
    chip = simulator.add_chip("910A")
    for _ in range(32):
        simulator.create(chip, "vir02", recorded=False)
    assert total(client) == (0, 32, tuple(range(100, 132)))


def test_names_with_control_characters(client: DcmiClient, simulator: DcmiSimulator) -> None:
    name = "vir\n\x1b[2J\x00"
    chip = simulator.add_chip("910B3", name="a\tb\x07")
    simulator.create(chip, name[:-1], recorded=False)
    lines = client.ask("list")
    assert [bytes.fromhex(line["name"]) for line in lines if "name" in line] == [b"a\tb\x07", b"vir\n\x1b[2J"]


# --- the node changes under a reader ---


def test_a_card_vanishes_during_a_list(client: DcmiClient, simulator: DcmiSimulator) -> None:
    for _ in range(3):
        simulator.add_chip("910B3")
    simulator.fault("dcmi_get_device_id_in_card", "vanish", value=2, skip=1, times=1)
    lines = client.lines(client.run("list").stdout)
    assert [(line["id"], line["code"]) for line in lines if line[""] == "card"] == [("0", "0"), ("1", "0"), ("2", "-8008")]
    assert client.ask("list")[0]["count"] == "2"


def test_the_state_changes_as_a_call_begins(client: DcmiClient, simulator: DcmiSimulator) -> None:
    """Between the last look and the destroy: the vNPU is another one, and in use."""
    chip = simulator.add_chip("910B3")
    vnpu = simulator.create(chip, "vir05_1c_16g")
    with simulator.swap_at(DESTROY, times=1) as state:
        (other,) = state.vnpus
        state.vnpus = [type(other)(other.card, other.dev, other.id, "vir10_3c_32g", used=1)]
    assert [bytes.fromhex(line["name"]) for line in client.listed("vdev")] == [b"vir05_1c_16g"]
    assert client.destroy(chip, vnpu.id) == -8001
    assert [bytes.fromhex(line["name"]) for line in client.listed("vdev")] == [b"vir10_3c_32g"]
    assert simulator.read().faults == []


def test_a_list_under_every_lie_stays_within_its_buffers(client: DcmiClient, simulator: DcmiSimulator) -> None:
    """The client has walls around every buffer and, sanitized, its run-time watches too."""
    simulator.add_chip("310P")
    simulator.create(simulator.read().chip(0), "vir01", name="sixteen-letters!")
    for action in ("garbage", "half", "short", "long", "outside", "duplicate"):
        simulator.fault("*", action, value=3)
        done = client.run("list")
        assert done.returncode in (0, 1, 2), done
        assert "overrun" not in done.stdout
        assert done.stderr == ""
        simulator.clear_faults()
    assert client.run("churn", 0, 0, "vir01", 50).stdout == "churn made=50 full=0 lost=0\n"
