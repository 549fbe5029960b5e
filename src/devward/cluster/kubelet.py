"""Which process is the kubelet, and where it keeps its files: the one that listens on `device-plugins/kubelet.sock`.

It is looked for in every network namespace, and so in every container: a kubelet in a container starts Pods that the API server of this
node does not know. More than one, or two directories with a checkpoint, and it is not known whose word counts. What is not root's says
nothing: any user can call a process kubelet, and listen at a path that ends as the kubelet's does. In another user namespace a process may
be root's, whatever its user is here.

The directory of device plugins does not follow `--root-dir`. k3s hides its command line, and kubelite takes it from a file; but every
kubelet listens in `<root>/pod-resources`, too. It makes that socket under a temporary name and renames it (pkg/kubelet/util/util_unix.go in
kubernetes/kubernetes), so of its path only the directory counts.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from devward.cluster.evidence import Doubt
from devward.cluster.files import read_all, read_start
from devward.cluster.kubelet_facts import Kubelet, KubeletDoubt, KubeletScan
from devward.cluster.kubelet_signs import CHECKPOINT, PROGRAMS, is_roots
from devward.cluster.rooted import resolve
from devward.cluster.unix_sockets import listening_sockets
from devward.cluster.vantage import reads_everybody

#: `KubeletSocket` in k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/constants.go, where microk8s has a link.
DEFAULT_ROOT: Final = "/var/lib/kubelet"
_PLUGINS: Final = "device-plugins"
_KUBELET: Final = "kubelet"
#: Programs that are nothing else, also while they do not listen.
_ALWAYS: Final = frozenset({_KUBELET, "kubelite"})

#: A listening socket in /proc/PID/net/unix: flags with __SO_ACCEPTCON, type, state, inode and path.
_LISTENING: Final = re.compile(rb"^[0-9a-f]+: [0-9A-F]{8} [0-9A-F]{8} 00010000 [0-9A-F]{4} [0-9A-F]{2} +([0-9]+) (/.*)$", re.MULTILINE)
_PLUGIN_SOCKET: Final = re.compile(r"(/.*/device-plugins)/kubelet\.sock")
_RESOURCES_SOCKET: Final = re.compile(r"(/.*)/pod-resources/[^/]+")
_SOCKET: Final = re.compile(r"socket:\[([0-9]+)\]")

_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH})
_MAX_PROCESSES: Final = 100_000
_MAX_DESCRIPTORS: Final = 100_000
_MAX_SOCKETS_SIZE: Final = 16 * 1024 * 1024
_MAX_COMMAND_LINE: Final = 2 * 1024 * 1024
_NAMED: Final = 20


@dataclass(slots=True)
class _Process:
    pid: int
    started: int
    command: str
    #: Directories of its listening plugin sockets, and roots by those of pod-resources.
    plugins: set[str] = field(default_factory=set)
    roots: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        return f"{self.pid} {self.command}"


class _DoubtError(Exception):
    def __init__(self, code: KubeletDoubt, subject: str, error: int = 0) -> None:
        super().__init__(code)
        self.doubt = Doubt(code, subject, error)


def find_kubelet(proc: str = "/proc", root: str = "/", *, vantage: Callable[[str], Doubt | None] = reads_everybody) -> KubeletScan:
    """Look for the kubelet. Raises nothing for what it finds. Takes a few milliseconds with hundreds of containers; not on the event loop.

    `vantage` tells why processes could stay unseen from here; `root` is the host's root directory.
    """
    if (blind := vantage(proc)) is not None:
        return KubeletScan(None, (blind,))
    scan = _Scan(proc, root)
    try:
        return KubeletScan(scan.run())
    except _DoubtError as error:
        return KubeletScan(None, (error.doubt,))
    except OSError as error:
        return KubeletScan(None, (Doubt(KubeletDoubt.PROCESS_UNREADABLE, proc, error.errno or 0),))


class _Scan:
    def __init__(self, proc: str, root: str) -> None:
        self._proc = proc
        self._root = root.rstrip("/")
        self._commands: dict[int, str] = {}
        #: Processes by network namespace.
        self._spaces: dict[str, list[int]] = {}
        #: Those that hold a plugin socket.
        self._found: dict[int, _Process] = {}
        #: Whether processes are root's, and the sockets of those that were looked at.
        self._are_roots: dict[int, bool] = {}
        self._held: dict[int, set[int]] = {}

    def run(self) -> Kubelet:
        self._list_processes()
        for space in list(self._spaces):
            self._look_for_holders(space, self._listening(space))
        processes = list(self._found.values())
        named = [pid for pid, command in self._commands.items() if command in _ALWAYS and pid not in self._found]
        silent = [f"{pid} {self._commands[pid]}" for pid in named if self._is_roots(pid) and not self._changes_user(pid)]
        if len(processes) > 1:
            raise _DoubtError(KubeletDoubt.SEVERAL, ", ".join(process.text for process in processes[:_NAMED]))
        if silent:
            raise _DoubtError(KubeletDoubt.NOT_LISTENING, ", ".join([*silent, *(process.text for process in processes)][:_NAMED]))
        if not processes:
            raise _DoubtError(KubeletDoubt.NOT_FOUND, self._proc)
        process = processes[0]
        if process.command not in PROGRAMS:
            raise _DoubtError(KubeletDoubt.UNKNOWN_PROGRAM, process.text)
        found = self._described(process)
        if self._started(process.pid) != process.started:
            raise _DoubtError(KubeletDoubt.CHANGED, process.text)
        return found

    # --- who listens ---

    def _list_processes(self) -> None:
        """Take in the names and network namespaces of the processes that were not seen before."""
        names = [name for name in os.listdir(self._proc) if name.isdecimal()]
        if len(names) > _MAX_PROCESSES:
            raise _DoubtError(KubeletDoubt.TOO_MANY_PROCESSES, self._proc)
        for name in names:
            if int(name) in self._commands:
                continue
            try:
                space = os.readlink(f"{self._proc}/{name}/ns/net")
                command = read_start(f"{self._proc}/{name}/comm", 64)
            except OSError as error:
                if error.errno in _GONE:
                    continue
                raise _DoubtError(KubeletDoubt.PROCESS_UNREADABLE, name, error.errno or 0) from None
            self._spaces.setdefault(space, []).append(int(name))
            self._commands[int(name)] = command.removesuffix(b"\n").decode(errors="backslashreplace")

    def _listening(self, space: str) -> dict[int, set[str]]:
        """Return the paths of what listens in one network namespace, by inode; nothing where its last process has ended.

        A socket has one path. More than one: a path with a newline looks like a line about another one's socket.
        """
        found: dict[int, set[str]] = {}
        for inode, path in self._told_by_kernel(space) or self._listed(self._spaces[space]):
            found.setdefault(inode, set()).add(path)
        return found

    def _told_by_kernel(self, space: str) -> list[tuple[int, str]]:
        """Return what listens in our own network namespace, which is the host's, told so that nobody can forge it; nothing: cannot be."""
        with contextlib.suppress(OSError):
            if os.readlink(f"{self._proc}/self/ns/net") == space:
                return listening_sockets()
        return []

    def _listed(self, pids: Iterable[int]) -> Iterator[tuple[int, str]]:
        for pid in pids:
            try:
                text = read_all(f"{self._proc}/{pid}/net/unix", _MAX_SOCKETS_SIZE)
            except OSError as error:
                if error.errno in _GONE:
                    continue
                raise _DoubtError(KubeletDoubt.PROCESS_UNREADABLE, str(pid), error.errno or 0) from None
            for inode, path in _LISTENING.findall(text):
                yield int(inode), os.fsdecode(path)
            return

    def _look_for_holders(self, space: str, listening: dict[int, set[str]]) -> None:
        """Find root's processes of a network namespace that hold a plugin socket of it, with the directories of their sockets.

        A kubelet makes its sockets itself, where it runs, and holds them. What none of root's processes holds is no kubelet's.
        """
        wanted = {inode for inode, paths in listening.items() if any(_PLUGIN_SOCKET.fullmatch(path) for path in paths)}
        for pid in self._candidates(space) if wanted else ():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if not self._is_roots(pid):
                    continue
                process = self._found.get(pid) or _Process(pid, self._started(pid), self._commands[pid])
                held = self._sockets(pid)
                if not held & wanted or not self._works_in(pid, space):
                    continue
                for inode in held & listening.keys():
                    self._take(process, listening[inode])
                wanted -= held
                self._found[pid] = process
            if not wanted:
                return

    def _candidates(self, space: str) -> Iterator[int]:
        """Yield the processes of a network namespace, at last all others and those that came since the first were listed."""
        # Nearly always it is one of the known programs: then nobody else's descriptors are looked at.
        seen = sorted(self._spaces[space], key=lambda pid: self._commands[pid] not in PROGRAMS)
        yield from seen
        self._list_processes()
        yield from sorted(self._commands.keys() - set(seen), key=lambda pid: self._commands[pid] not in PROGRAMS)

    def _works_in(self, pid: int, space: str) -> bool:
        """Tell whether a thread of a process is in a network namespace; the first may be in another for a moment, as k3s sets up Pods."""
        if pid in self._spaces[space]:
            return True
        for task in os.listdir(f"{self._proc}/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if os.readlink(f"{self._proc}/{pid}/task/{task}/ns/net") == space:
                    return True
        return False

    @staticmethod
    def _take(process: _Process, paths: set[str]) -> None:
        if len(paths) > 1:
            raise _DoubtError(KubeletDoubt.HOLDER_UNKNOWN, ", ".join(sorted(paths)[:_NAMED]))
        (path,) = paths
        if plugins := _PLUGIN_SOCKET.fullmatch(path):
            process.plugins.add(plugins[1])
        elif resources := _RESOURCES_SOCKET.fullmatch(path):
            process.roots.add(resources[1])

    def _is_roots(self, pid: int) -> bool:
        """Tell whether a process is root's; one that has ended is nobody's."""
        if pid not in self._are_roots:
            self._are_roots[pid] = self._read_is_roots(pid)
        return self._are_roots[pid]

    def _read_is_roots(self, pid: int) -> bool:
        try:
            return is_roots(f"{self._proc}/{pid}")
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise _DoubtError(KubeletDoubt.PROCESS_UNREADABLE, str(pid), error.errno or 0) from None

    def _changes_user(self, pid: int) -> bool:
        """Tell whether a process is a set-user-ID program: anybody can run such a one as root under any name."""
        try:
            return bool(os.stat(f"{self._proc}/{pid}/exe").st_mode & (stat.S_ISUID | stat.S_ISGID))
        except OSError:
            return False

    def _sockets(self, pid: int) -> set[int]:
        if pid not in self._held:
            self._held[pid] = self._read_sockets(pid)
        return self._held[pid]

    def _read_sockets(self, pid: int) -> set[int]:
        found: set[int] = set()
        directory = f"{self._proc}/{pid}/fd"
        try:
            names = os.listdir(directory)
            if len(names) > _MAX_DESCRIPTORS:
                raise _DoubtError(KubeletDoubt.TOO_MANY_PROCESSES, directory)
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    if socket := _SOCKET.fullmatch(os.readlink(f"{directory}/{name}")):
                        found.add(int(socket[1]))
        except OSError as error:
            if error.errno in _GONE:
                raise
            raise _DoubtError(KubeletDoubt.PROCESS_UNREADABLE, str(pid), error.errno or 0) from None
        return found

    def _started(self, pid: int) -> int:
        """Return when a process was started. FileNotFoundError, ProcessLookupError: it has ended."""
        data = read_start(f"{self._proc}/{pid}/stat", 4096)
        try:
            # The name, which may have anything in it, stands in parentheses; the start time is field 22.
            return int(data[data.rfind(b")") + 2 :].split()[19])
        except (IndexError, ValueError):
            raise _DoubtError(KubeletDoubt.PROCESS_UNREADABLE, str(pid)) from None

    # --- where its files are ---

    def _described(self, process: _Process) -> Kubelet:
        view = f"{self._proc}/{process.pid}/root"
        if len(process.plugins) > 1:
            raise _DoubtError(KubeletDoubt.SEVERAL_CHECKPOINTS, ", ".join(sorted(process.plugins)))
        plugins_name = next(iter(process.plugins))
        try:
            root_name, root = self._root_of(process, view)
            plugins = self._opened(view, plugins_name)
            for name, directory in ((root_name, root), (plugins_name, plugins)):
                _require_roots(name, directory)
            self._require_one_checkpoint(view, plugins_name, root_name)
        except OSError as error:
            if not os.path.lexists(f"{self._proc}/{process.pid}/stat"):
                raise _DoubtError(KubeletDoubt.CHANGED, process.text) from None
            raise _DoubtError(KubeletDoubt.DIRECTORY_UNREADABLE, str(error.filename or view), error.errno or 0) from None
        return Kubelet(process.pid, process.started, process.command, root_name, plugins_name, root, plugins)

    def _root_of(self, process: _Process, view: str) -> tuple[str, str]:
        """Return the name of the root directory, and where it can be opened."""
        names = set(process.roots)
        if process.command == _KUBELET:
            given = _given_root(read_all(f"{self._proc}/{process.pid}/cmdline", _MAX_COMMAND_LINE))
            # A relative one is relative to where the kubelet was started.
            if given is None:
                names.add(DEFAULT_ROOT)
            elif given.startswith("/"):
                names.add(given)
        if not names:
            raise _DoubtError(KubeletDoubt.ROOT_UNKNOWN, process.text)
        if len({_identity(f"{view}{resolve(view, name)}") for name in names}) > 1:
            raise _DoubtError(KubeletDoubt.SEVERAL_ROOTS, ", ".join(sorted(names)))
        name = min(names)
        return name, self._opened(view, name)

    def _opened(self, view: str, name: str) -> str:
        """Return where a directory of the kubelet can be opened: by our own root directory where that is the same one."""
        seen = f"{view}{resolve(view, name)}"
        with contextlib.suppress(OSError):
            own = f"{self._root}{resolve(self._root, name)}"
            if _identity(own) == _identity(seen):
                return own
        return seen

    def _require_one_checkpoint(self, view: str, plugins_name: str, root_name: str) -> None:
        """A kubelet of before, or in another mount namespace, leaves its checkpoint where one would look for it."""
        found = {_identity(f"{view}{resolve(view, plugins_name)}"): f"{plugins_name} (as the kubelet sees it)"}
        for name in dict.fromkeys((plugins_name, f"{root_name}/{_PLUGINS}", f"{DEFAULT_ROOT}/{_PLUGINS}")):
            for base, whose in ((view, " (as the kubelet sees it)"), (self._root, "")):
                try:
                    directory = f"{base}{resolve(base, name)}"
                    os.lstat(f"{directory}/{CHECKPOINT}")
                    found.setdefault(_identity(directory), f"{name}{whose}")
                except (FileNotFoundError, NotADirectoryError):
                    continue
        if len(found) > 1:
            raise _DoubtError(KubeletDoubt.SEVERAL_CHECKPOINTS, ", ".join(found.values()))


def _require_roots(name: str, directory: str) -> None:
    """Doubt a directory in which anybody but root could write a checkpoint: by what is listed as listening alone anybody can name one."""
    facts = os.stat(directory)
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _DoubtError(KubeletDoubt.DIRECTORY_UNSAFE, f"{name}, of uid {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):04o}")


def _identity(directory: str) -> tuple[int, int]:
    facts = os.stat(directory)
    return facts.st_dev, facts.st_ino


def _given_root(command_line: bytes) -> str | None:
    """Return the last `--root-dir` of a command line; None if it has none."""
    given: str | None = None
    words = os.fsdecode(command_line).split("\0")
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--root-dir":
            given = following
        elif word.startswith("--root-dir="):
            given = word.partition("=")[2]
    return given
