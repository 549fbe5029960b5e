"""What others may do with their files in the engines' directories: they learn nothing that they may not read, and take little time."""

import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devward.cdi import judged as judged_module
from devward.cdi import scan as scan_module
from devward.cdi.judged import SPARE_BYTES, SPARE_CONTENTS, Allowance, Verdict, Verdicts
from devward.cdi.resolve import ScannedDirectory, ScannedFile, resolve
from devward.cdi.scan import BURST, MAX_FILES, SETTLED_NS, SHARE, SMALL, Scanner, scan
from devward.cdi.spec import render_hypervisor
from devward.model import DeviceKind, Finding
from sim.entries import tick

OWN = "hyperlight.dev-hypervisor.json"
KVM = "hyperlight.dev/hypervisor=kvm"
GOOD = render_hypervisor([DeviceKind.KVM], uid=65534, gid=65534)


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    path = tmp_path / "cdi"
    path.mkdir()
    path.chmod(0o755)
    return path


def put(path: Path, content: bytes, mode: int = 0o644) -> None:
    path.write_bytes(content)
    path.chmod(mode)


def files(found: tuple[ScannedDirectory, ...]) -> dict[str, ScannedFile]:
    return {file.name: file for directory in found for file in directory.files}


def findings(found: tuple[ScannedDirectory, ...]) -> tuple[Finding, ...]:
    return resolve(found, trusted_uid=os.getuid()).findings()


def document(*names: str, kind: str = "a/b") -> dict[str, Any]:
    return {"cdiVersion": "0.6.0", "kind": kind, "devices": [{"name": name, "containerEdits": {"env": ["A=b"]}} for name in names]}


def yaml_of(*names: str, filler: int = 0) -> bytes:
    """Return a document that has to be read as YAML."""
    return b"# %s\n" % (b"x" * filler) + json.dumps(document(*names)).encode()


# --- what is quoted --------------------------------------------------------------------------------------------------------
SECRET = "s3cr3t"
#: Content of which each error would quote a piece.
TELLING = {
    "shadow": f"root:${SECRET}:19000:0:99999:7:::\n",
    "a key twice": f'{{"{SECRET}": 1, "{SECRET}": 2}}',
    "an unknown key": f'{{"{SECRET}": 1}}',
    "a YAML key": f"{SECRET}: 1\n",
    "an anchor": f"a: *{SECRET}\n",
    "a value of a wrong tag": f"a: !!int {SECRET}\n",
    "a question mark": f"[{SECRET}?]\n",
    "a version": json.dumps({**document("c"), "cdiVersion": SECRET}),
    "a kind": json.dumps(document("c", kind=f"a/{SECRET}-")),
    "a device name": json.dumps(document(f"{SECRET}-")),
    "an environment": json.dumps({**document("c"), "containerEdits": {"env": [SECRET]}}),
    "an annotation": json.dumps({**document("c"), "annotations": {f"-{SECRET}": "x"}}),
    "a path": json.dumps({**document("c"), "containerEdits": {"deviceNodes": [{"path": SECRET}]}}),
}


def assert_kept_secret(found: tuple[ScannedDirectory, ...]) -> None:
    assert SECRET not in repr(found)
    assert SECRET not in repr(findings(found))


@pytest.mark.parametrize("content", TELLING.values(), ids=TELLING.keys())
def test_nothing_is_quoted_of_what_not_everybody_may_read(etc: Path, tmp_path: Path, content: str) -> None:
    """Findings go to every user of the host and to the journal; the daemon reads as root."""
    put(tmp_path / "elsewhere", content.encode(), 0o600)
    for name in ("link.json", "link.yaml"):
        (etc / name).symlink_to(tmp_path / "elsewhere")
    for mode in (0o600, 0o640, 0o660):
        put(etc / f"{mode:o}.json", content.encode(), mode)
    scanner = Scanner(later)
    for _ in range(2):
        assert_kept_secret(scanner.scan([str(etc)]))
    # The same content for everybody to read is quoted: the test looks at the right thing.
    put(etc / "open.json", content.encode())
    assert SECRET in repr(scanner.scan([str(etc)]))


