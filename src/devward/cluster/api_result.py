"""What asking the API server comes to: an answer as it was received, or a problem with a sentence that says what to do. Pure.

A problem is never evidence: whoever takes it knows as little of the cluster as before, and what is not known is in use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from devward.text import printable


class ApiFault(StrEnum):
    """Why there is no answer."""

    LIBRARY_MISSING = "library-missing"
    NODE_NAME_ODD = "node-name-odd"
    KUBECONFIG_MISSING = "kubeconfig-missing"
    KUBECONFIG_UNREADABLE = "kubeconfig-unreadable"
    KUBECONFIG_ODD = "kubeconfig-odd"
    KUBECONFIG_INSECURE = "kubeconfig-insecure"
    EXEC_NOT_ALLOWED = "exec-not-allowed"
    EXEC_FAILED = "exec-failed"
    CREDENTIALS_UNREADABLE = "credentials-unreadable"
    CREDENTIALS_REFUSED = "credentials-refused"
    CERTIFICATE_EXPIRED = "certificate-expired"
    NAME_UNRESOLVED = "name-unresolved"
    CONNECTION_REFUSED = "connection-refused"
    UNREACHABLE = "unreachable"
    CONNECT_TIMEOUT = "connect-timeout"
    SERVER_UNTRUSTED = "server-untrusted"
    SERVER_CERTIFICATE_EXPIRED = "server-certificate-expired"
    SERVER_OTHER_NAME = "server-other-name"
    TLS_FAILED = "tls-failed"
    ANSWER_TIMEOUT = "answer-timeout"
    BODY_TIMEOUT = "body-timeout"
    HUNG = "hung"
    CLOSED = "closed"
    TRUNCATED = "truncated"
    TOO_LARGE = "too-large"
    NOT_HTTP = "not-http"
    WRONG_TYPE = "wrong-type"
    REDIRECTED = "redirected"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    GONE = "gone"
    TOO_MANY_REQUESTS = "too-many-requests"
    SERVER_ERROR = "server-error"
    ODD_STATUS = "odd-status"
    FAILED = "failed"


FAULT_TEXT: Final[Mapping[ApiFault, str]] = MappingProxyType(
    {
        ApiFault.LIBRARY_MISSING: "The Python library kubernetes cannot be loaded; install python3-kubernetes.",
        ApiFault.NODE_NAME_ODD: "The Node's name is none that Kubernetes allows; check the configured name and the kubelet's certificate.",
        ApiFault.KUBECONFIG_MISSING: "The kubeconfig was not found, or devward may not see it; name one for it in cluster.kubeconfig.",
        ApiFault.KUBECONFIG_UNREADABLE: "The kubeconfig cannot be read; check the path, its permissions and the unit's sandbox.",
        ApiFault.KUBECONFIG_ODD: "The kubeconfig is not understood; check it with `kubectl --kubeconfig=FILE config view`.",
        ApiFault.KUBECONFIG_INSECURE: "The kubeconfig does not verify the API server, so anybody could answer; give it https and a CA.",
        ApiFault.EXEC_NOT_ALLOWED: "The kubeconfig starts a program for its credentials; allow that in the configuration, or name another.",
        ApiFault.EXEC_FAILED: "The program that the kubeconfig starts for its credentials gave none; start it by hand and look.",
        ApiFault.CREDENTIALS_UNREADABLE: "A file that the kubeconfig names cannot be read; check the path and the unit's sandbox.",
        ApiFault.CREDENTIALS_REFUSED: "The API server refuses our client certificate, or ours does not fit its key; look at the kubelet's.",
        ApiFault.CERTIFICATE_EXPIRED: "Our client certificate has expired and the kubelet did not rotate it; look at the kubelet's log and"
        " at unapproved certificate signing requests.",
        ApiFault.NAME_UNRESOLVED: "The API server's name does not resolve; look at this host's name service.",
        ApiFault.CONNECTION_REFUSED: "Nothing listens at the API server's address; look at the API server and its load balancer.",
        ApiFault.UNREACHABLE: "The API server's address cannot be reached; look at routes, the firewall and the unit's sandbox.",
        ApiFault.CONNECT_TIMEOUT: "No connection to the API server came about in time; look at the network and the load balancer.",
        ApiFault.SERVER_UNTRUSTED: "The API server's certificate is not of the kubeconfig's CA; renew that, or find who answers there.",
        ApiFault.SERVER_CERTIFICATE_EXPIRED: "The API server's certificate is not valid now; renew it, or set this host's clock.",
        ApiFault.SERVER_OTHER_NAME: "The API server's certificate is for another name; correct the kubeconfig's server or the certificate.",
        ApiFault.TLS_FAILED: "No TLS session with the API server came about; look at what answers at the kubeconfig's address.",
        ApiFault.ANSWER_TIMEOUT: "The API server took the request and did not answer in time; look at its load and at etcd.",
        ApiFault.BODY_TIMEOUT: "The API server's answer began but did not end in time; look at its load and at the network.",
        ApiFault.HUNG: "A request hangs and cannot be cut off; look at this host's name service.",
        ApiFault.CLOSED: "The connection was closed before an answer; look at the API server and its load balancer.",
        ApiFault.TRUNCATED: "The API server's answer is not whole; look at proxies and load balancers before the API server.",
        ApiFault.TOO_LARGE: "The API server's answer is larger than any node's can be; look at what answers at the kubeconfig's address.",
        ApiFault.NOT_HTTP: "What answers at the API server's address does not speak HTTP; check the kubeconfig's server.",
        ApiFault.WRONG_TYPE: "What answers at the API server's address does not send plain JSON; look at proxies before the API server.",
        ApiFault.REDIRECTED: "What answers at the API server's address redirects, which is not followed; correct the server's address.",
        ApiFault.UNAUTHORIZED: "The API server does not know our credentials, re-read ones neither; renew the kubelet's credentials.",
        ApiFault.FORBIDDEN: "The API server forbids this; check that the credentials are those of this very Node, or their RBAC rules.",
        ApiFault.NOT_FOUND: "The API server has no such object; check the Node's name, and whether the Node was deleted.",
        ApiFault.GONE: "The version asked for is gone, though none was asked for; look at proxies before the API server.",
        ApiFault.TOO_MANY_REQUESTS: "The API server asks for fewer requests; look at its priority and fairness. It is asked again later.",
        ApiFault.SERVER_ERROR: "The API server has an error of its own; look at its log and at etcd.",
        ApiFault.ODD_STATUS: "The API server answers with a status that is not expected; look at what answers at the kubeconfig's address.",
        ApiFault.FAILED: "The request failed in a way that is not foreseen; please report it.",
    }
)


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """One whole answer of status 200 and type JSON, whose content nobody has looked at yet."""

    status: int
    body: bytes
    #: Monotonic seconds: what the body says is of no earlier moment than the first.
    asked_at: float
    received_at: float


@dataclass(frozen=True, slots=True)
class ApiProblem:
    """Why there is no answer."""

    fault: ApiFault
    #: One sentence, escaped, fit to be shown.
    text: str
    #: Monotonic seconds.
    at: float
    #: The HTTP status; 0 where there was none.
    status: int = 0
    #: Monotonic seconds before which the API server wants no further request; None: it did not say.
    retry_at: float | None = None


ApiResult = ApiAnswer | ApiProblem


@dataclass(frozen=True, slots=True)
class ApiLook:
    """What one look at the API server gave."""

    node: ApiResult
    lease: ApiResult
    #: None: the Pods were not asked for.
    pods: ApiResult | None


class ApiError(Exception):
    """A fault on its way to the edge; the text is a sentence fit to be shown."""

    def __init__(self, fault: ApiFault, detail: str = "", *, status: int = 0, wait: float | None = None) -> None:
        """Keep the fault, what it was in particular, which is escaped, and for how many seconds the server wants no request."""
        self.fault = fault
        self.status = status
        self.wait = wait
        self.detail = printable(detail, 300)
        text = FAULT_TEXT[fault]
        super().__init__(f"{text[:-1]} ({self.detail})." if detail else text)

    def problem(self, now: float) -> ApiProblem:
        """Return it as a fact."""
        return ApiProblem(self.fault, str(self), now, self.status, None if self.wait is None else now + self.wait)
