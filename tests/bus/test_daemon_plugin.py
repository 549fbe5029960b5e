"""devwardd as a process with its device plugin on, against a kubelet's stand-in: the whole way from a Pod's admission to the device."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import grpc
import pytest

from sim.daemon_process import DaemonProcess, wait_for
from sim.foreign_plugin import ForeignPlugin
from sim.held_time import PATIENCE
from sim.kubelet_plugins import Kubelet

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes"),
    pytest.mark.skipif(not os.path.exists("/dev/kvm"), reason="needs /dev/kvm: a hypervisor to offer"),
]

RESOURCE = "hyperlight.dev/hypervisor"
SECTION = '[device_plugin]\nenabled = true\nslots = 3\ndirectory = "{}"\n'


@pytest.fixture(name="kubelet")
def _kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    with Kubelet(tmp_path / "dp") as kubelet:
        yield kubelet


def plugin_of(daemon: DaemonProcess) -> dict[str, object]:
    return cast("dict[str, object]", daemon.describe()["device_plugin"])


def wait_capacity(kubelet: Kubelet, expected: int) -> None:
    kubelet.wait(lambda: kubelet.capacity(RESOURCE) == expected, f"a capacity of {expected}")


def test_the_kubelet_gets_what_devward_vouches_for_and_nothing_else(tmp_path: Path, kubelet: Kubelet) -> None:
    (tmp_path / "textfile").mkdir()
    metrics = tmp_path / "textfile" / "devward.prom"
    config = f'{SECTION.format(kubelet.directory)}[metrics]\nenabled = true\ndirectory = "{metrics.parent}"\ninterval = 1\n'
    off = config.replace("enabled = true", "enabled = false", 1)
    answers = f'devward_plugin_allocations_total{{resource="{RESOURCE}",outcome='

    def wait_measured(*samples: str) -> None:
        wait_for(lambda: metrics.exists() and set(samples) <= set(metrics.read_text().splitlines()), what=f"{samples}")

    with DaemonProcess(tmp_path, config=config, private_devices=True) as daemon:
        daemon.start()
        # Listed, watched, ready.
        wait_capacity(kubelet, 3)
        plugin = kubelet.plugin(RESOURCE)
        assert plugin.lists[-1] == dict.fromkeys(("kvm-0", "kvm-1", "kvm-2"), "Healthy")
        daemon.wait_property("", "Manager", "Ready", value=True)
        assert daemon.wait_event("plugin-registered")["DEVWARD_SUBJECT"] == [RESOURCE]
        assert plugin_of(daemon)["state"] == "registered"
        # Given, by the CDI name that the file on disk defines.
        (container,) = plugin.allocation(["kvm-1"]).result(timeout=PATIENCE).container_responses
        assert [device.name for device in container.cdi_devices] == [f"{RESOURCE}=kvm"]
        assert RESOURCE in daemon.spec.read_text()
        # The device goes: told at once, and refused with the reason.
        daemon.inside("rm /dev/kvm")
        wait_capacity(kubelet, 0)
        with pytest.raises(grpc.RpcError) as refused:
            plugin.allocation(["kvm-1"]).result(timeout=PATIENCE)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "[device-missing]" in refused.value.details()
        record = daemon.wait_event("allocation-refused", DEVWARD_TRIGGER="kubelet")
        assert (record["DEVWARD_DEVICE"], record["DEVWARD_REASON"]) == (["/dev/kvm"], ["device-missing"])
        assert len(daemon.events("allocation-refused")) == 1, "one record a refusal, however often it was checked"
        # One is there that sysfs seems to have as kvm, and that is none: its number is not the one that kvm always has: not opened.
        number, told_by_kernel = tmp_path / "number", "/sys/class/misc/kvm/dev"
        number.write_text("1:3\n")
        daemon.inside(f"mount --bind {number} {told_by_kernel} && mknod -m 660 /dev/kvm c 1 3")
        daemon.wait_property("/device/kvm", "Device", "Reason", "device-number-mismatch")
        assert kubelet.capacity(RESOURCE) == 0
        with pytest.raises(grpc.RpcError) as refused:
            plugin.allocation(["kvm-1"]).result(timeout=PATIENCE)
        assert "[device-number-mismatch]" in refused.value.details()
        daemon.inside(f"rm /dev/kvm && umount {told_by_kernel} && mknod -m 660 /dev/kvm c 10 232")
        wait_capacity(kubelet, 3)
        told = plugin_of(daemon)
        assert (told["given"], told["refused"], told["registrations"]) == (1, 2, 1)
        wait_measured(f'devward_plugin_registered{{resource="{RESOURCE}"}} 1', f'{answers}"given"}} 1', f'{answers}"refused"}} 2')
        # A kubelet that is started again, and one that is not there.
        kubelet.restart()
        wait_capacity(kubelet, 3)
        kubelet.stop()
        daemon.wait_property("", "Manager", "NotReadyReasons", ["device plugin: plugin-kubelet-absent"])
        kubelet.start()
        wait_capacity(kubelet, 3)
        daemon.wait_property("", "Manager", "Ready", value=True)
        # Other settings, and off, and on: by a reload alone.
        plugin = kubelet.plugin(RESOURCE)
        daemon.write_config(config.replace("slots = 3", "slots = 2"))
        daemon.call("Reload", "t", "0")
        kubelet.wait(lambda: plugin.ended == "OK", "the clean end of the plugin with the old settings")
        wait_capacity(kubelet, 2)
        wait_measured(
            f'devward_plugin_slots{{resource="{RESOURCE}",health="healthy"}} 2', f'{answers}"given"}} 1', f'{answers}"refused"}} 2'
        )
        daemon.write_config(off)
        daemon.call("Reload", "t", "0")
        wait_capacity(kubelet, 0)
        assert plugin_of(daemon) == {"enabled": False}
        assert daemon.get("", "Manager", "Ready") is True
        wait_for(lambda: "devward_plugin" not in metrics.read_text(), what="metrics without a plugin")
        daemon.write_config(config)
        daemon.call("Reload", "t", "0")
        wait_capacity(kubelet, 3)
        wait_measured(f'{answers}"given"}} 1', f'{answers}"refused"}} 2')
        # The end of the daemon is a clean end for the kubelet.
        plugin = kubelet.plugin(RESOURCE)
        assert daemon.stop() == 0
        kubelet.wait(lambda: plugin.ended, "the end of the stream")
        assert plugin.ended == "OK"
        assert [entry.name for entry in kubelet.directory.iterdir() if stat.S_ISSOCK(entry.lstat().st_mode)] == ["kubelet.sock"]


def test_what_is_wrong_with_the_plugin_is_told_and_the_rest_of_devward_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "dp"
    # In the place of gRPC something that cannot be loaded, as with a version that does not fit.
    broken = tmp_path / "python" / "grpc"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('cannot open shared object file')\n")
    setup = f"export PYTHONPATH={broken.parent}:$PYTHONPATH"
    with DaemonProcess(tmp_path, config=SECTION.format(directory), private_devices=True, setup=setup) as daemon:
        daemon.start()
        daemon.wait_property("", "Manager", "NotReadyReasons", ["device plugin: plugin-library-missing"])
        assert "install python3-grpcio" in str(plugin_of(daemon)["text"])
        assert "cannot open shared object file" in str(plugin_of(daemon)["text"])
        daemon.wait_event("plugin-failed", DEVWARD_REASON="plugin-library-missing")
        assert daemon.allocation("kvm")[0] is True
        daemon.spec.unlink()
        wait_for(daemon.spec.exists, what="the repair")
        # It is installed, and the settings are read again; meanwhile another plugin has come to serve the resource.
        shutil.rmtree(broken)
        config = SECTION.format(directory).replace("slots = 3", "slots = 4")
        daemon.write_config(config)
        with Kubelet(directory) as kubelet, ForeignPlugin(directory, "hyperlight.sock", ("kvm-0",)) as foreign:
            foreign.register(RESOURCE)
            wait_capacity(kubelet, 1)
            daemon.call("Reload", "t", "0")
            daemon.wait_property("", "Manager", "NotReadyReasons", ["device plugin: plugin-taken"])
            assert "hyperlight.sock" in str(daemon.wait_event("plugin-taken")["MESSAGE"])
            assert "hyperlight.sock" in str(plugin_of(daemon)["text"])
            assert kubelet.capacity(RESOURCE) == 1, "it is left alone"
            daemon.write_config(config + "take_over = true\n")
            daemon.call("Reload", "t", "0")
            wait_capacity(kubelet, 4)
            daemon.wait_property("", "Manager", "Ready", value=True)
        assert daemon.stop() == 0
