"""`devwardctl explain` of an NPU or a vNPU. Pure, but for the tables of codes that explain_reclaim.py may load."""

import re
from typing import Final, TypeVar

from devward.ctl import explain_ownership, explain_reclaim
from devward.ctl.advice import Step, advice
from devward.ctl.arguments import VNPU
from devward.ctl.explanation import Explanation, after, findings_about
from devward.ctl.facts import Snapshot
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.npu_facts import Card, Vnpu
from devward.ctl.ownership_facts import HostSight, Ownership, host_sight, ownership
from devward.ctl.reading import UNKNOWN, integer_of, number_of, text_of
from devward.ctl.reclaim_facts import evidence as evidence_of
from devward.ctl.when import Times
from devward.ctl.wording import cores, npu_name
from devward.npu.views import CardHealth, Management, Protection, Use
from devward.text import printable

#: What may be meant as the target of a pin in full; whether it is one, the daemon judges.
TARGET: Final = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{8}){4}(/.*)?", re.DOTALL)
#: vNPUs of one NPU that are named.
MAX_NAMED = 32

_Thing = TypeVar("_Thing", Card, Vnpu)


def card_meant(what: str, snapshot: Snapshot) -> Card | None:
    """Return the NPU that is meant: by name, physical id, node or die id. Failure where it could be several."""
    return _one(what, [card for card in snapshot.cards if what in _names(card.name, card.phy_id, card.node, card.die_id)])


def vnpu_meant(what: str, snapshot: Snapshot) -> Vnpu | None:
    """Return the vNPU that is meant: by name, id, node, identity or what pins it by itself. Failure where it could be several."""

    def names_of(vnpu: Vnpu) -> set[str]:
        return _names(vnpu.name, vnpu.id, vnpu.node, vnpu.identity, vnpu.identity.rpartition("/")[0])

    return _one(what, [vnpu for vnpu in snapshot.vnpus if what in names_of(vnpu)])


def vnpu_id(what: str) -> int | None:
    """Return the id in a vNPU's name, node or identity, or in what pins it, be the vNPU there or not; None where it is none of these."""
    if what.isdigit():
        return None  # It may be an NPU's as well.
    found = VNPU.fullmatch(f"v{what.split('/')[1]}" if TARGET.fullmatch(what) and "/" in what else what)
    return int(found[1]) if found is not None else None


def of_card(card: Card, evidence: object, snapshot: Snapshot, times: Times) -> Explanation:
    """Explain an NPU: what and where it is, its health, its vNPUs, who hands it out, who claims it; `evidence` is what Explain answered."""
    told = Explanation(npu_name(card), "card", evidence=evidence)
    own = ownership(evidence)
    told.found += [*_which(card), _node(card), _health(card), _taken(card, snapshot)]
    if own is None:
        told.found += [*_claims(card), *_nobody_asked(evidence)]
    else:
        told.found += [explain_ownership.management(own), *explain_ownership.protection(own), *explain_ownership.claims(own, times)]
        told.found += [*_claimed_cores(card), *explain_ownership.asked(own, times), *explain_ownership.unknown(own, times)]
    if card.reason:
        told.found.append(f"devward does not vouch for it. {card.sentence} ({printable(card.reason)})")
    told.found += findings_about((card.node, card.name, card.die_id), snapshot, times)
    if card.reason:
        known = advice(card.reason, device=_path(card.node, "/dev/davinci", card.phy_id))
        told.means, told.steps = [known.means], list(known.steps)
    else:
        told.means = ["devward vouches for it: what the vendor's library, the kernel and the host's files say of it agrees."]
    _add_outcome(told, own, None)
    if card.card_id != UNKNOWN:
        told.steps.append(Step("See what the vendor's own tool says.", (f"npu-smi info -t board -i {card.card_id}",)))
    return told


