"""The kubeconfig: whom to ask, and with which credentials. Pure.

Only what is understood is taken, and from the current context alone. client-go's other means, such as auth providers, passwords, proxies
and impersonation, are refused instead of left out: without them the request would be another one. Fields are those of the
kubeconfig (v1) reference.
"""

import base64
import binascii
import os.path
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from devward.cluster.api_result import ApiError, ApiFault

_CLUSTER: Final = frozenset({"server", "certificate-authority", "certificate-authority-data", "tls-server-name", "disable-compression"})
_USER: Final = frozenset({"client-certificate", "client-certificate-data", "client-key", "client-key-data", "token", "tokenFile", "exec"})
_EXEC_VERSIONS: Final = frozenset({"client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"})


@dataclass(frozen=True, slots=True)
class Source:
    """Content that is given in the kubeconfig, or in a file; with neither it is not given. Content goes first, as in client-go."""

    path: str = ""
    content: bytes = field(default=b"", repr=False)

    def __bool__(self) -> bool:
        return bool(self.path or self.content)


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that gives credentials (client.authentication.k8s.io)."""

    version: str
    command: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    wants_cluster: bool


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """The current context."""

    host: str
    port: int
    #: What stands before every path; empty or with a slash in front and none behind.
    prefix: str
    server_name: str
    authority: Source
    certificate: Source
    key: Source
    token: Source
    exec_plugin: ExecPlugin | None

    @property
    def url(self) -> str:
        """The server, without a path."""
        return f"https://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_kubeconfig(document: object, directory: str, *, allow_exec: bool) -> Kubeconfig:
    """Return the current context of a kubeconfig, as YAML gave it. Paths are relative to `directory`. ApiError."""
    whole = _object(document, "the document")
    context = _named(whole, "contexts", _text(whole, "current-context", "the document"), "context")
    cluster = _named(whole, "clusters", _text(context, "cluster", "the context"), "cluster")
    user = _named(whole, "users", _text(context, "user", "the context"), "user")
    if cluster.get("insecure-skip-tls-verify"):
        raise ApiError(ApiFault.KUBECONFIG_INSECURE, "insecure-skip-tls-verify")
    host, port, prefix = _server(_text(cluster, "server", "the cluster"))
    _refuse_others(cluster, _CLUSTER | {"insecure-skip-tls-verify"}, "cluster")
    _refuse_others(user, _USER, "user")
    plugin = None
    if user.get("exec"):
        if not allow_exec:
            raise ApiError(ApiFault.EXEC_NOT_ALLOWED)
        plugin = _plugin(_object(user["exec"], "exec"), directory)
    certificate, key = _source(user, "client-certificate", directory), _source(user, "client-key", directory)
    if bool(certificate) != bool(key):
        raise ApiError(ApiFault.KUBECONFIG_ODD, "a certificate and a key are expected, not one of them")
    # tokenFile goes before token, as in client-go.
    file = _text(user, "tokenFile", "user", needed=False)
    token = Source(os.path.join(directory, file)) if file else Source(content=_text(user, "token", "user", needed=False).encode())
    if not certificate and not token and plugin is None:
        raise ApiError(ApiFault.KUBECONFIG_ODD, "the user has no credentials")
    server_name = _text(cluster, "tls-server-name", "the cluster", needed=False)
    return Kubeconfig(
        host, port, prefix, server_name, _source(cluster, "certificate-authority", directory), certificate, key, token, plugin
    )


def _server(server: str) -> tuple[str, int, str]:
    try:
        parts = urllib.parse.urlsplit(server)
        host, port = parts.hostname or "", parts.port or 443
    except ValueError:
        raise ApiError(ApiFault.KUBECONFIG_ODD, "server: no address") from None
    if parts.scheme != "https":
        raise ApiError(ApiFault.KUBECONFIG_INSECURE, "server: https is expected")
    if not host or parts.query or parts.fragment or "@" in parts.netloc:
        raise ApiError(ApiFault.KUBECONFIG_ODD, "server: an address without query and user is expected")
    return host, port, parts.path.rstrip("/")


def _plugin(value: Mapping[str, Any], directory: str) -> ExecPlugin:
    version, command = _text(value, "apiVersion", "exec"), _text(value, "command", "exec")
    if version not in _EXEC_VERSIONS:
        raise ApiError(ApiFault.KUBECONFIG_ODD, f"exec: {version}")
    arguments, variables = value.get("args") or [], value.get("env") or []
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise ApiError(ApiFault.KUBECONFIG_ODD, "exec: args")
    if not isinstance(variables, list):
        raise ApiError(ApiFault.KUBECONFIG_ODD, "exec: env")
    environment = []
    for entry in variables:
        variable = _object(entry, "exec: env")
        environment.append((_text(variable, "name", "exec: env"), _text(variable, "value", "exec: env", needed=False)))
    # A bare name is looked for in PATH.
    path = os.path.join(directory, command) if "/" in command else command
    return ExecPlugin(version, path, tuple(arguments), tuple(environment), bool(value.get("provideClusterInfo")))


def _source(value: Mapping[str, Any], key: str, directory: str) -> Source:
    data, path = _text(value, f"{key}-data", key, needed=False), _text(value, key, key, needed=False)
    if data:
        try:
            return Source(content=base64.b64decode("".join(data.split()), validate=True))
        except (binascii.Error, ValueError):
            raise ApiError(ApiFault.KUBECONFIG_ODD, f"{key}-data: base64 is expected") from None
    return Source(os.path.join(directory, path)) if path else Source()


def _refuse_others(value: Mapping[str, Any], known: frozenset[str], what: str) -> None:
    others = sorted(
        str(key) for key, entry in value.items() if key not in known and entry not in (None, "", [], {}) and key != "extensions"
    )
    if others:
        raise ApiError(ApiFault.KUBECONFIG_ODD, f"{what}: {', '.join(others)} is not supported")


def _named(whole: Mapping[str, Any], key: str, name: str, inner: str) -> Mapping[str, Any]:
    entries = whole.get(key)
    if not isinstance(entries, list):
        raise ApiError(ApiFault.KUBECONFIG_ODD, f"{key}: a list is expected")
    found = [entry for entry in entries if isinstance(entry, dict) and entry.get("name") == name]
    if len(found) != 1:
        raise ApiError(ApiFault.KUBECONFIG_ODD, f"{key}: {name!r} is there {len(found)} times")
    return _object(found[0].get(inner), f"{inner} {name!r}")


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ApiError(ApiFault.KUBECONFIG_ODD, f"{what}: a map is expected")
    return value


def _text(value: Mapping[str, Any], key: str, what: str, *, needed: bool = True) -> str:
    text = value.get(key)
    if text is None and not needed:
        return ""
    if not isinstance(text, str) or (needed and not text) or "\0" in text:
        raise ApiError(ApiFault.KUBECONFIG_ODD, f"{what}: {key}: a text is expected")
    return text
