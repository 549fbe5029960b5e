"""DESIGN 4.2: the card is HAMi's, and nobody else hands it out."""

from typing import Final

from mutations.files import DRIVERS, HAMI, LIMITS, MANAGERS, SNAPSHOT
from mutations.rule import Rule

_HAMIS: Final = (
    Rule(
        "4.2 a card is HAMi's if the Node registers its die",
        HAMI,
        "    if not words:\n        return CardRefusal.REGISTER_MALFORMED if registers.malformed else CardRefusal.NOT_REGISTERED\n",
        "    if not words:\n        return None\n",
    ),
    Rule(
        "4.2 a card that is registered twice is nobody's",
        HAMI,
        "    if len(words) > 1 or die in registers.repeated:\n",
        "    if not words:\n",
    ),
    Rule("4.2 a card twice in one list is nobody's", HAMI, "if len(words) > 1 or die in registers.repeated:", "if len(words) > 1:"),
    Rule("4.2 a card in two lists is nobody's", HAMI, "if len(words) > 1 or die in registers.repeated:", "if die in registers.repeated:"),
    Rule(
        "4.2 a list of cards that cannot be read registers none",
        HAMI,
        '            raise ValueError("a card without an id")\n',
        "            continue\n",
    ),
    Rule("4.2 a handshake is there", HAMI, "    Liveness.MISSING: CardRefusal.HANDSHAKE_MISSING,\n", ""),
    Rule("4.2 two reports were seen", HAMI, "    Liveness.UNPROVEN: CardRefusal.HANDSHAKE_UNPROVEN,\n", ""),
    Rule("4.2 the reports are different ones", HAMI, "    if text in before.reports:\n", "    if text == '':\n"),
    Rule("4.2 an old report again is no new one", HAMI, "    if text in before.reports:\n", "    if text == before.reports[-1]:\n"),
    Rule("4.2 the reports are within 5 minutes", HAMI, "moved = now if now - before.seen_at <= HANDSHAKE_SECONDS else None", "moved = now"),
    Rule("4.2 the last report is not older than 5 minutes", HAMI, "    Liveness.SILENT: CardRefusal.HANDSHAKE_SILENT,\n", ""),
    Rule("4.2 Deleted_ means unmanaged", HAMI, "    Liveness.DELETED: CardRefusal.HANDSHAKE_DELETED,\n", ""),
    Rule(
        "4.2 a report after Deleted_ is a first one",
        HAMI,
        "if before is None or before.other is not None or not before.reports:",
        "if before is None:",
    ),
    Rule("4.2 Requesting_ is neutral", HAMI, "        return before or Handshake()\n", "        return Handshake(Liveness.DELETED)\n"),
    Rule(
        "4.2 Requesting_ is no report",
        HAMI,
        "        return before or Handshake()\n",
        "        return Handshake(None, (text,), now, now)\n",
    ),
    Rule("4.2 a handshake of another form means unmanaged", HAMI, "    Liveness.ODD: CardRefusal.HANDSHAKE_ODD,\n", ""),
    Rule(
        "4.2 a template is HAMi's for the chip",
        HAMI,
        "return None if is_hamis_template(chip_name, template) else",
        "return None if template else",
    ),
    Rule(
        "4.2 a handshake is as old as the question",
        SNAPSHOT,
        "min(self._now.monotonic, self._parts.node.asked_at))",
        "self._now.monotonic)",
    ),
    Rule(
        "4.2 without a Node of this host no card is HAMi's",
        SNAPSHOT,
        "is_managed=self._registers is not None and unmanaged is None,",
        "is_managed=unmanaged is None,",
    ),
    Rule(
        "4.2 a card that is not HAMi's begins waits anew",
        SNAPSHOT,
        "            self._ledger.reset(Reset(Scope.CARD, unmanaged.value, card.name))\n",
        "            pass\n",
    ),
    Rule(
        "4.5.5 unmanaged cards do not count for the breaker's half",
        LIMITS,
        "look.reach.selects(card) and (card.is_managed or look.reach.manage is Manage.ALL)",
        "look.reach.selects(card)",
    ),
)

