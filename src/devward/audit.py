"""The audit trail: what devward saw, did and refused, as journal records that tell the same story to people and to queries.

An act is two records with one request id: the intent before it, the outcome after it. An act that ends without saying how, by an
exception or for want of a word, is recorded as a failure. Denials are recorded too. What repeats is counted and summed up.
MESSAGE is for people and nothing parses it; the fields are data (names.FIELD_*). No text from outside reaches either unescaped.
An Audit belongs to one thread, the event loop's.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType, TracebackType
from typing import Final, Self, TypedDict, Unpack

from devward import names
from devward.damping import Closed, Damper
from devward.journal import Journal, Priority
from devward.model import ActionRequest, Caller, Outcome, Trigger
from devward.text import printable

#: Damping: denials of one uid and transitions of one key that are written in full in each minute.
PERIOD: Final = 60.0
DENIALS_PER_PERIOD: Final = 10
TRANSITIONS_PER_PERIOD: Final = 6
#: Denials of any further uid share one allowance, so that a crowd of uids cannot flood the journal.
DENIED_UIDS: Final = 64
TRANSITION_KEYS: Final = 256
_FURTHER_UIDS: Final = "further uids"

_MESSAGE_LIMIT: Final = 1000
_VALUE_LIMIT: Final = 4096
_EVIDENCE_LIMIT: Final = 64 << 10

#: The reason of an act that ended without an outcome of its own.
UNFINISHED: Final = "unfinished"
#: Stands for a field that the catalog's text uses and a record does not have; journalctl would print the field's name.
NOT_GIVEN: Final = "-"

#: The importance of each kind where the caller names none; the others are INFO.
_PRIORITIES: Final[Mapping[str, Priority]] = MappingProxyType(
    {
        "started": Priority.NOTICE,
        "stopped": Priority.NOTICE,
        "ready": Priority.NOTICE,
        "degraded": Priority.WARNING,
        "config-refused": Priority.ERROR,
        "device-usable": Priority.NOTICE,
        "device-unusable": Priority.WARNING,
        "device-gone": Priority.WARNING,
        "device-drift": Priority.NOTICE,
        "check-inconclusive": Priority.NOTICE,
        "helper-stuck": Priority.ERROR,
        "spec-repair": Priority.NOTICE,
        "spec-withdraw": Priority.NOTICE,
        "spec-blocked": Priority.ERROR,
        "spec-restored": Priority.NOTICE,
        "spec-drifted": Priority.WARNING,
        "spec-contested": Priority.WARNING,
        "spec-conflict": Priority.WARNING,
        "spec-foreign": Priority.WARNING,
        "finding": Priority.WARNING,
        "pause-ended": Priority.NOTICE,
        "action": Priority.NOTICE,
        "action-denied": Priority.WARNING,
        "allocation-refused": Priority.WARNING,
        "udev-overflow": Priority.WARNING,
        "card-usable": Priority.NOTICE,
        "card-unknown": Priority.WARNING,
        "card-gone": Priority.WARNING,
        "vnpu-appeared": Priority.NOTICE,
        "vnpu-gone": Priority.NOTICE,
        "vnpu-reclaim": Priority.NOTICE,
        "vnpu-kept": Priority.NOTICE,
        "reclaim-refused": Priority.NOTICE,
        "reclaim-blocked": Priority.WARNING,
        "reclaim-unblocked": Priority.NOTICE,
        "mass-reclaim": Priority.ERROR,
        "vnpu-vanished": Priority.WARNING,
        "broker-kill": Priority.WARNING,
        "plugin-registered": Priority.NOTICE,
        "plugin-taken": Priority.WARNING,
        "plugin-failed": Priority.WARNING,
        "flapping": Priority.WARNING,
        "internal-error": Priority.ERROR,
        "state-damaged": Priority.WARNING,
        "bus-lost": Priority.ERROR,
    }
)

_ACT = (names.FIELD_OUTCOME, names.FIELD_REQUEST_ID, names.FIELD_REASON)
_DEVICE = (names.FIELD_DEVICE, names.FIELD_REASON)
_VNPU = (names.FIELD_VNPU, names.FIELD_CARD)
_SPEC = (names.FIELD_CDI_FILE, names.FIELD_REASON)
#: The fields that systemd/devward.catalog puts into its text, by kind; a record of that kind always has them. Only what
#: is short: in place of a value of some thousand bytes journalctl prints the field's name.
CATALOG_FIELDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "degraded": (names.FIELD_REASON,),
        "device-usable": (names.FIELD_DEVICE,),
        "device-unusable": _DEVICE,
        "device-gone": _DEVICE,
        "device-drift": (names.FIELD_DEVICE,),
        "check-inconclusive": _DEVICE,
        "helper-stuck": (names.FIELD_DEVICE,),
        "spec-repair": (names.FIELD_CDI_FILE, names.FIELD_CAUSE, *_ACT),
        "spec-withdraw": (names.FIELD_CDI_FILE, names.FIELD_DEVICE, *_ACT),
        "spec-blocked": _SPEC,
        "spec-restored": (names.FIELD_CDI_FILE,),
        "spec-drifted": (names.FIELD_CDI_FILE, names.FIELD_CAUSE),
        "spec-contested": (names.FIELD_CDI_FILE,),
        "spec-conflict": (names.FIELD_CDI_FILE,),
        "spec-foreign": (names.FIELD_CDI_FILE,),
        "finding": (names.FIELD_SUBJECT, names.FIELD_REASON),
        "finding-cleared": (names.FIELD_SUBJECT, names.FIELD_REASON),
        "action": (names.FIELD_MEMBER, names.FIELD_CALLER_UID, *_ACT),
        "action-denied": (names.FIELD_MEMBER, names.FIELD_CALLER_UID, names.FIELD_POLKIT_ACTION, names.FIELD_REASON),
        "allocation-refused": _DEVICE,
        "card-usable": (names.FIELD_SUBJECT,),
        "card-unknown": (names.FIELD_SUBJECT, names.FIELD_REASON),
        "card-gone": (names.FIELD_SUBJECT,),
        "vnpu-appeared": (names.FIELD_SUBJECT, names.FIELD_COUNT),
        "vnpu-gone": (names.FIELD_SUBJECT, names.FIELD_COUNT),
        "vnpu-reclaim": (*_VNPU, *_ACT),
        "vnpu-kept": (*_VNPU, names.FIELD_REASON),
        "reclaim-refused": (*_VNPU, names.FIELD_REASON),
        "reclaim-blocked": (names.FIELD_REASON,),
        "mass-reclaim": (names.FIELD_COUNT,),
        "vnpu-vanished": _VNPU,
        "broker-kill": (names.FIELD_SUBJECT, *_ACT),
        "plugin-registered": (names.FIELD_SUBJECT,),
        "plugin-taken": (names.FIELD_SUBJECT, names.FIELD_REASON),
        "plugin-failed": (names.FIELD_SUBJECT, names.FIELD_REASON),
        "flapping": (names.FIELD_SUBJECT, names.FIELD_COUNT),
        "leftovers-swept": (names.FIELD_COUNT,),
    }
)


class Details(TypedDict, total=False):
    """What a record may say beside its kind, message and reason; None and empty text say nothing."""

    #: Gives the record its request id, caller and trigger.
    request: ActionRequest | None
    trigger: Trigger | None
    caller: Caller | None
    #: The bus name of a caller of whom nothing else may be known.
    sender: str | None
    #: One node, or several.
    device: str | Sequence[str] | None
    #: The id of a vNPU or of several, the name of an NPU, and UIDs of Pods.
    vnpu: str | Sequence[str] | None
    card: str | None
    pod_uid: str | Sequence[str] | None
    cdi_file: str | None
    subject: str | None
    cause: str | None
    member: str | None
    polkit_action: str | None
    error_name: str | None
    sha256_before: str | None
    sha256_after: str | None
    count: int | None
    delay_usec: int | None
    duration_usec: int | None
    #: What the decision rested on; written as JSON.
    evidence: Mapping[str, object] | None


class Fields(Details, total=False):
    """Details, and the reason: a code, or several."""

    reason: str | Sequence[str] | None


_FIELD_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "trigger": names.FIELD_TRIGGER,
        "sender": names.FIELD_CALLER,
        "device": names.FIELD_DEVICE,
        "vnpu": names.FIELD_VNPU,
        "card": names.FIELD_CARD,
        "pod_uid": names.FIELD_POD_UID,
        "cdi_file": names.FIELD_CDI_FILE,
        "subject": names.FIELD_SUBJECT,
        "cause": names.FIELD_CAUSE,
        "reason": names.FIELD_REASON,
        "member": names.FIELD_MEMBER,
        "polkit_action": names.FIELD_POLKIT_ACTION,
        "error_name": names.FIELD_ERROR_NAME,
        "sha256_before": names.FIELD_SHA256_BEFORE,
        "sha256_after": names.FIELD_SHA256_AFTER,
        "count": names.FIELD_COUNT,
        "delay_usec": names.FIELD_DELAY_USEC,
        "duration_usec": names.FIELD_DURATION_USEC,
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """A record as its writer gave it."""

    kind: str
    message: str
    priority: Priority | None
    fields: Fields
    outcome: Outcome | None = None
    request_id: str | None = None


class Record:
    """An act under way: `with audit.begin(...) as record:`; the block tells the outcome once."""

    def __init__(
        self, write: Callable[[_Entry], bool], monotonic: Callable[[], float], entry: _Entry, request_id: str, *, resumed: bool
    ) -> None:
        """Write the intent, unless it is on record. Made by Audit.begin only."""
        self._write = write
        self._monotonic = monotonic
        self._entry = dataclasses.replace(entry, request_id=request_id)
        self._started = monotonic()
        self._finished = False
        self.request_id = request_id
        #: Whether the journal's socket took the intent: an act that must be on record is not done otherwise.
        self.taken = resumed or write(dataclasses.replace(self._entry, priority=Priority.INFO, outcome=Outcome.INTENT))

    def succeed(self, message: str, **fields: Unpack[Fields]) -> None:
        """It was done."""
        self._finish(Outcome.SUCCESS, message, self._entry.priority, fields)

    def noop(self, message: str, **fields: Unpack[Fields]) -> None:
        """There was nothing to do."""
        self._finish(Outcome.NOOP, message, Priority.INFO, fields)

    def dry_run(self, message: str, **fields: Unpack[Fields]) -> None:
        """It would be done, had this not been a dry run."""
        self._finish(Outcome.DRY_RUN, message, Priority.INFO, fields)

    def fail(self, reason: str, message: str, **details: Unpack[Details]) -> None:
        """It was not done, or not wholly."""
        self._finish(Outcome.FAILURE, message, Priority.ERROR, {**details, "reason": reason})

    def withhold(self) -> None:
        """It failed as it did before, which is on record: write nothing."""
        self._finished = True

    def __enter__(self) -> Self:
        """Nothing more: the intent is written by then."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Record a failure if the block told no outcome; an exception goes on its way."""
        if self._finished:
            return
        if error is None:
            self.fail(UNFINISHED, f"Ended without an outcome: {self._entry.message}")
        else:
            evidence = {"exception": type(error).__name__, "text": str(error)}
            self.fail(UNFINISHED, f"Broken off by {type(error).__name__}: {self._entry.message}", evidence=evidence)

    def _finish(self, outcome: Outcome, message: str, priority: Priority | None, fields: Fields) -> None:
        if self._finished:
            raise RuntimeError(f"a second outcome for {self._entry.kind}: {outcome}")
        self._finished = True
        told: Fields = {**self._entry.fields, **fields, "duration_usec": round((self._monotonic() - self._started) * 1_000_000)}
        self._write(dataclasses.replace(self._entry, message=message, priority=priority, fields=told, outcome=outcome))


