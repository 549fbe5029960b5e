"""Where log messages go and which: standard logging into the journal, with the knobs of org.freedesktop.LogControl1."""

import logging
import sys

from devward.journal import Journal, JournalHandler

#: syslog keywords (syslog(3)) to the levels of the logging module; what it has no word for is the nearest more severe one.
_LEVELS = {
    "emerg": logging.CRITICAL + 20,
    "alert": logging.CRITICAL + 10,
    "crit": logging.CRITICAL,
    "err": logging.ERROR,
    "warning": logging.WARNING,
    "notice": logging.INFO + 5,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}


class Logs:
    """Sets up the root logger, and changes level and target while it runs."""

    def __init__(self, journal: Journal, level: str) -> None:
        """Log to the journal from now on, messages of `level` (a syslog keyword) and more important ones."""
        self._root = logging.getLogger()
        self._journal_handler = JournalHandler(journal)
        self._handler: logging.Handler = self._journal_handler
        self._level = level
        self._target = "journal"
        self._root.handlers[:] = [self._handler]
        self.set_log_level(level)

    def log_level(self) -> str:
        """Return the least important level that is logged."""
        return self._level

    def set_log_level(self, level: str) -> None:
        """Set the level to a syslog keyword."""
        self._level = level
        self._root.setLevel(_LEVELS[level])

    def log_target(self) -> str:
        """Return where messages go: journal or console."""
        return self._target

    def set_log_target(self, target: str) -> None:
        """Send messages to the journal (also for `auto`) or to stderr (`console`). Audit records always go to the journal."""
        self._target = "console" if target == "console" else "journal"
        self._root.removeHandler(self._handler)
        self._handler = logging.StreamHandler(sys.stderr) if self._target == "console" else self._journal_handler
        self._root.addHandler(self._handler)
