"""Which fault an exception of the transport stands for, or an HTTP status.

urllib3 wraps errors differently in its versions; what they were made of is always in the chain of causes.
"""

import errno
import http.client
import re
import socket
from collections.abc import Iterator
from enum import StrEnum

from devward.cluster.api_result import ApiError, ApiFault


class Phase(StrEnum):
    """How far a request has come."""

    CONNECT = "connect"
    TLS = "tls"
    ANSWER = "answer"
    BODY = "body"


#: What a timeout means.
TIMEOUTS = {
    Phase.CONNECT: ApiFault.CONNECT_TIMEOUT,
    Phase.TLS: ApiFault.CONNECT_TIMEOUT,
    Phase.ANSWER: ApiFault.ANSWER_TIMEOUT,
    Phase.BODY: ApiFault.BODY_TIMEOUT,
}
#: X509_V_ERR_* of OpenSSL's x509_vfy.h: not yet valid, has expired, hostname and IP address mismatch.
_NOT_NOW = frozenset({9, 10})
_OTHER_NAME = frozenset({62, 64})
_STATUS = {
    401: ApiFault.UNAUTHORIZED,
    403: ApiFault.FORBIDDEN,
    404: ApiFault.NOT_FOUND,
    410: ApiFault.GONE,
    429: ApiFault.TOO_MANY_REQUESTS,
}
#: Seconds: Retry-After is respected up to here, so that no answer can put the next look off for ever.
MAX_WAIT = 300.0
_DEFAULT_WAIT = 1.0
_SECONDS = re.compile(r"[0-9]{1,9}", re.ASCII)


def fault_of(error: BaseException, phase: Phase) -> ApiError:
    """Return what an exception means that ended a request in this phase."""
    import ssl

    chain = list(_chain(error))
    for cause in chain:
        if isinstance(cause, ApiError):
            return cause
        if isinstance(cause, ssl.SSLCertVerificationError):
            if cause.verify_code in _NOT_NOW:
                return ApiError(ApiFault.SERVER_CERTIFICATE_EXPIRED, cause.verify_message)
            fault = ApiFault.SERVER_OTHER_NAME if cause.verify_code in _OTHER_NAME else ApiFault.SERVER_UNTRUSTED
            return ApiError(fault, cause.verify_message)
        # urllib3 1.26 compares the names itself, and has a class of its own for what does not fit; no request was sent yet.
        if isinstance(cause, ValueError) and type(cause).__name__ == "CertificateError":
            return ApiError(ApiFault.SERVER_OTHER_NAME, str(cause))
        if isinstance(cause, ssl.SSLError) and "ALERT" in (cause.reason or ""):
            if "EXPIRED" in cause.reason:
                return ApiError(ApiFault.CERTIFICATE_EXPIRED, cause.reason)
            # What a server sends that does not take our certificate, and nothing else (RFC 8446, 6.2).
            ours = any(word in cause.reason for word in ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED"))
            return ApiError(ApiFault.CREDENTIALS_REFUSED if ours else ApiFault.TLS_FAILED, cause.reason)
    for cause in chain:
        if isinstance(cause, socket.gaierror):
            return ApiError(ApiFault.NAME_UNRESOLVED, cause.strerror or str(cause))
        if isinstance(cause, TimeoutError):
            return ApiError(TIMEOUTS[phase])
        if isinstance(cause, ConnectionRefusedError):
            return ApiError(ApiFault.CONNECTION_REFUSED)
        if isinstance(cause, (http.client.IncompleteRead, http.client.RemoteDisconnected)) or (phase is Phase.BODY and _is_reset(cause)):
            return ApiError(ApiFault.TRUNCATED if phase is Phase.BODY else ApiFault.CLOSED)
        if isinstance(cause, ssl.SSLEOFError) and phase is Phase.ANSWER:
            return ApiError(ApiFault.CLOSED)
        if isinstance(cause, ssl.SSLError):
            return ApiError(ApiFault.TLS_FAILED, cause.reason or str(cause))
        if _is_reset(cause):
            return ApiError(ApiFault.CLOSED if phase is Phase.ANSWER else ApiFault.TLS_FAILED, "the connection was closed")
        if isinstance(cause, http.client.HTTPException):
            return ApiError(ApiFault.TRUNCATED if phase is Phase.BODY else ApiFault.NOT_HTTP, str(cause))
        if isinstance(cause, OSError) and cause.errno is not None:
            if cause.errno == errno.ETIMEDOUT:
                return ApiError(TIMEOUTS[phase])
            return ApiError(ApiFault.UNREACHABLE, cause.strerror or "")
    if phase is Phase.BODY:
        return ApiError(ApiFault.TRUNCATED, type(error).__name__)
    return ApiError(ApiFault.FAILED, f"{type(error).__name__}: {error}")


def fault_of_status(status: int, retry_after: str | None, detail: str) -> ApiError:
    """Return what a status other than 200 means. `detail` is the server's own message."""
    wait = None
    if status in (429, 503):
        # A date instead of seconds would be of another clock.
        seconds = float(retry_after) if retry_after is not None and _SECONDS.fullmatch(retry_after) else _DEFAULT_WAIT
        wait = min(seconds, MAX_WAIT)
    if status in _STATUS:
        fault = _STATUS[status]
    elif 300 <= status < 400:
        fault = ApiFault.REDIRECTED
    else:
        fault = ApiFault.SERVER_ERROR if 500 <= status < 600 else ApiFault.ODD_STATUS
    return ApiError(fault, f"{status}: {detail}" if detail else str(status), status=status, wait=wait)


def _is_reset(error: BaseException) -> bool:
    return isinstance(error, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all that it came of, each once."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [current.__cause__, current.__context__]
        waiting += [argument for argument in current.args if isinstance(argument, BaseException)]
        reason = getattr(current, "reason", None)
        waiting.append(reason if isinstance(reason, BaseException) else None)
