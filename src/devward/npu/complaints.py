"""Gathers what is wrong with NPUs into findings: few, however many vNPUs a host has. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from devward.devices.health import sentence
from devward.model import Finding
from devward.reasons import Reason

#: Of many, how many are named.
NAMED: Final = 8

#: Something that does not match: the code, what it is about, and which.
Suspect = tuple[Reason, str, str]


@dataclass(frozen=True, slots=True)
class Fault:
    """What keeps a card or a vNPU from being vouched for."""

    reason: Reason
    #: What came in particular; may be empty.
    detail: str = ""

    @property
    def sentence(self) -> str:
        """The fault for people."""
        return sentence(self.reason, self.detail)


@dataclass(slots=True)
class _Group:
    details: list[str] = field(default_factory=list)
    vdevs: list[int] = field(default_factory=list)


class Complaints:
    """The complaints of one look.

    The library, the nodes and /etc/vnpu.cfg cannot be looked at in one moment. What may only be on its way is a suspect, and becomes a
    finding when the next look has it too.
    """

    def __init__(self, before: frozenset[Suspect]) -> None:
        """Begin a look, with the suspects of the one before."""
        self._before = before
        self._groups: dict[tuple[Reason, str], _Group] = {}
        self._suspects: set[Suspect] = set()

    @property
    def suspects(self) -> frozenset[Suspect]:
        """What the next look has to confirm, or confirmed."""
        return frozenset(self._suspects)

    @property
    def unsettled(self) -> bool:
        """Whether something is suspected for the first time."""
        return not self._suspects <= self._before

    def add(self, fault: Fault, subject: str) -> None:
        """Complain of something."""
        self._group(fault.reason, subject).details.append(fault.detail)

    def add_vnpu(self, fault: Fault, card: str, vdev: int) -> None:
        """Complain of one vNPU of a card."""
        self._group(fault.reason, f"card/{card}").vdevs.append(vdev)

    def suspect(self, fault: Fault, subject: str, vdev: int | None = None) -> None:
        """Complain if the look before had the same complaint; for a vNPU the subject is that of its card."""
        suspect = (fault.reason, subject, fault.detail if vdev is None else str(vdev))
        self._suspects.add(suspect)
        if suspect not in self._before:
            return
        if vdev is None:
            self.add(fault, subject)
        else:
            self._group(fault.reason, subject).vdevs.append(vdev)

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings, one for each code and subject."""
        return tuple(Finding(reason, subject, _text(reason, group)) for (reason, subject), group in sorted(self._groups.items()))

    def _group(self, reason: Reason, subject: str) -> _Group:
        return self._groups.setdefault((reason, subject), _Group())


def _text(reason: Reason, group: _Group) -> str:
    parts = [_some(dict.fromkeys(filter(None, group.details)), "; ")]
    if group.vdevs:
        parts.append(f"vNPU {_some(map(str, sorted(set(group.vdevs))), ', ')}")
    return sentence(reason, "; ".join(filter(None, parts)))


def _some(items: Iterable[str], separator: str) -> str:
    known = list(items)
    more = len(known) - NAMED
    return separator.join(known[:NAMED]) + (f" and {more} more" if more > 0 else "")