_OTHERS: Final = (
    Rule(
        "4.2 huawei.com/AscendReal is a sign",
        MANAGERS,
        '{"huawei.com/AscendReal", "huawei.com/kltDev", "huawei.com/npu-core"})\n#',
        '{"huawei.com/kltDev", "huawei.com/npu-core"})\n#',
    ),
    Rule("4.2 huawei.com/kltDev is a sign", MANAGERS, '"huawei.com/kltDev", ', ""),
    Rule("4.2 huawei.com/npu-core is a sign", MANAGERS, ', "huawei.com/npu-core"})\n#', "})\n#"),
    Rule(
        "4.2 ids of Huawei's own plugin are a sign",
        MANAGERS,
        "key.startswith(_HUAWEI) and any(FOREIGN_ID.fullmatch(part.strip())",
        "key.startswith(_HUAWEI) and any(not part.strip()",
    ),
    Rule(
        "4.2 a value in HAMi's grammar is HAMi's",
        MANAGERS,
        "        elif key.startswith(_HUAWEI) and any(",
        "        elif key.startswith(_HUAWEI) or any(",
    ),
    Rule(
        "4.2 resource huawei.com/Ascend910 is a sign",
        MANAGERS,
        '{"huawei.com/Ascend910", "huawei.com/npu-core"}',
        '{"huawei.com/npu-core"}',
    ),
    Rule(
        "4.2 resource huawei.com/npu-core is a sign",
        MANAGERS,
        '{"huawei.com/Ascend910", "huawei.com/npu-core"}',
        '{"huawei.com/Ascend910"}',
    ),
    Rule("4.2 resources of vNPUs that were made beforehand are a sign", MANAGERS, " or _FOREIGN_SLICE.fullmatch(name))", ")"),
    Rule(
        "4.2 a name that HAMi uses too is never a sign",
        MANAGERS,
        '{"huawei.com/Ascend910", "huawei.com/npu-core"}',
        '{"huawei.com/Ascend910", "huawei.com/npu-core", "huawei.com/Ascend310P"}',
    ),
    Rule("4.2 signs on the Node count", MANAGERS, '    yield from _of_annotations("node", node.annotations or {})\n', ""),
    Rule("4.2 resources of the Node count", MANAGERS, '    yield from _of_resources("node", node.resources)\n', "    return\n"),
    Rule("4.2 signs on Pods count", MANAGERS, "    yield from _of_annotations(where, pod.annotations or {})\n", ""),
    Rule("4.2 resources of Pods count", MANAGERS, "        yield from _of_resources(where, container.resources)\n", "        pass\n"),
    Rule("4.2 registered resources count", MANAGERS, '    yield from _of_resources("checkpoint", registered)\n', ""),
    Rule("4.2 allocated resources count", MANAGERS, '        yield from _of_resources("checkpoint", (allocation.resource,))\n', ""),
    Rule(
        "4.2 allocated ids count",
        MANAGERS,
        '        yield from (_foreign("checkpoint", device) for device in allocation.device_ids if FOREIGN_ID.fullmatch(device))\n',
        "",
    ),
    Rule("4.2 an Ascend driver is a sign", MANAGERS, "if _ASCEND_DRIVER.search(name))", "if not name)"),
    Rule(
        "4.2 a Pod with claims while drivers cannot be read is unknown",
        MANAGERS,
        "        if drivers.unreadable and pod.has_resource_claims and pod",
        "        if not drivers and pod",
    ),
    Rule(
        "4.2 drivers that were not read are unreadable",
        SNAPSHOT,
        "self._read.drivers or Drivers(unreadable=True))",
        "self._read.drivers or Drivers())",
    ),
    Rule("4.2 drivers in dra_manager_state are read", DRIVERS, "        found.take_state(root)\n", ""),
    Rule("4.2 drivers in plugins_registry are read", DRIVERS, "        found.take_registry(root)\n", ""),
    Rule("4.2 drivers that cannot be read are unreadable", DRIVERS, "unreadable=bool(found.problems),", "unreadable=False,"),
    Rule(
        "4.2 a sign makes the node unknown",
        SNAPSHOT,
        "            self._ledger.take(Scope.NODE, sign.reason.value, sign.uid or _SOURCE_OF_SIGN[sign.where], sign.sentence)\n",
        "            pass\n",
    ),
)

RULES: Final = (*_HAMIS, *_OTHERS)
