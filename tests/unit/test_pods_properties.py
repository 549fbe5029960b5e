"""What holds for every list of Pods: order says nothing, another Pod never lowers protection, and odd input is refused or protected."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from devward.cluster.annotations import read_annotations
from devward.cluster.claims import Allocation, Claims, Standing
from devward.cluster.containers import ENDED, FAILING, LOST, STARTING
from devward.cluster.evidence import Finding
from sim.pod_desk import RUNNING, Desk, HostSays, container, ended, segments, status, waiting, whole_pod
from sim.pod_fuzz import Fuzzer
from sim.recorded_cluster import DIES, NODE, RESOURCE, WORD

_STRENGTH = {standing: index for index, standing in enumerate(Standing)}

reasons = st.sampled_from([*sorted(STARTING), *sorted(FAILING), "", "New"])
ends = st.tuples(
    st.sampled_from([0, 1, 137]),
    st.sampled_from([*sorted(ENDED), *sorted(LOST), "", "New"]),
    st.sampled_from([None, "2026-11-30T23:59:00Z"]),
)
states = st.one_of(
    st.just(RUNNING),
    st.just({}),
    reasons.map(waiting),
    ends.map(lambda end: ended(end[0], end[1], finished=end[2])),
)
annotations = st.dictionaries(
    st.sampled_from([f"huawei.com/{WORD}", f"hami.io/{WORD}-devices-to-allocate", "huawei.com/vnpu-mode"]),
    st.sampled_from([";", "", whole_pod(DIES[0]), whole_pod(*DIES), segments([DIES[1]], []), "broken", whole_pod("FFFF"), "hami-core"]),
)
environments = st.lists(
    st.sampled_from(["0", "1", "", "void", "junk"]).map(lambda value: {"name": "ASCEND_VISIBLE_DEVICES", "value": value}), max_size=1
)


@st.composite
def containers(draw: st.DrawFn, name: str) -> dict[str, Any]:
    more: dict[str, Any] = {"env": draw(environments)}
    if draw(st.integers(0, 9)) == 0:
        more["securityContext"] = {"privileged": True}
    return container(name, npus=draw(st.sampled_from(["1", "1", "0", None])), **more)


@st.composite
def pods(draw: st.DrawFn, uid: str) -> tuple[dict[str, Any], list[Allocation], HostSays]:
    """A Pod, what the checkpoint has for it, and what the host shows of it."""
    names = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True))
    metadata: dict[str, Any] = {"uid": uid, "namespace": "default", "name": uid, "annotations": draw(annotations)}
    if draw(st.booleans()) and draw(st.booleans()):
        metadata["deletionTimestamp"] = "2026-12-01T00:00:30Z"
    statuses = [status(name, draw(states)) for name in names if draw(st.integers(0, 5))]
    item = {
        "metadata": metadata,
        "spec": {"nodeName": NODE, "containers": [draw(containers(name)) for name in names]},
        "status": {
            "phase": draw(st.sampled_from(["Pending", "Running", "Running", "Succeeded", "Failed", "Unknown"])),
            "containerStatuses": statuses,
        },
    }
    cards = st.sampled_from([None, frozenset({0}), frozenset({1}), frozenset({0, 1}), frozenset({7})])
    entries = [Allocation(uid, name, RESOURCE, draw(cards)) for name in names if draw(st.booleans())]
    finding = draw(st.sampled_from([Finding.CLEAN, Finding.CLEAN, Finding.HELD, Finding.UNKNOWN]))
    return item, entries, HostSays({uid: finding}, {uid: draw(st.sampled_from([Finding.CLEAN, finding]))})


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[Allocation], HostSays]:
    count = draw(st.integers(1, 4))
    items, entries, host = [], [], HostSays()
    for number in range(count):
        item, own, shown = draw(pods(f"uid-{number}"))
        entries += own
        host.whole |= shown.whole
        host.containers |= shown.containers
        # Some are known to the checkpoint alone.
        if draw(st.integers(0, 4)):
            items.append(item)
    return items, entries, host


def looks(items: list[dict[str, Any]], entries: list[Allocation], host: HostSays) -> list[Claims]:
    desk = Desk()
    return [desk.look(*items, given=entries, host=host) for _ in range(2)]


@settings(max_examples=300)
@given(nodes(), st.randoms(use_true_random=False))
def test_no_order_of_any_list_says_anything(node: tuple[list[dict[str, Any]], list[Allocation], HostSays], chance: random.Random) -> None:
    items, entries, host = node
    before = looks(items, entries, host)
    for item in items:
        chance.shuffle(item["spec"]["containers"])
        chance.shuffle(item["status"]["containerStatuses"])
    chance.shuffle(items)
    chance.shuffle(entries)
    assert looks(items, entries, host) == before


@given(st.lists(st.lists(st.sampled_from([*DIES, "FFFF"]), max_size=3), max_size=4), st.randoms(use_true_random=False))
def test_no_order_of_segments_says_anything(parts: list[list[str]], chance: random.Random) -> None:
    key = f"hami.io/{WORD}-devices-to-allocate"
    before = read_annotations({key: segments(*parts)})
    for part in parts:
        chance.shuffle(part)
    chance.shuffle(parts)
    assert read_annotations({key: segments(*parts)}) == before
    assert before.dies == {die for part in parts for die in part}


@settings(max_examples=300)
@given(nodes(), pods("new"))
def test_another_pod_never_lowers_protection(
    node: tuple[list[dict[str, Any]], list[Allocation], HostSays], more: tuple[dict[str, Any], list[Allocation], HostSays]
) -> None:
    items, entries, host = node
    item, own, shown = more
    both = HostSays(host.whole | shown.whole, host.containers | shown.containers)
    for before, after in zip(looks(items, entries, host), looks([*items, item], [*entries, *own], both), strict=True):
        assert set(before.blockers) <= set(after.blockers)
        for one, other in zip(before.cards, after.cards, strict=True):
            assert set(one.claims) <= set(other.claims)
            assert _STRENGTH[other.standing] <= _STRENGTH[one.standing]
            assert _STRENGTH[other.standing_if_clean] <= _STRENGTH[one.standing_if_clean]
            assert (other.candidate_since or 0) >= (one.candidate_since or 0)


@settings(max_examples=300)
@given(nodes())
def test_a_card_is_free_only_if_no_pod_that_may_live_names_it(node: tuple[list[dict[str, Any]], list[Allocation], HostSays]) -> None:
    items, entries, host = node
    claims = looks(items, entries, host)[0]
    phases = {item["metadata"]["uid"]: item["status"]["phase"] for item in items}
    for entry in entries:
        if entry.uid in phases and phases[entry.uid] in ("Succeeded", "Failed") and host.whole[entry.uid] is Finding.CLEAN:
            continue
        for phy in entry.cards or ():
            assert claims.blockers or claims.cards[phy].standing is not Standing.NONE


def test_odd_lists_and_annotations_are_refused_or_protected() -> None:
    fuzzer = Fuzzer(seed=20261201)
    fuzzer.run(3000)
    # All of it was met: a fuzzer whose lists are all refused finds nothing.
    assert fuzzer.counts["list taken"] > 200
    assert fuzzer.counts["annotation taken"] > 200
    assert fuzzer.counts["annotation malformed"] > 200
    assert sum(count for what, count in fuzzer.counts.items() if what.startswith("list refused")) > 200
