"""The exceptions of devward, each with a stable code, and the one table from them to D-Bus error names.

An error that reaches a person has one sentence as its text: what is wrong and, where it helps, what to do.
"""

from typing import ClassVar

from devward import names


class DevwardError(Exception):
    """The root of every error that devward raises on purpose."""

    code: ClassVar[str] = "failed"


class ConfigError(DevwardError):
    """A configuration file that is refused; the text names the file, the key and the reason."""

    code = "config-invalid"


class AlreadyRunning(DevwardError):
    """Another devwardd holds the lock."""

    code = "already-running"


class StateError(DevwardError):
    """The state or runtime directory cannot be used, or something cannot be kept there."""

    code = "state-unusable"


class BusError(DevwardError):
    """The message bus cannot be used: not reachable, the name is taken, or the connection is lost."""

    code = "bus-unavailable"


class InvalidArguments(DevwardError):
    """The caller's arguments are wrong; nothing was done."""

    code = "invalid-arguments"


class AccessDenied(DevwardError):
    """The caller may not do this."""

    code = "access-denied"


class InteractionRequired(DevwardError):
    """The caller may do this once an administrator has authenticated, and the message did not allow a prompt."""

    code = "interaction-required"


class NoSuchDevice(DevwardError):
    """No device of that name is known to devward."""

    code = "no-such-device"


class NoSuchSpec(DevwardError):
    """No owned CDI file of that name."""

    code = "no-such-spec"


class NoSuchPin(DevwardError):
    """Nothing of that name is pinned."""

    code = "no-such-pin"


class NoSuchNode(DevwardError):
    """The API server's Node of this host has not that UID, or nothing is known of it."""

    code = "no-such-node"


class NoSuchVnpu(DevwardError):
    """No vNPU has that id and identity: it is not there, or the id is another vNPU's by now."""

    code = "no-such-vnpu"


class NotReady(DevwardError):
    """The first pass over devices and specs is not done yet."""

    code = "not-ready"


class LimitsExceeded(DevwardError):
    """The caller has too many calls outstanding; the same call may be made later."""

    code = "limits-exceeded"


class ConfigRefused(DevwardError):
    """Reload found a configuration that is refused; the old one stays in force."""

    code = "config-refused"


class Stopping(DevwardError):
    """The daemon is stopping and takes no new action."""

    code = "stopping"


#: Exception class to D-Bus error name. A class that is not here is an internal error: the caller gets no detail of it.
DBUS_ERROR_NAMES: dict[type[DevwardError], str] = {
    InvalidArguments: "org.freedesktop.DBus.Error.InvalidArgs",
    AccessDenied: "org.freedesktop.DBus.Error.AccessDenied",
    InteractionRequired: "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
    LimitsExceeded: "org.freedesktop.DBus.Error.LimitsExceeded",
    NoSuchDevice: names.ERROR_PREFIX + "NoSuchDevice",
    NoSuchSpec: names.ERROR_PREFIX + "NoSuchSpec",
    NoSuchPin: names.ERROR_PREFIX + "NoSuchPin",
    NoSuchNode: names.ERROR_PREFIX + "NoSuchNode",
    NoSuchVnpu: names.ERROR_PREFIX + "NoSuchVnpu",
    NotReady: names.ERROR_PREFIX + "NotReady",
    ConfigRefused: names.ERROR_PREFIX + "ConfigRefused",
    Stopping: names.ERROR_PREFIX + "Stopping",
}
INTERNAL_ERROR_NAME = names.ERROR_PREFIX + "Internal"


def dbus_error_name(error: DevwardError) -> str:
    """Return the D-Bus error name of an exception, the nearest class of its ancestry that has one."""
    for ancestor in type(error).__mro__:
        if ancestor in DBUS_ERROR_NAMES:
            return DBUS_ERROR_NAMES[ancestor]
    return INTERNAL_ERROR_NAME
