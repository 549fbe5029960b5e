"""What the broker destroys: the expected vNPU, idle and unheld, and nothing else, whatever differs and whatever cannot be known."""

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.evidence import DeviceNumber, Finding
from devward.npu import destruction, numbering
from devward.npu.codes import DcmiCode
from devward.npu.dcmi import Dcmi
from devward.npu.destruction import ScanResult, Surroundings, destroy, destroy_lock, read_node
from devward.npu.facts import Expected, Node, Outcome, Refusal, Refused
from devward.npu.protocol import DestroyAnswer, DestroyRequest
from devward.npu.vendor import DcmiError
from sim.dcmi_vendor import FakeChip, FakeVendor, vnpu

BOOT = "0f3c2a10-1111-4222-8333-444455556666"
DIE = "00000001-00000002-00000003-00000004-00000005"
NODE = Node(77, 1_700_000_000_000_000_001, 236, 149)
EXPECTED = Expected(BOOT, 2, 0, 3, DIE, 149, 2, "vir05_1c_16g", NODE)
REQUEST = DestroyRequest(1, "r1", 0, "containerd://1.7.2", EXPECTED)


@dataclass
class Host:
    """A host with the expected vNPU on it, and what may be otherwise."""

    vendor: FakeVendor = field(
        default_factory=lambda: FakeVendor(
            {(1, 0): FakeChip(1, die=(9, 9, 9, 9, 9)), (2, 0): FakeChip(3, vnpus={148: vnpu(148), 149: vnpu(149), 150: vnpu(150, used=1)})}
        )
    )
    boot_id: str = BOOT
    nodes: dict[int, Node] = field(default_factory=lambda: {149: NODE})
    scan_result: ScanResult = field(default_factory=lambda: ScanResult(Finding.CLEAN, "clean"))
    wanted: Refused | None = None
    ending: Refused | None = None
    lock: Refused | None = None
    trail: list[str] = field(default_factory=list)
    code: int | None = None

    def __post_init__(self) -> None:
        self.vendor.before = self.trail.append

    @property
    def chip(self) -> FakeChip:
        return self.vendor.chips[2, 0]

    def change(self, **changes: object) -> None:
        """Change the vNPU."""
        self.chip.vnpus[149] = replace(self.chip.vnpus[149], **changes)  # type: ignore[arg-type]

    def surroundings(self) -> Surroundings:
        return Surroundings(
            boot_id=lambda: self.boot_id,
            node=self.node,
            scan=self.scan,
            step=self.trail.append,
            lock=lambda: self.held("lock", self.lock),
            require_wanted=self.require_wanted,
            call=lambda: self.held("call", self.ending),
            called=self.note,
        )

    def node(self, vdev: int) -> Node:
        if vdev not in self.nodes:
            raise Refused(Refusal.NODE_MISSING, "there is none")
        return self.nodes[vdev]

    def scan(self, vdev: int, number: DeviceNumber, runtime: str) -> ScanResult:
        assert (vdev, number, runtime) == (149, DeviceNumber(236, 149), "containerd://1.7.2")
        self.trail.append("scan")
        return self.scan_result

    def require_wanted(self) -> None:
        self.trail.append("wanted")
        if self.wanted is not None:
            raise self.wanted

    @contextlib.contextmanager
    def held(self, name: str, refused: Refused | None) -> Iterator[None]:
        if refused is not None:
            raise refused
        self.trail.append(f"{name} begins")
        yield
        self.trail.append(f"{name} ends")

    def note(self, code: int) -> None:
        self.code = code

    def destroy(self, request: DestroyRequest = REQUEST) -> DestroyAnswer:
        return destroy(self.vendor, request, self.surroundings())

    def refusal(self, request: DestroyRequest = REQUEST) -> Refusal:
        """Destroy, in vain."""
        with pytest.raises(Refused) as refused:
            self.destroy(request)
        assert self.vendor.destroyed == []
        assert self.code is None
        return refused.value.reason


@pytest.fixture(name="host")
def _host() -> Host:
    return Host()


