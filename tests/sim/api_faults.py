"""How the stand-in of the API server misbehaves: each a function that answers a request in the place of the true answer.

What only changes the content of a list stands in api_lists.py.
"""

import gzip
import json
from collections.abc import Callable
from typing import Any, Protocol

from devward.cluster.api_result import ApiFault
from sim.recorded_cluster import error_body


class Exchange(Protocol):
    """A request that waits for its answer."""

    @property
    def true_body(self) -> bytes: ...

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""

    def head(self, status: int, *headers: tuple[str, str]) -> None:
        """Send a status and headers."""

    def hang(self) -> None:
        """Wait until the client goes away, or the server is closed."""

    def pause(self, seconds: float) -> bool:
        """Wait; False when the server is closed."""


JSON = ("Content-Type", "application/json")


def status(code: int, reason: str, message: str, *headers: tuple[str, str]) -> Callable[[Exchange], None]:
    """Answer with an error as the API server words it."""
    value = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code}
    return body(json.dumps(value).encode(), code, *headers)


def body(content: bytes, code: int = 200, *headers: tuple[str, str]) -> Callable[[Exchange], None]:
    """Answer with this content."""

    def answer(exchange: Exchange) -> None:
        exchange.head(code, JSON, ("Content-Length", str(len(content))), *headers)
        exchange.raw(content)

    return answer


def too_many(seconds: str) -> Callable[[Exchange], None]:
    """Ask for fewer requests, with this Retry-After."""
    return status(429, "TooManyRequests", "please try again later", ("Retry-After", seconds))


def redirect(to: str, code: int = 302) -> Callable[[Exchange], None]:
    """Point elsewhere."""
    return body(b"", code, ("Location", to))


def _typed(kind: str) -> Callable[[Exchange], None]:
    def answer(exchange: Exchange) -> None:
        exchange.head(200, ("Content-Type", kind), ("Content-Length", str(len(exchange.true_body))))
        exchange.raw(exchange.true_body)

    return answer


def _gzipped(exchange: Exchange) -> None:
    packed = gzip.compress(exchange.true_body)
    exchange.head(200, JSON, ("Content-Encoding", "gzip"), ("Content-Length", str(len(packed))))
    exchange.raw(packed)


def _hang_in_headers(exchange: Exchange) -> None:
    exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Ty")
    exchange.hang()


def _hang_in_body(exchange: Exchange) -> None:
    exchange.head(200, JSON, ("Content-Length", str(len(exchange.true_body))))
    exchange.raw(exchange.true_body[:100])
    exchange.hang()


def _trickle(exchange: Exchange) -> None:
    exchange.head(200, JSON, ("Content-Length", str(len(exchange.true_body))))
    for number in range(len(exchange.true_body)):
        exchange.raw(exchange.true_body[number : number + 1])
        if not exchange.pause(0.05):
            return


def _truncated(exchange: Exchange) -> None:
    exchange.head(200, JSON, ("Content-Length", str(len(exchange.true_body))), ("Connection", "close"))
    exchange.raw(exchange.true_body[:-1])


def _truncated_chunks(exchange: Exchange) -> None:
    exchange.head(200, JSON, ("Transfer-Encoding", "chunked"))
    exchange.raw(chunk(exchange.true_body))


def _truncated_chunk(exchange: Exchange) -> None:
    exchange.head(200, JSON, ("Transfer-Encoding", "chunked"))
    exchange.raw(chunk(exchange.true_body)[:-20])


def _odd_chunk(exchange: Exchange) -> None:
    exchange.head(200, JSON, ("Transfer-Encoding", "chunked"))
    exchange.raw(b"no number\r\n" + exchange.true_body)


def _without_length(exchange: Exchange) -> None:
    exchange.head(200, JSON, ("Connection", "close"))
    exchange.raw(exchange.true_body)


def _huge(exchange: Exchange) -> None:
    exchange.head(200, JSON, ("Content-Length", str(2**40)))
    _pour(exchange, b" " * 65536)


def _endless(exchange: Exchange) -> None:
    exchange.head(200, JSON, ("Transfer-Encoding", "chunked"))
    _pour(exchange, chunk(b" " * 65536))


def _endless_error(exchange: Exchange) -> None:
    exchange.head(500, JSON, ("Transfer-Encoding", "chunked"))
    _pour(exchange, chunk(b" " * 65536))


def _pour(exchange: Exchange, piece: bytes) -> None:
    while exchange.pause(0):
        exchange.raw(piece)


