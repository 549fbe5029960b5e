"""CheckAllocation of kvm, asked again and again while something happens in a machine."""

import contextlib
import json
import statistics
from collections.abc import Iterator

from sim.daemon_process import SLOW
from system.vm.machine import Machine

#: Seconds. The daemon answers within 2; the rest is for those who ask, on an emulated processor that is shared. A broker hangs longer.
ANSWER_LIMIT = 25.0
STOP = "/run/stop-asking"


class Answers:
    """The answers, held to the time and the kinds that they have when nothing happens."""

    def __init__(self, vm: Machine, figures: dict[str, str]) -> None:
        """Ask in this machine; medians go into the figures."""
        self._vm = vm
        self._figures = figures

    @contextlib.contextmanager
    def while_(self, what: str) -> Iterator[None]:
        """Ask during this; each answer must come in time, and be what it is without NPUs."""
        self._vm.run("rm", "-f", STOP)
        asking = self._vm.start("python3", "/opt/vm/kvm_answers.py", STOP, timeout=900)
        try:
            yield
        finally:
            self._vm.run("touch", STOP)
            code, out = self._vm.finish(asking, timeout=900)
        assert code == 0, out
        found = json.loads(out)
        seconds = [took for took, _, _ in found]
        assert max(seconds) < ANSWER_LIMIT, (what, found)
        assert {reason for _, allowed, reason in found if not allowed} <= SLOW, (what, found)
        assert any(allowed for _, allowed, _ in found), (what, found)
        refused = sum(not allowed for _, allowed, _ in found)
        self._figures[f"CheckAllocation of kvm, {what}"] = (
            f"median {statistics.median(seconds):.2f} s of {len(found)}, at most {max(seconds):.2f} s"
            + (f", {refused} not finished in time" if refused else "")
        )
