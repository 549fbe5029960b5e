"""Every reason for which a vNPU is not reclaimed: its record names a catalog entry, and that a command that says what to do about it.

`journalctl -x` shows the entry with the fields of the record filled in; here that is done for every code that there is.
"""

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from devward import names
from devward.audit import Audit
from devward.cluster.claims import ClaimReason
from devward.cluster.hami import CardRefusal
from devward.cluster.observations import ROWS
from devward.ctl import reclaim_codes
from devward.ctl.advice_destroying import REFUSALS
from devward.ctl.explain import of_code
from devward.ctl.explain_reclaim import say_code
from devward.journal import Journal
from devward.model import ActionRequest, Trigger
from devward.npu.codes import DcmiCode
from devward.npu.facts import Outcome, Refusal
from devward.reasons import Reason
from devward.reclaim import aftermath
from devward.reclaim.contract import No
from devward.reclaim.controls import Blocked
from devward.reclaim.limits import Limit
from devward.reclaim.look import Cut
from devward.reclaim.reasons import Why
from sim.catalog import entries
from sim.journal_sink import DrainedJournal, JournalSink

#: Of vNPUs, of claims, of cards that are not HAMi's, of what cannot be told, and of what is not vouched for.
JUDGED = (*Why, *ClaimReason, *CardRefusal, *ROWS, *(reason for reason in Reason if reason.value.startswith("npu-")))
#: What the library's codes are on record as.
CALLED = {aftermath.called(outcome, code).reason for outcome in Outcome for code in (*map(int, DcmiCode), -4711, None)}
UNASKED = {aftermath.unanswered("").reason, aftermath.unasked("").reason}
OF_KIND: dict[str, tuple[str, ...]] = {
    "reclaim-blocked": (*Blocked, *ROWS, Why.NOT_EVALUATED),
    "vnpu-kept": JUDGED,
    "reclaim-refused": (*No, *Limit, *Blocked, *JUDGED),
    "vnpu-reclaim": (*No, *Blocked, *Cut, *Refusal, *CALLED, *UNASKED, "try-not-saved", Why.PINNED, Why.PINS_UNREADABLE),
}


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[JournalSink]:
    made = JournalSink(str(tmp_path / "journal"))
    yield made
    made.close()


def put_on_record(journal: Journal, kind: str, reasons: Iterable[str]) -> None:
    """Write records of a kind as the loop writes them."""
    number = iter(range(1 << 20))
    audit = Audit(journal, version="1", new_id=lambda: f"id-{next(number)}", monotonic=lambda: 0.0)
    for reason in reasons:
        if kind == "vnpu-reclaim":
            request = ActionRequest(f"request-{reason}", None, Trigger.TIMER)
            with audit.begin(kind, "vNPU 100 is destroyed", vnpu="100", card="p000", request=request, evidence={}) as act:
                act.fail(reason, "vNPU 100 is not destroyed after all.")
        else:
            audit.transition(f"{kind} ({reason})", kind, "vNPU 100 is not destroyed.", vnpu="100", card="p000", reason=reason)


@pytest.mark.parametrize("kind", OF_KIND)
def test_each_record_leads_to_what_its_reason_means_and_to_what_to_do(kind: str, sink: JournalSink) -> None:
    catalog = entries()
    reasons = list(dict.fromkeys(map(str, OF_KIND[kind])))
    journal = DrainedJournal(sink, stderr=io.StringIO())
    put_on_record(journal, kind, reasons)
    found = {one["DEVWARD_REASON"][0]: one for one in sink.records(DEVWARD_EVENT=kind) if one.get("DEVWARD_OUTCOME") != ["intent"]}
    journal.close()
    assert list(found) == reasons
    for reason, record in found.items():
        assert record["MESSAGE_ID"] == [names.MESSAGE_IDS[kind]]
        text = catalog[record["MESSAGE_ID"][0]].filled(record)
        assert f"devwardctl explain {reason}\n" in text, reason
        # One word may be a code of two things.
        assert kind != "vnpu-reclaim" or reclaim_codes.is_code(reason), reason
        told = of_code(reason)
        assert told is not None, reason
        assert all(re.search(r"[.]$", sentence) for sentence in told.found), told.found
        assert told.means, reason
        assert told.steps, reason
        for step in told.steps:
            assert step.text.endswith(".") or (step.text.endswith(":") and step.commands), step
        assert say_code(reason) != f"({reason})"


def test_there_is_a_sentence_for_every_refusal_of_the_broker() -> None:
    assert set(REFUSALS) == {*Refusal, *UNASKED, "try-not-saved"}
