#!/usr/bin/python3
"""A stand-in for the kubelet's side of device plugins: it registers them, listens for their devices, and asks for allocations.

It calls in the order of the real one (pkg/kubelet/cm/devicemanager/plugin/v1beta1 in kubernetes/kubernetes): from inside Register it
connects to the plugin and asks for its options, and answers only then; after that it opens ListAndWatch. When it starts it removes every
socket in its directory and calls nobody. It speaks gRPC by threads, as a kubelet shares no event loop with a plugin.

By hand: `/usr/bin/python3 tests/sim/kubelet_plugins.py --help`.
"""

import argparse
import contextlib
import os
import re
import socket
import stat
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from devward.plugin.messages import message_classes

#: The kubelet's limit on what it receives, and on how long it takes to connect (client.go, `dial`).
MAXIMUM_MESSAGE: Final = 4 * 1024 * 1024
DIAL_SECONDS: Final = 10.0
PATIENCE: Final = 60.0
SOCKET: Final = "kubelet.sock"
CHECKPOINT: Final = "kubelet_internal_checkpoint"
_VERSIONS: Final = ("v1beta1",)
_RESOURCE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass
class Faults:
    """How it misbehaves; each may be changed while it runs."""

    #: Register is not answered while this is set.
    hang_register: threading.Event = field(default_factory=threading.Event)
    #: The error that Register gets; empty: none.
    refuse_register: str = ""
    #: It cannot connect to the plugin (as with a wrong SELinux label).
    refuse_dial: bool = False
    #: It takes the registration and never opens the stream.
    no_stream: bool = False
    #: It gives the path of the socket as :authority, as kubelets before 1.26 do.
    path_as_authority: bool = False


class Plugin:
    """A plugin as the kubelet knows it."""

    def __init__(self, kubelet: "Kubelet", resource: str, endpoint: str) -> None:
        self.resource = resource
        self.endpoint = endpoint
        self.lists: list[dict[str, str]] = []
        #: How the latest stream ended: the name of its status; empty while it is open.
        self.ended = ""
        path = kubelet.directory / endpoint
        authority = str(path) if kubelet.faults.path_as_authority else "localhost"
        options = (("grpc.max_receive_message_length", MAXIMUM_MESSAGE), ("grpc.default_authority", authority))
        self._messages = kubelet.messages
        self._channel = grpc.insecure_channel(f"unix:{urllib.parse.quote(str(path))}", options=options)
        self._streams: list[Any] = []
        if kubelet.faults.refuse_dial:
            raise ConnectionError("the plugin cannot be reached")
        grpc.channel_ready_future(self._channel).result(timeout=DIAL_SECONDS)

    def call(self, method: str, request: Any, answer: str, timeout: float | None = None) -> Any:
        """Call the plugin; without a time limit, as the kubelet does for Allocate."""
        return self.start(method, request, answer, timeout).result()

    def start(self, method: str, request: Any, answer: str, timeout: float | None = None) -> Any:
        """Begin a call, and return its future."""
        return self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self._messages[answer].FromString,
        ).future(request, timeout=timeout)

    def options(self) -> Any:
        return self.call("GetDevicePluginOptions", self._messages["Empty"](), "DevicePluginOptions", DIAL_SECONDS)

    def listen(self, kubelet: "Kubelet | None" = None) -> "list[dict[str, str]]":
        """Open a stream; with a kubelet its lists are this plugin's devices. Return where its lists will be."""
        lists = self.lists if kubelet is not None else []
        stream = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self._messages["ListAndWatchResponse"].FromString,
        )(self._messages["Empty"]())
        self._streams.append(stream)
        threading.Thread(target=self._receive, args=(stream, lists, kubelet), daemon=True).start()
        return lists

    def allocation(self, *containers: "list[str]") -> Any:
        """Begin to allocate these ids to containers, one list each, and return the future of the response."""
        container = self._messages["ContainerAllocateRequest"]
        request = self._messages["AllocateRequest"](container_requests=[container(devices_ids=ids) for ids in containers])
        return self.start("Allocate", request, "AllocateResponse")

    def healthy(self) -> set[str]:
        return {name for name, health in self.lists[-1].items() if health == "Healthy"} if self.lists and not self.ended else set()

    def stop_listening(self) -> None:
        for stream in self._streams:
            stream.cancel()

    def close(self) -> None:
        self.stop_listening()
        self._channel.close()

    def _receive(self, stream: Any, lists: "list[dict[str, str]]", kubelet: "Kubelet | None") -> None:
        try:
            for message in stream:
                lists.append({device.ID: device.health for device in message.devices})
                if kubelet is not None:
                    kubelet.changed()
        except grpc.RpcError:
            pass
        if kubelet is not None:
            self.ended = stream.code().name
            kubelet.changed()


