"""Credentials for the API server: what a kubeconfig may say, rotation, programs that give them, and TLS in both directions."""

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.api import Api, ApiSettings
from devward.cluster.api_library import Library
from devward.cluster.api_result import ApiAnswer, ApiError, ApiFault, ApiLook, ApiProblem, ApiResult
from devward.cluster.certificate import CertificateError, parse_certificate
from devward.cluster.credentials import CredentialReader
from devward.cluster.kubeconfig import parse_kubeconfig
from devward.cluster.kubeconfig_place import find_kubeconfig
from devward.cluster.kubelet import Kubelet
from sim.api_pki import DAY, Authority, Pair, data, replace_file, write_identity, write_kubeconfig
from sim.api_server import ApiServer

PATIENCE = 60.0
LIBRARY = Library()
AUTHORITY = Authority()
OTHER_AUTHORITY = Authority("another CA")
SERVER = AUTHORITY.server()
CLIENT = AUTHORITY.client()
MADE: list[Api] = []


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(authority=AUTHORITY, server=SERVER) as stand_in:
        yield stand_in


def now_usec() -> int:
    return time.time_ns() // 1000


def an_api(kubeconfig: Path, *, allow_exec: bool = False) -> Api:
    settings = ApiSettings(str(kubeconfig), allow_exec=allow_exec, deadline=PATIENCE)
    MADE.append(Api(settings, monotonic=time.monotonic, realtime_usec=now_usec, library=LIBRARY))
    return MADE[-1]


def look(api: Api, node: str = "lab") -> ApiLook:
    return asyncio.run(asyncio.wait_for(api.look(node), PATIENCE))


def fault(result: ApiResult | None) -> ApiFault | None:
    return result.fault if isinstance(result, ApiProblem) else None


def by_identity(directory: Path, server: ApiServer, pair: Pair = CLIENT, cluster: dict[str, Any] | None = None) -> Path:
    link = str(write_identity(directory, pair))
    user = {"client-certificate": link, "client-key": link}
    return write_kubeconfig(directory / "kubelet.conf", server.url, AUTHORITY.certificate, user, cluster)


# --- rotation ---


def test_a_rotated_certificate_is_used_by_the_next_look(server: ApiServer, tmp_path: Path) -> None:
    api = an_api(by_identity(tmp_path, server))
    look(api)
    write_identity(tmp_path, AUTHORITY.client("system:node:lab2", ends=2 * DAY), "kubelet-client-2.pem")
    look(api)
    assert [request.client for request in server.asked("node")] == ["system:node:lab", "system:node:lab2"]
    assert api.certificate is not None
    assert api.certificate.node == "lab2"


def test_a_rotated_token_file_is_used_by_the_next_look(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    replace_file(token, b"one\n")
    server.tokens = {"one"}
    api = an_api(write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, {"tokenFile": "token", "token": "unused"}))
    assert fault(look(api).pods) is None
    server.tokens = {"two"}
    replace_file(token, b"two\n")
    assert fault(look(api).pods) is None
    assert [request.headers["authorization"] for request in server.asked("node")] == ["Bearer one", "Bearer two"]


def test_a_changed_kubeconfig_is_used_by_the_next_look(server: ApiServer, tmp_path: Path) -> None:
    api = an_api(by_identity(tmp_path, server))
    look(api)
    server.tokens = {"t"}
    write_kubeconfig(tmp_path / "kubelet.conf", server.url, AUTHORITY.certificate, {"token": "t"})
    look(api)
    assert server.asked("node")[1].headers["authorization"] == "Bearer t"
    assert api.certificate is None


def test_credentials_that_were_rotated_during_a_look_are_read_once_more(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    replace_file(token, b"old")
    server.tokens = {"new"}

    def rotate(exchange: Any) -> None:
        replace_file(token, b"new")
        exchange._truly()

    server.next("node", rotate)
    api = an_api(write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, {"tokenFile": str(token)}))
    found = look(api)
    assert all(isinstance(result, ApiAnswer) for result in (found.node, found.lease, found.pods))
    assert [request.kind for request in server.requests] == ["node", "node", "lease", "pods"]


