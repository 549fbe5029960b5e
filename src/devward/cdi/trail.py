"""The audit records of what is done to one owned file.

Each act is an intent and an outcome. Where attempts fail alike, again and again, the first is told, and the one that succeeds at last,
under the same request id: a disk that is full for a day must not fill the journal as well.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from devward.audit import Audit, Record
from devward.cdi.decision import LeftOut, Plan, Step
from devward.cdi.store import EntryType, Found
from devward.model import ActionRequest, Trigger
from devward.reasons import Reason

#: So many attempts of a series are told in full, where each one finds something else; those after them are counted.
TOLD_FAILURES = 6


@dataclass(frozen=True, slots=True)
class _Series:
    """Attempts that failed, one after the other."""

    attempts: int
    told: int
    #: The latest that was told: its request id, and what it was about.
    request_id: str
    likeness: tuple[object, ...]


class Trail:
    """Writes the records of one file's acts, one act at a time: `begin`, then `succeeded` or `failed`."""

    def __init__(self, audit: Audit, path: str) -> None:
        """Nothing is written before the first act."""
        self._audit = audit
        self._path = path
        self._series: _Series | None = None
        self._act = ""
        self._likeness: tuple[object, ...] = ()
        self._again = False

    def begin(self, plan: Plan, found: Found, leaving: Sequence[LeftOut], trigger: Trigger, request: ActionRequest | None) -> Record:
        """Record the intent, unless an attempt like this one has failed and is on record; what somebody asked for is always told.

        `leaving`: the devices that the file holds and then will not.
        """
        removing = plan.step is Step.REMOVE
        before = digest_of(found)
        self._likeness = (plan.step, plan.cause, before)
        series = self._series
        self._again = False
        if series is not None and request is None:
            self._again = series.likeness == self._likeness or series.told >= TOLD_FAILURES
        told = ", ".join(f"{one.node} ({one.reason})" for one in leaving)
        self._act = f"{self._path}: {plan.cause}" + (f", without {told}" if told else "")
        return self._audit.begin(
            "spec-withdraw" if removing or leaving else "spec-repair",
            f"About to {'remove' if removing else 'write'} {self._act}",
            request_id=series.request_id if series is not None and self._again else None,
            resumed=self._again,
            cdi_file=self._path,
            cause=plan.cause,
            device=tuple(one.node for one in leaving),
            reason=tuple(one.reason for one in leaving),
            sha256_before=before,
            evidence=evidence(plan, found),
            trigger=trigger,
            request=request,
        )

    def succeeded(self, record: Record, done: str, sha256_after: str) -> None:
        """Record that the act was done, and how many attempts failed before."""
        failures = self._series.attempts if self._series is not None else 0
        message = f"{done} {self._act}" + (f", after {failures} attempts that failed" if failures else "")
        record.succeed(message, sha256_after=sha256_after, count=failures or None)
        self._series = None

    def failed(self, record: Record, reason: Reason, message: str) -> None:
        """Record that the act failed, or count it."""
        series = self._series
        if series is not None and self._again:
            record.withhold()
            self._series = replace(series, attempts=series.attempts + 1)
            return
        record.fail(reason, message)
        attempts, told = (series.attempts, series.told) if series is not None else (0, 0)
        self._series = _Series(attempts + 1, told + 1, record.request_id, self._likeness)

    def drifted(self, plan: Plan, found: Found) -> None:
        """Record that the file differs, where that is not to be changed now."""
        self._audit.transition(
            self._path,
            "spec-drifted",
            f"{self._path} differs and is not repaired now: {plan.cause}",
            cdi_file=self._path,
            cause=plan.cause,
            reason=plan.reason,
            sha256_before=digest_of(found),
            evidence=evidence(plan, found),
        )

    def in_order(self) -> None:
        """End a series of failures: nothing is left to do."""
        self._series = None


def evidence(plan: Plan, found: Found) -> dict[str, object]:
    """Return what differed, and whose file was found and of when."""
    told: dict[str, object] = {"differences": list(plan.differences)}
    if found.entry is EntryType.REGULAR:
        told["found"] = {
            "mode": f"{found.mode:04o}",
            "uid": found.uid,
            "gid": found.gid,
            "links": found.links,
            "mtime_usec": found.mtime_usec,
        }
    return told


def digest_of(found: Found) -> str:
    """Return the SHA-256 of what was found, empty where nothing could be read."""
    return hashlib.sha256(found.data).hexdigest() if found.data is not None else ""
