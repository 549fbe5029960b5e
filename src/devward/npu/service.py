"""Answers the requests of the broker's callers."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from devward import names
from devward.boot import read_boot_id
from devward.cluster.statement import Statement
from devward.notify import Notifier
from devward.npu.access import Access
from devward.npu.caller import Caller
from devward.npu.destruction import Scan, Surroundings, describe, destroy, destroy_lock, read_node
from devward.npu.environment import Environment, require_host
from devward.npu.facts import Outcome, Refusal, Refused
from devward.npu.fields import Malformed
from devward.npu.gate import Gate, Phase
from devward.npu.host_witness import Observer
from devward.npu.protocol import (
    ANSWER_LIMIT,
    REQUEST_LIMIT,
    Answer,
    DestroyAnswer,
    DestroyRequest,
    InspectAnswer,
    InspectRequest,
    ListAnswer,
    ListRequest,
    OtherVersion,
    RefusedAnswer,
    Request,
    WitnessAnswer,
    WitnessRequest,
    answer_text,
    encode_answer,
    parse_request,
    request_id,
)
from devward.npu.survey import inspect, survey
from devward.npu.vendor import DcmiError

#: Further ahead no caller waits: a time beyond it is a mistake, and would let a call begin that nobody wants any more.
LONGEST_WAIT_NS: Final = 120_000_000_000
#: Seconds after which a look at the host stops, in doubt: before its caller gives up, and long before it counts as hung.
LOOK_SECONDS: Final = 10.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the service works with."""

    library: str | None
    lock_file: str
    device_directory: str
    read_environment: Callable[[], Environment]
    scan: Scan
    #: Made when the host is first asked about, and kept for what it remembers.
    observer: Callable[[], Observer]


