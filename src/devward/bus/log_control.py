"""org.freedesktop.LogControl1: the daemon's own log level and target, for `systemctl service-log-level` and its like.

The only properties that can be set, by root. Whoever sets one asks for more or fewer log messages; audit records are not affected.
"""

from collections.abc import Callable, Mapping

from devward import names
from devward.bus.backend import LogControl
from devward.bus.contract import Contract
from devward.errors import InvalidArguments
from devward.text import quoted


class LogControlInterface:
    """The properties of the object at names.LOG_CONTROL_PATH."""

    def __init__(self, log_control: LogControl, contract: Contract) -> None:
        self._log_control = log_control
        self._properties = contract.interfaces[names.LOG_CONTROL_INTERFACE].properties

    def values(self) -> Mapping[str, object]:
        """Return the properties as they are now."""
        return {
            "LogLevel": self._log_control.log_level(),
            "LogTarget": self._log_control.log_target(),
            "SyslogIdentifier": names.SYSLOG_IDENTIFIER,
        }

    def setter(self, name: str, value: str) -> Callable[[], None]:
        """Return what sets a writable property. InvalidArguments for a value that it does not take."""
        if value not in self._properties[name].values:
            allowed = ", ".join(sorted(self._properties[name].values))
            raise InvalidArguments(f"{name} cannot be {quoted(value)}; it is one of {allowed}.")
        set_value = self._log_control.set_log_level if name == "LogLevel" else self._log_control.set_log_target
        return lambda: set_value(value)
