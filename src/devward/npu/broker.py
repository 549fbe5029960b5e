"""devward-dcmi: the only process that loads the vendor's library of Ascend NPUs. Started by its socket, for devwardd alone.

It answers list, inspect, destroy and witness (devward.npu.protocol), one request at a time, from callers that are root. It is apart from
the daemon because the library may hang or crash, and because the driver takes a process with a mount namespace of its own for a container.
For the same privileges it looks at the host's processes, which are closed to the daemon.

The main thread accepts and watches; each connection has a thread of its own, in which the library is called. What hangs while reading
ends the whole process, and the next connection starts another. Only a call that destroys is waited for, however long it takes.
"""

import argparse
import contextlib
import errno
import functools
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Final

from devward import __version__, names
from devward.collector import settle
from devward.journal import Journal
from devward.logs import Logs
from devward.notify import Notifier
from devward.npu import environment
from devward.npu.caller import Caller
from devward.npu.destruction import DEVICE_DIRECTORY, Scan
from devward.npu.gate import Gate, Phase
from devward.npu.host_scan import scan_host
from devward.npu.host_witness import HostObserver, Observer
from devward.npu.service import Service, Settings

EXIT_OK: Final = 0
EXIT_USAGE: Final = 2
#: EX_SOFTWARE of <sysexits.h>: the library hung.
EXIT_HUNG: Final = 70

#: More than the daemon and a person at work with it need.
CONNECTION_LIMIT: Final = 8
#: Of sd_listen_fds(3).
_FIRST_DESCRIPTOR: Final = 3
#: Columns.
HELP_WIDTH: Final = 100
_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How the broker runs."""

    library: str | None = None
    #: Seconds in one call of the library, or in one scan, after which it counts as hung.
    hang_limit: float = 30.0
    #: Seconds without a connection after which it ends, where there are no NPUs.
    idle_limit: float = 60.0
    lock_file: str = names.BROKER_LOCK_FILE
    device_directory: str = DEVICE_DIRECTORY
    journal_socket: str = names.JOURNAL_SOCKET
    read_environment: Callable[[], environment.Environment] = environment.read
    scan: Scan = scan_host
    observer: Callable[[], Observer] = HostObserver


class Broker:
    """Accepts connections, and watches over what is at work."""

    def __init__(self, listener: socket.socket, options: Options, notifier: Notifier) -> None:
        """Serve on a listening socket."""
        self._listener = listener
        self._options = options
        self._notifier = notifier
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._gate = Gate(options.hang_limit, self._wake)
        settings = Settings(
            options.library, options.lock_file, options.device_directory, options.read_environment, options.scan, options.observer
        )
        self._service = Service(settings, self._gate, notifier)
        self._callers: set[Caller] = set()
        self._stopping = False

    def run(self) -> int:
        """Serve until it is told to end, or has nothing to stay for; return the exit status."""
        with self._signals():
            self._notifier.ready("Waiting for requests")
            return self._watch()

    def _watch(self) -> int:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        pulse = self._notifier.watchdog_interval
        lonely_since = last_pulse = time.monotonic()
        while True:
            now = time.monotonic()
            if self._gate.end_if_hung():
                _log.error("%s does not return after %g s: ending, to start afresh", self._gate.call_name, self._options.hang_limit)
                self._service.say_last_words()
                return EXIT_HUNG
            if self._stopping:
                if self._gate.stop():
                    return EXIT_OK
                if self._listener.fileno() >= 0:
                    # Who connects now is for the next broker, which has the same socket.
                    poll.unregister(self._listener)
                    self._listener.close()
            if self._gate.phase is Phase.IDLE and self._service.outdated and self._gate.stop():
                _log.info("The vendor's library was replaced: ending, to load the new one")
                return EXIT_OK
            waits = [self._gate.patience()]
            if pulse is not None:
                if now >= last_pulse + pulse:
                    self._notifier.watchdog()
                    last_pulse = now
                waits.append(last_pulse + pulse - now)
            if self._callers or not self._service.may_leave:
                lonely_since = now
            elif now >= lonely_since + self._options.idle_limit:
                return EXIT_OK
            else:
                waits.append(lonely_since + self._options.idle_limit - now)
            seconds = min((one for one in waits if one is not None), default=None)
            # Rounded up: what is less than a millisecond must not become a busy wait.
            for descriptor, _ in poll.poll(None if seconds is None else int(seconds * 1000) + 1):
                if descriptor == self._wake_reader:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_reader, 4096)
                else:
                    self._accept()

    def _accept(self) -> None:
        """Take one connection, from root."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.ECONNABORTED}:
                # Out of descriptors or memory: it stays in the queue, which must not become a busy wait.
                _log.error("No connection can be accepted: %s", error.strerror)
                time.sleep(1)
            return
        caller = Caller(connection)
        uid = caller.uid
        if uid != 0:
            _log.warning("A connection of user %d is refused: only root may use the vendor's library", uid)
            caller.close()
        elif len(self._callers) >= CONNECTION_LIMIT:
            _log.warning("A connection is refused: there are %d already", CONNECTION_LIMIT)
            caller.close()
        else:
            self._callers.add(caller)
            threading.Thread(target=self._converse, args=(caller,), name="caller", daemon=True).start()

    def _converse(self, caller: Caller) -> None:
        """Answer the lines of one caller until it goes."""
        # The signals are the main thread's: none must interrupt a call of the library.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            while line := caller.read_line():
                self._service.serve(line, caller)
                if not line.endswith(b"\n"):
                    # Too long, or cut off: where the next one would begin is not known.
                    break
        except OSError as error:
            _log.info("A connection is given up: %s", error)
        finally:
            caller.close()
            self._callers.discard(caller)
            self._wake()

    def _wake(self) -> None:
        # A full pipe wakes as well.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_writer, b"\0")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT."""

        def stop(_number: int, _frame: object) -> None:
            self._stopping = True
            self._notifier.stopping("Stopping")

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        descriptor = signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)


