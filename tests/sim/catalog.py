"""The message catalog, read as systemd reads it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CATALOG: Final = Path(__file__).parents[2] / "systemd" / "devward.catalog"


@dataclass(frozen=True)
class Entry:
    """One entry of the catalog."""

    headers: dict[str, str]
    text: str

    def filled(self, record: Mapping[str, list[str]]) -> str:
        """Return subject and text as `journalctl -x` shows them with a record that has all their fields."""
        return re.sub(r"@([A-Z0-9_]+)@", lambda found: record[found[1]][0], f"{self.headers['Subject']}\n{self.text}")


def entries() -> dict[str, Entry]:
    """Parse the catalog: `-- id`, headers, an empty line, text."""
    found: dict[str, Entry] = {}
    for block in re.split(r"^-- ", CATALOG.read_text("ascii"), flags=re.MULTILINE)[1:]:
        identifier, _, rest = block.partition("\n")
        head, _, text = rest.partition("\n\n")
        assert identifier not in found, f"{identifier} comes twice"
        found[identifier] = Entry(dict(line.split(": ", 1) for line in head.splitlines()), text.strip())
    return found
