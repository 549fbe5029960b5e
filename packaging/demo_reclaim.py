"""Reclaiming, as packaging/demo shows it: what a Pod that cannot start leaves behind goes, what anybody owns stays, and why."""

import subprocess
import time
from typing import Final

from demo_cluster import POD, Cluster
from demo_daemon import FASTER, INTERVAL, Demo, say, say_command
from demo_npus import TEMPLATE, Npus
from demo_stage import wait

from devward.cluster.owners import PACE
from devward.config import ReclaimConfig
from devward.npu.views import Verdict

#: Of an NPU that HAMi does not have on its Node.
_OTHER_DIE: Final = "A1B2C3D4-00000003-0000000A-33333333-00000000"
#: The NPU on which the Pod fails, by its physical id.
_PHY: Final = 1
#: What is shown of the record of a destruction.
_SHOWN: Final = ("MESSAGE", *(f"DEVWARD_{name}" for name in ("OUTCOME", "REQUEST_ID", "TRIGGER", "VNPU", "CARD", "EVIDENCE")))


def say_timers(demo: Demo) -> None:
    """Say which times are shorter here than elsewhere; the number of confirmations and all evidence are as ever."""
    elsewhere = ReclaimConfig()
    rows = [
        ("looks at who owns the vNPUs, at least every", PACE.interval / FASTER, PACE.interval),
        ("a kubelet that was just started is not trusted for", PACE.bounds.node.kubelet / FASTER, PACE.bounds.node.kubelet),
        ("time that nobody must have owned a vNPU, [reclaim] grace", demo.grace, elsewhere.grace),
        ("time between its confirmations, [reclaim] interval", INTERVAL, elsewhere.interval),
    ]
    print("  These times are shorter here than elsewhere, and nothing else is otherwise:")
    for what, here, default in rows:
        print(f"    {what:<58} {here:3g} s instead of {default:g} s")


def name_of(vdev: int) -> str:
    """Return devwardctl's name of a vNPU."""
    return f"v{vdev:04d}"


