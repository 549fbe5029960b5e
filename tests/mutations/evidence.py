"""DESIGN 4.2: evidence is whole, of now, and no doubt clears anybody."""

from typing import Final

from mutations.files import CHECKPOINT_FILE, CLIENT, HOST_WITNESS, KEEPING, LEDGER, PARTS, READINGS, SNAPSHOT, STATEMENT, WITNESS
from mutations.rule import Rule

_WHOLE: Final = (
    Rule(
        "4.2 a part that is missing is unknown",
        READINGS,
        "            self._ledger.take_look(Look.PART_MISSING, source)\n        self._take_age",
        "            pass\n        self._take_age",
    ),
    Rule(
        "4.2 a part that failed is unknown",
        READINGS,
        "            self._ledger.take_failure(source, part.failure)\n",
        "            pass\n",
    ),
    Rule(
        "4.2 a part of a later moment is unknown",
        READINGS,
        "            self._ledger.take_look(Look.PART_AHEAD, source)\n",
        "            pass\n",
    ),
    Rule("4.2 a part that is old is unknown", READINGS, "        elif not age <= self._bounds.part:\n", "        elif not self._bounds:\n"),
    Rule("4.2 a part is old after 30 s", PARTS, "    part: float = 30.0\n", "    part: float = 300.0\n"),
    Rule(
        "4.2 a checkpoint with a defect is unknown",
        READINGS,
        "            self._ledger.take_doubt(Source.CHECKPOINT, doubt)\n",
        "            del doubt\n",
    ),
    Rule(
        "4.2 a checkpoint that says nothing, and not why, is unknown",
        READINGS,
        "        if reading.checkpoint is None and not reading.doubts:\n",
        "        if reading is None:\n",
    ),
    Rule(
        "4.2 what is unknown begins waits anew",
        LEDGER,
        "found = self._resets | {Reset(unknown.scope, unknown.reason, unknown.card) for unknown in self._unknowns.values()}",
        "found = self._resets",
    ),
    Rule(
        "4.2 where the node is unknown so is every card",
        SNAPSHOT,
        "claims.standing if claims is not None else floor)) if is_node_known else Standing.UNKNOWN,",
        "claims.standing if claims is not None else floor)),",
    ),
    Rule(
        "4.2 where the node is unknown a clean scan clears no card",
        SNAPSHOT,
        "claims.standing_if_clean if claims is not None else floor)) if is_node_known else Standing.UNKNOWN",
        "claims.standing_if_clean if claims is not None else floor))",
    ),
    Rule(
        "4.2 a clock that went back makes the node unknown",
        SNAPSHOT,
        "            self._ledger.take_look(Look.CLOCK_BACK, Source.MEMORY)\n            return lasting(known)",
        "            return lasting(known)",
    ),
    Rule(
        "4.2 a clock that went back voids every time",
        SNAPSHOT,
        "            self._ledger.take_look(Look.CLOCK_BACK, Source.MEMORY)\n            return lasting(known)",
        "            self._ledger.take_look(Look.CLOCK_BACK, Source.MEMORY)\n            return known",
    ),
    Rule(
        "4.2 where the host was not seen nothing is known of any Pod",
        SNAPSHOT,
        "        return Finding.UNKNOWN\n",
        "        return Finding.CLEAN\n",
    ),
    Rule(
        "4.2 a checkpoint behind a link is refused",
        CHECKPOINT_FILE,
        "facts = os.stat(FILE_NAME, dir_fd=descriptor, follow_symlinks=False)",
        "facts = os.stat(FILE_NAME, dir_fd=descriptor)\n                return CheckpointReading(None), False",
    ),
    Rule(
        "4.2 a checkpoint that may change within a tick is read again",
        CHECKPOINT_FILE,
        "self._known = (version(facts), reading) if is_settled else None",
        "self._known = (version(facts), reading)",
    ),
    Rule(
        "4.2 a memory that cannot be read is a loss",
        KEEPING,
        "        except (StateError, OSError) as error:\n            return Recollection(loss=Loss(printable(str(error))))",
        "        except (StateError, OSError):\n            return Recollection()",
    ),
    Rule(
        "4.2 a memory that is damaged is a loss",
        KEEPING,
        '            return Recollection(loss=Loss(printable(f"{self._file.path}: {error}")))',
        "            return Recollection()",
    ),
)

_TOLD: Final = (
    Rule(
        "4.2 a statement that contradicts itself: clean by doubtful descriptors",
        STATEMENT,
        "    if sight.descriptors is Finding.CLEAN and (said.descriptors is None or not said.descriptors.is_sure):\n",
        "    if sight is None:\n",
    ),
    Rule(
        "4.2 a statement that contradicts itself: clean by doubtful bundles",
        STATEMENT,
        "    if sight.bundles is Finding.CLEAN and not said.bundles.is_sure:\n",
        "    if sight is None:\n",
    ),
    Rule(
        "4.2 a statement that contradicts itself: a Pod clean by doubtful sources",
        STATEMENT,
        "        if Finding.CLEAN in (pod.lives, pod.has_container) and not pods_are_sure(said):\n",
        "        if pod is None:\n",
    ),
    Rule(
        "4.2 no Pod is clean by sources in doubt",
        WITNESS,
        "return Finding.UNKNOWN if finding is Finding.CLEAN and not self._is_sure else finding",
        "return finding",
    ),
    Rule(
        "4.2 a vNPU that a statement does not tell of is unknown",
        WITNESS,
        "return Finding.UNKNOWN if sight is None else sight.finding",
        "return Finding.CLEAN if sight is None else sight.finding",
    ),
    Rule(
        "4.2 of a kubelet in doubt nothing is told",
        WITNESS,
        "    if source.state is not SourceState.READ or source.doubts or sight is None:\n",
        "    if sight is None:\n",
    ),
    Rule(
        "4.2 what cannot be told leaves doubt",
        HOST_WITNESS,
        "    return Finding.UNKNOWN if untold and finding is Finding.CLEAN else finding\n",
        "    return finding\n",
    ),
    Rule(
        "4.2 more Pods or containers than are told leave doubt",
        HOST_WITNESS,
        '        found.append(Doubt(WitnessDoubt.TOO_MANY, ""))\n',
        "        pass\n",
    ),
    Rule(
        "4.2 a statement about other vNPUs is none",
        CLIENT,
        "        if {sight.vnpu for sight in answer.statement.vnpus} != set(vnpus) or (",
        "        if (",
    ),
)

RULES: Final = (*_WHOLE, *_TOLD)
