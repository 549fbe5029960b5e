"""Which of root's processes listen as a kubelet does, in every network namespace, and which are called a kubelet and do not listen.

Each process is listed once, and each one's descriptors are read once, however many network namespaces there are; and others' than root's
never: what is not root's says nothing, for any user can call a process kubelet, and listen at a path that ends as the kubelet's does. So
what listens is asked only in network namespaces in which a process of root's works.

A process of the programs that are kubelets is in the network namespaces of all its threads: the first thread of k3s may be in a Pod's for
a moment, which it sets up.
"""

import contextlib
import errno
import functools
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, TypeVar

from devward.cluster.evidence import Doubt
from devward.cluster.files import read_all, read_start
from devward.cluster.kubelet_facts import KubeletDoubt
from devward.cluster.kubelet_signs import PROGRAMS
from devward.cluster.process_users import Users, roots_users
from devward.cluster.unix_sockets import listening_sockets

KUBELET: Final = "kubelet"
#: Programs that are nothing else, also while they do not listen.
_ALWAYS: Final = frozenset({KUBELET, "kubelite"})

#: A listening socket in /proc/PID/net/unix: flags with __SO_ACCEPTCON, type, state, inode and path.
_LISTENING: Final = re.compile(rb"^[0-9a-f]+: [0-9A-F]{8} [0-9A-F]{8} 00010000 [0-9A-F]{4} [0-9A-F]{2} +([0-9]+) (/.*)$", re.MULTILINE)
_PLUGIN_SOCKET: Final = re.compile(r"(/.*/device-plugins)/kubelet\.sock")
_RESOURCES_SOCKET: Final = re.compile(r"(/.*)/pod-resources/[^/]+")
_SOCKET: Final = re.compile(r"socket:\[([0-9]+)\]")

T = TypeVar("T")

