"""A tree that looks like a host's / and /proc, with kubelets in it: processes with names, sockets, and root directories of their own."""

import math
import os
import shutil
from pathlib import Path

from devward.cluster.evidence import Doubt
from devward.cluster.kubelet import find_kubelet
from devward.cluster.kubelet_facts import KubeletScan
from sim.kubelet_checkpoint import FILE_NAME

HEADING = "Num       RefCount Protocol Flags    Type St Inode Path\n"
PLUGINS = "/var/lib/kubelet/device-plugins"


def everybody(_proc: str) -> Doubt | None:
    """A place from where every process is seen: the tree's own /proc is whole."""
    return None


class KubeletHost:
    """The tree."""

    def __init__(self, base: Path) -> None:
        self.root, self.proc = base / "root", base / "proc"
        self.root.mkdir()
        self.proc.mkdir()
        self._inode = 1000

    def find(self, deadline: float = math.inf) -> KubeletScan:
        """Look for its kubelet."""
        return find_kubelet(str(self.proc), str(self.root), vantage=everybody, deadline=deadline)

    def directory(self, path: str, *, root: Path | None = None, checkpoint: bool = False) -> Path:
        """Make a directory of the host, or below another root."""
        made = Path(f"{root or self.root}{path}")
        made.mkdir(parents=True, exist_ok=True)
        if checkpoint:
            (made / FILE_NAME).write_text("{}")
        return made

    def process(
        self,
        pid: int,
        command: str = "kubelet",
        *,
        listens: tuple[str, ...] = (),
        line: tuple[str, ...] = ("/usr/bin/kubelet",),
        root: Path | None = None,
        network: str = "net:[4026531840]",
        started: int = 77,
        users: tuple[int, int] | None = None,
    ) -> Path:
        """Add a process that listens on UNIX sockets of these paths, besides others; `users`, real and effective, are ours by default."""
        directory = self.proc / str(pid)
        for name in ("ns", "fd", "net"):
            (directory / name).mkdir(parents=True)
        (directory / "comm").write_text(f"{command[:15]}\n")
        real, effective = users or (os.getuid(), os.geteuid())
        (directory / "status").write_text(f"Name:\t{command[:15]}\nUid:\t{real}\t{effective}\t{effective}\t{effective}\n")
        (directory / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in line))
        (directory / "stat").write_text(f"{pid} ({command}) {' '.join(['S', *['0'] * 18, str(started), *['0'] * 20])}\n")
        (directory / "root").symlink_to(root or self.root)
        (directory / "ns/net").symlink_to(network)
        (directory / "fd/0").symlink_to("/dev/null")
        (directory / "fd/3").symlink_to("socket:[17]")
        sockets = self.sockets(network)
        for number, path in enumerate(listens, 4):
            self._inode += 1
            (directory / f"fd/{number}").symlink_to(f"socket:[{self._inode}]")
            # Where the link leads, in /proc: to the socket itself, which is its maker's.
            (directory / f"fd/socket:[{self._inode}]").touch()
            sockets += f"0000000054426a5d: 00000002 00000000 00010000 0001 01 {self._inode:5} {path}\n"
        for other in self.proc.iterdir():
            if str((other / "ns/net").readlink()) == network:
                (other / "net/unix").write_text(sockets)
        return directory

    def end(self, pid: int) -> None:
        """Let a process end; what it listened on is gone with it."""
        directory = self.proc / str(pid)
        links = [fd for fd in (directory / "fd").iterdir() if fd.is_symlink()]
        held = {str(fd.readlink()).removeprefix("socket:[").removesuffix("]") for fd in links} - {"17"}
        shutil.rmtree(directory)
        for listed in self.proc.glob("*/net/unix"):
            lines = listed.read_text().splitlines(keepends=True)
            listed.write_text("".join(line for line in lines if not held & set(line.split()[6:7])))

    def sockets(self, network: str) -> str:
        """Return what /proc/net/unix says in a network namespace."""
        for process in self.proc.iterdir():
            if str((process / "ns/net").readlink()) == network and (process / "net/unix").exists():
                return (process / "net/unix").read_text()
        # a connection, an abstract name, and a socket that is not listening
        return HEADING + (
            "00000000961df15c: 00000003 00000000 00000000 0001 03    11\n"
            "00000000961df15d: 00000002 00000000 00010000 0001 01    12 @/tmp/device-plugins/kubelet.sock\n"
            f"00000000961df15e: 00000003 00000000 00000000 0001 03    13 {PLUGINS}/kubelet.sock\n"
            f"00000000961df15f: 00000002 00000000 00010000 0001 01    17 {PLUGINS}/huawei.sock\n"
        )

    def kubelet(
        self, pid: int = 100, command: str = "kubelet", *, line: tuple[str, ...] = ("/usr/bin/kubelet",), checkpoint: bool = True
    ) -> Path:
        """Add a plain kubelet with its directories."""
        self.directory(PLUGINS, checkpoint=checkpoint)
        return self.process(pid, command, line=line, listens=(f"{PLUGINS}/kubelet.sock", "/var/lib/kubelet/pod-resources/1234567"))
