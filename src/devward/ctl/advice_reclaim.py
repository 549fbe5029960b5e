"""The advice about reclaiming, by the codes of devward.reclaim: why a vNPU stays or goes, and what stops reclaiming as a whole. Pure.

VNPU stands in commands for the vNPU that is asked about, REASON and NODE_UID for what the reader fills in.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from devward import names
from devward.ctl.step import Advice, Step


def _step(text: str, *commands: str) -> Step:
    return Step(text, commands)


_NOBODY_AFFECTED: Final = "Containers that run, and Pods that start, are not affected."
_STAYS: Final = f"The vNPU counts as used, and is left alone. {_NOBODY_AFFECTED}"
_UNTOLD: Final = f"What cannot be told counts as use: the vNPU is left alone, and it waits anew once it can be told. {_NOBODY_AFFECTED}"
_OBSERVED: Final = f"devward only observes the vNPU. {_NOBODY_AFFECTED}"
_WAITS: Final = (
    "Nobody has the vNPU as far as can be seen. If it stays so for the whole wait, devward destroys it, and its AI cores are free again."
    " Whoever shows up as its owner before ends the wait."
)
_DUE: Final = (
    "devward destroys the vNPU at one of the next looks, unless something stops reclaiming or limits it. Lost is then a vNPU that an"
    " administrator made by hand on an NPU of HAMi's with a template of HAMi's and did not pin, or that of a stopped container which no"
    " kubelet started."
)
_GONE: Final = "Whoever needs a vNPU gets a new one from its device plugin. The record in the journal has what was known of this one."
_LATER: Final = f"The vNPU waits and loses nothing of its wait. {_NOBODY_AFFECTED}"
_NOTHING: Final = f"No vNPU is destroyed while this lasts. {_NOBODY_AFFECTED}"
NOT_THIS_TIME: Final = f"The vNPU was not destroyed, and nothing was done to it. {_NOBODY_AFFECTED}"

FINE: Final = _step("Nothing needs to be done.")
ITSELF: Final = _step("Nothing needs to be done: it ends by itself.")
EXPLAIN: Final = _step("See all that is known of it.", "devwardctl explain VNPU")
KEEP: Final = _step("To keep it for ever, whatever becomes of its owner:", "devwardctl pin VNPU --reason REASON")
STOP: Final = _step(
    "To stop all reclaiming, for a while or until it is turned on again:",
    "devwardctl pause reclaim 1h REASON",
    "devwardctl mode reclaim off",
)
SOONER: Final = _step("To have it reclaimed with a shorter wait, by the same evidence:", "devwardctl reclaim now VNPU --shorten")
_PINS: Final = _step("See what is pinned, by whom and why.", "devwardctl pins")
STATE: Final = _step("See the state directory and its file system.", "ls -l /var/lib/devward", "df /var/lib/devward")
_STATE_ANEW: Final = _step(
    "Look at the pins, set those that are missing, and then enforce again: that takes the pins that there are for all of them.",
    "devwardctl pins",
    "devwardctl mode reclaim enforce",
)
BROKER: Final = _step(
    "See what the broker says.", "systemctl status devward-dcmi.socket devward-dcmi.service", "journalctl -u devward-dcmi.service -n 50"
)
CARDS: Final = _step("See the NPUs and what is in doubt of them.", "devwardctl cards", "devwardctl findings")
_JOURNAL: Final = _step("See the journal's own service.", "systemctl status systemd-journald.service", "journalctl --disk-usage")
_CONFIG: Final = _step("See the settings in force.", "devwardctl config")
_SWITCH: Final = _step(f"See which file reclaim.kill_switch names: {names.KILL_SWITCH} by default.", "devwardctl config")
HISTORY: Final = _step("See what was on record of it.", "devwardctl history --vnpu VNPU")
REPORT: Final = _step("If it stays, collect what is needed to find it.", "devwardctl report")
_OTHERS: Final = _step("Find what else destroys vNPUs on this node, such as an older HAMi with a cleanup of its own, and turn that off.")

#: Why a vNPU has its verdict, by the codes of devward.reclaim.reasons.
WHY_ADVICE: Final[Mapping[str, Advice]] = MappingProxyType(
    {
        "driver-says-used": Advice(
            _STAYS,
            (
                _step("Where somebody computes on it, nothing needs to be done."),
                _step(
                    "The driver alone says so: where no Pod, container or process shows, its mark may have stayed behind. See who has it.",
                    "devwardctl explain VNPU",
                    "cat /proc/uda/udevice",
                ),
            ),
        ),
        "pinned": Advice(_STAYS, (_PINS, _step("To let it go its way:", "devwardctl unpin VNPU"))),
        "maybe-pinned": Advice(_STAYS, (_PINS, CARDS)),
        "held-on-host": Advice(_STAYS, (EXPLAIN,)),
        "pins-unreadable": Advice(_UNTOLD, (STATE, _STATE_ANEW)),
        "not-evaluated": Advice(_UNTOLD, (ITSELF, _step("To have it looked at now:", "devwardctl rescan"))),
        "not-followed": Advice(_UNTOLD, (ITSELF,)),
        "look-outdated": Advice(_UNTOLD, (ITSELF,)),
        "card-unknown": Advice(_UNTOLD, (EXPLAIN,)),
        "card-not-seen": Advice(_UNTOLD, (CARDS, BROKER)),
        "use-not-told": Advice(_UNTOLD, (BROKER,)),
        "identity-unknown": Advice(_UNTOLD, (CARDS, BROKER)),
        "identity-shared": Advice(_UNTOLD, (CARDS, BROKER)),
        "host-unknown": Advice(
            _UNTOLD,
            (
                EXPLAIN,
                _step("If that names a process whose files take too long to be searched, see what it is, and whether it is meant to run."),
                BROKER,
            ),
        ),
        "host-not-asked": Advice(_UNTOLD, (ITSELF,)),
        "card-protected": Advice(_STAYS, (EXPLAIN,)),
        "card-named-by-container": Advice(_STAYS, (EXPLAIN,)),
        "vnpu-has-no-node": Advice(_OBSERVED, (FINE,)),
        "card-not-selected": Advice(_OBSERVED, (_CONFIG,)),
        "card-not-hamis": Advice(_OBSERVED, (EXPLAIN, _CONFIG)),
        "just-seen": Advice(_WAITS, (KEEP, SOONER)),
        "waiting-for-confirmations": Advice(_WAITS, (KEEP, SOONER)),
        "waiting-for-grace": Advice(_WAITS, (KEEP, SOONER)),
        "waiting-for-another-round": Advice(_WAITS, (HISTORY, BROKER, KEEP)),
        "confirmed": Advice(_DUE, (KEEP, STOP)),
        "hami-locked": Advice(_LATER, (ITSELF, KEEP)),
        "reclaimed": Advice(_GONE, (HISTORY,)),
        "gone-under-its-owner": Advice("The container that had the vNPU lives, and has lost it.", (HISTORY, _OTHERS)),
        "went-by-itself": Advice(_GONE, (FINE,)),
        "another-has-its-id": Advice("The wait of the former one counts nothing for the one that has its id now.", (FINE,)),
    }
)
#: What stops reclaiming as a whole, by the codes of devward.reclaim.controls.
BLOCKED_ADVICE: Final[Mapping[str, Advice]] = MappingProxyType(
    {
        "mode-off": Advice(_NOTHING, (_step("To turn it on; every vNPU then waits anew.", "devwardctl mode reclaim enforce"),)),
        "paused": Advice(_NOTHING, (_step("It ends by itself. To end it sooner:", "devwardctl resume reclaim"),)),
        "mode-observe": Advice(
            f"The verdicts show what would be reclaimed. {_NOTHING}",
            (
                _step("See what would be destroyed now.", "devwardctl reclaim now --dry-run"),
                _step("To have it done from now on; every vNPU then waits anew.", "devwardctl mode reclaim enforce"),
            ),
        ),
        "mass-reclaim": Advice(
            f"{_NOTHING} So many at a time rather mean that Pods or evidence vanished than that nobody owns them.",
            (
                _step(
                    "See which they are, what is known of each, and what latched it.",
                    "devwardctl status",
                    "devwardctl vnpus",
                    "devwardctl history --event mass-reclaim",
                ),
                _step("On the cluster, see whether Pods of this node are missing.", "kubectl get pods -A -o wide"),
                _step("Pin what must stay.", "devwardctl pin v0100 --reason REASON"),
                _step(
                    "If the others really belong to nobody, agree to those that status names; a later one is not agreed to.",
                    "devwardctl reclaim release",
                ),
            ),
        ),
        "kill-switch": Advice(
            _NOTHING,
            (
                _SWITCH,
                _step(
                    "Whoever set it had a reason. To take that file away, by default this one; every vNPU then waits anew.",
                    f"rm {names.KILL_SWITCH}",
                ),
            ),
        ),
        "kill-switch-unreadable": Advice(
            _NOTHING,
            (
                _SWITCH,
                _step("See that file and its directory, by default these.", "ls -ld /etc/devward", f"ls -l {names.KILL_SWITCH}"),
            ),
        ),
        "no-reclaim": Advice(
            _NOTHING,
            (_step("See how devwardd is started, and take --no-reclaim away if it is not meant.", "systemctl cat devward.service"),),
        ),
        "no-kubelet": Advice(
            _NOTHING,
            (
                _step(
                    "On a host without Kubernetes nothing needs to be done. Else see the further reasons: whether no kubelet was found, or"
                    " why it cannot be told which process it is, as where there are several.",
                    "devwardctl status",
                ),
                _step(
                    "See whether the kubelet runs, by itself or within k3s.",
                    "systemctl status kubelet.service k3s.service rke2-server.service rke2-agent.service",
                ),
            ),
        ),
        "destroying-not-permitted": Advice(
            f"{_NOTHING} The surroundings of the broker's service are at fault, and this does not end by itself.",
            (
                BROKER,
                _step("See what its unit is, and what changes it; then mend that.", "systemctl cat devward-dcmi.service"),
                _step(
                    "Start the broker anew, as one that runs keeps its surroundings, and have it tried again; every vNPU then waits anew.",
                    "systemctl daemon-reload",
                    "systemctl restart devward-dcmi.service",
                    "devwardctl reload",
                ),
            ),
        ),
        "journal-refuses": Advice(f"Nothing is destroyed without a record. {_NOTHING}", (_JOURNAL,)),
        "state-not-saved": Advice(f"It is tried anew at each look. {_NOTHING}", (STATE,)),
        "state-damaged": Advice(_NOTHING, (STATE, _STATE_ANEW)),
        "stopping": Advice(_NOTHING, (FINE,)),
    }
)
#: Why a vNPU that is due is not destroyed in this cycle, by the codes of devward.reclaim.limits.
LIMIT_ADVICE: Final[Mapping[str, Advice]] = MappingProxyType(
    {
        "limit-per-card": Advice(_LATER, (ITSELF, _CONFIG)),
        "limit-per-node": Advice(_LATER, (ITSELF, _CONFIG)),
        "limit-per-hour": Advice(
            _LATER,
            (
                ITSELF,
                _step(
                    "A try counts, whatever came of it. See whether they failed, and why.",
                    "devwardctl history --event vnpu-reclaim --since '1 hour ago'",
                ),
                _CONFIG,
            ),
        ),
    }
)
#: Why a vNPU was not destroyed after all, by the codes of devward.reclaim.contract.
NO_ADVICE: Final[Mapping[str, Advice]] = MappingProxyType(
    {
        "evidence-not-fresh": Advice(NOT_THIS_TIME, (ITSELF,)),
        "evidence-too-old": Advice(NOT_THIS_TIME, (ITSELF, REPORT)),
        "vnpu-gone": Advice(NOT_THIS_TIME, (FINE,)),
        "device-events-unread": Advice(NOT_THIS_TIME, (ITSELF, REPORT)),
        "device-events-seen": Advice(NOT_THIS_TIME, (ITSELF,)),
        "vnpu-not-described": Advice(NOT_THIS_TIME, (CARDS, BROKER)),
        "description-differs": Advice(NOT_THIS_TIME, (CARDS, REPORT)),
        "id-outside-window": Advice(NOT_THIS_TIME, (CARDS, BROKER)),
        "intent-not-recorded": Advice(NOT_THIS_TIME, (_JOURNAL,)),
        "interrupted": Advice(NOT_THIS_TIME, (ITSELF,)),
    }
)


def filled(step: Step, vnpu: str) -> Step:
    """Return a step with the name of the vNPU in its commands."""
    return Step(step.text, tuple(command.replace("VNPU", vnpu) for command in step.commands))
