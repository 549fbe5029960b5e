"""The credentials of a kubeconfig, read anew for every look: what was rotated in between is then used, and nothing has to notice it.

Everything is read at once, and is one consistent set: a certificate and its key are never taken from before and after a rotation, since
the kubelet keeps both in one file behind one link (`kubelet-client-current.pem`).
"""

import base64
import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from devward.cluster.api_result import ApiError, ApiFault
from devward.cluster.certificate import Certificate, CertificateError, parse_certificate
from devward.cluster.files import read_file
from devward.cluster.kubeconfig import ExecPlugin, Kubeconfig, Source, parse_kubeconfig

#: Certificates of all CAs that a distribution trusts are half of this.
_MAX_FILE: Final = 1024 * 1024
#: Seconds for a program that gives credentials; those of the cloud providers ask a service.
_EXEC_TIMEOUT: Final = 15.0
#: Credentials that end within this time are fetched anew, in microseconds.
_EXEC_MARGIN_USEC: Final = 60_000_000
_SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Credentials:
    """All that a connection needs."""

    kubeconfig: Kubeconfig
    #: Certificates in PEM of whom to trust; empty: whom the host trusts.
    authority: bytes
    #: Certificate chain and key in PEM, one after the other; empty: none.
    identity: bytes
    token: str
    #: What the client certificate says; None if there is none.
    certificate: Certificate | None

    def __repr__(self) -> str:
        """Name the server only: keys and tokens must not get into a message."""
        return f"Credentials({self.kubeconfig.url})"


@dataclass(frozen=True, slots=True)
class _Given:
    """What a program gave."""

    token: str
    certificate: bytes
    key: bytes
    #: When it ends, in microseconds since 1970; None: the program did not say, and it lasts until it is refused.
    expires_usec: int | None


class CredentialReader:
    """Reads a kubeconfig and what it names."""

    def __init__(self, path: str, *, allow_exec: bool, realtime_usec: Callable[[], int], exec_timeout: float = _EXEC_TIMEOUT) -> None:
        """Bind to a kubeconfig. `allow_exec`: a program that it names may be started."""
        self._path = path
        self._allow_exec = allow_exec
        self._realtime_usec = realtime_usec
        self._exec_timeout = exec_timeout
        #: The content that was parsed, and what it came to: YAML is slow to read.
        self._parsed: tuple[bytes, Kubeconfig] | None = None
        self._given: tuple[ExecPlugin, _Given] | None = None

    def read(self) -> Credentials:
        """Return the credentials as they are now. ApiError."""
        config = self._kubeconfig()
        authority = _content(config.authority)
        certificate, key = _content(config.certificate), _content(config.key)
        token = _content(config.token)
        if config.exec_plugin is not None:
            given = self._plugin_credentials(config, config.exec_plugin, authority)
            token = given.token.encode() or token
            certificate, key = given.certificate or certificate, given.key or key
        facts = None
        if certificate:
            try:
                facts = parse_certificate(certificate)
            except CertificateError as error:
                raise ApiError(ApiFault.CREDENTIALS_UNREADABLE, f"{config.certificate.path or 'client certificate'}: {error}") from None
        try:
            text = token.decode("ascii").strip()
        except UnicodeDecodeError:
            text = "\0"
        # A line break in it would begin another header.
        if not text.isprintable() or " " in text:
            raise ApiError(ApiFault.CREDENTIALS_UNREADABLE, f"{config.token.path or 'token'}: it is no token")
        if token and not text:
            raise ApiError(ApiFault.CREDENTIALS_UNREADABLE, f"{config.token.path or 'token'}: it is empty")
        identity = certificate.rstrip() + b"\n" + (b"" if key == certificate else key) if certificate else b""
        return Credentials(config, authority, identity, text, facts)

    def forget(self) -> None:
        """Forget what a program gave: it was refused."""
        self._given = None

    def _kubeconfig(self) -> Kubeconfig:
        try:
            data, _ = read_file(os.path.realpath(self._path), _MAX_FILE)
        except FileNotFoundError:
            raise ApiError(ApiFault.KUBECONFIG_MISSING, self._path) from None
        except OSError as error:
            raise ApiError(ApiFault.KUBECONFIG_UNREADABLE, f"{self._path}: {error.strerror}") from None
        if self._parsed is None or self._parsed[0] != data:
            config = parse_kubeconfig(_document(data), os.path.dirname(os.path.abspath(self._path)), allow_exec=self._allow_exec)
            self._parsed = (data, config)
        return self._parsed[1]

    def _plugin_credentials(self, config: Kubeconfig, plugin: ExecPlugin, authority: bytes) -> _Given:
        if self._given is not None:
            known, given = self._given
            lasts = given.expires_usec is None or given.expires_usec - self._realtime_usec() > _EXEC_MARGIN_USEC
            if known == plugin and lasts:
                return given
        given = _run(config, plugin, authority, self._exec_timeout)
        self._given = (plugin, given)
        return given