def test_refused_credentials_are_read_again_once_a_minute(server: ApiServer, tmp_path: Path) -> None:
    ahead = 0.0
    path = write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, {"token": "t"})
    MADE.append(Api(ApiSettings(str(path)), monotonic=lambda: time.monotonic() + ahead, realtime_usec=now_usec, library=LIBRARY))
    counts = []
    for _ in range(3):
        assert fault(look(MADE[-1]).pods) is ApiFault.UNAUTHORIZED
        counts.append(len(server.requests))
    assert counts == [2, 3, 4]
    ahead = 61.0
    look(MADE[-1])
    assert len(server.requests) == 6


# --- TLS ---


def test_certificates_that_the_kubeconfig_holds_leave_no_file(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    user = {"client-certificate-data": data(CLIENT.certificate), "client-key-data": data(CLIENT.key)}
    assert fault(look(an_api(write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, user))).pods) is None
    assert server.asked("node")[0].client == "system:node:lab"
    assert list(temporary.iterdir()) == []


def test_the_name_to_verify_may_be_given(tmp_path: Path) -> None:
    with ApiServer(authority=AUTHORITY, server=AUTHORITY.server("kubernetes")) as server:
        assert fault(look(an_api(by_identity(tmp_path, server))).pods) is ApiFault.SERVER_OTHER_NAME
        assert fault(look(an_api(by_identity(tmp_path, server, cluster={"tls-server-name": "kubernetes"}))).pods) is None
        assert fault(look(an_api(by_identity(tmp_path, server, cluster={"tls-server-name": "other"}))).pods) is ApiFault.SERVER_OTHER_NAME


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (OTHER_AUTHORITY.server(), ApiFault.SERVER_UNTRUSTED),
        (AUTHORITY.server(begins=-2 * DAY, ends=-DAY), ApiFault.SERVER_CERTIFICATE_EXPIRED),
        (AUTHORITY.server(begins=DAY, ends=2 * DAY), ApiFault.SERVER_CERTIFICATE_EXPIRED),
        (AUTHORITY.server("192.0.2.1", "example.org"), ApiFault.SERVER_OTHER_NAME),
    ],
)
def test_a_server_that_is_not_the_one_is_not_asked(server: ApiServer, tmp_path: Path, pair: Pair, expected: ApiFault) -> None:
    server.present(pair)
    server.tokens = {"t"}
    found = look(an_api(write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, {"token": "t"})))
    assert {fault(result) for result in (found.node, found.lease, found.pods)} == {expected}
    assert server.requests == []


def test_a_client_certificate_that_is_refused(server: ApiServer, tmp_path: Path) -> None:
    found = look(an_api(by_identity(tmp_path, server, OTHER_AUTHORITY.client())))
    assert fault(found.pods) is ApiFault.CREDENTIALS_REFUSED
    assert server.requests == []


def test_a_client_certificate_that_has_expired(server: ApiServer, tmp_path: Path) -> None:
    api = an_api(by_identity(tmp_path, server, AUTHORITY.client(begins=-2 * DAY, ends=-DAY)))
    assert fault(look(api).pods) is ApiFault.CERTIFICATE_EXPIRED
    assert api.warning.startswith("The client certificate expired at ")


def test_a_key_that_does_not_fit(server: ApiServer, tmp_path: Path) -> None:
    api = an_api(by_identity(tmp_path, server, Pair(CLIENT.certificate, AUTHORITY.client().key)))
    assert fault(look(api).pods) in (ApiFault.CREDENTIALS_REFUSED, ApiFault.TLS_FAILED)


def test_what_does_not_speak_tls(tmp_path: Path) -> None:
    code = (
        "import socket\ns = socket.create_server(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True)\n"
        "while True:\n c = s.accept()[0]\n c.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n')\n c.close()\n"
    )
    with subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = f"https://127.0.0.1:{process.stdout.readline().strip()}"
            api = an_api(write_kubeconfig(tmp_path / "k", url, AUTHORITY.certificate, {"token": "t"}))
            assert fault(look(api).pods) is ApiFault.TLS_FAILED
        finally:
            process.kill()


