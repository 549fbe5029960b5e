"""How looks and checks move a device's state: rules R15, R18 and R19, as pure decisions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.devices.health import (
    GOOD_CHECK_LASTS,
    DeviceState,
    IdentityVerdict,
    NodeFacts,
    ProbeVerdict,
    another_node,
    good_recently,
    sentence,
    view,
    with_identity,
    with_probe,
)
from devward.model import DeviceKind, Health, Identity
from devward.reasons import REASON_TEXT, Reason

FACTS = NodeFacts(device=5, inode=100, number="10:232", mode=0o660, uid=0, gid=103, links=1, acl=())
VALID = IdentityVerdict(Identity.VALID, Reason.OK, "", FACTS)
GONE = IdentityVerdict(Identity.MISSING, Reason.DEVICE_MISSING, "the kernel has the device as 10:232, but there is no node")
COVERED = IdentityVerdict(Identity.INVALID, Reason.DEVICE_COVERED, "", replace(FACTS, inode=7))
NOT_LOOKED = IdentityVerdict(Identity.UNKNOWN, Reason.PROBE_INCONCLUSIVE, "Too many open files")
GOOD = ProbeVerdict(completed=True, healthy=True, reason=Reason.OK, detail="", duration_usec=900)
BUSY = ProbeVerdict(completed=True, healthy=False, reason=Reason.HYPERVISOR_BUSY, detail="KVM_CREATE_VM: EBUSY", duration_usec=800)
UNFINISHED = ProbeVerdict(completed=False, healthy=False, reason=Reason.PROBE_INCONCLUSIVE, detail="open: EMFILE", duration_usec=700)
NEW = DeviceState(DeviceKind.KVM, "/dev/kvm")


def healthy() -> DeviceState:
    return with_probe(with_identity(NEW, VALID, 10), GOOD, 20, 5.0)


def test_a_valid_node_is_unknown_until_it_was_checked() -> None:
    state = with_identity(NEW, VALID, 10)
    assert (state.identity, state.identity_since_usec) == (Identity.VALID, 10)
    assert (state.health, state.health_since_usec, state.reason) == (Health.UNKNOWN, 10, Reason.NOT_CHECKED)
    assert state.last_check_usec == 0


def test_r15_a_completed_check_decides() -> None:
    state = healthy()
    assert (state.health, state.health_since_usec, state.reason) == (Health.HEALTHY, 20, Reason.OK)
    assert (state.last_check_usec, state.check_duration_usec, state.good_monotonic) == (20, 900, 5.0)
    state = with_probe(state, BUSY, 30, 6.0)
    assert (state.health, state.health_since_usec, state.reason, state.detail) == (
        Health.UNHEALTHY,
        30,
        Reason.HYPERVISOR_BUSY,
        "KVM_CREATE_VM: EBUSY",
    )
    assert state.good_monotonic is None


def test_r15_an_unfinished_check_shows_and_changes_nothing_else() -> None:
    before = healthy()
    after = with_probe(before, UNFINISHED, 30, 6.0)
    assert after == replace(before, inconclusive=Reason.PROBE_INCONCLUSIVE, inconclusive_detail="open: EMFILE")
    assert with_probe(after, GOOD, 40, 7.0).inconclusive is Reason.OK


def test_r15_an_unfinished_look_shows_and_changes_nothing_else() -> None:
    for before in (NEW, healthy(), with_identity(healthy(), GONE, 30), with_identity(healthy(), COVERED, 30)):
        after = with_identity(before, NOT_LOOKED, 40)
        assert after == replace(before, inconclusive=Reason.PROBE_INCONCLUSIVE, inconclusive_detail="Too many open files")


@pytest.mark.parametrize(("verdict", "expected"), [(GONE, Health.MISSING), (COVERED, Health.UNHEALTHY)])
def test_r18_identity_outranks_a_good_check(verdict: IdentityVerdict, expected: Health) -> None:
    state = with_identity(with_probe(healthy(), UNFINISHED, 25, 5.5), verdict, 30)
    assert (state.identity, state.health, state.reason, state.detail) == (verdict.identity, expected, verdict.reason, verdict.detail)
    assert (state.health_since_usec, state.last_check_usec) == (30, 30)
    assert (state.good_monotonic, state.inconclusive) == (None, Reason.OK)
    assert with_probe(state, GOOD, 40, 6.0) == state, "a probe of a node that is not the device proves nothing"


def test_r19_a_node_that_came_back_is_unknown_until_checked() -> None:
    for lost in (GONE, COVERED, replace(VALID, identity=Identity.INVALID, reason=Reason.DEVICE_NO_DRIVER)):
        state = with_identity(with_identity(healthy(), lost, 30), VALID, 40)
        assert (state.identity, state.health, state.reason, state.detail) == (Identity.VALID, Health.UNKNOWN, Reason.NOT_CHECKED, "")
        assert (state.identity_since_usec, state.health_since_usec, state.good_monotonic) == (40, 40, None)
        assert with_probe(state, GOOD, 50, 9.0).health is Health.HEALTHY


@pytest.mark.parametrize("change", [{"device": 6}, {"inode": 101}, {"number": "10:231"}])
def test_r19_a_node_in_anothers_place_is_unknown_until_checked(change: dict[str, object]) -> None:
    other = replace(VALID, facts=replace(FACTS, **change))  # type: ignore[arg-type]  # the fields above
    state = with_identity(healthy(), other, 30)
    assert (state.identity, state.identity_since_usec) == (Identity.VALID, 10)
    assert (state.health, state.good_monotonic, state.facts) == (Health.UNKNOWN, None, other.facts)


@pytest.mark.parametrize("change", [{"mode": 0o666}, {"uid": 1}, {"gid": 0}, {"links": 2}, {"acl": ("user:1000:rw-",)}])
def test_other_attributes_leave_health_alone(change: dict[str, object]) -> None:
    facts = replace(FACTS, **change)  # type: ignore[arg-type]  # the fields above
    assert with_identity(healthy(), replace(VALID, facts=facts), 30) == replace(healthy(), facts=facts)


def test_two_looks_meet_one_node_or_two() -> None:
    assert not another_node(FACTS, replace(FACTS, mode=0, uid=1, gid=1, links=2, acl=("x",)))
    assert another_node(FACTS, None)
    assert another_node(None, FACTS)
    assert not another_node(None, None)


def test_the_same_verdict_again_keeps_the_time_since_when() -> None:
    state = with_probe(healthy(), GOOD, 99, 9.0)
    assert (state.health_since_usec, state.last_check_usec) == (20, 99)
    state = with_identity(with_identity(healthy(), GONE, 30), GONE, 40)
    assert (state.identity_since_usec, state.health_since_usec, state.last_check_usec) == (30, 30, 40)


def test_a_good_check_stands_in_for_an_unfinished_one_for_thirty_seconds() -> None:
    state = with_probe(healthy(), UNFINISHED, 30, 6.0)
    assert GOOD_CHECK_LASTS == 30.0
    assert good_recently(state, 5.0 + 29.9)
    assert not good_recently(state, 5.0 + 30.0)
    assert not good_recently(NEW, 5.0)
    for state in (with_probe(healthy(), BUSY, 30, 6.0), with_identity(healthy(), GONE, 30)):
        assert not good_recently(state, 6.0)


def test_a_sentence_takes_the_detail_in() -> None:
    assert sentence(Reason.HYPERVISOR_BUSY, "EBUSY").endswith("or the system is shutting down (EBUSY).")
    assert sentence(Reason.HYPERVISOR_BUSY, "") == REASON_TEXT[Reason.HYPERVISOR_BUSY]
    assert sentence(Reason.OK, "ignored") == ""


def test_the_view_says_everything_that_is_known() -> None:
    shown = view(healthy())
    assert (shown.kind, shown.node, shown.number, shown.text) == (DeviceKind.KVM, "/dev/kvm", "10:232", "")
    assert (shown.identity, shown.health, shown.reason) == (Identity.VALID, Health.HEALTHY, Reason.OK)
    assert view(NEW).number == ""
    assert view(with_identity(NEW, GONE, 30)).text.endswith("(the kernel has the device as 10:232, but there is no node).")
    assert view(with_probe(healthy(), UNFINISHED, 30, 6.0)).text == sentence(Reason.PROBE_INCONCLUSIVE, "open: EMFILE")


STEPS = st.sampled_from([VALID, replace(VALID, facts=replace(FACTS, inode=101)), GONE, COVERED, NOT_LOOKED, GOOD, BUSY, UNFINISHED])


@given(st.lists(STEPS, max_size=30))
def test_healthy_means_that_the_last_completed_look_and_check_of_this_very_node_were_good(
    steps: list[IdentityVerdict | ProbeVerdict],
) -> None:
    state, node, good = NEW, None, False
    for now, step in enumerate(steps, start=1):
        if isinstance(step, IdentityVerdict):
            state = with_identity(state, step, now)
            if step is not NOT_LOOKED:
                here = step.facts if step.identity is Identity.VALID else None
                good = good and here == node
                node = here
        else:
            state = with_probe(state, step, now, float(now))
            if step.completed and node is not None:
                good = step.healthy
        assert (state.health is Health.HEALTHY) is (node is not None and good)
        assert (state.health is Health.HEALTHY) is (state.good_monotonic is not None)
        assert (state.identity is Identity.VALID) is (node is not None)
