"""One safety rule as it stands in the code, and how it is taken away. Pure."""

from dataclasses import dataclass


class RottenError(ValueError):
    """A rule that does not stand in the code as the table has it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that can be deleted by replacing one text in one file."""

    #: What is said, after where: a number of DESIGN's, or V and S for the rules of HAMi's reconciler.
    name: str
    #: Below the root of the tree.
    file: str
    #: Stands there exactly once.
    old: str
    #: The same without the rule.
    new: str
    #: Files of tests/unit, or tests in them, that are asked in place of those of its file (files.py).
    tests: tuple[str, ...] = ()

    def delete(self, text: str) -> str:
        """Return the text of the file without the rule. RottenError."""
        count = text.count(self.old)
        if count != 1:
            raise RottenError(f"{self.name}: {self.file} has its text {count} times and not once: {self.old.strip()!r}")
        if self.old == self.new:
            raise RottenError(f"{self.name}: nothing is deleted")
        return text.replace(self.old, self.new)