def test_nothing_is_quoted_of_a_link_whatever_the_mode_of_its_target(etc: Path, tmp_path: Path) -> None:
    """The target may lie where nobody but root gets to."""
    put(tmp_path / "elsewhere", f"{SECRET}: 1\n".encode(), 0o644)
    (etc / "x.json").symlink_to(tmp_path / "elsewhere")
    found = scan([str(etc)])
    assert_kept_secret(found)
    (finding,) = findings(found)
    assert finding.text == (
        f"{etc}/x.json: it is no CDI document (the reason is not shown, since it is a symbolic link; `cdi validate`, run by root,"
        " tells it); container engines skip the file."
    )


def test_nothing_is_quoted_of_files_in_a_directory_that_not_everybody_may_enter(etc: Path) -> None:
    put(etc / "x.json", f"{SECRET}: 1\n".encode())
    etc.chmod(0o750)
    found = scan([str(etc)])
    assert_kept_secret(found)
    assert "since not everybody may read it" in files(found)["x.json"].defect


def test_one_file_with_two_names_is_shown_by_each_as_it_deserves(etc: Path) -> None:
    """The verdict is remembered by content and by inode, and what may be shown of it is not part of it."""
    put(etc / "m.json", f"{SECRET}: 1\n".encode())
    for name in ("a.json", "z.json"):
        (etc / name).symlink_to("m.json")
    scanner = Scanner(later)
    for _ in range(3):
        found = files(scanner.scan([str(etc)]))
        assert {name for name in found if SECRET in repr(found[name])} == {"m.json"}
    (etc / "m.json").chmod(0o600)
    assert_kept_secret(scanner.scan([str(etc)]))


@pytest.mark.parametrize("after", ["stat", "open"])
def test_a_link_that_takes_the_place_of_a_file_is_known_as_one(
    etc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """Between listing, looking and opening: what is read is never taken for a file that stood there before."""
    put(tmp_path / "elsewhere", f"{SECRET}: 1\n".encode(), 0o644)
    put(etc / "x.json", b"{}")
    real: Callable[..., Any] = getattr(os, {"stat": "scandir", "open": "stat"}[after])

    def swap(*words: Any, **named: Any) -> Any:
        result = real(*words, **named)
        if after == "stat" or words[0] == "x.json":
            (etc / "x.json").unlink(missing_ok=True)
            (etc / "x.json").symlink_to(tmp_path / "elsewhere")
        return result

    scanner = Scanner(later)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "y.json").hardlink_to(tmp_path / "elsewhere")
    scanner.scan([str(tmp_path / "other")])  # the verdict on the target is known
    with monkeypatch.context() as patched:
        patched.setattr(scan_module.os, {"stat": "scandir", "open": "stat"}[after], swap)
        found = scanner.scan([str(etc)])
    assert files(found)["x.json"].is_link
    assert_kept_secret(found)


def test_what_loads_is_known_by_its_devices_however_it_is_reached(etc: Path, tmp_path: Path) -> None:
    """It is a CDI document, and who conflicts with whom has to be told; only the remarks quote more."""
    odd = json.dumps({**document("c"), "annotations": {"-odd": "x"}}).encode()
    put(tmp_path / "elsewhere", odd, 0o600)
    (etc / "x.json").symlink_to(tmp_path / "elsewhere")
    put(etc / "y.json", odd, 0o600)
    put(etc / "plain.json", json.dumps(document("d")).encode(), 0o600)
    found = scan([str(etc)])
    specs = {name: file.spec for name, file in files(found).items()}
    assert {name: spec.devices if spec else None for name, spec in specs.items()} == {
        "plain.json": ("a/b=d",),
        "x.json": ("a/b=c",),
        "y.json": ("a/b=c",),
    }
    assert "odd'" not in repr(found)
    texts = {finding.text for finding in findings(found)}
    assert f"{etc}/x.json: container engines load it, but what is odd about it is not shown, since it is a symbolic link." in texts
    assert f"{etc}/y.json: container engines load it, but what is odd about it is not shown, since not everybody may read it." in texts
    assert not any("plain.json" in text for text in texts)


# --- what is read again ----------------------------------------------------------------------------------------------------
def later() -> int:
    """A clock that runs ahead of the file system's, so that what was just written counts as settled."""
    return time.time_ns() + 2 * SETTLED_NS


