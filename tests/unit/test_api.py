"""Asking the API server: what reaches it, and what each of its misbehaviours comes to; with real TLS and the library's own transport."""

import asyncio
import gc
import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devward.cluster.answer import AnswerError, AnswerProblem
from devward.cluster.api import Api, ApiSettings
from devward.cluster.api_library import Library
from devward.cluster.api_result import FAULT_TEXT, ApiAnswer, ApiFault, ApiLook, ApiProblem, ApiResult
from devward.cluster.node import parse_lease, parse_node
from devward.cluster.podlist import parse_pod_list
from devward.cluster.transport import Cut, Timeouts
from sim.api_faults import EXPECTED, FAULTS, status, too_many
from sim.api_lists import LISTS, generated
from sim.api_pki import Authority, write_identity, write_kubeconfig
from sim.api_server import ApiServer
from sim.recorded_cluster import NODE, STATES

#: Seconds, generous: nothing that is tried here takes as long.
PATIENCE = 60.0
LIBRARY = Library()
AUTHORITY = Authority()
SERVER = AUTHORITY.server()
CLIENT = AUTHORITY.client()
MADE: list[Api] = []


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(authority=AUTHORITY, server=SERVER) as stand_in:
        yield stand_in


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    link = str(write_identity(tmp_path, CLIENT))
    return write_kubeconfig(tmp_path / "kubelet.conf", server.url, AUTHORITY.certificate, {"client-certificate": link, "client-key": link})


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close()


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def realtime_usec(self) -> int:
        return time.time_ns() // 1000


def an_api(kubeconfig: Path, *, deadline: float = PATIENCE, read: float = PATIENCE, clock: Clock | None = None, **more: object) -> Api:
    clock = clock or Clock()
    settings = ApiSettings(str(kubeconfig), timeouts=Timeouts(PATIENCE, read), deadline=deadline, **more)  # type: ignore[arg-type]
    MADE.append(Api(settings, monotonic=clock.monotonic, realtime_usec=clock.realtime_usec, library=LIBRARY))
    return MADE[-1]


def look(api: Api, node: str = "", *, pods: bool = True) -> ApiLook:
    return asyncio.run(asyncio.wait_for(api.look(node, pods=pods), PATIENCE))


def timed_out(fault: ApiFault, ask: Callable[[float], ApiLook], kind: str = "node") -> ApiLook:
    """Return a look whose short time, in seconds, was over when it had come to a fault: on a busy machine it may be over before that."""
    for seconds in (0.5, 5.0, PATIENCE / 2):
        found = ask(seconds)
        result = found.node if kind == "node" else found.pods
        is_reached = kind == "node" or isinstance(found.node, ApiAnswer)
        if is_reached and isinstance(result, ApiProblem) and result.fault is fault:
            break
    return found


def problem(result: ApiResult | None, fault: ApiFault) -> ApiProblem:
    assert isinstance(result, ApiProblem), result
    assert result.fault is fault, result
    sentence = FAULT_TEXT[fault]
    assert result.text.startswith(sentence[:-1])
    assert result.text.endswith(".")
    return result


def answer(result: ApiResult | None) -> ApiAnswer:
    assert isinstance(result, ApiAnswer), result
    return result


# --- what is asked ---


@pytest.mark.parametrize("state", STATES)
def test_recorded_states_are_read_as_they_are(server: ApiServer, kubeconfig: Path, state: str) -> None:
    server.state(state)
    before = time.monotonic()
    found = look(an_api(kubeconfig))
    assert answer(found.pods).body == server.bodies["pods"]
    assert parse_node(answer(found.node).body, NODE).name == NODE
    assert parse_lease(answer(found.lease).body, NODE).holder
    parse_pod_list(answer(found.pods).body, NODE)
    assert before <= answer(found.node).asked_at <= answer(found.node).received_at <= answer(found.pods).asked_at


