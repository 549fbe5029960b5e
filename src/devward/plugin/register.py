"""Tells the kubelet of the device plugin: the one call that is made, on a connection of its own."""

import asyncio
from typing import Final

import grpc
import grpc.aio

from devward.plugin.messages import REGISTRATION
from devward.plugin.place import PlaceError
from devward.plugin.server import address
from devward.plugin.status import PluginProblem

_METHOD: Final = f"/{REGISTRATION}/Register"
#: Without it a proxy of the environment might be asked, and the kubelet would be called by the path of its socket.
_OPTIONS: Final = (("grpc.enable_http_proxy", 0), ("grpc.default_authority", "localhost"), ("grpc.enable_retries", 0))
#: Seconds beyond the call's own deadline after which it is taken for hung.
_SPARE: Final = 1.0


async def register(kubelet_socket: str, request: bytes, deadline: float) -> None:
    """Register within `deadline` seconds. PlaceError: the kubelet does not answer, or refuses."""
    channel = grpc.aio.insecure_channel(address(kubelet_socket), options=_OPTIONS)
    try:
        call = channel.unary_unary(_METHOD)
        async with asyncio.timeout(deadline + _SPARE):
            await call(request, timeout=deadline)
    except grpc.aio.AioRpcError as error:
        detail = f"{error.code().name}: {error.details() or ''}"
        match error.code():
            case grpc.StatusCode.UNAVAILABLE:
                raise PlaceError(PluginProblem.KUBELET_UNREACHABLE, detail) from None
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                raise PlaceError(PluginProblem.KUBELET_SILENT, f"within {deadline:g} s") from None
            case _:
                raise PlaceError(PluginProblem.KUBELET_REFUSES, detail) from None
    except TimeoutError:
        raise PlaceError(PluginProblem.KUBELET_SILENT, f"within {deadline:g} s") from None
    finally:
        await channel.close()
