"""A file system for tests that fails on demand: the FUSE server. `errfs.py` starts it and describes the rules.

Arguments: backing directory, mount point, control file, call log. It writes `mounted` once it is, and ends, unmounting lazily, when its
standard input does.

A node is an O_PATH descriptor of the backing file, numbered by the backing inode: that holds through renames and unlinks, and a number
is not given again while the kernel still knows the old file.
"""

import contextlib
import ctypes
import errno
import functools
import os
import stat
import sys
from dataclasses import dataclass
from typing import Any

import pyfuse3  # type: ignore[import-not-found, import-untyped, unused-ignore]  # Debian's package is not where the linters are
import trio  # type: ignore[import-not-found, import-untyped, unused-ignore]  # same

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from errfs_rules import Control

#: Open flags that the kernel acts on itself: with O_APPEND a pwrite would ignore its offset, and buffers are not aligned for O_DIRECT.
KERNEL_FLAGS = os.O_APPEND | os.O_DIRECT


@dataclass(slots=True)
class Node:
    """A file that the kernel knows."""

    fd: int
    lookups: int = 0


def _rename(old_parent: int, old: bytes, new_parent: int, new: bytes, flags: int) -> None:
    if not flags:
        os.rename(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent)
    elif ctypes.CDLL(None, use_errno=True).renameat2(old_parent, old, new_parent, new, flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def _direct(fd: int) -> Any:
    return pyfuse3.FileInfo(fh=fd, direct_io=True, keep_cache=False)


def _operation(method: Any) -> Any:
    """Answer the kernel with the errno of an operation on the backing directory that failed."""

    @functools.wraps(method)
    async def operation(*arguments: Any) -> Any:
        try:
            return await method(*arguments)
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from error

    return operation


class Passthrough(pyfuse3.Operations):  # type: ignore[misc, unused-ignore]  # no types where pyfuse3 is not installed
    """Every operation: judge it, then do it to the backing directory."""

    enable_writeback_cache = False

    def __init__(self, backing: str, control: Control) -> None:
        super().__init__()
        self._control = control
        root = os.open(backing, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._root_path = os.readlink(f"/proc/self/fd/{root}")
        self._device = os.stat(root).st_dev
        self._nodes = {pyfuse3.ROOT_INODE: Node(root, 1)}
        #: Names of an open directory as they were when reading it began.
        self._listings: dict[int, tuple[bytes, ...]] = {}

    # --- nodes and paths ---

    def _fd(self, inode: int) -> int:
        return self._nodes[inode].fd

    def _open_path(self, inode: int) -> str:
        return f"/proc/self/fd/{self._fd(inode)}"

    def _path(self, fd: int, name: bytes = b"") -> str:
        """Where a descriptor is now, relative to the backing directory."""
        target = os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)").removeprefix(self._root_path).strip("/")
        return "/".join(part for part in (target, os.fsdecode(name)) if part)

    async def _judge(self, operation: str, fd: int, name: bytes = b"") -> int | None:
        return await self._control.judge(operation, self._path(fd, name))

    def _attributes(self, fd: int, inode: int = 0) -> Any:
        status = os.stat(fd)
        attributes = pyfuse3.EntryAttributes()
        for field in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_rdev", "st_size", "st_atime_ns", "st_mtime_ns", "st_ctime_ns"):
            setattr(attributes, field, getattr(status, field))
        attributes.st_ino = inode or status.st_ino
        attributes.st_blksize = status.st_blksize
        attributes.st_blocks = status.st_blocks
        attributes.generation = 0
        attributes.entry_timeout = 0
        attributes.attr_timeout = 0
        return attributes

    def _know(self, parent: int, name: bytes) -> Any:
        """Take one reference to a child for the kernel and return its attributes."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        status = os.stat(fd)
        if status.st_dev != self._device:
            os.close(fd)
            raise OSError(errno.EXDEV, "another file system is mounted in the backing directory")
        node = self._nodes.setdefault(status.st_ino, Node(fd))
        if node.fd != fd:
            os.close(fd)
        node.lookups += 1
        return self._attributes(node.fd)

    def _own(self, parent: int, name: bytes, ctx: Any) -> Any:
        """Give a new child to the caller, who only root's server stands in for, and know it."""
        if os.geteuid() == 0:
            parent_status = os.stat(parent)
            gid = parent_status.st_gid if parent_status.st_mode & stat.S_ISGID else ctx.gid
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            os.chown(name, ctx.uid, gid, dir_fd=parent, follow_symlinks=False)
            if mode & (stat.S_ISUID | stat.S_ISGID) and not stat.S_ISLNK(mode):  # chown took them away
                os.chmod(name, stat.S_IMODE(mode), dir_fd=parent)
        return self._know(parent, name)

    @_operation
    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> Any:
        parent = self._fd(parent_inode)
        await self._judge("lookup", parent, name)
        return self._know(parent, name)

    @_operation
    async def forget(self, inode_list: list[tuple[int, int]]) -> None:
        for inode, count in inode_list:
            node = self._nodes[inode]
            node.lookups -= count
            if node.lookups <= 0 and inode != pyfuse3.ROOT_INODE:
                os.close(node.fd)
                del self._nodes[inode]

    # --- attributes ---

    @_operation
    async def getattr(self, inode: int, ctx: Any) -> Any:
        await self._judge("getattr", self._fd(inode))
        return self._attributes(self._fd(inode), inode)

    @_operation
    async def setattr(self, inode: int, attr: Any, fields: Any, fh: int | None, ctx: Any) -> Any:
        fd = self._fd(inode)
        path = self._open_path(inode)
        if fields.update_size:
            await self._judge("truncate", fd)
            os.truncate(path if fh is None else fh, attr.st_size)
        if fields.update_uid or fields.update_gid:
            await self._judge("chown", fd)
            os.chown(path, attr.st_uid if fields.update_uid else -1, attr.st_gid if fields.update_gid else -1)
        if fields.update_mode:
            await self._judge("chmod", fd)
            os.chmod(path, stat.S_IMODE(attr.st_mode))
        if fields.update_atime or fields.update_mtime:
            if not fields.update_size:
                await self._judge("utimens", fd)
            now = os.stat(fd)
            atime = attr.st_atime_ns if fields.update_atime else now.st_atime_ns
            mtime = attr.st_mtime_ns if fields.update_mtime else now.st_mtime_ns
            os.utime(path, ns=(atime, mtime))
        return self._attributes(fd, inode)

    @_operation
    async def statfs(self, ctx: Any) -> Any:
        root = self._fd(pyfuse3.ROOT_INODE)
        await self._judge("statfs", root)
        source = os.statvfs(root)
        result = pyfuse3.StatvfsData()
        for field in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail", "f_namemax"):
            setattr(result, field, getattr(source, field))
        return result

    @_operation
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: Any) -> None:
        await self._judge("setxattr", self._fd(inode))
        os.setxattr(self._open_path(inode), name, value)

    @_operation
    async def getxattr(self, inode: int, name: bytes, ctx: Any) -> bytes:
        await self._judge("getxattr", self._fd(inode))
        return os.getxattr(self._open_path(inode), name)

    @_operation
    async def listxattr(self, inode: int, ctx: Any) -> list[bytes]:
        await self._judge("listxattr", self._fd(inode))
        return [os.fsencode(name) for name in os.listxattr(self._open_path(inode))]

    @_operation
    async def removexattr(self, inode: int, name: bytes, ctx: Any) -> None:
        await self._judge("removexattr", self._fd(inode))
        os.removexattr(self._open_path(inode), name)

    # --- names ---

    @_operation
    async def readlink(self, inode: int, ctx: Any) -> bytes:
        await self._judge("readlink", self._fd(inode))
        return os.readlink(b"", dir_fd=self._fd(inode))

    @_operation
    async def mkdir(self, parent_inode: int, name: bytes, mode: int, ctx: Any) -> Any:
        parent = self._fd(parent_inode)
        await self._judge("mkdir", parent, name)
        os.mkdir(name, stat.S_IMODE(mode), dir_fd=parent)
        return self._own(parent, name, ctx)

    @_operation
    async def mknod(self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: Any) -> Any:
        parent = self._fd(parent_inode)
        await self._judge("mknod", parent, name)
        os.mknod(name, mode, rdev, dir_fd=parent)
        return self._own(parent, name, ctx)

    @_operation
    async def symlink(self, parent_inode: int, name: bytes, target: bytes, ctx: Any) -> Any:
        parent = self._fd(parent_inode)
        await self._judge("symlink", parent, name)
        os.symlink(target, name, dir_fd=parent)
        return self._own(parent, name, ctx)

    @_operation
    async def link(self, inode: int, new_parent_inode: int, new_name: bytes, ctx: Any) -> Any:
        parent = self._fd(new_parent_inode)
        await self._judge("link", parent, new_name)
        os.link(self._open_path(inode), new_name, dst_dir_fd=parent, follow_symlinks=True)
        return self._know(parent, new_name)

    @_operation
    async def unlink(self, parent_inode: int, name: bytes, ctx: Any) -> None:
        parent = self._fd(parent_inode)
        await self._judge("unlink", parent, name)
        os.unlink(name, dir_fd=parent)

    @_operation
    async def rmdir(self, parent_inode: int, name: bytes, ctx: Any) -> None:
        parent = self._fd(parent_inode)
        await self._judge("rmdir", parent, name)
        os.rmdir(name, dir_fd=parent)

    @_operation
    async def rename(self, parent_inode_old: int, name_old: bytes, parent_inode_new: int, name_new: bytes, flags: int, ctx: Any) -> None:
        old_parent = self._fd(parent_inode_old)
        await self._judge("rename", old_parent, name_old)
        _rename(old_parent, name_old, self._fd(parent_inode_new), name_new, flags)

    # --- files: a handle is a descriptor of the backing file ---

    @_operation
    async def open(self, inode: int, flags: int, ctx: Any) -> Any:
        await self._judge("open", self._fd(inode))
        return _direct(os.open(self._open_path(inode), flags & ~(os.O_NOFOLLOW | KERNEL_FLAGS) | os.O_CLOEXEC))

    @_operation
    async def create(self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: Any) -> Any:
        parent = self._fd(parent_inode)
        await self._judge("create", parent, name)
        server_flags = flags & ~KERNEL_FLAGS | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(name, server_flags | os.O_CREAT | os.O_EXCL, stat.S_IMODE(mode), dir_fd=parent)
        except FileExistsError:  # made in the backing directory since the kernel looked
            if flags & os.O_EXCL:
                raise
            return _direct(os.open(name, server_flags & ~os.O_CREAT, dir_fd=parent)), self._know(parent, name)
        return _direct(fd), self._own(parent, name, ctx)

    @_operation
    async def read(self, fh: int, off: int, size: int) -> bytes:
        await self._judge("read", fh)
        return os.pread(fh, size, off)

    @_operation
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        limit = await self._judge("write", fh)
        return os.pwrite(fh, buf[:limit], off)

    @_operation
    async def flush(self, fh: int) -> None:
        await self._judge("flush", fh)

    @_operation
    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._judge("fsync", fh)
        os.fsync(fh)

    @_operation
    async def release(self, fh: int) -> None:
        try:
            await self._judge("release", fh)
        finally:
            os.close(fh)

    # --- directories: a handle is a descriptor too ---

    @_operation
    async def opendir(self, inode: int, ctx: Any) -> int:
        await self._judge("opendir", self._fd(inode))
        fd = os.open(self._open_path(inode), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._listings[fd] = ()
        return fd

    @_operation
    async def readdir(self, fh: int, start_id: int, token: Any) -> None:
        await self._judge("readdir", fh)
        if start_id == 0:
            self._listings[fh] = tuple(sorted(os.fsencode(name) for name in os.listdir(fh)))
        for number, name in enumerate(self._listings[fh][start_id:], start_id + 1):
            try:
                attributes = self._know(fh, name)
            except FileNotFoundError:  # gone since the listing was taken
                continue
            if not pyfuse3.readdir_reply(token, name, attributes, number):
                await self.forget([(attributes.st_ino, 1)])
                break

    @_operation
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self._judge("fsyncdir", fh)
        os.fsync(fh)

    @_operation
    async def releasedir(self, fh: int) -> None:
        try:
            await self._judge("releasedir", fh)
        finally:
            del self._listings[fh]
            os.close(fh)


async def serve() -> None:
    """Serve until standard input ends or the file system is unmounted from outside."""
    async with trio.open_nursery() as nursery:

        async def answer() -> None:
            await pyfuse3.main()
            nursery.cancel_scope.cancel()

        nursery.start_soon(answer)
        await trio.lowlevel.wait_readable(0)
        nursery.cancel_scope.cancel()


def main() -> None:
    """Mount, say so, serve, unmount."""
    backing, mountpoint, control_file, calls_file = sys.argv[1:]
    os.umask(0)  # the kernel has applied the caller's
    options = set(pyfuse3.default_options) | {"fsname=errfs", "subtype=errfs"}
    if os.geteuid() == 0:
        options.add("allow_other")
    pyfuse3.init(Passthrough(backing, Control(control_file, calls_file, trio.sleep)), mountpoint, options)
    try:
        with contextlib.suppress(BrokenPipeError):  # whoever waits for it may be gone; then so is standard input
            os.write(1, b"mounted\n")
        trio.run(serve)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main()