def expecting(**changes: object) -> DestroyRequest:
    return replace(REQUEST, expected=replace(EXPECTED, **changes))  # type: ignore[arg-type]


# --- the expected one -------------------------------------------------------------------------------------------------
def test_the_expected_vnpu_is_destroyed_once(host: Host) -> None:
    assert host.destroy() == DestroyAnswer(1, Outcome.DESTROYED, 0, "it is not listed any more")
    assert host.vendor.destroyed == [(2, 0, 149)]
    assert host.code == 0
    assert sorted(host.chip.vnpus) == [148, 150]


def test_everything_is_looked_at_again_after_the_scan_and_under_one_lock(host: Host) -> None:
    host.destroy()
    calls = ["device_type", "health", "die", "vdev", "mode"]
    before, after = host.trail[: host.trail.index("scan")], host.trail[host.trail.index("scan") : host.trail.index("call begins")]
    assert host.trail[0] == "lock begins"
    assert host.trail[-1] == "lock ends"
    for trail in (before, after):
        assert set(calls) <= set(trail)
    assert host.trail[host.trail.index("call begins") - 1] == "wanted"
    assert host.trail[host.trail.index("call begins") :] == ["call begins", "destroy", "call ends", "total_resources", "lock ends"]


def test_a_mode_that_is_not_there_is_docker(host: Host) -> None:
    for code in (DcmiCode.NOT_SUPPORTED, DcmiCode.SYMBOL_MISSING):
        host = Host()
        host.vendor.failing["mode"] = code
        assert host.destroy().outcome is Outcome.DESTROYED


def test_a_vfid_that_is_not_given_follows_from_the_id(host: Host) -> None:
    host.change(vfid=None)
    assert host.destroy().outcome is Outcome.DESTROYED


# --- each field alone ---------------------------------------------------------------------------------------------------
OTHERS: list[tuple[str, dict[str, object], Refusal]] = [
    ("boot", {"boot_id": BOOT.replace("0f", "1f")}, Refusal.BOOT_DIFFERS),
    ("card", {"card": 1}, Refusal.PHY_DIFFERS),
    ("no card", {"card": 5}, Refusal.CHIP_UNKNOWN),
    ("device", {"device": 1}, Refusal.CHIP_UNKNOWN),
    ("phy", {"phy": 2}, Refusal.OUTSIDE_WINDOW),
    ("die", {"die": DIE.replace("5", "6")}, Refusal.DIE_DIFFERS),
    ("vdev", {"vdev": 151, "vfid": 4}, Refusal.NODE_MISSING),
    ("vfid", {"vfid": 3}, Refusal.VFID_DIFFERS),
    ("template", {"template": "vir10_3c_32g"}, Refusal.TEMPLATE_DIFFERS),
    ("inode", {"node": replace(NODE, inode=78)}, Refusal.NODE_DIFFERS),
    ("ctime", {"node": replace(NODE, ctime_ns=NODE.ctime_ns + 1)}, Refusal.NODE_DIFFERS),
    ("major", {"node": replace(NODE, major=237)}, Refusal.NODE_DIFFERS),
    ("minor", {"node": replace(NODE, minor=148)}, Refusal.NODE_DIFFERS),
]


@pytest.mark.parametrize(("changes", "reason"), [one[1:] for one in OTHERS], ids=[one[0] for one in OTHERS])
def test_another_expectation_is_refused(host: Host, changes: dict[str, object], reason: Refusal) -> None:
    assert host.refusal(expecting(**changes)) is reason


def test_a_chip_with_another_physical_id_is_refused(host: Host) -> None:
    host.chip.phy = 4
    assert host.refusal() is Refusal.PHY_DIFFERS


def test_a_vnpu_that_is_gone_is_refused(host: Host) -> None:
    del host.chip.vnpus[149]
    assert host.refusal() is Refusal.VNPU_ABSENT


def test_a_template_that_cannot_be_read_is_refused(host: Host) -> None:
    for name in (None, b"", b"vir05\x1b[2J", b"\xe9\xe9"):
        host.change(name=name)
        assert host.refusal() is Refusal.TEMPLATE_DIFFERS


