"""devward-dcmi as it is installed, for its memory: nothing is imported here that the installed one does not import.

Only what it works on is the bench's, below --root: the socket, the library, and a host to look at that is a tree of files
(sim.witness_host). The environment is one that is good.
"""

import functools
import os
import sys

from devward.npu import broker
from devward.npu.environment import INIT_PID_NAMESPACE, INIT_USER_NAMESPACE, Environment
from devward.npu.host_witness import HostObserver


def _everybody(_proc: str) -> None:
    """Every process is seen: the tree's own /proc is whole."""


def _observer(tree: str) -> HostObserver:
    from devward.cluster.bundles import BundleScanner
    from devward.cluster.kubeconfig_place import find_kubeconfig
    from devward.cluster.kubelet import find_kubelet
    from devward.cluster.local import LocalScanner

    host, kubelets = f"{tree}/host", f"{tree}/kubelets"
    bundles = BundleScanner(proc=f"{host}/proc", run=f"{host}/run", lib=f"{host}/lib", vantage=_everybody)
    return HostObserver(
        LocalScanner(proc=f"{host}/proc", cgroups=f"{tree}/cgroup", bundles=bundles, vantage=_everybody),
        lambda deadline: find_kubelet(f"{kubelets}/proc", f"{kubelets}/root", vantage=_everybody, deadline=deadline),
        functools.partial(find_kubeconfig, proc=f"{kubelets}/proc", root=f"{kubelets}/root"),
    )


def _main() -> int:
    _, root = sys.argv[1:]
    good = Environment(0, (1, 1), (1, 1), INIT_PID_NAMESPACE, INIT_USER_NAMESPACE, (1 << 41) - 1)
    options = broker.Options(
        library=f"{root}/libdcmi.so",
        lock_file=f"{root}/destroy.lock",
        device_directory=f"{root}/dev",
        journal_socket="/nonexistent",
        read_environment=lambda: good,
        observer=lambda: _observer(f"{root}/witnessed"),
    )
    return broker.serve(options, os.environ)


if __name__ == "__main__":
    status = _main()
    sys.stderr.flush()
    os._exit(status)
