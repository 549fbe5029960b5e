"""What advice is made of. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do: a sentence, and the commands to copy for it."""

    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """What a reason means for containers, and the steps to take, in order."""

    means: str
    steps: tuple[Step, ...]
