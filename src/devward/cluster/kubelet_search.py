"""Which of root's processes listen as a kubelet does, in every network namespace, and which are called a kubelet and do not listen.

Each process is listed once, and each one's descriptors are read once, however many network namespaces there are; and others' than root's
never: what is not root's says nothing, for any user can call a process kubelet, and listen at a path that ends as the kubelet's does.
"""

import contextlib
import errno
import math
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from devward.cluster.evidence import Doubt
from devward.cluster.files import read_all, read_start
from devward.cluster.kubelet_facts import KubeletDoubt
from devward.cluster.kubelet_signs import PROGRAMS
from devward.cluster.process_users import Users, is_roots, users_of
from devward.cluster.unix_sockets import listening_sockets

KUBELET: Final = "kubelet"
#: Programs that are nothing else, also while they do not listen.
_ALWAYS: Final = frozenset({KUBELET, "kubelite"})

#: A listening socket in /proc/PID/net/unix: flags with __SO_ACCEPTCON, type, state, inode and path.
_LISTENING: Final = re.compile(rb"^[0-9a-f]+: [0-9A-F]{8} [0-9A-F]{8} 00010000 [0-9A-F]{4} [0-9A-F]{2} +([0-9]+) (/.*)$", re.MULTILINE)
_PLUGIN_SOCKET: Final = re.compile(r"(/.*/device-plugins)/kubelet\.sock")
_RESOURCES_SOCKET: Final = re.compile(r"(/.*)/pod-resources/[^/]+")
_SOCKET: Final = re.compile(r"socket:\[([0-9]+)\]")

GONE: Final = frozenset({errno.ENOENT, errno.ESRCH})
_MAX_PROCESSES: Final = 100_000
_MAX_DESCRIPTORS: Final = 100_000
_MAX_SOCKETS_SIZE: Final = 16 * 1024 * 1024
#: Names in a subject.
NAMED: Final = 20


@dataclass(slots=True)
class Process:
    """A process that holds a kubelet's socket."""

    pid: int
    #: Clock ticks since boot.
    started: int
    command: str
    #: Directories of its listening plugin sockets, and roots by those of pod-resources.
    plugins: set[str] = field(default_factory=set)
    roots: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        """For a subject."""
        return f"{self.pid} {self.command}"


class DoubtError(Exception):
    """Which process is the kubelet is not known."""

    def __init__(self, code: KubeletDoubt, subject: str, error: int = 0) -> None:
        super().__init__(code)
        self.doubt = Doubt(code, subject, error)


