"""Whether this process sees the host's processes: only then does an absence in /proc mean anything."""

import os
from enum import StrEnum
from typing import Final

from devward.cluster.evidence import Doubt
from devward.cluster.files import read_start

#: Inode numbers of the initial namespaces (PROC_PID_INIT_INO and PROC_USER_INIT_INO of <linux/proc_ns.h>).
_INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"
_INITIAL_USER_NAMESPACE: Final = "user:[4026531837]"
_CAP_SYS_PTRACE: Final = 19


class VantageDoubt(StrEnum):
    """Why processes of the host could stay unseen from here."""

    #: Not the host's PID namespace, or not its /proc: other processes are not listed at all.
    NOT_THE_HOST = "not-the-host"
    #: /proc hides processes (hidepid=, ProtectProc=): even the first one.
    PROCESSES_HIDDEN = "processes-hidden"
    #: Without CAP_SYS_PTRACE of the host the tables of other processes are closed.
    NOT_PRIVILEGED = "not-privileged"
    PROC_UNREADABLE = "proc-unreadable"


def lists_everybody(proc: str) -> Doubt | None:
    """Return why a process could be missing in a listing of /proc; None if none can."""
    try:
        if os.readlink(f"{proc}/self") != str(os.getpid()) or os.readlink(f"{proc}/self/ns/pid") != _INITIAL_PID_NAMESPACE:
            return Doubt(VantageDoubt.NOT_THE_HOST, proc)
        # What may be hidden is hidden from those who may not trace it, and nobody may trace the first process and not the others.
        if not os.path.exists(f"{proc}/1/stat"):
            return Doubt(VantageDoubt.PROCESSES_HIDDEN, proc)
    except OSError as error:
        return Doubt(VantageDoubt.PROC_UNREADABLE, proc, error.errno or 0)
    return None


def reads_everybody(proc: str) -> Doubt | None:
    """Return why a process, or what it holds, could be missing; None if nothing can."""
    if (doubt := lists_everybody(proc)) is not None:
        return doubt
    try:
        space = os.readlink(f"{proc}/self/ns/user")
        status = read_start(f"{proc}/self/status", 8192)
        effective = next(int(line[7:], 16) for line in status.split(b"\n") if line.startswith(b"CapEff:"))
    except OSError as error:
        return Doubt(VantageDoubt.PROC_UNREADABLE, proc, error.errno or 0)
    except (StopIteration, ValueError):
        return Doubt(VantageDoubt.PROC_UNREADABLE, proc)
    if space != _INITIAL_USER_NAMESPACE or not effective >> _CAP_SYS_PTRACE & 1:
        return Doubt(VantageDoubt.NOT_PRIVILEGED, proc)
    return None
