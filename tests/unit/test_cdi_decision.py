"""What is done about an owned file, and which devices belong in it: every case of the table, and properties of random histories."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cdi import decision, spec
from devward.cdi.decision import Candidate, Entry, FileFacts, Membership, Plan, Step, decide, membership, next_withdrawal
from devward.model import DeviceKind, Health, Identity, RepairCause, SpecState, WithdrawPolicy
from devward.names import HYPERVISOR_CDI_FILE, HYPERVISOR_CDI_KIND
from devward.reasons import Reason
from sim.pauses import pauses

DESIRED = spec.render_hypervisor([DeviceKind.KVM], uid=65534, gid=65534)
STALE = spec.render_hypervisor([DeviceKind.KVM], uid=0, gid=0)
FOREIGN = DESIRED.replace(HYPERVISOR_CDI_KIND.encode(), b"example.com/device")
TORN = DESIRED[:30]
TORN_FOREIGN = FOREIGN[:60]
MALFORMED = (b"", b"{", TORN, b"\xff\xfe", b"[]", b"null", b"[" * 5000)

KVM, MSHV = DEVICES = tuple(f"{HYPERVISOR_CDI_KIND}={kind}" for kind in DeviceKind)

MODE = ((RepairCause.MODE, "mode is 0600, should be 0644"),)


_NAMES = {DESIRED: "desired", STALE: "stale", FOREIGN: "foreign", TORN: "torn", TORN_FOREIGN: "torn foreign", MALFORMED[-1]: "brackets"}


def named(value: object) -> str | None:
    """Give a document a short name in the id of a test."""
    return _NAMES.get(value) if isinstance(value, bytes) else None


def plan(
    found: FileFacts,
    desired: bytes | None = DESIRED,
    *,
    known: bool = True,
    adopt: bool = False,
    withdrawing: bool = False,
    undecided: bool = False,
) -> Plan:
    return decide(
        found,
        desired,
        HYPERVISOR_CDI_FILE,
        HYPERVISOR_CDI_KIND,
        known=known,
        adopt=adopt,
        withdrawing=withdrawing,
        undecided=undecided,
    )


def regular(data: bytes | None, **more: object) -> FileFacts:
    return FileFacts(Entry.REGULAR, data, **more)  # type: ignore[arg-type] # the other fields


ALL_FLAGS = [
    dict(zip(("known", "adopt", "withdrawing", "undecided"), flags, strict=True)) for flags in itertools.product((False, True), repeat=4)
]


# --- what is never acted upon ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("flags", ALL_FLAGS)
@pytest.mark.parametrize("desired", [None, DESIRED], ids=named)
def test_r6_what_is_not_a_regular_file_is_left_alone_whatever_is_wanted(flags: dict[str, bool], desired: bytes | None) -> None:
    made = plan(FileFacts(Entry.OTHER, detail="a FIFO stands there"), desired, **flags)
    assert (made.step, made.state, made.reason, made.detail) == (
        Step.NONE,
        SpecState.BLOCKED,
        Reason.CDI_NOT_REGULAR,
        "a FIFO stands there",
    )


@pytest.mark.parametrize("flags", ALL_FLAGS)
@pytest.mark.parametrize("desired", [None, DESIRED], ids=named)
@pytest.mark.parametrize("reason", [Reason.CDI_UNWRITABLE, Reason.CDI_DIRECTORY_LINK, Reason.CDI_IO_ERROR])
def test_r8_a_directory_that_cannot_be_used_is_left_alone(flags: dict[str, bool], desired: bytes | None, reason: Reason) -> None:
    made = plan(FileFacts(Entry.UNREACHABLE, reason=reason, detail="why"), desired, **flags)
    assert (made.step, made.state, made.reason, made.detail) == (Step.NONE, SpecState.BLOCKED, reason, "why")


@pytest.mark.parametrize("flags", ALL_FLAGS)
def test_only_a_file_that_is_exact_counts_as_true(flags: dict[str, bool]) -> None:
    for entry in Entry:
        for data in (None, DESIRED, STALE, FOREIGN, TORN_FOREIGN, *MALFORMED):
            for metadata in ((), MODE):
                for desired in (None, DESIRED):
                    made = plan(FileFacts(entry, data, metadata, Reason.CDI_IO_ERROR), desired, **flags)
                    if made.state is SpecState.TRUE:
                        assert (made.step, entry, data, metadata, desired) == (Step.NONE, Entry.REGULAR, DESIRED, (), DESIRED)


# --- files that are ours -------------------------------------------------------------------------------------------------------
def test_nothing_where_nothing_should_be_is_empty() -> None:
    assert plan(FileFacts(Entry.MISSING), None) == Plan(Step.NONE, SpecState.EMPTY)


@pytest.mark.parametrize("known", [False, True])
def test_r3_a_missing_file_is_written(known: bool) -> None:
    made = plan(FileFacts(Entry.MISSING), known=known)
    assert (made.step, made.cause, made.reason, made.backup) == (Step.WRITE, RepairCause.MISSING, Reason.CDI_MISSING, False)


@pytest.mark.parametrize("data", [one for one in MALFORMED if one not in (b"[]", b"null")], ids=named)
def test_r3_a_malformed_file_is_written(data: bytes) -> None:
    made = plan(regular(data))
    assert (made.step, made.cause, made.reason, made.backup) == (Step.WRITE, RepairCause.MALFORMED, Reason.CDI_MALFORMED, False)
    assert made.differences == (made.detail,) != ("",)


@pytest.mark.parametrize("data", [b"[]", b"null", b"{}"], ids=named)
def test_r3_json_that_is_no_cdi_document_is_stale(data: bytes) -> None:
    made = plan(regular(data))
    assert (made.step, made.cause) == (Step.WRITE, RepairCause.STALE)
    assert made.differences


def test_r3_a_file_that_cannot_be_read_is_written() -> None:
    made = plan(regular(None, reason=Reason.CDI_MALFORMED, detail="it has 9999999 bytes"))
    assert (made.step, made.cause, made.detail) == (Step.WRITE, RepairCause.MALFORMED, "it has 9999999 bytes")


def test_a_file_that_is_far_longer_than_it_should_be_is_not_judged_at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> tuple[str, ...]:
        raise AssertionError("judged")

    padded = DESIRED + b" " * decision.JUDGED_SIZE
    monkeypatch.setattr(spec, "differences", never)
    made = plan(regular(padded))
    assert (made.step, made.cause) == (Step.WRITE, RepairCause.MALFORMED)
    assert str(decision.JUDGED_SIZE) in made.detail


def test_r4_a_stale_file_is_written_and_the_differences_are_told() -> None:
    made = plan(regular(STALE))
    assert (made.step, made.cause, made.reason) == (Step.WRITE, RepairCause.STALE, Reason.CDI_STALE)
    assert len(made.differences) == 2
    assert all(word in " ".join(made.differences) for word in ("uid", "gid", "65534"))
    assert made.detail == made.differences[0]


def test_a_file_of_ours_that_became_another_kind_is_stale_not_foreign() -> None:
    """From the first write on, every regular file at the path is ours to repair."""
    made = plan(regular(FOREIGN))
    assert (made.step, made.cause, made.backup) == (Step.WRITE, RepairCause.STALE, False)


@pytest.mark.parametrize("cause", [RepairCause.MODE, RepairCause.OWNER, RepairCause.LABEL, RepairCause.HARD_LINK])
def test_each_kind_of_wrong_metadata_is_a_cause(cause: RepairCause) -> None:
    made = plan(regular(DESIRED, metadata=((cause, "wrong"), (RepairCause.OWNER, "wrong too"))))
    assert (made.step, made.cause, made.reason, made.differences) == (Step.WRITE, cause, Reason.CDI_METADATA, ("wrong", "wrong too"))


def test_content_comes_before_metadata() -> None:
    assert plan(regular(STALE, metadata=MODE)).cause is RepairCause.STALE
    assert plan(regular(b"{", metadata=MODE)).cause is RepairCause.MALFORMED


def test_equal_content_is_left_alone_whatever_its_formatting() -> None:
    compact = b" ".join(DESIRED.split())
    assert compact != DESIRED
    assert plan(regular(compact)) == Plan(Step.NONE, SpecState.TRUE)


@pytest.mark.parametrize("withdrawing", [False, True])
@pytest.mark.parametrize("data", [DESIRED, STALE, FOREIGN, None, b"{"], ids=named)
def test_an_empty_document_means_that_our_file_goes(data: bytes | None, withdrawing: bool) -> None:
    made = plan(regular(data), None, withdrawing=withdrawing)
    assert (made.step, made.cause, made.backup) == (Step.REMOVE, RepairCause.WITHDRAWN, False)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("data", [DESIRED, STALE, b"{"], ids=named)
def test_while_a_device_is_not_judged_yet_no_file_goes_for_want_of_it(data: bytes, known: bool) -> None:
    made = plan(regular(data), None, known=known, withdrawing=True, undecided=True)
    assert (made.step, made.state, made.reason) == (Step.NONE, SpecState.UNKNOWN, Reason.NOT_CHECKED)


def test_a_device_that_is_not_judged_yet_holds_up_no_repair() -> None:
    assert plan(regular(STALE), undecided=True) == plan(regular(STALE))
    assert plan(FileFacts(Entry.MISSING), undecided=True) == plan(FileFacts(Entry.MISSING))


# --- first contact ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("data", [STALE, b"", b"{", TORN, b"[]", b"\xff\xfe"], ids=named)
def test_at_first_contact_a_file_of_our_kind_or_without_one_is_copied_and_taken_over(data: bytes) -> None:
    made = plan(regular(data), known=False)
    assert (made.step, made.cause, made.backup) == (Step.WRITE, RepairCause.TAKE_OVER, True)


@pytest.mark.parametrize("desired", [None, DESIRED], ids=named)
@pytest.mark.parametrize("data", [FOREIGN, TORN_FOREIGN], ids=named)
def test_at_first_contact_a_file_of_another_kind_is_foreign(data: bytes, desired: bytes | None) -> None:
    made = plan(regular(data, metadata=MODE), desired, known=False, withdrawing=True)
    assert (made.step, made.state, made.reason) == (Step.NONE, SpecState.FOREIGN, Reason.CDI_FOREIGN)
    assert "example.com/device" in made.detail


@pytest.mark.parametrize("kind", ["x" * 50_000, "a\x1b]0;\x07/b", "a\n/b", "a\u202e/b"])
def test_a_foreign_kind_is_told_in_few_printable_words(kind: str) -> None:
    made = plan(regular(json.dumps({"kind": kind}).encode()), known=False)
    assert made.state is SpecState.FOREIGN
    assert len(made.detail) < 120
    assert made.detail.isprintable()


def test_at_first_contact_a_file_that_cannot_be_read_is_not_replaced_since_no_copy_can_be_kept() -> None:
    made = plan(regular(None, reason=Reason.CDI_MALFORMED, detail="too long"), known=False)
    assert (made.step, made.state, made.reason, made.detail) == (Step.NONE, SpecState.BLOCKED, Reason.CDI_MALFORMED, "too long")


@pytest.mark.parametrize("data", [FOREIGN, TORN_FOREIGN, STALE, b"{"], ids=named)
def test_adoption_copies_and_replaces_whatever_kind_it_is(data: bytes) -> None:
    made = plan(regular(data), known=False, adopt=True)
    assert (made.step, made.cause, made.backup) == (Step.WRITE, RepairCause.ADOPTED, True)


def test_adoption_of_what_is_ours_is_a_plain_repair() -> None:
    assert plan(regular(STALE), adopt=True) == plan(regular(STALE))


def test_at_first_contact_an_equal_file_is_true_and_wrong_metadata_is_a_take_over() -> None:
    assert plan(regular(DESIRED), known=False) == Plan(Step.NONE, SpecState.TRUE)
    made = plan(regular(DESIRED, metadata=MODE), known=False)
    assert (made.step, made.cause, made.backup) == (Step.WRITE, RepairCause.TAKE_OVER, True)


def test_an_unknown_file_of_our_kind_goes_only_when_devices_are_withdrawn() -> None:
    left = plan(regular(STALE), None, known=False)
    assert (left.step, left.state) == (Step.NONE, SpecState.EMPTY)
    gone = plan(regular(STALE), None, known=False, withdrawing=True)
    assert (gone.step, gone.cause, gone.backup) == (Step.REMOVE, RepairCause.WITHDRAWN, True)
    adopted = plan(regular(FOREIGN), None, known=False, adopt=True)
    assert (adopted.step, adopted.backup) == (Step.REMOVE, True)


@pytest.mark.parametrize("flags", ALL_FLAGS)
@pytest.mark.parametrize("desired", [None, DESIRED], ids=named)
@pytest.mark.parametrize("data", [DESIRED, STALE, FOREIGN, TORN_FOREIGN, None, *MALFORMED], ids=named)
def test_no_file_goes_that_is_not_ours_without_a_copy(flags: dict[str, bool], desired: bytes | None, data: bytes | None) -> None:
    made = plan(regular(data, metadata=MODE), desired, **flags)
    if made.step is not Step.NONE:
        assert made.backup is not flags["known"]
        assert made.cause is not None


# --- membership -----------------------------------------------------------------------------------------------------------------
def candidate(identity: Identity, health: Health = Health.HEALTHY, device: str = KVM) -> Candidate:
    return Candidate(device, "/dev/kvm", identity, health)


FIT = candidate(Identity.VALID)
MEMBER = Membership(frozenset({KVM}))
LEAVING = Membership(frozenset({KVM}), ((KVM, 100.0),))
SETTLE = 10.0


def publishes(before: Membership, devices: list[Candidate], policy: WithdrawPolicy, now: float = 100.0) -> bool:
    return KVM in membership(before, devices, policy, SETTLE, now).published


@pytest.mark.parametrize("policy", WithdrawPolicy)
@pytest.mark.parametrize("health", Health)
@pytest.mark.parametrize("identity", Identity)
def test_what_joins(policy: WithdrawPolicy, identity: Identity, health: Health) -> None:
    fit = identity is Identity.VALID and (policy is not WithdrawPolicy.USABILITY or health is Health.HEALTHY)
    assert publishes(Membership(), [candidate(identity, health)], policy) is fit


@pytest.mark.parametrize("policy", WithdrawPolicy)
@pytest.mark.parametrize("health", Health)
@pytest.mark.parametrize("identity", Identity)
def test_what_leaves_after_settling(policy: WithdrawPolicy, identity: Identity, health: Health) -> None:
    """Only what is established: an identity or health that is not known is no reason."""
    leaves = {
        WithdrawPolicy.NEVER: False,
        WithdrawPolicy.IDENTITY: identity in (Identity.INVALID, Identity.MISSING),
        WithdrawPolicy.USABILITY: identity in (Identity.INVALID, Identity.MISSING) or health in (Health.UNHEALTHY, Health.MISSING),
    }[policy]
    devices = [candidate(identity, health)]
    state = membership(MEMBER, devices, policy, SETTLE, 100.0)
    assert state.published == {KVM}
    assert bool(state.leaving) is leaves
    assert next_withdrawal(state, SETTLE) == (110.0 if leaves else None)
    assert publishes(state, devices, policy, 109.9)
    assert publishes(state, devices, policy, 110.0) is not leaves


@pytest.mark.parametrize("policy", WithdrawPolicy)
@pytest.mark.parametrize("health", Health)
@pytest.mark.parametrize("identity", Identity)
def test_a_strict_source_waits_for_nothing_but_doubt(policy: WithdrawPolicy, identity: Identity, health: Health) -> None:
    state = membership(MEMBER, [candidate(identity, health)], policy, SETTLE, 100.0, strict=True)
    gone = identity in (Identity.INVALID, Identity.MISSING) or (
        policy is WithdrawPolicy.USABILITY and health in (Health.UNHEALTHY, Health.MISSING)
    )
    fit = identity is Identity.VALID and (policy is not WithdrawPolicy.USABILITY or health is Health.HEALTHY)
    assert (KVM in state.published) is not gone
    later = membership(state, [candidate(identity, health)], policy, SETTLE, 110.0, strict=True)
    assert (KVM in later.published) is fit, "what is not known stays only while it settles"
    assert membership(MEMBER, [], policy, SETTLE, 100.0, strict=True) == Membership()


def test_a_device_named_nowhere_leaves_too() -> None:
    state = membership(MEMBER, [], WithdrawPolicy.IDENTITY, SETTLE, 100.0)
    assert next_withdrawal(state, SETTLE) == 110.0
    assert not publishes(state, [], WithdrawPolicy.IDENTITY, 110.0)
    assert publishes(MEMBER, [], WithdrawPolicy.NEVER, 1e9)


def test_a_device_that_is_fit_again_starts_anew() -> None:
    again = membership(LEAVING, [FIT], WithdrawPolicy.IDENTITY, SETTLE, 109.0)
    assert again == MEMBER
    state = membership(again, [candidate(Identity.MISSING)], WithdrawPolicy.IDENTITY, SETTLE, 109.5)
    assert next_withdrawal(state, SETTLE) == 119.5


def test_without_settling_a_device_leaves_at_once() -> None:
    assert membership(MEMBER, [candidate(Identity.MISSING)], WithdrawPolicy.IDENTITY, 0.0, 100.0) == Membership()


def test_the_next_withdrawal_is_the_earliest() -> None:
    state = Membership(frozenset(DEVICES), ((KVM, 105.0), (MSHV, 102.0)))
    assert next_withdrawal(state, SETTLE) == 112.0
    assert next_withdrawal(Membership(), SETTLE) is None


@pytest.mark.parametrize("policy", WithdrawPolicy)
@pytest.mark.parametrize("health", Health)
@pytest.mark.parametrize("identity", Identity)
def test_only_a_device_that_may_yet_join_is_undecided(policy: WithdrawPolicy, identity: Identity, health: Health) -> None:
    devices = [candidate(identity, health)]
    assert not decision.undecided(MEMBER, devices, policy)
    state = membership(Membership(), devices, policy, SETTLE, 100.0)
    established = identity in (Identity.INVALID, Identity.MISSING) or (
        policy is WithdrawPolicy.USABILITY and health in (Health.UNHEALTHY, Health.MISSING)
    )
    assert decision.undecided(state, devices, policy) is (not state.published and not established)


candidates = st.lists(
    st.builds(
        Candidate,
        device=st.sampled_from(DEVICES),
        node=st.just("/dev/x"),
        identity=st.sampled_from(Identity),
        health=st.sampled_from(Health),
    ),
    max_size=2,
    unique_by=lambda one: one.device,
)
histories = st.lists(st.tuples(candidates, st.booleans(), pauses(15)), min_size=1, max_size=30)


@given(histories, st.sampled_from(WithdrawPolicy), st.sampled_from([0.0, 1.0, 10.0]))
def test_membership_over_random_histories(
    history: list[tuple[list[Candidate], bool, float]], policy: WithdrawPolicy, settle: float
) -> None:
    state, now = Membership(), 1000.0
    unfit_since: dict[str, float] = {}
    for devices, complete, pause in history:
        now += pause
        before, state = state, membership(state, devices, policy, settle, now, complete=complete)
        by_name = {device.device: device for device in devices}
        for name in DEVICES:
            device = by_name.get(name)
            fit = device is not None and device.identity is Identity.VALID
            unfit = complete if device is None else device.identity in (Identity.INVALID, Identity.MISSING)
            if policy is WithdrawPolicy.USABILITY and device is not None:
                fit = fit and device.health is Health.HEALTHY
                unfit = unfit or device.health in (Health.UNHEALTHY, Health.MISSING)
            if unfit:
                unfit_since.setdefault(name, now)
            else:
                unfit_since.pop(name, None)
            if fit:
                assert name in state.published, "a fit device is published at once"
            if name in state.published and name not in before.published:
                assert fit, "nothing but a fit device joins"
            if policy is WithdrawPolicy.NEVER:
                assert name in state.published or name not in before.published, "policy never keeps"
            elif unfit and now - unfit_since[name] >= settle:
                assert name not in state.published, "no device stays longer than it settles"
            if name in before.published and not unfit:
                assert name in state.published, "what is not known is no reason"
            if name in before.published and name not in state.published:
                assert now - unfit_since[name] >= settle, "no device leaves before it has settled"
        assert {name for name, _ in state.leaving} <= state.published
        due = next_withdrawal(state, settle)
        assert due is None or due > now, "what is due has been done"


def test_the_decisions_are_values() -> None:
    made = plan(regular(STALE))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.step = Step.NONE  # type: ignore[misc] # that is the point