# --- what a kubeconfig may say ---


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"insecure-skip-tls-verify": True}, ApiFault.KUBECONFIG_INSECURE),
        ({"insecure-skip-tls-verify": "false"}, ApiFault.KUBECONFIG_INSECURE),
        ({"server": "http://127.0.0.1:8080"}, ApiFault.KUBECONFIG_INSECURE),
        ({"server": "127.0.0.1:6443"}, ApiFault.KUBECONFIG_INSECURE),
        ({"server": "https://u:p@127.0.0.1"}, ApiFault.KUBECONFIG_ODD),
        ({"server": "https://127.0.0.1:99999"}, ApiFault.KUBECONFIG_ODD),
        ({"server": "https://"}, ApiFault.KUBECONFIG_ODD),
        ({"server": ""}, ApiFault.KUBECONFIG_ODD),
        ({"proxy-url": "http://proxy:3128"}, ApiFault.KUBECONFIG_ODD),
        ({"certificate-authority-data": "%"}, ApiFault.KUBECONFIG_ODD),
    ],
)
def test_a_cluster_that_is_refused(server: ApiServer, tmp_path: Path, cluster: dict[str, Any], expected: ApiFault) -> None:
    assert fault(look(an_api(by_identity(tmp_path, server, cluster=cluster))).pods) is expected
    assert server.connections == 0


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({}, ApiFault.KUBECONFIG_ODD),
        ({"username": "a", "password": "b"}, ApiFault.KUBECONFIG_ODD),
        ({"token": "t", "as": "system:admin"}, ApiFault.KUBECONFIG_ODD),
        ({"auth-provider": {"name": "gcp", "config": {"cmd-path": "/bin/true"}}}, ApiFault.KUBECONFIG_ODD),
        ({"client-certificate-data": data(CLIENT.certificate)}, ApiFault.KUBECONFIG_ODD),
        ({"token": 7}, ApiFault.KUBECONFIG_ODD),
        ({"token": "a b"}, ApiFault.CREDENTIALS_UNREADABLE),
        ({"token": "a\r\nX-Remote-User: admin"}, ApiFault.CREDENTIALS_UNREADABLE),
        ({"tokenFile": "/nowhere/token"}, ApiFault.CREDENTIALS_UNREADABLE),
        ({"tokenFile": "/dev/null"}, ApiFault.CREDENTIALS_UNREADABLE),
        ({"client-certificate": "/nowhere", "client-key": "/nowhere"}, ApiFault.CREDENTIALS_UNREADABLE),
        ({"client-certificate-data": data(b"no PEM"), "client-key-data": data(b"x")}, ApiFault.CREDENTIALS_UNREADABLE),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/true"}}, ApiFault.EXEC_NOT_ALLOWED),
    ],
)
def test_a_user_that_is_refused(server: ApiServer, tmp_path: Path, user: dict[str, Any], expected: ApiFault) -> None:
    found = look(an_api(write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, user)))
    assert fault(found.pods) is expected
    assert server.connections == 0


def test_no_kubeconfig(tmp_path: Path) -> None:
    assert fault(look(an_api(tmp_path / "k")).pods) is ApiFault.KUBECONFIG_MISSING
    (tmp_path / "k").mkdir()
    assert fault(look(an_api(tmp_path / "k")).pods) is ApiFault.KUBECONFIG_UNREADABLE


@pytest.mark.parametrize("content", [b"", b"[", b"a: &a [*a]", b"a: !!python/object/apply:os.abort []", b"\xff", b"- 1", b"[" * 5000])
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "k").write_bytes(content)
    assert fault(look(an_api(tmp_path / "k")).pods) is ApiFault.KUBECONFIG_ODD


def test_a_problem_shows_no_secret(server: ApiServer, tmp_path: Path) -> None:
    texts = []
    for user in ({"token": "s3cret x"}, {"token": "s3cret", "password": "s3cret"}, {"client-key-data": "s3cret%"}):
        found = look(an_api(write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, user))).node
        assert isinstance(found, ApiProblem)
        texts.append(found.text)
    (tmp_path / "k").write_text("token: s3cret: s3cret\n")
    found = look(an_api(tmp_path / "k")).node
    assert isinstance(found, ApiProblem)
    path = write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, {"token": "s3cret"})
    credentials = CredentialReader(str(path), allow_exec=False, realtime_usec=now_usec).read()
    assert not any("s3cret" in text for text in (*texts, found.text, repr(credentials), repr(credentials.kubeconfig)))


_JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3))


@given(st.dictionaries(st.sampled_from(["clusters", "users", "contexts", "current-context"]), _JSON))
def test_no_document_is_too_odd(document: object) -> None:
    with pytest.raises(ApiError):
        parse_kubeconfig(document, "/", allow_exec=True)


# --- programs that give credentials ---


