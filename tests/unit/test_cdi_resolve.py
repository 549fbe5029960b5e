"""What container engines make of their directories: every rule of the reference cache, quoted where it is tested."""

from dataclasses import replace

import pytest

from devward.cdi.resolve import (
    MAX_FINDINGS,
    DirectoryState,
    EffectiveState,
    Resolution,
    ScannedDirectory,
    ScannedFile,
    ScannedType,
    resolve,
)
from devward.cdi.spec import LoadedSpec
from devward.model import Finding
from devward.reasons import Reason

ETC, RUN = "/etc/cdi", "/var/run/cdi"
OWN = "hyperlight.dev-hypervisor.json"
KVM = "hyperlight.dev/hypervisor=kvm"
MSHV = "hyperlight.dev/hypervisor=mshv"


def spec(*devices: str, remarks: tuple[str, ...] = ()) -> LoadedSpec:
    return LoadedSpec("hyperlight.dev/hypervisor", "0.3.0", devices, "0.3.0", remarks)


def file(name: str, *devices: str, identity: tuple[int, int] | None = None, is_link: bool = False) -> ScannedFile:
    return ScannedFile(name, ScannedType.REGULAR, is_link, spec(*devices), identity=identity)


def malformed(name: str, defect: str = "it is empty") -> ScannedFile:
    return ScannedFile(name, ScannedType.REGULAR, defect=defect)


def entry(name: str, kind: ScannedType, *, is_link: bool = False) -> ScannedFile:
    return ScannedFile(name, kind, is_link, defect="Permission denied", examined=kind is not ScannedType.UNREADABLE)


def directory(path: str, *files: ScannedFile, identity: tuple[int, int] | None = None) -> ScannedDirectory:
    return ScannedDirectory(path, DirectoryState.READ, files, identity=identity)


def codes(resolution: Resolution) -> list[Reason]:
    return [finding.code for finding in resolution.findings()]


def only(resolution: Resolution, code: Reason) -> Finding:
    (found,) = [finding for finding in resolution.findings() if finding.code is code]
    return found


def test_nothing_is_odd_about_an_ordinary_host() -> None:
    resolution = resolve([directory(ETC, file(OWN, KVM), file("nvidia.yaml", "nvidia.com/gpu=0")), directory(RUN)])
    assert resolution.findings() == ()
    assert resolution.engines_blocked is None
    found = resolution.effective(KVM)
    assert (found.file, found.state, found.contenders, found.certain) == (f"{ETC}/{OWN}", EffectiveState.DEFINED, (f"{ETC}/{OWN}",), True)
    assert resolution.effective(MSHV).state is EffectiveState.UNDEFINED
    assert resolution.rivals(ETC, OWN, KVM) == ()


# --- conflicts and shadows -------------------------------------------------------------------------------------------
def test_the_later_entry_has_the_higher_priority() -> None:
    """'the LATER entry has the HIGHER priority. Priority is list order, not path: reversed configs exist'"""
    etc, run = directory(ETC, file(OWN, KVM)), directory(RUN, file("other.json", KVM))
    assert resolve([etc, run]).effective(KVM).file == f"{RUN}/other.json"
    assert resolve([run, etc]).effective(KVM).file == f"{ETC}/{OWN}"


def test_the_higher_directory_wins_silently_so_we_say_it() -> None:
    """'Same qualified device in two dirs: the higher-priority one wins silently.'"""
    resolution = resolve([directory(ETC, file(OWN, KVM, MSHV)), directory(RUN, file("other.json", KVM))])
    found = resolution.effective(KVM)
    assert (found.file, found.contenders) == (f"{RUN}/other.json", (f"{ETC}/{OWN}", f"{RUN}/other.json"))
    assert resolution.effective(MSHV).file == f"{ETC}/{OWN}"
    finding = only(resolution, Reason.CDI_SHADOWED)
    assert finding.subject == KVM
    assert f"{RUN}/other.json" in finding.text
    assert f"{ETC}/{OWN} is not used" in finding.text


