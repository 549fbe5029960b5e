"""The ids of slots, and which of them to prefer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.model import DeviceKind
from devward.plugin.slots import Choice, Offer, kind_of, listed, preferred

KVM, MSHV = DeviceKind.KVM, DeviceKind.MSHV
SLOTS = st.lists(st.sampled_from([f"{kind}-{number}" for kind in DeviceKind for number in range(8)]), unique=True)


def test_every_slot_is_listed_healthy_or_not() -> None:
    assert listed(Offer(KVM, healthy=True), 2) == [("kvm-0", True), ("kvm-1", True)]
    assert listed(Offer(MSHV, healthy=False), 1) == [("mshv-0", False)]


def test_ids_are_as_short_as_the_kubelet_wants_them() -> None:
    ids = [name for name, _ in listed(Offer(MSHV, healthy=True), 10_000)]
    assert len(set(ids)) == 10_000
    assert max(map(len, ids)) <= 63
    assert all(kind_of(name) is MSHV for name in ids)


@pytest.mark.parametrize("slot", ["", "kvm", "kvm-", "kvm-01", "kvm-10000", "kvm--1", "KVM-1", "xen-1", "kvm-1\n", "kvm-1 ", "kvm-¹"])
def test_what_is_no_slot(slot: str) -> None:
    assert kind_of(slot) is None


def test_slots_of_one_device_are_taken_before_those_of_another() -> None:
    free = ("kvm-0", "mshv-0", "kvm-1", "mshv-1")
    assert preferred(Choice(free, (), 2)) == ("kvm-0", "kvm-1")
    assert preferred(Choice(free, ("mshv-1",), 2)) == ("mshv-1", "mshv-0")
    assert preferred(Choice(free, ("mshv-1",), 1)) == ("mshv-1",)
    assert preferred(Choice(free, (), -1)) == ()


def test_what_a_choice_costs_grows_with_its_ids_and_not_with_their_square() -> None:
    looks = 0

    class Slot(str):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return super().__hash__()

    available = tuple(Slot(f"kvm-{number}") for number in range(1000))
    assert len(preferred(Choice(available, available[:500], 1000))) == 1000
    assert looks < 10 * len(available)


@given(available=SLOTS, size=st.integers(0, 20), data=st.data())
def test_a_choice_is_what_was_asked_for(available: list[str], size: int, data: st.DataObject) -> None:
    included = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=size) if available and size else st.just([]))
    chosen = preferred(Choice(tuple(available), tuple(included), size))
    assert len(set(chosen)) == len(chosen) == min(size, len(available))
    assert set(included) <= set(chosen) <= set(available)
