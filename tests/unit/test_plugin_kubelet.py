"""The device plugin as a kubelet meets it, over gRPC: what it says, what it gives, and how its streams end."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from devward.model import DeviceKind, Health, SpecState
from devward.plugin import decision
from devward.plugin.settings import Injection
from devward.plugin.status import not_ready
from devward.reasons import Reason
from sim.held_time import PATIENCE
from sim.kubelet_plugins import Kubelet, Plugin
from sim.plugin_host import RESOURCE, PluginHost, allowed, be_patient, refused, standing

HEALTHY, UNHEALTHY = {"kvm-0": "Healthy", "kvm-1": "Healthy"}, {"kvm-0": "Unhealthy", "kvm-1": "Unhealthy"}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be refused because the machine is slow; a test of the time sets it itself."""
    be_patient(monkeypatch)
    monkeypatch.setattr(decision, "BUDGET", PATIENCE)


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


def given(plugin: Plugin, *containers: list[str]) -> list[Any]:
    return list(plugin.allocation(*containers).result(timeout=PATIENCE).container_responses)


def error(call: Callable[[], object]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


@pytest.mark.usefixtures("host")
def test_the_kubelet_is_answered_inside_its_own_register(kubelet: Kubelet) -> None:
    assert [what for what, _ in kubelet.log] == ["Register", "GetDevicePluginOptions", "ListAndWatch"]
    assert len({endpoint for _, endpoint in kubelet.log}) == 1
    options = kubelet.plugin(RESOURCE).options()
    assert (options.pre_start_required, options.get_preferred_allocation_available) == (False, False)


@pytest.mark.usefixtures("host")
def test_the_socket_is_roots_alone(kubelet: Kubelet) -> None:
    (name,) = (entry.name for entry in kubelet.directory.iterdir() if entry.name != "kubelet.sock")
    assert (kubelet.directory / name).stat().st_mode & 0o777 == 0o600


def test_nobody_is_told_of_devices_before_a_check_has_completed(kubelet: Kubelet) -> None:
    with PluginHost(kubelet.directory) as host:
        host.offer(standing(health=Health.UNKNOWN))
        host.offer(standing(), spec=SpecState.UNKNOWN)
        host.wait(lambda status: status.problem == "plugin-not-checked")
        assert kubelet.log == []
        host.offer(standing(health=Health.UNHEALTHY))
        assert kubelet.plugin(RESOURCE).lists == [UNHEALTHY]


def test_each_completed_transition_is_told_once_and_nothing_else_is(kubelet: Kubelet, host: PluginHost) -> None:
    plugin = kubelet.plugin(RESOURCE)
    for health in (Health.HEALTHY, Health.UNKNOWN, Health.UNHEALTHY, Health.UNKNOWN, Health.MISSING, Health.HEALTHY, Health.UNKNOWN):
        host.offer(standing(health=health))
    host.offer(standing(), spec=SpecState.DRIFTED)
    kubelet.wait(lambda: len(plugin.lists) == 4)
    assert plugin.lists == [HEALTHY, UNHEALTHY, HEALTHY, UNHEALTHY]


def test_sixty_four_streams_all_see_a_transition(kubelet: Kubelet, host: PluginHost) -> None:
    plugin = kubelet.plugin(RESOURCE)
    streams = [plugin.listen() for _ in range(64)]
    kubelet.wait(lambda: all(lists == [HEALTHY] for lists in streams), "the first lists")
    assert host.status.streams == 65
    host.offer(standing(health=Health.UNHEALTHY))
    kubelet.wait(lambda: all(lists == [HEALTHY, UNHEALTHY] for lists in streams), "the transition on every stream")
    plugin.stop_listening()
    host.wait(lambda status: status.streams == 0 or status.registrations > 1)


def test_streams_beyond_the_limit_are_refused_and_the_others_live(kubelet: Kubelet, host: PluginHost) -> None:
    plugin = kubelet.plugin(RESOURCE)
    streams = [plugin.listen() for _ in range(140)]
    kubelet.wait(lambda: sum(map(len, streams)) == 127, "127 streams beside the kubelet's own")
    host.offer(standing(health=Health.UNHEALTHY))
    kubelet.wait(lambda: plugin.lists[-1] == UNHEALTHY)
    assert host.status.streams == 128


def test_streams_end_clean_when_the_plugin_stops(kubelet: Kubelet) -> None:
    with PluginHost(kubelet.directory) as host:
        host.offer()
        plugin = kubelet.plugin(RESOURCE)
    kubelet.wait(lambda: plugin.ended, "the end of the stream")
    assert plugin.ended == "OK"
    assert plugin.lists == [HEALTHY]


def test_an_allocation_that_runs_is_answered_before_the_plugin_is_gone(kubelet: Kubelet) -> None:
    with PluginHost(kubelet.directory) as host:

        async def slow(_: DeviceKind) -> Any:
            await asyncio.sleep(0.3)
            return allowed(host.clock.monotonic())

        host.check = slow
        host.offer()
        answer = kubelet.plugin(RESOURCE).allocation(["kvm-0"])
        kubelet.wait(lambda: host.checks)
    assert answer.result(timeout=PATIENCE).container_responses


@pytest.mark.usefixtures("host")
def test_a_device_is_given_by_its_cdi_name(kubelet: Kubelet) -> None:
    first, second = given(kubelet.plugin(RESOURCE), ["kvm-0", "kvm-1"], ["kvm-0"])
    assert [device.name for device in first.cdi_devices] == [f"{RESOURCE}=kvm"]
    assert first == second
    assert [bool(field) for field in (first.devices, first.annotations, first.envs, first.mounts)] == [False] * 4


@pytest.mark.usefixtures("host")
def test_slots_that_were_given_are_given_again(kubelet: Kubelet) -> None:
    for slot in ["kvm-0", "kvm-0", "kvm-1999"]:
        assert given(kubelet.plugin(RESOURCE), [slot])


def test_by_setting_for_kubelets_that_know_no_cdi_devices(kubelet: Kubelet) -> None:
    for injection in (Injection.ANNOTATIONS, Injection.DEVICE_SPEC):
        with PluginHost(kubelet.directory, injection=injection) as host:
            host.offer()
            (container,) = given(kubelet.plugin(RESOURCE), ["kvm-0"])
            assert not container.cdi_devices
            if injection is Injection.ANNOTATIONS:
                assert dict(container.annotations) == {"cdi.k8s.io/devward": f"{RESOURCE}=kvm"}
            else:
                (node,) = container.devices
                assert (node.container_path, node.host_path, node.permissions) == ("/dev/kvm", "/dev/kvm", "rw")
                assert dict(container.envs) == {"HYPERLIGHT_HYPERVISOR": "kvm", "HYPERLIGHT_DEVICE_PATH": "/dev/kvm"}
        kubelet.restart()


@pytest.mark.parametrize("slots", [["kvm-x"], ["mshv-0"], ["kvm-0", "a\nb"], []])
@pytest.mark.usefixtures("host")
def test_what_is_no_device_of_ours_is_not_given(kubelet: Kubelet, slots: list[str]) -> None:
    refusal = error(lambda: given(kubelet.plugin(RESOURCE), ["kvm-0"], slots))
    assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.details().isprintable()


def test_a_bad_device_is_refused_with_the_reasons_sentence(kubelet: Kubelet, host: PluginHost) -> None:
    host.check = host.bad(Reason.HYPERVISOR_BUSY)
    refusal = error(lambda: given(kubelet.plugin(RESOURCE), ["kvm-0"]))
    assert refusal.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert refusal.details() == (
        "devward refuses /dev/kvm: Another hypervisor holds the CPU's virtualization, or the system is shutting down. [hypervisor-busy]"
    )
    assert host.status.refused == 1
    assert kubelet.plugin(RESOURCE).lists == [HEALTHY], "health is what checks say that were completed and published"


def test_a_check_that_hangs_holds_up_neither_the_answer_nor_anything_else(
    kubelet: Kubelet, host: PluginHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "BUDGET", 0.5)
    host.check = host.hang
    plugin = kubelet.plugin(RESOURCE)
    answers = [plugin.allocation(["kvm-0"]) for _ in range(20)]
    plugin.options()
    for answer in answers:
        refusal = error(lambda answer=answer: answer.result(timeout=PATIENCE))  # type: ignore[misc] # bound by the default
        assert (refusal.code(), "[deadline]" in refusal.details()) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    host.check = host.good
    monkeypatch.setattr(decision, "BUDGET", PATIENCE)
    assert given(plugin, ["kvm-0"])


def test_an_allocate_that_goes_away_poisons_nothing(kubelet: Kubelet, host: PluginHost) -> None:
    plugin = kubelet.plugin(RESOURCE)
    host.check = host.hang
    call = plugin.allocation(["kvm-0"])
    kubelet.wait(lambda: host.checks == 1)
    call.cancel()
    host.check = host.good
    assert given(plugin, ["kvm-0"])
    assert plugin.lists == [HEALTHY]
    assert not_ready(host.status) == ()


def test_a_check_that_fails_inside_is_no_verdict_and_shows_nothing_of_itself(
    kubelet: Kubelet, host: PluginHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_: DeviceKind) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(decision, "PAUSE", 2 * PATIENCE)
    host.check = broken
    refusal = error(lambda: given(kubelet.plugin(RESOURCE), ["kvm-0"]))
    assert refusal.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "secret" not in refusal.details()
    assert "secret" in caplog.text


@pytest.mark.parametrize("method", ["Allocate", "GetPreferredAllocation"])
@pytest.mark.usefixtures("host")
def test_what_is_no_message_is_an_error_without_details(kubelet: Kubelet, method: str, caplog: pytest.LogCaptureFixture) -> None:
    plugin = kubelet.plugin(RESOURCE)
    call = plugin._channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")
    for _ in range(3):
        refusal = error(lambda: call(b"\x0a\x05a", timeout=PATIENCE))
        assert refusal.code() is grpc.StatusCode.INTERNAL
        assert refusal.details() == "the call broke off, devwardd's journal says why"
    assert caplog.text.count("Traceback") == 1, "what comes again is counted"
    assert plugin.options() is not None


@pytest.mark.usefixtures("host")
def test_an_oversized_request_is_refused(kubelet: Kubelet) -> None:
    refusal = error(lambda: given(kubelet.plugin(RESOURCE), ["k" * 2_000_000]))
    assert refusal.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.usefixtures("host")
def test_calls_that_are_not_asked_for_are_answered_too(kubelet: Kubelet) -> None:
    plugin, messages = kubelet.plugin(RESOURCE), kubelet.messages
    plugin.call("PreStartContainer", messages["PreStartContainerRequest"](devices_ids=["kvm-0"]), "PreStartContainerResponse", PATIENCE)
    asked = messages["ContainerPreferredAllocationRequest"](available_deviceIDs=["kvm-1", "kvm-0"], allocation_size=1)
    request = messages["PreferredAllocationRequest"](container_requests=[asked])
    answer = plugin.call("GetPreferredAllocation", request, "PreferredAllocationResponse", PATIENCE)
    assert [list(container.deviceIDs) for container in answer.container_responses] == [["kvm-1"]]


def test_two_devices_are_told_apart_and_a_preference_is_offered(kubelet: Kubelet) -> None:
    with PluginHost(kubelet.directory, devices=(DeviceKind.KVM, DeviceKind.MSHV), slots=1) as host:
        host.offer(standing(), standing(DeviceKind.MSHV, Health.UNHEALTHY))
        plugin = kubelet.plugin(RESOURCE)
        assert plugin.lists == [{"kvm-0": "Healthy", "mshv-0": "Unhealthy"}]
        assert plugin.options().get_preferred_allocation_available

        async def only_kvm(kind: DeviceKind) -> Any:
            return allowed(host.clock.monotonic()) if kind is DeviceKind.KVM else refused(Reason.DEVICE_MISSING)

        host.check = only_kvm
        assert given(plugin, ["kvm-0"])
        assert "/dev/mshv" in error(lambda: given(plugin, ["kvm-0"], ["mshv-0"])).details()


def test_a_named_device_that_does_not_exist_is_listed_and_not_healthy(kubelet: Kubelet) -> None:
    with PluginHost(kubelet.directory, devices=(DeviceKind.MSHV,), slots=1) as host:
        host.offer(standing())
        assert kubelet.plugin(RESOURCE).lists == [{"mshv-0": "Unhealthy"}]


def test_ten_thousand_slots_of_two_devices_arrive(kubelet: Kubelet) -> None:
    with PluginHost(kubelet.directory, devices=(DeviceKind.KVM, DeviceKind.MSHV), slots=10_000) as host:
        host.offer(standing(), standing(DeviceKind.MSHV))
        assert len(kubelet.plugin(RESOURCE).lists[0]) == 20_000
        assert given(kubelet.plugin(RESOURCE), [f"kvm-{number}" for number in range(10_000)])


def test_a_kubelet_that_gives_the_path_as_authority_is_answered(tmp_path: Path) -> None:
    kubelet = Kubelet(tmp_path / "a b%20c")
    kubelet.faults.path_as_authority = True
    with kubelet, PluginHost(kubelet.directory) as host:
        host.offer()
        assert given(kubelet.plugin(RESOURCE), ["kvm-0"])


def test_a_slow_reader_holds_up_nobody(kubelet: Kubelet) -> None:
    """One stream is never read: gRPC takes what its window holds, and the rest waits, bounded, while the others go on."""
    with PluginHost(kubelet.directory, slots=5000) as host:
        host.offer()
        plugin = kubelet.plugin(RESOURCE)
        stuck = plugin._channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
        host.wait(lambda status: status.streams == 2)
        for number in range(100):
            host.offer(standing(health=Health.HEALTHY if number % 2 else Health.UNHEALTHY))
        kubelet.wait(lambda: plugin.lists[-1]["kvm-0"] == "Healthy" and len(plugin.lists) > 16)
        stuck.cancel()
        host.wait(lambda status: status.streams == 1)
        assert given(plugin, ["kvm-0"])


def test_what_was_good_before_a_device_was_told_to_be_bad_counts_no_more(
    kubelet: Kubelet, host: PluginHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "PAUSE", 2 * PATIENCE)
    plugin = kubelet.plugin(RESOURCE)
    assert given(plugin, ["kvm-0"])
    host.check = host.bad(Reason.PROBE_INCONCLUSIVE, good=host.clock.monotonic())
    assert given(plugin, ["kvm-0"]), "the good one is young"
    host.offer(standing(health=Health.UNHEALTHY))
    assert error(lambda: given(plugin, ["kvm-0"])).code() is grpc.StatusCode.FAILED_PRECONDITION
