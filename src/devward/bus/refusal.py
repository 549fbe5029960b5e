"""Refusals of a call that only D-Bus knows: the object, interface, member or property that it names does not exist or is read-only.

The names are those of the D-Bus specification and libdbus ("org.freedesktop.DBus.Error.*").
"""

from typing import Final

INVALID_ARGS: Final = "org.freedesktop.DBus.Error.InvalidArgs"
UNKNOWN_OBJECT: Final = "org.freedesktop.DBus.Error.UnknownObject"
UNKNOWN_INTERFACE: Final = "org.freedesktop.DBus.Error.UnknownInterface"
UNKNOWN_METHOD: Final = "org.freedesktop.DBus.Error.UnknownMethod"
UNKNOWN_PROPERTY: Final = "org.freedesktop.DBus.Error.UnknownProperty"
PROPERTY_READ_ONLY: Final = "org.freedesktop.DBus.Error.PropertyReadOnly"


class Refusal(Exception):
    """A call is answered with this error name and sentence."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name
        self.text = text