def test_two_files_of_one_priority_are_both_unusable() -> None:
    """'In two files of the same priority: BOTH unusable, error recorded on both files.'"""
    resolution = resolve([directory(ETC, file("a.json", KVM), file(OWN, KVM, MSHV)), directory(RUN)])
    found = resolution.effective(KVM)
    assert (found.file, found.state) == (None, EffectiveState.DUPLICATE)
    assert found.contenders == (f"{ETC}/a.json", f"{ETC}/{OWN}")
    assert resolution.effective(MSHV).file == f"{ETC}/{OWN}", "only the device that clashes is lost"
    finding = only(resolution, Reason.CDI_DEVICE_DUPLICATE)
    assert finding.subject == KVM
    assert f"{ETC}/a.json" in finding.text
    assert f"{ETC}/{OWN}" in finding.text
    assert resolution.rivals(ETC, OWN, KVM) == (f"{ETC}/a.json",)
    assert resolution.rivals(ETC, f"{ETC}/{OWN}", KVM) == (f"{ETC}/a.json",)
    assert resolution.rivals(ETC, OWN, MSHV) == ()
    assert resolution.rivals(RUN, OWN, KVM) == ()


def test_a_clash_below_deletes_a_good_definition_above() -> None:
    """'A same-priority clash in the low dir also deletes a good higher-priority definition of that device' (etc x2 + run: unresolved)"""
    resolution = resolve([directory(ETC, file("a.json", KVM), file("b.json", KVM)), directory(RUN, file("good.json", KVM))])
    assert resolution.effective(KVM).file is None
    assert resolution.effective(KVM).state is EffectiveState.DUPLICATE
    assert resolution.effective(KVM).contenders == (f"{ETC}/a.json", f"{ETC}/b.json", f"{RUN}/good.json")
    assert "good.json" not in only(resolution, Reason.CDI_DEVICE_DUPLICATE).text
    assert Reason.CDI_SHADOWED not in codes(resolution)


def test_a_clash_above_deletes_a_good_definition_below() -> None:
    resolution = resolve([directory(ETC, file(OWN, KVM)), directory(RUN, file("a.json", KVM), file("b.json", KVM))])
    assert resolution.effective(KVM).state is EffectiveState.DUPLICATE


def test_a_malformed_override_lets_the_low_definition_win() -> None:
    """'A malformed high-priority override is skipped and the low-priority good definition is used, that is: corruption can silently
    swap definitions.'"""
    resolution = resolve([directory(ETC, file("low.json", KVM)), directory(RUN, malformed("high.json", "it has no devices"))])
    assert resolution.effective(KVM).file == f"{ETC}/low.json"
    finding = only(resolution, Reason.CDI_FILE_MALFORMED)
    assert (finding.subject, finding.text) == (
        f"{RUN}/high.json",
        f"{RUN}/high.json: it has no devices; container engines skip the file.",
    )


def test_a_malformed_rival_is_no_rival() -> None:
    resolution = resolve([directory(ETC, malformed("a.json"), file(OWN, KVM))])
    assert resolution.rivals(ETC, OWN, KVM) == ()
    assert resolution.effective(KVM).file == f"{ETC}/{OWN}"


def test_a_link_to_our_file_in_the_same_directory_kills_the_device() -> None:
    """'Symlinked files are followed.' The two paths are two files to the reference, and define the device twice."""
    resolution = resolve([directory(ETC, file("alias.json", KVM, identity=(1, 2), is_link=True), file(OWN, KVM, identity=(1, 2)))])
    assert resolution.effective(KVM).state is EffectiveState.DUPLICATE
    assert resolution.rivals(ETC, OWN, KVM) == (f"{ETC}/alias.json",)


