"""What ends a registration, and how the plugin comes back: restarts, wiped directories, kubelets that hang, refuse or do not listen."""

import asyncio
import contextlib
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from devward.plugin import registration, server, sessions
from devward.plugin.messages import Options, Wire
from devward.plugin.place import PlaceError
from devward.plugin.register import register
from devward.plugin.status import PluginProblem, RegistrationState, not_ready
from sim.foreign_plugin import ForeignPlugin
from sim.held_time import PATIENCE
from sim.kubelet_plugins import Kubelet, Plugin
from sim.plugin_host import RESOURCE, PluginHost, be_patient

FAILED, TAKEN, REGISTERED = RegistrationState.FAILED, RegistrationState.TAKEN, RegistrationState.REGISTERED


@pytest.fixture(autouse=True)
def _pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hurry, so that waiting is short; none of these times decides what happens."""
    be_patient(monkeypatch)
    for module, name, seconds in [
        (registration, "SEARCH", 0.2),
        (registration, "_LEAST", 0.005),
        (sessions, "FIRST_WAIT", 0.02),
        (sessions, "LONGEST_WAIT", 0.1),
    ]:
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture(name="kubelet")
def _kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    with Kubelet(tmp_path / "dp") as kubelet:
        yield kubelet


@pytest.fixture(name="host")
def _host(kubelet: Kubelet) -> Iterator[PluginHost]:
    with PluginHost(kubelet.directory) as host:
        host.offer()
        kubelet.plugin(RESOURCE)
        host.wait_ready()
        yield host


def sockets(directory: Path) -> list[str]:
    found = []
    for entry in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # the plugin may remove its own meanwhile
            if stat.S_ISSOCK(entry.lstat().st_mode) and entry.name != "kubelet.sock":
                found.append(entry.name)
    return sorted(found)


def next_plugin(kubelet: Kubelet, before: Plugin) -> Plugin:
    """Wait for another registration than this one, with its devices told."""

    def found() -> bool:
        plugin = kubelet.plugins.get(RESOURCE)
        return plugin is not None and plugin is not before and bool(plugin.lists) and not plugin.ended

    kubelet.wait(found, "another registration")
    return kubelet.plugins[RESOURCE]


def test_a_hundred_restarts_in_a_row_end_registered_and_none_makes_a_storm(kubelet: Kubelet, host: PluginHost) -> None:
    for _ in range(100):
        before = len(kubelet.log)
        kubelet.restart()
        kubelet.plugin(RESOURCE)
        host.wait_ready()
        registers = [what for what, _ in kubelet.log[before:]].count("Register")
        assert 1 <= registers <= 3
        kubelet.wait(lambda: kubelet.capacity(RESOURCE) == 2, "the capacity")
    assert len(sockets(kubelet.directory)) == 1
    settled = len(kubelet.log)
    host.run(host.plugin._registration.nudge)
    host.wait_ready()
    assert len(kubelet.log) == settled, "an event after the fact is no reason to register again"


def test_restarts_without_a_moment_between_them_end_registered(kubelet: Kubelet, host: PluginHost) -> None:
    for _ in range(20):
        kubelet.restart()
    kubelet.plugin(RESOURCE)
    host.wait_ready()


def test_every_registration_is_of_a_socket_of_its_own_and_the_old_one_is_gone_first(kubelet: Kubelet, host: PluginHost) -> None:
    for _ in range(3):
        before = kubelet.plugin(RESOURCE)
        kubelet.restart()
        assert next_plugin(kubelet, before).endpoint != before.endpoint
        assert sockets(kubelet.directory) == [host.wait_ready().endpoint]


def test_a_kubelet_that_is_killed_and_comes_back(kubelet: Kubelet, host: PluginHost) -> None:
    kubelet.kill()
    status = host.wait(lambda status: status.problem is PluginProblem.KUBELET_UNREACHABLE)
    assert not_ready(status)
    kubelet.start()
    kubelet.plugin(RESOURCE)
    host.wait_ready()


def test_a_socket_of_ours_that_is_removed_is_made_again(kubelet: Kubelet, host: PluginHost) -> None:
    before = kubelet.plugin(RESOURCE)
    (kubelet.directory / before.endpoint).unlink()
    next_plugin(kubelet, before)
    host.wait_ready()


def test_a_socket_of_ours_that_is_replaced_is_left_alone(kubelet: Kubelet, host: PluginHost) -> None:
    before = kubelet.plugin(RESOURCE)
    path = kubelet.directory / before.endpoint
    path.unlink()
    path.write_text("somebody else's")
    next_plugin(kubelet, before)
    assert path.read_text() == "somebody else's"
    host.wait_ready()


def test_a_directory_that_is_wiped_and_made_again(kubelet: Kubelet, host: PluginHost) -> None:
    kubelet.stop()
    # The plugin may remove its own socket first.
    shutil.rmtree(kubelet.directory, ignore_errors=True)
    assert not kubelet.directory.exists()
    host.wait(lambda status: status.problem is PluginProblem.DIRECTORY_MISSING)
    kubelet.start()
    kubelet.plugin(RESOURCE)
    host.wait_ready()


def test_without_a_single_event_the_slow_pass_notices(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(registration, "Inotify", refuse)
    monkeypatch.setattr(registration, "SLOW_PASS", 0.2)
    with PluginHost(kubelet.directory) as host:
        host.offer()
        before = kubelet.plugin(RESOURCE)
        host.wait_ready()
        (kubelet.directory / before.endpoint).unlink()
        before = next_plugin(kubelet, before)
        kubelet.restart()
        next_plugin(kubelet, before)


def test_a_register_that_hangs_is_given_up_and_made_again(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "REGISTER_DEADLINE", 0.3)
    kubelet.faults.hang_register.set()
    with PluginHost(kubelet.directory) as host:
        host.offer()
        status = host.wait(lambda status: status.failures >= 2)
        assert status.problem is PluginProblem.KUBELET_SILENT
        assert not_ready(status)
        assert len(sockets(kubelet.directory)) <= 1, "a server that failed is stopped before the next"
        monkeypatch.setattr(registration, "REGISTER_DEADLINE", PATIENCE)
        kubelet.faults.hang_register.clear()
        host.wait_ready()


def test_after_a_failure_nothing_of_ours_stands_and_the_next_attempt_takes_its_time(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "FIRST_WAIT", 1e6)
    monkeypatch.setattr(sessions, "LONGEST_WAIT", 1e6)
    kubelet.faults.refuse_register = "no"
    with PluginHost(kubelet.directory) as host:
        host.offer()
        host.wait_state(FAILED)
        host.wait(lambda _: sockets(kubelet.directory) == [], "no socket of ours")
        for _ in range(50):
            host.run(host.plugin._registration.nudge)
            host.run(lambda: asyncio.sleep(0.01))
        assert [what for what, _ in kubelet.log] == ["Register"]
        assert sockets(kubelet.directory) == []


def test_a_plugin_can_be_stopped_while_register_hangs(kubelet: Kubelet) -> None:
    kubelet.faults.hang_register.set()
    with PluginHost(kubelet.directory) as host:
        host.offer()
        kubelet.wait(lambda: kubelet.log)
    assert sockets(kubelet.directory) == []


def test_a_refusal_is_shown_in_the_kubelets_words_and_tried_again(kubelet: Kubelet) -> None:
    kubelet.faults.refuse_register = "no\nthanks"
    with PluginHost(kubelet.directory) as host:
        host.offer()
        status = host.wait_state(FAILED)
        assert status.problem is PluginProblem.KUBELET_REFUSES
        assert "no\\x0athanks" in status.text
        kubelet.faults.refuse_register = ""
        host.wait_ready()


def test_what_keeps_failing_is_said_once_and_stands_while_it_is_tried_again(kubelet: Kubelet, caplog: pytest.LogCaptureFixture) -> None:
    kubelet.faults.refuse_register = "no"
    with PluginHost(kubelet.directory) as host:
        host.offer()
        host.wait(lambda status: status.failures >= 3)
        kubelet.faults.hang_register.set()
        status = host.wait_state(RegistrationState.REGISTERING)
        assert status.problem is PluginProblem.KUBELET_REFUSES
        kubelet.faults.hang_register.clear()
    assert caplog.text.count("is not registered: plugin-kubelet-refuses") == 1


def test_a_name_that_the_kubelet_does_not_take_is_a_refusal(kubelet: Kubelet) -> None:
    with PluginHost(kubelet.directory, resource="kubernetes.io/x") as host:
        host.offer()
        assert "is invalid" in host.wait_state(FAILED).text


def test_a_kubelet_that_cannot_connect_back_is_a_refusal_and_recovers(kubelet: Kubelet) -> None:
    kubelet.faults.refuse_dial = True
    with PluginHost(kubelet.directory) as host:
        host.offer()
        assert host.wait_state(FAILED).problem is PluginProblem.KUBELET_REFUSES
        kubelet.faults.refuse_dial = False
        host.wait_ready()


def test_a_kubelet_that_does_not_listen_is_not_ready_and_told_again(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "FIRST_STREAM", 1.0)
    kubelet.faults.no_stream = True
    with PluginHost(kubelet.directory) as host:
        host.offer()
        status = host.wait_state(REGISTERED)
        assert not_ready(status) == ("device plugin: plugin-no-stream",)
        host.wait(lambda status: status.registrations >= 3)
        kubelet.faults.no_stream = False
        host.wait_ready()


def test_a_stream_that_is_lost_though_the_kubelet_stands_is_asked_for_again(
    kubelet: Kubelet, host: PluginHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "NEXT_STREAM", 0.1)
    before = kubelet.plugin(RESOURCE)
    before.stop_listening()
    next_plugin(kubelet, before)
    host.wait_ready()


def test_something_that_is_no_socket_is_no_kubelet(tmp_path: Path) -> None:
    directory = tmp_path / "dp"
    directory.mkdir(mode=0o750)
    (directory / "kubelet.sock").mkdir()
    with PluginHost(directory) as host:
        host.offer()
        assert host.wait(lambda status: status.problem is PluginProblem.KUBELET_ABSENT)
        assert sockets(directory) == []


def test_a_directory_in_which_others_may_write_is_refused_until_it_is_safe(kubelet: Kubelet) -> None:
    kubelet.directory.chmod(0o777)
    with PluginHost(kubelet.directory) as host:
        host.offer()
        assert host.wait_state(FAILED).problem is PluginProblem.DIRECTORY_UNSAFE
        assert sockets(kubelet.directory) == []
        kubelet.directory.chmod(0o750)
        host.wait_ready()


def test_a_plugin_that_serves_the_resource_already_is_named_and_left_alone_until_it_ends(kubelet: Kubelet) -> None:
    with PluginHost(kubelet.directory) as host:
        with ForeignPlugin(kubelet.directory, "hyperlight.sock", ("kvm-0",)) as foreign:
            foreign.register(RESOURCE)
            theirs = kubelet.plugin(RESOURCE)
            host.offer()
            status = host.wait_state(TAKEN)
            assert (status.detail, status.failures) == ("hyperlight.sock", 0)
            assert not_ready(status) == ("device plugin: plugin-taken",)
            assert kubelet.plugins[RESOURCE] is theirs
            assert theirs.lists == [{"kvm-0": "Healthy"}]
        host.wait_ready()


def test_a_socket_that_it_left_behind_keeps_nobody_away(kubelet: Kubelet) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(kubelet.directory / "hyperlight.sock"))
    with PluginHost(kubelet.directory) as host:
        host.offer()
        host.wait_ready()


def test_take_over_takes_it(kubelet: Kubelet) -> None:
    with ForeignPlugin(kubelet.directory, "hyperlight.sock") as foreign:
        foreign.register(RESOURCE)
        theirs = kubelet.plugin(RESOURCE)
        with PluginHost(kubelet.directory, take_over=True) as host:
            host.offer()
            host.wait_ready()
            assert next_plugin(kubelet, theirs).endpoint == host.status.endpoint


def test_a_plugin_of_any_name_that_comes_later_and_takes_the_resource_is_named(
    kubelet: Kubelet, host: PluginHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "NEXT_STREAM", 0.1)
    with ForeignPlugin(kubelet.directory, "other.sock") as foreign:
        foreign.register(RESOURCE)
        assert host.wait_state(TAKEN).detail == "other.sock"
        assert kubelet.plugins[RESOURCE].endpoint == "other.sock"
    host.wait_ready()


def test_devices_of_the_resource_that_are_none_of_ours_are_somebodys(kubelet: Kubelet) -> None:
    with ForeignPlugin(kubelet.directory, "other.sock", ("gpu0",)), PluginHost(kubelet.directory) as host:
        host.kept_ids = ["kvm-0", "gpu0"]
        host.offer()
        assert host.wait_state(TAKEN).detail == "other.sock"
        host.kept_ids = ["kvm-0"]
        host.wait_ready()


def test_while_the_kubelets_record_cannot_be_read_nothing_is_taken_from_anybody_who_listens(kubelet: Kubelet) -> None:
    with ForeignPlugin(kubelet.directory, "other.sock"), PluginHost(kubelet.directory) as host:
        host.kept_ids = None
        host.offer()
        assert host.wait_state(TAKEN).detail.startswith("other.sock, or another one")
        assert kubelet.log == []
        host.kept_ids = ()
        host.wait_ready()


def test_an_unreadable_record_holds_up_nobody_where_nobody_else_listens_or_take_over_is_set(kubelet: Kubelet) -> None:
    with PluginHost(kubelet.directory) as host:
        host.kept_ids = None
        host.offer()
        host.wait_ready()
    with ForeignPlugin(kubelet.directory, "other.sock"), PluginHost(kubelet.directory, take_over=True) as host:
        host.kept_ids = None
        host.offer()
        host.wait_ready()


def test_other_plugins_are_no_rivals(kubelet: Kubelet) -> None:
    with ForeignPlugin(kubelet.directory, "other.sock") as foreign:
        foreign.register("example.com/other")
        with PluginHost(kubelet.directory) as host:
            host.offer()
            host.wait_ready()
            kubelet.restart()
            kubelet.plugin(RESOURCE)


def test_what_breaks_off_unforeseen_is_reported_and_begun_anew(
    kubelet: Kubelet, host: PluginHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(sessions, "end_of", broken)
        host.run(host.plugin._registration.nudge)
        status = host.wait(lambda status: status.problem is PluginProblem.BROKEN_OFF)
        assert "a defect" in status.text
    host.wait_ready()
    assert "a defect" in caplog.text


def test_a_socket_that_cannot_be_made_is_a_failure_and_leaves_nothing(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    right = server.address
    monkeypatch.setattr(server, "address", lambda _: right("/nowhere/at/all.sock"))
    with PluginHost(kubelet.directory) as host:
        host.offer()
        assert host.wait_state(FAILED).problem is PluginProblem.SOCKET_UNUSABLE
        assert kubelet.log == []
        monkeypatch.setattr(server, "address", right)
        host.wait_ready()


def test_an_environment_with_a_proxy_changes_nothing(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:9")
    with PluginHost(kubelet.directory) as host:
        host.offer()
        host.wait_ready()


def test_a_kubelet_that_accepts_and_says_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "kubelet.sock"))
        mute.listen()

        with pytest.raises(PlaceError) as caught:
            asyncio.run(register(str(tmp_path / "kubelet.sock"), Wire().register_request("a", "b/c", Options()), 0.3))
    assert caught.value.problem in (PluginProblem.KUBELET_SILENT, PluginProblem.KUBELET_UNREACHABLE)