def test_a_vfid_that_contradicts_the_id_is_refused_though_it_was_expected(host: Host) -> None:
    host.change(vfid=5)
    assert host.refusal() is Refusal.VFID_DIFFERS
    assert host.refusal(expecting(vfid=5)) is Refusal.VFID_DIFFERS


# --- ids ------------------------------------------------------------------------------------------------------------------
def test_the_id_of_all_vnpus_is_refused_before_anything_is_asked(host: Host) -> None:
    assert host.refusal(expecting(vdev=numbering.WILDCARD)) is Refusal.WILDCARD
    assert host.trail == []


@pytest.mark.parametrize("vdev", [0, 3, 99, 147, 164, 1124, 65534, 65536, 0xFFFFFFFF])
def test_an_id_outside_the_window_is_refused_though_the_chip_lists_it(host: Host, vdev: int) -> None:
    host.chip.vnpus = {vdev: vnpu(149)}
    host.nodes[vdev] = NODE
    assert host.refusal(expecting(vdev=vdev)) is Refusal.OUTSIDE_WINDOW


def test_a_chip_that_lists_any_id_outside_its_window_is_refused(host: Host) -> None:
    host.chip.vnpus[164] = vnpu(164)
    assert host.refusal() is Refusal.OUTSIDE_WINDOW
    del host.chip.vnpus[164]
    host.chip.vnpus[numbering.WILDCARD] = vnpu(149)
    assert host.refusal() is Refusal.WILDCARD


def test_a_chip_that_lists_an_id_twice_is_refused(host: Host) -> None:
    host.chip.ids = (149, 150, 149)
    assert host.refusal() is Refusal.CHIP_UNKNOWN


@pytest.mark.parametrize("vdev", [numbering.WILDCARD, 99, 1124, -1])
def test_the_binding_itself_takes_no_such_id(vdev: int) -> None:
    with pytest.raises(ValueError, match="not the id of a vNPU"):
        Dcmi.destroy(object.__new__(Dcmi), 0, 0, vdev)


# --- use ------------------------------------------------------------------------------------------------------------------
def test_a_vnpu_in_use_is_refused(host: Host) -> None:
    host.change(used=1)
    assert host.refusal() is Refusal.IN_USE


@pytest.mark.parametrize("used", [None, 2, 0xFFFFFFFE])
def test_a_vnpu_whose_use_is_not_known_is_refused(host: Host, used: int | None) -> None:
    host.change(used=used)
    assert host.refusal() is Refusal.USE_UNKNOWN


def test_a_vnpu_that_is_held_on_the_host_is_refused(host: Host) -> None:
    host.scan_result = ScanResult(Finding.HELD, "descriptors held")
    assert host.refusal() is Refusal.SCAN_IN_USE


def test_a_scan_that_does_not_know_is_refused(host: Host) -> None:
    host.scan_result = ScanResult(Finding.UNKNOWN, "bundles unknown")
    assert host.refusal() is Refusal.SCAN_UNKNOWN


def during_scan(host: Host, change: Callable[[], None]) -> None:
    """Let something happen while the host's processes are scanned."""
    clean = host.scan_result

    def scan(*_: object) -> ScanResult:
        change()
        return clean

    host.scan = scan  # type: ignore[method-assign]


MEANWHILE: list[tuple[str, Callable[[Host], None], Refusal]] = [
    ("used", lambda host: host.change(used=1), Refusal.IN_USE),
    ("another template", lambda host: host.change(name=b"vir10_3c_32g"), Refusal.TEMPLATE_DIFFERS),
    ("gone", lambda host: host.chip.vnpus.clear(), Refusal.VNPU_ABSENT),
    ("another node", lambda host: host.nodes.update({149: replace(NODE, inode=5)}), Refusal.NODE_DIFFERS),
    ("another card", lambda host: setattr(host.chip, "die", (1, 2, 3, 4, 6)), Refusal.DIE_DIFFERS),
    ("a reset", lambda host: setattr(host.chip, "health", 1), Refusal.CHIP_UNHEALTHY),
    ("the mode", lambda host: setattr(host.vendor, "vdevice_mode", 1), Refusal.VM_MODE),
]


