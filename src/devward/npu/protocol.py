"""What the daemon and the broker of the vendor's library say to each other: one JSON object a line, each way. Pure.

A request is one of

    {"version": 1, "id": 7, "verb": "list"}
    {"version": 1, "id": 7, "verb": "inspect", "card": 0, "device": 0}
    {"version": 1, "id": 7, "verb": "destroy", "request": "...", "expires_ns": N,
     "runtime": "containerd://1.7.2", "expected": {...}}
    {"version": 1, "id": 7, "verb": "witness", "expires_ns": N, "runtime": "containerd://1.7.2",
     "vnpus": [{"vdev": 148, "major": 236, "minor": 148}, ...]}

and its answer repeats version and id:

    {"version": 1, "id": 7, "status": "refused", "reason": "busy", "text": "...", "code": null}
    {"version": 1, "id": 7, "status": "listed", "inventory": {...}}
    {"version": 1, "id": 7, "status": "inspected", "inspection": {...}}
    {"version": 1, "id": 7, "status": "called", "outcome": "destroyed", "code": 0, "text": "..."}
    {"version": 1, "id": 7, "status": "witnessed", "statement": {...}}

`refused` to a destroy means that the library was not called to destroy anything; `called` that it was, once. The id of an answer is null
where the request had none that could be read. Objects are those of devward.npu.facts and devward.cluster.statement; every field is there,
null for what is not known. Both sides check every field, whoever is at the other end.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from devward.cluster.statement import AskedVnpu, Statement
from devward.npu.facts import Expected, Inspection, Inventory, Outcome, Refusal
from devward.npu.fields import U32, Fields, Malformed, integer, member, optional, pattern, read_line, text
from devward.npu.objects import CARD, CODE, DEVICE, expected, inspection, inventory
from devward.npu.witness_objects import asked_vnpus, statement
from devward.text import printable

VERSION: Final = 1
#: Bytes of a request, its newline included: every vNPU that there can be stays below it.
REQUEST_LIMIT: Final = 64 << 10
#: Bytes of an answer: 256 chips with 32 vNPUs each, and a problem with everything, stay below it.
ANSWER_LIMIT: Final = 8 << 20

TEXT_LIMIT: Final = 400
#: Of a runtime that is only asked about: foreign text, of which the part before `://` counts.
RUNTIME_LIMIT: Final = 128
_RUNTIME: Final = re.compile(r"[a-z0-9-]{1,32}://[!-~]{1,96}")
_REQUEST_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Verb(StrEnum):
    """What the broker can be asked."""

    LIST = "list"
    INSPECT = "inspect"
    DESTROY = "destroy"
    WITNESS = "witness"


class Status(StrEnum):
    """What an answer is."""

    REFUSED = "refused"
    LISTED = "listed"
    INSPECTED = "inspected"
    CALLED = "called"
    WITNESSED = "witnessed"


@dataclass(frozen=True, slots=True)
class ListRequest:
    """List every NPU with its vNPUs."""

    id: int


@dataclass(frozen=True, slots=True)
class InspectRequest:
    """Look at one chip more closely."""

    id: int
    card: int
    device: int


@dataclass(frozen=True, slots=True)
class DestroyRequest:
    """Destroy one vNPU, if it is exactly the expected one and nobody uses it."""

    id: int
    #: The caller's name of the request, in both journals.
    request: str
    #: CLOCK_BOOTTIME at which the caller gives up: the library is not called later.
    expires_ns: int
    #: The Node's containerRuntimeVersion: its bundles must be there to be read.
    runtime: str
    expected: Expected


@dataclass(frozen=True, slots=True)
class WitnessRequest:
    """Tell what the host shows: of these vNPUs, of every Pod, and of the kubelet. Nothing is asked of the vendor's library."""

    id: int
    #: CLOCK_BOOTTIME at which the caller gives up.
    expires_ns: int
    #: The Node's containerRuntimeVersion, foreign text; None where there is no Node, and so no runtime that has to be found.
    runtime: str | None
    #: With none, no process is looked at.
    vnpus: tuple[AskedVnpu, ...]


Request = ListRequest | InspectRequest | DestroyRequest | WitnessRequest


@dataclass(frozen=True, slots=True)
class RefusedAnswer:
    """It was not done. `code` is the library's, where one is behind it."""

    id: int | None
    reason: Refusal
    text: str
    code: int | None = None


@dataclass(frozen=True, slots=True)
class ListAnswer:
    """What a list found."""

    id: int
    inventory: Inventory


@dataclass(frozen=True, slots=True)
class InspectAnswer:
    """What a closer look found."""

    id: int
    inspection: Inspection


@dataclass(frozen=True, slots=True)
class DestroyAnswer:
    """The library was called. `code` is what it returned; None: it did not return."""

    id: int
    outcome: Outcome
    code: int | None
    text: str


