"""The advice about the device plugin, by what keeps it from being of use. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from devward.ctl.step import Advice, Step
from devward.plugin.status import PluginProblem

_NOTHING_OFFERED: Final = (
    "The kubelet has no device from devward: new Pods of this host that ask for the resource wait, or are not scheduled here. Containers"
    " that run keep what they have."
)


def _step(text: str, *commands: str) -> Step:
    return Step(text, commands)


_KUBELET: Final = _step("See whether the kubelet runs, and what it says.", "systemctl status kubelet", "journalctl -u kubelet -n 50")
_ITSELF: Final = _step("devward registers by itself within seconds once that is over.")
_JOURNAL: Final = _step("See what devward says.", "journalctl -u devward.service -n 50")
_DIRECTORY: Final = _step(
    "See the directory, and whether it is the one that the kubelet uses (device_plugin.directory).",
    "ls -la /var/lib/kubelet/device-plugins",
    "devwardctl config",
)

PLUGIN_ADVICE: Final[Mapping[PluginProblem, Advice]] = MappingProxyType(
    {
        PluginProblem.STOPPED: Advice(_NOTHING_OFFERED, (_JOURNAL,)),
        PluginProblem.NOT_CHECKED: Advice(_NOTHING_OFFERED, (_step("Wait a second. If it stays:", "devwardctl check kvm"),)),
        PluginProblem.DIRECTORY_MISSING: Advice(_NOTHING_OFFERED, (_DIRECTORY, _KUBELET, _ITSELF)),
        PluginProblem.DIRECTORY_UNSAFE: Advice(
            _NOTHING_OFFERED,
            (
                _step(
                    "Give it back to root alone: whoever may write there can stand in for a plugin, and for the kubelet.",
                    "chown root:root /var/lib/kubelet/device-plugins",
                    "chmod 0750 /var/lib/kubelet/device-plugins",
                ),
                _ITSELF,
            ),
        ),
        PluginProblem.DIRECTORY_UNREADABLE: Advice(_NOTHING_OFFERED, (_DIRECTORY, _JOURNAL)),
        PluginProblem.DIRECTORY_SILENT: Advice(
            _NOTHING_OFFERED, (_step("See what hangs.", "findmnt -T /var/lib/kubelet/device-plugins", "journalctl -k -n 50"),)
        ),
        PluginProblem.DIRECTORY_READ_ONLY: Advice(
            _NOTHING_OFFERED,
            (
                _step(
                    "If the directory is newer than devwardd's start, start devwardd again: running containers are not affected.",
                    "systemctl restart devward.service",
                ),
                _step("Another directory than the kubelet's usual one needs ReadWritePaths= in a drop-in.", "systemctl edit devward"),
            ),
        ),
        PluginProblem.KUBELET_ABSENT: Advice(_NOTHING_OFFERED, (_KUBELET, _ITSELF)),
        PluginProblem.REGISTERING: Advice(_NOTHING_OFFERED, (_step("Wait some seconds. If it stays:", "devwardctl status"),)),
        PluginProblem.SOCKET_UNUSABLE: Advice(_NOTHING_OFFERED, (_DIRECTORY, _JOURNAL)),
        PluginProblem.SOCKET_GONE: Advice(
            _NOTHING_OFFERED, (_ITSELF, _step("If it comes back without a restart of the kubelet, find out who removes it."))
        ),
        PluginProblem.KUBELET_UNREACHABLE: Advice(_NOTHING_OFFERED, (_KUBELET, _ITSELF)),
        PluginProblem.KUBELET_SILENT: Advice(_NOTHING_OFFERED, (_KUBELET, _ITSELF)),
        PluginProblem.KUBELET_REFUSES: Advice(
            _NOTHING_OFFERED,
            (
                _step("The kubelet's own words stand in the status and in the journal.", "devwardctl status"),
                _step("If it cannot connect back, a security module may be in the way: see what was denied.", "ausearch -m AVC -ts recent"),
                _KUBELET,
            ),
        ),
        PluginProblem.NO_STREAM: Advice(_NOTHING_OFFERED, (_KUBELET, _ITSELF)),
        PluginProblem.BROKEN_OFF: Advice(
            _NOTHING_OFFERED, (_JOURNAL, _step("It begins anew by itself; the rest of devward is not affected. Please report it."))
        ),
        PluginProblem.LIBRARY_MISSING: Advice(
            _NOTHING_OFFERED,
            (
                _step(
                    "Install what is missing, by the package manager of this system. devward finds it by itself within a minute.",
                    "apt-get install python3-grpcio python3-protobuf",
                    "dnf install python3-grpcio python3-protobuf",
                ),
            ),
        ),
        PluginProblem.TAKEN: Advice(
            "The other plugin serves the Pods that ask for the resource; devward does not vouch for what they get.",
            (
                _step("See whose socket it is. The Hyperlight device plugin is a DaemonSet.", "ls -la /var/lib/kubelet/device-plugins"),
                _step("Remove it, and devward registers by itself; or let devward replace it (take_over = true).", "devwardctl reload"),
            ),
        ),
    }
)
