#!/usr/bin/python3
"""A stand-in for the API server, as a node's kubelet sees it: TLS, client certificates and tokens, Node, Lease, Pods and a watch on them.

It serves recorded states and others, misbehaves on demand, and keeps what it was asked. By hand:
`/usr/bin/python3 tests/sim/api_server.py --help`.
"""

import argparse
import collections
import contextlib
import http.server
import select
import socket
import ssl
import sys
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sim.api_faults import CLOSING, FAULTS, JSON, Exchange, chunk
from sim.api_lists import LISTS, generated, of_host, renewed
from sim.api_pki import Authority, Pair, write_identity, write_kubeconfig
from sim.recorded_cluster import NODE, STATES, body, node_of, pods_of

Answer = Callable[[Exchange], Any]
_NODE_PATH = "/api/v1/nodes/"
_LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"
_PODS_PATH = "/api/v1/pods"


@dataclass(frozen=True)
class Request:
    """What was asked, as it came."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    #: Common name of the client certificate.
    client: str

    @property
    def kind(self) -> str:
        """What it is for: node, lease, pods, watch or other."""
        if self.path.startswith(_NODE_PATH):
            return "node"
        if self.path.startswith(_LEASE_PATH):
            return "lease"
        if self.path == _PODS_PATH:
            return "watch" if "watch" in self.query else "pods"
        return "other"


class ApiServer:
    """The stand-in, which runs while it is entered. Everything may be changed while it does."""

    def __init__(self, *, node: str = NODE, authority: Authority | None = None, server: Pair | None = None) -> None:
        self.node = node
        self.authority = authority or Authority()
        self.bodies = {"node": node_of("00"), "lease": body("lease-1.json"), "pods": pods_of("00")}
        #: Tokens that are known; a client certificate of our authority is known always.
        self.tokens: set[str] = set()
        #: The Lease moves, as that of a kubelet that lives.
        self.renews_lease = False
        self.requests: list[Request] = []
        self.connections = 0
        self.closing = threading.Event()
        #: Lines of the watch, and what ends it.
        self.events: list[bytes | None] = []
        self.changed = threading.Condition()
        self._next: dict[str, collections.deque[str | Answer]] = collections.defaultdict(collections.deque)
        self._always: dict[str, str | Answer] = {}
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.stand_in = self
        self._http.context = self._context(server or self.authority.server())
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"https://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> "ApiServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        with self.changed:
            self.changed.notify_all()
        self._http.shutdown()
        self._http.end_all()
        self._http.server_close()
        self._thread.join()

    def present(self, pair: Pair) -> None:
        """Show another certificate from now on."""
        self._http.context = self._context(pair)

    def state(self, name: str) -> None:
        """Serve a recorded state."""
        self.bodies |= {"node": node_of(name), "pods": pods_of(name)}

    def next(self, kind: str, *answers: str | Answer) -> None:
        """Answer the next requests of a kind with these, faults by name, or `good`; then as before."""
        self._next[kind] += answers

    def always(self, kind: str, answer: str | Answer | None) -> None:
        """Answer each request of a kind like this; None: truly again."""
        if answer is None:
            self._always.pop(kind, None)
        else:
            self._always[kind] = answer

    def asked(self, kind: str) -> list[Request]:
        """Return the requests of a kind so far."""
        return [request for request in list(self.requests) if request.kind == kind]

    def push(self, *lines: bytes | None) -> None:
        """Send lines to whoever watches, now or later; None ends the watch that comes to it."""
        with self.changed:
            self.events += lines
            self.changed.notify_all()

    def answer_for(self, request: Request) -> str | Answer:
        """Return how to answer a request."""
        waiting = self._next[request.kind]
        return waiting.popleft() if waiting else self._always.get(request.kind, "good")

    def next_event(self) -> bytes | None:
        """Return the next line of the watch; None: it ends."""
        with self.changed:
            self.changed.wait_for(lambda: self.events or self.closing.is_set())
            return None if self.closing.is_set() else self.events.pop(0)

    def _context(self, pair: Pair) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.authority.certificate.decode())
        with tempfile.NamedTemporaryFile() as file:
            file.write(pair.combined)
            file.flush()
            context.load_cert_chain(file.name)
        return context


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    stand_in: ApiServer
    context: ssl.SSLContext

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: set[socket.socket] = set()

    def end_all(self) -> None:
        """End the connections, so that no thread waits for a request."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        self.stand_in.connections += 1
        secure = self.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        self._open.add(secure)
        try:
            try:
                secure.do_handshake()
            except ssl.SSLError:  # the client does not want this server, or the other way round
                # Until the client has read why: a connection that is closed before takes that with it.
                socket.socket.shutdown(secure, socket.SHUT_WR)
                while socket.socket.recv(secure, 65536):
                    pass
                return
            self.RequestHandlerClass(secure, client_address, self)
        except OSError:  # the client has gone
            pass
        finally:
            self._open.discard(secure)
            with contextlib.suppress(OSError):
                secure.shutdown(socket.SHUT_RDWR)
            secure.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _answer(self) -> None:
        stand_in = self.server.stand_in
        parts = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.request_now = Request(self.command, parts.path, query, headers, self._client())
        stand_in.requests.append(self.request_now)
        answer = stand_in.answer_for(self.request_now)
        if answer == "good":
            self._truly()
        elif callable(answer):
            answer(self)
        elif answer in LISTS:
            self._send(LISTS[answer](self.true_body))
        else:
            FAULTS[answer](self)
            self.close_connection |= answer in CLOSING

    def __getattr__(self, name: str) -> Callable[[], None]:
        # Whatever the verb: a client that sends another one than GET is to be seen.
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def log_message(self, *_: Any) -> None:
        """Say nothing: requests are kept."""

    # --- what a fault needs ---

    @property
    def true_body(self) -> bytes:
        stand_in, kind = self.server.stand_in, self.request_now.kind
        body = stand_in.bodies.get(kind, b"{}")
        return renewed(body) if kind == "lease" and stand_in.renews_lease else body

    def raw(self, data: bytes) -> None:
        self.connection.sendall(data)

    def head(self, status: int, *headers: tuple[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers)]
        self.raw("\r\n".join([*lines, "", ""]).encode())

    def hang(self) -> None:
        while self.pause(0.05):
            # A client that goes away makes the connection readable.
            if select.select([self.connection], [], [], 0)[0]:
                return

    def pause(self, seconds: float) -> bool:
        return not self.server.stand_in.closing.wait(seconds)

    # --- the true answers ---

    def _truly(self) -> None:
        stand_in, request = self.server.stand_in, self.request_now
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not request.client and token not in stand_in.tokens:
            FAULTS["unauthorized"](self)
        elif request.method != "GET":
            self._fail(405)
        elif request.kind in ("node", "lease") and request.path.rpartition("/")[2] != stand_in.node:
            FAULTS["forbidden"](self)
        elif request.kind in ("pods", "watch") and request.query.get("fieldSelector") != [f"spec.nodeName={stand_in.node}"]:
            self._send(body("err-403-no-field-selector.json").rstrip().rpartition(b"\n")[0], 403)
        elif request.kind == "watch":
            self._stream()
        elif request.kind == "other":
            FAULTS["not-found"](self)
        else:
            self._send(self.true_body)

    def _stream(self) -> None:
        self.head(200, JSON, ("Transfer-Encoding", "chunked"))
        while (line := self.server.stand_in.next_event()) is not None:
            self.raw(chunk(line + b"\n"))
        self.raw(b"0\r\n\r\n")

    def _send(self, content: bytes, status: int = 200) -> None:
        self.head(status, JSON, ("Content-Length", str(len(content))))
        self.raw(content)

    def _fail(self, status: int) -> None:
        self._send(b'{"kind":"Status","apiVersion":"v1","status":"Failure"}', status)

    def _client(self) -> str:
        certificate: Any = self.connection.getpeercert() or {}  # type: ignore[attr-defined]
        return next((value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"), "")


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    result = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    result.add_argument("--directory", type=Path, required=True, help="write the kubeconfig, and the client certificate it names, here")
    result.add_argument("--state", default="00", metavar="STATE", help=f"the recorded state to serve: {', '.join(STATES)}")
    result.add_argument("--pods-of", metavar="STATE", help="serve the Pods of another recorded state, as a stale snapshot does")
    result.add_argument("--this-host", action="store_true", help="let the Node have the boot id and the machine id of this host")
    result.add_argument("--stopped", action="store_true", help="let the Lease stand still, as that of a kubelet that has stopped")
    result.add_argument("--pods", type=int, metavar="COUNT", help="serve so many generated Pods instead")
    result.add_argument("--token", help="let the kubeconfig have this token instead of a client certificate")
    result.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND=NAME",
        help=f"answer every request of a kind (node, lease, pods, watch) so: {', '.join([*FAULTS, *LISTS])}",
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted, and print each request."""
    given = parser().parse_args(arguments)
    stand_in = ApiServer()
    stand_in.state(given.state)
    stand_in.renews_lease = not given.stopped
    if given.this_host:
        boot_id, machine_id = (Path(name).read_text().strip() for name in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"))
        stand_in.bodies["node"] = of_host(stand_in.bodies["node"], boot_id, machine_id)
    if given.pods_of is not None:
        stand_in.bodies["pods"] = pods_of(given.pods_of)
    if given.pods is not None:
        stand_in.bodies["pods"] = generated(given.pods)
    for text in given.fault:
        kind, _, name = text.partition("=")
        if name not in FAULTS and name not in LISTS:
            parser().error(f"no such fault: {text}")
        stand_in.always(kind, name)
    if given.token:
        stand_in.tokens.add(given.token)
        user = {"token": given.token}
    else:
        link = str(write_identity(given.directory, stand_in.authority.client(f"system:node:{stand_in.node}")))
        user = {"client-certificate": link, "client-key": link}
    with stand_in:
        path = write_kubeconfig(given.directory / "kubelet.conf", stand_in.url, stand_in.authority.certificate, user)
        print(f"kubeconfig: {path}", flush=True)
        printed = 0
        with contextlib.suppress(KeyboardInterrupt):
            while not stand_in.closing.wait(0.2):
                for request in stand_in.requests[printed:]:
                    print(f"{request.method} {request.path} {urllib.parse.urlencode(request.query, doseq=True)}", flush=True)
                    printed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
