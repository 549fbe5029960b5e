"""One owned file in its directory: look at it, write it, remove it, all relative to a descriptor of the directory.

Nothing is followed, nothing is opened that could block, and whatever is not a regular file is left where it is: where the file system can
exchange two names in one step (renameat2(2)), what stood at the path is looked at again after it was taken out, and put back if it is not
a regular file. Readers see the whole old or the whole new document. Everything here blocks: call it from a worker thread.
"""

import contextlib
import ctypes
import errno
import os
import re
import secrets
import stat
from dataclasses import dataclass
from enum import StrEnum

from devward import names
from devward.reasons import Reason

#: The longest file of ours, of a thousand vNPUs, has less; one larger than this is malformed, whatever it says.
MAXIMUM_SIZE = 256 << 10
FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
LABEL_ATTRIBUTE = "security.selinux"

_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2  # <linux/fs.h>
#: How often a rename is tried while somebody else makes and removes the same name.
_ATTEMPTS = 5
_TEMPORARY_NAME = re.compile(rf"{re.escape(names.TEMPORARY_PREFIX)}.+\.[0-9a-f]{{16}}{re.escape(names.TEMPORARY_SUFFIX)}", re.DOTALL)
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class EntryType(StrEnum):
    """What stands at a path."""

    MISSING = "missing"
    REGULAR = "regular file"
    LINK = "symbolic link"
    FIFO = "FIFO"
    DIRECTORY = "directory"
    SOCKET = "socket"
    DEVICE = "device node"
    UNREADABLE = "unreadable"


class StoreError(Exception):
    """The directory or the file cannot be read or written; `reason` is the stable code, the text is for people."""

    def __init__(self, reason: Reason, detail: str, error: int = 0) -> None:
        """Keep the reason code and the errno, 0 if there is none."""
        super().__init__(detail)
        self.reason = reason
        self.error = error


class NotAsWritten(StoreError):
    """The file was put in place and read back as something else: something changes it at once, or the file system cannot keep it."""

    def __init__(self, detail: str) -> None:
        """The reason is always the same."""
        super().__init__(Reason.CDI_IO_ERROR, detail)


@dataclass(frozen=True, slots=True)
class Found:
    """What was found at an owned path. `data` is None unless it is a regular file that could be read and is not oversized."""

    directory: EntryType
    entry: EntryType
    data: bytes | None = None
    mode: int = 0
    uid: int = 0
    gid: int = 0
    links: int = 0
    mtime_usec: int = 0
    label: str | None = None
    #: Why it cannot be read or used, and the errno's text.
    reason: Reason = Reason.OK
    detail: str = ""


_REASONS = {
    errno.ENOENT: Reason.CDI_MISSING,
    errno.EROFS: Reason.CDI_READ_ONLY,
    errno.ENOSPC: Reason.CDI_NO_SPACE,
    errno.EDQUOT: Reason.CDI_NO_SPACE,
    errno.EFBIG: Reason.CDI_NO_SPACE,
    errno.EACCES: Reason.CDI_UNWRITABLE,
    errno.EPERM: Reason.CDI_IMMUTABLE,
    errno.ELOOP: Reason.CDI_DIRECTORY_LINK,
    errno.ENOTDIR: Reason.CDI_DIRECTORY_LINK,
    errno.ETIMEDOUT: Reason.CDI_TIMEOUT,
}


def reason_of(error: OSError) -> Reason:
    """Return the stable reason code of a file system error."""
    return _REASONS.get(error.errno or 0, Reason.CDI_IO_ERROR)


def look(directory: str, name: str) -> Found:
    """Look at an owned path. Never raises for what it finds, never blocks on a FIFO, never follows a link."""
    try:
        descriptor = os.open(directory, _DIRECTORY_FLAGS)
    except FileNotFoundError:
        return Found(EntryType.MISSING, EntryType.MISSING)
    except OSError as error:
        kind = EntryType.LINK if error.errno in (errno.ELOOP, errno.ENOTDIR) else EntryType.UNREADABLE
        return Found(kind, EntryType.MISSING, reason=reason_of(error), detail=f"{directory}: {os.strerror(error.errno or 0)}")
    try:
        owner = os.fstat(descriptor).st_uid
        if owner not in (0, os.geteuid()):
            return Found(EntryType.DIRECTORY, EntryType.MISSING, reason=Reason.CDI_UNWRITABLE, detail=f"{directory} belongs to uid {owner}")
        return _look_in(descriptor, name)
    except OSError as error:
        return Found(EntryType.DIRECTORY, EntryType.UNREADABLE, reason=reason_of(error), detail=os.strerror(error.errno or 0))
    finally:
        os.close(descriptor)


