"""DESIGN 4.1: which chips are vouched for, and by what one vNPU is told from another."""

from typing import Final

from mutations.files import CHIPS, INVENTORY, NPU_MEMORY, SNAPSHOT, SURVEY
from mutations.rule import Rule


def _fault(name: str, condition: str, *, indent: str = "    ", subject: str = "chip") -> Rule:
    """Return a rule that is one `if` of chips.py."""
    return Rule(name, CHIPS, f"{indent}if {condition}:\n", f"{indent}if {subject} is None:\n")


RULES: Final = (
    _fault("4.1 a chip that may not be listed right is report-only", "host.is_doubtful((chip.card, chip.device))"),
    Rule("4.1 a chip that resets is report-only", CHIPS, "    if resetting is not None:\n", "    if chip is None:\n"),
    Rule(
        "4.1 a chip that cannot be read is report-only",
        CHIPS,
        "    if any(problem.aspect is Aspect.TYPE for problem in chip.problems):\n",
        "    if chip is None:\n",
    ),
    Rule(
        "4.1 a chip without a physical id of its own is report-only",
        CHIPS,
        "    phy = host.own_phy(chip)\n    if phy is None:\n",
        "    phy = host.own_phy(chip)\n    if chip is None:\n",
    ),
    Rule("4.1 a physical id of two chips is nobody's", CHIPS, " and self.phys[chip.phy] == 1 else None", " else None"),
    Rule(
        "4.1 a chip whose die id cannot be read is report-only",
        CHIPS,
        "        yield Fault(Reason.NPU_DIE_UNKNOWN, _why(chip, Aspect.DIE))\n        return",
        "        return",
    ),
    Rule("4.1 a die id of two chips is nobody's", CHIPS, "    if host.dies[chip.die] > 1:\n", "    if chip is None:\n"),
    Rule(
        "4.1 a physical id with another die is another chip",
        CHIPS,
        "    if first != chip.die:\n        yield Fault(Reason.NPU_DIE_CHANGED",
        "    if chip is None:\n        yield Fault(Reason.NPU_DIE_CHANGED",
    ),
    Rule(
        "4.1 a chip whose health is not known is report-only",
        CHIPS,
        "        yield Fault(Reason.NPU_HEALTH_UNKNOWN, _why(chip, Aspect.HEALTH))\n",
        "        pass\n",
    ),
    Rule(
        "4.1 an unhealthy chip is report-only",
        CHIPS,
        '        yield Fault(Reason.NPU_UNHEALTHY, f"health {chip.health}")\n',
        "        pass\n",
    ),
    Rule(
        "4.1 a chip whose vNPUs cannot be listed is report-only",
        CHIPS,
        "            yield Fault(Reason.NPU_VNPUS_UNKNOWN, _why(chip, Aspect.VNPUS))\n",
        "            pass\n",
    ),
    Rule("4.1 a chip that lists a vNPU twice is report-only", CHIPS, "    if twice:\n", "    if chip is None:\n"),
    Rule("4.1 a chip that lists an id outside its window is report-only", CHIPS, "    if foreign:\n", "    if chip is None:\n"),
    Rule(
        "4.1 a card that is not vouched for is unknown",
        SNAPSHOT,
        "doubtful = {card.name for card in picture.cards if not _is_vouched_for(card)}",
        "doubtful = set[str]()",
    ),
    Rule(
        "4.1 cards that may be missing make the node unknown",
        SNAPSHOT,
        "            self._ledger.take_look(Look.NPUS_IN_DOUBT, Source.NPUS)\n",
        "            pass\n",
    ),
    Rule(
        "4.1 a vNPU that two chips list is nobody's",
        INVENTORY,
        "        if len(self._host.listed_by[vnpu.vdev]) > 1:\n",
        "        if vnpu is None:\n",
    ),
    Rule(
        "4.1 a function that does not fit the id is a fault",
        INVENTORY,
        "        if vnpu.vfid is None or vnpu.vfid != vfid_of(vnpu.vdev):\n",
        "        if vnpu is None:\n",
    ),
    Rule(
        "4.1 a template that cannot be read is a fault",
        INVENTORY,
        "        if vnpu.template is None or not TEMPLATE.fullmatch(vnpu.template):\n",
        "        if vnpu is None:\n",
    ),
    Rule(
        "4.1 a use that is not told is a fault",
        INVENTORY,
        "return Fault(Reason.VNPU_USE_UNKNOWN if vnpu.in_use is None else Reason.OK)",
        "return Fault(Reason.OK)",
    ),
    Rule("4.1 a node that is not the vNPU's is a fault", INVENTORY, "        if fault is not None:\n            return fault\n", ""),
    Rule("4.1 what may only not have been listed is kept", INVENTORY, "        self._keep_the_unlisted()\n", ""),
    Rule(
        "4.1 while the broker says nothing what was seen is in doubt",
        INVENTORY,
        "complaints.findings(), in_doubt=True), memory",
        "complaints.findings()), memory",
    ),
    Rule(
        "4.1 a function that is not given follows from the id",
        SURVEY,
        "        vfid=derived if answer.vfid is None else answer.vfid,\n",
        "        vfid=answer.vfid,\n",
    ),
    Rule("4.1 a boot tells a vNPU from another", NPU_MEMORY, "        rest = (self.boot_id, self.vfid,", "        rest = (self.vfid,"),
    Rule(
        "4.1 a function tells a vNPU from another",
        NPU_MEMORY,
        "rest = (self.boot_id, self.vfid, self.inode",
        "rest = (self.boot_id, self.inode",
    ),
    Rule("4.1 a node's inode tells a vNPU from another", NPU_MEMORY, "self.vfid, self.inode, self.sequence", "self.vfid, self.sequence"),
    Rule(
        "4.1 a remove and add in between make another vNPU",
        NPU_MEMORY,
        "self.inode, self.sequence, self.losses, self.goings)",
        "self.inode, self.losses, self.goings)",
    ),
    Rule("4.1 lost events make another vNPU", NPU_MEMORY, "self.sequence, self.losses, self.goings)", "self.sequence, self.goings)"),
    Rule("4.1 an id that was missing is another vNPU's", NPU_MEMORY, "self.losses, self.goings)", "self.losses)"),
    Rule(
        "4.1 a template tells a vNPU from another",
        NPU_MEMORY,
        'template=vnpu.template or (before.template if before is not None else ""),',
        'template=before.template if before is not None else (vnpu.template or ""),',
    ),
    Rule(
        "4.1 another vNPU of an id is seen first now",
        INVENTORY,
        "        if before is not None and before.marks != known:\n            before = None  # another one of this id\n",
        "",
    ),
)