class Kubelet:
    """One kubelet; it is started, stopped, killed and started again, over one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.faults = Faults()
        self.messages = message_classes()
        #: What happened, in order: (what, endpoint).
        self.log: list[tuple[str, str]] = []
        self.plugins: dict[str, Plugin] = {}
        #: Every plugin that was ever taken on.
        self.past: list[Plugin] = []
        self.starts = 0
        self._server: grpc.Server | None = None
        self._past_servers: list[grpc.Server] = []
        self._condition = threading.Condition()

    # --- its life ---

    def start(self) -> None:
        """Start as a kubelet does: remove every socket, then listen."""
        self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for entry in self.directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a plugin that stops removes its own
                if stat.S_ISSOCK(entry.lstat().st_mode):
                    entry.unlink()
        messages = self.messages
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        register = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=messages["RegisterRequest"].FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register}),))
        assert self._server.add_insecure_port(f"unix:{urllib.parse.quote(str(self.directory / SOCKET))}")
        self._server.start()
        self.starts += 1

    def stop(self) -> None:
        """End, and remove the socket, as the kubelet's server does."""
        self.faults.hang_register.clear()
        for plugin in self.plugins.values():
            plugin.close()
        self.plugins.clear()
        if self._server is not None:
            # It does not listen any more; that the server waits for a connection to be over, up to 10 s, is of no interest.
            self._server.stop(None).wait(1)
            self._past_servers.append(self._server)  # letting go of it waits, too
            self._server = None
        (self.directory / SOCKET).unlink(missing_ok=True)

    def kill(self) -> None:
        """End without removing the socket: it stays, and nobody listens."""
        self.stop()
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(self.directory / SOCKET))

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> "Kubelet":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for plugin in self.past:
            plugin.close()

    # --- what it knows ---

    def changed(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def wait(self, condition: Callable[[], Any], what: str = "the condition", patience: float = PATIENCE) -> Any:
        """Wait for something to come true of what this kubelet knows."""
        end = time.monotonic() + patience
        with self._condition:
            while not (result := condition()):
                assert time.monotonic() < end, f"{what} did not come true within {patience:g} s; {self.log}"
                self._condition.wait(0.05)
        return result

    def plugin(self, resource: str) -> Plugin:
        """Wait until a plugin for this resource has told its devices on an open stream."""

        def found() -> Plugin | None:
            plugin = self.plugins.get(resource)
            return plugin if plugin is not None and plugin.lists and not plugin.ended else None

        plugin = self.wait(found, f"a plugin for {resource}")
        assert isinstance(plugin, Plugin)
        return plugin

    def capacity(self, resource: str) -> int:
        """How many devices of a resource Pods may have now."""
        plugin = self.plugins.get(resource)
        return len(plugin.healthy()) if plugin is not None else 0

    # --- Registration ---

    def _register(self, request: Any, context: Any) -> Any:
        self.log.append(("Register", request.endpoint))
        while self.faults.hang_register.is_set():
            time.sleep(0.01)
            if not context.is_active():
                return self.messages["Empty"]()
        if self.faults.refuse_register:
            context.abort(grpc.StatusCode.UNKNOWN, self.faults.refuse_register)
        if request.version not in _VERSIONS:
            context.abort(grpc.StatusCode.UNKNOWN, f"requested API version {request.version} is not supported")
        if not _RESOURCE.fullmatch(request.resource_name) or "kubernetes.io/" in request.resource_name:
            context.abort(grpc.StatusCode.UNKNOWN, f"the ResourceName {request.resource_name} is invalid")
        try:
            plugin = Plugin(self, request.resource_name, request.endpoint)
            plugin.options()
        except (grpc.RpcError, grpc.FutureTimeoutError, ConnectionError) as error:
            context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {type(error).__name__}")
        self.log.append(("GetDevicePluginOptions", request.endpoint))
        before = self.plugins.get(request.resource_name)
        self.plugins[request.resource_name] = plugin
        self.past.append(plugin)
        if before is not None:
            before.close()
        if not self.faults.no_stream:
            # In a goroutine of its own: it may come before the answer to Register or after it.
            plugin.listen(self)
            self.log.append(("ListAndWatch", request.endpoint))
        self.changed()
        return self.messages["Empty"]()


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Kubelet]:
    """A kubelet over a directory, ended at the end."""
    with Kubelet(directory) as kubelet:
        yield kubelet


def main() -> None:
    """Be a kubelet until interrupted, and print what happens; a line on standard input is a command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("directory", type=Path, help="the directory of device plugins; its sockets are removed")
    arguments = parser.parse_args()
    print("commands: show, allocate RESOURCE ID..., restart, kill, start, hang, answer, quit", flush=True)
    with running(arguments.directory) as kubelet:
        for line in sys.stdin:
            match line.split():
                case ["show"]:
                    for resource, plugin in kubelet.plugins.items():
                        print(resource, plugin.endpoint, kubelet.capacity(resource), plugin.ended or "listening")
                case ["allocate", resource, *ids] if resource in kubelet.plugins:
                    try:
                        print(kubelet.plugins[resource].allocation(ids).result())
                    except grpc.RpcError as error:
                        print(error)
                case ["restart"]:
                    kubelet.restart()
                case ["kill"]:
                    kubelet.kill()
                case ["start"]:
                    kubelet.start()
                case ["hang"]:
                    kubelet.faults.hang_register.set()
                case ["answer"]:
                    kubelet.faults.hang_register.clear()
                case ["quit"]:
                    break
                case _:
                    print("what?")
            sys.stdout.flush()


if __name__ == "__main__":
    os.umask(0o022)
    main()
