"""Hold the host to what it was before a run: device nodes, CDI files, mounts, and processes of the run.

    host_state.py save FILE         record the state
    host_state.py compare FILE      print every difference from the record; exit 1 if there is one
    host_state.py leftovers NAME=VALUE [--session ID] [--kill]
                                    print every process that was started with this in its environment or belongs to that session;
                                    exit 1 if there is one

Of a device node its type, mode, owner, group, number and ACL count; /dev/pts and /dev/shm are left out, since anybody makes things there.
Of the CDI directory and its entries the content counts too, and the time of the last change.
Standard library only: it runs before anything is installed.
"""

import argparse
import collections
import contextlib
import errno
import hashlib
import json
import os
import signal
import stat
import struct
import sys
import time
from collections.abc import Iterator
from typing import Final

#: A record: section, then the thing, then its attributes as text.
State = dict[str, dict[str, dict[str, str]]]

LEFT_OUT: Final = ("pts", "shm")
ACL_XATTR: Final = "system.posix_acl_access"
#: Tags of a POSIX ACL entry: linux/posix_acl.h. The extended attribute: linux/posix_acl_xattr.h, version 2.
ACL_TAGS: Final = {0x01: "user", 0x02: "user", 0x04: "group", 0x08: "group", 0x10: "mask", 0x20: "other"}
ACL_NO_ID: Final = 0xFFFFFFFF
GRACE: Final = 3.0
#: Seconds.
BETWEEN_LOOKS: Final = 0.05


def acl_text(value: bytes) -> str:
    """The entries of an ACL as getfacl writes them, with numbers for names."""
    entries = []
    for tag, permissions, identity in struct.iter_unpack("<HHI", value[4:]):
        bits = "".join(letter if permissions & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))
        entries.append(f"{ACL_TAGS.get(tag, tag)}:{'' if identity == ACL_NO_ID else identity}:{bits}")
    return ",".join(entries)


def access_list(path: str) -> str:
    """The ACL of a file, or `none`."""
    try:
        return acl_text(os.getxattr(path, ACL_XATTR, follow_symlinks=False))
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.EOPNOTSUPP}:
            return "none"
        raise


def ownership(status: os.stat_result) -> dict[str, str]:
    """Mode, owner and group."""
    return {"mode": f"{stat.S_IMODE(status.st_mode):04o}", "owner": str(status.st_uid), "group": str(status.st_gid)}


def entries_below(directory: str, left_out: tuple[str, ...] = ()) -> Iterator[os.DirEntry[str]]:
    """Every entry below a directory, except in those left out; links are not followed, and what vanishes meanwhile is passed over."""
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            yield entry
            if entry.path not in left_out and entry.is_dir(follow_symlinks=False):
                yield from entries_below(entry.path, left_out)


def device_nodes(directory: str) -> dict[str, dict[str, str]]:
    """Every character and block device node below a directory."""
    nodes = {}
    for entry in entries_below(directory, tuple(f"{directory}/{name}" for name in LEFT_OUT)):
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
                continue
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            kind = "character" if stat.S_ISCHR(status.st_mode) else "block"
            nodes[entry.path] = {"type": kind} | ownership(status) | {"number": number, "acl": access_list(entry.path)}
    return nodes


