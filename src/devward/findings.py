"""Findings in the journal: each when it comes and when it goes, damped."""

import os
from collections.abc import Sequence
from typing import Final

from devward.audit import Audit
from devward.model import Finding
from devward.reasons import Reason

#: How many findings that come, or go, together are recorded one by one.
AT_ONCE: Final = 10


class FindingTrail:
    """Records the difference to the findings of before."""

    def __init__(self, audit: Audit) -> None:
        """Write to this audit trail."""
        self._audit = audit
        self._known: dict[tuple[Reason, str, str], Finding] = {}

    def record(self, findings: Sequence[Finding]) -> None:
        """Record what came and what went."""
        current = {(finding.code, finding.subject, finding.text): finding for finding in findings}
        self._record_some([current[key] for key in sorted(current.keys() - self._known.keys())], "finding", "")
        gone = [self._known[key] for key in sorted(self._known.keys() - current.keys())]
        self._record_some(gone, "finding-cleared", "No longer: ")
        self._known = current

    def _record_some(self, findings: list[Finding], kind: str, prefix: str) -> None:
        """Record findings, of many only the first and their number: whoever may make files in a directory must not fill the journal."""
        for finding in findings[:AT_ONCE]:
            self._record(finding, kind, prefix)
        more = len(findings) - AT_ONCE
        if more > 0:
            self._audit.transition("many findings", kind, f"{prefix}{more} more findings; ListFindings has them", subject="-", count=more)

    def _record(self, finding: Finding, kind: str, prefix: str) -> None:
        if finding.code is Reason.DEVICE_DRIFT and kind == "finding":
            kind = "device-drift"
        device = finding.subject if finding.code is Reason.DEVICE_DRIFT else ""
        self._audit.transition(
            # Not by file: the name is whatever somebody called it, and each new one would have records of its own.
            f"{finding.code} in {os.path.dirname(finding.subject)}",
            kind,
            prefix + (finding.text if finding.subject in finding.text else f"{finding.subject}: {finding.text}"),
            subject=finding.subject,
            reason=finding.code,
            device=device,
        )
