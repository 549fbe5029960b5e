"""One connection to the API server: GET and nothing else, within bounds of time and size, and cut off from outside.

Sockets have timeouts of their own, but a server that sends a byte now and then keeps within them for ever. So whoever started a request
may end it from any thread (`Cut`). Redirects are not followed, proxies not used, and nothing is asked again: that is decided elsewhere.
"""

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from devward.cluster.api_faults import TIMEOUTS, Phase, fault_of, fault_of_status
from devward.cluster.api_library import Library
from devward.cluster.api_result import ApiError, ApiFault
from devward.cluster.credentials import Credentials

_PIECE: Final = 64 * 1024
#: Of an error only the message is wanted.
_MAX_ERROR: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for each step of a connection; the whole is bounded by whoever cuts."""

    connect: float = 5.0
    read: float = 10.0


class Cut:
    """Ends what a thread does with its connection, from another thread, and remembers that it did."""

    def __init__(self) -> None:
        """Hold no connection yet."""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._done = False

    @property
    def done(self) -> bool:
        """Whether it was cut."""
        return self._done

    def cut(self) -> None:
        """End the connection, and every later one that is held."""
        with self._lock:
            self._done = True
            if self._socket is not None:
                _shut(self._socket)

    def hold(self, connection: socket.socket) -> None:
        """Take a connection that has just been made."""
        with self._lock:
            self._drop()
            # A descriptor of our own: TLS takes the first one over, and may close it at any moment.
            self._socket = connection.dup()
            if self._done:
                _shut(self._socket)

    def release(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side was faster
        connection.shutdown(socket.SHUT_RDWR)


class Connection:
    """A connection with one set of credentials. One thread at a time; `Cut` is for others."""

    def __init__(self, library: Library, credentials: Credentials, cut: Cut, timeouts: Timeouts) -> None:
        """Prepare it; it is made with the first request. ApiError."""
        configuration_module, rest, urllib3 = library.load()
        self._cut = cut
        self._prefix = credentials.kubeconfig.prefix
        self._phase = Phase.CONNECT
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "devward"}
        if credentials.token:
            self._headers["Authorization"] = f"Bearer {credentials.token}"
        self._timeout = urllib3.Timeout(connect=timeouts.connect, read=timeouts.read)
        self._descriptors: list[int] = []
        self._pool: Any = None
        self._manager: Any = None
        try:
            configuration = configuration_module.Configuration()
            # What it has to say of an answer is said here, and bounded.
            logging.getLogger("urllib3").setLevel(logging.CRITICAL)
            # Whatever the environment says.
            configuration.proxy = configuration.no_proxy = configuration.proxy_headers = None
            configuration.host = credentials.kubeconfig.url
            configuration.verify_ssl = True
            configuration.assert_hostname = None
            configuration.connection_pool_maxsize = 1
            configuration.ssl_ca_cert = self._as_file(credentials.authority)
            configuration.cert_file = configuration.key_file = self._as_file(credentials.identity)
            self._manager = rest.RESTClientObject(configuration).pool_manager
            if credentials.kubeconfig.server_name:
                self._manager.connection_pool_kw["server_hostname"] = credentials.kubeconfig.server_name
            self._pool = self._manager.connection_from_url(credentials.kubeconfig.url)
            self._pool.ConnectionCls = self._watched(self._pool.ConnectionCls)
        except BaseException:
            self.close()
            raise

    def get(self, path: str, limit: int) -> bytes:
        """Return the body of a JSON answer with status 200. ApiError; also for more than `limit` bytes."""
        with self._opened(path) as response:
            return self._body(response, limit)

    @contextlib.contextmanager
    def lines(self, path: str, limit: int) -> Iterator[Iterator[bytes]]:
        """Ask for a stream, and give its lines one by one as they come. ApiError; also for a line of more than `limit` bytes."""
        with self._opened(path) as response:
            yield self._lines(response, limit)

    def close(self) -> None:
        """End the connection."""
        if self._pool is not None:
            self._pool.close()
        if self._manager is not None:
            self._manager.clear()
        self._cut.release()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _as_file(self, content: bytes) -> str | None:
        """Return a path for a library that takes paths only, to a file that only this process has."""
        if not content:
            return None
        descriptor = os.memfd_create("devward-tls", os.MFD_CLOEXEC)
        self._descriptors.append(descriptor)
        os.write(descriptor, content)
        return f"/proc/self/fd/{descriptor}"

    def _watched(self, make: Any) -> Any:
        """Return a maker of connections that can be cut off from their first moment, and that tell how far they came."""

        def made(*arguments: Any, **options: Any) -> Any:
            connection = make(*arguments, **options)
            reach, secure = connection._new_conn, connection.connect

            def reached() -> Any:
                self._phase = Phase.CONNECT
                found = reach()
                self._cut.hold(found)
                self._phase = Phase.TLS
                return found

            def secured() -> None:
                secure()
                self._phase = Phase.ANSWER

            connection._new_conn, connection.connect = reached, secured
            return connection

        return made

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        """Send a request, and give the answer once it is known to be JSON with status 200."""
        response = None
        # Of a connection that is made anew the phase goes back.
        self._phase = Phase.ANSWER
        try:
            if self._cut.done:
                raise ApiError(ApiFault.CONNECT_TIMEOUT)
            response = self._pool.urlopen(
                "GET",
                self._prefix + path,
                headers=self._headers,
                retries=False,
                redirect=False,
                timeout=self._timeout,
                preload_content=False,
                decode_content=False,
                enforce_content_length=True,
            )
            # Headers that were cut off look like whole ones.
            if self._cut.done:
                raise ApiError(ApiFault.ANSWER_TIMEOUT)
            self._phase = Phase.BODY
            if response.status != 200:
                raise fault_of_status(response.status, response.headers.get("Retry-After"), self._message(response))
            _require_json(response.headers)
            yield response
            if self._cut.done:
                raise ApiError(TIMEOUTS[self._phase])
        except ApiError as error:
            if self._cut.done and error.fault is not TIMEOUTS[self._phase]:
                raise ApiError(TIMEOUTS[self._phase]) from None
            raise
        except Exception as error:  # noqa: BLE001 # the edge to a foreign library: each becomes a named fault
            if self._cut.done:
                raise ApiError(TIMEOUTS[self._phase]) from None
            raise fault_of(error, self._phase) from None
        finally:
            if response is not None:
                # Only what was read to its end may be used again; of anything else the next answer would not be known.
                if self._phase is Phase.BODY:
                    response.close()
                response.release_conn()

    def _body(self, response: Any, limit: int) -> bytes:
        length = _length(response.headers)
        if length is not None and length > limit:
            raise ApiError(ApiFault.TOO_LARGE, f"{length} bytes")
        body = bytearray()
        for piece in response.stream(_PIECE, decode_content=False):
            body += piece
            if len(body) > limit:
                raise ApiError(ApiFault.TOO_LARGE, f"more than {limit} bytes")
        if self._cut.done:
            raise ApiError(ApiFault.BODY_TIMEOUT)
        if length is not None and len(body) != length:
            raise ApiError(ApiFault.TRUNCATED, f"{len(body)} of {length} bytes")
        self._phase = Phase.ANSWER
        return bytes(body)

    def _lines(self, response: Any, limit: int) -> Iterator[bytes]:
        pending = bytearray()
        for piece in response.stream(_PIECE, decode_content=False):
            pending += piece
            *whole, rest = pending.split(b"\n")
            yield from (bytes(line) for line in whole if line)
            pending = rest
            if len(pending) > limit:
                raise ApiError(ApiFault.TOO_LARGE, f"more than {limit} bytes")

    def _message(self, response: Any) -> str:
        """Return the message of an error's Status, if there is one."""
        try:
            value = json.loads(response.read(_MAX_ERROR, decode_content=False))
        except Exception:  # noqa: BLE001 # the status is known and says enough
            return ""
        message = value.get("message") if isinstance(value, dict) else None
        return message if isinstance(message, str) else ""


def _require_json(headers: Mapping[str, str]) -> None:
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(ApiFault.WRONG_TYPE, f"Content-Type {kind or 'missing'}")
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(ApiFault.WRONG_TYPE, f"Content-Encoding {encoding}")
    if "Content-Length" not in headers and headers.get("Transfer-Encoding", "").strip().lower() != "chunked":
        # It would end with the connection, whatever ended that.
        raise ApiError(ApiFault.TRUNCATED, "it does not say how long it is")


def _length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("Content-Length")
    if text is None or "Transfer-Encoding" in headers:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ApiError(ApiFault.NOT_HTTP, "Content-Length")
    return int(text)