def _document(data: bytes) -> Any:
    import yaml

    # A kubeconfig with aliases is nobody's, and an alias can stand for any amount.
    try:
        text = data.decode()
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=loader)):
            raise ApiError(ApiFault.KUBECONFIG_ODD, "YAML with aliases")
        return yaml.load(text, Loader=loader)  # noqa: S506 # both loaders are safe ones
    except (yaml.YAMLError, ValueError, RecursionError):
        # The text of the error would show a part of the file, in which keys may be.
        raise ApiError(ApiFault.KUBECONFIG_ODD, "no YAML") from None


def _content(source: Source) -> bytes:
    if source.content or not source.path:
        return source.content
    try:
        data, _ = read_file(os.path.realpath(source.path), _MAX_FILE)
    except OSError as error:
        raise ApiError(ApiFault.CREDENTIALS_UNREADABLE, f"{source.path}: {error.strerror}") from None
    if not data:
        raise ApiError(ApiFault.CREDENTIALS_UNREADABLE, f"{source.path}: it is empty")
    return data


def _run(config: Kubeconfig, plugin: ExecPlugin, authority: bytes, timeout: float) -> _Given:
    """Start a program as client-go does, and return what it gives (client.authentication.k8s.io)."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.wants_cluster:
        spec["cluster"] = _cluster(config, authority)
    environment = {
        "PATH": os.environ.get("PATH", _SEARCH_PATH),
        "HOME": os.environ.get("HOME", "/root"),
        **dict(plugin.environment),
        "KUBERNETES_EXEC_INFO": json.dumps({"apiVersion": plugin.version, "kind": "ExecCredential", "spec": spec}),
    }
    descriptor = os.memfd_create("devward-exec", os.MFD_CLOEXEC)
    try:
        try:
            process = subprocess.Popen(
                (plugin.command, *plugin.arguments),
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ApiError(ApiFault.EXEC_FAILED, f"{plugin.command}: {error}") from None
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ApiError(ApiFault.EXEC_FAILED, f"{plugin.command}: it did not end within {timeout:g} s") from None
        finally:
            _end(process)
        if status != 0:
            raise ApiError(ApiFault.EXEC_FAILED, f"{plugin.command}: it ended with {status}")
        return _parse_given(os.pread(descriptor, _MAX_FILE, 0), plugin)
    finally:
        os.close(descriptor)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        # It leads a session of its own and is not waited for yet, so its group is nobody else's.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _cluster(config: Kubeconfig, authority: bytes) -> dict[str, str]:
    cluster = {"server": config.url + config.prefix}
    if authority:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    if config.server_name:
        cluster["tls-server-name"] = config.server_name
    return cluster


def _parse_given(data: bytes, plugin: ExecPlugin) -> _Given:
    """Return what an ExecCredential holds; nothing of it is shown."""
    try:
        value = json.loads(data)
        status = value["status"]
        good = value["kind"] == "ExecCredential" and value["apiVersion"] == plugin.version
        texts = [status.get(key) or "" for key in ("token", "clientCertificateData", "clientKeyData", "expirationTimestamp")]
        token, certificate, key, expires = (str(text) for text in texts)
        expires_usec = int(datetime.fromisoformat(expires).timestamp() * 1_000_000) if expires else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise ApiError(ApiFault.EXEC_FAILED, f"{plugin.command}: its output is no ExecCredential") from None
    if not good or not (token or certificate) or bool(certificate) != bool(key):
        raise ApiError(ApiFault.EXEC_FAILED, f"{plugin.command}: its output is no ExecCredential of {plugin.version} with credentials")
    return _Given(token, certificate.encode(), key.encode(), expires_usec)
