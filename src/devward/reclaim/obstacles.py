"""What stops reclaiming as a whole: an administrator, the daemon's state, or what a destruction met; read anew before each step.

Each reading is compared with the one before: another mode, the end of a pause and a kill switch that is gone make waits begin anew.
"""

from collections.abc import Callable
from dataclasses import replace

from devward.cluster.owners import Seen
from devward.reclaim import limits
from devward.reclaim.controls import Controls, Switch
from devward.reclaim.ledger import Ledger
from devward.reclaim.look import Cut, Interruption
from devward.reclaim.warden import Warden


class Obstacles:
    """Knows nothing before it was read."""

    def __init__(self, warden: Warden, ledger: Ledger, interrupt: Callable[[Interruption], None]) -> None:
        """Read nothing yet. `interrupt` breaks waits at the next look."""
        self._warden = warden
        self._ledger = ledger
        self._interrupt = interrupt
        #: The driver did not permit a destruction: each other one would fail as well.
        self.is_forbidden = False
        #: The journal did not take an intent.
        self.is_journal_refusing = False
        #: That a destruction is tried could not be saved.
        self.is_unsaved = False
        self._last: Controls | None = None

    async def read(self, seen: Seen) -> Controls:
        """Return everything that stops reclaiming now, the kill switch looked at anew; this may break waits."""
        scan = seen.gathered.parts.kubelet.value
        # Before the others are read: that takes a moment, in which an administrator may say something.
        switch = await self._warden.switch()
        controls = self._with_own(switch, has_kubelet=scan is not None and scan.kubelet is not None)
        # At every reading: a kill switch may be there for less than the time between two looks.
        self._notice(controls)
        return controls

    def reread(self) -> Controls | None:
        """Return the same at once, with kill switch and kubelet as they were; None: nothing was read yet. This may break waits."""
        if self._last is None:
            return None
        controls = self._with_own(self._last.kill_switch, has_kubelet=self._last.has_kubelet)
        self._notice(controls)
        return controls

    def _with_own(self, switch: Switch, *, has_kubelet: bool) -> Controls:
        return replace(
            self._warden.controls(),
            kill_switch=switch,
            has_kubelet=has_kubelet,
            is_breaker_latched=self._ledger.breaker.is_latched,
            breaker_text=limits.sentence(self._ledger.breaker),
            is_forbidden=self.is_forbidden,
            is_journal_refusing=self.is_journal_refusing,
            is_unsaved=self.is_unsaved,
        )

    def _notice(self, controls: Controls) -> None:
        """Break every wait where less stands in the way than when that was read last, or another mode is in force."""
        before, self._last = self._last, controls
        if before is None:
            return
        if before.mode is not controls.mode:
            self._interrupt(Interruption(Cut.MODE_CHANGED))
        if before.is_paused and not controls.is_paused:
            self._interrupt(Interruption(Cut.PAUSE_ENDED))
        if before.kill_switch is not Switch.ABSENT and controls.kill_switch is Switch.ABSENT:
            self._interrupt(Interruption(Cut.KILL_SWITCH_REMOVED))
