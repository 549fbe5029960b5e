"""The verdicts on a vNPU, and every reason for one that is found here, each with its sentence. Pure.

Reasons that are found elsewhere keep their codes: of claims (cluster/claims.py), of what is unknown of a card or the node
(cluster/observations.py), of cards that are not HAMi's (cluster/hami.py), and of vNPUs that are not vouched for (devward.reasons).
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Verdict(StrEnum):
    """What may become of a vNPU. The first of these that holds is the verdict; only what is eligible may be destroyed."""

    #: The driver says that somebody uses it.
    IN_USE = "in-use"
    #: An administrator keeps it, or may mean it.
    PINNED = "pinned"
    #: A process or container of this host has this very vNPU.
    OWNED = "owned"
    #: A Pod has its card, or may have it.
    PROTECTED = "protected"
    #: It cannot be told, which counts as use.
    UNKNOWN = "unknown"
    #: Nobody uses it, and it is not devward's to reclaim.
    UNMANAGED = "unmanaged"
    #: Nobody has it as far as one look tells: the wait begins.
    CANDIDATE = "candidate"
    #: That was seen again at least once.
    CONFIRMING = "confirming"
    #: It was seen often and long enough: it may be destroyed.
    ELIGIBLE = "eligible"
    #: It would be eligible, and HAMi is giving out a device.
    DEFERRED = "deferred"
    #: It was destroyed by devward.
    DESTROYED = "destroyed"
    #: Somebody else destroyed it, and its container lives.
    VANISHED_FOREIGN = "vanished-foreign"


#: While one of these is the verdict nothing counts towards reclaiming.
SHIELDED: Final = frozenset(
    {Verdict.IN_USE, Verdict.PINNED, Verdict.OWNED, Verdict.PROTECTED, Verdict.UNKNOWN, Verdict.UNMANAGED},
)


class Why(StrEnum):
    """Why a verdict is what it is."""

    # --- in-use, pinned, owned
    DRIVER_SAYS_USED = "driver-says-used"
    PINNED = "pinned"
    MAYBE_PINNED = "maybe-pinned"
    HELD_ON_HOST = "held-on-host"
    # --- unknown
    PINS_UNREADABLE = "pins-unreadable"
    NOT_EVALUATED = "not-evaluated"
    NOT_FOLLOWED = "not-followed"
    OUTDATED = "look-outdated"
    CARD_UNKNOWN = "card-unknown"
    CARD_NOT_SEEN = "card-not-seen"
    USE_NOT_TOLD = "use-not-told"
    IDENTITY_UNKNOWN = "identity-unknown"
    IDENTITY_SHARED = "identity-shared"
    HOST_UNKNOWN = "host-unknown"
    HOST_NOT_ASKED = "host-not-asked"
    # --- protected
    CARD_PROTECTED = "card-protected"
    NAMED_BY_CONTAINER = "card-named-by-container"
    # --- unmanaged
    NO_NODE = "vnpu-has-no-node"
    NOT_SELECTED = "card-not-selected"
    NOT_HAMIS = "card-not-hamis"
    # --- what counts
    JUST_SEEN = "just-seen"
    WAITING_CONFIRMATIONS = "waiting-for-confirmations"
    WAITING_GRACE = "waiting-for-grace"
    WAITING_ROUND = "waiting-for-another-round"
    CONFIRMED = "confirmed"
    LOCKED = "hami-locked"
    # --- what happened
    RECLAIMED = "reclaimed"
    GONE_UNDER_ITS_OWNER = "gone-under-its-owner"
    WENT = "went-by-itself"
    REPLACED = "another-has-its-id"


WHY_TEXT: Final[Mapping[Why, str]] = MappingProxyType(
    {
        Why.DRIVER_SAYS_USED: "The driver says that a container uses the vNPU.",
        Why.PINNED: "The vNPU, or its NPU, is pinned.",
        Why.MAYBE_PINNED: "A pin may mean the vNPU; whether it does cannot be told now.",
        Why.HELD_ON_HOST: "A process or a container of this host has this very vNPU.",
        Why.PINS_UNREADABLE: (
            "The pins cannot be read, so that any vNPU may be pinned. Look at devwardctl pins and set those that are missing; then"
            " devwardctl mode reclaim enforce goes on with those that are there."
        ),
        Why.NOT_EVALUATED: "The Pods were not listed at this look.",
        Why.NOT_FOLLOWED: "This look was not yet taken in.",
        Why.OUTDATED: "This look is older than another one that was taken in, as after a clock went back; all waiting begins again.",
        Why.CARD_UNKNOWN: "Who has the card cannot be told.",
        Why.CARD_NOT_SEEN: "Nothing was said of the card at this look.",
        Why.USE_NOT_TOLD: "The driver does not say whether the vNPU is used.",
        Why.IDENTITY_UNKNOWN: "Nothing tells the vNPU from a later one of its id.",
        Why.IDENTITY_SHARED: "Nothing tells the vNPU from another one that is listed.",
        Why.HOST_UNKNOWN: (
            "Whether a process or a container of this host has the vNPU cannot be told; devwardctl explain says what is in doubt."
        ),
        Why.HOST_NOT_ASKED: "The host was not searched for holders of the vNPU.",
        Why.CARD_PROTECTED: "A Pod has the card, or may have it.",
        Why.NAMED_BY_CONTAINER: "A container of this host names the card in its environment.",
        Why.NO_NODE: "The vNPU has no device node, as those for virtual machines have none; it is only observed.",
        Why.NOT_SELECTED: "The card is not one of [reclaim] cards.",
        Why.NOT_HAMIS: "HAMi does not hand out this card; it is only observed, unless [reclaim] manage is all.",
        Why.JUST_SEEN: "Nobody has the vNPU as far as one look tells; the wait has begun.",
        Why.WAITING_CONFIRMATIONS: "Nobody has the vNPU; more looks must confirm that.",
        Why.WAITING_GRACE: "Nobody has the vNPU; the time that it must stay so is not over.",
        Why.WAITING_ROUND: "Destroying the vNPU failed, or what came of it is not known; another confirmation is waited for.",
        Why.CONFIRMED: "Nobody has had the vNPU for long enough, by enough looks.",
        Why.LOCKED: "Nobody has the vNPU; it stays while HAMi is giving out a device.",
        Why.RECLAIMED: "devward destroyed the vNPU, which nobody had.",
        Why.GONE_UNDER_ITS_OWNER: "Somebody else destroyed the vNPU while its container lived; look for another cleanup on this node.",
        Why.WENT: "The vNPU went without devward, as they do when their container ends.",
        Why.REPLACED: "Another vNPU has the id by now, or the same one was changed so that it counts as another.",
    }
)