def test_a_link_to_our_file_in_a_higher_directory_changes_nothing() -> None:
    resolution = resolve(
        [directory(ETC, file(OWN, KVM, identity=(1, 2))), directory(RUN, file("alias.json", KVM, identity=(1, 2), is_link=True))]
    )
    found = resolution.effective(KVM)
    assert (found.file, found.contenders) == (f"{ETC}/{OWN}", (f"{ETC}/{OWN}", f"{RUN}/alias.json"))
    assert Reason.CDI_SHADOWED not in codes(resolution)


# --- one directory under two paths -----------------------------------------------------------------------------------
def test_a_directory_that_is_listed_twice_is_no_conflict_with_itself() -> None:
    """The reference reads it twice, at two priorities; the second reading replaces the first."""
    one = directory("/run/cdi", file(OWN, KVM), malformed("bad.json"), identity=(1, 7))
    for other in (replace(one, path=RUN), one):
        resolution = resolve([one, directory(ETC, identity=(1, 8)), other])
        found = resolution.effective(KVM)
        assert (found.file, found.state, found.contenders) == (f"/run/cdi/{OWN}", EffectiveState.DEFINED, (f"/run/cdi/{OWN}",))
        assert codes(resolution) == [Reason.CDI_FILE_MALFORMED], "told once"
        assert resolution.rivals("/run/cdi", OWN, KVM) == resolution.rivals(RUN, OWN, KVM) == ()


def test_its_later_reading_still_shadows_what_lies_between() -> None:
    one = directory("/run/cdi", file(OWN, KVM), identity=(1, 7))
    resolution = resolve([one, directory(ETC, file("x.json", KVM), identity=(1, 8)), replace(one, path=RUN)])
    assert resolution.effective(KVM).file == f"/run/cdi/{OWN}"
    assert f"{ETC}/x.json is not used" in only(resolution, Reason.CDI_SHADOWED).text


def test_a_real_clash_in_it_still_counts() -> None:
    one = directory("/run/cdi", file(OWN, KVM), file("x.json", KVM), identity=(1, 7))
    resolution = resolve([one, replace(one, path=RUN)])
    assert resolution.effective(KVM).state is EffectiveState.DUPLICATE
    assert len(resolution.findings()) == 1


def test_the_owner_chooses_the_spelling() -> None:
    run = directory(RUN, file(OWN, KVM), identity=(1, 7))
    resolution = resolve([run, replace(run, path="/run/cdi")], own_directory="/run/cdi")
    assert resolution.effective(KVM).file == f"/run/cdi/{OWN}"
    assert resolution.rivals("/run/cdi", OWN, KVM) == ()


def test_a_directory_that_engines_do_not_read_defines_nothing() -> None:
    own = directory("/opt/cdi", file(OWN, KVM), file("x.json", KVM), identity=(1, 9))
    resolution = resolve([own, directory(ETC, identity=(1, 8))], own_directory="/opt/cdi", unread=["/opt/cdi"])
    assert resolution.effective(KVM).state is EffectiveState.UNDEFINED
    assert resolution.rivals("/opt/cdi", OWN, KVM) == ("/opt/cdi/x.json",)
    assert resolution.findings() == ()


def test_a_directory_that_engines_read_by_another_path_defines() -> None:
    own = directory("/run/cdi", file(OWN, KVM), identity=(1, 9))
    resolution = resolve([own, directory(ETC), replace(own, path=RUN)], own_directory="/run/cdi", unread=["/run/cdi"])
    assert resolution.effective(KVM).file == f"/run/cdi/{OWN}"


def test_an_unreadable_directory_that_engines_do_not_read_stops_nothing() -> None:
    bad = ScannedDirectory("/opt/cdi", DirectoryState.UNREADABLE, error="Input/output error")
    resolution = resolve([bad, directory(ETC, file(OWN, KVM))], unread=["/opt/cdi"])
    assert resolution.effective(KVM).file == f"{ETC}/{OWN}"
    assert resolution.findings() == ()