@pytest.mark.parametrize(("change", "reason"), [one[1:] for one in MEANWHILE], ids=[one[0] for one in MEANWHILE])
def test_what_happens_during_the_scan_is_seen(host: Host, change: Callable[[Host], None], reason: Refusal) -> None:
    during_scan(host, lambda: change(host))
    assert host.refusal() is reason


# --- the host and the chip ---------------------------------------------------------------------------------------------
def test_vnpus_for_virtual_machines_are_refused(host: Host) -> None:
    host.vendor.vdevice_mode = 1
    assert host.refusal() is Refusal.VM_MODE


@pytest.mark.parametrize("mode", [None, 2])
def test_a_mode_that_is_not_known_is_refused(host: Host, mode: int | None) -> None:
    host.vendor.vdevice_mode = mode
    assert host.refusal() is Refusal.MODE_UNKNOWN


def test_a_mode_that_cannot_be_read_is_refused(host: Host) -> None:
    host.vendor.failing["mode"] = DcmiCode.INTERNAL
    assert host.refusal() is Refusal.MODE_UNKNOWN


def test_an_unhealthy_chip_is_refused(host: Host) -> None:
    host.chip.health = 1
    assert host.refusal() is Refusal.CHIP_UNHEALTHY


def test_what_is_no_npu_is_refused(host: Host) -> None:
    host.chip.kind = 1
    assert host.refusal() is Refusal.NO_SUCH_CHIP


@pytest.mark.parametrize(
    "call",
    ["device_type", "logic_id", "phy_id", "address_of_phy", "chip_names", "die", "health", "total_resources", "vdev"],
)
def test_a_chip_of_which_anything_cannot_be_read_is_refused(host: Host, call: str) -> None:
    host.vendor.failing[call] = DcmiCode.NOT_READY
    assert host.refusal() is Refusal.CHIP_UNKNOWN


def test_a_chip_whose_physical_id_leads_to_another_is_refused(host: Host) -> None:
    host.vendor.chips = {(0, 0): FakeChip(3), **host.vendor.chips}
    assert host.refusal() is Refusal.CHIP_UNKNOWN


@pytest.mark.parametrize("die", [(0,) * 5, (0xFFFFFFFF,) * 5])
def test_a_chip_without_a_die_id_is_refused(host: Host, die: tuple[int, ...]) -> None:
    host.chip.die = die
    assert host.refusal(expecting(die=numbering.die_name(die))) is Refusal.CHIP_UNKNOWN


@pytest.mark.parametrize("count", [None, 33, 4])
def test_a_chip_that_lists_more_than_it_can_or_gave_is_refused(host: Host, count: int | None) -> None:
    host.chip.count = count
    assert host.refusal() is Refusal.CHIP_UNKNOWN


def test_a_missing_node_is_refused(host: Host) -> None:
    host.nodes.clear()
    assert host.refusal() is Refusal.NODE_MISSING


# --- the caller, this process and others -------------------------------------------------------------------------------
def test_a_caller_that_does_not_want_it_any_more_is_refused(host: Host) -> None:
    host.wanted = Refused(Refusal.EXPIRED, "too late")
    assert host.refusal() is Refusal.EXPIRED


def test_a_process_that_is_being_ended_does_not_begin(host: Host) -> None:
    host.ending = Refused(Refusal.HUNG, "ending")
    assert host.refusal() is Refusal.HUNG


def test_nothing_is_asked_while_another_broker_destroys(host: Host) -> None:
    host.lock = Refused(Refusal.DESTROY_RUNNING, "another")
    assert host.refusal() is Refusal.DESTROY_RUNNING
    assert host.trail == []


