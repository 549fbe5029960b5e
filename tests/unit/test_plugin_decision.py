"""What the kubelet is told of a device, and what it is answered: refusals are final, and so they are rare."""

from dataclasses import replace

import pytest

from devward.model import Allocation, DeviceKind, Health, SpecState
from devward.plugin.decision import INCONCLUSIVE, Answer, Grant, Verdict, Vouched, advance, decide, good_after, grant, health, refusal
from devward.plugin.settings import Injection
from devward.plugin.slots import Offer
from devward.reasons import REASON_TEXT, Reason
from sim.plugin_host import SPEC, allowed, refused, standing

KVM, MSHV = DeviceKind.KVM, DeviceKind.MSHV
NOW = 1000.0
CONCLUSIVE = sorted(set(Reason) - INCONCLUSIVE - {Reason.OK})
#: Another node may stand there: that the one before was good says nothing.
NEVER_STAND_IN = {Reason.DEVICE_CHANGED, Reason.NOT_CHECKED}


def judged(vouched: Vouched | None, *, good: float | None = None, left: float = 1.0) -> Verdict:
    return decide(vouched, good=good, now=NOW, until=NOW + left)


def test_what_may_be_given_is_given() -> None:
    assert judged(allowed(NOW)) == Verdict(Answer.GIVE)


@pytest.mark.parametrize("reason", CONCLUSIVE)
def test_a_completed_bad_check_refuses_at_once_whatever_was_before(reason: Reason) -> None:
    assert judged(refused(reason), good=NOW) == Verdict(Answer.REFUSE, reason, REASON_TEXT[reason])


def test_a_spent_budget_refuses_whatever_was_before() -> None:
    assert judged(None, good=NOW).answer is Answer.REFUSE
    assert judged(None, good=NOW).text


@pytest.mark.parametrize("reason", sorted(INCONCLUSIVE))
def test_a_check_that_was_not_completed_is_made_again_while_there_is_time(reason: Reason) -> None:
    assert judged(refused(reason)).answer is Answer.AGAIN
    assert judged(refused(reason), good=NOW - 30).answer is Answer.AGAIN
    assert judged(refused(reason), left=0.1) == Verdict(Answer.REFUSE, reason, REASON_TEXT[reason])


@pytest.mark.parametrize("reason", sorted(INCONCLUSIVE))
def test_a_young_good_check_stands_in_unless_the_node_may_be_another(reason: Reason) -> None:
    assert (judged(refused(reason), good=NOW - 29.9).answer is Answer.GIVE) == (reason not in NEVER_STAND_IN)


def test_how_long_a_check_was_good_goes_by_the_check_and_not_by_the_answer() -> None:
    good = good_after(allowed(NOW - 20), None)
    assert good == NOW - 20
    good = good_after(refused(Reason.PROBE_INCONCLUSIVE, NOW - 20), good)
    assert decide(refused(Reason.PROBE_INCONCLUSIVE), good=good, now=NOW + 10.5, until=NOW + 20).answer is Answer.AGAIN


def test_what_was_good_before_a_bad_check_counts_no_more() -> None:
    assert good_after(refused(Reason.HYPERVISOR_BUSY), NOW) is None
    assert good_after(refused(Reason.HYPERVISOR_BUSY, NOW), NOW) is None
    assert good_after(refused(Reason.DEVICE_CHANGED, NOW), NOW) is None
    assert good_after(refused(Reason.PROBE_INCONCLUSIVE, NOW), NOW) == NOW
    assert good_after(None, NOW) == NOW


@pytest.mark.parametrize("reason", sorted(INCONCLUSIVE))
def test_what_was_good_of_another_node_counts_no_more(reason: Reason) -> None:
    """The look of an incomplete check met another node, so that the device has no good check now."""
    good = good_after(refused(reason), NOW)
    assert good is None
    assert judged(refused(reason), good=good).answer is Answer.AGAIN
    assert judged(refused(reason), good=good, left=0.1).answer is Answer.REFUSE