def a_plugin(directory: Path, body: str, **more: Any) -> dict[str, Any]:
    program = directory / "plugin"
    program.write_text(f"#!/bin/sh\necho x >>{directory}/starts\n{body}\n")
    program.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "interactiveMode": "Never", **more}}


def credential(**status: str) -> str:
    return json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})


def starts(directory: Path) -> int:
    return len((directory / "starts").read_text().split())


def test_a_program_gives_a_token_and_is_started_once(server: ApiServer, tmp_path: Path) -> None:
    server.tokens = {"t"}
    script = f"""test "$A" = b || exit 3; test "$1" = c || exit 4; printf %s "$KUBERNETES_EXEC_INFO" >{tmp_path}/info
printf '%s' '{credential(token="t")}'"""
    user = a_plugin(tmp_path, script, args=["c"], env=[{"name": "A", "value": "b"}], provideClusterInfo=True)
    api = an_api(write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, user), allow_exec=True)
    for _ in range(2):
        assert fault(look(api).pods) is None
    assert starts(tmp_path) == 1
    cluster = json.loads((tmp_path / "info").read_text())["spec"]["cluster"]
    assert cluster == {"server": server.url, "certificate-authority-data": base64.b64encode(AUTHORITY.certificate).decode()}
    # Refused, it is started again, and once.
    server.tokens = set()
    look(api)
    assert starts(tmp_path) == 2


def test_a_program_is_started_again_when_its_credentials_end(server: ApiServer, tmp_path: Path) -> None:
    server.tokens = {"t"}
    user = a_plugin(tmp_path, f"printf '%s' '{credential(token='t', expirationTimestamp='2020-01-01T00:00:00Z')}'")
    api = an_api(write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, user), allow_exec=True)
    look(api)
    look(api)
    assert starts(tmp_path) == 2


def test_a_program_gives_a_certificate(server: ApiServer, tmp_path: Path) -> None:
    text = credential(clientCertificateData=CLIENT.certificate.decode(), clientKeyData=CLIENT.key.decode())
    (tmp_path / "out").write_text(text)
    user = a_plugin(tmp_path, f"cat {tmp_path}/out")
    api = an_api(write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, user), allow_exec=True)
    assert fault(look(api, "").pods) is None
    assert server.asked("node")[0].client == "system:node:lab"


@pytest.mark.parametrize(
    "body", ["exit 1", "echo", "echo '{}'", f"echo '{credential()}'", f"echo '{credential(token='t')}' | sed s/v1/v2/"]
)
def test_a_program_that_gives_none(server: ApiServer, tmp_path: Path, body: str) -> None:
    api = an_api(write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, a_plugin(tmp_path, body)), allow_exec=True)
    assert fault(look(api).pods) is ApiFault.EXEC_FAILED


def test_a_program_that_is_not_there(server: ApiServer, tmp_path: Path) -> None:
    user = a_plugin(tmp_path, "", command="/nowhere/plugin")
    api = an_api(write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, user), allow_exec=True)
    assert fault(look(api).pods) is ApiFault.EXEC_FAILED


def test_a_program_that_hangs_is_ended_with_its_children(server: ApiServer, tmp_path: Path) -> None:
    user = a_plugin(tmp_path, f"sleep 1000 & echo $! >{tmp_path}/child; echo $$ >{tmp_path}/pid; wait")
    path = write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, user)
    # On a busy machine a short time may be over before the program has begun.
    for seconds in (1.0, 5.0, PATIENCE):
        reader = CredentialReader(str(path), allow_exec=True, realtime_usec=now_usec, exec_timeout=seconds)
        with pytest.raises(ApiError) as raised:
            reader.read()
        assert raised.value.fault is ApiFault.EXEC_FAILED
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
    end = time.monotonic() + PATIENCE
    while any(_lives(int((tmp_path / name).read_text())) for name in ("pid", "child")):
        assert time.monotonic() < end
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


# --- certificates ---


def test_a_certificate_says_for_whom_and_until_when() -> None:
    certificate = parse_certificate(AUTHORITY.client("system:node:n1.example", begins=-DAY, ends=9 * DAY).combined)
    assert (certificate.common_name, certificate.node) == ("system:node:n1.example", "n1.example")
    assert certificate.not_after_usec - certificate.not_before_usec == 10 * DAY * 1_000_000
    begun = certificate.not_before_usec
    assert certificate.warning(begun) == certificate.warning(begun + 9 * DAY * 1_000_000) == ""
    assert "was not rotated yet" in certificate.warning(begun + 9 * DAY * 1_000_000 + 1)
    assert "expired at" in certificate.warning(certificate.not_after_usec)


