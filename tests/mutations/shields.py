"""V3 to V7, V14, DESIGN 4.2's flag and pins, and 4.6: what keeps a vNPU whatever time goes by."""

from typing import Final

from mutations.files import ASKING, HISTORY, JUDGED, LOOK, PINS, RECLAIM_ROOM, RECONCILER, SHIELD, STAYS, TRAIL
from mutations.rule import Rule


def _shield(name: str, condition: str, *, indent: str = "    ") -> Rule:
    """Return a rule that is one `if` of shield.py."""
    return Rule(name, SHIELD, f"{indent}if {condition}:\n", f"{indent}if not vnpu.name:\n")


RULES: Final = (
    Rule("V3 a card that is not selected is none of devward's", SHIELD, "card is None or not look.reach.selects(card):", "card is None:"),
    Rule("V3 a card is selected by name or die", LOOK, "return self.cards is None or card.name in", "return True or card.name in"),
    Rule(
        "V3 a card that is not HAMi's is none of devward's",
        SHIELD,
        "    if not card.is_managed:\n",
        "    if not card.name:\n",
    ),
    _shield("V4 a protecting claim shields every vNPU of its card", "card is not None and standing(vnpu, card) is Standing.PROTECTED"),
    _shield("V4 an unknown claim shields every vNPU of its card", "standing(vnpu, card) is Standing.UNKNOWN"),
    Rule(
        "V4 a vNPU whose card no snapshot has is unknown",
        SHIELD,
        "    if card is None:\n        return _because(Verdict.UNKNOWN, Why.CARD_NOT_SEEN)\n",
        "    if card is None:\n        return None\n",
    ),
    Rule(
        "V4 what is unknown of a card shields its vNPUs",
        SHIELD,
        "    if doubt := next((unknown for unknown in snapshot.unknowns if unknown.card == card.name), None):",
        "    if doubt := next((unknown for unknown in snapshot.unknowns if unknown.card == ''), None):",
    ),
    _shield("V2 what is unknown of the node shields every vNPU", "not snapshot.is_node_known"),
    _shield("V5 a vNPU with a fault is unknown", "vnpu.fault"),
    _shield("V7 a vNPU in use shields itself", "vnpu.use is Use.IN_USE"),
    _shield("V7 a vNPU of which use is not told is unknown", "vnpu.use is not Use.IDLE"),
    Rule(
        "V14 claims that a clean scan lifts shield all others",
        SHIELD,
        "return card.protection_if_clean if vnpu.descriptors is Finding.CLEAN else card.protection",
        "return card.protection_if_clean",
    ),
    Rule(
        "4.2 claims that a clean scan lifts do not shield what is clean",
        SHIELD,
        "return card.protection_if_clean if vnpu.descriptors is Finding.CLEAN else card.protection",
        "return card.protection",
    ),
    _shield("4.2 a hit on the very vNPU is ownership", "vnpu.host is Finding.HELD or vnpu.descriptors is Finding.HELD"),
    Rule("4.2 a container that holds a vNPU owns it", SHIELD, "vnpu.host is Finding.HELD or vnpu.descriptors", "vnpu.descriptors"),
    Rule(
        "4.2 a process that holds a vNPU owns it",
        SHIELD,
        "vnpu.host is Finding.HELD or vnpu.descriptors is Finding.HELD",
        "vnpu.host is Finding.HELD",
    ),
    _shield("4.2 a container that names a card protects it", "snapshot.is_node_known and vnpu.card_named_by"),
    Rule(
        "4.2 a container that names cards that cannot be told protects all",
        LOOK,
        "may_mean_any = container.cards is None or (",
        "may_mean_any = (",
    ),
    Rule(
        "4.2 a container that asks for a vNPU of no card protects all",
        LOOK,
        " or (bool(container.template) and not container.cards)",
        "",
    ),
    _shield("4.2 a vNPU of which the host could not tell is unknown", "vnpu.is_asked and not _is_clean(vnpu)"),
    Rule(
        "4.2 a vNPU about which the host was not asked is unknown",
        SHIELD,
        "    return None if _is_clean(vnpu) else _because(Verdict.UNKNOWN, Why.HOST_NOT_ASKED)",
        "    return None",
    ),
    Rule(
        "4.2 clean takes descriptors and all other sources",
        SHIELD,
        "    return vnpu.host is vnpu.descriptors is Finding.CLEAN",
        "    return vnpu.descriptors is Finding.CLEAN",
    ),
    Rule(
        "4.2 what is said of another vNPU is not said of this one",
        LOOK,
        "        sight = None  # of another one",
        "        pass",
    ),
    Rule(
        "4.2 a vNPU in doubt is searched for only where that may decide",
        ASKING,
        " and _may_decide(vnpu.use, last.get(vnpu.name))",
        "",
    ),
    Rule("4.1 a vNPU that nothing tells from others is unknown", SHIELD, "    if not vnpu.identity:\n", "    if not vnpu.name:\n"),
    Rule("4.1 vNPUs of one identity have none", LOOK, 'identity="" if is_shared else identity,', "identity=identity,"),
    Rule("4.6 a vNPU without a node is unmanaged", SHIELD, "    if not vnpu.has_node:\n", "    if not vnpu.name:\n"),
    Rule(
        "4.2 a vNPU of a template that is not HAMi's is unmanaged",
        SHIELD,
        "    return _refused(vnpu.refusal) if vnpu.refusal is not None else None",
        "    return None",
    ),
    Rule(
        "4.2 manage = all widens only whose cards they are",
        SHIELD,
        "    return _unknown(vnpu, snapshot, card) or _unmanaged(vnpu, look, card) or _unasked(vnpu)",
        "    if look.reach.manage is Manage.ALL:\n        return None\n"
        "    return _unknown(vnpu, snapshot, card) or _unmanaged(vnpu, look, card) or _unasked(vnpu)",
    ),
    Rule(
        "4.2 manage = all widens to cards that HAMi does not hand out",
        SHIELD,
        "    if look.reach.manage is Manage.ALL:\n        return None\n",
        "",
    ),
    _shield("4.6 a pinned vNPU stays", "vnpu.pin in (PinHold.PINNED, PinHold.MAYBE)"),
    Rule("4.6 a vNPU that may be pinned stays", SHIELD, "vnpu.pin in (PinHold.PINNED, PinHold.MAYBE):", "vnpu.pin is PinHold.PINNED:"),
    _shield("4.6 while pins cannot be read every vNPU stays", "vnpu.pin is not PinHold.NONE"),
    Rule("4.6 pins that cannot be read are unknown", LOOK, "        return PinHold.UNKNOWN\n", "        return PinHold.NONE\n"),
    Rule(
        "4.6 pins that may be lost are unknown",
        RECLAIM_ROOM,
        "        if self._remembered.state.pins_in_doubt:\n            return None\n",
        "",
    ),
    Rule("4.6 a pin of a card pins its vNPUs", PINS, "of_card = self._of_cards.get(die, []) if die else", "of_card = [] if die else"),
    Rule(
        "4.6 a pin may mean a vNPU whose die is not known",
        PINS,
        'if die in ("", target.die) and',
        "if die == target.die and",
    ),
    Rule(
        "4.6 a pin may mean a vNPU whose template is not known",
        PINS,
        'view.template in ("", target.template)',
        "view.template == target.template",
    ),
    Rule("4.6 a pin of a card may mean one whose die is not known", PINS, "if die else self._homeless()", "if die else []"),
    Rule(
        "4.6 a pin that matches nothing is a finding",
        PINS,
        "if judged.standing in {Standing.UNMATCHED, Standing.OTHER_IDENTITY}",
        "if judged.standing is Standing.OTHER_IDENTITY",
    ),
    Rule(
        "4.6 without a list of Pods nothing may be judged",
        SHIELD,
        "        return _because(Verdict.UNKNOWN, Why.NOT_EVALUATED)\n",
        "        return None\n",
    ),
    Rule(
        "4.6 a look without Pods counts as one",
        RECONCILER,
        "            seen.snapshot if seen.is_asked else None,",
        "            seen.snapshot,",
    ),
    Rule(
        "4.6 an owned vNPU that goes without our act is vanished-foreign",
        HISTORY,
        "return Fate.VANISHED_FOREIGN if look.living is not None and entry.holders & look.living else Fate.VANISHED",
        "return Fate.VANISHED",
    ),
    Rule(
        "4.2 that a vNPU vanished under its owner is told",
        TRAIL,
        "            if gone.fate is Fate.VANISHED_FOREIGN:",
        "            if gone.fate is Fate.REPLACED:",
    ),
    Rule(
        "4.2 a vNPU that only the driver calls used is told of",
        STAYS,
        "return is_flag_alone or judgement.verdict in _REFUSED",
        "return judgement.verdict in _REFUSED",
    ),
    Rule("4.2 a vNPU that somebody uses is not told of", STAYS, " and judgement.beside is Finding.CLEAN", ""),
    _shield("4.2 a container that names a vNPU in use, or its card, uses it", "vnpu.holders or vnpu.card_named_by"),
    Rule(
        "4.2 what else would shield a vNPU in use speaks for its user",
        SHIELD,
        "    if other is not None and not (look.snapshot is None and other.verdict is Verdict.UNKNOWN):\n",
        "    if not vnpu.name:\n",
        tests=("test_reclaim_stays.py",),
    ),
    Rule(
        "4.2 only a clean search tells that nobody uses a vNPU in use",
        SHIELD,
        "    return clean if vnpu.descriptors is vnpu.bundles is clean else Finding.UNKNOWN\n",
        "    return clean\n",
    ),
    Rule(
        "4.2 the host is searched for the user of a vNPU in use where nothing shows one",
        ASKING,
        " and last.beside is not Finding.HELD",
        "",
    ),
    Rule(
        "4.6 where nothing may be destroyed a vNPU in use by now is in use",
        JUDGED,
        "    if vnpu.use is Use.IN_USE and judgement.verdict",
        "    if not vnpu.name and judgement.verdict",
    ),
    Rule(
        "4.6 a verdict on another vNPU of the same id is not shown",
        JUDGED,
        '    if judgement is None or judgement.identity not in ("", vnpu.identity):',
        "    if judgement is None:",
    ),
)