# --- directories -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", [DirectoryState.UNREADABLE, DirectoryState.NOT_A_DIRECTORY])
def test_an_unreadable_directory_stops_the_scan_of_later_ones(state: DirectoryState) -> None:
    """'A first dir that is unreadable or not a directory stops the scan of later dirs (ENOENT is fine).'"""
    bad = ScannedDirectory(ETC, state, error="Permission denied")
    resolution = resolve([bad, directory(RUN, file(OWN, KVM), malformed("x.json")), directory("/opt/cdi")])
    assert resolution.effective(KVM).state is EffectiveState.UNDEFINED
    (finding,) = resolution.findings()
    assert (finding.code, finding.subject) == (Reason.CDI_DIRECTORY_UNREADABLE, ETC)
    assert "Permission denied" in finding.text
    assert RUN in finding.text
    assert "/opt/cdi" in finding.text


def test_what_was_read_before_the_stop_counts() -> None:
    bad = ScannedDirectory(RUN, DirectoryState.NOT_A_DIRECTORY, error="Not a directory")
    resolution = resolve([directory(ETC, file(OWN, KVM)), bad])
    assert resolution.effective(KVM).file == f"{ETC}/{OWN}"
    assert codes(resolution) == [Reason.CDI_DIRECTORY_UNREADABLE]


def test_a_missing_directory_is_fine() -> None:
    """'(ENOENT is fine)'"""
    resolution = resolve([ScannedDirectory(ETC, DirectoryState.MISSING), directory(RUN, file(OWN, KVM))])
    assert resolution.effective(KVM).file == f"{RUN}/{OWN}"
    assert resolution.findings() == ()


def test_a_linked_directory_is_empty_for_older_engines() -> None:
    """'Up to v1.1.0 the scan uses a lstat walk, so a symlinked spec dir yields nothing; at HEAD symlinked dirs work'"""
    resolution = resolve([replace(directory(ETC, file(OWN, KVM)), is_link=True)])
    assert resolution.effective(KVM).file == f"{ETC}/{OWN}"
    assert only(resolution, Reason.CDI_DIRECTORY_LINK).subject == ETC


@pytest.mark.parametrize(("mode", "uid", "told"), [(0o755, 0, False), (0o775, 0, True), (0o757, 0, True), (0o755, 1000, True)])
def test_a_directory_that_others_may_change_is_told(mode: int, uid: int, told: bool) -> None:
    resolution = resolve([replace(directory(ETC), mode=mode, uid=uid)])
    assert codes(resolution) == ([Reason.CDI_DIRECTORY_WRITABLE] if told else [])
    assert resolve([replace(directory(ETC), uid=1000)], trusted_uid=1000).findings() == ()


# --- entries ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_link", [False, True])
def test_a_fifo_blocks_engines_for_ever(is_link: bool) -> None:
    """'A FIFO named *.json blocks the scan (and so the runtime) indefinitely'"""
    resolution = resolve([directory(ETC, file(OWN, KVM)), directory(RUN, entry("pipe.json", ScannedType.FIFO, is_link=is_link))])
    assert resolution.engines_blocked is not None
    assert f"{RUN}/pipe.json" in resolution.engines_blocked
    assert resolution.effective(KVM).state is EffectiveState.BLOCKED
    assert resolution.effective(KVM).file is None
    finding = only(resolution, Reason.CDI_ENGINE_BLOCKED)
    assert (finding.subject, finding.text) == (f"{RUN}/pipe.json", resolution.engines_blocked)