class Service:
    """Works on one request at a time; the others are refused at once."""

    def __init__(self, settings: Settings, gate: Gate, notifier: Notifier) -> None:
        """Load nothing yet."""
        self._settings = settings
        self._gate = gate
        self._notifier = notifier
        self._access = Access(settings.library, settings.read_environment, self._step)
        self._at_work: tuple[Request, Caller] | None = None
        #: What the library returned to the destroy that is at work.
        self._code: int | None = None
        self._has_npus = False
        self._observer: Observer | None = None

    @property
    def may_leave(self) -> bool:
        """Whether there is nothing to stay for: no NPU is known."""
        return not self._has_npus

    @property
    def outdated(self) -> bool:
        """Whether only another process can serve on: the library was replaced."""
        return self._access.outdated

    def serve(self, line: bytes, caller: Caller) -> None:
        """Answer one line. OSError: the caller does not take the answer."""
        try:
            if not line.endswith(b"\n"):
                # Cut off, or only its beginning: what stands there may be whole by chance.
                raise Malformed(f"the line does not end within {REQUEST_LIMIT} bytes")
            request = parse_request(line)
        except Malformed as error:
            reason = Refusal.VERSION if isinstance(error, OtherVersion) else Refusal.MALFORMED
            caller.send(encode_answer(RefusedAnswer(request_id(line), reason, answer_text(str(error)))))
            return
        try:
            self._gate.enter()
        except Refused as refused:
            caller.send(encode_answer(_refusal(request, refused)))
            return
        self._at_work, self._code = (request, caller), None
        answer = self._answer(request, caller)
        self._at_work = None
        with self._gate.answering():
            caller.send(_encoded(answer))

    def say_last_words(self) -> None:
        """Tell the caller whose request hangs what becomes of it: the process ends."""
        at_work = self._at_work
        if at_work is None:
            return
        request, caller = at_work
        answer: Answer = RefusedAnswer(request.id, Refusal.HUNG, answer_text(f"{self._gate.call_name} does not return; the broker ends"))
        if self._code is not None:
            answer = self._unknown(request, self._code)
        with contextlib.suppress(OSError):
            caller.send_at_once(encode_answer(answer))

    def _step(self, call: str) -> None:
        """Note that something that may hang begins. Refused: it is for one who has gone, and nothing was changed for it."""
        self._gate.step(call)
        if self._gate.phase is Phase.READING and self._at_work is not None and self._at_work[1].is_gone:
            raise Refused(Refusal.CALLER_GONE, "the caller has gone")

    def _answer(self, request: Request, caller: Caller) -> Answer:
        try:
            answer = self._work(request, caller)
        except Refused as refused:
            answer = _refusal(request, refused)
        except DcmiError as error:
            answer = RefusedAnswer(request.id, Refusal.DCMI_FAILED, answer_text(str(error)), error.code)
        except Exception as error:  # noqa: BLE001
            # The edge of a thread: the caller must hear of it, and the next request must be served.
            _log.exception("A request failed: %s", type(request).__name__)
            answer = RefusedAnswer(request.id, Refusal.INTERNAL, answer_text(f"{type(error).__name__}: {error}"))
            if self._code is not None:
                answer = self._unknown(request, self._code)
        if isinstance(request, DestroyRequest):
            _record(request, answer)
        return answer

    def _work(self, request: Request, caller: Caller) -> Answer:
        """Do what is asked. Refused, DcmiError."""
        if isinstance(request, WitnessRequest):
            # Before the library is loaded: it has no part in this, and may be missing, or hang.
            return WitnessAnswer(request.id, self._witness(request, caller))
        vendor = self._access.open()
        if isinstance(request, ListRequest):
            inventory = survey(vendor, read_boot_id(), self._access.path)
            self._has_npus = bool(inventory.chips or inventory.problems)
            return ListAnswer(request.id, inventory)
        if isinstance(request, InspectRequest):
            inspection = inspect(vendor, read_boot_id(), request.card, request.device)
            if inspection is None:
                raise Refused(Refusal.NO_SUCH_CHIP, f"device {request.device} of card {request.card} is not an NPU")
            return InspectAnswer(request.id, inspection)
        return destroy(vendor, request, self._surroundings(request, caller))

    def _witness(self, request: WitnessRequest, caller: Caller) -> Statement:
        """Look at the host. Refused: not from here, or nobody waits for it."""
        # A process with mounts of its own may have other directories where the host's bundles are: it would find none, and no doubt.
        require_host(self._settings.read_environment())
        require_wanted(request, caller)
        if self._observer is None:
            self._observer = self._settings.observer()
        left = (request.expires_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / 1e9
        return self._observer.look(request.vnpus, request.runtime, min(left, LOOK_SECONDS), self._step)

    def _surroundings(self, request: DestroyRequest, caller: Caller) -> Surroundings:
        return Surroundings(
            boot_id=read_boot_id,
            node=lambda vdev: read_node(vdev, self._settings.device_directory),
            scan=self._settings.scan,
            step=self._step,
            lock=lambda: destroy_lock(self._settings.lock_file),
            require_wanted=lambda: require_wanted(request, caller),
            call=lambda: self._call(request),
            called=self._note_code,
        )

    @contextlib.contextmanager
    def _call(self, request: DestroyRequest) -> Iterator[None]:
        with self._gate.destroying():
            self._notifier.hold_watchdog()
            try:
                expected = request.expected
                _log.warning(
                    "Destroying vNPU %d, template %s, on card %d device %d, die %s, for the request %s",
                    expected.vdev,
                    expected.template,
                    expected.card,
                    expected.device,
                    expected.die,
                    request.request,
                    extra=_fields(request),
                )
                yield
            finally:
                self._notifier.resume_watchdog()

    def _note_code(self, code: int) -> None:
        self._code = code

    @staticmethod
    def _unknown(request: Request, code: int) -> DestroyAnswer:
        return DestroyAnswer(request.id, Outcome.UNKNOWN, code, answer_text(describe(Outcome.UNKNOWN, code)))


def require_wanted(request: DestroyRequest | WitnessRequest, caller: Caller) -> None:
    """Refused: nobody waits any more for what would be done."""
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if now > request.expires_ns:
        raise Refused(Refusal.EXPIRED, "the caller has given up: its time is over")
    if request.expires_ns > now + LONGEST_WAIT_NS:
        raise Refused(Refusal.EXPIRED, f"the caller's time is more than {LONGEST_WAIT_NS // 10**9} s ahead, which no caller waits")
    if caller.is_gone:
        raise Refused(Refusal.CALLER_GONE, "the caller has gone: nobody would learn what came of it")


def _encoded(answer: Answer) -> bytes:
    line = encode_answer(answer)
    if len(line) > ANSWER_LIMIT:
        text = f"the answer is longer than {ANSWER_LIMIT} bytes"
        line = encode_answer(RefusedAnswer(answer.id, Refusal.TOO_LONG, text))
    return line


def _refusal(request: Request, refused: Refused) -> RefusedAnswer:
    return RefusedAnswer(request.id, refused.reason, answer_text(str(refused)), refused.code)


def _fields(request: DestroyRequest, **more: str) -> dict[str, dict[str, str]]:
    return {"journal": {names.FIELD_DEVICE: f"vdavinci{request.expected.vdev}", names.FIELD_REQUEST_ID: request.request, **more}}


def _record(request: DestroyRequest, answer: Answer) -> None:
    """Write into the journal what became of a request to destroy."""
    vdev = request.expected.vdev
    if isinstance(answer, DestroyAnswer):
        _log.log(
            logging.INFO if answer.outcome is Outcome.DESTROYED else logging.WARNING,
            "vNPU %d for the request %s: %s: %s",
            vdev,
            request.request,
            answer.outcome,
            answer.text,
            extra=_fields(request, **{names.FIELD_OUTCOME: answer.outcome}),
        )
    elif isinstance(answer, RefusedAnswer):
        _log.warning(
            "vNPU %d is not destroyed for the request %s: %s",
            vdev,
            request.request,
            answer.text,
            extra=_fields(request, **{names.FIELD_OUTCOME: "refused", names.FIELD_REASON: answer.reason}),
        )
