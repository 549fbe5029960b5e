"""The table of observations has every reason once, and the manual page has the table."""

from pathlib import Path

import pytest

from devward.cluster.answer import AnswerProblem
from devward.cluster.api_result import ApiFault
from devward.cluster.checkpoint import Defect
from devward.cluster.claims import ClaimReason
from devward.cluster.hami import CardRefusal
from devward.cluster.kubelet_facts import KubeletDoubt
from devward.cluster.managers import ManagerRefusal
from devward.cluster.node import NodeRefusal
from devward.cluster.observations import LEFT_OUT, ROWS, TABLE, Look, Observation, Scope, api_code, sentence
from devward.cluster.vantage import VantageDoubt

PAGE = (Path(__file__).resolve().parents[2] / "packaging" / "man" / "devwardd.8").read_text().replace("\\-", "-").replace("\\&", "")
KINDS = (AnswerProblem, Defect, ClaimReason, CardRefusal, KubeletDoubt, ManagerRefusal, NodeRefusal, Look, VantageDoubt)


def test_every_reason_stands_in_the_table_once() -> None:
    codes = [row.code for group in TABLE for row in group.rows]
    assert len(codes) == len(set(codes))
    assert set(codes) == {code.value for kind in KINDS for code in kind} | {api_code(fault) for fault in ApiFault}


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.code)
def test_each_row_is_fit_to_be_read(row: Observation) -> None:
    assert row.scopes
    assert row.sentence.endswith(".")
    assert row.sentence[0].isupper() or row.sentence.startswith(("devward ", "/proc"))
    assert row.sentence.isprintable()


def test_only_a_lock_and_a_candidate_reset_nothing() -> None:
    assert {row.code for row in ROWS.values() if not row.resets} == {Look.LOCKED, ClaimReason.CANNOT_START}


def test_the_manual_page_has_the_table_and_what_is_left_out() -> None:
    section = PAGE[PAGE.index(".SH WHAT KEEPS VNPUS FROM BEING JUDGED") : PAGE.index(".SH JOURNAL")]
    for group in TABLE:
        assert f".SS {group.title}\n" in section
    for row in ROWS.values():
        scopes = " or ".join({Scope.NODE: "node", Scope.CARD: "card", Scope.VNPU: "vnpu"}[scope] for scope in row.scopes)
        effect = f"resets {'the card or the node' if len(row.scopes) > 1 else 'the ' + scopes}" if row.resets else "resets nothing"
        assert f".B {row.code}\n[{scopes}; {effect}]\n{row.sentence}\n" in section, row.code
    for left in LEFT_OUT:
        assert f".B {left.name}\n" in section


def test_a_sentence_takes_what_was_found() -> None:
    assert sentence(Look.STATUS_ODD, "503").endswith("what answers there (503).")
    assert sentence(Look.NO_ANSWER) == ROWS[Look.NO_ANSWER].sentence
