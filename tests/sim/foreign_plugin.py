"""Somebody else's device plugin, which knows as much as one needs to: it lists its devices and registers once."""

import urllib.parse
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from devward.plugin.messages import message_classes


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())


class ForeignPlugin:
    """Serves devices at a socket; `register` tells a kubelet of them."""

    def __init__(self, directory: Path, name: str, ids: tuple[str, ...] = ("kvm-0",)) -> None:
        self._directory, self._name, self._ids = directory, name, ids
        self._messages = message_classes()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        handlers = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),))

    def __enter__(self) -> "ForeignPlugin":
        assert self._server.add_insecure_port(f"unix:{urllib.parse.quote(str(self._directory / self._name))}")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def register(self, resource: str) -> None:
        request = self._messages["RegisterRequest"](version="v1beta1", endpoint=self._name, resource_name=resource)
        with grpc.insecure_channel(f"unix:{urllib.parse.quote(str(self._directory / 'kubelet.sock'))}") as channel:
            channel.unary_unary("/v1beta1.Registration/Register", request_serializer=_bytes)(request, timeout=30)

    def _list(self, _request: bytes, context: Any) -> Iterator[bytes]:
        device = self._messages["Device"]
        yield _bytes(self._messages["ListAndWatchResponse"](devices=[device(ID=name, health="Healthy") for name in self._ids]))
        closed = futures.Future[None]()
        context.add_callback(lambda: closed.set_result(None))
        closed.result()
