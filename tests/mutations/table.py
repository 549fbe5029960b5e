"""Every safety rule of the table, and which tests are asked first when it is deleted."""

from typing import Final

from mutations import (
    broker,
    claims,
    confirming,
    contract,
    evidence,
    host,
    inventory,
    lateness,
    managers,
    memory,
    node,
    outcomes,
    shields,
    standings,
    stopping,
    waiting,
)
from mutations.files import ASKED
from mutations.rule import Rule

_ROOMS: Final = (
    waiting,
    confirming,
    shields,
    stopping,
    lateness,
    contract,
    outcomes,
    broker,
    memory,
    claims,
    standings,
    node,
    managers,
    evidence,
    host,
    inventory,
)

RULES: Final[tuple[Rule, ...]] = tuple(rule for room in _ROOMS for rule in room.RULES)


def asked_about(rule: Rule) -> tuple[str, ...]:
    """Return the files of tests/unit, or tests in them, that are asked about a rule, in their order."""
    return rule.tests or ASKED[rule.file]