def write(directory: str, name: str, data: bytes, *, copied: bytes | None = None) -> str | None:
    """Put `data` at the path, atomically and durably, and read it back. Returns the security label that the kernel gave the file, if any.

    `copied`: the content of which a copy was kept; a file that holds something else by now is not replaced.
    Raises StoreError. The old file, or whatever stood there, is then still in place, unless the new one is there but could not be made
    durable or does not read back (NotAsWritten). A temporary file stays only where it cannot be removed, and until the next sweep.
    """
    try:
        try:
            descriptor = _open(directory)
        except FileNotFoundError:
            _create(directory)
            descriptor = _open(directory)
        try:
            label = _replace(descriptor, name, data, copied)
            written = _look_in(descriptor, name)
            if written.data != data or written.mode != FILE_MODE:
                raise NotAsWritten(f"{directory}/{name} does not read back as it was written")
            _still_there(directory, descriptor)
            return label
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(reason_of(error), f"{directory}/{name}: {os.strerror(error.errno or 0)}", error.errno or 0) from error


def remove(directory: str, name: str, *, copied: bytes | None = None) -> bool:
    """Remove the regular file at the path; False if nothing stood there. Raises StoreError, also for what is not a regular file.

    `copied`: the content of which a copy was kept; a file that holds something else by now is not removed.
    """
    temporary = _temporary(name)
    try:
        descriptor = _open(directory)
        try:
            if _entry_type(descriptor, name) is EntryType.MISSING:
                return False
            if (objection := _objection(descriptor, name, name, copied)) is not None:
                raise objection
            os.rename(name, temporary, src_dir_fd=descriptor, dst_dir_fd=descriptor)
            if (objection := _objection(descriptor, temporary, name, copied)) is not None:
                _put_back(descriptor, temporary, name)
                raise objection
            os.unlink(temporary, dir_fd=descriptor)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(reason_of(error), f"{directory}/{name}: {os.strerror(error.errno or 0)}", error.errno or 0) from error
    return True


def sweep(directory: str) -> tuple[str, ...]:
    """Remove the temporary files that a killed devward left in a directory, and return their names. Raises StoreError.

    Whoever owns them: one may be the file of another owner that was being replaced.
    """
    swept = []
    try:
        descriptor = os.open(directory, _DIRECTORY_FLAGS)
        try:
            if os.fstat(descriptor).st_uid not in (0, os.geteuid()):
                return ()
            for entry in sorted(os.listdir(descriptor)):
                if _TEMPORARY_NAME.fullmatch(entry) and _entry_type(descriptor, entry) is EntryType.REGULAR:
                    os.unlink(entry, dir_fd=descriptor)
                    swept.append(entry)
            if swept:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return tuple(swept)
    except OSError as error:
        raise StoreError(reason_of(error), f"{directory}: {os.strerror(error.errno or 0)}", error.errno or 0) from error
    return tuple(swept)


