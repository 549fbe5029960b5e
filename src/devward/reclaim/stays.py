"""Which vNPUs stay that are not plainly used, and why, for the journal: each refusal once, and not once a look. Pure.

A vNPU is told of when two looks, one after the other, refuse it for the same reason: one that is just being made for a container, or is
about to go, is refused for a moment and is not worth a record. It is told of again when it stays for another reason. That it waited
meanwhile is no other reason, or a Pod that fails every five minutes would fill the journal. What is refused since something of the node is
unknown, or since Pods were not listed, is not told here: that is of every vNPU, and has records of its own.

One that the driver calls used is told of where that flag is all there is, as where it stayed behind. Two looks are enough for it, too, with
the one before them that found nobody and had the host searched: a container's bundle, which names the vNPU or its card, is written before
the runtime makes the vNPU, and goes after the container's last process. Only a container that may open any device, and does not have this
one open whenever it is looked, is told of as well: a record too many is no harm, and one vNPU has it once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from devward.cluster.claims import Standing
from devward.cluster.evidence import Finding
from devward.reclaim.look import Look
from devward.reclaim.reasons import Verdict
from devward.reclaim.verdict import Judgement

#: Nobody is refused anything by a vNPU that waits its time, nor by one that is used, if that is more than the driver's flag.
_REFUSED: Final = frozenset({Verdict.PINNED, Verdict.OWNED, Verdict.PROTECTED, Verdict.UNKNOWN, Verdict.UNMANAGED, Verdict.DEFERRED})
#: Pods that are named.
_MAX_PODS: Final = 8


@dataclass(frozen=True, slots=True)
class Memory:
    """What was refused at the look before, and what was told last: reasons, by identity, or by name where nothing else tells it."""

    seen: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    told: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    #: Which of them were told of as used by the driver's word alone: once, for idle ones may be used from time to time.
    called_used: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Stay:
    """vNPUs of one card that stay for one reason."""

    card: str
    verdict: Verdict
    #: A stable code.
    reason: str
    #: For people, fit to be shown.
    sentence: str
    vdevs: tuple[int, ...]
    #: UIDs of the Pods that protect the card, where that is why.
    pods: tuple[str, ...] = ()


def see(memory: Memory, look: Look, judgements: Mapping[str, Judgement]) -> tuple[Memory, tuple[Stay, ...]]:
    """Return what stays by the verdicts of a look and is to be told, and what to remember for the next look."""
    refused = {_key(one): one for one in judgements.values() if _is_refused(one, look)}
    lasting = {key: one for key, one in refused.items() if memory.seen.get(key) == one.reason}
    used = {key: one for key, one in lasting.items() if one.verdict is Verdict.IN_USE and key not in memory.called_used}
    fresh = {key: one for key, one in lasting.items() if one.verdict is not Verdict.IN_USE and memory.told.get(key) != one.reason}
    present = {_key(one) for one in judgements.values()}
    told = {key: reason for key, reason in memory.told.items() if key in present} | {key: one.reason for key, one in fresh.items()}
    seen = {key: one.reason for key, one in refused.items()}
    return Memory(seen, told, (memory.called_used & present) | used.keys()), tuple(_grouped((*fresh.values(), *used.values()), look))


def _key(judgement: Judgement) -> str:
    return judgement.identity or judgement.name


def _is_refused(judgement: Judgement, look: Look) -> bool:
    if judgement.verdict is Verdict.UNKNOWN and (look.snapshot is None or not look.snapshot.is_node_known):
        return False
    is_flag_alone = judgement.verdict is Verdict.IN_USE and judgement.beside is Finding.CLEAN
    return is_flag_alone or judgement.verdict in _REFUSED


def _grouped(fresh: Iterable[Judgement], look: Look) -> Iterable[Stay]:
    groups: dict[tuple[str, str], list[Judgement]] = {}
    for one in fresh:
        groups.setdefault((one.card, one.reason), []).append(one)
    for (card, reason), members in sorted(groups.items()):
        first = members[0]
        vdevs = tuple(sorted(one.vdev for one in members))
        pods = _protecting(card, look) if first.verdict is Verdict.PROTECTED else ()
        yield Stay(card, first.verdict, reason, first.sentence, vdevs, pods)


def _protecting(name: str, look: Look) -> tuple[str, ...]:
    card = look.card(name)
    claims = card.claims if card is not None else ()
    return tuple(sorted({one.uid for one in claims if one.standing is Standing.PROTECTED}))[:_MAX_PODS]