def test_a_certificate_of_later_than_2050_and_one_of_no_node() -> None:
    certificate = parse_certificate(AUTHORITY.client("admin", ends=30 * 365 * DAY).certificate)
    assert certificate.node == ""
    assert abs(certificate.not_after_usec - now_usec() - 30 * 365 * DAY * 1_000_000) < 3600 * 1_000_000


@given(st.data())
def test_a_damaged_certificate_is_an_error_or_a_certificate(choice: st.DataObject) -> None:
    der = base64.b64decode(b"".join(CLIENT.certificate.split(b"\n")[1:-2]))
    damaged = bytearray(der[: choice.draw(st.integers(0, len(der)))])
    if damaged:
        damaged[choice.draw(st.integers(0, len(damaged) - 1))] = choice.draw(st.integers(0, 255))
    with contextlib.suppress(CertificateError):
        parse_certificate(b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(damaged) + b"\n-----END CERTIFICATE-----\n")


# --- where the kubeconfig is ---


def a_kubelet(proc: Path, command: str = "kubelet", *arguments: str) -> Kubelet:
    directory = proc / "1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cmdline").write_bytes(b"\0".join(os.fsencode(word) for word in (command, *arguments)) + b"\0")
    return Kubelet(1, 1, command, "/var/lib/kubelet", "/p", "/var/lib/kubelet", "/p")


def a_file(root: Path, name: str) -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")


@pytest.fixture
def host(tmp_path: Path) -> tuple[Path, Path]:
    root, proc = tmp_path / "root", tmp_path / "proc"
    root.mkdir()
    (proc / "1").mkdir(parents=True)
    (proc / "1" / "root").symlink_to(root)
    return root, proc


@pytest.mark.parametrize("arguments", [("--kubeconfig=/a/b",), ("--kubeconfig", "/a/b"), ("--kubeconfig=/old", "--kubeconfig=/a/b")])
def test_the_command_line_names_the_kubeconfig(host: tuple[Path, Path], arguments: tuple[str, ...]) -> None:
    root, proc = host
    a_file(root, "/a/b")
    a_file(root, "/etc/kubernetes/kubelet.conf")
    assert find_kubeconfig(a_kubelet(proc, "kubelet", *arguments), proc=str(proc), root=str(root)) == f"{root}/a/b"


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("kubelet", "/etc/kubernetes/kubelet.conf"),
        ("kubelet", "/var/lib/kubelet/kubeconfig"),
        ("k3s-server", "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"),
        ("rke2", "/var/lib/rancher/rke2/agent/kubelet.kubeconfig"),
        ("kubelite", "/var/snap/microk8s/current/credentials/kubelet.config"),
    ],
)
def test_a_known_place_is_found(host: tuple[Path, Path], command: str, place: str) -> None:
    root, proc = host
    a_file(root, place)
    assert find_kubeconfig(a_kubelet(proc, command), proc=str(proc), root=str(root)) == f"{root}{place}"


def test_it_is_not_guessed(host: tuple[Path, Path]) -> None:
    root, proc = host
    for files, arguments in (
        ((), ()),
        (("/etc/kubernetes/kubelet.conf", "/var/lib/k0s/kubelet.conf"), ()),
        ((), ("--kubeconfig=relative",)),
        ((), ("--kubeconfig=/nowhere",)),
    ):
        for name in files:
            a_file(root, name)
        with pytest.raises(ApiError) as raised:
            find_kubeconfig(a_kubelet(proc, "kubelet", *arguments), proc=str(proc), root=str(root))
        assert raised.value.fault is ApiFault.KUBECONFIG_MISSING


def test_a_kubelet_that_sees_other_files_is_not_followed(host: tuple[Path, Path], tmp_path: Path) -> None:
    root, proc = host
    a_file(root, "/a/b")
    (proc / "1" / "root").unlink()
    (proc / "1" / "root").symlink_to(tmp_path / "container")
    a_file(tmp_path / "container", "/a/b")
    with pytest.raises(ApiError):
        find_kubeconfig(a_kubelet(proc, "kubelet", "--kubeconfig=/a/b"), proc=str(proc), root=str(root))
