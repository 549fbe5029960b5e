"""A tree that looks like a host's /run, /var/lib and /proc, with bundles in it as container runtimes keep them."""

import json
import os
from pathlib import Path
from typing import Any

from devward.cluster.bundles import BundleScanner
from devward.cluster.evidence import Doubt

DATA = Path(__file__).resolve().parents[1] / "data/bundles"
CONTAINERD = "containerd/io.containerd.runtime.v2.task"


def everybody(_proc: str) -> Doubt | None:
    """A place from where every process is seen: the tree's own /proc is whole."""
    return None


def made(name: str) -> dict[str, Any]:
    """Return a bundle made by hand."""
    value: dict[str, Any] = json.loads((DATA / "made" / name).read_text())
    return value


class BundleHost:
    """The tree."""

    def __init__(self, root: Path) -> None:
        self.run, self.lib, self.proc = root / "run", root / "lib", root / "proc"
        for path in (self.run, self.lib, self.proc):
            path.mkdir()

    def scanner(self, **settings: Any) -> BundleScanner:
        """Return a scanner of it."""
        return self.scanner_of(self.run.parent, **settings)

    @staticmethod
    def scanner_of(root: Path, **settings: Any) -> BundleScanner:
        """Return a scanner of such a tree, whoever made it."""
        settings = {"vantage": everybody} | settings
        return BundleScanner(proc=str(root / "proc"), run=str(root / "run"), lib=str(root / "lib"), **settings)

    def task(self, container: str, spec: object, *, namespace: str = "k8s.io", root: str = CONTAINERD, pid: int = 0) -> Path:
        """Add a bundle of containerd; with `pid`, that of its first process."""
        bundle = self.run / root / namespace / container
        bundle.mkdir(parents=True)
        self.write(bundle / "config.json", spec)
        if pid:
            (bundle / "init.pid").write_text(str(pid))
        return bundle

    def storage(self, container: str, spec: object, *, lib: object = None) -> Path:
        """Add a bundle of CRI-O, or one of podman, whose configuration is below /var/lib."""
        userdata = self.run / "containers/storage/overlay-containers" / container / "userdata"
        userdata.mkdir(parents=True)
        self.write(userdata / "config.json", spec)
        if lib is not None:
            persistent = self.lib / "containers/storage/overlay-containers" / container / "userdata"
            persistent.mkdir(parents=True)
            self.write(persistent / "config.json", lib)
        return userdata

    @staticmethod
    def write(path: Path, spec: object) -> None:
        """Write a configuration: bytes as they are, None as no file, other things as JSON. It is long settled."""
        if spec is not None:
            path.write_bytes(spec if isinstance(spec, bytes) else json.dumps(spec).encode())
            os.utime(path, (1_000_000_000, 1_000_000_000))

    def process(self, pid: int, *, started: int = 77, state: str = "S") -> None:
        """Add a process."""
        directory = self.proc / str(pid)
        directory.mkdir()
        (directory / "stat").write_text(f"{pid} (a name) {' '.join([state, *['0'] * 18, str(started), *['0'] * 20])}\n")

    def runc(self, container: str, pid: int, started: int, place: str = "containerd/runc/k8s.io") -> None:
        """Add the record of runc."""
        directory = self.run / place / container
        directory.mkdir(parents=True)
        state = {"id": container, "init_process_pid": pid, "init_process_start": started, "created": "2026", "config": {"big": "x" * 9999}}
        (directory / "state.json").write_text(json.dumps(state, separators=(",", ":")))
