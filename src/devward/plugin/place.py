"""The directory in which the kubelet and its device plugins meet: what stands there, and a place for a socket of our own.

The kubelet removes every socket there when it starts and makes its own anew (`cleanupPlugins` and `Start` in
pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go of kubernetes/kubernetes), and calls nobody. Every call here may block as long as the
file system does: use a worker thread.
"""

import contextlib
import errno
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterator
from typing import Final

from devward.plugin.sessions import Neighbour, Sight, SocketId
from devward.plugin.status import PluginProblem
from devward.text import printable

KUBELET_SOCKET: Final = "kubelet.sock"
_OWN: Final = re.compile(r"devward-[0-9a-f]{8}\.sock", re.ASCII)
_SOCKET_MODE: Final = 0o600
#: Bytes of a socket's path (unix(7)), its end included.
_MAXIMUM_PATH: Final = 108
_MAXIMUM_NEIGHBOURS: Final = 1000


class PlaceError(Exception):
    """The directory, or the socket in it, cannot be used."""

    def __init__(self, problem: PluginProblem, detail: str = "") -> None:
        """Say which of the plugin's problems it is; `detail` may be foreign text."""
        super().__init__(problem)
        self.problem = problem
        self.detail = printable(detail)


def look(directory: str, own: str) -> Sight:
    """Return what stands in the directory; `own` is the name of our socket, empty while there is none. PlaceError."""
    with _opened(directory) as descriptor:
        return Sight(
            kubelet=_socket(descriptor, KUBELET_SOCKET),
            own=_socket(descriptor, own) if own else None,
            neighbours=tuple(_neighbours(descriptor, own)),
        )


def prepare(directory: str) -> str:
    """Remove sockets that an earlier run left, and return a name for a new one. PlaceError.

    A fresh name each time: a connection that a kubelet still has to the one before cannot be taken for one to this.
    """
    with _opened(directory) as descriptor:
        if os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
            raise PlaceError(PluginProblem.DIRECTORY_READ_ONLY, directory)
        for name in os.listdir(descriptor):
            # Anything else by such a name is not ours, and is left alone.
            if _OWN.fullmatch(name) and _socket(descriptor, name) is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=descriptor)
        name = f"devward-{secrets.token_hex(4)}.sock"
        if len(os.fsencode(f"{directory}/{name}")) >= _MAXIMUM_PATH:
            raise PlaceError(PluginProblem.SOCKET_UNUSABLE, f"{directory}: the path of a socket there is too long")
        try:
            os.lstat(name, dir_fd=descriptor)
        except FileNotFoundError:
            return name
        raise PlaceError(PluginProblem.SOCKET_UNUSABLE, f"{name}: something stands there")


def protect(directory: str, name: str) -> SocketId:
    """Keep everybody but root from a socket that was made just now, and return which one it is. PlaceError.

    Its mode is the umask's work until then; that nobody else can write in the directory is what keeps others from putting one there.
    """
    with _opened(directory) as parent:
        try:
            # The socket itself, held: a plugin that runs as root in a container may put a link in its place at any moment.
            descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            raise PlaceError(PluginProblem.SOCKET_GONE, name) from None
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                raise PlaceError(PluginProblem.SOCKET_GONE, name)
            os.chmod(f"/proc/self/fd/{descriptor}", _SOCKET_MODE)
            return _identity(os.fstat(descriptor))
        finally:
            os.close(descriptor)


def remove(directory: str, name: str, made: SocketId | None) -> None:
    """Remove our socket if it is still the one that we made; None: whichever socket has the name that was ours alone. PlaceError."""
    with _opened(directory) as descriptor:
        found = _socket(descriptor, name)
        if found is not None and made in (None, found):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=descriptor)


def is_live(directory: str, name: str) -> bool:
    """Tell whether somebody listens at a socket; where that cannot be told somebody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.connect(f"{directory}/{name}")
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTDIR, errno.EPROTOTYPE)
    return True


@contextlib.contextmanager
def _opened(directory: str) -> Iterator[int]:
    try:
        # Links on the way are followed: distributions put the kubelet's directory elsewhere that way.
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PlaceError(PluginProblem.DIRECTORY_MISSING, f"{directory}: {os.strerror(error.errno or 0)}") from None
    except OSError as error:
        raise PlaceError(PluginProblem.DIRECTORY_UNREADABLE, f"{directory}: {os.strerror(error.errno or 0)}") from None
    try:
        facts = os.fstat(descriptor)
        if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PlaceError(PluginProblem.DIRECTORY_UNSAFE, f"{directory}: uid {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):04o}")
        yield descriptor
    except OSError as error:
        raise PlaceError(PluginProblem.DIRECTORY_UNREADABLE, f"{directory}: {os.strerror(error.errno or 0)}") from None
    finally:
        os.close(descriptor)


def _socket(descriptor: int, name: str) -> SocketId | None:
    """Return which socket stands there, None for none and for anything else."""
    try:
        facts = os.lstat(name, dir_fd=descriptor)
    except FileNotFoundError:
        return None
    return _identity(facts) if stat.S_ISSOCK(facts.st_mode) else None


def _identity(facts: os.stat_result) -> SocketId:
    # The time too: a file system may give the next socket the same inode number. chmod(2) changes it, once, before it is recorded.
    return SocketId(facts.st_dev, facts.st_ino, facts.st_ctime_ns)


def _neighbours(descriptor: int, own: str) -> Iterator[Neighbour]:
    count = 0
    for name in sorted(os.listdir(descriptor)):
        if name in (own, KUBELET_SOCKET) or _OWN.fullmatch(name):
            continue
        found = _socket(descriptor, name)
        if found is not None and (count := count + 1) <= _MAXIMUM_NEIGHBOURS:
            yield Neighbour(name, found.changed_ns)