@dataclass(frozen=True, slots=True)
class WitnessAnswer:
    """What the host shows."""

    id: int
    statement: Statement


Answer = RefusedAnswer | ListAnswer | InspectAnswer | DestroyAnswer | WitnessAnswer

_STATUS: Final[dict[type[Answer], Status]] = {
    RefusedAnswer: Status.REFUSED,
    ListAnswer: Status.LISTED,
    InspectAnswer: Status.INSPECTED,
    DestroyAnswer: Status.CALLED,
    WitnessAnswer: Status.WITNESSED,
}
_VERB: Final[dict[type[Request], Verb]] = {
    ListRequest: Verb.LIST,
    InspectRequest: Verb.INSPECT,
    DestroyRequest: Verb.DESTROY,
    WitnessRequest: Verb.WITNESS,
}


class OtherVersion(Malformed):
    """The other side speaks another version of the protocol."""


def encode_request(request: Request) -> bytes:
    """Return the line of a request."""
    return _line({"version": VERSION, "verb": _VERB[type(request)], **_fields(request)})


def encode_answer(answer: Answer) -> bytes:
    """Return the line of an answer."""
    return _line({"version": VERSION, "status": _STATUS[type(answer)], **_fields(answer)})


def answer_text(sentence: str) -> str:
    """Return a sentence as an answer may carry it."""
    return printable(sentence, TEXT_LIMIT)


def parse_request(line: bytes) -> Request:
    """Return the request of a line, with or without its newline. Malformed."""
    fields = _versioned(read_line(line, REQUEST_LIMIT))
    verb, identifier = fields.take("verb", member(Verb)), fields.take("id", _ID)
    request: Request
    if verb is Verb.LIST:
        request = ListRequest(identifier)
    elif verb is Verb.INSPECT:
        request = InspectRequest(identifier, fields.take("card", CARD), fields.take("device", DEVICE))
    elif verb is Verb.WITNESS:
        request = WitnessRequest(
            identifier,
            fields.take("expires_ns", _TIME),
            fields.take("runtime", optional(text(RUNTIME_LIMIT))),
            fields.take("vnpus", asked_vnpus),
        )
    else:
        request = DestroyRequest(
            identifier,
            fields.take("request", pattern(_REQUEST_NAME)),
            fields.take("expires_ns", _TIME),
            fields.take("runtime", pattern(_RUNTIME)),
            fields.take("expected", expected),
        )
    fields.end()
    return request


def request_id(line: bytes) -> int | None:
    """Return the id of a line that is no request, for its answer; None where it has none."""
    try:
        return Fields(read_line(line, REQUEST_LIMIT)).take("id", _ID)
    except Malformed:
        return None


def parse_answer(line: bytes) -> Answer:
    """Return the answer of a line, with or without its newline. Malformed."""
    fields = _versioned(read_line(line, ANSWER_LIMIT))
    status = fields.take("status", member(Status))
    answer: Answer
    if status is Status.REFUSED:
        answer = RefusedAnswer(
            fields.take("id", optional(_ID)),
            fields.take("reason", member(Refusal)),
            fields.take("text", text(TEXT_LIMIT)),
            fields.take("code", optional(CODE)),
        )
    elif status is Status.LISTED:
        answer = ListAnswer(fields.take("id", _ID), fields.take("inventory", inventory))
    elif status is Status.INSPECTED:
        answer = InspectAnswer(fields.take("id", _ID), fields.take("inspection", inspection))
    elif status is Status.WITNESSED:
        answer = WitnessAnswer(fields.take("id", _ID), fields.take("statement", statement))
    else:
        answer = DestroyAnswer(
            fields.take("id", _ID),
            fields.take("outcome", member(Outcome)),
            fields.take("code", optional(CODE)),
            fields.take("text", text(TEXT_LIMIT)),
        )
    fields.end()
    return answer


def _versioned(value: Any) -> Fields:
    fields = Fields(value)
    version = fields.take("version", integer(0, U32))
    if version != VERSION:
        raise OtherVersion(f"version: must be {VERSION}, and is {version}")
    return fields


_ID: Final = integer(0, (1 << 53) - 1)
_TIME: Final = integer(0, (1 << 63) - 1)


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass. Everything in it is one, a tuple, or plain already; each becomes JSON when it is its turn.

    All are positional parameters of its __init__, whose names every dataclass keeps in __match_args__: an answer has thousands of such
    objects. One that was not would be missing, and the other side refuse the message.
    """
    return {name: getattr(value, name) for name in value.__match_args__}


def _line(message: dict[str, Any]) -> bytes:
    # Strict: what the checks of the other side refuse must not leave this one.
    return json.dumps(message, default=_fields, allow_nan=False, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"
