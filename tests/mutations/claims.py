"""S4 to S7 and DESIGN 4.3: which cards a Pod claims."""

from typing import Final

from mutations.files import ANNOTATIONS, BUNDLE, CARDS, PODLIST, PODS, SNAPSHOT
from mutations.rule import Rule

RULES: Final = (
    Rule(
        "S4 the plugin's answer names cards",
        CARDS,
        "    named = told | annotated | seen | _own_environment(pod, cards)\n",
        "    named = annotated | seen | _own_environment(pod, cards)\n",
    ),
    Rule(
        "4.3 the annotation names cards",
        CARDS,
        "    named = told | annotated | seen | _own_environment(pod, cards)\n",
        "    named = told | seen | _own_environment(pod, cards)\n",
    ),
    Rule(
        "4.3 cards that a Pod was seen with are its",
        CARDS,
        "    named = told | annotated | seen | _own_environment(pod, cards)\n",
        "    named = told | annotated | _own_environment(pod, cards)\n",
    ),
    Rule("4.3 cards that a Pod names beside its own are its", CARDS, " | seen | _own_environment(pod, cards)\n", " | seen\n"),
    Rule(
        "4.3 where nothing names a card it may be any of the resource",
        CARDS,
        "frozenset() if annotated else frozenset(unanswered), tuple(problems))",
        "frozenset(), tuple(problems))",
    ),
    Rule(
        "4.3 each container without an answer may have any card",
        CARDS,
        "    unanswered |= {resource for _, resource in wanted - answered}\n",
        "",
    ),
    Rule(
        "4.3 a resource means the cards that HAMi registers for it, and those that nobody does",
        CARDS,
        "if card.die in self._registered[word] or card.die not in others)",
        "if card.die in self._registered[word])",
    ),
    Rule("S5 a Pod with the resource is relevant", CARDS, "any(container.resources for container in pod.containers) or ", ""),
    Rule("S5 a Pod with annotations of cards is relevant", CARDS, " or pod.cards.has_cards", ""),
    Rule(
        "4.3 a Pod that the checkpoint has is relevant",
        PODS,
        "has_devices = is_relevant(pod) or bool(allocations) or is_remembered",
        "has_devices = is_relevant(pod) or is_remembered",
    ),
    Rule(
        "4.3 a Pod that is remembered is relevant",
        PODS,
        "has_devices = is_relevant(pod) or bool(allocations) or is_remembered",
        "has_devices = is_relevant(pod) or bool(allocations)",
    ),
    Rule("S6 memory and cores are no cards", ANNOTATIONS, 'not key.endswith(("-memory", "-core")) and ', ""),
    Rule(
        "S6 the list of what is to be given is read",
        ANNOTATIONS,
        "    return found[1] if found and found[1].startswith(_ASCEND) else None",
        "    return None",
    ),
    Rule(
        "S6 JSON and segments are read",
        ANNOTATIONS,
        'if text.startswith(("[", "{", \'"\')) or text in ("null", "true", "false") else _of_segments(text)',
        "if text else iter(())",
    ),
    Rule(
        "S6 a segment with fewer than 4 fields is malformed",
        ANNOTATIONS,
        "            if len(fields) < 4:\n",
        "            if not fields:\n",
    ),
    Rule("4.3 empty segments are fine", ANNOTATIONS, "            if not device.strip(_WHITE):\n                continue\n", ""),
    Rule(
        "S7 a malformed annotation is unknown",
        CARDS,
        "problems = [Problem(ClaimReason.ANNOTATION_MALFORMED, detail, doubtful) for detail in annotations.malformed]",
        "problems = list[Problem]()",
    ),
    Rule(
        "S7 a die that is none of ours is unknown",
        CARDS,
        '    problems += [Problem(ClaimReason.CARD_NOT_KNOWN, f"die {die}", doubtful) for die in annotations.dies - cards.dies]\n',
        "",
    ),
    Rule(
        "S7 a physical id that is none of ours blocks the node",
        CARDS,
        '    problems += [Problem(ClaimReason.CARD_NOT_KNOWN, f"physical id {phy}", None) for phy in told - cards.all]\n    named',
        "    named",
    ),
    Rule(
        "4.3 a malformed annotation is in doubt for the answer's cards only",
        CARDS,
        "    doubtful = told if is_answered else None\n",
        "    doubtful = None\n",
    ),
    Rule(
        "4.3 without answers a malformed annotation blocks the node",
        CARDS,
        "    doubtful = told if is_answered else None\n",
        "    doubtful = told\n",
    ),
    Rule(
        "S7 what blocks the node is told with its Pod",
        SNAPSHOT,
        "            self._ledger.take(Scope.NODE, blocker.reason.value, blocker.uid, blocker.sentence)\n",
        "            pass\n",
    ),
    Rule(
        "4.3 a privileged Pod protects every card",
        PODS,
        "        if pod.is_privileged:\n            self._claim",
        "        if pod is None:\n            self._claim",
    ),
    Rule("4.3 a Pod that mounts /dev protects every card", PODLIST, "return self.mounts_devices or any(", "return any("),
    Rule("4.3 the mount of a device's own node counts", PODLIST, " or _NPU_NODE.fullmatch(path) is not None", ""),
    Rule(
        "4.3 a Pod that mounts a vNPU has it",
        PODS,
        "        by_node = self._cards.of_vnpus(pod.mounted_vnpus)\n",
        "        by_node = frozenset[int]()\n",
    ),
    Rule("4.3 a mounted vNPU of no known card may be on any", CARDS, " if all(found.values()) else self.all", ""),
    Rule(
        "4.3 a Pod that is handed a node has it",
        PODS,
        "            by_node |= own\n",
        "            pass\n",
    ),
    Rule("4.3 a mounted vNPU is remembered", PODS, " | by_environment | by_node,", " | by_environment,"),
    Rule(
        "4.3 a privileged Pod spares what a clean scan clears",
        PODS,
        "ClaimReason.PRIVILEGED), unless_clean=True)",
        "ClaimReason.PRIVILEGED))",
    ),
    Rule(
        "4.3 cards in the environment without the resource are protected",
        PODS,
        "            self._claim(pod.uid, by_environment, Judgement(Standing.PROTECTED, ClaimReason.NAMED_IN_ENVIRONMENT))\n",
        "            pass\n",
    ),
    Rule(
        "4.3 an environment that cannot be told protects all cards",
        CARDS,
        "            return cards.all\n        found |= phys",
        "            continue\n        found |= phys",
    ),
    Rule(
        "4.3 ASCEND_VNPU_SPECS alone protects all cards",
        CARDS,
        "return frozenset(found) if found or not container.has_specs else cards.all",
        "return frozenset(found)",
    ),
    Rule("4.3 a void ASCEND_VISIBLE_DEVICES names nothing", BUNDLE, '    if text in ("", "void"):\n', '    if text == "":\n'),
    Rule("4.3 a soft Pod protects its card", PODS, "        if is_soft(pod.annotations or {}):\n", "        if pod is None:\n"),
    Rule(
        "4.3 an empty ASCEND_VISIBLE_DEVICES names nothing",
        BUNDLE,
        '    if text in ("", "void"):\n',
        '    if text == "void":\n',
    ),
)
