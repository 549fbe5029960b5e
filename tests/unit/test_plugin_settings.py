"""What a device plugin may be asked for."""

import pytest

from devward.model import DeviceKind
from devward.plugin import settings

KVM, MSHV = DeviceKind.KVM, DeviceKind.MSHV


@pytest.mark.parametrize("name", ["hyperlight.dev/hypervisor", "a/b", "example.com/A_b.c-1", f"{'a' * 63}.b/{'c' * 63}"])
def test_a_name_that_the_kubelet_takes(name: str) -> None:
    assert settings.resource_problem(name) == ""


@pytest.mark.parametrize(
    "name",
    [
        "",
        "hypervisor",
        "/hypervisor",
        "a/",
        "a/b/c",
        "A/b",
        "a_b/c",
        "-a/b",
        "a./b",
        "a..b/c",
        "a/-b",
        "a/b-",
        "a/b c",
        f"a/{'b' * 64}",
        f"{'a.' * 130}a/b",
        "kubernetes.io/x",
        "node.kubernetes.io/x",
        "requests.example.com/x",
        "a/b\n",
        "ä/b",
    ],
)
def test_a_name_that_it_refuses(name: str) -> None:
    assert settings.resource_problem(name)


def test_a_domain_that_only_ends_alike_is_not_kubernetes_own() -> None:
    assert settings.resource_problem("notkubernetes.io/x") == ""


def test_slots() -> None:
    assert [settings.slots_problem(slots) == "" for slots in (-1, 0, 1, 10_000, 10_001)] == [False, False, True, True, False]
    assert [bool(settings.slots_warning(slots)) for slots in (1, 2000, 2001)] == [False, False, True]
    assert settings.PluginSettings().slots == 2000


@pytest.mark.parametrize("directory", ["", "relative", "/a\nb", "/" + "a" * 80])
def test_a_directory_that_cannot_be(directory: str) -> None:
    assert settings.directory_problem(directory)


def test_the_usual_directory_can_be() -> None:
    assert settings.directory_problem(settings.DIRECTORY) == ""


def test_the_first_that_the_host_has_is_offered_and_stays() -> None:
    assert settings.offered(None, frozenset(), ()) == ()
    assert settings.offered(None, frozenset({KVM}), ()) == (KVM,)
    assert settings.offered(None, frozenset({KVM, MSHV}), ()) == (MSHV,)
    assert settings.offered(None, frozenset({KVM, MSHV}), (KVM,)) == (KVM,)
    assert settings.offered(None, frozenset(), (KVM,)) == (KVM,)


def test_those_that_are_named_are_offered_present_or_not() -> None:
    assert settings.offered((KVM, MSHV, KVM), frozenset(), ()) == (KVM, MSHV)