def of_vnpu(vnpu: Vnpu, evidence: object, snapshot: Snapshot, times: Times) -> Explanation:
    """Explain a vNPU: what and where it is, its use, the verdict; `evidence` is what Explain answered."""
    told = Explanation(printable(vnpu.name), "vnpu", evidence=evidence)
    card = next((one for one in snapshot.cards if one.name == vnpu.card_name), None)
    own, sight = ownership(evidence), host_sight(evidence)
    told.found += [_what(vnpu, card), _vnpu_node(vnpu), _use(vnpu)]
    if vnpu.identity:
        told.found.append(f"Its identity is {printable(vnpu.identity)}.")
    if vnpu.first_seen_usec:
        told.found.append(f"devward first saw it {'at ' if times.utc else ''}{times.ago(vnpu.first_seen_usec)}.")
    told.found += _pinned(evidence, times)
    if own is not None:
        npu = [explain_ownership.management(own), *explain_ownership.protection(own)]
        told.found += [*(f"Its NPU: {said}" for said in npu), *explain_ownership.claims(own, times), explain_ownership.on_host(sight)]
        told.found += [*explain_ownership.asked(own, times), *explain_ownership.unknown(own, times)]
    seen = evidence_of(evidence)
    told.found += [
        explain_reclaim.verdict(vnpu, seen),
        *explain_reclaim.waiting(vnpu, seen, times, snapshot.manager),
        *findings_about((vnpu.node, vnpu.name), snapshot, times),
    ]
    known = advice(vnpu.reason, device=_path(vnpu.node, "/dev/vdavinci", vnpu.id))
    waits = explain_reclaim.meaning(vnpu, snapshot.manager)
    told.means = [known.means] if vnpu.reason else waits or ["devward leaves it alone. Containers that use it are not affected."]
    told.steps = list(known.steps) if vnpu.reason else explain_reclaim.steps(vnpu, snapshot.manager, own)
    _add_outcome(told, own, sight)
    if card is not None:
        told.steps.append(Step("See the NPU that it is a part of.", (f"devwardctl explain {printable(card.name)}",)))
    return told


def _add_outcome(told: Explanation, own: Ownership | None, sight: HostSight | None) -> None:
    """Add what it means that somebody owns it, or that this is not known, and what to do about that."""
    if own is not None:
        means = explain_ownership.meaning(own, sight)
        told.means += [means] if means else []
        told.steps += [step for step in explain_ownership.steps(own) if step not in told.steps]
    if not told.steps:
        told.steps.append(Step("Nothing needs to be done."))


def _path(node: str, prefix: str, number: int) -> str:
    """Return the node for commands: the one that there should be where there is none."""
    return node or (f"{prefix}{number}" if number != UNKNOWN else "DEVICE")


def _names(name: str, number: int, *others: str) -> set[str]:
    return {name, str(number) if number >= 0 else "", *others} - {""}


def _one(what: str, found: list[_Thing]) -> _Thing | None:
    if len(found) > 1:
        exact = [one for one in found if one.name == what]
        if len(exact) == 1:
            return exact[0]
        listed = ", ".join(printable(one.name) for one in found)
        raise Failure(ExitStatus.UNHEALTHY, f"{printable(what, 80)} can mean {listed}.", "Ask for one of these.")
    return found[0] if found else None


def _which(card: Card) -> list[str]:
    ids = [
        f"{said} is {number}" for said, number in (("its physical id", card.phy_id), ("its logical id", card.logic_id)) if number != UNKNOWN
    ]
    place = f", chip {card.device_id} of card {card.card_id}" if card.card_id != UNKNOWN else ""
    said = [f"It is an {printable(card.chip) or 'NPU of unknown type'}{place}{'; ' if ids else ''}{', '.join(ids)}."]
    die = f"Its die id, which is HAMi's name of it, is {printable(card.die_id)}." if card.die_id else "Its die id is not known."
    return [*said, die]


def _node(card: Card) -> str:
    if not card.node:
        return "It has no device node."
    return f"{printable(card.node)} is {f'character device {printable(card.number)}' if card.number else 'no character device'}."


def _health(card: Card) -> str:
    match card.health:
        case CardHealth.HEALTHY:
            return "The vendor's library calls it healthy."
        case CardHealth.UNHEALTHY:
            return "The vendor's library does not call it healthy."
        case CardHealth.UNKNOWN:
            return "It is not known whether it is healthy."
    return f"Its health is {printable(card.health) or 'not told'}."


