"""The driver's own list of devices and of the containers that use them."""

import os
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from devward.cluster.evidence import Finding, SourceState
from devward.cluster.uda import UdaDevice, UdaDoubt, UdaError, UdaScan, UdaSpace, parse_devices, parse_spaces, scan_uda
from sim.patience import must_not_block

DEVICES = """udevid 0 type(david) status 'ready, sia' added_udevid 0 chip_type ascend910B
        remote udevid 0
        add_id 0
        has os device

udevid 100 type(david) status 'ready, mia' added_udevid 100 chip_type ascend910B
        mia para: phy_devid 0 sub_devid 1
        has used by container, ns id 3

udevid 101 type(david) status 'suspend, mia' added_udevid 101 chip_type ascend910B
        mia para: phy_devid 0 sub_devid 2

udevid 102 status 'ready, mia' added_udevid 102 chip_type ascend910B
        shared dev used by ns id: 4 5

"""
SPACES = """ns_id 0 identify 0 root_tgid 1 dev_num 1 namespace 00000000a1b2c3d4, udev list:
        logic_devid udevid
        0 0

ns_id 3 identify ffffffffffff root_tgid 4711 dev_num 2 namespace 00000000deadbeef, udev list:
        logic_devid udevid
        0 100
        1 103

"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    directory = tmp_path / "uda"
    directory.mkdir()
    (directory / "udevice").write_text(DEVICES)
    (directory / "namespace_node").write_text(SPACES)
    return tmp_path


def codes(found: UdaScan) -> list[str]:
    return [doubt.code for doubt in found.doubts]


def test_devices() -> None:
    assert parse_devices(DEVICES) == (
        UdaDevice(0, is_ready=True),
        UdaDevice(100, is_ready=True, card=0, slot=1, spaces=frozenset({3})),
        UdaDevice(101, is_ready=False, card=0, slot=2),
        UdaDevice(102, is_ready=True, spaces=frozenset({4, 5})),
    )


def test_spaces() -> None:
    assert parse_spaces(SPACES) == (
        UdaSpace(0, 1, is_readers=False, devices=frozenset({0})),
        UdaSpace(3, 4711, is_readers=False, devices=frozenset({100, 103})),
    )


def test_who_uses_a_vnpu(proc: Path) -> None:
    found = scan_uda(str(proc))
    assert (found.state, found.doubts) == (SourceState.READ, ())
    # 100 by both lists, 102 by the devices' alone, 103 by the namespaces' alone, 104 by none: the driver does not know it.
    assert [found.finding(vdev) for vdev in (100, 101, 102, 103, 104)] == [
        Finding.HELD,
        Finding.CLEAN,
        Finding.HELD,
        Finding.HELD,
        Finding.UNKNOWN,
    ]
    assert (found.users(100), found.users(101)) == ((4711,), ())


def test_a_host_without_it_has_no_doubt(tmp_path: Path) -> None:
    found = scan_uda(str(tmp_path))
    assert (found.state, found.finding(100)) == (SourceState.NOT_PRESENT, Finding.CLEAN)


def test_a_directory_without_the_files_is_doubt(tmp_path: Path) -> None:
    (tmp_path / "uda").mkdir()
    assert scan_uda(str(tmp_path)).finding(100) is Finding.UNKNOWN


@pytest.mark.parametrize("name", ["udevice", "namespace_node"])
@pytest.mark.parametrize("content", [None, "nonsense", "\xe4", "directory", "fifo", "large"])
def test_what_exists_and_cannot_be_read_is_doubt(proc: Path, name: str, content: str | None) -> None:
    file = proc / "uda" / name
    file.unlink()
    if content == "directory":
        file.mkdir()
    elif content == "fifo":
        os.mkfifo(file)
    elif content == "large":
        file.write_text("\n" * 2_000_000)
    elif content is not None:
        file.write_text(content)
    with must_not_block():
        found = scan_uda(str(proc))
    assert (found.state, len(found.doubts), found.finding(101)) == (SourceState.UNREADABLE, 1, Finding.UNKNOWN)


def test_a_line_that_is_not_known_is_doubt_about_its_device_alone(proc: Path) -> None:
    (proc / "uda/udevice").write_text(DEVICES.replace("sub_devid 2", "sub_devid 2\n        has used by somebody else"))
    found = scan_uda(str(proc))
    assert (found.finding(101), found.finding(102)) == (Finding.UNKNOWN, Finding.HELD)
    (proc / "uda/udevice").write_text(DEVICES.replace("has os device", "has something else"))
    assert scan_uda(str(proc)).finding(101) is Finding.CLEAN


def test_a_reader_whom_the_driver_takes_for_a_container_knows_nothing(proc: Path) -> None:
    (proc / "uda/namespace_node").write_text(SPACES.replace("deadbeef,", "deadbeef(#),"))
    found = scan_uda(str(proc))
    assert (codes(found), found.finding(101)) == ([UdaDoubt.READER_IS_CONTAINER], Finding.UNKNOWN)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dev_num 2", "dev_num 3"),
        ("1 103", "1 100"),
        ("1 103", "1 x"),
        ("logic_devid udevid", "udevid logic_devid"),
        ("root_tgid 4711", "root_tgid -1"),
    ],
)
def test_namespaces_that_are_not_understood_are_refused(old: str, new: str) -> None:
    with pytest.raises(UdaError):
        parse_spaces(SPACES.replace(old, new))


@pytest.mark.parametrize(("old", "new"), [("udevid 101", "udevid 100"), ("'ready,", "'new,"), ("udevid 0 type", "device 0 type")])
def test_devices_that_are_not_understood_are_refused(old: str, new: str) -> None:
    with pytest.raises(UdaError):
        parse_devices(DEVICES.replace(old, new))


def test_too_many_records_are_refused() -> None:
    with pytest.raises(UdaError):
        parse_devices("".join(f"udevid {number} status 'ready, sia' added_udevid 0 chip_type x\n\n" for number in range(3000)))


LINES = st.sampled_from([*DEVICES.splitlines(), *SPACES.splitlines()]) | st.text(max_size=40)


@hypothesis.given(st.lists(LINES, max_size=20).map("\n".join))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parse in (parse_devices, parse_spaces):
        try:
            parse(text)
        except UdaError:
            continue
