"""Which vNPUs stay although no container uses them, and why, for the journal: each refusal once, and not once a look. Pure.

A vNPU is told of when two looks, one after the other, refuse it for the same reason: one that is just being made for a container, or is
about to go, is refused for a moment and is not worth a record. It is told of again when it stays for another reason. That it waited
meanwhile is no other reason, or a Pod that fails every five minutes would fill the journal.

One that is in use is told of only where the driver alone says so: its mark may have stayed behind, and nothing else would ever tell why
that vNPU is not reclaimed. What is refused since something of the node is unknown, or since Pods were not listed, is not told here: that
is of every vNPU, and has records of its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from devward.cluster.claims import Standing
from devward.cluster.evidence import Finding
from devward.reclaim.look import Look, VnpuFacts
from devward.reclaim.reasons import Verdict
from devward.reclaim.shield import standing
from devward.reclaim.verdict import Judgement

#: Nobody is refused anything by a vNPU that waits its time, nor by one that a Pod or a container is known to use.
_REFUSED: Final = frozenset({Verdict.PINNED, Verdict.OWNED, Verdict.PROTECTED, Verdict.UNKNOWN, Verdict.UNMANAGED, Verdict.DEFERRED})
_NOBODY_KNOWN: Final = "No Pod has its NPU, and no container is known to name either."
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
    vnpus = {vnpu.name: vnpu for vnpu in look.vnpus}
    refused = {_key(one): one for one in judgements.values() if _is_refused(one, vnpus.get(one.name), look)}
    lasting = {key: one for key, one in refused.items() if memory.seen.get(key) == one.reason}
    used = {key: one for key, one in lasting.items() if one.verdict is Verdict.IN_USE and key not in memory.called_used}
    fresh = {key: one for key, one in lasting.items() if one.verdict is not Verdict.IN_USE and memory.told.get(key) != one.reason}
    present = {_key(one) for one in judgements.values()}
    told = {key: reason for key, reason in memory.told.items() if key in present} | {key: one.reason for key, one in fresh.items()}
    seen = {key: one.reason for key, one in refused.items()}
    return Memory(seen, told, (memory.called_used & present) | used.keys()), tuple(_grouped((*fresh.values(), *used.values()), look))


def _key(judgement: Judgement) -> str:
    return judgement.identity or judgement.name


def _is_refused(judgement: Judgement, vnpu: VnpuFacts | None, look: Look) -> bool:
    if judgement.verdict is Verdict.IN_USE:
        return vnpu is not None and _is_nobody_known(vnpu, look)
    if judgement.verdict is Verdict.UNKNOWN and (look.snapshot is None or not look.snapshot.is_node_known):
        return False
    return judgement.verdict in _REFUSED


def _is_nobody_known(vnpu: VnpuFacts, look: Look) -> bool:
    """Tell whether no Pod has the card of a vNPU, no container names either and nobody of the host is known to have it."""
    card = look.card(vnpu.card)
    if look.snapshot is None or not look.snapshot.is_node_known or card is None:
        return False
    if Finding.HELD in (vnpu.host, vnpu.descriptors) or vnpu.card_named_by or vnpu.holders:
        return False
    return standing(vnpu, card) in (Standing.CANDIDATE, Standing.NONE)


def _grouped(fresh: Iterable[Judgement], look: Look) -> Iterable[Stay]:
    groups: dict[tuple[str, str], list[Judgement]] = {}
    for one in fresh:
        groups.setdefault((one.card, one.reason), []).append(one)
    for (card, reason), members in sorted(groups.items()):
        first = members[0]
        vdevs = tuple(sorted(one.vdev for one in members))
        pods = _protecting(card, look) if first.verdict is Verdict.PROTECTED else ()
        sentence = f"{first.sentence} {_NOBODY_KNOWN}" if first.verdict is Verdict.IN_USE else first.sentence
        yield Stay(card, first.verdict, reason, sentence, vdevs, pods)


def _protecting(name: str, look: Look) -> tuple[str, ...]:
    card = look.card(name)
    claims = card.claims if card is not None else ()
    return tuple(sorted({one.uid for one in claims if one.standing is Standing.PROTECTED}))[:_MAX_PODS]
