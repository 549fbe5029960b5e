"""What the host is called by itself: what is written in its files, and no id that another machine could have as well."""

import os
from pathlib import Path

import pytest

from devward.boot import BOOT_ID, read_boot_id
from devward.cluster.node import NodeRefusal
from devward.cluster.parts import HostFacts
from devward.cluster.this_host import MACHINE_IDS, read_machine_ids, read_this_host
from sim.patience import must_not_block
from sim.snapshot_desk import SnapshotDesk

BOOT = "1c568bfe-55ae-4622-8494-4cdf3961d23a"
ONE, TWO = "3d1219c7c4c5404aaa1f6d2a48adfda4", "0f8fad5bd9cb469fa16570867728950e"
FIRMWARE = "4C4C4544-0042-3510-8051-B4C04F4A3132"
ETC, DBUS, DMI = MACHINE_IDS
needs_non_root = pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: permissions bind")


class Tree:
    """A root directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.path(name)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def path(self, name: str) -> Path:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def ids(self) -> frozenset[str]:
        with must_not_block():
            return read_machine_ids(str(self.root))

    def boot(self) -> str:
        with must_not_block():
            return read_this_host("node-1", str(self.root)).boot_id


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_everything_that_is_there_is_read(tree: Tree) -> None:
    tree.write(BOOT_ID, f"{BOOT}\n")
    tree.write(ETC, f"{ONE}\n")
    tree.write(DBUS, f"{TWO}\n")
    tree.write(DMI, f"{FIRMWARE}\n")
    assert read_this_host("node-1", str(tree.root)) == HostFacts("node-1", BOOT, frozenset({ONE, TWO, FIRMWARE}))


def test_nothing_is_nothing(tree: Tree) -> None:
    assert read_this_host("node-1", str(tree.root)) == HostFacts("node-1", "", frozenset())


def test_this_very_host_has_a_boot() -> None:
    assert read_boot_id() == Path(BOOT_ID).read_text(encoding="ascii").strip()


@pytest.mark.parametrize("name", MACHINE_IDS)
def test_one_of_them_is_enough(tree: Tree, name: str) -> None:
    tree.write(name, ONE)
    assert tree.ids() == {ONE}


def test_the_kubelet_takes_away_white_space_and_nothing_else(tree: Tree) -> None:
    tree.write(ETC, f" \t{ONE.upper()}\r\n\n")
    assert tree.ids() == {ONE.upper()}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        "uninitialized\n",
        "0" * 32,
        "F" * 32,
        "00000000-0000-0000-0000-000000000000",
        "Ffffffff-ffff-ffff-ffff-ffffffffffff",
        ONE[:-1],
        f"{ONE}0",
        f"{ONE}\n{TWO}",
        f"{ONE[:-1]}g",
        f"{ONE[:8]} {ONE[9:]}",
        BOOT.replace("-", "", 1),
        "Not Settable",
        b"\xff" * 32,
        "\N{FULLWIDTH DIGIT ONE}" * 32,
        ONE + " " * 300,
    ],
)
def test_what_is_no_id_of_one_machine_is_none(tree: Tree, content: str | bytes) -> None:
    for name in MACHINE_IDS:
        tree.write(name, content)
    assert tree.ids() == frozenset()
    tree.write(BOOT_ID, content)
    assert tree.boot() == ""
    with pytest.raises(OSError, match=r"\[Errno"):
        read_boot_id(str(tree.root))


def test_a_boot_has_the_form_that_the_kernel_gives_it(tree: Tree) -> None:
    tree.write(BOOT_ID, f"{ONE}\n")
    assert tree.boot() == ""
    tree.write(BOOT_ID, f"{BOOT.upper()}\n")
    assert tree.boot() == ""


def test_links_are_followed_within_the_root(tree: Tree) -> None:
    tree.path(ETC).symlink_to("/data/machine-id")
    tree.write("/data/machine-id", ONE)
    tree.path(DBUS).symlink_to("/etc/machine-id")
    tree.write("/sys/devices/virtual/dmi/id/product_uuid", FIRMWARE)
    (tree.root / "sys/class/dmi").mkdir(parents=True)
    (tree.root / "sys/class/dmi/id").symlink_to("../../devices/virtual/dmi/id")
    assert tree.ids() == {ONE, FIRMWARE}
    tree.path("/data/machine-id").unlink()
    assert tree.ids() == {FIRMWARE}


def test_a_link_does_not_lead_out_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text(ONE)
    tree = Tree(tmp_path / "root")
    tree.path(ETC).symlink_to(tmp_path / "outside")
    tree.path(DBUS).symlink_to("../../../../outside")
    assert tree.ids() == frozenset()


@pytest.mark.parametrize("kind", ["fifo", "directory", "circle"])
def test_what_is_no_file_is_left_out(tree: Tree, kind: str) -> None:
    for name in (BOOT_ID, ETC):
        if kind == "fifo":
            os.mkfifo(tree.path(name))
        elif kind == "directory":
            tree.path(name).mkdir()
        else:
            tree.path(name).symlink_to(tree.path(name).name)
    tree.write(DBUS, TWO)
    assert (tree.boot(), tree.ids()) == ("", {TWO})


@needs_non_root
def test_what_may_not_be_read_is_left_out(tree: Tree) -> None:
    tree.write(ETC, ONE)
    tree.write(DMI, FIRMWARE).chmod(0)
    assert tree.ids() == {ONE}


# --- held against a Node ---


def recorded(tree: Tree, machine: str) -> Tree:
    tree.write(BOOT_ID, f"{BOOT}\n")
    tree.write(ETC, f"{machine}\n")
    return tree


@pytest.mark.parametrize(("machine", "is_ours"), [(ONE, True), (TWO, False), (ONE.upper(), False)])
def test_a_recorded_node_is_of_the_machine_that_says_so_itself(tree: Tree, machine: str, is_ours: bool) -> None:
    name = SnapshotDesk().facts.node_name
    desk = SnapshotDesk(read_this_host(name, str(recorded(tree, machine).root)))
    codes = {unknown.reason for unknown in desk.settle().unknowns}
    assert (NodeRefusal.MACHINE_DIFFERS.value not in codes) is is_ours
    assert NodeRefusal.BOOT_DIFFERS.value not in codes