class KubeletSearch:
    """One search."""

    def __init__(self, proc: str, deadline: float = math.inf) -> None:
        """`deadline` is by the monotonic clock, in seconds."""
        self._proc = proc
        self._deadline = deadline
        self._commands: dict[int, str] = {}
        #: Processes by network namespace, and what listens there: paths by inode.
        self._spaces: dict[str, list[int]] = {}
        self._listening: dict[str, dict[int, set[str]]] = {}
        #: Whose processes are; None: another user's.
        self._users: dict[int, Users | None] = {}

    def run(self) -> tuple[list[Process], list[str]]:
        """Return those that hold a plugin socket, and those, for people, that do not and yet are kubelets by name. DoubtError, OSError."""
        self._list_processes()
        while unseen := self._spaces.keys() - self._listening.keys():
            for space in unseen:
                self._listening[space] = self._listed(space)
        found = self._holders()
        named = [pid for pid, command in self._commands.items() if command in _ALWAYS and pid not in found]
        silent = [f"{pid} {self._commands[pid]}" for pid in named if self._roots_users(pid) and not self._changes_user(pid)]
        return list(found.values()), silent

    # --- what listens ---

    def _list_processes(self) -> None:
        """Take in the names and network namespaces of the processes that were not seen before."""
        names = [name for name in os.listdir(self._proc) if name.isdecimal()]
        if len(names) > _MAX_PROCESSES:
            raise DoubtError(KubeletDoubt.TOO_MANY_PROCESSES, self._proc)
        for name in names:
            if int(name) in self._commands:
                continue
            self._keep_time()
            try:
                space = os.readlink(f"{self._proc}/{name}/ns/net")
                command = read_start(f"{self._proc}/{name}/comm", 64)
            except OSError as error:
                if error.errno in GONE:
                    continue
                raise DoubtError(KubeletDoubt.PROCESS_UNREADABLE, name, error.errno or 0) from None
            self._spaces.setdefault(space, []).append(int(name))
            self._commands[int(name)] = command.removesuffix(b"\n").decode(errors="backslashreplace")

    def _listed(self, space: str) -> dict[int, set[str]]:
        """Return the paths of what listens in one network namespace, by inode; nothing where its last process has ended.

        A socket has one path. More than one: a path with a newline looks like a line about another one's socket.
        """
        found: dict[int, set[str]] = {}
        for inode, path in self._told_by_kernel(space) or self._told_by_processes(space):
            found.setdefault(inode, set()).add(path)
        return found

    def _told_by_kernel(self, space: str) -> list[tuple[int, str]]:
        """Return what listens in our own network namespace, which is the host's, told so that nobody can forge it; nothing: cannot be."""
        with contextlib.suppress(OSError):
            if os.readlink(f"{self._proc}/self/ns/net") == space:
                return listening_sockets()
        return []

    def _told_by_processes(self, space: str) -> list[tuple[int, str]]:
        for pid in tuple(self._spaces[space]):
            self._keep_time()
            try:
                text = read_all(f"{self._proc}/{pid}/net/unix", _MAX_SOCKETS_SIZE)
                now = os.readlink(f"{self._proc}/{pid}/ns/net")
            except OSError as error:
                if error.errno in GONE:
                    continue
                raise DoubtError(KubeletDoubt.PROCESS_UNREADABLE, str(pid), error.errno or 0) from None
            if now == space:
                return [(int(inode), os.fsdecode(path)) for inode, path in _LISTENING.findall(text)]
            # It has gone over to another one, whose list this is.
            self._spaces.setdefault(now, []).append(pid)
        return []

    # --- who holds it ---

    def _holders(self) -> dict[int, Process]:
        """Return root's processes that hold a plugin socket of the network namespace that they work in, by id.

        A kubelet makes its sockets itself, where it runs, and holds them. What none of root's processes holds is no kubelet's.
        """
        found: dict[int, Process] = {}
        #: Where they are listed: anybody may list another one's inode in a network namespace of their own.
        wanted: dict[int, set[str]] = {}
        for space, listening in self._listening.items():
            for inode in (inode for inode, paths in listening.items() if any(_PLUGIN_SOCKET.fullmatch(path) for path in paths)):
                wanted.setdefault(inode, set()).add(space)
        for pid in self._candidates() if wanted else ():
            self._keep_time()
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if (users := self._roots_users(pid)) is None:
                    continue
                start, held = started(self._proc, pid), self._sockets(pid)
                for inode in [inode for inode in held.keys() & wanted.keys() if self._made(pid, held[inode], users)]:
                    for space in [space for space in wanted[inode] if self._works_in(pid, space)]:
                        self._take_all(found.setdefault(pid, Process(pid, start, self._commands[pid])), held.keys(), space)
                        del wanted[inode]
                        break
            if not wanted:
                break
        return found

    def _take_all(self, process: Process, held: Set[int], space: str) -> None:
        """Take in the directories of all sockets that a process holds in a network namespace."""
        listening = self._listening[space]
        for inode in held & listening.keys():
            _take(process, listening[inode])

    def _candidates(self) -> Iterator[int]:
        """Yield all processes, at last those that came since the first were listed."""
        # Nearly always it is one of the known programs: then nobody else's descriptors are looked at.
        seen = self._known_first(self._commands)
        yield from seen
        self._list_processes()
        yield from self._known_first(self._commands.keys() - set(seen))

    def _known_first(self, pids: Iterable[int]) -> list[int]:
        return sorted(pids, key=lambda pid: (self._commands[pid] not in PROGRAMS, pid))

    def _works_in(self, pid: int, space: str) -> bool:
        """Tell whether a thread of a process is in a network namespace; the first may be in another for a moment, as k3s sets up Pods."""
        if pid in self._spaces[space]:
            return True
        for task in os.listdir(f"{self._proc}/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if os.readlink(f"{self._proc}/{pid}/task/{task}/ns/net") == space:
                    return True
        return False

    def _made(self, pid: int, descriptor: str, users: Users) -> bool:
        """Tell whether a socket that a process holds was made by root, or by the process's own users: anybody can have root hold theirs.

        A socket is of the user who made it (`sock_alloc` in net/socket.c of the kernel).
        """
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return os.stat(f"{self._proc}/{pid}/fd/{descriptor}").st_uid in users
        return False

    def _roots_users(self, pid: int) -> Users | None:
        """Return root's users as a process of root's has them; None for another user's, and for one that has ended."""
        if pid not in self._users:
            self._users[pid] = self._read_users(pid)
        return self._users[pid]

    def _read_users(self, pid: int) -> Users | None:
        process = f"{self._proc}/{pid}"
        try:
            return users_of(process) | {0, os.geteuid()} if is_roots(process) else None
        except OSError as error:
            if error.errno in GONE:
                return None
            raise DoubtError(KubeletDoubt.PROCESS_UNREADABLE, str(pid), error.errno or 0) from None

    def _changes_user(self, pid: int) -> bool:
        """Tell whether a process is a set-user-ID program: anybody can run such a one as root under any name."""
        try:
            return bool(os.stat(f"{self._proc}/{pid}/exe").st_mode & (stat.S_ISUID | stat.S_ISGID))
        except OSError:
            return False

    def _sockets(self, pid: int) -> Mapping[int, str]:
        """Return the sockets of a process, by inode, with a descriptor of each."""
        found: dict[int, str] = {}
        directory = f"{self._proc}/{pid}/fd"
        try:
            names = [name for name in os.listdir(directory) if name.isdecimal()]
            if len(names) > _MAX_DESCRIPTORS:
                raise DoubtError(KubeletDoubt.TOO_MANY_PROCESSES, directory)
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    if socket := _SOCKET.fullmatch(os.readlink(f"{directory}/{name}")):
                        found[int(socket[1])] = name
        except OSError as error:
            if error.errno in GONE:
                raise
            raise DoubtError(KubeletDoubt.PROCESS_UNREADABLE, str(pid), error.errno or 0) from None
        return found

    def _keep_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise DoubtError(KubeletDoubt.OUT_OF_TIME, self._proc)


def started(proc: str, pid: int) -> int:
    """Return when a process was started, in clock ticks since boot. FileNotFoundError, ProcessLookupError: it has ended. DoubtError."""
    data = read_start(f"{proc}/{pid}/stat", 4096)
    try:
        # The name, which may have anything in it, stands in parentheses; the start time is field 22.
        return int(data[data.rfind(b")") + 2 :].split()[19])
    except (IndexError, ValueError):
        raise DoubtError(KubeletDoubt.PROCESS_UNREADABLE, str(pid)) from None


def _take(process: Process, paths: set[str]) -> None:
    if len(paths) > 1:
        raise DoubtError(KubeletDoubt.HOLDER_UNKNOWN, ", ".join(sorted(paths)[:NAMED]))
    (path,) = paths
    if plugins := _PLUGIN_SOCKET.fullmatch(path):
        process.plugins.add(plugins[1])
    elif resources := _RESOURCES_SOCKET.fullmatch(path):
        process.roots.add(resources[1])
