"""The device plugin against a kubelet's stand-in: streams, Allocate, kubelets that restart, and what it costs at rest."""

import contextlib
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from bench import idle
from bench.allocation import ATTEMPTS, freeze_child
from bench.device import HANDS
from bench.figure import Bar, Figure, Figures
from bench.setting import Broken, need_kvm, scratch, settle
from sim.cgroups import FreezerGroup
from sim.daemon_process import DaemonProcess, wait_for
from sim.kubelet_plugins import Kubelet

RESOURCE = "hyperlight.dev/hypervisor"
STREAMS = 64
SLOTS = 2000
#: Calls while the helper hangs.
CALLS = 16
BUDGET = Bar("worst", 2.0)


def measure(quick: bool) -> Figures:
    """Yield latencies first, then a daemon at rest that has a kubelet."""
    need_kvm()
    with _daemon() as (process, kubelet):
        values = _transitions(process, kubelet, 4 if quick else 100)
        yield Figure(f"plugin: removed -> {STREAMS} streams", "ms", values, Bar("worst", 50), f"{SLOTS} slots, the last of the streams")
        yield Figure("plugin: Allocate", "s", _allocations(kubelet, 10 if quick else 500), BUDGET, "with a probe that starts a VM each")
        yield Figure("plugin: Allocate, helper hangs", "s", _while_hung(process, kubelet), BUDGET, f"{CALLS} at once, all refused")
        yield Figure("plugin: kubelet up -> devices told", "s", _restarts(kubelet, 3 if quick else 100), Bar("worst", 5))
    with _daemon() as (process, _):
        rest = idle.at_rest(process, quick)
    yield from idle.figures(rest, "plugin: ", bars=False)


@contextlib.contextmanager
def _daemon() -> Iterator[tuple[DaemonProcess, Kubelet]]:
    """A devwardd with the plugin on that a kubelet took."""
    with scratch() as directory, Kubelet(directory / "plugins") as kubelet:
        config = f'[device_plugin]\nenabled = true\nslots = {SLOTS}\ndirectory = "{kubelet.directory}"\n'
        with DaemonProcess(directory, config=config, private_devices=True) as process:
            process.start()
            settle(process)
            kubelet.plugin(RESOURCE)
            yield process, kubelet


class _Streams:
    """Streams of which only the moment counts at which a list arrives: taking it apart is the kubelet's work."""

    def __init__(self, socket: Path, count: int) -> None:
        self.arrivals: list[list[int]] = [[] for _ in range(count)]
        options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        self._channel = grpc.insecure_channel(f"unix:{urllib.parse.quote(str(socket))}", options=options)
        for arrivals in self.arrivals:
            stream = self._channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
            threading.Thread(target=self._receive, args=(stream, arrivals), daemon=True).start()
        self.wait(1)

    def wait(self, count: int) -> None:
        wait_for(lambda: all(len(arrivals) >= count for arrivals in self.arrivals), what=f"list {count} on every stream")

    def close(self) -> None:
        self._channel.close()

    @staticmethod
    def _receive(stream: Any, arrivals: list[int]) -> None:
        with contextlib.suppress(grpc.RpcError):
            for _ in stream:
                arrivals.append(time.monotonic_ns())


def _transitions(process: DaemonProcess, kubelet: Kubelet, count: int) -> list[float]:
    """Remove the device and bring it back, again and again; return the milliseconds until the last stream knew that it was gone."""
    streams = _Streams(kubelet.directory / kubelet.plugin(RESOURCE).endpoint, STREAMS)
    command = ["nsenter", f"--mount=/proc/{process.pid}/ns/mnt", sys.executable, "-c", HANDS]
    values = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as hands:
        assert hands.stdin is not None
        assert hands.stdout is not None
        for number in range(count):
            hands.stdin.write("remove\n")
            begin = int(hands.stdout.readline())
            streams.wait(2 * number + 2)
            values.append((max(arrivals[2 * number + 1] for arrivals in streams.arrivals) - begin) / 1e6)
            hands.stdin.write("make\n")
            hands.stdout.readline()
            streams.wait(2 * number + 3)
        hands.stdin.close()
    streams.close()
    settle(process)
    return values


def _allocations(kubelet: Kubelet, count: int) -> list[float]:
    plugin, values = kubelet.plugin(RESOURCE), []
    for number in range(count):
        begin = time.monotonic()
        plugin.allocation([f"kvm-{number}"]).result()
        values.append(time.monotonic() - begin)
    return values


def _while_hung(process: DaemonProcess, kubelet: Kubelet) -> list[float]:
    """One call starts the check whose helper then hangs; the others come while it does."""
    plugin = kubelet.plugin(RESOURCE)
    ends: list[tuple[float, Any]] = []

    def begin() -> Any:
        start = time.monotonic()
        call = plugin.allocation(["kvm-0"])
        call.add_done_callback(lambda _: ends.append((time.monotonic() - start, call.code())))
        return call

    with FreezerGroup("bench-plugin") as group:
        for _ in range(ATTEMPTS):
            ends.clear()
            first = begin()
            if freeze_child(process.pid, group):
                break
            first.result()
        else:
            raise Broken("no helper could be frozen")
        for _ in range(CALLS - 1):
            begin()
        wait_for(lambda: len(ends) == CALLS, what="an answer to every call")
    if {code for _, code in ends} != {grpc.StatusCode.FAILED_PRECONDITION}:
        raise Broken(f"allowed although the helper hangs: {ends}")
    kubelet.wait(lambda: kubelet.capacity(RESOURCE) == SLOTS, "the device to recover")
    return [seconds for seconds, _ in ends]


def _restarts(kubelet: Kubelet, count: int) -> list[float]:
    values = []
    for _ in range(count):
        kubelet.stop()
        begin = time.monotonic()
        kubelet.start()
        kubelet.plugin(RESOURCE)
        values.append(time.monotonic() - begin)
    return values