class Audit:
    """The one writer of audit records."""

    def __init__(self, journal: Journal, *, version: str, new_id: Callable[[], str], monotonic: Callable[[], float]) -> None:
        """Write to `journal`; `new_id` makes request ids, `monotonic` gives seconds."""
        self._journal = journal
        self._version = version
        self._new_id = new_id
        self._monotonic = monotonic
        self._denials: Damper[Fields] = Damper(limit=DENIALS_PER_PERIOD, period=PERIOD, capacity=DENIED_UIDS)
        self._transitions: Damper[_Entry] = Damper(limit=TRANSITIONS_PER_PERIOD, period=PERIOD, capacity=TRANSITION_KEYS)

    def event(
        self,
        kind: str,
        message: str,
        *,
        priority: Priority | None = None,
        outcome: Outcome | None = None,
        request_id: str | None = None,
        **fields: Unpack[Fields],
    ) -> bool:
        """Record what happened; True only when the journal's socket took it. KeyError: no such kind in names.MESSAGE_IDS."""
        return self._write(_Entry(kind, message, priority, fields, outcome, request_id))

    def begin(
        self,
        kind: str,
        message: str,
        *,
        priority: Priority | None = None,
        request_id: str | None = None,
        resumed: bool = False,
        **fields: Unpack[Fields],
    ) -> Record:
        """Record the intent of an act, at once; `priority` is that of its success. The id is given, the request's, or a new one.

        `resumed`: an act that failed is tried again, and its intent is on record under the id that is given.
        """
        request = fields.get("request")
        chosen = request_id or (request.request_id if request else self._new_id())
        return Record(self._write, self._monotonic, _Entry(kind, message, priority, fields), chosen, resumed=resumed)

    def transition(self, key: str, kind: str, message: str, *, priority: Priority | None = None, **fields: Unpack[Fields]) -> None:
        """Record a change of state of `key`, damped.

        The first few in a minute are written in full, the rest are counted. When the minute is over a `flapping` record gives their
        number and the latest of them is written after all, at the next transition or by `flush`.
        """
        now = self._monotonic()
        self._sum_up(self._transitions.close(now), now, superseded=key)
        if not self._transitions.has_room(key):
            self._sum_up(self._transitions.close_oldest(), now)
        entry = _Entry(kind, message, priority, fields)
        if self._transitions.admit(key, entry, now):
            self._write(entry)

    def denied(self, *, caller: Caller | None, sender: str, action: str, member: str, reason: str, text: str) -> None:
        """Record that an action was refused to somebody, with the code and the sentence of why. Damped by uid.

        `caller` is None when the bus could not say who it is.
        """
        now = self._monotonic()
        self._sum_up_denials(self._denials.close(now))
        key = str(caller.uid) if caller else "unknown"
        if not self._denials.has_room(key):
            key = _FURTHER_UIDS
        denial: Fields = {"sender": sender, "polkit_action": action, "member": member, "reason": reason}
        if caller:
            denial["caller"] = caller
        if self._denials.admit(key, denial, now):
            who = f"{sender}, uid {caller.uid}" if caller else f"{sender}, uid unknown"
            self.event("action-denied", f"Denied to {who}: {member}: {text}", outcome=Outcome.DENIED, **denial)

    @property
    def pending(self) -> bool:
        """Whether events were held back of which no record tells yet."""
        return self.due is not None

    @property
    def due(self) -> float | None:
        """When `flush` next has something to write, in seconds of the monotonic clock; None: it needs no timer."""
        return min((due for due in (self._transitions.due, self._denials.due) if due is not None), default=None)

    def flush(self, *, everything: bool = False) -> None:
        """Sum up what was held back in every window that is over, or, when stopping, in all of them."""
        now = self._monotonic()
        self._sum_up(self._transitions.close(now, everything=everything), now)
        self._sum_up_denials(self._denials.close(now, everything=everything))

    def _write(self, entry: _Entry) -> bool:
        record: dict[str, str | Sequence[str]] = {"MESSAGE_ID": names.MESSAGE_IDS[entry.kind], names.FIELD_EVENT: entry.kind}
        request = entry.fields.get("request")
        if entry.outcome is not None:
            record[names.FIELD_OUTCOME] = entry.outcome.value
        if entry.request_id or request:
            record[names.FIELD_REQUEST_ID] = _escaped(entry.request_id or (request.request_id if request else ""))
        if request:
            record[names.FIELD_TRIGGER] = request.trigger.value
        caller = entry.fields.get("caller") or (request.caller if request else None)
        given = {key: value for key, value in entry.fields.items() if value is not None and value not in ("", ())}
        record |= {name: _escaped(given[key]) for key, name in _FIELD_NAMES.items() if key in given}
        if caller:
            record |= _caller_fields(caller)
        record |= {name: NOT_GIVEN for name in CATALOG_FIELDS.get(entry.kind, ()) if not record.get(name)}
        record |= {names.FIELD_VERSION: self._version, "DOCUMENTATION": names.DOCUMENTATION}
        # Last, for it may be long, and stderr's line is cut.
        evidence = entry.fields.get("evidence")
        if evidence:
            record[names.FIELD_EVIDENCE] = _evidence(evidence)
        priority = _PRIORITIES.get(entry.kind, Priority.INFO) if entry.priority is None else entry.priority
        return self._journal.send(printable(entry.message, _MESSAGE_LIMIT), record, priority=priority)

    def _sum_up(self, windows: Sequence[Closed[_Entry]], now: float, *, superseded: str | None = None) -> None:
        for window in windows:
            message = f"{window.key} keeps changing: {window.held_back} further changes were counted, not written; the latest follows"
            self.event("flapping", message, subject=window.key, count=window.held_back)
            if window.key != superseded:
                delay = round((now - window.last_at) * 1_000_000)
                self._write(dataclasses.replace(window.last, fields={**window.last.fields, "delay_usec": delay}))

    def _sum_up_denials(self, windows: Sequence[Closed[Fields]]) -> None:
        for window in windows:
            who = window.key if window.key == _FURTHER_UIDS else f"uid {window.key}"
            message = f"Denied to {who}: {window.held_back} more calls, counted and not written; the latest was {window.last['member']}"
            summary: Fields = {**window.last, "count": window.held_back}
            self.event("action-denied", message, outcome=Outcome.DENIED, **summary)


def _caller_fields(caller: Caller) -> dict[str, str]:
    fields = {names.FIELD_CALLER: printable(caller.sender, _VALUE_LIMIT), names.FIELD_CALLER_UID: str(caller.uid)}
    # For a pid that root names, journald itself adds OBJECT_UID, OBJECT_COMM, OBJECT_SYSTEMD_UNIT and more.
    return fields | ({"OBJECT_PID": str(caller.pid)} if caller.pid > 0 else {})


def _escaped(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return printable(value, _VALUE_LIMIT)
    if isinstance(value, Sequence):
        return tuple(printable(str(one), _VALUE_LIMIT) for one in value)
    return str(value)


def _evidence(evidence: Mapping[str, object]) -> str:
    """Return evidence as one line of JSON in ASCII, whatever is in it, and still JSON where it is too long."""
    try:
        text = json.dumps(dict(evidence), sort_keys=True, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        text = json.dumps({"unreadable": f"{type(error).__name__}: {error}"})
    if len(text) > _EVIDENCE_LIMIT:
        text = json.dumps({"cut": len(text), "head": text[: _EVIDENCE_LIMIT // 4]})
    return text


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value, key=str)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