def test_only_three_gets_leave_the_process(server: ApiServer, kubeconfig: Path) -> None:
    api = an_api(kubeconfig)
    for name in ("good", *FAULTS):
        if not name.startswith(("hang", "trickle")):
            server.next("pods", name)
            api._held_back = None
            look(api)
    assert {request.method for request in server.requests} == {"GET"}
    assert {(request.path, tuple(request.query)) for request in server.requests} == {
        ("/api/v1/nodes/lab", ()),
        ("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/lab", ()),
        # Without a resource version and without a limit: read from the store itself, and whole.
        ("/api/v1/pods", ("fieldSelector",)),
    }
    assert {request.query["fieldSelector"][0] for request in server.asked("pods")} == {"spec.nodeName=lab"}
    assert {request.client for request in server.requests} == {"system:node:lab"}


def test_a_lease_that_is_renewed_is_seen_to_move(server: ApiServer, kubeconfig: Path) -> None:
    server.renews_lease = True
    api = an_api(kubeconfig)
    first, second = (parse_lease(answer(look(api).lease).body, NODE) for _ in range(2))
    assert first.renewed != second.renewed


def test_pods_are_asked_for_only_if_wanted(server: ApiServer, kubeconfig: Path) -> None:
    assert look(an_api(kubeconfig), pods=False).pods is None
    assert [request.kind for request in server.requests] == ["node", "lease"]


def test_one_look_takes_one_connection(server: ApiServer, kubeconfig: Path) -> None:
    look(an_api(kubeconfig))
    assert (server.connections, len(server.requests)) == (1, 3)


@pytest.mark.parametrize("name", ["../pods", "lab/status", "Lab", "lab?x=y", "-lab", "lab\n", "x" * 254])
def test_a_name_that_no_node_has_is_not_asked_for(server: ApiServer, kubeconfig: Path, name: str) -> None:
    problem(look(an_api(kubeconfig), name).node, ApiFault.NODE_NAME_ODD)
    assert server.requests == []


