"""Who owns the vNPUs of this host, for the rest of the daemon: nothing of it is loaded before there are NPUs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from devward.clock import Clock
from devward.config import ClusterConfig
from devward.model import ClusterRead, Finding
from devward.npu.room import NpuRoom
from devward.reasons import Reason
from devward.text import printable

if TYPE_CHECKING:  # a host without NPUs loads nothing of them
    from devward.cluster.owners import Judge, OwnersWatcher
    from devward.cluster.ownership import Ownership
    from devward.npu.views import CardView
    from devward.worker import Worker


@dataclass(frozen=True, slots=True)
class Standing:
    """What is published of the daemon as a whole; as in ManagerView."""

    blocked_reasons: tuple[str, ...] = ()
    blocked_since_usec: int = 0
    last_cycle_usec: int = 0
    next_cycle_usec: int = 0
    certificate_expires_usec: int = 0


class ClusterRoom:
    """Asking it is free; it never makes anybody wait."""

    def __init__(
        self,
        config: ClusterConfig,
        npus: NpuRoom,
        *,
        state_directory: str,
        clock: Clock,
        has_pinned: Callable[[], bool],
        judge: "Callable[[], Judge]",
        on_change: Callable[[], None],
        on_loaded: Callable[[], None] | None = None,
    ) -> None:
        """Load nothing yet.

        `has_pinned` tells whether a vNPU is pinned, which may only be offered while no Pod claims its NPU. `judge` returns what judges
        every look. `on_loaded` is called by another thread, once the library for the API server is loaded.
        """
        self._config = config
        self._npus = npus
        self._state_directory = state_directory
        self._clock = clock
        self._has_pinned = has_pinned
        self._judge = judge
        self._on_change = on_change
        self._on_loaded = on_loaded
        self._watcher: OwnersWatcher | None = None
        self._reconfigure: Callable[[ClusterConfig], None] = lambda _: None
        self._workers: tuple[Worker, ...] = ()
        self._closed = False
        self._dressed: dict[str, tuple[CardView, object, CardView]] = {}

    # --- views -------------------------------------------------------------------------------------------------------
    @property
    def ownership(self) -> "Ownership | None":
        """What the latest look gave; None: there was none, or nobody is to be asked."""
        return self._watcher.ownership if self._watcher is not None else None

    def dressed(self, cards: "Sequence[CardView]") -> "Sequence[CardView]":
        """Return the NPUs with who claims them. A view is the same object as before where nothing changed."""
        ownership = self.ownership
        if ownership is None or ownership.snapshot is None:
            return cards
        now = self._clock.monotonic()
        before, self._dressed = self._dressed, {}
        found = []
        for card in cards:
            state = ownership.state_of(card, now)
            mark = (state, ownership.is_asked)
            known = before.get(card.name)
            made = known[2] if known is not None and known[0] is card and known[1] == mark else ownership.dressed(card, now)
            self._dressed[card.name] = (card, mark, made)
            found.append(made)
        return found

    def standing(self) -> Standing:
        """Return what is published of the daemon as a whole."""
        ownership, watcher = self.ownership, self._watcher
        if ownership is None or watcher is None:
            return Standing()
        left = watcher.next_look_in
        return Standing(
            ownership.blocked_reasons,
            ownership.blocked_since_usec,
            ownership.snapshot.at_usec if ownership.snapshot is not None else 0,
            self._clock.realtime_usec() + int(left * 1e6) if left is not None else 0,
            ownership.certificate_expires_usec,
        )

    def findings(self) -> Sequence[Finding]:
        """Return what an administrator should know."""
        return self.ownership.findings if self.ownership is not None else ()

    def objection(self, die: str) -> tuple[Reason, str] | None:
        """Return why a vNPU of the NPU with this die id may be a Pod's, as code and what is to be said; None: no Pod has to do with it."""
        if self.ownership is None:
            return Reason.VNPU_CLAIMS_UNKNOWN, ""
        card = next((card for card in self._npus.cards() if card.die_id == die), None)
        return self.ownership.objection(card, self._clock.monotonic())

    def describe(self, *, full: bool) -> dict[str, Any] | None:
        """Return everything, for Describe; None: nobody was asked."""
        if self.ownership is None:
            return None
        told = self.ownership.describe(self._npus.cards(), self._clock.monotonic(), full=full)
        return told if told is None else told | {"watch": self._watch(full=full)}

    def _watch(self, *, full: bool) -> dict[str, Any] | None:
        """Return how the watch on Pods does, which only brings looks forward; None: there is none."""
        watch = self._watcher.pod_watch if self._watcher is not None else None
        if watch is None:
            return None
        problem = watch.problem
        if problem is None:
            return {"reason": "", "at_usec": 0}
        ago = self._clock.monotonic() - problem.at
        told = {"reason": f"api-{problem.fault}", "at_usec": self._clock.realtime_usec() - round(ago * 1e6)}
        return told | ({"text": problem.text} if full else {})

    def explain(self, card: "CardView | None", vnpu: str, *, full: bool) -> Mapping[str, Any]:
        """Return who owns what of a card, and what the host shows of a vNPU, for Explain. `vnpu` is empty for the card itself."""
        told: dict[str, Any] = {"ownership": None}
        ownership = self.ownership
        if ownership is not None and card is not None:
            node = ownership.describe_node(full=full)
            if node is not None:
                told["ownership"] = node | ownership.describe_card(card, self._clock.monotonic(), full=full)
        if vnpu:
            told["host"] = ownership.describe_sight(vnpu, full=full) if ownership is not None else None
        return told

    # --- looking -----------------------------------------------------------------------------------------------------
    def npus_changed(self) -> None:
        """There are NPUs, or something of them changed."""
        if self._closed or self._config.read is ClusterRead.OFF or not self._npus.cards():
            return
        if self._watcher is None:
            self._watcher = self._make_watcher()
        if self._watcher.awake:
            self._watcher.nudge()
        else:
            self._watcher.wake()

    def look(self) -> bool:
        """Look because an administrator wants it; nobody waits for that. False: nobody looks."""
        if self._watcher is None or not self._watcher.awake:
            return False
        self._watcher.nudge(asked=True)
        return True

    def node_seen(self) -> tuple[str, bool]:
        """Return the UID of the Node that was read last, empty where there is none, and whether it is another than this host's."""

        snapshot = self.ownership.snapshot if self.ownership is not None else None
        if snapshot is None:
            return "", False
        return printable(snapshot.node_uid), snapshot.identity is not None and snapshot.identity.may_be_accepted

    def accept_node(self, uid: str) -> None:
        """Take the Node with this UID for this host's from now on."""
        if self._watcher is not None:
            self._watcher.accept(uid)

    async def configure(self, config: ClusterConfig) -> None:
        """Apply other settings."""
        if config == self._config:
            return
        self._config = config
        self._reconfigure(config)
        if self._watcher is not None and config.read is ClusterRead.OFF:
            await self._watcher.close()
            self._watcher.forget()
            return
        self.npus_changed()
        self.look()

    async def close(self) -> None:
        """Stop looking, whatever is under way."""
        self._closed = True
        if self._watcher is not None:
            await self._watcher.close()
        for worker in self._workers:
            worker.close()

    def _make_watcher(self) -> "OwnersWatcher":
        from devward.cluster import owners
        from devward.cluster.gatherer import Gatherer
        from devward.cluster.keeping import Keeping
        from devward.worker import Worker

        reader, saver = Worker("cluster"), Worker("owners")
        self._workers = (reader, saver)
        judge = self._judge()
        gatherer = Gatherer(
            self._config, self._npus, worker=reader, clock=self._clock, ask_about=judge.ask_about, on_loaded=self._on_loaded
        )
        self._reconfigure = gatherer.configure
        return owners.OwnersWatcher(
            gatherer,
            Keeping(self._state_directory),
            saver,
            judge,
            clock=self._clock,
            is_wanted=lambda: self._has_pinned() or self._npus.may_have_idle,
            on_change=self._on_change,
            pace=owners.PACE,
        )
