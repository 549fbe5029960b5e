"""What the host shows of NPUs: names, nodes by lstat alone, and /etc/vnpu.cfg, whatever is in it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.npu import nodes as nodes_room
from devward.npu import presence, vnpu_cfg
from devward.npu.host import HostNode
from devward.npu.nodes import read_nodes
from devward.npu.vnpu_cfg import ABSENT, Record, Records
from sim.descriptors import open_descriptors, opened_since
from sim.mount_namespace import mount
from sim.mount_namespace import run_in_mount_namespace as in_namespace

MAJOR = 4000


@pytest.mark.parametrize("name", ["davinci0", "davinci255", "vdavinci100", "vdavinci1123", "davinci_manager", "davinci_manager_docker"])
def test_names_of_nodes(name: str) -> None:
    assert presence.is_node(name)


#: The last one ends in a digit that is not ASCII.
@pytest.mark.parametrize(
    "name",
    [
        "",
        "kvm",
        "davinci",
        "vdavinci",
        "davinci01",
        "davinci-1",
        "xdavinci1",
        "davinci1x",
        "davinci12345",
        "davinci_manager2",
        "davinci\u0661",
    ],
)
def test_other_names(name: str) -> None:
    assert not presence.is_node(name)


def test_presence_is_a_name(tmp_path: Path) -> None:
    assert not presence.present(str(tmp_path))
    assert not presence.present(str(tmp_path / "absent"))
    (tmp_path / "davinci_manager").touch()
    assert presence.present(str(tmp_path))


# --- nodes ---------------------------------------------------------------------------------------------------------------
def test_what_is_no_device_is_told(tmp_path: Path) -> None:
    (tmp_path / "davinci0").touch()
    (tmp_path / "davinci1").symlink_to("/dev/null")
    (tmp_path / "davinci2").mkdir()
    os.mkfifo(tmp_path / "davinci3")
    (tmp_path / "kvm").touch()
    found = read_nodes(str(tmp_path), "/sys")
    assert sorted(found) == ["davinci0", "davinci1", "davinci2", "davinci3"]
    assert not any(node.is_character_device for node in found.values())
    assert all(node.number == "" for node in found.values())


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        read_nodes(str(tmp_path / "absent"), "/sys")


def test_a_flood_of_names_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_room, "NODE_LIMIT", 3)
    for number in range(4):
        (tmp_path / f"davinci{number}").touch()
    with pytest.raises(OSError, match="more than 3"):
        read_nodes(str(tmp_path), "/sys")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: device nodes")
def test_a_device_its_number_and_what_the_kernel_calls_it(tmp_path: Path) -> None:
    devices, numbers = tmp_path / "dev", tmp_path / "sys" / "dev" / "char"
    devices.mkdir()
    numbers.mkdir(parents=True)
    for name, minor in (("davinci3", 3), ("vdavinci148", 148)):
        os.mknod(devices / name, 0o20600, os.makedev(MAJOR, minor))
    (numbers / f"{MAJOR}:3").symlink_to("../../devices/virtual/cuse/davinci3")
    status = os.lstat(devices / "davinci3")
    found = read_nodes(str(devices), str(tmp_path / "sys"))
    assert found["davinci3"] == HostNode(
        "davinci3",
        status.st_ino,
        status.st_ctime_ns,
        is_character_device=True,
        covered=False,
        major=MAJOR,
        minor=3,
        kernel_name="davinci3",
    )
    assert found["davinci3"].number == "4000:3"
    assert found["vdavinci148"].kernel_name is None


def part_with_a_cover(directory: str) -> None:
    os.mknod(f"{directory}/davinci3", 0o20600, os.makedev(MAJOR, 3))
    mount("--bind", "/dev/null", f"{directory}/davinci3")
    assert read_nodes(directory, "/sys")["davinci3"].covered


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes")
def test_something_mounted_over_a_node_is_seen(tmp_path: Path) -> None:
    in_namespace(part_with_a_cover, tmp_path)


# --- /etc/vnpu.cfg -------------------------------------------------------------------------------------------------------
GOOD = b"""vnpu_config_recover:enable
[vnpu-config start]
3:148:npu-smi set -t create-vnpu -i 3 -c 0 -f vir05_1c_16g -v 148
0:101:npu-smi set -t create-vnpu -i 0 -c 1 -f vir02 -v 101 -g 2
[vnpu-config end]
"""


def test_a_file_as_the_vendor_writes_it() -> None:
    assert vnpu_cfg.parse(GOOD) == Records(
        present=True, recover=True, records=(Record(3, 148, 3, 0, "vir05_1c_16g"), Record(0, 101, 0, 1, "vir02", 2))
    )
    assert vnpu_cfg.parse(GOOD.replace(b"enable", b"disable")).recover is False
    assert vnpu_cfg.parse(b"") == Records(present=True)
    assert vnpu_cfg.parse(b"vnpu_config_recover:disable\n") == Records(present=True, recover=False)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (GOOD.replace(b"[vnpu-config end]\n", b""), "it has no end"),
        (GOOD.replace(b"-v 148", b"-v 149"), "lines that say nothing of use: 3"),
        (GOOD.replace(b"-i 3", b"-i x"), "lines that say nothing of use: 3"),
        (GOOD.replace(b"0:101:", b"3:148:").replace(b"-v 101", b"-v 148"), "lines that say nothing of use: 4"),
        (GOOD.replace(b"vir02", b"vir02; rm -rf /"), "lines that say nothing of use: 4"),
        (GOOD.replace(b"vir02", b"v" * 300), "lines that say nothing of use: 4"),
        (GOOD.replace(b"-v 148", b"-v 148" + b" " * 300), "lines that say nothing of use: 3"),
        (GOOD.replace(b"148:", "\u0661\u0664\u0668:".encode()), "lines that say nothing of use: 3"),
        (b"\xff\x00\n" * 9, "lines that say nothing of use: 1, 2, 3, 4, 5 and 4 more"),
        (GOOD + GOOD, "lines that say nothing of use: 6, 7, 8, 9, 10"),
        (b"x" * (vnpu_cfg.FILE_LIMIT + 1), f"it is larger than {vnpu_cfg.FILE_LIMIT} bytes"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(content: bytes, problem: str) -> None:
    assert vnpu_cfg.parse(content).problem == problem


def test_good_lines_among_bad_ones_count() -> None:
    assert vnpu_cfg.parse(GOOD.replace(b"-i 3", b"-i x")).records == (Record(0, 101, 0, 1, "vir02", 2),)


def test_the_largest_file_is_bounded() -> None:
    content = b"[vnpu-config start]\n" + b"?\n" * (vnpu_cfg.FILE_LIMIT // 2 - 20)
    found = vnpu_cfg.parse(content)
    assert (found.records, len(found.problem) < 200) == ((), True)


@given(st.binary(max_size=400) | st.lists(st.sampled_from([*GOOD.splitlines(), b"", b"junk", b"\r"])).map(b"\n".join))
def test_any_content_gives_a_value(content: bytes) -> None:
    found = vnpu_cfg.parse(content)
    assert found.present
    assert found.problem.isprintable()
    assert len({record.vdev for record in found.records}) == len(found.records)


def test_reading(tmp_path: Path) -> None:
    file = tmp_path / "vnpu.cfg"
    assert vnpu_cfg.read(str(file)) is ABSENT
    file.write_bytes(GOOD)
    assert vnpu_cfg.read(str(file)) == vnpu_cfg.parse(GOOD)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.symlink_to("/etc/passwd"), "it is a symbolic link"),
        (lambda path: path.mkdir(), "it is not a regular file"),
        (os.mkfifo, "it is not a regular file"),
    ],
)
def test_what_is_no_file_is_neither_followed_nor_waited_for(tmp_path: Path, make: Callable[[Path], None], problem: str) -> None:
    file = tmp_path / "vnpu.cfg"
    make(file)
    before = open_descriptors()
    assert vnpu_cfg.read(str(file)) == Records(present=True, problem=problem)
    assert not opened_since(before)