def test_the_environment_names_no_proxy(server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        answer(look(an_api(kubeconfig)).pods)
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


# --- misbehaviour ---


def test_every_misbehaviour_is_expected() -> None:
    assert EXPECTED.keys() == FAULTS.keys()


@pytest.mark.parametrize("kind", ["node", "pods"])
@pytest.mark.parametrize("name", EXPECTED)
def test_a_misbehaviour_is_a_named_problem(server: ApiServer, kubeconfig: Path, name: str, kind: str) -> None:
    server.always(kind, name)
    if name.startswith(("hang", "trickle")):
        found = timed_out(EXPECTED[name], lambda seconds: look(an_api(kubeconfig, deadline=seconds)), kind)
        api = MADE[-1]
    else:
        api = an_api(kubeconfig)
        found = look(api)
    problem(found.node if kind == "node" else found.pods, EXPECTED[name])
    if kind == "pods":
        answer(found.node)
    # Nothing of it stays: the thread is free, and the next look is good.
    server.always(kind, None)
    api._held_back = None
    api._refused_at = None
    api._settings = ApiSettings(str(kubeconfig))
    answer(look(api).pods)
    assert not api._worker.hung


@pytest.mark.parametrize(("name", "fault"), [("hang-before", ApiFault.ANSWER_TIMEOUT), ("hang-in-body", ApiFault.BODY_TIMEOUT)])
def test_a_socket_that_says_nothing_times_out_by_itself(server: ApiServer, kubeconfig: Path, name: str, fault: ApiFault) -> None:
    server.always("node", name)
    found = timed_out(fault, lambda seconds: look(an_api(kubeconfig, read=seconds)))
    problem(found.node, fault)


def test_nobody_accepts_the_connection(kubeconfig: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write_kubeconfig(kubeconfig, f"https://127.0.0.1:{silent.getsockname()[1]}", AUTHORITY.certificate, {"token": "t"})
        found = timed_out(ApiFault.CONNECT_TIMEOUT, lambda seconds: look(an_api(kubeconfig, deadline=seconds), NODE))
        problem(found.node, ApiFault.CONNECT_TIMEOUT)


def test_nothing_listens(kubeconfig: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    write_kubeconfig(kubeconfig, f"https://127.0.0.1:{port}", AUTHORITY.certificate, {"token": "t"})
    problem(look(an_api(kubeconfig), NODE).node, ApiFault.CONNECTION_REFUSED)


def test_a_name_that_does_not_resolve(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    write_kubeconfig(kubeconfig, "https://api.invalid:6443", AUTHORITY.certificate, {"token": "t"})
    problem(look(an_api(kubeconfig), NODE).node, ApiFault.NAME_UNRESOLVED)


def test_a_name_service_that_hangs_holds_up_nobody(server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, goes_on = threading.Event(), threading.Event()
    real = socket.getaddrinfo

    def hanging(*arguments: object, **options: object) -> object:
        asked.set()
        assert goes_on.wait(PATIENCE)
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    monkeypatch.setattr("devward.cluster.api._CUT_GRACE", 0.1)
    api = an_api(kubeconfig, deadline=0.2)

    async def scenario() -> None:
        threads = threading.active_count()
        while not asked.is_set():
            # The time of a look may be over before it asks.
            await api.look()
            await asyncio.sleep(0.01)
        for _ in range(3):
            problem((await api.look()).node, ApiFault.HUNG)
        # However often it is asked, one thread waits.
        assert threading.active_count() <= threads + 1
        goes_on.set()
        while api._worker.hung:  # noqa: ASYNC110 # a thread ends it
            await asyncio.sleep(0.01)
        api._settings = ApiSettings(str(kubeconfig))
        answer((await api.look()).pods)

    try:
        asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    finally:
        goes_on.set()


def test_a_look_that_nobody_waits_for_is_cut_off(server: ApiServer, kubeconfig: Path) -> None:
    server.always("node", "hang-before")
    api = an_api(kubeconfig)

    async def scenario() -> None:
        task = asyncio.create_task(api.look())
        while not server.requests:  # noqa: ASYNC110 # a thread adds to it
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        server.always("node", None)
        # With its whole deadline it would wait for a minute.
        answer((await api.look()).pods)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE / 2))


def test_descriptors_do_not_leak(server: ApiServer, kubeconfig: Path) -> None:
    api = an_api(kubeconfig)
    look(api)
    names = [name for name in FAULTS if not name.startswith(("hang", "trickle"))]

    def ours() -> int:
        gc.collect()
        return sum(1 for name in os.listdir("/proc/self/fd") if _points_to(name).startswith("/memfd:devward"))

    for name in names:
        server.next("pods", name)
        api._held_back = None
        look(api)
    assert ours() == 0


def _points_to(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


# --- sizes ---


@pytest.mark.parametrize("size", [999, 1000, 1001])
def test_a_list_is_bounded(server: ApiServer, kubeconfig: Path, size: int) -> None:
    server.bodies["pods"] = b" " * size
    found = look(an_api(kubeconfig, max_list=1000)).pods
    if size <= 1000:
        assert answer(found).body == b" " * size
    else:
        problem(found, ApiFault.TOO_LARGE)


@pytest.mark.parametrize("name", ["huge", "endless", "endless-error"])
def test_no_answer_takes_more_memory_than_its_bound(server: ApiServer, kubeconfig: Path, name: str) -> None:
    api = an_api(kubeconfig, max_list=1024 * 1024)
    look(api)
    server.always("pods", name)
    gc.collect()
    tracemalloc.start()
    try:
        assert isinstance(look(api).pods, ApiProblem)
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_250_pods_are_one_list(server: ApiServer, kubeconfig: Path) -> None:
    server.bodies["pods"] = generated(250, filler=8000)
    assert len(parse_pod_list(answer(look(an_api(kubeconfig)).pods).body, NODE).pods) == 250


# --- lists that are no evidence, or odd evidence ---

JUDGED = {
    "null-list": 0,
    "null-fields": None,
    "empty-list": 0,
    "paginated": AnswerProblem.PAGINATED,
    "other-node": AnswerProblem.OTHER_NODE,
    "restored-backup": 1,
    "versionless": AnswerProblem.NO_VERSION,
}


@pytest.mark.parametrize("name", LISTS)
def test_an_odd_list_is_judged_by_its_reader(server: ApiServer, kubeconfig: Path, name: str) -> None:
    server.state("01")
    server.always("pods", name)
    data = answer(look(an_api(kubeconfig)).pods).body
    expected = JUDGED[name]
    if isinstance(expected, AnswerProblem):
        with pytest.raises(AnswerError) as raised:
            parse_pod_list(data, NODE)
        assert raised.value.problem is expected
    elif name == "null-fields":
        assert parse_pod_list(data, NODE).pods
    else:
        assert len(parse_pod_list(data, NODE).pods) == expected


def test_an_error_says_what_the_server_says(server: ApiServer, kubeconfig: Path) -> None:
    server.always("node", "forbidden")
    found = problem(look(an_api(kubeconfig)).node, ApiFault.FORBIDDEN)
    assert "cannot read 'other', only its own Node object" in found.text
    assert found.status == 403
    server.always("node", status(403, "Forbidden", "a\x1b[31m\u202eb" + "x" * 5000))
    text = look(an_api(kubeconfig)).node.text  # type: ignore[union-attr]
    assert text.isprintable()
    assert len(text) < 600


def test_another_nodes_credentials_are_told(server: ApiServer, kubeconfig: Path) -> None:
    found = look(an_api(kubeconfig), "other")
    problem(found.node, ApiFault.FORBIDDEN)
    problem(found.lease, ApiFault.FORBIDDEN)
    problem(found.pods, ApiFault.FORBIDDEN)


# --- asked to wait ---


@pytest.mark.parametrize(("given", "seconds"), [("30", 30.0), ("999999999", 300.0), ("soon", 1.0), ("-5", 1.0), ("0", 0.0)])
def test_the_server_is_left_alone_for_as_long_as_it_says(server: ApiServer, kubeconfig: Path, given: str, seconds: float) -> None:
    clock = Clock()
    api = an_api(kubeconfig, clock=clock)
    server.next("node", too_many(given))
    found = problem(look(api).node, ApiFault.TOO_MANY_REQUESTS)
    assert found.retry_at == found.at + seconds
    assert len(server.requests) == 1
    if seconds >= 30:
        assert look(api).pods == found
        assert len(server.requests) == 1
    clock.ahead += seconds + 1
    answer(look(api).pods)


def test_503_with_retry_after_is_respected_too(server: ApiServer, kubeconfig: Path) -> None:
    api = an_api(kubeconfig)
    server.next("pods", status(503, "ServiceUnavailable", "apiserver not ready", ("Retry-After", "300")))
    look(api)
    asked = len(server.requests)
    problem(look(api).node, ApiFault.SERVER_ERROR)
    assert len(server.requests) == asked


def test_a_server_that_does_not_answer_is_asked_once_a_look(server: ApiServer, kubeconfig: Path) -> None:
    server.always("node", "close")
    found = look(an_api(kubeconfig))
    assert found.node == found.lease == found.pods
    assert len(server.requests) == 1


def test_a_connection_that_comes_about_after_the_cut_is_ended_too() -> None:
    cut = Cut()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        cut.cut()
        cut.hold(ours)
        theirs.settimeout(PATIENCE)
        assert theirs.recv(1) == b""
        cut.release()
        # Ours is not closed by it: whoever made it has it still.
        assert ours.fileno() >= 0
