"""A booted Debian in a container: systemd as PID 1, journald, the bus and polkitd, for tests that need the whole system.

systemd-nspawn boots a cached root below an overlay, in a cgroup of its own; nspawn_hold says how. Commands enter by nsenter. When `close`
is called, or the caller dies, every process, mount and cgroup of it goes.

The container's /dev is a tmpfs of systemd-nspawn's, with /dev/kvm bind-mounted into it; `show_devtmpfs` puts the host's devtmpfs over it.
What the container sees of the host's devices is read-only: nothing there can change a node's mode or owner.
"""

import contextlib
import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from package_root import SYSTEM, host_environment

from devward import __version__, names
from sim.daemon_process import SLOW, again_while
from sim.notify_sink import NotifySink

#: What is in the root beside a minimal Debian: what devward depends on, recommends and suggests, a systemd with sessions, and gdbus.
PACKAGES: Final = (
    "dbus",
    "libglib2.0-bin",
    "libpam-systemd",
    "polkitd",
    "python3-dbus-next",
    "python3-grpcio",
    "python3-kubernetes",
    "python3-protobuf",
    "python3-pyudev",
    "python3-sdnotify",
    "python3-yaml",
    "systemd",
    "systemd-sysv",
)
#: Seconds in which anything happens that is going to happen: generous, since a loaded machine is no defect.
PATIENCE: Final = 60.0
#: The same for what works for long by itself: an upgrade, or hundreds of calls.
LONG: Final = 300.0
ENVIRONMENT: Final = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
#: Where the container finds what nspawn_hold shows it.
HOST_DEVICES: Final = "/mnt/devices"
HOST_PACKAGES: Final = "/mnt/packages"
#: Where the kernel lists its misc devices, /dev/kvm among them.
MISC_DEVICES: Final = "/sys/class/misc"
#: The version of an upgrade.
NEXT: Final = f"{__version__}.1"
SPEC: Final = f"{names.CDI_DIRECTORY}/{names.HYPERVISOR_CDI_FILE}"
DROP_IN: Final = "/etc/systemd/system/devward.service.d/test.conf"
SITE: Final = f"{names.CONFIG_DROPIN_DIRECTORY}/test.toml"

#: The limit of a start as it is shipped is tried in a test of its own: a start that lasts on a busy machine fails no other one.
SLOW_START: Final = "/run/systemd/system/devward.service.d/slow-machine.conf"
#: What devwardctl says of a daemon that owes it an answer for some seconds.
_NO_ANSWER: Final = "devwardd runs, but did not answer"
_READING: Final = frozenset({"cards", "config", "devices", "explain", "findings", "pins", "specs", "status", "vnpus"})

#: A cgroup that the container's systemd leaves alone: a command that entered is not to be seen in a cgroup outside.
_ENTERED: Final = 'mkdir -p /sys/fs/cgroup/entered && echo 0 >/sys/fs/cgroup/entered/cgroup.procs && exec "$@"'

T = TypeVar("T")


def until(look: Callable[[], T], what: str) -> T:
    """Look again and again until there is something to see, and return it. AssertionError when patience ends."""
    end = time.monotonic() + PATIENCE
    while not (seen := look()):
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what}; last seen: {seen!r}"
        time.sleep(0.1)
    return seen


def in_time(ask: Callable[[], T]) -> T:
    """Ask for what checks a device, again where the answer is only that this machine was too slow for it; return the answer."""
    return again_while(lambda answer: any(reason in str(answer) for reason in SLOW), ask, PATIENCE)


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both streams."""
        return self.out + self.err


class Talk:
    """A program that runs until it is done with, a line at a time; a context manager, at whose end its standard input is closed."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start it."""
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def say(self, line: str) -> None:
        """Give it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """Return the next line that it prints; AssertionError where it ends instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"ended without a word: {self.end()}"
        return line.rstrip("\n")

    def end(self) -> Ended:
        """Close its standard input, and return how it ends."""
        out, err = self._process.communicate(timeout=PATIENCE)
        return Ended(self._process.returncode, out, err)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            try:
                self.end()
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()