_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH})
#: What the kernel says, besides, of a process that was reaped since its directory was found (fs/proc/base.c, fs/proc/namespaces.c).
_REAPED: Final = frozenset({errno.EACCES, errno.EPERM})
_MAX_PROCESSES: Final = 100_000
_MAX_DESCRIPTORS: Final = 100_000
_MAX_SOCKETS_SIZE: Final = 16 * 1024 * 1024
#: How often processes may be seen to go over to another network namespace.
_MAX_MOVES: Final = 1000
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
        #: Tasks by network namespace, as paths below /proc that begin with the process; and what listens there: paths by inode.
        self._spaces: dict[str, list[str]] = {}
        self._listening: dict[str, dict[int, set[str]]] = {}
        #: Who was seen in a network namespace at any time.
        self._seen: dict[str, set[int]] = {}
        #: Root's tasks that went over to another network namespace meanwhile, and how often that was seen.
        self._movers: set[str] = set()
        self._moves = 0
        #: Whose processes are; None: another user's.
        self._users: dict[int, Users | None] = {}

    def run(self) -> tuple[list[Process], list[str]]:
        """Return those that hold a plugin socket, and those, for people, that do not and yet are kubelets by name. DoubtError, OSError."""
        self._list_processes()
        while unlisted := self._unlisted():
            for space in unlisted:
                self._list_sockets(space)
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
            if (command := self._of(name, functools.partial(read_start, f"{self._proc}/{name}/comm", 64))) is None:
                continue
            self._commands[int(name)] = command.removesuffix(b"\n").decode(errors="backslashreplace")
            for task in (name, *self._threads(int(name))):
                if (space := self._space_of(task)) is not None:
                    self._see(task, space)

    def _threads(self, pid: int) -> list[str]:
        """Return the threads of a process that is a kubelet by its name; none of others'."""
        if self._commands[pid] not in PROGRAMS:
            return []
        return [f"{pid}/task/{thread}" for thread in self._of(str(pid), lambda: os.listdir(f"{self._proc}/{pid}/task")) or ()]

    def _space_of(self, task: str) -> str | None:
        return self._of(task, lambda: os.readlink(f"{self._proc}/{task}/ns/net"))

    def _of(self, task: str, read: Callable[[], T]) -> T | None:
        """Return what is read of a task; None: it has ended. DoubtError: it cannot be read."""
        try:
            return read()
        except OSError as error:
            if error.errno in _GONE or (error.errno in _REAPED and not os.path.lexists(f"{self._proc}/{task}")):
                return None
            raise DoubtError(KubeletDoubt.PROCESS_UNREADABLE, task, error.errno or 0) from None

    def _unlisted(self) -> list[str]:
        """Return the network namespaces that are still to be listed, those too to which a task went back that was seen to leave."""
        for task in tuple(self._movers):
            self._keep_time()
            space = self._space_of(task)
            if space is not None and space not in self._listening and task not in self._spaces.get(space, ()):
                self._moved(task, space)
        return [space for space, tasks in self._spaces.items() if tasks and space not in self._listening]

    def _list_sockets(self, space: str) -> None:
        """Take in the paths of what listens in one network namespace, by inode; nothing where none of root's works, or the last has ended.

        A socket has one path. More than one: a path with a newline looks like a line about another one's socket.
        """
        if all(self._roots_users(_pid(task)) is None for task in self._spaces[space]):
            self._listening[space] = {}
            return
        listed = self._told_by_kernel(space) or self._told_by_tasks(space)
        if listed is not None:
            found = self._listening[space] = {}
            for inode, path in listed:
                found.setdefault(inode, set()).add(path)

    def _told_by_kernel(self, space: str) -> list[tuple[int, str]]:
        """Return what listens in our own network namespace, which is the host's, told so that nobody can forge it; nothing: cannot be."""
        with contextlib.suppress(OSError):
            if os.readlink(f"{self._proc}/self/ns/net") == space:
                return listening_sockets()
        return []

    def _told_by_tasks(self, space: str) -> list[tuple[int, str]] | None:
        """Return what listens in a network namespace as one of its tasks sees it; None: none of them is there any more."""
        while self._spaces[space]:
            self._keep_time()
            task = self._spaces[space][0]
            text = self._sockets_seen_by(task)
            now = self._space_of(task)
            if text is not None and now == space:
                return [(int(inode), os.fsdecode(path)) for inode, path in _LISTENING.findall(text)]
            self._spaces[space].pop(0)
            if now is not None:
                # It has gone over to another one, and what was read may be of that; or that one has ended, and it is in a third.
                self._moved(task, now)
        return None

    def _sockets_seen_by(self, task: str) -> bytes | None:
        path = f"{self._proc}/{task}/net/unix"
        try:
            return read_all(path, _MAX_SOCKETS_SIZE)
        except OSError as error:
            # The network namespace ended since the file was found (`seq_open_net` in fs/proc/proc_net.c).
            if error.errno == errno.ENXIO or error.errno in _GONE:
                return None
            raise DoubtError(KubeletDoubt.PROCESS_UNREADABLE, task, error.errno or 0) from None

    def _see(self, task: str, space: str) -> None:
        self._spaces.setdefault(space, []).append(task)
        self._seen.setdefault(space, set()).add(_pid(task))

    def _moved(self, task: str, space: str) -> None:
        self._see(task, space)
        # Others' say nothing, wherever they go.
        if self._roots_users(_pid(task)) is None:
            return
        self._movers.add(task)
        self._moves += 1
        if self._moves > _MAX_MOVES:
            raise DoubtError(KubeletDoubt.CHANGED, task)
        if not self._listening.get(space):
            # It may not have been looked at, as none of root's worked there.
            self._listening.pop(space, None)

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
            if (users := self._roots_users(pid)) is None or (
                start := self._of(str(pid), functools.partial(started, self._proc, pid))
            ) is None:
                continue
            if held := self._sockets(pid):
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
        if pid in self._seen[space]:
            return True
        threads = self._of(str(pid), lambda: os.listdir(f"{self._proc}/{pid}/task")) or ()
        return any(self._space_of(f"{pid}/task/{thread}") == space for thread in threads)

    def _made(self, pid: int, descriptor: str, users: Users) -> bool:
        """Tell whether a socket that a process holds was made by root, or by the process's own users: anybody can have root hold theirs.

        A socket is of the user who made it (`sock_alloc` in net/socket.c of the kernel).
        """
        facts = self._of(str(pid), lambda: os.stat(f"{self._proc}/{pid}/fd/{descriptor}"))
        return facts is not None and facts.st_uid in users

    def _roots_users(self, pid: int) -> Users | None:
        """Return root's users as a process of root's has them; None for another user's, and for one that has ended."""
        if pid not in self._users:
            self._users[pid] = self._read_users(pid)
        return self._users[pid]

    def _read_users(self, pid: int) -> Users | None:
        users = self._of(str(pid), lambda: roots_users(f"{self._proc}/{pid}"))
        return None if users is None else users | {0, os.geteuid()}

    def _changes_user(self, pid: int) -> bool:
        """Tell whether a process is a set-user-ID program: anybody can run such a one as root under any name."""
        try:
            return bool(os.stat(f"{self._proc}/{pid}/exe").st_mode & (stat.S_ISUID | stat.S_ISGID))
        except OSError:
            return False

    def _sockets(self, pid: int) -> Mapping[int, str]:
        """Return the sockets of a process, by inode, with a descriptor of each; none of one that has ended."""
        found: dict[int, str] = {}
        directory = f"{self._proc}/{pid}/fd"
        names = [name for name in self._of(str(pid), lambda: os.listdir(directory)) or () if name.isdecimal()]
        if len(names) > _MAX_DESCRIPTORS:
            raise DoubtError(KubeletDoubt.TOO_MANY_PROCESSES, directory)
        for name in names:
            link = self._of(str(pid), functools.partial(os.readlink, f"{directory}/{name}"))
            if link is not None and (socket := _SOCKET.fullmatch(link)):
                found[int(socket[1])] = name
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


def _pid(task: str) -> int:
    return int(task.partition("/")[0])


def _take(process: Process, paths: set[str]) -> None:
    if len(paths) > 1:
        raise DoubtError(KubeletDoubt.HOLDER_UNKNOWN, ", ".join(sorted(paths)[:NAMED]))
    (path,) = paths
    if plugins := _PLUGIN_SOCKET.fullmatch(path):
        process.plugins.add(plugins[1])
    elif resources := _RESOURCES_SOCKET.fullmatch(path):
        process.roots.add(resources[1])