def fresh_label(directory: str, name: str) -> str | None:
    """Return the security label that the kernel gives a new file in the directory: that of a temporary one. Raises StoreError."""
    try:
        descriptor = os.open(directory, _DIRECTORY_FLAGS)
        try:
            temporary = _temporary(name)
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=descriptor)
            try:
                return _label(file)
            finally:
                os.close(file)
                os.unlink(temporary, dir_fd=descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(reason_of(error), f"{directory}: {os.strerror(error.errno or 0)}", error.errno or 0) from error


def _look_in(directory: int, name: str) -> Found:
    try:
        anchor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return Found(EntryType.DIRECTORY, EntryType.MISSING)
    try:
        status = os.fstat(anchor)
        entry = _type_of(status.st_mode)
        if entry is not EntryType.REGULAR:
            return Found(EntryType.DIRECTORY, entry)
        data, reason, detail, label = _content(anchor, status.st_size)
    finally:
        os.close(anchor)
    return Found(
        EntryType.DIRECTORY,
        entry,
        data=data,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        links=status.st_nlink,
        mtime_usec=status.st_mtime_ns // 1000,
        label=label,
        reason=reason,
        detail=detail,
    )


def _content(anchor: int, size: int) -> tuple[bytes | None, Reason, str, str | None]:
    """Read a regular file through its O_PATH descriptor: the very file that was looked at."""
    if size > MAXIMUM_SIZE:
        return None, Reason.CDI_MALFORMED, f"it has {size} bytes", None
    try:
        file = os.open(f"/proc/self/fd/{anchor}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            label = _label(file)
            data = b""
            while len(data) <= MAXIMUM_SIZE and (block := os.read(file, MAXIMUM_SIZE + 1 - len(data))):
                data += block
        finally:
            os.close(file)
    except OSError as error:
        return None, reason_of(error), f"it cannot be read: {os.strerror(error.errno or 0)}", None
    if len(data) > MAXIMUM_SIZE:
        return None, Reason.CDI_MALFORMED, f"it has more than {MAXIMUM_SIZE} bytes", label
    return data, Reason.OK, "", label


def _replace(directory: int, name: str, data: bytes, copied: bytes | None) -> str | None:
    temporary = _temporary(name)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        try:
            label = _label(file)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
            if os.fstat(file).st_gid != os.getegid():
                os.fchown(file, -1, os.getegid())  # a set-group-id directory gave it another group
            os.fchmod(file, FILE_MODE)
            os.fsync(file)
        finally:
            os.close(file)
        exchanged = _put_in_place(directory, temporary, name, copied)
    except BaseException:
        _discard(directory, temporary)
        raise
    if exchanged:
        objection = _objection(directory, temporary, name, copied)
        if objection is not None:
            _rename(directory, temporary, name, _RENAME_EXCHANGE)
        _discard(directory, temporary)
        if objection is not None:
            raise objection
    os.fsync(directory)
    return label


def _put_in_place(directory: int, temporary: str, name: str, copied: bytes | None) -> bool:
    """Move the temporary file to its name. Returns whether what stood there has the temporary name now, to be looked at once more."""
    for attempt in range(_ATTEMPTS):
        standing = _entry_type(directory, name)
        if (objection := _objection(directory, name, name, copied)) is not None:
            raise objection
        try:
            _rename(directory, temporary, name, _RENAME_NOREPLACE if standing is EntryType.MISSING else _RENAME_EXCHANGE)
            return standing is not EntryType.MISSING
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOSYS):
                break  # the file system knows the plain rename only
            if error.errno not in (errno.EEXIST, errno.ENOENT) or attempt == _ATTEMPTS - 1:
                raise
            # the name came or went since it was looked at
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    return False


def _objection(directory: int, place: str, name: str, copied: bytes | None) -> StoreError | None:
    """Return why what stands at `place`, the entry of `name` or what was taken out of there, must not be replaced; None if it may."""
    entry = _entry_type(directory, place)
    if entry is EntryType.MISSING:
        return None
    if entry is not EntryType.REGULAR:
        return StoreError(Reason.CDI_NOT_REGULAR, f"{name} is a {entry}")
    if copied is not None and _look_in(directory, place).data != copied:
        return StoreError(Reason.CDI_MISSING, f"{name} was replaced after a copy of it was kept")
    return None


def _put_back(directory: int, temporary: str, name: str) -> None:
    try:
        _rename(directory, temporary, name, _RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)  # the file system knows the plain rename only


def _rename(directory: int, source: str, target: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(directory, os.fsencode(source), directory, os.fsencode(target), ctypes.c_uint(flags)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _open(directory: str) -> int:
    descriptor = os.open(directory, _DIRECTORY_FLAGS)
    owner = os.fstat(descriptor).st_uid
    if owner not in (0, os.geteuid()):
        os.close(descriptor)
        raise StoreError(Reason.CDI_UNWRITABLE, f"{directory} belongs to uid {owner}")
    return descriptor


def _create(directory: str) -> None:
    """Make the directory, and what leads to it, with the mode that rootless engines need whatever our umask is."""
    parent = os.path.dirname(directory)
    if not os.path.isdir(parent):
        _create(parent)
    try:
        os.mkdir(directory, DIRECTORY_MODE)
    except FileExistsError:
        return
    descriptor = os.open(directory, _DIRECTORY_FLAGS)
    try:
        os.fchmod(descriptor, DIRECTORY_MODE)
    finally:
        os.close(descriptor)
    above = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(above)
    finally:
        os.close(above)


def _still_there(directory: str, descriptor: int) -> None:
    """The path must still lead to the directory that was written: it may have been replaced meanwhile."""
    ours, now = os.fstat(descriptor), os.stat(directory, follow_symlinks=False)
    if (ours.st_dev, ours.st_ino) != (now.st_dev, now.st_ino):
        raise StoreError(Reason.CDI_MISSING, f"{directory} was replaced while its file was written")


def _entry_type(directory: int, name: str) -> EntryType:
    try:
        return _type_of(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return EntryType.MISSING


def _type_of(mode: int) -> EntryType:
    types = {
        stat.S_IFREG: EntryType.REGULAR,
        stat.S_IFLNK: EntryType.LINK,
        stat.S_IFIFO: EntryType.FIFO,
        stat.S_IFDIR: EntryType.DIRECTORY,
        stat.S_IFSOCK: EntryType.SOCKET,
    }
    return types.get(stat.S_IFMT(mode), EntryType.DEVICE)


def _label(file: int) -> str | None:
    try:
        return os.getxattr(file, LABEL_ATTRIBUTE).rstrip(b"\0").decode("utf-8", "backslashreplace")
    except OSError:
        return None  # no security module labels files here


def _temporary(name: str) -> str:
    return f"{names.TEMPORARY_PREFIX}{name}.{secrets.token_hex(8)}{names.TEMPORARY_SUFFIX}"


def _discard(directory: int, temporary: str) -> None:
    with contextlib.suppress(OSError):  # what stays is swept at the next start
        os.unlink(temporary, dir_fd=directory)
