"""The gRPC side of the device plugin: a server at a socket of its own for the time of one registration.

It runs on the event loop (grpc.aio), so that it answers the kubelet while the kubelet still has our Register to answer
(pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go of kubernetes/kubernetes connects to the plugin first), and no stream keeps a thread.
"""

import asyncio
import logging
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from devward.plugin.messages import DEVICE_PLUGIN, Wire
from devward.plugin.place import PlaceError
from devward.plugin.service import DeviceService, Refused
from devward.plugin.status import PluginProblem
from devward.plugin.streams import MAXIMUM_STREAMS, StreamsFull

_log = logging.getLogger(__name__)

#: Calls at the same time, streams included; more are refused.
_MAXIMUM_CALLS: Final = 2 * MAXIMUM_STREAMS
#: Bytes of a request. Ten thousand ids are 100 KiB.
_MAXIMUM_REQUEST: Final = 1024 * 1024
#: Seconds that calls have to end when the server stops; more than an Allocate takes.
STOP_GRACE: Final = 3.0
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", _MAXIMUM_REQUEST),
)


def address(path: str) -> str:
    """Return the gRPC name of a socket in the file system (grpc/grpc, doc/naming.md), in which a path is written as in a URI."""
    return f"unix:{urllib.parse.quote(path)}"


class PluginServer:
    """One start of the server."""

    def __init__(self, service: DeviceService, wire: Wire, on_broken_off: Callable[[Exception], None]) -> None:
        """Prepare a server on the running loop; it does not listen yet. `on_broken_off` hears of a defect that ended a call."""
        self._service = service
        self._wire = wire
        self._on_broken_off = on_broken_off
        self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_MAXIMUM_CALLS)
        self._server.add_generic_rpc_handlers((self._handlers(),))

    def bind(self, path: str) -> None:
        """Make the socket at this path, where nothing may stand; the file system may block it. PlaceError: then, too, it is to be stopped.

        gRPC lets other threads run meanwhile, and asks nothing of the loop.
        """
        try:
            # 0, or an exception in newer releases, where it cannot be had.
            is_bound = self._server.add_insecure_port(address(path))
        except RuntimeError as error:
            raise PlaceError(PluginProblem.SOCKET_UNUSABLE, f"{path}: {error}") from None
        if not is_bound:
            raise PlaceError(PluginProblem.SOCKET_UNUSABLE, path)

    async def start(self) -> None:
        """Answer whoever connects to the socket. PlaceError: then, too, it is to be stopped."""
        self._service.streams.begin()
        try:
            await self._server.start()
        except RuntimeError as error:
            raise PlaceError(PluginProblem.SOCKET_UNUSABLE, str(error)) from None

    async def stop(self) -> None:
        """End every stream as one ends that has nothing more to say, let calls end, and stop listening.

        gRPC removes the socket by itself where it still stands, on the loop's thread: it is to be removed before.
        """
        self._service.streams.end()
        await self._server.stop(STOP_GRACE)

    def _handlers(self) -> Any:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            DEVICE_PLUGIN,
            {
                "GetDevicePluginOptions": unary(self._options),
                "ListAndWatch": stream(self._list_and_watch),
                "GetPreferredAllocation": unary(self._answering(self._prefer)),
                "Allocate": unary(self._answering(self._allocate)),
                "PreStartContainer": unary(self._pre_start),
            },
        )

    async def _options(self, _request: bytes, _context: Any) -> bytes:
        return self._wire.options(self._service.options)

    async def _list_and_watch(self, _request: bytes, context: Any) -> None:
        try:
            stream = self._service.streams.open()
        except StreamsFull:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"there are {MAXIMUM_STREAMS} streams already")
            return
        try:
            while (item := await stream.next()) is not None:
                await context.write(item)
        except Exception as error:  # noqa: BLE001 # the edge: some releases raise an error of their own when the receiver goes meanwhile
            _log.debug("a stream broke off: %s", error)
        finally:
            self._service.streams.close(stream)

    async def _prefer(self, request: bytes) -> bytes:
        return self._wire.preferred_response(self._service.prefer(self._wire.preferred_request(request)))

    async def _allocate(self, request: bytes) -> bytes:
        return await self._service.allocate(self._wire.allocate_request(request))

    async def _pre_start(self, _request: bytes, _context: Any) -> bytes:
        # Never asked for, and nothing to do: an empty message.
        return b""

    def _answering(self, call: Callable[[bytes], Awaitable[bytes]]) -> Callable[[bytes, Any], Awaitable[bytes]]:
        """Make an RPC of a call; whatever goes wrong in it is a status for the caller, and no text of an exception."""

        async def answer(request: bytes, context: Any) -> bytes:
            try:
                return await call(request)
            except Refused as refused:
                code, text = grpc.StatusCode[refused.code], refused.text
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 # the edge: the kubelet gets a status, the journal the rest
                self._on_broken_off(error)
                code, text = grpc.StatusCode.INTERNAL, "the call broke off, devwardd's journal says why"
            await context.abort(code, text)
            raise AssertionError("abort raises")

        return answer
