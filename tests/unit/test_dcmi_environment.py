"""Whether the driver would take this process for the host's administrator: each thing that it looks at, alone."""

import os
from dataclasses import replace

import pytest

from devward.npu import environment
from devward.npu.environment import Environment
from devward.npu.facts import Refusal, Refused

HOST = Environment(
    uid=0,
    mount_namespace=(4, 4026531832),
    init_mount_namespace=(4, 4026531832),
    pid_namespace=environment.INIT_PID_NAMESPACE,
    user_namespace=environment.INIT_USER_NAMESPACE,
    capabilities=(1 << 41) - 1,
)


def refusal(found: Environment) -> Refusal:
    with pytest.raises(Refused) as refused:
        environment.require_host(found)
    return refused.value.reason


def test_the_host_is_good() -> None:
    environment.require_host(HOST)
    # CAP_PERFMON and what came after it are nothing to the driver.
    environment.require_host(replace(HOST, capabilities=(1 << 38) - 1))


def test_another_user_is_refused() -> None:
    assert refusal(replace(HOST, uid=65534)) is Refusal.NOT_ROOT


def test_a_mount_namespace_of_its_own_is_refused() -> None:
    assert refusal(replace(HOST, mount_namespace=(4, 4026532201))) is Refusal.MOUNT_NAMESPACE
    assert refusal(replace(HOST, mount_namespace=(5, 4026531832))) is Refusal.MOUNT_NAMESPACE


def test_a_container_is_refused_whose_first_process_is_in_it_too() -> None:
    assert refusal(replace(HOST, pid_namespace=4026532300)) is Refusal.CONTAINER
    assert refusal(replace(HOST, user_namespace=4026532301)) is Refusal.CONTAINER


@pytest.mark.parametrize("number", range(38))
def test_each_missing_capability_is_refused(number: int) -> None:
    found = replace(HOST, capabilities=HOST.capabilities & ~(1 << number))
    with pytest.raises(Refused, match=rf"capabilities {number}$") as refused:
        environment.require_host(found)
    assert refused.value.reason is Refusal.CAPABILITIES


def test_what_the_library_takes_for_docker_is_refused() -> None:
    assert refusal(replace(HOST, docker_marks=("/.dockerenv",))) is Refusal.CONTAINER


def first_process_is_closed() -> bool:
    try:
        os.stat("/proc/1/ns/mnt")
    except PermissionError:
        return True
    return False


def test_this_process_is_read_as_it_is() -> None:
    if first_process_is_closed():
        # Then it must not be guessed.
        with pytest.raises(Refused) as refused:
            environment.read()
        assert refused.value.reason is Refusal.ENVIRONMENT_UNKNOWN
        return
    found = environment.read()
    assert found.uid == os.geteuid()
    assert found.mount_namespace == (os.stat("/proc/self/ns/mnt").st_dev, os.stat("/proc/self/ns/mnt").st_ino)
    assert found.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    assert found.user_namespace == os.stat("/proc/self/ns/user").st_ino


def test_what_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/proc/1/ns/mnt")

    monkeypatch.setattr(environment.os, "stat", fails)
    with pytest.raises(Refused) as refused:
        environment.read()
    assert refused.value.reason is Refusal.ENVIRONMENT_UNKNOWN
