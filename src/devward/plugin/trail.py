"""What the journal says of the device plugin: that it is registered, that another one has the resource, that it fails; and refusals."""

from typing import Final

from devward import names
from devward.audit import Audit
from devward.model import DeviceKind, Trigger
from devward.plugin.decision import Verdict
from devward.plugin.status import PluginProblem, PluginStatus, RegistrationState

#: What is waited for, and what every restart of a kubelet brings about: no failure.
_USUAL: Final = frozenset(
    {
        PluginProblem.NONE,
        PluginProblem.STOPPED,
        PluginProblem.NOT_CHECKED,
        PluginProblem.DIRECTORY_MISSING,
        PluginProblem.KUBELET_ABSENT,
        PluginProblem.REGISTERING,
        PluginProblem.SOCKET_GONE,
    }
)
_KEY: Final = "device plugin"


class PluginTrail:
    """Records what changes about one start of the plugin."""

    def __init__(self, audit: Audit) -> None:
        """Write to this audit trail."""
        self._audit = audit
        self._told: tuple[str, str, int] = ("", "", 0)

    def record(self, status: PluginStatus) -> None:
        """Record how the plugin stands if that is news: each registration, and each other thing that is in its way."""
        if status.state is RegistrationState.REGISTERED:
            kind, message = "plugin-registered", f"The kubelet took devward as the device plugin for {status.resource}"
        elif status.state is RegistrationState.TAKEN:
            kind, message = "plugin-taken", f"{status.resource} is not offered to the kubelet: {status.text}"
        elif status.problem not in _USUAL:
            kind, message = "plugin-failed", f"{status.resource} is not offered to the kubelet: {status.text}"
        else:
            return
        news = kind, f"{status.problem} {status.detail}" if kind == "plugin-taken" else status.problem, status.registrations
        if news == self._told:
            return
        self._told = news
        self._audit.transition(
            _KEY,
            kind,
            message,
            subject=status.resource,
            reason=status.problem,
            trigger=Trigger.KUBELET,
            evidence={"endpoint": status.endpoint, "detail": status.detail, "registrations": status.registrations},
        )

    def refused(self, kind: DeviceKind | None, verdict: Verdict) -> None:
        """Record that the kubelet was refused a device for a container, which fails that container's Pod."""
        node = f"{names.DEVICE_DIRECTORY}/{kind}" if kind is not None else ""
        wanted = f"{node} for a container" if node else "what it asks for"
        self._audit.transition(
            f"allocation of {kind or 'no device'} to the kubelet",
            "allocation-refused",
            f"Refused the kubelet {wanted}: {verdict.text}",
            device=node,
            reason=verdict.reason,
            trigger=Trigger.KUBELET,
        )
