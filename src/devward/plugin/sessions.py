"""One registration with a kubelet, from Register to what ended it, and how long to wait before the next. Pure.

A kubelet that restarts calls no plugin. It shows by another kubelet.sock, by our socket being removed, or by the end of the stream on which
it heard of devices; each alone is enough, and none is taken from an event, which may be lost. What happened before the registration began
is not a reason for another one: the kubelet.sock is that which stood there before, so that no number of late events makes a storm.
Times in monotonic seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

#: Seconds that the kubelet has to open its stream, and to open another one after the last was lost.
FIRST_STREAM: Final = 10.0
NEXT_STREAM: Final = 2.0
#: The least and the most time between two registrations that fail or do not last.
FIRST_WAIT, LONGEST_WAIT = 0.25, 30.0
#: How long a plugin that came just before our stream was lost counts as the reason, in seconds.
SUSPICION: Final = 600.0
_JUST_BEFORE_NS: Final = 15_000_000_000
#: A registration that lasted so long was a good one.
LASTING: Final = 60.0
#: Sockets of plugins that are known to serve a resource: of the Hyperlight device plugin (device-plugin/main.go in
#: hyperlight-dev/hyperlight-on-kubernetes). The kubelet's API does not tell which resource a socket is for.
KNOWN_ENDPOINTS: Final[dict[str, tuple[str, ...]]] = {"hyperlight.dev/hypervisor": ("hyperlight.sock",)}


@dataclass(frozen=True, slots=True)
class SocketId:
    """What tells a socket in a file system from another one of the same name."""

    device: int
    inode: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A socket of another plugin. The name is foreign."""

    name: str
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Sight:
    """What stands in the directory of device plugins."""

    kubelet: SocketId | None
    own: SocketId | None
    neighbours: tuple[Neighbour, ...] = ()


class End(StrEnum):
    """What ended a registration."""

    KUBELET_GONE = "kubelet gone"
    KUBELET_RESTARTED = "kubelet restarted"
    SOCKET_GONE = "socket gone"
    NO_STREAM = "no stream"


@dataclass(frozen=True, slots=True)
class Session:
    """A registration that the kubelet took."""

    #: As it stood before the registration began.
    kubelet: SocketId
    own: SocketId
    began: float
    #: Since when no stream is open; None while one is.
    silent_since: float | None
    had_stream: bool = False


def with_streams(session: Session, count: int, now: float) -> Session:
    """Take in how many streams are open."""
    if count:
        return replace(session, silent_since=None, had_stream=True)
    return session if session.silent_since is not None else replace(session, silent_since=now)


def end_of(session: Session, sight: Sight, now: float) -> End | None:
    """Return what ended a registration, None while it stands."""
    if sight.kubelet is None:
        return End.KUBELET_GONE
    if sight.kubelet != session.kubelet and not _is_touched(session, sight):
        return End.KUBELET_RESTARTED
    if sight.own != session.own:
        return End.SOCKET_GONE
    due = silence_due(session)
    return End.NO_STREAM if due is not None and now >= due else None


def standing(session: Session, sight: Sight) -> Session:
    """Take in the kubelet's socket as it stands now, where that ended nothing."""
    return session if sight.kubelet is None else replace(session, kubelet=sight.kubelet)


def _is_touched(session: Session, sight: Sight) -> bool:
    """Tell whether only the attributes of the kubelet's socket were changed, and the kubelet itself is the same.

    It listens still, and a kubelet that starts removes our socket before it makes its own.
    """
    was, now = session.kubelet, sight.kubelet
    is_same_file = now is not None and (was.device, was.inode) == (now.device, now.inode)
    return is_same_file and session.silent_since is None and sight.own == session.own


def silence_due(session: Session) -> float | None:
    """Return when a registration without a stream is given up; None while it has one."""
    if session.silent_since is None:
        return None
    return session.silent_since + (NEXT_STREAM if session.had_stream else FIRST_STREAM)


@dataclass(frozen=True, slots=True)
class Pace:
    """The attempts that failed, or did not last, with one kubelet."""

    kubelet: SocketId | None = None
    failures: int = 0
    #: When the latest of them ended.
    last: float = 0.0

    @property
    def due(self) -> float:
        """When the next may be made."""
        if not self.failures:
            return self.last
        return self.last + min(FIRST_WAIT * 2.0 ** min(self.failures - 1, 16), LONGEST_WAIT)


def met(pace: Pace, kubelet: SocketId) -> Pace:
    """Take in which kubelet is there: what failed with another one does not hold it up, but for the least time between two attempts."""
    if pace.kubelet == kubelet:
        return pace
    return Pace(kubelet, min(pace.failures, 1), pace.last)


def failed(pace: Pace, now: float) -> Pace:
    """Count an attempt that failed."""
    return replace(pace, failures=pace.failures + 1, last=now)


def ended(pace: Pace, session: Session, end: End, now: float) -> Pace:
    """Count a registration that ended: one that did not last is as good as failed, unless the kubelet itself ended or restarted."""
    if end in (End.KUBELET_GONE, End.KUBELET_RESTARTED) or now - session.began >= LASTING:
        return replace(pace, failures=1, last=now)
    return failed(pace, now)


@dataclass(frozen=True, slots=True)
class Loss:
    """A registration whose stream the kubelet ended although both sockets stand, and when that was noticed."""

    session: Session
    at: float
    #: The same in nanoseconds of CLOCK_REALTIME, as files have it.
    at_ns: int


def suspects(resource: str, sight: Sight, *, loss: Loss | None, foreign_ids: bool | None, now: float) -> tuple[str, ...]:
    """Return the sockets that may serve the resource if somebody listens there, the likeliest first.

    The newest registration wins: after a loss the kubelet may have taken that of a plugin whose socket was made just before. That is no
    proof, and is believed for SUSPICION seconds. `foreign_ids`: the kubelet keeps devices of the resource that are none of ours; None: that
    is not known, and they are taken for somebody's.
    """
    known = KNOWN_ENDPOINTS.get(resource, ())
    found = [neighbour.name for neighbour in sight.neighbours if neighbour.name in known]
    if loss is not None and now - loss.at < SUSPICION:
        since = max(loss.session.own.changed_ns, loss.at_ns - _JUST_BEFORE_NS)
        found += [neighbour.name for neighbour in _by_age(sight.neighbours) if neighbour.changed_ns > since]
    if foreign_ids is not False:
        found += [neighbour.name for neighbour in _by_age(sight.neighbours)]
    return tuple(dict.fromkeys(found))


def _by_age(neighbours: Sequence[Neighbour]) -> list[Neighbour]:
    return sorted(neighbours, key=lambda neighbour: neighbour.changed_ns, reverse=True)
