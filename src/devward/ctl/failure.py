"""Why a command ends without what was asked for: exit statuses, and a sentence and an advice for each error of the bus. Pure."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from devward import names
from devward.ctl.terminal import unbroken
from devward.text import printable


class ExitStatus(IntEnum):
    """The exit statuses of devwardctl, as devwardctl(1) documents them."""

    OK = 0
    #: Refused, unhealthy, or failed.
    UNHEALTHY = 1
    USAGE = 2
    #: The daemon or the bus is absent, does not answer, or went away.
    ABSENT = 3
    DENIED = 4
    PARTLY = 5


class Failure(Exception):
    """A command ends here: `text` says what is wrong in one sentence, `advice` what to do about it (may be empty)."""

    def __init__(self, status: ExitStatus, text: str, advice: str = "", *, name: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.advice = advice
        #: The D-Bus error name, where it was one.
        self.name = name


DBUS_ERROR: Final = "org.freedesktop.DBus.Error."
#: Whom we called is not there any more, or never answered: which of the two, the caller of failure_of() finds out first.
UNANSWERED: Final = frozenset(
    DBUS_ERROR + word for word in ("NoReply", "ServiceUnknown", "NameHasNoOwner", "Disconnected", "Timeout", "TimedOut")
)
#: A daemon of another version lacks what was asked for.
UNKNOWN: Final = frozenset(DBUS_ERROR + word for word in ("UnknownMethod", "UnknownInterface", "UnknownObject", "UnknownProperty"))

START_ADVICE: Final = "Start it with: systemctl start devward.service. What it said last: journalctl -u devward.service -n 20."
BUS_ADVICE: Final = f"Nothing can be asked without the system bus; see {unbroken('systemctl status dbus.service')}."
HUNG_ADVICE: Final = (
    "It may be stopped or stuck. See: systemctl status devward.service. A restart is safe: systemctl restart devward.service."
)

#: Error name to (status, sentence of our own or empty for the daemon's, advice).
_KNOWN: Final[Mapping[str, tuple[ExitStatus, str, str]]] = MappingProxyType(
    {
        DBUS_ERROR + "AccessDenied": (
            ExitStatus.DENIED,
            "",
            "Run it as root, for example with sudo, or ask for a polkit rule that allows it.",
        ),
        DBUS_ERROR + "InteractiveAuthorizationRequired": (
            ExitStatus.DENIED,
            "An administrator must authenticate for this, and nobody could be asked.",
            "Run it as root, for example with sudo, or at a terminal where pkttyagent is installed.",
        ),
        DBUS_ERROR + "InvalidArgs": (ExitStatus.USAGE, "", ""),
        DBUS_ERROR + "LimitsExceeded": (ExitStatus.UNHEALTHY, "", "Too many requests are under way for this user: try again in a moment."),
        names.ERROR_PREFIX + "NoSuchDevice": (
            ExitStatus.UNHEALTHY,
            "",
            f"{unbroken('devwardctl devices')} lists the devices that devward keeps.",
        ),
        names.ERROR_PREFIX + "NoSuchSpec": (
            ExitStatus.UNHEALTHY,
            "",
            f"{unbroken('devwardctl specs')} lists the CDI files that devward owns.",
        ),
        names.ERROR_PREFIX + "NoSuchPin": (
            ExitStatus.UNHEALTHY,
            "",
            f"{unbroken('devwardctl pins')} lists the pins.",
        ),
        names.ERROR_PREFIX + "NoSuchNode": (
            ExitStatus.UNHEALTHY,
            "",
            f"The UID of the Node is shown by {unbroken('kubectl get node NODE -o yaml')}, and was read at the latest look.",
        ),
        names.ERROR_PREFIX + "NoSuchVnpu": (
            ExitStatus.UNHEALTHY,
            "",
            f"{unbroken('devwardctl vnpus')} lists the vNPUs, each with its identity.",
        ),
        names.ERROR_PREFIX + "NotReady": (ExitStatus.UNHEALTHY, "", "It takes a second or so after a start: try again."),
        names.ERROR_PREFIX + "Stopping": (ExitStatus.UNHEALTHY, "", "Try again once it runs again."),
        names.ERROR_PREFIX + "ConfigRefused": (
            ExitStatus.UNHEALTHY,
            "",
            f"The one before it stays in force. To see what is wrong: {unbroken('devwardctl config --check')}.",
        ),
        names.ERROR_PREFIX + "Internal": (
            ExitStatus.UNHEALTHY,
            "",
            f"That is a defect of devwardd; {unbroken('devwardctl report')} collects what is needed to find it.",
        ),
    }
)


def failure_of(name: str, text: str, member: str) -> Failure:
    """Return what an error reply means to a person; `text` is the sender's, and foreign."""
    said = printable(text, 400).rstrip(".") + "." if text else ""
    if name in UNKNOWN:
        return Failure(
            ExitStatus.UNHEALTHY,
            f"This devwardd does not offer {member}.",
            f"It is of another version than this devwardctl; after an upgrade: {unbroken('systemctl restart devward.service')}.",
            name=name,
        )
    if name in UNANSWERED:
        return Failure(ExitStatus.ABSENT, f"devwardd did not answer {member}.", HUNG_ADVICE, name=name)
    if name == DBUS_ERROR + "LimitsExceeded" and member == "Pin" and "pins" in text:
        return Failure(ExitStatus.UNHEALTHY, said, f"Take away what is not wanted any more: {unbroken('devwardctl unpin')}.", name=name)
    if name in _KNOWN:
        status, sentence, advice = _KNOWN[name]
        return Failure(status, sentence or said or f"{member} was refused.", advice, name=name)
    return Failure(ExitStatus.UNHEALTHY, f"{member} failed: {printable(name)}: {said}".rstrip(": "), name=name)