# --- what became of it ---------------------------------------------------------------------------------------------------
def test_an_error_after_which_it_is_gone_is_a_destruction(host: Host) -> None:
    host.vendor.destroy_code = DcmiCode.FILE_FAILED
    answer = host.destroy()
    assert (answer.outcome, answer.code) == (Outcome.DESTROYED, -8014)
    assert answer.text == (
        "it is not listed any more, although the library says: "
        "a file of the library, such as /etc/vnpu.cfg, could not be read or written (-8014)"
    )


@pytest.mark.parametrize("code", [0, -8001, -8002, -8006, -4711])
def test_success_after_which_it_is_still_there_is_none(host: Host, code: int) -> None:
    host.vendor.destroys, host.vendor.destroy_code = False, code
    answer = host.destroy()
    assert (answer.outcome, answer.code) == (Outcome.STILL_PRESENT, code)
    assert answer.text.startswith("it is still listed; the library says: ")
    assert host.vendor.destroyed == [(2, 0, 149)]


def test_an_id_that_another_vnpu_has_by_now_is_not_known(host: Host) -> None:
    host.vendor.destroys = False
    host.vendor.before = lambda call: host.nodes.update({149: replace(NODE, inode=5)}) if call == "destroy" else None
    assert host.destroy().outcome is Outcome.UNKNOWN
    host = Host()
    host.vendor.destroys = False
    host.vendor.before = lambda call: host.nodes.clear() if call == "destroy" else None
    assert host.destroy().outcome is Outcome.UNKNOWN


def test_a_list_that_fails_afterwards_leaves_it_unknown(host: Host) -> None:
    host.vendor.before = lambda call: host.vendor.failing.update(total_resources=DcmiCode.NOT_READY) if call == "destroy" else None
    assert host.destroy().outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("count", [None, 33, 5])
def test_a_list_that_cannot_be_afterwards_leaves_it_unknown(host: Host, count: int | None) -> None:
    host.vendor.before = lambda call: setattr(host.chip, "count", count) if call == "destroy" else None
    assert host.destroy().outcome is Outcome.UNKNOWN


def test_a_library_without_the_call_destroys_nothing(host: Host) -> None:
    host.vendor.failing["destroy"] = DcmiCode.SYMBOL_MISSING
    with pytest.raises(DcmiError):
        host.destroy()
    assert host.code is None


# --- everything at once ---------------------------------------------------------------------------------------------------
WORDS = st.sampled_from(["vir05_1c_16g", "vir10_3c_32g"])
PLACES = st.sampled_from([(1, 0), (2, 0), (5, 0), (2, 1)])
IDS = st.integers(145, 152) | st.sampled_from([numbering.WILDCARD, 0, 0xFFFFFFFF])
ANSWERS = st.builds(
    lambda vdev, changes: vnpu(vdev, **changes),
    st.integers(147, 151),
    st.fixed_dictionaries({}, optional={"used": st.sampled_from([0, 1, None, 7]), "name": st.sampled_from([None, b"\n", b"vir10_3c_32g"])}),
)
FAKE_CHIPS = st.builds(
    FakeChip,
    st.sampled_from([3, 3, 3, 2, None]),
    st.sampled_from([(1, 2, 3, 4, 5), (1, 2, 3, 4, 5), (1, 2, 3, 4, 6)]),
    st.sampled_from([0, 0, 0, 1, None]),
    vnpus=st.dictionaries(IDS, ANSWERS, max_size=3),
)
ASKED = st.builds(
    lambda place, phy, die, vdev, vfid, template, node: expecting(
        card=place[0], device=place[1], phy=phy, die=die, vdev=vdev, vfid=vfid, template=template, node=node
    ),
    PLACES,
    st.sampled_from([3, 3, 2]),
    st.sampled_from([DIE, DIE.replace("5", "6")]),
    IDS,
    st.integers(1, 4),
    WORDS,
    st.sampled_from([NODE, replace(NODE, inode=1)]),
)


