"""Which process is the kubelet, and where it keeps its files: the one that listens on `device-plugins/kubelet.sock`.

It is looked for in every network namespace, and so in every container: a kubelet in a container starts Pods that the API server of this
node does not know. More than one, or two directories with a checkpoint, and it is not known whose word counts.

The directory of device plugins does not follow `--root-dir`. k3s hides its command line, and kubelite takes it from a file; but every
kubelet listens in `<root>/pod-resources`, too. It makes that socket under a temporary name and renames it (pkg/kubelet/util/util_unix.go in
kubernetes/kubernetes), so of its path only the directory counts.
"""

import contextlib
import math
import os
import stat
from collections.abc import Callable
from typing import Final

from devward.cluster.evidence import Doubt
from devward.cluster.files import read_all
from devward.cluster.kubelet_facts import Kubelet, KubeletDoubt, KubeletScan
from devward.cluster.kubelet_search import KUBELET, NAMED, DoubtError, KubeletSearch, Process, started
from devward.cluster.kubelet_signs import CHECKPOINT, PROGRAMS
from devward.cluster.rooted import resolve
from devward.cluster.vantage import reads_everybody

#: `KubeletSocket` in k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/constants.go, where microk8s has a link.
DEFAULT_ROOT: Final = "/var/lib/kubelet"
_PLUGINS: Final = "device-plugins"
_MAX_COMMAND_LINE: Final = 2 * 1024 * 1024


def find_kubelet(
    proc: str = "/proc", root: str = "/", *, vantage: Callable[[str], Doubt | None] = reads_everybody, deadline: float = math.inf
) -> KubeletScan:
    """Look for the kubelet. Raises nothing for what it finds. Takes a few milliseconds with hundreds of containers; not on the event loop.

    `vantage` tells why processes could stay unseen from here; `root` is the host's root directory. What was not found by `deadline`, in
    seconds of the monotonic clock, is in doubt.
    """
    if (blind := vantage(proc)) is not None:
        return KubeletScan(None, (blind,))
    try:
        return KubeletScan(_only_one(proc, root.rstrip("/"), *KubeletSearch(proc, deadline).run()))
    except DoubtError as error:
        return KubeletScan(None, (error.doubt,))
    except OSError as error:
        return KubeletScan(None, (Doubt(KubeletDoubt.PROCESS_UNREADABLE, proc, error.errno or 0),))


def _only_one(proc: str, root: str, processes: list[Process], silent: list[str]) -> Kubelet:
    if len(processes) > 1:
        raise DoubtError(KubeletDoubt.SEVERAL, ", ".join(process.text for process in processes[:NAMED]))
    if silent:
        raise DoubtError(KubeletDoubt.NOT_LISTENING, ", ".join([*silent, *(process.text for process in processes)][:NAMED]))
    if not processes:
        raise DoubtError(KubeletDoubt.NOT_FOUND, proc)
    (process,) = processes
    if process.command not in PROGRAMS:
        raise DoubtError(KubeletDoubt.UNKNOWN_PROGRAM, process.text)
    found = _Places(proc, root, process).found()
    if _has_ended(proc, process):
        raise DoubtError(KubeletDoubt.CHANGED, process.text)
    return found


def _has_ended(proc: str, process: Process) -> bool:
    try:
        return started(proc, process.pid) != process.started
    except (FileNotFoundError, ProcessLookupError):
        return True


class _Places:
    """Where the files of a kubelet are."""

    def __init__(self, proc: str, root: str, process: Process) -> None:
        self._proc = proc
        self._root = root
        self._process = process

    def found(self) -> Kubelet:
        """Return the kubelet with them. DoubtError."""
        process = self._process
        view = f"{self._proc}/{process.pid}/root"
        if len(process.plugins) > 1:
            raise DoubtError(KubeletDoubt.SEVERAL_CHECKPOINTS, ", ".join(sorted(process.plugins)))
        plugins_name = next(iter(process.plugins))
        try:
            root_name, root = self._root_of(view)
            plugins = self._opened(view, plugins_name)
            for name, directory in ((root_name, root), (plugins_name, plugins)):
                _require_roots(name, directory)
            self._require_one_checkpoint(view, plugins_name, root_name)
        except OSError as error:
            if not os.path.lexists(f"{self._proc}/{process.pid}/stat"):
                raise DoubtError(KubeletDoubt.CHANGED, process.text) from None
            raise DoubtError(KubeletDoubt.DIRECTORY_UNREADABLE, str(error.filename or view), error.errno or 0) from None
        return Kubelet(process.pid, process.started, process.command, root_name, plugins_name, root, plugins)

    def _root_of(self, view: str) -> tuple[str, str]:
        """Return the name of the root directory, and where it can be opened."""
        process = self._process
        names = set(process.roots)
        if process.command == KUBELET:
            given = _given_root(read_all(f"{self._proc}/{process.pid}/cmdline", _MAX_COMMAND_LINE))
            # A relative one is relative to where the kubelet was started.
            if given is None:
                names.add(DEFAULT_ROOT)
            elif given.startswith("/"):
                names.add(given)
        if not names:
            raise DoubtError(KubeletDoubt.ROOT_UNKNOWN, process.text)
        if len({_identity(f"{view}{resolve(view, name)}") for name in names}) > 1:
            raise DoubtError(KubeletDoubt.SEVERAL_ROOTS, ", ".join(sorted(names)))
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
            raise DoubtError(KubeletDoubt.SEVERAL_CHECKPOINTS, ", ".join(found.values()))


def _require_roots(name: str, directory: str) -> None:
    """Doubt a directory in which anybody but root could write a checkpoint: by what is listed as listening alone anybody can name one."""
    facts = os.stat(directory)
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DoubtError(KubeletDoubt.DIRECTORY_UNSAFE, f"{name}, of uid {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):04o}")


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
