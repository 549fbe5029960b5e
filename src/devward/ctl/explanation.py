"""What every explanation consists of, whatever it is about. Pure."""

from collections.abc import Collection
from dataclasses import dataclass, field

from devward.ctl.advice import Step
from devward.ctl.facts import Finding, Snapshot
from devward.ctl.when import Times
from devward.text import printable


@dataclass(slots=True)
class Explanation:
    """The chain about one thing."""

    what: str
    kind: str
    found: list[str] = field(default_factory=list)
    means: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    #: For --json: what the daemon itself says of it, where it does.
    evidence: object = None


def findings_about(subjects: Collection[str], snapshot: Snapshot, times: Times) -> list[str]:
    """Say what was found about any of these."""
    return [say_finding(finding, times) for finding in snapshot.findings if finding.subject and finding.subject in subjects]


def say_finding(finding: Finding, times: Times) -> str:
    """Say a finding."""
    return f"Finding{after(times.lasting(finding.since_usec))}: {printable(finding.text, 400)} ({printable(finding.code)})"


def after(lasting: str) -> str:
    """Return since when something holds, as the end of a sentence; nothing where that is not known."""
    return f", {lasting}" if lasting else ""
