"""When a registration has ended, when the next one may be made, and who is suspected of serving the resource already."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.plugin.sessions import (
    LASTING,
    LONGEST_WAIT,
    SUSPICION,
    End,
    Loss,
    Neighbour,
    Pace,
    Session,
    Sight,
    SocketId,
    end_of,
    ended,
    failed,
    met,
    silence_due,
    standing,
    suspects,
    with_streams,
)
from sim.pauses import pauses

KUBELET, OTHER = SocketId(1, 10, 100), SocketId(1, 10, 101)
OWN = SocketId(1, 11, 200 * 10**9)
SESSION = Session(KUBELET, OWN, began=50.0, silent_since=50.0)
LISTENED = with_streams(SESSION, 1, 51.0)
SIGHT = Sight(KUBELET, OWN)
RESOURCE = "hyperlight.dev/hypervisor"


def test_a_registration_stands_while_its_stream_is_open() -> None:
    assert end_of(LISTENED, SIGHT, 1e9) is None
    assert silence_due(LISTENED) is None


@pytest.mark.parametrize("session", [SESSION, LISTENED])
def test_each_sign_alone_ends_it(session: Session) -> None:
    assert end_of(session, replace(SIGHT, kubelet=None), 50.0) is End.KUBELET_GONE
    assert end_of(session, replace(SIGHT, own=None), 50.0) is End.SOCKET_GONE
    assert end_of(session, replace(SIGHT, own=replace(OWN, inode=12)), 50.0) is End.SOCKET_GONE


@pytest.mark.parametrize("field", ["device", "inode", "changed_ns"])
def test_another_kubelet_is_one_of_another_socket_even_if_the_inode_is_the_same(field: str) -> None:
    assert end_of(SESSION, replace(SIGHT, kubelet=replace(KUBELET, **{field: 7})), 50.0) is End.KUBELET_RESTARTED


@pytest.mark.parametrize("field", ["device", "inode"])
def test_even_while_a_stream_seems_to_be_open(field: str) -> None:
    assert end_of(LISTENED, replace(SIGHT, kubelet=replace(KUBELET, **{field: 7})), 50.0) is End.KUBELET_RESTARTED


def test_a_socket_of_the_kubelets_that_was_only_touched_ends_nothing_while_the_kubelet_listens() -> None:
    touched = replace(SIGHT, kubelet=replace(KUBELET, changed_ns=7))
    assert end_of(LISTENED, touched, 50.0) is None
    assert end_of(LISTENED, replace(touched, own=None), 50.0) is End.KUBELET_RESTARTED
    lost = with_streams(LISTENED, 0, 60.0)
    assert end_of(lost, touched, 60.0) is End.KUBELET_RESTARTED
    later = with_streams(standing(LISTENED, touched), 0, 60.0)
    assert (end_of(later, touched, 60.0), end_of(later, touched, 62.0)) == (None, End.NO_STREAM)


def test_a_kubelet_that_never_listens_is_given_up_later_than_one_that_stops_listening() -> None:
    assert end_of(SESSION, SIGHT, 59.9) is None
    assert end_of(SESSION, SIGHT, 60.0) is End.NO_STREAM
    lost = with_streams(LISTENED, 0, 100.0)
    assert end_of(lost, SIGHT, 101.9) is None
    assert end_of(lost, SIGHT, 102.0) is End.NO_STREAM


def test_silence_counts_from_its_beginning_and_ends_with_a_stream() -> None:
    lost = with_streams(LISTENED, 0, 100.0)
    assert with_streams(lost, 0, 101.0) == lost
    assert with_streams(lost, 2, 101.0) == LISTENED


def test_attempts_that_fail_wait_longer_each_time() -> None:
    pace, waits = Pace(), []
    for _ in range(12):
        pace = failed(pace, 10.0)
        waits.append(pace.due - 10.0)
    assert waits[:4] == [0.25, 0.5, 1.0, 2.0]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_WAIT


def test_a_new_kubelet_is_met_at_once_but_never_in_a_storm() -> None:
    pace = Pace(KUBELET, failures=9, last=10.0)
    assert met(pace, KUBELET) == pace
    assert met(pace, OTHER) == Pace(OTHER, failures=1, last=10.0)
    assert met(pace, OTHER).due == 10.25
    assert met(Pace(), KUBELET).due <= 0


@pytest.mark.parametrize("end", list(End))
def test_what_does_not_last_counts_as_failed_unless_the_kubelet_itself_went(end: End) -> None:
    pace = Pace(KUBELET, failures=3, last=10.0)
    expected = 1 if end in (End.KUBELET_GONE, End.KUBELET_RESTARTED) else 4
    assert ended(pace, SESSION, end, 60.0) == Pace(KUBELET, failures=expected, last=60.0)
    assert ended(pace, SESSION, end, 50.0 + LASTING).failures == 1


@given(st.lists(st.tuples(pauses(30), st.booleans()), max_size=40))
def test_no_course_of_events_makes_two_attempts_within_a_quarter_of_a_second(events: list[tuple[float, bool]]) -> None:
    pace, now, last = Pace(), 100.0, None
    for number, (passed, restarted) in enumerate(events):
        now += passed
        pace = met(pace, replace(KUBELET, inode=number if restarted else 0))
        if now < pace.due:
            continue
        assert last is None or now - last >= 0.25
        last = now
        pace = ended(pace, replace(SESSION, began=now), End.KUBELET_RESTARTED if restarted else End.SOCKET_GONE, now)


def neighbours(**changed: float) -> Sight:
    found = (Neighbour(name.replace("_", "."), int(at * 1e9)) for name, at in changed.items())
    return replace(SIGHT, neighbours=tuple(found))


def suspected(
    sight: Sight, *, resource: str = RESOURCE, lost_at: float | None = None, foreign: bool | None = False, now: float = 0.0
) -> list[str]:
    loss = None if lost_at is None else Loss(LISTENED, now, int(lost_at * 1e9))
    return list(suspects(resource, sight, loss=loss, foreign_ids=foreign, now=now))


def test_the_known_plugin_of_a_resource_is_suspected() -> None:
    sight = neighbours(hyperlight_sock=1, nvidia_sock=2)
    assert suspected(sight) == ["hyperlight.sock"]
    assert suspected(sight, resource="a/b") == []


def test_one_that_came_just_before_our_stream_was_lost_is_suspected() -> None:
    sight = neighbours(early_sock=100, old_sock=201, new_sock=295)
    assert suspected(sight, lost_at=300) == ["new.sock"]
    assert suspected(sight, lost_at=210) == ["new.sock", "old.sock"]
    assert suspected(sight) == []


def test_that_suspicion_is_no_proof_and_ends() -> None:
    sight = neighbours(new_sock=295)
    loss = Loss(LISTENED, 1000.0, int(300e9))
    assert suspects(RESOURCE, sight, loss=loss, foreign_ids=False, now=1000.0 + SUSPICION - 1) == ("new.sock",)
    assert suspects(RESOURCE, sight, loss=loss, foreign_ids=False, now=1000.0 + SUSPICION) == ()


def test_devices_that_are_none_of_ours_make_everybody_a_suspect() -> None:
    assert suspected(neighbours(a_sock=1, hyperlight_sock=2, b_sock=3), foreign=True) == ["hyperlight.sock", "b.sock", "a.sock"]
    assert suspected(SIGHT, foreign=True) == []


def test_where_it_is_not_known_whose_they_are_they_are_somebodys() -> None:
    assert suspected(neighbours(a_sock=1, b_sock=3), foreign=None) == ["b.sock", "a.sock"]
    assert suspected(SIGHT, foreign=None) == []