def test_a_node_that_changed_after_its_good_check_is_checked_again() -> None:
    met = Vouched(Allocation(allowed=True, reason=Reason.OK, text=""), None)
    assert judged(met, good=good_after(met, NOW)).answer is Answer.AGAIN
    text = REASON_TEXT[Reason.DEVICE_CHANGED]
    assert judged(met, left=0.1) == Verdict(Answer.REFUSE, Reason.DEVICE_CHANGED, text)


def test_a_refusal_is_fit_to_be_read() -> None:
    foreign = Vouched(Allocation(allowed=False, reason=Reason.CDI_SHADOWED, text="a\nb\x1b" + "c" * 5000), None)
    text = refusal(KVM, judged(foreign))
    assert text.isprintable()
    assert len(text) < 700
    assert text.startswith("devward refuses /dev/kvm: a\\x0ab")
    assert text.endswith("[cdi-shadowed]")


def test_a_refusal_without_a_text_has_the_reasons() -> None:
    assert judged(Vouched(Allocation(allowed=False, reason=Reason.CDI_STALE, text=""), None)).text == REASON_TEXT[Reason.CDI_STALE]


def test_what_a_container_gets() -> None:
    assert grant([KVM, KVM], Injection.CDI) == Grant(cdi_devices=("hyperlight.dev/hypervisor=kvm",))
    assert grant([MSHV, KVM], Injection.ANNOTATIONS) == Grant(
        annotations=(("cdi.k8s.io/devward", "hyperlight.dev/hypervisor=mshv,hyperlight.dev/hypervisor=kvm"),)
    )
    assert grant([KVM], Injection.DEVICE_SPEC) == Grant(
        nodes=("/dev/kvm",), variables=(("HYPERLIGHT_HYPERVISOR", "kvm"), ("HYPERLIGHT_DEVICE_PATH", "/dev/kvm"))
    )


@pytest.mark.parametrize(
    ("found", "answer"),
    [(Health.HEALTHY, True), (Health.UNHEALTHY, False), (Health.MISSING, False), (Health.UNKNOWN, None)],
)
def test_health_follows_completed_checks_alone(found: Health, *, answer: bool | None) -> None:
    assert health(standing(health=found), SPEC, is_told=False) is answer


def test_a_node_that_took_anothers_place_is_not_healthy_because_the_one_before_was() -> None:
    assert health(standing(health=Health.UNKNOWN), SPEC, is_told=True) is False


@pytest.mark.parametrize("state", list(SpecState))
def test_a_device_is_healthy_only_with_its_file(state: SpecState) -> None:
    expected = {SpecState.TRUE: True, SpecState.CONFLICT: True, SpecState.SHADOWED: True, SpecState.UNKNOWN: None}.get(state, False)
    assert health(standing(), replace(SPEC, state=state), is_told=True) is expected


def test_a_device_is_healthy_only_if_engines_find_it_by_our_file() -> None:
    assert health(standing(effective=False), SPEC, is_told=True) is False
    assert health(standing(), replace(SPEC, devices=("hyperlight.dev/hypervisor=mshv",)), is_told=True) is False


def test_what_is_not_known_stays_as_it_was_told() -> None:
    told = (Offer(KVM, healthy=True),)
    assert advance(told, [(KVM, None)]) == told
    assert advance(told, [(KVM, False)]) == (Offer(KVM, healthy=False),)
    assert advance((), [(KVM, None)]) == ()
    assert advance(told, [(MSHV, True)]) == (Offer(MSHV, healthy=True),)


def test_files_that_are_not_looked_at_by_order_are_not_vouched_for() -> None:
    assert health(standing(), replace(SPEC, state=SpecState.UNKNOWN, reason=Reason.CDI_PAUSED), is_told=True) is False
    assert health(standing(), replace(SPEC, state=SpecState.UNKNOWN, reason=Reason.NOT_CHECKED), is_told=True) is None
