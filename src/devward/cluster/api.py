"""The API server, asked with GET for this host's own Node, its Lease and its Pods, and for nothing else.

The Pods are asked for in one list without a resource version and without a limit: only that is read from the store itself, and says of
one moment what is not there (Kubernetes API concepts, "Resource versions"). The node authorizer lets a kubelet's credentials see exactly
these three (plugin/pkg/auth/authorizer/node in kubernetes/kubernetes).

Everything that may block runs in one thread. No exception leaves `Api.look`: what goes wrong is an ApiProblem.
"""

import asyncio
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from devward.cluster.answer import MAX_BYTES
from devward.cluster.api_library import Library
from devward.cluster.api_result import ApiAnswer, ApiError, ApiFault, ApiLook, ApiProblem, ApiResult
from devward.cluster.certificate import Certificate
from devward.cluster.credentials import CredentialReader, Credentials
from devward.cluster.transport import Connection, Cut, Timeouts
from devward.names import NODE_NAME
from devward.worker import Worker, WorkerHung

#: Seconds between two times that credentials which were refused are read again within one look.
_REFUSED_AGAIN: Final = 60.0
#: Seconds that a thread gets to end once its connection was cut.
_CUT_GRACE: Final = 2.0
_MAX_NODE: Final = 4 * 1024 * 1024
_MAX_LEASE: Final = 256 * 1024
#: After these the rest of a look is not asked for: it would end in the same way, or is what the server asked not to be sent.
_STOPS: Final = frozenset({ApiFault.UNAUTHORIZED, ApiFault.TOO_MANY_REQUESTS})


class _Query(StrEnum):
    NODE = "node"
    LEASE = "lease"
    PODS = "pods"


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """How the API server is asked."""

    kubeconfig: str
    #: Whether a program that the kubeconfig names may be started.
    allow_exec: bool = False
    timeouts: Timeouts = field(default_factory=Timeouts)
    #: Seconds for a whole look.
    deadline: float = 30.0
    #: Bytes of a list.
    max_list: int = MAX_BYTES


