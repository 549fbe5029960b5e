"""What the audit record of a destruction holds, and what explains a vNPU: the evidence, as values of JSON. Pure.

It has UIDs and reasons, and no names of Pods. Texts in it are fit to be shown.
"""

from typing import Any

from devward.npu.facts import Expected
from devward.reclaim.confirmation import Progress
from devward.reclaim.look import Look
from devward.reclaim.verdict import Judgement
from devward.text import printable


def recreate_line(expected: Expected, vgroup: int | None = None) -> str:
    """Return the command that makes the vNPU again, in the form in which the vendor's library records it in /etc/vnpu.cfg.

    `vgroup` is its group, None where the driver gave none.
    """
    group = "" if vgroup is None else f" -g {vgroup}"
    template = printable(expected.template)
    return f"npu-smi set -t create-vnpu -i {expected.card} -c {expected.device} -f {template} -v {expected.vdev}{group}"


def evidence(judgement: Judgement, look: Look, progress: Progress) -> dict[str, Any]:
    """Return by what a vNPU was judged at a look. Times in seconds are before that look."""
    vnpu = next(vnpu for vnpu in look.vnpus if vnpu.name == judgement.name)
    known, card, snapshot = progress.vnpus.get(vnpu.identity), look.card(vnpu.card), look.snapshot
    found: dict[str, Any] = {
        "vdev": vnpu.vdev,
        "identity": printable(vnpu.identity),
        "template": printable(vnpu.template),
        "verdict": judgement.verdict.value,
        "reason": judgement.reason,
        "text": judgement.sentence,
        "use": vnpu.use.value,
        "pin": vnpu.pin.value,
        "fault": vnpu.fault,
        "host": {"descriptors": vnpu.descriptors.value, "all": vnpu.host.value, "reasons": list(vnpu.host_reasons)},
        "looked_at_usec": look.at_usec,
    }
    if card is not None:
        found["card"] = {
            "name": card.name,
            "die": card.die,
            "protection": card.protection.value,
            "protection_if_clean": card.protection_if_clean.value,
            "managed": card.is_managed,
            "unmanaged": card.unmanaged.value if card.unmanaged is not None else "",
            "claims": [{"pod": printable(one.uid), "standing": one.standing.value, "reason": one.reason.value} for one in card.claims],
        }
    if snapshot is not None:
        found["unknown"] = [{"scope": one.scope.value, "reason": one.reason, "who": printable(one.who)} for one in snapshot.unknowns]
        found["sources"] = [{"source": one.source.value, "age": round(one.age, 3), "read": one.is_read} for one in snapshot.sources]
        found["locked"] = snapshot.is_deferred
    if known is not None:
        moments = {
            "first_seen": known.first_seen,
            "shielded": known.shielded_at,
            "reset": known.reset_at,
            "failed": known.failed_at,
            "settled": known.settled_at,
            "grace_start": known.grace_start,
            "confirmed": known.normal.last_at,
            "tried": known.tried_at,
        }
        found["seconds_ago"] = {name: None if moment is None else round(look.at - moment, 3) for name, moment in moments.items()}
        found["last_reset"] = known.reset_reason
        found["confirmations"] = known.normal.confirmations
        found["tries"] = known.tries
        found["suspects"] = [printable(uid) for uid in known.suspects]
    return found
