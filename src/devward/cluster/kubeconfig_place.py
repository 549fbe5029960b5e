"""Where the kubelet's kubeconfig is: on its command line, or where the distributions put it.

k3s hides its command line, and kubelite takes it from a file; for those, and for a kubelet that reads its options from elsewhere, the
known places are looked at. Which of several is meant is not guessed.
"""

import os
import re
from typing import Final

from devward.cluster.api_result import ApiError, ApiFault
from devward.cluster.files import read_all
from devward.cluster.kubelet_facts import Kubelet

#: By the kernel's name of the program; kubeadm, k0s, GKE and AKS, and microk8s document or install these.
_PLACES: Final = (
    (re.compile(r"k3s.*"), ("/var/lib/rancher/k3s/agent/kubelet.kubeconfig",)),
    (re.compile(r"rke2.*"), ("/var/lib/rancher/rke2/agent/kubelet.kubeconfig",)),
    (re.compile(r"kubelite"), ("/var/snap/microk8s/current/credentials/kubelet.config",)),
    (
        re.compile(r"kubelet"),
        (
            "/etc/kubernetes/kubelet.conf",
            "/var/lib/k0s/kubelet.conf",
            "/var/lib/kubelet/kubeconfig",
            "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
        ),
    ),
)
_MAX_COMMAND_LINE: Final = 2 * 1024 * 1024


def find_kubeconfig(kubelet: Kubelet, *, proc: str = "/proc", root: str = "/") -> str:
    """Return the path of the kubelet's kubeconfig. ApiError: it is not found, or not where the kubelet sees it. Not on the event loop."""
    top, view = root.rstrip("/"), f"{proc}/{kubelet.pid}/root"
    try:
        given = _given(read_all(f"{proc}/{kubelet.pid}/cmdline", _MAX_COMMAND_LINE))
    except OSError as error:
        raise ApiError(ApiFault.KUBECONFIG_MISSING, f"the kubelet's command line: {error.strerror}") from None
    if given:
        if not given.startswith("/"):
            raise ApiError(ApiFault.KUBECONFIG_MISSING, f"the kubelet was started with {given}, which is relative")
        if _shared(f"{top}{given}", f"{view}{given}") is None:
            raise ApiError(ApiFault.KUBECONFIG_MISSING, f"{given} of the kubelet is another file than this host's, or is not there")
        return f"{top}{given}"
    places = next((places for program, places in _PLACES if program.fullmatch(kubelet.command)), ())
    found: dict[tuple[int, int], str] = {}
    for place in places:
        if (identity := _shared(f"{top}{place}", f"{view}{place}")) is not None:
            found.setdefault(identity, f"{top}{place}")
    if len(found) != 1:
        raise ApiError(ApiFault.KUBECONFIG_MISSING, f"there are {', '.join(found.values())}" if found else f"none in {', '.join(places)}")
    return next(iter(found.values()))


def _shared(own: str, seen: str) -> tuple[int, int] | None:
    """Return which file it is that the kubelet, too, sees at a path; None: one in a container sees another, or none."""
    try:
        facts, others = os.stat(own), os.stat(seen)
    except OSError:
        return None
    return (facts.st_dev, facts.st_ino) if os.path.samestat(facts, others) else None


def _given(command_line: bytes) -> str:
    """Return the last `--kubeconfig` of a command line; empty if it has none."""
    given = ""
    words = os.fsdecode(command_line).split("\0")
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in ("--kubeconfig", "-kubeconfig"):
            given = following
        elif word.startswith(("--kubeconfig=", "-kubeconfig=")):
            given = word.partition("=")[2]
    return given
