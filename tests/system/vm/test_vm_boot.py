"""A real boot: devward is ready, and its CDI file true, before anything that reads it starts."""

import json

from system.vm.boot import Boot
from system.vm.machine import Machine
from system.vm.warden import Warden, device


def test_devward_is_ready_before_engines_and_the_kubelet_start(first_boot: Boot, figures: dict[str, str]) -> None:
    assert 0 < first_boot.began < first_boot.ready
    for name, started in first_boot.engines.items():
        assert first_boot.ready <= started, f"{name} was started before devward was ready"
    figures["devward, from its start to READY, while the machine boots"] = f"{(first_boot.ready - first_boot.began) / 1e6:.1f} s"


def test_engines_find_the_file_true_when_they_start(first_boot: Boot) -> None:
    assert json.loads(first_boot.spec)["devices"][0]["name"] == "kvm"
    for name, seen in first_boot.seen.items():
        assert seen == first_boot.spec, f"{name} found another file"


def test_it_started_at_the_first_try_and_udev_is_its_source(first_boot: Boot, vm: Machine, warden: Warden) -> None:
    assert first_boot.restarts == 0
    described = warden.describe()
    assert described["event_source"] == "udev"
    assert device(described)["number"] == "10:232"
    assert vm.run("readlink", "/sys/class/misc/kvm").strip() == "../../devices/virtual/misc/kvm"
    assert "kvm_amd" in vm.run("lsmod")