def take_listener(variables: MutableMapping[str, str]) -> socket.socket:
    """Return the socket that the service manager passed on, as sd_listen_fds(3) has it. ValueError: there is none that will do."""
    pid, count = variables.pop("LISTEN_PID", ""), variables.pop("LISTEN_FDS", "")
    variables.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or count != "1":
        raise ValueError("no socket was passed on; devward-dcmi.socket starts this")
    listener = socket.socket(fileno=_FIRST_DESCRIPTOR)
    if (
        listener.family != socket.AF_UNIX
        or listener.type != socket.SOCK_STREAM
        or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ):
        raise ValueError("the socket that was passed on is not a listening UNIX stream socket")
    listener.set_inheritable(False)
    listener.settimeout(0)
    return listener


def serve(options: Options, variables: MutableMapping[str, str]) -> int:
    """Be the broker and return the exit status. Threads that hang may be left: the caller must end the process without waiting for them."""
    try:
        listener = take_listener(variables)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"devward-dcmi: {error}\n")
        return EXIT_USAGE
    Logs(Journal(options.journal_socket, stderr=sys.stderr, identifier=names.BROKER_SYSLOG_IDENTIFIER), "info")
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write("devward-dcmi")
    # With every look at the host what was imported would be gone through.
    settle()
    return Broker(listener, options, Notifier(variables, monotonic=time.monotonic)).run()


def main(arguments: list[str] | None = None) -> int:
    """Run devward-dcmi and return its exit status."""
    parser = argparse.ArgumentParser(
        # To learn the terminal's width, argparse would load shutil, and compression with it, also where nobody asks for help.
        formatter_class=functools.partial(argparse.HelpFormatter, width=HELP_WIDTH),
        prog="devward-dcmi",
        description="Speaks with the vendor's library of Ascend NPUs for devwardd. Started by devward-dcmi.socket.",
        epilog="Exit status: 0 stopped, or there are no NPUs; 2 wrong usage, or no socket was passed on; 70 the vendor's library hung.",
    )
    parser.add_argument("--version", action="version", version=f"devward-dcmi {__version__}")
    parser.add_argument("--library", metavar="FILE", help="load this library instead of the one that the vendor installed")
    given = parser.parse_args(arguments)
    return serve(Options(library=given.library), os.environ)


if __name__ == "__main__":
    # Not sys.exit: it would wait for threads that hang, and run what the library left to be run at the end.
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
