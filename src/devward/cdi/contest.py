"""No repair war: how repairs of one file are spaced out when something else keeps changing it. Pure; times in monotonic seconds."""

from dataclasses import dataclass, replace

#: Repairs are counted over this time.
WINDOW = 10.0
#: The first wait, and the longest.
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
#: So much quiet ends a contest.
QUIET = 60.0


@dataclass(frozen=True, slots=True)
class Contest:
    """The repairs of one file within the window, and the contest if there is one (`step` > 0)."""

    repairs: tuple[float, ...] = ()
    #: How often the wait has grown; 0 when the file is not contested.
    step: int = 0
    #: No automatic repair before this.
    not_before: float = 0.0

    @property
    def contested(self) -> bool:
        """Whether repairs are spaced out now."""
        return self.step > 0

    @property
    def wait(self) -> float:
        """Seconds between two repairs at this step."""
        return min(FIRST_WAIT * 2.0 ** max(self.step - 1, 0), LONGEST_WAIT)


def repaired(contest: Contest, now: float, contested_after: int) -> Contest:
    """Count a repair; the one that makes `contested_after` within the window, and each one after it, lengthens the wait."""
    repairs = (*(moment for moment in contest.repairs if now - moment < WINDOW), now)[-contested_after:]
    if not contest.contested and len(repairs) < contested_after:
        return replace(contest, repairs=repairs)
    grown = replace(contest, repairs=repairs, step=min(contest.step + 1, 16))
    return replace(grown, not_before=now + grown.wait)


def may_repair(contest: Contest, now: float) -> bool:
    """Tell whether an automatic repair may be made now."""
    return not contest.contested or now >= contest.not_before


def calmed(contest: Contest, now: float) -> Contest:
    """End the contest after a minute without a repair; call it when the file was found true."""
    if contest.contested and contest.repairs and now - contest.repairs[-1] >= QUIET:
        return Contest()
    return contest