class Reclaiming:
    """One NPU on which a Pod cannot start, beside vNPUs of which each is somebody's in another way."""

    def __init__(self, demo: Demo, npus: Npus, cluster: Cluster) -> None:
        self._demo = demo
        self._npus = npus
        self._cluster = cluster
        self._chip = npus.chips[_PHY]
        #: When each attempt's vNPU was made, by its id; the oldest first.
        self._left: dict[int, float] = {}
        #: What stays, with verdict and reason.
        self._kept: dict[int, tuple[str, str]] = {}
        self._attempts = 0

    # --- what the Pod leaves behind ------------------------------------------------------------------------------------
    def leave(self) -> None:
        """Make vNPUs that are somebody's, and let a Pod fail until there is no room for another one."""
        self._own()
        self._cluster.bind_pod(_PHY)
        say(f"The Pod default/{POD} is given a vNPU of p{_PHY:03d}. Its container cannot start, and is tried again:")
        while self._attempt():
            pass
        if not self._left:
            raise SystemExit("packaging/demo: no attempt left a vNPU behind")
        self._demo.ctl("cards")
        self._npus.wait_listed(*map(name_of, self._npus.ids))

    def _own(self) -> None:
        npus, demo = self._npus, self._demo
        (beside_pod,) = (vnpu.id for vnpu in npus.vnpus_of(npus.chips[0]) if not vnpu.used)
        pinned, docker, unmanaged = npus.create(self._chip).id, npus.create(self._chip).id, npus.create(npus.add(die=_OTHER_DIE)).id
        self._cluster.run_docker(docker)
        npus.wait_listed(*map(name_of, npus.ids))
        print("  Four vNPUs are idle by the driver, and not devward's to take:")
        for vdev, what in (
            (beside_pod, "of an NPU on which another Pod runs"),
            (pinned, "of an administrator, who pins it"),
            (docker, f"of a container of plain docker: docker run --device /dev/vdavinci{docker}"),
            (unmanaged, "of a third NPU, which HAMi does not hand out"),
        ):
            print(f"    {name_of(vdev)}  {what}")
        demo.ctl("pin", name_of(pinned), "--reason", "for the workshop")
        self._kept = {
            beside_pod: ("protected", "running"),
            pinned: ("pinned", "pinned"),
            docker: ("owned", "held-on-host"),
            unmanaged: ("unmanaged", "card-not-registered"),
        }

    def _attempt(self) -> bool:
        """Let the Pod's container be tried once; return whether that left a vNPU."""
        self._attempts += 1
        code, vdev = self._npus.try_create(self._chip)
        if code:
            self._cluster.fail(f"cannot create a vNPU {TEMPLATE}: {code}")
            print(f"    attempt {self._attempts}: the NPU is full, no vNPU can be made (the library answers {code})")
            return False
        self._left[vdev] = time.monotonic()
        self._cluster.fail()
        print(f"    attempt {self._attempts}: {name_of(vdev)} is made for it, the container cannot start, {name_of(vdev)} stays behind")
        self._npus.wait_listed(*map(name_of, self._npus.ids))
        return True

    def leave_another(self) -> None:
        """Let the Pod, which still fails, leave another vNPU where there is room again, and wait until that was confirmed once."""
        self._left.clear()
        if not self._attempt():
            raise SystemExit("packaging/demo: there is no room although vNPUs were destroyed")
        (vdev,) = self._left
        self._wait_confirming(vdev)
        self._demo.ctl("vnpus")

    # --- what becomes of it --------------------------------------------------------------------------------------------
    def reclaim(self) -> None:
        """Show how long and why devward waits, and that it destroys each in its time and no other."""
        first = next(iter(self._left))
        before = self._npus.ids
        self._wait_confirming(first)
        self._demo.ctl("explain", name_of(first))
        if first not in self._npus.ids:
            raise SystemExit(f"packaging/demo: {name_of(first)} was gone before it was explained")
        say("Waiting until nobody has owned them for long enough.")
        for vdev, since in self._left.items():
            wait(lambda vdev=vdev: self._is_gone(vdev), f"the end of {name_of(vdev)}", pause=0.05)
            wait(lambda vdev=vdev: self._recorded(vdev), f"the record of the end of {name_of(vdev)}", pause=0.05)
            print(f"  {name_of(vdev)} was destroyed {time.monotonic() - since:.1f} s after it was made.")
        if before - self._npus.ids != set(self._left):
            raise SystemExit(f"packaging/demo: other vNPUs went, too: {sorted(before - self._npus.ids)}")
        self._demo.ctl("history", "--event", "vnpu-reclaim")
        self._show_record()

    def _is_gone(self, vdev: int) -> bool:
        self._npus.settle()
        return vdev not in self._npus.ids

    def _recorded(self, vdev: int) -> bool:
        return any(record.text("vnpu") == str(vdev) for record in self._demo.journal.records("vnpu-reclaim", "success"))

    def _show_record(self) -> None:
        command = ["journalctl", "DEVWARD_EVENT=vnpu-reclaim", "-n", "1", "--quiet", "-o", "verbose", f"--output-fields={','.join(_SHOWN)}"]
        say_command(" ".join(command))
        said = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True).stdout
        print(said, end="")
        if '"recreate": "npu-smi set -t create-vnpu ' not in said:
            raise SystemExit("packaging/demo: the record does not have the line that makes the vNPU again")

    # --- what stays ----------------------------------------------------------------------------------------------------
    def show_kept(self) -> None:
        """Show what is somebody's, with its reason."""
        if not self._npus.ids >= set(self._kept):
            raise SystemExit(f"packaging/demo: vNPUs of somebody's went: {sorted(set(self._kept) - self._npus.ids)}")
        for vdev, wanted in self._kept.items():
            wait(lambda vdev=vdev, wanted=wanted: self._verdict(vdev) == wanted, f"{name_of(vdev)}: {' '.join(wanted)}", pause=0.05)
        self._demo.ctl("vnpus")
        for vdev in self._kept:
            self._demo.ctl_lines("verdict", "explain", name_of(vdev))

    def show_nothing_happens(self, reason: str) -> None:
        """Wait for longer than it took before, and show that the vNPU is there, and that it is for this reason."""
        (vdev,) = self._left
        wanted = (Verdict.UNKNOWN, reason)
        wait(lambda: self._verdict(vdev) == wanted, f"{name_of(vdev)}: {' '.join(wanted)}", pause=0.05)
        before, calls, began = self._npus.ids, len(self._npus.destructions), time.monotonic()
        self._demo.ctl_lines("cannot be told", "explain", name_of(vdev))
        self._demo.ctl("reclaim", "status")
        # By then it would be gone: the grace, an interval for each confirmation, and a cycle.
        while time.monotonic() < began + self._demo.grace + 4 * INTERVAL:
            time.sleep(0.2)
            if self._npus.ids != before or len(self._npus.destructions) != calls:
                raise SystemExit("packaging/demo: something was destroyed while nothing was known")
        if self._verdict(vdev) != wanted:
            raise SystemExit(f"packaging/demo: {name_of(vdev)} is {self._verdict(vdev)} and should be {wanted}")
        say(f"{time.monotonic() - began:.0f} s later, when it would be gone otherwise, {name_of(vdev)} is there: {' '.join(wanted)}.")

    def _wait_confirming(self, vdev: int) -> None:
        wait(lambda: self._verdict(vdev)[0] == Verdict.CONFIRMING, f"{name_of(vdev)}: {Verdict.CONFIRMING}", pause=0.05)

    def _verdict(self, vdev: int) -> tuple[str, str]:
        path = f"vnpu/{name_of(vdev)}"
        return self._demo.get(path, "Vnpu", "Verdict"), self._demo.get(path, "Vnpu", "VerdictReason")
