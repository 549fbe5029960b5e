"""The message catalog: an entry for every kind, a kind for every entry, no field that a record lacks, and systemd's own compiler."""

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from devward import names
from devward.audit import CATALOG_FIELDS
from sim.catalog import CATALOG, entries

DBUS = Path(__file__).resolve().parents[2] / "dbus"
#: In every record of the audit trail.
ALWAYS = {names.FIELD_EVENT, names.FIELD_VERSION}
#: Service, object, interface, method, signature and arguments.
CALL = re.compile(r"^  busctl call (\S+) (\S+) \\\n    (\S+) (\w+)(?: (\w+) (.+))?$", re.MULTILINE)
KINDS = {identifier: kind for kind, identifier in names.MESSAGE_IDS.items()}


def test_every_kind_has_an_entry_and_every_entry_a_kind() -> None:
    assert {KINDS.get(identifier, identifier) for identifier in entries()} == set(names.MESSAGE_IDS)


def test_identifiers_are_distinct_and_well_formed() -> None:
    assert len(KINDS) == len(names.MESSAGE_IDS)
    assert all(re.fullmatch(r"[0-9a-f]{32}", identifier) for identifier in KINDS)


@pytest.mark.parametrize(("identifier", "kind"), KINDS.items(), ids=KINDS.values())
def test_an_entry_helps(identifier: str, kind: str) -> None:
    entry = entries()[identifier]
    assert set(entry.headers) == {"Subject", "Defined-By", "Documentation"}
    assert entry.headers["Defined-By"] == "devward"
    assert entry.headers["Documentation"].startswith("man:")
    assert entry.text.count("\n\n") >= 1, "what it means, and what to do about it"


@pytest.mark.parametrize(("identifier", "kind"), KINDS.items(), ids=KINDS.values())
def test_a_text_uses_only_fields_that_its_records_have(identifier: str, kind: str) -> None:
    entry = entries()[identifier]
    used = set(re.findall(r"@([A-Z0-9_]+)@", entry.headers["Subject"] + entry.text))
    assert used <= ALWAYS | set(CATALOG_FIELDS.get(kind, ()))
    assert set(CATALOG_FIELDS.get(kind, ())) <= used, "a field is filled in for a text that does not use it"


def test_kinds_with_catalog_fields_exist() -> None:
    assert set(CATALOG_FIELDS) <= set(names.MESSAGE_IDS)


def test_lines_fit_a_terminal() -> None:
    assert [line for line in CATALOG.read_text("ascii").splitlines() if len(line) > 76] == []


def test_calls_over_the_bus_are_those_of_the_interface() -> None:
    manager = ET.parse(DBUS / f"{names.MANAGER_INTERFACE}.xml")
    text = CATALOG.read_text("ascii")
    calls = CALL.findall(text)
    assert len(calls) == text.count("busctl call")
    assert {"ResumeReclaim", "SetReclaimMode", "ReleaseBreaker", "PauseReclaim"} <= {member for *_, member, _, _ in calls}
    for *where, member, signature, arguments in calls:
        assert where == [names.BUS_NAME, names.ROOT_PATH, names.MANAGER_INTERFACE]
        method = manager.find(f"./interface/method[@name='{member}']")
        assert method is not None, member
        taken = method.findall("arg[@direction='in']")
        assert (signature, len(arguments.split())) == ("".join(one.attrib["type"] for one in taken), len(taken)), member


def test_systemd_compiles_and_lists_it(tmp_path: Path) -> None:
    source = tmp_path / "usr/lib/systemd/catalog"
    source.mkdir(parents=True)
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    shutil.copy(CATALOG, source)

    def journalctl(*arguments: str) -> str:
        run = subprocess.run(["journalctl", f"--root={tmp_path}", *arguments], check=True, capture_output=True, text=True, timeout=60)
        assert run.stderr == ""
        return run.stdout

    journalctl("--update-catalog")
    listed = [line.split(" ", 1) for line in journalctl("--list-catalog").splitlines()]
    found = entries()
    assert dict(listed) == {identifier: f"devward: {entry.headers['Subject']}" for identifier, entry in found.items()}
    dumped = journalctl("--dump-catalog")
    assert all(entry.text in dumped for entry in found.values())