def _many_headers(exchange: Exchange) -> None:
    exchange.raw(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 10_000)


def chunk(content: bytes) -> bytes:
    """Return one chunk of a body."""
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


#: Each by its name on the command line.
FAULTS: dict[str, Callable[[Exchange], Any]] = {
    "unauthorized": body(error_body("err-401-bad-token.json"), 401),
    "forbidden": body(error_body("err-get-other-node.json"), 403),
    "not-found": status(404, "NotFound", 'nodes "lab" not found'),
    "gone": status(410, "Expired", "The provided continue parameter is too old"),
    "too-many": too_many("30"),
    "too-many-for-ever": too_many("999999999"),
    "too-many-odd": too_many("Wed, 21 Oct 2026 07:28:00 GMT"),
    "server-error": status(500, "InternalError", "etcdserver: request timed out"),
    "unavailable": status(503, "ServiceUnavailable", "apiserver not ready", ("Retry-After", "5")),
    "gateway": body(b"<html>", 504),
    "teapot": status(418, "Teapot", "short and stout"),
    "no-content": lambda exchange: exchange.head(204),
    "redirect": redirect("/elsewhere"),
    "redirect-permanent": redirect("https://127.0.0.1:1/", 308),
    "hang-before": lambda exchange: exchange.hang(),
    "hang-in-headers": _hang_in_headers,
    "hang-in-body": _hang_in_body,
    "trickle": _trickle,
    "close": lambda exchange: None,
    "truncated": _truncated,
    "truncated-chunks": _truncated_chunks,
    "truncated-chunk": _truncated_chunk,
    "odd-chunk": _odd_chunk,
    "without-length": _without_length,
    "html": _typed("text/html"),
    "protobuf": _typed("application/vnd.kubernetes.protobuf"),
    "untyped": _typed(""),
    "gzip": _gzipped,
    "huge": _huge,
    "endless": _endless,
    "endless-error": _endless_error,
    "not-http": lambda exchange: exchange.raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "many-headers": _many_headers,
}
#: After these the connection cannot be used again.
CLOSING = frozenset(
    {
        *("hang-before", "hang-in-headers", "hang-in-body", "trickle", "close", "truncated", "truncated-chunks", "truncated-chunk"),
        *("odd-chunk", "without-length", "huge", "endless", "endless-error", "not-http", "many-headers"),
    }
)
#: What each must be taken for.
EXPECTED = {
    "unauthorized": ApiFault.UNAUTHORIZED,
    "forbidden": ApiFault.FORBIDDEN,
    "not-found": ApiFault.NOT_FOUND,
    "gone": ApiFault.GONE,
    "too-many": ApiFault.TOO_MANY_REQUESTS,
    "too-many-for-ever": ApiFault.TOO_MANY_REQUESTS,
    "too-many-odd": ApiFault.TOO_MANY_REQUESTS,
    "server-error": ApiFault.SERVER_ERROR,
    "unavailable": ApiFault.SERVER_ERROR,
    "gateway": ApiFault.SERVER_ERROR,
    "teapot": ApiFault.ODD_STATUS,
    "no-content": ApiFault.ODD_STATUS,
    "redirect": ApiFault.REDIRECTED,
    "redirect-permanent": ApiFault.REDIRECTED,
    "close": ApiFault.CLOSED,
    "truncated": ApiFault.TRUNCATED,
    "truncated-chunks": ApiFault.TRUNCATED,
    "truncated-chunk": ApiFault.TRUNCATED,
    "odd-chunk": ApiFault.TRUNCATED,
    "without-length": ApiFault.TRUNCATED,
    "html": ApiFault.WRONG_TYPE,
    "protobuf": ApiFault.WRONG_TYPE,
    "untyped": ApiFault.WRONG_TYPE,
    "gzip": ApiFault.WRONG_TYPE,
    "huge": ApiFault.TOO_LARGE,
    "endless": ApiFault.TOO_LARGE,
    "endless-error": ApiFault.SERVER_ERROR,
    "not-http": ApiFault.NOT_HTTP,
    "many-headers": ApiFault.NOT_HTTP,
    "hang-before": ApiFault.ANSWER_TIMEOUT,
    "hang-in-headers": ApiFault.ANSWER_TIMEOUT,
    "hang-in-body": ApiFault.BODY_TIMEOUT,
    "trickle": ApiFault.BODY_TIMEOUT,
}
