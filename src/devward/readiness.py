"""Whether devward can vouch for something on this host, and how to say so in one line. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from devward.model import ConfigState, DeviceView, Health, SpecState, SpecView
from devward.reasons import REASON_TEXT, Reason


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer: `reasons` are `subject: code`, empty when ready; `status` is a line for people."""

    ready: bool
    reasons: tuple[str, ...]
    status: str


@dataclass(frozen=True, slots=True)
class DeviceStanding:
    """A device, and whether engines find it by our definition (`effective`, with the reason where not)."""

    view: DeviceView
    effective: bool
    reason: Reason


#: States in which a file says what it should, though engines may not use all of it.
IN_ORDER = frozenset({SpecState.TRUE, SpecState.CONFLICT, SpecState.SHADOWED})


@dataclass(frozen=True, slots=True)
class NpuStanding:
    """How many NPUs there are, how many can be vouched for, and how many of those engines find by our definition."""

    usable: int = 0
    total: int = 0
    offered: int = 0
    #: Why those that are not offered are not; also where there are NPUs of which nothing is known yet.
    reasons: tuple[Reason, ...] = ()


_NO_NPUS = NpuStanding()


def judge(
    *,
    started: bool,
    devices: Sequence[DeviceStanding],
    spec: SpecView,
    config_state: ConfigState,
    npus: NpuStanding = _NO_NPUS,
    plugin: tuple[str, ...] = (),
    plugin_line: str = "",
) -> Readiness:
    """Judge: ready when a device or NPU is healthy with its spec true, or there is nothing to watch, and the configuration is good.

    And, where the device plugin is on, when the kubelet listens to it (R24): `plugin` says why it is not ready, `plugin_line` how it
    stands.
    """
    if not started:
        return Readiness(ready=False, reasons=(f"devwardd: {Reason.STARTING}",), status="starting")
    reasons: list[str] = []
    usable = [device for device in devices if _usable(device, spec)]
    if (devices or npus.total or npus.reasons) and not usable and not npus.offered:
        reasons += [f"NPUs: {reason}" for reason in npus.reasons]
        reasons += [f"{device.view.node}: {device.view.reason}" for device in devices if device.view.health is not Health.HEALTHY]
        healthy = [device for device in devices if device.view.health is Health.HEALTHY]
        if healthy and spec.state not in IN_ORDER:
            reasons.append(f"{spec.file}: {spec.reason or spec.state}")
        elif healthy:
            reasons += [f"{device.view.node}: {device.reason}" for device in healthy]
    reasons += plugin
    if config_state is not ConfigState.GOOD:
        reasons.append(f"configuration: {Reason.CONFIG_REFUSED}")
    return Readiness(not reasons, tuple(reasons), _status(devices, usable, spec, config_state, npus, plugin_line))


def _usable(device: DeviceStanding, spec: SpecView) -> bool:
    return device.view.health is Health.HEALTHY and spec.state in IN_ORDER and device.effective


def _status(
    devices: Sequence[DeviceStanding],
    usable: Sequence[DeviceStanding],
    spec: SpecView,
    config_state: ConfigState,
    npus: NpuStanding,
    plugin_line: str,
) -> str:
    parts = []
    if not devices and not npus.total and not npus.reasons:
        parts.append("nothing to watch on this host")
    for device in devices:
        name = device.view.node
        if device in usable:
            parts.append(f"{name} usable, its CDI file true")
        elif device.view.health is not Health.HEALTHY:
            parts.append(f"{name} {device.view.health}: {_first_sentence(device.view.reason)}")
        elif spec.state not in IN_ORDER:
            parts.append(f"{name} usable, but {spec.file} is {spec.state}: {_first_sentence(spec.reason)}")
        else:
            parts.append(f"{name} usable, but not for containers: {_first_sentence(device.reason)}")
    if npus.total:
        withheld = npus.reasons if npus.usable > npus.offered else ()
        why = f", but {npus.offered} are for containers: {_first_sentence(withheld[0])}" if withheld else ""
        parts.append(f"{npus.usable} of {npus.total} NPUs can be vouched for{why}")
    elif npus.reasons:
        parts.append(f"of NPUs nothing is known: {_first_sentence(npus.reasons[0])}")
    if plugin_line:
        parts.append(plugin_line)
    if config_state is not ConfigState.GOOD:
        parts.append("the configuration on disk is refused")
    return "; ".join(parts)


def _first_sentence(reason: Reason) -> str:
    text = REASON_TEXT[reason]
    return text.rstrip(".") if text else str(reason)