class Api:
    """Asks the API server, one look at a time."""

    def __init__(
        self, settings: ApiSettings, *, monotonic: Callable[[], float], realtime_usec: Callable[[], int], library: Library | None = None
    ) -> None:
        """Load nothing and connect to nothing yet."""
        self._settings = settings
        self._monotonic = monotonic
        self._realtime_usec = realtime_usec
        self._library = library or Library()
        self._reader = CredentialReader(settings.kubeconfig, allow_exec=settings.allow_exec, realtime_usec=realtime_usec)
        self._worker = Worker("api")
        self._certificate: Certificate | None = None
        self._refused_at: float | None = None
        #: What the server asked for: no request before then.
        self._held_back: ApiProblem | None = None

    @property
    def certificate(self) -> Certificate | None:
        """The client certificate of the latest look; None: not known, or there is none."""
        return self._certificate

    @property
    def warning(self) -> str:
        """A sentence about the client certificate where somebody should look at it; else empty."""
        return self._certificate.warning(self._realtime_usec()) if self._certificate is not None else ""

    async def look(self, node: str = "", *, pods: bool = True) -> ApiLook:
        """Ask for the Node, its Lease and, with `pods`, its Pods. An empty name stands for the Node of the client certificate."""
        now = self._monotonic()
        if self._held_back is not None and now < (self._held_back.retry_at or 0.0):
            return _alike(self._held_back, pods=pods)
        cut = Cut()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._settings.deadline, cut.cut)
        try:
            look = await self._worker.run(lambda: self._look(node, cut, pods=pods), self._settings.deadline + _CUT_GRACE)
        except WorkerHung:
            return _alike(ApiError(ApiFault.HUNG).problem(self._monotonic()), pods=pods)
        finally:
            timer.cancel()
            # Also where the caller went away: nobody waits for the rest.
            cut.cut()
        results = (look.node, look.lease, look.pods)
        held = [result for result in results if isinstance(result, ApiProblem) and result.retry_at is not None]
        self._held_back = max(held, key=lambda problem: problem.retry_at or 0.0, default=None)
        return look

    def close(self) -> None:
        """Let the thread end once it is idle."""
        self._worker.close()

    # --- in the thread ---

    def _look(self, node: str, cut: Cut, *, pods: bool) -> ApiLook:
        try:
            return self._asked(node, cut, pods=pods)
        except ApiError as error:
            return _alike(error.problem(self._monotonic()), pods=pods)
        except Exception as error:  # noqa: BLE001 # the edge: whatever it is, the cluster is not known
            return _alike(ApiError(ApiFault.FAILED, f"{type(error).__name__}: {error}").problem(self._monotonic()), pods=pods)

    def _asked(self, node: str, cut: Cut, *, pods: bool) -> ApiLook:
        # Before the credentials are looked at: without the library they are of no use.
        self._library.load()
        credentials = self._read()
        name = node or (credentials.certificate.node if credentials.certificate is not None else "")
        queries = (_Query.NODE, _Query.LEASE, _Query.PODS) if pods else (_Query.NODE, _Query.LEASE)
        if not NODE_NAME.fullmatch(name):
            raise ApiError(ApiFault.NODE_NAME_ODD, name)
        results = self._run(queries, name, credentials, cut)
        first = results[_Query.NODE]
        if isinstance(first, ApiProblem) and self._may_read_again(first):
            self._reader.forget()
            results = self._run(queries, name, self._read(), cut)
        return ApiLook(results[_Query.NODE], results[_Query.LEASE], results.get(_Query.PODS))

    def _read(self) -> Credentials:
        credentials = self._reader.read()
        self._certificate = credentials.certificate
        return credentials

    def _may_read_again(self, problem: ApiProblem) -> bool:
        """Whether the credentials may have been rotated just now."""
        if problem.fault not in (ApiFault.UNAUTHORIZED, ApiFault.CREDENTIALS_REFUSED, ApiFault.CERTIFICATE_EXPIRED):
            return False
        if self._refused_at is not None and problem.at - self._refused_at < _REFUSED_AGAIN:
            return False
        self._refused_at = problem.at
        return True

    def _run(self, queries: tuple[_Query, ...], node: str, credentials: Credentials, cut: Cut) -> dict[_Query, ApiResult]:
        """Ask for each, over one connection that is made for this look."""
        results: dict[_Query, ApiResult] = {}
        connection = Connection(self._library, credentials, cut, self._settings.timeouts)
        try:
            stopped: ApiProblem | None = None
            for query in queries:
                result = stopped or self._ask(connection, query, node, credentials)
                results[query] = result
                if isinstance(result, ApiProblem) and (result.status == 0 or result.fault in _STOPS or result.retry_at is not None):
                    stopped = result
        finally:
            connection.close()
        return results

    def _ask(self, connection: Connection, query: _Query, node: str, credentials: Credentials) -> ApiResult:
        asked_at = self._monotonic()
        path, limit = self._request(query, node)
        try:
            body = connection.get(path, limit)
        except ApiError as error:
            return self._explained(error, credentials).problem(self._monotonic())
        return ApiAnswer(200, body, asked_at, self._monotonic())

    def _request(self, query: _Query, node: str) -> tuple[str, int]:
        name = urllib.parse.quote(node, safe="")
        match query:
            case _Query.NODE:
                return f"/api/v1/nodes/{name}", _MAX_NODE
            case _Query.LEASE:
                return f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}", _MAX_LEASE
            case _Query.PODS:
                return pods_path(node), self._settings.max_list

    def _explained(self, error: ApiError, credentials: Credentials) -> ApiError:
        """Name an expired certificate of ours as the cause of what it causes."""
        refused = error.fault in (ApiFault.UNAUTHORIZED, ApiFault.CREDENTIALS_REFUSED, ApiFault.TLS_FAILED, ApiFault.CLOSED)
        certificate = credentials.certificate
        if refused and certificate is not None and certificate.not_after_usec <= self._realtime_usec():
            return ApiError(ApiFault.CERTIFICATE_EXPIRED, error.detail, status=error.status)
        return error


def pods_path(node: str) -> str:
    """Return the path of the list of a node's Pods, as the node authorizer wants it to be asked for."""
    return "/api/v1/pods?" + urllib.parse.urlencode({"fieldSelector": f"spec.nodeName={node}"})


def _alike(problem: ApiProblem, *, pods: bool) -> ApiLook:
    return ApiLook(problem, problem, problem if pods else None)
