"""Every safety rule of the table, and which tests are asked first when it is deleted."""

from typing import Final

from mutations import broker, claims, destroying, evidence, node, shields, waiting
from mutations.rule import Rule

_ROOMS: Final = (waiting, shields, destroying, broker, claims, node, evidence)

RULES: Final[tuple[Rule, ...]] = tuple(rule for room in _ROOMS for rule in room.RULES)


def tests_of(rule: Rule) -> tuple[str, ...]:
    """Return the files of tests/unit that are asked about a rule, in their order."""
    if rule.tests:
        return rule.tests
    return next(room.ASKED[rule.file] for room in _ROOMS if rule in room.RULES)