class Parsed:
    """Counts what is parsed, and makes each parse as YAML take its time by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.cost = 0.0
        self.cpu = 0.0
        self.now = 0.0
        real = judged_module.load

        def counting(data: bytes, name: str, *, plain_only: bool = False) -> Any:
            self.count += 1
            if not plain_only:
                self.cpu += self.cost
            return real(data, name, plain_only=plain_only)

        monkeypatch.setattr(judged_module, "load", counting)

    def scanner(self, own_path: str = "") -> Scanner:
        return Scanner(later, own_paths=[own_path], monotonic=lambda: self.now, cpu=lambda: self.cpu)


@pytest.fixture(name="parsed")
def _parsed(monkeypatch: pytest.MonkeyPatch) -> Parsed:
    return Parsed(monkeypatch)


def test_what_is_touched_is_read_and_not_parsed_again(etc: Path, parsed: Parsed) -> None:
    put(etc / "a.json", GOOD)
    put(etc / "b.yaml", yaml_of("c"))
    put(etc / "bad.json", b"{")
    scanner = parsed.scanner()
    first = files(scanner.scan([str(etc)]))
    count = parsed.count
    for _ in range(3):
        for path in etc.iterdir():
            before = os.stat(path)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        found = files(scanner.scan([str(etc)]))
        assert {name: (file.spec, file.defect) for name, file in found.items()} == {
            name: (file.spec, file.defect) for name, file in first.items()
        }
    assert parsed.count == count


def test_content_that_comes_back_is_known_still(etc: Path, parsed: Parsed) -> None:
    scanner = parsed.scanner()
    for turn in range(6):
        tick(etc)
        put(etc / "a.json", json.dumps(document("c" if turn % 2 else "d")).encode())
        scanner.scan([str(etc)])
    assert parsed.count == 2


def test_only_the_newest_of_what_no_file_has_any_more_is_remembered() -> None:
    verdicts = Verdicts()
    size = SPARE_BYTES // 4
    for number in range(SPARE_CONTENTS + 10):
        verdicts.add((b"small %d" % number, True), Verdict(None, "x"), 1)
        verdicts.end_scan()
    verdicts.end_scan()
    assert verdicts.of_content((b"small 0", True)) is None
    assert verdicts.of_content((b"small %d" % (SPARE_CONTENTS + 9), True)) is not None
    assert len(verdicts._contents) == SPARE_CONTENTS
    verdicts = Verdicts()
    for number in range(10):
        verdicts.add((b"long %d" % number, True), Verdict(None, "x"), size)
        verdicts.end_scan()
    verdicts.end_scan()
    assert len(verdicts._contents) == 4
    # What files have in the latest scan is no spare, however much it is.
    for number in range(10):
        verdicts.add((b"met %d" % number, True), Verdict(None, "x"), size)
    verdicts.end_scan()
    assert all(verdicts.of_content((b"met %d" % number, True)) for number in range(10))


# --- how much is read at a time ------------------------------------------------------------------------------------------------
def test_an_allowance_is_a_burst_then_a_share_and_may_be_overdrawn_once() -> None:
    now, used = 0.0, 0.0
    allowance = Allowance(0.5, 0.1, monotonic=lambda: now, cpu=lambda: used)
    assert allowance.left()
    with allowance.charged():
        used += 1.5
    assert not allowance.left()
    now = 9.9
    assert not allowance.left()
    now = 10.1
    assert allowance.left()
    now = 1e9
    assert allowance.left()
    with allowance.charged():
        used += 0.51
    assert not allowance.left(), "what is saved up is bounded"


def test_what_costs_too_much_waits_its_turn_and_all_is_known_in_the_end(etc: Path, parsed: Parsed) -> None:
    for number in range(10):
        put(etc / f"{number}.yaml", yaml_of(f"d{number}", filler=100 * number))
    put(etc / "plain.json", json.dumps(document("c")).encode())
    parsed.cost = BURST
    scanner = parsed.scanner()
    known: set[str] = set()
    for turn in range(100):
        found = scanner.scan([str(etc)])
        by_name = files(found)
        assert by_name["plain.json"].spec is not None
        now_known = {name for name, file in by_name.items() if file.spec is not None}
        assert now_known >= known, "what is known stays known"
        unknown = {(file.defect, file.examined) for file in by_name.values() if file.spec is None}
        assert unknown <= {("it waits to be examined, since there is more that is new than devward reads at a time", False)}
        if turn == 0:
            assert now_known == {"plain.json", "0.yaml"}, "the smallest first, as far as the burst goes"
        assert resolve(found).effective("a/b=c").certain is (len(now_known) == 11)
        assert scanner.waiting is (len(now_known) < 11)
        known = now_known
        if not scanner.waiting:
            break
        parsed.now += 1.0
    assert len(known) == 11
    assert parsed.now <= 10 * parsed.cost / SHARE
    count = parsed.count
    scanner.scan([str(etc)])
    assert parsed.count == count


def test_who_rewrites_a_file_in_every_scan_takes_a_share_and_starves_nobody(etc: Path, parsed: Parsed) -> None:
    put(etc / "victim.yaml", yaml_of("v", filler=50_000))
    parsed.cost = 0.2
    scanner = parsed.scanner(f"{etc}/{OWN}")
    turns = 0
    while turns < 500:
        turns += 1
        for number in range(10):
            put(etc / f"{number}.yaml", yaml_of(f"d{turns}-{number}"))
        put(etc / OWN, GOOD + b" " * turns)
        put(etc / "plain.json", json.dumps(document(f"c{turns}")).encode())
        parsed.now += 0.1
        found = files(scanner.scan([str(etc)]))
        assert found[OWN].spec is not None
        assert found["plain.json"].spec is not None
        if found["victim.yaml"].spec is not None:
            break
    assert found["victim.yaml"].spec is not None
    assert parsed.cpu <= BURST + SHARE * parsed.now + parsed.cost


def test_long_files_are_not_even_read_beyond_the_allowance(etc: Path, parsed: Parsed, monkeypatch: pytest.MonkeyPatch) -> None:
    put(etc / "a.json", json.dumps(document("c")).encode().ljust(SMALL + 1))
    put(etc / "b.json", json.dumps(document("d")).encode().ljust(SMALL + 2))
    parsed.cost = 1.0
    scanner = parsed.scanner()
    read: list[int] = []
    real = os.read

    def reading(descriptor: int, size: int) -> bytes:
        read.append(os.fstat(descriptor).st_size)
        return real(descriptor, size)

    monkeypatch.setattr(scan_module.os, "read", reading)
    found = files(scanner.scan([str(etc)]))
    assert (found["a.json"].spec is not None, found["b.json"].spec is not None) == (True, False)
    assert set(read) == {SMALL + 1}


def test_yaml_that_waits_is_not_read_again_until_its_turn_comes(etc: Path, parsed: Parsed) -> None:
    """Else many such files would take what is there for small ones, again and again."""
    for number in range(20):
        put(etc / f"{number:02}.yaml", yaml_of(f"d{number}"))
    parsed.cost = 2 * BURST
    scanner = parsed.scanner()
    assert sum(file.spec is not None for file in files(scanner.scan([str(etc)])).values()) == 1
    count = parsed.count
    assert sum(file.spec is not None for file in files(scanner.scan([str(etc)])).values()) == 1
    assert parsed.count == count
    put(etc / "00.yaml", json.dumps(document("c")).encode())
    parsed.now += 1000.0
    assert files(scanner.scan([str(etc)]))["00.yaml"].spec is not None


def test_our_own_file_is_seen_whatever_small_files_cost(etc: Path, parsed: Parsed) -> None:
    scanner = parsed.scanner(f"{etc}/{OWN}")
    put(etc / "0.json", b"{}")
    put(etc / OWN, GOOD)
    with scanner._small.charged():
        parsed.cpu += 1000.0
    found = files(scanner.scan([str(etc)]))
    assert found[OWN].spec is not None
    assert not found["0.json"].examined


def test_a_rival_that_waits_to_be_examined_is_one_still(etc: Path, parsed: Parsed) -> None:
    """Were it none for a moment, devward would write the device, and it would be dead in both files."""
    rival = etc / "rival.yaml"
    put(rival, b"# x\n" + GOOD)
    scanner = parsed.scanner(f"{etc}/{OWN}")

    def rivals() -> tuple[str, ...]:
        return resolve(scanner.scan([str(etc)])).rivals(str(etc), OWN, KVM)

    assert rivals() == (str(rival),)
    with scanner._long.charged():
        parsed.cpu += 5.0
    put(rival, b"# x y\n" + GOOD)
    assert rivals() == rivals() == (str(rival),)
    put(rival, b"# longer than is read\n".ljust(scan_module.MAX_FILE_SIZE + 1))
    assert rivals() == rivals() == (str(rival),)
    put(rival, yaml_of("c"))
    assert rivals() == (str(rival),)
    parsed.now += 1000.0
    assert rivals() == ()
    put(rival, b"# longer than is read\n".ljust(scan_module.MAX_FILE_SIZE + 1))
    assert rivals() == ()


# --- how much is read at all ---------------------------------------------------------------------------------------------------
def test_of_a_directory_with_too_much_the_smallest_files_and_our_own_are_examined(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_DIRECTORY_SIZE", 5000)
    for size in (1000, 1001, 2000, 3000):
        put(etc / f"{size}.json", json.dumps(document(f"d{size}")).encode().ljust(size))
    put(etc / OWN, GOOD.ljust(900))
    scanner = Scanner(later, own_paths=[f"{etc}/{OWN}"])
    first = scanner.scan([str(etc)])
    assert {name for name, file in files(first).items() if file.spec is not None} == {OWN, "1000.json", "1001.json", "2000.json"}
    assert (files(first)["3000.json"].examined, "smallest files" in files(first)["3000.json"].defect) == (False, True)
    assert scanner.scan([str(etc)]) == first
    put(etc / OWN, GOOD.ljust(4900))
    assert {name for name, file in files(scanner.scan([str(etc)])).items() if file.spec is not None} == {OWN}
    (etc / OWN).unlink()
    (etc / "2000.json").unlink()
    (etc / "1001.json").unlink()
    assert files(scanner.scan([str(etc)]))["3000.json"].spec is not None


def test_of_too_many_devices_those_of_the_smallest_files_and_our_own_count(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_DEVICES", 10)
    for count in (2, 3, 4, 5):
        put(etc / f"{count}.json", json.dumps(document(*(f"d{count}-{number}" for number in range(count)))).encode())
    put(etc / OWN, GOOD)
    scanner = Scanner(later, own_paths=[f"{etc}/{OWN}"])
    first = scanner.scan([str(etc)])
    found = files(first)
    assert {name for name, file in found.items() if file.spec is not None} == {OWN, "2.json", "3.json", "4.json"}
    assert (found["5.json"].examined, "define" in found["5.json"].defect) == (False, True)
    assert resolve(first).rivals(str(etc), OWN, "a/b=d5-0") == (f"{etc}/5.json",), "what it defines is known"
    assert scanner.scan([str(etc)]) == first
    (etc / "2.json").unlink()
    (etc / "3.json").unlink()
    assert files(scanner.scan([str(etc)]))["5.json"].spec is not None


@pytest.mark.parametrize("limit", ["MAX_FILES", "MAX_ENTRIES"])
def test_our_own_file_is_among_those_examined_however_many_there_are(etc: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(scan_module, limit, 5)
    for number in range(20):
        put(etc / f"{number:02}.json", b"{")
    put(etc / OWN, GOOD)
    (found,) = Scanner(later, own_paths=[f"{etc}/{OWN}"]).scan([str(etc)])
    assert OWN in [file.name for file in found.files]
    assert len(found.files) <= 6
    assert found.unexamined
    assert [file.name for file in found.files] == sorted(file.name for file in found.files)
    (etc / OWN).unlink()
    (etc / OWN).mkdir()
    (found,) = Scanner(later, own_paths=[f"{etc}/{OWN}"]).scan([str(etc)])
    assert OWN not in [file.name for file in found.files]


def test_a_name_of_any_length_makes_a_short_finding(etc: Path) -> None:
    long = json.dumps(document("x" * 100_000, kind="a/" + "b" * 100_000)).encode()
    put(etc / "a.json", long)
    put(etc / "b.json", long)
    (finding,) = findings(scan([str(etc)]))
    assert len(finding.subject) <= 600
    assert len(finding.text) < 2000


def test_the_bounds_fit_together() -> None:
    """A thousand files of ordinary length are examined, and our own counts as small."""
    assert MAX_FILES * 8 * 1024 <= scan_module.MAX_DIRECTORY_SIZE
    assert len(render_hypervisor(list(DeviceKind), uid=2**32 - 1, gid=2**32 - 1)) < SMALL
    assert stat.S_IROTH == 0o004