@given(
    st.dictionaries(PLACES, FAKE_CHIPS),
    st.lists(ASKED, max_size=8),
    st.sampled_from([0, 0, 0, 1, None]),
    st.sampled_from([*[Finding.CLEAN] * 3, Finding.HELD, Finding.UNKNOWN]),
)
def test_no_requests_destroy_anything_but_exactly_what_they_name(
    chips: dict[tuple[int, int], FakeChip], requests: list[DestroyRequest], mode: int | None, finding: Finding
) -> None:
    host = Host(FakeVendor(chips, vdevice_mode=mode), scan_result=ScanResult(finding, "so"))
    host.nodes = dict.fromkeys([*range(145, 153), numbering.WILDCARD, 0, 0xFFFFFFFF], NODE)
    host.scan = lambda *_: host.scan_result  # type: ignore[method-assign]
    for request in requests:
        expected = request.expected
        chip = chips.get((expected.card, expected.device))
        before = None if chip is None else chip.vnpus.get(expected.vdev)
        host.vendor.destroyed.clear()
        with contextlib.suppress(Refused, DcmiError):
            host.destroy(request)
        if host.vendor.destroyed:
            assert chip is not None
            assert before is not None
            assert host.vendor.destroyed == [(expected.card, expected.device, expected.vdev)]
            assert expected.vdev in range(100 + 16 * 3, 100 + 16 * 4)
            assert expected.phy == chip.phy == 3
            assert expected.die == numbering.die_name(chip.die)
            assert expected.vfid == expected.vdev - 147
            assert expected.template.encode() == before.name
            assert expected.node == NODE
            assert (before.used, chip.health, mode, finding) == (0, 0, 0, Finding.CLEAN)


# --- nodes and the lock -----------------------------------------------------------------------------------------------------
def test_a_node_is_read_without_being_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: to make a device node")
    path = tmp_path / "vdavinci149"
    # No driver has this number: opening the node would fail.
    os.mknod(path, 0o20600, os.makedev(4000, 149))
    found = path.lstat()
    assert read_node(149, str(tmp_path)) == Node(found.st_ino, found.st_ctime_ns, 4000, 149)


def node_refusal(directory: Path) -> Refusal:
    with pytest.raises(Refused) as refused:
        read_node(149, str(directory))
    return refused.value.reason


def test_what_is_no_node_is_refused(tmp_path: Path) -> None:
    assert node_refusal(tmp_path) is Refusal.NODE_MISSING
    assert node_refusal(tmp_path / ("x" * 300)) is Refusal.NODE_UNREADABLE
    (tmp_path / "vdavinci149").symlink_to("/dev/null")
    assert node_refusal(tmp_path) is Refusal.NODE_DIFFERS
    (tmp_path / "vdavinci149").unlink()
    (tmp_path / "vdavinci149").write_bytes(b"")
    assert node_refusal(tmp_path) is Refusal.NODE_DIFFERS


def lock_refusal(path: Path) -> Refusal:
    with pytest.raises(Refused) as refused, destroy_lock(str(path)):
        pass
    return refused.value.reason


def test_one_process_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with destroy_lock(str(path)):
        assert path.stat().st_mode & 0o777 == 0o600
        assert lock_refusal(path) is Refusal.DESTROY_RUNNING
    with destroy_lock(str(path)):
        pass
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert lock_refusal(path) is Refusal.DESTROY_RUNNING


def test_who_only_looks_at_the_lock_keeps_nobody_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, pauses = tmp_path / "lock", []
    path.touch(0o600)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            fcntl.flock(other, fcntl.LOCK_UN)

        monkeypatch.setattr("devward.npu.destruction.time.sleep", pause)
        with destroy_lock(str(path)):
            assert len(pauses) == 1


def test_a_lock_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    assert lock_refusal(tmp_path / "none" / "lock") is Refusal.LOCK_UNUSABLE
    (tmp_path / "link").symlink_to(tmp_path / "lock")
    assert lock_refusal(tmp_path / "link") is Refusal.LOCK_UNUSABLE


def test_sentences_name_no_subject_and_print() -> None:
    for outcome in Outcome:
        for code in (0, -8001, 12345):
            assert re.fullmatch(r"it is [ -~]+[^.]", destruction.describe(outcome, code))