class Machine:
    """One such container; a context manager. Making it boots it and returns when it has booted."""

    def __init__(self, release: str, scratch: Path, packages: Path) -> None:
        """Boot this Debian release with mounts below `scratch`; `packages` is shown in it as HOST_PACKAGES."""
        self.release = release
        made = subprocess.run([str(SYSTEM / "make_root"), release, *PACKAGES], stdout=subprocess.PIPE, text=True, check=True)
        self.name = f"devward-{release}-{uuid.uuid4().hex[:8]}"
        self._log = scratch / "console"
        mounts = scratch / "mounts"
        mounts.mkdir()
        notify = NotifySink(str(scratch / "notify"))
        with self._log.open("wb") as log:
            self._hold = subprocess.Popen(
                ["unshare", "--mount", str(SYSTEM / "nspawn_hold"), str(mounts), made.stdout.strip(), str(packages), self.name],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**host_environment(), "NOTIFY_SOCKET": str(scratch / "notify")},
            )
        try:
            # sd_notify of systemd-nspawn: the pid of the container's first process, as the host sees it; READY=1 comes from in there.
            self.leader = int(notify.wait_for(lambda message: "X_NSPAWN_LEADER_PID" in message, PATIENCE)["X_NSPAWN_LEADER_PID"])
            notify.wait_for(lambda message: message.get("READY") == "1", PATIENCE)
            self.boot_state = self.call("systemctl", "is-system-running", "--wait", patience=LONG).out.strip()
            self.run("mkdir", "-p", os.path.dirname(SLOW_START))
            self.path(SLOW_START).write_text("[Service]\nTimeoutStartSec=50\n")
        except BaseException:
            print(self._log.read_text(errors="replace"))
            self.close()
            raise
        finally:
            notify.close()

    def close(self) -> None:
        """End it and everything in it."""
        assert self._hold.stdin is not None
        self._hold.stdin.close()
        assert self._hold.wait(PATIENCE) == 0, self._log.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- commands ----------------------------------------------------------------------------------------------------
    def enter(self, *command: str, user: str = "") -> list[str]:
        """Return the command line that runs a program in the container, as root or as a user of it."""
        namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        return ["nsenter", f"--target={self.leader}", *namespaces, "env", "-i", *ENVIRONMENT, "sh", "-c", _ENTERED, "sh", *become, *command]

    def call(self, *command: str, user: str = "", given: str = "", patience: float = PATIENCE) -> Ended:
        """Run a program in the container to its end; a devwardctl that reads once more where this machine was too slow for it."""
        reads = command[0] == "devwardctl" and (command[1] in _READING or command[1:3] == ("reclaim", "status"))

        def once() -> Ended:
            line = self.enter(*command, user=user)
            done = subprocess.run(line, input=given, capture_output=True, text=True, timeout=patience, check=False)
            return Ended(done.returncode, done.stdout, done.stderr)

        return again_while(lambda ended: reads and _NO_ANSWER in ended.err, once, patience)

    def run(self, *command: str, user: str = "", given: str = "", patience: float = PATIENCE) -> str:
        """Run a program in the container; return its standard output. AssertionError with all that it printed if it fails."""
        done = self.call(*command, user=user, given=given, patience=patience)
        assert done.status == 0, f"{' '.join(command)[:200]}: exit status {done.status}\n{done.text}"
        return done.out

    def shell(self, script: str, user: str = "") -> str:
        """Run a shell script in the container."""
        return self.run("sh", "-ec", script, user=user)

    def python(self, program: str, *arguments: str, user: str = "") -> list[str]:
        """Return the command line that runs a Python program of this directory in the container."""
        return self.enter("/usr/bin/python3", "-c", (SYSTEM / program).read_text(), *arguments, user=user)

    def run_python(self, program: str, *arguments: str, user: str = "") -> str:
        """Run a Python program of this directory in the container; return its standard output. AssertionError if it fails."""
        return self.run("/usr/bin/python3", "-c", (SYSTEM / program).read_text(), *arguments, user=user, patience=LONG)

    def path(self, path: str) -> Path:
        """Return where the host sees a file of the container."""
        return Path(f"/proc/{self.leader}/root{path}")

    # --- devices -----------------------------------------------------------------------------------------------------
    def show_devtmpfs(self) -> None:
        """Put the host's devtmpfs, read-only, over /dev, with the container's own terminals and shared memory in it."""
        self.shell(f"""
            if [ -e /dev/log ]; then
                for own in pts shm; do mount --bind /dev/$own {HOST_DEVICES}/$own; done
                mount --bind "$(readlink -f /dev/console)" {HOST_DEVICES}/console
                mount --rbind {HOST_DEVICES} /dev
            fi
        """)

    @contextlib.contextmanager
    def covered(self, path: str) -> Iterator[None]:
        """Put an empty directory over a directory meanwhile."""
        self.run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", path)
        try:
            yield
        finally:
            self.run("umount", "--lazy", path)

    # --- devward -----------------------------------------------------------------------------------------------------
    def apt(self, *arguments: str) -> Ended:
        """Run apt-get, which asks nothing and cannot reach any mirror."""
        return self.call("apt-get", "--quiet", "--yes", "-o", "APT::Sandbox::User=root", *arguments, patience=LONG)

    def package(self, version: str = __version__) -> str:
        """Return the path of the package of this version in the container."""
        return f"{HOST_PACKAGES}/devward_{version}_all.deb"

    def install(self, version: str = __version__) -> str:
        """Install the package of this version as documented, `apt install ./FILE`; return what apt printed."""
        done = self.apt("install", self.package(version))
        assert done.status == 0, done.text
        return done.text

    def ask(self, *words: str, user: str = "") -> Any:
        """Call busctl with `--json=short`: `call METHOD SIGNATURE ARGUMENT...` of the manager. Return the data of the answer."""
        out = self.run("busctl", "--json=short", "call", names.BUS_NAME, names.ROOT_PATH, names.MANAGER_INTERFACE, *words, user=user)
        return json.loads(out)["data"]

    def allocation(self, device: str = "kvm") -> tuple[bool, str]:
        """Ask whether a container may be given a device; again where the answer is only that this machine was too slow for it."""
        allowed, reason, *_ = in_time(lambda: self.ask("CheckAllocation", "s", device))
        return allowed, reason

    def get(self, name: str, interface: str = names.MANAGER_INTERFACE, path: str = names.ROOT_PATH) -> Any:
        """Return a property from the bus."""
        return json.loads(self.run("busctl", "--json=short", "get-property", names.BUS_NAME, path, interface, name))["data"]

    def unit(self, name: str, unit: str = "devward.service") -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--property", name, "--value", unit).strip()

    def main_pid(self) -> int:
        """Return the pid of devwardd as the container sees it; 0 if it does not run."""
        return int(self.unit("MainPID"))

    def active_again(self, after: int = 0) -> int:
        """Wait until devward is active, with another main process than this, and return that one's pid."""

        def pid() -> int:
            found = self.main_pid() if self.unit("ActiveState") == "active" else 0
            return found if found != after else 0

        return until(pid, "devward is active (again)")

    def healthy(self) -> None:
        """Wait until devward vouches for this host."""
        until(lambda: self.unit("ActiveState") == "active" and self.call("devwardctl", "status").status == 0, "devward is ready")

    def cursor(self) -> str:
        """Return where the journal ends now."""
        self.run("journalctl", "--sync")
        return self.run("journalctl", "--lines=1", "--show-cursor").rpartition("-- cursor: ")[2].strip()

    def records(self, after: str, **fields: str) -> list[dict[str, Any]]:
        """Return what devward's unit wrote to the journal since that cursor, those with these fields, oldest first."""
        self.run("journalctl", "--sync")
        # No match beside the cursor: where the entry at the cursor does not match, systemd 252 passes the next one over.
        out = self.run("journalctl", "-o", "json", "--all", f"--after-cursor={after}")
        wanted = {"_SYSTEMD_UNIT": "devward.service", **fields}
        return [record for record in map(json.loads, out.splitlines()) if wanted.items() <= record.items()]

    @contextlib.contextmanager
    def drop_in(self, text: str, *, restart: bool = True) -> Iterator[None]:
        """Change the unit by a drop-in meanwhile, and restart it before and after."""
        self.shell(f"mkdir -p {os.path.dirname(DROP_IN)}")
        self.path(DROP_IN).write_text(text)
        try:
            self.run("systemctl", "daemon-reload")
            if restart:
                self.run("systemctl", "restart", "devward")
            yield
        finally:
            self.run("rm", "-f", DROP_IN)
            self.run("systemctl", "daemon-reload")
            self.run("systemctl", "restart", "devward")