def test_a_fifo_behind_a_stop_blocks_nobody() -> None:
    bad = ScannedDirectory(ETC, DirectoryState.UNREADABLE, error="Permission denied")
    assert resolve([bad, directory(RUN, entry("pipe.json", ScannedType.FIFO))]).engines_blocked is None


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ScannedType.DIRECTORY, Reason.CDI_FILE_SPECIAL),
        (ScannedType.SOCKET, Reason.CDI_FILE_SPECIAL),
        (ScannedType.DEVICE, Reason.CDI_FILE_SPECIAL),
        (ScannedType.UNREADABLE, Reason.CDI_FILE_UNREADABLE),
        (ScannedType.TOO_LARGE, Reason.CDI_FILE_UNREADABLE),
        (ScannedType.DANGLING, Reason.CDI_FILE_UNREADABLE),
        (ScannedType.VANISHED, None),
    ],
)
def test_other_entries_block_nobody_and_are_told(kind: ScannedType, code: Reason | None) -> None:
    """'directories skipped'; what is not regular is told with the file's name and what an engine does."""
    resolution = resolve([directory(ETC, entry("x.json", kind), file(OWN, KVM))])
    assert resolution.engines_blocked is None
    assert resolution.effective(KVM).file == f"{ETC}/{OWN}"
    assert codes(resolution) == ([code] if code else [])
    for finding in resolution.findings():
        assert finding.subject == f"{ETC}/x.json"
        assert "container engines" in finding.text


def test_every_type_of_entry_is_covered() -> None:
    for kind in ScannedType:
        resolve([directory(ETC, entry("x.json", kind))]).findings()


@pytest.mark.parametrize("unknown", [entry("x.json", ScannedType.UNREADABLE), entry("x.json", ScannedType.TOO_LARGE)])
def test_what_cannot_be_examined_makes_the_answer_uncertain(unknown: ScannedFile) -> None:
    assert not resolve([directory(ETC, file(OWN, KVM)), directory(RUN, unknown)]).effective(KVM).certain
    assert not resolve([directory(ETC, unknown)]).effective(KVM).certain


def test_a_file_that_cannot_be_judged_makes_the_answer_uncertain() -> None:
    unjudged = replace(malformed("x.yaml", "PyYAML is needed"), examined=False)
    resolution = resolve([directory(ETC, file(OWN, KVM), unjudged)])
    assert not resolution.effective(KVM).certain
    assert codes(resolution) == [Reason.CDI_FILE_UNREADABLE]
    assert resolve([directory(ETC, file(OWN, KVM), malformed("x.yaml"))]).effective(KVM).certain


def test_more_files_than_are_examined_are_told() -> None:
    resolution = resolve([replace(directory(ETC, file(OWN, KVM)), unexamined=3)])
    assert not resolution.effective(KVM).certain
    assert "3 CDI files more" in only(resolution, Reason.CDI_FILE_UNREADABLE).text


def test_remarks_are_told() -> None:
    odd = ScannedFile("x.json", ScannedType.REGULAR, spec=spec("a/b=c", remarks=("it begins with a byte order mark", "two")))
    finding = only(resolve([directory(ETC, odd)]), Reason.CDI_FILE_REMARK)
    assert finding.subject == f"{ETC}/x.json"
    assert "it begins with a byte order mark; two" in finding.text


def test_names_are_foreign_text() -> None:
    nasty = "a\n\x1b[31m\u202e\udcff.json"
    resolution = resolve([directory(ETC, malformed(nasty), file("b\n.json", KVM), file(OWN, KVM))])
    for finding in resolution.findings():
        assert (finding.subject + finding.text).isprintable()
    assert resolution.rivals(ETC, OWN, KVM) == (f"{ETC}/b\\x0a.json",)


def test_findings_are_bounded() -> None:
    many = tuple(f"a/b=c{index}" for index in range(50_000))
    findings = resolve([directory(ETC, file("a.json", *many), file("b.json", *many))]).findings()
    assert len(findings) == MAX_FINDINGS + 1
    assert findings[-1].text == "49800 more findings about the CDI directories are not listed."
    crowd = [file(f"{index:04}.json", KVM) for index in range(1000)]
    (finding,) = resolve([directory(ETC, *crowd)]).findings()
    assert len(finding.text) < 400
    assert "995 more" in finding.text
