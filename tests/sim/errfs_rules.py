"""A file system for tests that fails on demand: the rules, and how an operation is judged by them. `errfs.py` describes them."""

import errno
import fnmatch
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_ATTRIBUTES = ("lookup", "getattr", "statfs", "chmod", "chown", "truncate", "utimens", "setxattr", "getxattr", "listxattr", "removexattr")
_FILES = ("open", "create", "read", "write", "flush", "fsync", "release", "opendir", "readdir", "fsyncdir", "releasedir")
_NAMES = ("rename", "unlink", "rmdir", "mkdir", "mknod", "symlink", "readlink", "link")
OPERATIONS: Final = frozenset([*_ATTRIBUTES, *_FILES, *_NAMES])
#: How often a hanging operation looks whether the rules changed, in seconds.
POLL: Final = 0.005

RuleSource = str | Mapping[str, object]


@dataclass(slots=True)
class Rule:
    """What happens to an operation that it matches."""

    errno: int = 0
    short: int | None = None
    delay: float = 0.0
    hang: bool = False
    match: str = "*"
    #: How often it still applies; None is for ever.
    times: int | None = None

    def applies_to(self, path: str) -> bool:
        """Whether an operation on this path (relative to the mount) is one that the rule is for."""
        return self.times != 0 and (fnmatch.fnmatchcase(path, self.match) or fnmatch.fnmatchcase(path.rpartition("/")[2], self.match))


def parse_rule(operation: str, source: RuleSource) -> Rule:
    """Make a rule of its source; ValueError or TypeError where a name in it is unknown, since such a rule would silently never apply."""
    if operation not in OPERATIONS:
        raise ValueError(f"unknown operation {operation!r}")
    settings: dict[str, Any] = {"errno": source} if isinstance(source, str) else dict(source)
    if "errno" in settings:
        name = settings["errno"]
        if not isinstance(name, str) or not isinstance(getattr(errno, name, None), int):
            raise ValueError(f"unknown errno {name!r}")
        settings["errno"] = getattr(errno, name)
    if "short" in settings and operation != "write":
        raise ValueError("only a write can be short")
    return Rule(**settings)


def parse_rules(source: Mapping[str, RuleSource | Sequence[RuleSource]]) -> dict[str, list[Rule]]:
    """Make the rules of each operation; errors as parse_rule."""
    return {
        operation: [parse_rule(operation, rule) for rule in ([rules] if isinstance(rules, (str, Mapping)) else rules)]
        for operation, rules in source.items()
    }


class Control:
    """The rules in force, read again whenever the control file was replaced, and the log of calls."""

    def __init__(self, control_file: str, calls_file: str, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._file = control_file
        self._sleep = sleep
        self._log = os.open(calls_file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._seen: tuple[int, int] = (0, 0)
        self._rules: dict[str, list[Rule]] = {}

    def _refresh(self) -> None:
        status = os.stat(self._file)
        if (status.st_ino, status.st_mtime_ns) != self._seen:
            with open(self._file, encoding="ascii") as file:
                self._rules = parse_rules(json.load(file))
                status = os.stat(file.fileno())
            self._seen = (status.st_ino, status.st_mtime_ns)

    def _match(self, operation: str, path: str) -> Rule | None:
        self._refresh()
        for rule in self._rules.get(operation, ()):
            if rule.applies_to(path):
                if rule.times is not None:
                    rule.times -= 1
                return rule
        return None

    async def judge(self, operation: str, path: str) -> int | None:
        """Log the operation and do to it what the rules say: raise its error, or return the bytes that a write may take."""
        rule = self._match(operation, path)
        os.write(self._log, (json.dumps([operation, path, _fault_name(rule)]) + "\n").encode())
        while rule is not None and rule.hang:
            seen = self._seen
            while seen == self._seen:
                await self._sleep(POLL)
                self._refresh()
            rule = self._match(operation, path)
        if rule is None:
            return None
        if rule.delay:
            await self._sleep(rule.delay)
        if rule.errno:
            raise OSError(rule.errno, "as the rules say")
        return rule.short


def _fault_name(rule: Rule | None) -> str:
    if rule is None:
        return ""
    if rule.hang:
        return "hang"
    if rule.errno:
        return errno.errorcode[rule.errno]
    return "short" if rule.short is not None else "delay"
