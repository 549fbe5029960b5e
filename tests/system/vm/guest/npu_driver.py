"""The driver of Ascend NPUs, simulated: device nodes in user space (CUSE) that follow the state of the DCMI simulator.

    npu_driver.py STATE DONE OPENED     keep the nodes until killed; then they go

There is a node `davinciN` for each chip and a node `vdavinciV` for each vNPU of the state, whose minor numbers are N and V, and the nodes
that all of them share. The file DONE holds the generation of the state that the nodes are those of, so that who changes the state can wait
as the vendor's library waits for the real driver. OPENED gets a line for each time that a node is opened: name, process and its command.
Opening a node of a real vNPU occupies it.
"""

import contextlib
import ctypes
import errno
import os
import select
import struct
import sys
from collections.abc import Iterator

import cuse

#: For local use (Documentation/admin-guide/devices.txt): what is chosen dynamically begins at 254 and goes down.
MAJOR = 240
#: Nodes that belong to no NPU; the kernel chooses their numbers.
SHARED = ("davinci_manager", "devmm_svm", "hisi_hdc")
# sys/inotify.h
IN_MOVED_TO, IN_CLOEXEC = 0x80, 0o2000000
#: The least that the kernel takes for a request (linux/fuse.h, FUSE_MIN_READ_BUFFER).
REQUEST_SIZE = 8192


class Node:
    """One device node."""

    def __init__(self, name: str, major: int, minor: int) -> None:
        """Make it. It is there on return, and the kernel has told udev."""
        self.name = name
        self.channel = os.open("/dev/cuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        _, opcode, unique, *_ = cuse.IN_HEADER.unpack_from(os.read(self.channel, REQUEST_SIZE))
        assert opcode == cuse.CUSE_INIT
        # cuse_init_out: major, minor, unused, flags, max_read, max_write, dev_major, dev_minor, spare
        cuse.answer(self.channel, unique, struct.pack("<8I40x", 7, 31, 0, 0, 4096, 4096, major, minor) + f"DEVNAME={name}\0".encode())

    def answer(self, opened: int) -> None:
        """Answer a request, and note who opens the node. A process that is killed takes its request back."""
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            _, opcode, unique, _, _, _, pid, _ = cuse.IN_HEADER.unpack_from(os.read(self.channel, REQUEST_SIZE))
            if opcode == cuse.OPEN:
                os.write(opened, f"{self.name} {pid} {command_of(pid)}\n".encode())
                cuse.answer(self.channel, unique, bytes(16))
            elif opcode == cuse.RELEASE:
                cuse.answer(self.channel, unique)
            elif opcode != cuse.INTERRUPT:
                cuse.answer(self.channel, unique, error=errno.ENOTTY if opcode == cuse.IOCTL else errno.ENOSYS)

    def remove(self) -> None:
        """Take it away. It is gone on return."""
        os.close(self.channel)


def command_of(pid: int) -> str:
    """Return what the kernel calls a process; one that has gone by now is `?`."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "?"


def wanted(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """Name, major and minor number of each node of a state."""
    chips: set[tuple[str, str]] = set()
    for kind, *words in map(str.split, lines):
        given = dict(word.split("=", 1) for word in words)
        if kind == "chip" and given["type"] == "0" and given["present"] == "1":
            chips.add((given["card"], given["dev"]))
            yield f"davinci{given['phy']}", MAJOR, int(given["phy"])
        elif kind == "vnpu" and (given["card"], given["dev"]) in chips:
            yield f"vdavinci{given['id']}", MAJOR, int(given["id"])


class Driver:
    """All nodes."""

    def __init__(self, state: str, done: str, opened: str) -> None:
        """Follow this state."""
        self._state, self._done = state, done
        self._opened = os.open(opened, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._poll = select.epoll()
        self._nodes: dict[str, Node] = {}
        self._by_channel: dict[int, Node] = {}
        self._generation = ""
        libc = ctypes.CDLL(None)
        self._inotify = libc.inotify_init1(IN_CLOEXEC)
        assert libc.inotify_add_watch(self._inotify, os.path.dirname(state).encode(), IN_MOVED_TO) >= 0
        self._poll.register(self._inotify, select.EPOLLIN)
        for name in SHARED:
            self._add(Node(name, 0, 0))

    def run(self) -> None:
        """Follow the state for ever."""
        self._follow()
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._inotify:
                    os.read(descriptor, 1 << 16)
                    self._follow()
                elif descriptor in self._by_channel:
                    self._by_channel[descriptor].answer(self._opened)

    def _follow(self) -> None:
        with open(self._state, encoding="ascii") as file:
            first, *lines = file.read().splitlines()
        generation = first.split()[-1]
        if generation == self._generation:
            return
        nodes = {name: (name, major, minor) for name, major, minor in wanted(lines)}
        for name in self._nodes.keys() - nodes.keys() - set(SHARED):
            self._remove(name)
        for name in nodes.keys() - self._nodes.keys():
            self._add(Node(*nodes[name]))
        self._generation = generation
        with open(f"{self._done}.new", "w", encoding="ascii") as file:
            file.write(generation)
        os.rename(f"{self._done}.new", self._done)

    def _add(self, node: Node) -> None:
        self._nodes[node.name] = self._by_channel[node.channel] = node
        self._poll.register(node.channel, select.EPOLLIN)

    def _remove(self, name: str) -> None:
        node = self._nodes.pop(name)
        del self._by_channel[node.channel]
        self._poll.unregister(node.channel)
        node.remove()


if __name__ == "__main__":
    Driver(*sys.argv[1:]).run()