def file_state(path: str) -> dict[str, str]:
    """What a CDI directory, or an entry in one, is and holds."""
    status = os.lstat(path)
    state = {"type": stat.filemode(status.st_mode)[0]} | ownership(status) | {"acl": access_list(path)}
    state |= {"links": str(status.st_nlink), "mtime": str(status.st_mtime_ns)}
    if stat.S_ISREG(status.st_mode):
        with open(path, "rb") as file:
            state["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    elif stat.S_ISLNK(status.st_mode):
        state["target"] = os.readlink(path)
    return state


def cdi_files(directory: str) -> dict[str, dict[str, str]]:
    """The CDI directory and everything below it; nothing where it does not exist."""
    if not os.path.lexists(directory):
        return {}
    return {path: file_state(path) for path in (directory, *(entry.path for entry in entries_below(directory)))}


def mounts(table: str) -> dict[str, dict[str, str]]:
    """Every mount point of this mount namespace with what is mounted there (proc_pid_mountinfo(5)), stacked ones in order."""
    stacks: dict[str, list[str]] = collections.defaultdict(list)
    with open(table, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split()
            separator = fields.index("-", 6)
            root, point, options = fields[3:6]
            file_system, source = fields[separator + 1 : separator + 3]
            stacks[point].append(f"{file_system} {source} root={root} {options}")
    return {point: {"mounted": "; ".join(stack)} for point, stack in stacks.items()}


def differences(before: State, after: State) -> list[str]:
    """One line for each thing that vanished, is new or changed; empty if nothing did."""
    lines = []
    for section in sorted(before.keys() | after.keys()):
        old, new = before.get(section, {}), after.get(section, {})
        for name in sorted(old.keys() | new.keys()):
            if name not in new:
                lines.append(f"{section} {name}: vanished")
            elif name not in old:
                lines.append(f"{section} {name}: new: " + ", ".join(f"{key} {value}" for key, value in new[name].items()))
            else:
                changed = sorted(key for key in old[name].keys() | new[name].keys() if old[name].get(key) != new[name].get(key))
                lines += [f"{section} {name}: {key} was {old[name].get(key, 'none')}, is {new[name].get(key, 'none')}" for key in changed]
    return lines


# --- processes -----------------------------------------------------------------------------------------------------


def _process_fields(pid: int) -> tuple[str, int, int] | None:
    """State, parent and session of a process (proc_pid_stat(5)), or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[1]), int(fields[3])


def _is_ours(pid: int, marker: bytes, session: int) -> bool:
    fields = _process_fields(pid)
    if fields is None or fields[0] in {"Z", "X"}:
        return False
    if session and fields[2] == session:
        return True
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return marker in file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def marked_processes(marker: str, session: int) -> list[int]:
    """Processes that carry the marker in the environment they were started with, or are of that session; this one and its ancestors not."""
    spared = {os.getpid()}
    parent = os.getppid()
    while parent and (fields := _process_fields(parent)) is not None:
        spared.add(parent)
        parent = fields[1]
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if pid not in spared and _is_ours(pid, os.fsencode(marker), session)]


def _gone(marker: str, session: int, grace: float) -> bool:
    # Looks are counted, and no clock is asked: on a machine that stands still for a while, nothing could have ended meanwhile.
    for _ in range(round(grace / BETWEEN_LOOKS)):
        if not marked_processes(marker, session):
            return True
        time.sleep(BETWEEN_LOOKS)
    return not marked_processes(marker, session)


def _send(pid: int, number: signal.Signals, marker: str, session: int) -> None:
    """Signal a process, provided that the pid still is the process that was meant."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if _is_ours(pid, os.fsencode(marker), session):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def leftovers(marker: str, session: int, grace: float) -> dict[int, str]:
    """Processes of the run that do not end within the grace, with their command lines."""
    if _gone(marker, session, grace):
        return {}
    found = {}
    for pid in marked_processes(marker, session):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/cmdline", "rb") as file:
            found[pid] = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def kill(marker: str, session: int, grace: float) -> None:
    """End every process of the run: asked first, then not asked."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in marked_processes(marker, session):
            _send(pid, number, marker, session)
        if _gone(marker, session, grace):
            return


def main() -> int:
    """Do what the arguments say; the exit status is 0 when nothing changed or nothing is left, else 1."""
    parser = argparse.ArgumentParser(description="Record and compare the state of the host around a test run.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("save", "compare"):
        command = verbs.add_parser(verb)
        command.add_argument("file")
        command.add_argument("--dev", default="/dev", help="directory of device nodes (default: %(default)s)")
        command.add_argument("--cdi", default="/etc/cdi", help="CDI directory (default: %(default)s)")
        command.add_argument("--mounts", default="/proc/self/mountinfo", help="mount table (default: %(default)s)")
    command = verbs.add_parser("leftovers")
    command.add_argument("marker", metavar="NAME=VALUE")
    command.add_argument("--session", type=int, default=0, help="session id")
    command.add_argument("--kill", action="store_true", help="end them")
    command.add_argument(
        "--grace", type=float, default=GRACE, help="seconds in which they may end, by themselves and after SIGTERM (default: %(default)s)"
    )
    arguments = parser.parse_args()

    if arguments.verb == "leftovers":
        found = leftovers(arguments.marker, arguments.session, arguments.grace)
        for pid, command_line in found.items():
            print(f"left running: pid {pid}: {command_line}")
        if arguments.kill and found:
            kill(arguments.marker, arguments.session, arguments.grace)
        return 1 if found else 0

    state = {"device": device_nodes(arguments.dev), "cdi": cdi_files(arguments.cdi), "mount": mounts(arguments.mounts)}
    if arguments.verb == "save":
        with open(arguments.file, "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(state, file)
        return 0
    with open(arguments.file, encoding="utf-8", errors="surrogateescape") as file:
        lines = differences(json.load(file), state)
    for line in lines:
        print(line)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