def _taken(card: Card, snapshot: Snapshot) -> str:
    parts = snapshot.vnpus_of(card)
    if cores(card.used_cores) and cores(card.total_cores):
        share = f"; {cores(card.used_cores)} of its {cores(card.total_cores)} AI cores are taken"
    else:
        share = f"; it has {cores(card.total_cores)} AI cores" if cores(card.total_cores) else ""
    if not parts:
        return f"It is not divided into vNPUs{share}."
    named = ", ".join(printable(one.name) for one in parts[:MAX_NAMED])
    more = f" and {len(parts) - MAX_NAMED} more" if len(parts) > MAX_NAMED else ""
    return f"It has {'one vNPU' if len(parts) == 1 else f'{len(parts)} vNPUs'}: {named}{more}{share}."


def _claims(card: Card) -> list[str]:
    said = []
    if card.managed == Management.UNKNOWN:
        said.append("It is not known whether a scheduler such as HAMi hands it out.")
    elif card.managed:
        said.append(f"Whether a scheduler hands it out: {printable(card.managed)}.")
    if card.protection == Protection.NOT_EVALUATED:
        said.append("Which Pods claim it was not evaluated.")
    elif card.protection:
        said.append(f"The protection of its vNPUs by claims is {printable(card.protection)}.")
    if card.claims:
        said.append(f"It is claimed by the Pods with the UIDs {', '.join(map(printable, card.claims))}.")
    return said + _claimed_cores(card)


def _claimed_cores(card: Card) -> list[str]:
    return [f"The claims on it ask for {cores(card.claimed_cores)} AI cores."] if cores(card.claimed_cores) else []


def _nobody_asked(evidence: object) -> list[str]:
    """Say why there is nothing to say about its owners, where the daemon could have told."""
    if not isinstance(evidence, dict) or "card" not in evidence:
        return []
    return ["Nobody was asked who owns its vNPUs: not yet, or no kubelet runs on this host, or cluster.read of devward.toml is off."]


def _what(vnpu: Vnpu, card: Card | None) -> str:
    chip = f" ({printable(card.chip)})" if card is not None and card.chip else ""
    function = f", virtual function {vnpu.vfid}" if vnpu.vfid != UNKNOWN else ""
    template = f", made with the template {printable(vnpu.template)}" if vnpu.template else ""
    size = f"; it takes {cores(vnpu.cores)} AI cores" if cores(vnpu.cores) else ""
    return f"It is the vNPU {vnpu.id} of the NPU {printable(vnpu.card_name) or 'that is not told'}{chip}{function}{template}{size}."


def _vnpu_node(vnpu: Vnpu) -> str:
    return f"Its device node is {printable(vnpu.node)}." if vnpu.node else "It has no device node."


def _use(vnpu: Vnpu) -> str:
    match vnpu.in_use:
        case Use.IN_USE:
            return "The driver says that it is in use."
        case Use.IDLE:
            return "The driver says that it is idle, which is no proof that nobody owns it."
        case Use.UNKNOWN:
            return "It is not known whether it is in use."
    return f"Its use is {printable(vnpu.in_use) or 'not told'}."


def _pinned(evidence: object, times: Times) -> list[str]:
    """Say by whom the vNPU is pinned and why, as far as the caller may know."""
    document = evidence if isinstance(evidence, dict) else {}
    pins = document.get("pins")
    said = []
    for pin in pins if isinstance(pins, list) else []:
        if not isinstance(pin, dict):
            continue
        whole = "" if "/" in text_of(pin, "target") else ", with all vNPUs of its NPU"
        uid = integer_of(pin, "caller_uid")
        who = f" by uid {uid}" if uid != UNKNOWN else ""
        why = f": {printable(text_of(pin, 'reason'), 400)}" if text_of(pin, "reason") else ""
        said.append(f"It is pinned{whole}{after(times.lasting(number_of(pin, 'since_usec')))}{who}{why}.")
    because = text_of(document, "not_offerable_because")
    return said + ([f"It is not offered to containers in a CDI file. {printable(because, 400)}"] if because else [])
