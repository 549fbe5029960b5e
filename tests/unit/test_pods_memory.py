"""The list of Pods read look after look: what is remembered of the one before never changes what a list says."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster import podmemory
from devward.cluster.answer import AnswerError, AnswerProblem
from devward.cluster.podlist import PodList, parse_pod_list
from devward.cluster.podmemory import PodListReader
from devward.cluster.readings import ReadPods
from sim.pod_desk import RUNNING, listing, pod, waiting
from sim.recorded_cluster import NODE, STATES, pods_of

UIDS = [f"{index:08d}-6a51-4f5a-8f0e-2f1d6c0a9e11" for index in range(8)]


def some(*uids: str, **changed: dict[str, Any]) -> bytes:
    """Return a list of these Pods as the API server writes it; `changed` are states of containers, by a Pod's first digits."""
    items = [pod(uid, states={"main": changed.get(f"p{uid[:8]}", RUNNING)}) for uid in uids]
    return json.dumps(json.loads(listing(*items)), separators=(",", ":")).encode()


def outcome(read: ReadPods, data: bytes, node: str = NODE) -> "PodList | AnswerProblem":
    try:
        return read(data, node)
    except AnswerError as error:
        return error.problem


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the items that are read from their text."""
    places: list[int] = []
    original = podmemory.decode_value

    def counted(text: str, at: int) -> tuple[Any, int]:
        places.append(at)
        return original(text, at)

    monkeypatch.setattr(podmemory, "decode_value", counted)
    return places


def test_what_stands_as_before_is_not_read_again(decoded: list[int]) -> None:
    reader = PodListReader()
    first = reader.read(some(*UIDS), NODE)
    assert len(decoded) == len(UIDS)
    again = reader.read(some(*UIDS), NODE)
    assert len(decoded) == len(UIDS)
    assert all(one is other for one, other in zip(first.pods, again.pods, strict=True))


def test_a_pod_that_changed_is_seen_and_the_others_are_not_read(decoded: list[int]) -> None:
    reader = PodListReader()
    before = reader.read(some(*UIDS), NODE)
    decoded.clear()
    data = some(*UIDS, p00000003=waiting("RunContainerError"))
    after = reader.read(data, NODE)
    assert len(decoded) == 1
    assert after == parse_pod_list(data, NODE)
    assert after.pods[3] != before.pods[3]


def test_pods_that_come_and_go_leave_the_others_known(decoded: list[int]) -> None:
    reader = PodListReader()
    reader.read(some(*UIDS[:3], *UIDS[4:]), NODE)
    decoded.clear()
    data = some(*UIDS[1:])
    assert reader.read(data, NODE) == parse_pod_list(data, NODE)
    # The one behind that which went, by which its place is found again, and the one that is new.
    assert len(decoded) == 2


def test_a_list_is_remembered_for_its_own_node_alone() -> None:
    reader = PodListReader()
    reader.read(some(*UIDS), NODE)
    assert outcome(reader.read, some(*UIDS), "elsewhere") is AnswerProblem.OTHER_NODE


def test_only_the_latest_list_is_remembered(decoded: list[int]) -> None:
    reader = PodListReader()
    reader.read(some(*UIDS), NODE)
    reader.read(some(), NODE)
    decoded.clear()
    reader.read(some(*UIDS), NODE)
    assert len(decoded) == len(UIDS)


@pytest.mark.parametrize("state", STATES)
def test_every_recorded_list_says_what_it_says_to_anybody(state: str) -> None:
    reader = PodListReader()
    for _ in range(2):
        assert reader.read(pods_of(state), NODE) == parse_pod_list(pods_of(state), NODE)


ITEM = json.dumps(json.loads(listing(pod(UIDS[0])))["items"][0])
HEAD = '"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"}'


@pytest.mark.parametrize(
    "text",
    [
        # The list of another object, with the own one behind it, or none.
        f'{{"metadata":{{"resourceVersion":"7","items":[{ITEM}]}},"kind":"PodList","apiVersion":"v1","items":[]}}',
        f'{{"metadata":{{"resourceVersion":"7","items":[{ITEM}]}},"kind":"PodList","apiVersion":"v1"}}',
        f'{{{HEAD},"more":[{{"items":[{ITEM}]}}],"items":[{ITEM}]}}',
        # A key, and a text, that look like it.
        f'{{{HEAD},"odd\\"items":[{ITEM}],"items":[]}}',
        f'{{{HEAD},"odd":"\\"items\\":[{{}}]","items":[{ITEM}]}}',
        # The list twice, and things behind it.
        f'{{{HEAD},"items":[{ITEM}],"items":[]}}',
        f'{{{HEAD},"items":[],"items":[{ITEM}]}}',
        f'{{"items":[{ITEM}],{HEAD}}}',
        f'{{{HEAD},"items":[{ITEM}]}}}}',
        f'{{{HEAD},"items":[{ITEM}]',
        f'{{{HEAD},"items":[{ITEM}]}} \n',
        # Items that are no objects, twice the same, or badly parted.
        f'{{{HEAD},"items":[{ITEM},]}}',
        f'{{{HEAD},"items":[,{ITEM}]}}',
        f'{{{HEAD},"items":[{ITEM} {ITEM}]}}',
        f'{{{HEAD},"items":[{ITEM},{ITEM}]}}',
        f'{{{HEAD},"items":[{ITEM}x]}}',
        f'{{{HEAD},"items":[7,{ITEM}]}}',
        f'{{{HEAD},"items":[null]}}',
        f'{{{HEAD},"items":null}}',
        f'{{{HEAD},"items": [ {ITEM} ] }}',
        f'{{{HEAD},"items":[{ITEM[:-1]},"kind":"Pod","kind":"Pod"}}]}}',
        f'{{{HEAD},"items":[{ITEM[:-1]},"odd":NaN}}]}}',
        '{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"x"},"items":[]}',
        '{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}',
    ],
    ids=[str(number) for number in range(24)],
)
def test_what_is_not_as_the_api_server_writes_it_is_decided_as_ever(text: str) -> None:
    reader = PodListReader()
    reader.read(some(UIDS[0]), NODE)
    for _ in range(2):
        assert outcome(reader.read, text.encode()) == outcome(parse_pod_list, text.encode())


@given(st.lists(st.lists(st.sampled_from(UIDS), unique=True), max_size=5), st.randoms(use_true_random=False))
def test_whatever_came_before_a_list_says_the_same(lists: list[list[str]], chance: random.Random) -> None:
    reader = PodListReader()
    for uids in lists:
        changed = {f"p{uid[:8]}": waiting("RunContainerError") for uid in uids if chance.random() < 0.3}
        data = bytearray(some(*uids, **changed))
        if chance.random() < 0.3:
            data[chance.randrange(len(data))] = chance.choice(b'{}[]",:x\\ 0')
        assert outcome(reader.read, bytes(data)) == outcome(parse_pod_list, bytes(data))
