"""What a device plugin is asked to offer, and what may be asked for. Pure.

Source of the rules for a resource's name: `IsExtendedResourceName` in pkg/apis/core/v1/helper/helpers.go of kubernetes/kubernetes, by which
the kubelet judges a registration.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from devward import names
from devward.model import DeviceKind

MAXIMUM_SLOTS: Final = 10_000
DEFAULT_SLOTS: Final = 2000
#: More than these are warned of: each is a device to the kubelet, which writes all of them down at every change.
MANY_SLOTS: Final = 2000
#: `DevicePluginPath` in k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/constants.go; it does not follow the kubelet's `--root-dir`.
DIRECTORY: Final = "/var/lib/kubelet/device-plugins"
#: In the order of preference of the Hyperlight device plugin, which offers the first that a host has.
PREFERRED: Final = (DeviceKind.MSHV, DeviceKind.KVM)

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
#: The kubelet judges the name with this in front, as quotas write it.
_QUOTA_PREFIX: Final = "requests."
_MAXIMUM_DOMAIN: Final = 253 - len(_QUOTA_PREFIX)
_MAXIMUM_PATH: Final = 80


class Injection(StrEnum):
    """How a device gets into a container."""

    #: By its CDI name, in a field that kubelets know from 1.28 on (KEP-4009); older ones drop it without a word.
    CDI = "cdi"
    #: By its CDI name in an annotation, which container engines read whatever the kubelet's age.
    ANNOTATIONS = "annotations"
    #: By the path of its node, with the same variables: no CDI, and so no owner other than the node's.
    DEVICE_SPEC = "device-spec"


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """What is offered, where, and how: section `device_plugin` of the configuration."""

    #: Off by default: a package must not offer devices on every host that it lands on.
    enabled: bool = False
    resource: str = names.HYPERVISOR_CDI_KIND
    #: How many containers may have a device at the same time, by device.
    slots: int = DEFAULT_SLOTS
    directory: str = DIRECTORY
    #: The devices to offer; None: the first of PREFERRED that the host has.
    devices: tuple[DeviceKind, ...] | None = None
    injection: Injection = Injection.CDI
    #: Whether to take the resource from another plugin that serves it.
    take_over: bool = False


def resource_problem(name: str) -> str:
    """Return why the kubelet would refuse a resource of this name, empty where it would not."""
    domain, slash, word = name.partition("/")
    if not slash:
        return "the name of a resource is DOMAIN/NAME"
    if not _DOMAIN.fullmatch(domain) or len(domain) > _MAXIMUM_DOMAIN:
        return f"what stands before the slash is no DNS subdomain of at most {_MAXIMUM_DOMAIN} characters"
    if domain.startswith(_QUOTA_PREFIX):
        return "a resource's name does not begin with requests."
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
        return "kubernetes.io belongs to Kubernetes itself"
    if not _NAME.fullmatch(word):
        return "what stands behind the slash is not 1 to 63 letters, digits, dots, hyphens or underscores"
    return ""


def slots_problem(slots: int) -> str:
    """Return why there cannot be so many slots, empty where there can."""
    return "" if 1 <= slots <= MAXIMUM_SLOTS else f"there may be 1 to {MAXIMUM_SLOTS} slots"


def slots_warning(slots: int) -> str:
    """Return what an administrator should know of so many slots, empty where there is nothing."""
    if slots <= MANY_SLOTS:
        return ""
    return f"above {MANY_SLOTS} that is many, for the kubelet keeps each as a device, and writes all of them down whenever one changes"


def directory_problem(directory: str) -> str:
    """Return why plugins cannot be in this directory, empty where they can."""
    if not directory.startswith("/") or not directory.isprintable():
        return "the directory of device plugins is an absolute path"
    if len(directory.encode()) > _MAXIMUM_PATH:
        return f"the path of a socket is short: {_MAXIMUM_PATH} bytes for its directory at the most"
    return ""


def offered(
    wanted: tuple[DeviceKind, ...] | None, present: frozenset[DeviceKind], before: tuple[DeviceKind, ...]
) -> tuple[DeviceKind, ...]:
    """Return which devices to offer, the preferred one first.

    Of those that nobody named it is the first that the host has, and then the same one for ever: another one would have other ids, and the
    kubelet would not know those of running containers any more.
    """
    if wanted is not None:
        return tuple(dict.fromkeys(wanted))
    if before:
        return before
    return tuple(kind for kind in PREFERRED if kind in present)[:1]
