"""A virtual machine without hardware help: QEMU emulates every instruction, the processor's virtualization (AMD's SVM) among them.

So /dev/kvm in it is real, with a real driver that can be taken away and brought back, wherever the tests run. One channel goes in, to
guest/agent.py.
"""

import base64
import itertools
import json
import shlex
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Self

from system.vm.image import Image

#: Seconds. A boot takes 20 to 60 on an idle processor, and some minutes where it is shared.
BOOT_LIMIT = 600.0
COMMAND_LIMIT = 300.0
#: Said by the agent of a command that it killed.
TIMED_OUT = -1000

# One processor: Linux rewrites its scheduler's code at the first and after the last virtual machine (preempt_notifier_inc in
# virt/kvm/kvm_main.c), thus at each probe, and with two emulated ones QEMU 7.2 now and then goes on with the breakpoint that stood there
# meanwhile, for ever.
_QEMU = (
    "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "1536",
    "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
    "-device", "virtio-rng-pci", "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=agent",
)  # fmt: skip
_DRIVE = "file={},format=raw,if=virtio,cache=unsafe,discard=unmap"
# The mitigations of processor faults cost most where the processor is emulated, and guard nothing here.
_COMMAND_LINE = "console=ttyS0 root=/dev/vda rw panic=-1 systemd.show_status=0 mitigations=off"


class CommandFailed(AssertionError):
    """A command in the machine failed; the text says which, and what it printed."""


class Machine:
    """One such machine; a context manager that boots it and, at the end, turns it off."""

    def __init__(self, image: Image, scratch: Path) -> None:
        """Boot it with the next `boot` or as a context manager."""
        self.image = image
        self._scratch = scratch
        self._ids = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._reader: threading.Thread | None = None
        self._answers: dict[int, tuple[int, str]] = {}
        self._changed = threading.Condition()
        self._gone = False

    def __enter__(self) -> Self:
        """Boot."""
        try:
            self.boot()
        except BaseException:
            self.turn_off()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Turn it off."""
        self.turn_off()

    # --- power -------------------------------------------------------------------------------------------------------
    def boot(self, *words: str) -> None:
        """Boot with these words on the kernel's command line, and wait for the agent."""
        ours, theirs = socket.socketpair()
        console = open(self._scratch / "console", "ab")  # noqa: SIM115  # QEMU's, closed below
        with theirs, console:
            command = [
                *_QEMU,
                "-chardev", f"socket,id=agent,fd={theirs.fileno()}",
                "-serial", "stdio",
                "-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd),
                "-append", " ".join([_COMMAND_LINE, *words]),
                "-drive", _DRIVE.format(self.image.disk), "-drive", _DRIVE.format(self.image.later_disk),
            ]  # fmt: skip
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self._channel = ours
        self._answers.clear()
        self._gone = False
        self._reader = threading.Thread(target=self._read, args=(ours,), name="vm channel")
        self._reader.start()
        self._wait(0, BOOT_LIMIT, "the machine did not boot")

    def reboot(self, *words: str) -> None:
        """Shut it down in good order and boot it again."""
        assert self._process is not None
        self.run("systemctl", "--no-block", "poweroff")
        try:
            self._process.wait(BOOT_LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the machine did not shut down:\n{self.console()}") from None
        self.turn_off()
        self.boot(*words)

    def turn_off(self) -> None:
        """End QEMU, in whatever state the machine is."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._reader is not None:
            self._reader.join()
            self._reader = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def console(self) -> str:
        """Return the end of what the kernel said."""
        return (self._scratch / "console").read_bytes()[-6000:].decode(errors="replace")

    # --- commands ----------------------------------------------------------------------------------------------------
    def start(self, *command: str, stdin: str = "", timeout: float = COMMAND_LIMIT) -> int:
        """Start a program; `finish` waits for it. It is killed after `timeout` seconds."""
        number = next(self._ids)
        message = {"id": number, "argv": command, "input": stdin, "timeout": timeout}
        assert self._channel is not None
        self._channel.sendall(json.dumps(message).encode() + b"\n")
        return number

    def finish(self, number: int, *, timeout: float = COMMAND_LIMIT) -> tuple[int, str]:
        """Return the exit code and the output of a program that was started."""
        return self._wait(number, timeout + 60, "the agent gave no answer")

    def run(self, *command: str, stdin: str = "", check: bool = True, timeout: float = COMMAND_LIMIT) -> str:
        """Run a program; return what it prints on both streams. CommandFailed if it fails, unless not `check`."""
        code, out = self.finish(self.start(*command, stdin=stdin, timeout=timeout), timeout=timeout)
        if code == TIMED_OUT or (check and code != 0):
            raise CommandFailed(f"{shlex.join(command)}: exit code {code}\n{out}")
        return out

    def shell(self, script: str, *, check: bool = True, timeout: float = COMMAND_LIMIT) -> str:
        """Run a shell script that ends at the first failure."""
        return self.run("sh", "-ec", script, check=check, timeout=timeout)

    def write(self, path: str, content: str | bytes, mode: str = "0644") -> None:
        """Write a file, in place."""
        data = content.encode() if isinstance(content, str) else content
        self.run("sh", "-ec", 'base64 -d >"$1" && chmod "$2" "$1"', "sh", path, mode, stdin=base64.b64encode(data).decode())

    # --- the channel -------------------------------------------------------------------------------------------------
    def _read(self, channel: socket.socket) -> None:
        rest = b""
        while True:
            try:
                data = channel.recv(65536)
            except OSError:
                data = b""
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            with self._changed:
                for line in lines:
                    message = json.loads(line)
                    self._answers[message["id"]] = (message.get("code", 0), message.get("out", ""))
                self._changed.notify_all()
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def _wait(self, number: int, limit: float, complaint: str) -> tuple[int, str]:
        end = time.monotonic() + limit
        with self._changed:
            while number not in self._answers:
                remaining = end - time.monotonic()
                if self._gone or remaining <= 0:
                    raise AssertionError(f"{complaint}; {'QEMU ended' if self._gone else f'{limit:.0f} s passed'}:\n{self.console()}")
                self._changed.wait(remaining)
            return self._answers.pop(number)
