"""What the outcome of a destruction means, and what to do about it: refusals, codes of the library, and what broke a wait. Pure.

These are the reasons of the record of a destruction that failed, besides those of advice_reclaim.py. VNPU stands in commands for the vNPU.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from devward.ctl.advice_reclaim import (
    BLOCKED_ADVICE,
    BROKER,
    CARDS,
    EXPLAIN,
    FINE,
    HISTORY,
    ITSELF,
    NOT_THIS_TIME,
    REPORT,
    STATE,
    WHY_ADVICE,
)
from devward.ctl.step import Advice, Step

#: What a wait begins anew for although nothing was unknown (devward.reclaim.look).
RESETS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "kubelet-restarted": "The kubelet was started again.",
        "configuration-reloaded": "devwardd read its configuration again.",
        "mode-changed": "The mode for reclaiming was changed.",
        "pause-ended": "A pause of reclaiming ended.",
        "kill-switch-removed": "The kill switch was taken away.",
        "unpinned": "A pin was taken away.",
        "devward-restarted": "devwardd was started again.",
        "resumed-from-suspend": "The host was suspended.",
        "clock-changed": "A clock went back, so that a look was older than one that had been taken in before.",
    }
)
_BEGINS_ANEW: Final = Advice(f"{NOT_THIS_TIME} Its wait begins anew.", (ITSELF,))
RESET_ADVICE: Final[Mapping[str, Advice]] = MappingProxyType(dict.fromkeys(RESETS, _BEGINS_ANEW))

_OF_BROKER: Final = Advice(NOT_THIS_TIME, (BROKER, REPORT))
_PASSES: Final = Advice(f"{NOT_THIS_TIME} It is tried again after another look.", (ITSELF, BROKER))
_SURROUNDINGS: Final = Advice(
    f"{NOT_THIS_TIME} Nothing is destroyed until the broker's service is mended.",
    (
        BROKER,
        Step("See what changes its unit, and mend that.", ("systemctl cat devward-dcmi.service",)),
        Step(
            "Then start it anew, as a broker that runs keeps its surroundings.",
            ("systemctl daemon-reload", "systemctl restart devward-dcmi.service"),
        ),
    ),
)
_LIBRARY: Final = Advice(
    f"{NOT_THIS_TIME} Nothing is destroyed until the library can be used.",
    (BROKER, Step("See where the library is, and whose it is.", ("ldconfig -p | grep libdcmi", "ls -l /usr/local/dcmi"))),
)
_OTHER: Final = Advice(f"{NOT_THIS_TIME} What is there is not what was judged; it is judged anew, and waits anew.", (EXPLAIN, CARDS))
_UNTOLD: Final = Advice(f"{NOT_THIS_TIME} What cannot be told counts as use; its wait begins anew.", (CARDS, BROKER))
_USED: Final = Advice(f"{NOT_THIS_TIME} Somebody has it, so its wait begins anew.", (EXPLAIN,))

#: Why the broker destroyed nothing (devward.npu.facts), what there is to say of it, and what else can come of a destruction.
REFUSALS: Final[Mapping[str, tuple[str, Advice]]] = MappingProxyType(
    {
        "malformed": ("The broker could not read the request.", _OF_BROKER),
        "version": (
            "The broker is of another version than devwardd.",
            Advice(NOT_THIS_TIME, (Step("After an upgrade, start it again.", ("systemctl restart devward-dcmi.service",)),)),
        ),
        "busy": ("The broker was busy with other requests.", _PASSES),
        "stopping": ("The broker was being stopped.", _PASSES),
        "not-root": ("The broker does not run as root.", _SURROUNDINGS),
        "mount-namespace": (
            "The broker does not run in the host's mount namespace, so that the driver takes it for a container.",
            _SURROUNDINGS,
        ),
        "capabilities": ("The broker lacks capabilities, so that the driver takes it for a container.", _SURROUNDINGS),
        "container": ("The broker runs in what the driver takes for a container.", _SURROUNDINGS),
        "environment-unknown": ("Whether the broker runs as on the host itself could not be told.", _SURROUNDINGS),
        "library-missing": ("The vendor's library, libdcmi.so, was not found.", _LIBRARY),
        "library-unsafe": ("Others than root may change the vendor's library, so that it is not loaded.", _LIBRARY),
        "library-unusable": ("The vendor's library could not be loaded.", _LIBRARY),
        "library-generation": ("The vendor's library is one for chips that have no vNPUs.", _LIBRARY),
        "library-changed": ("The vendor's library was replaced since it was loaded; the broker is started again by itself.", _PASSES),
        "dcmi-failed": (
            "A call of the vendor's library failed.",
            Advice(
                f"{NOT_THIS_TIME} It is tried again after another look, unless the library said that it is not permitted (-8002):"
                " then nothing is destroyed until the broker's service is mended.",
                (BROKER, CARDS, Step("If it was -8002:", ("devwardctl explain destroying-not-permitted",))),
            ),
        ),
        "no-such-chip": ("The NPU was not there any more.", _OTHER),
        "hung": ("A call of the vendor's library hangs.", _PASSES),
        "internal": ("devward met an error of its own; the journal has the details.", _OF_BROKER),
        "too-long": ("The broker's answer would have been longer than one may be.", _OF_BROKER),
        "destroy-running": ("Another destruction is still under way in the library.", _PASSES),
        "lock-unusable": ("The lock that keeps destructions apart could not be taken.", _OF_BROKER),
        "expired": ("The request waited for too long, so that what it was based on is too old.", _PASSES),
        "caller-gone": ("devwardd was gone before it was the request's turn.", _PASSES),
        "wildcard": ("The id is the one by which the library destroys every vNPU of an NPU; it is never handed on.", _OF_BROKER),
        "outside-window": ("The id is none that a vNPU of this NPU can have.", _OTHER),
        "boot-differs": ("The host was started again since the vNPU was looked at.", _OTHER),
        "chip-unknown": ("The library did not tell all of the NPU.", _UNTOLD),
        "chip-unhealthy": ("The NPU is not healthy.", Advice(NOT_THIS_TIME, (CARDS, Step("See what the driver says.", ("npu-smi info",))))),
        "phy-differs": ("The NPU has another physical id than it had.", _OTHER),
        "die-differs": ("The NPU has another die id than it had: it is another one.", _OTHER),
        "vm-mode": ("The NPU's vNPUs are for virtual machines.", Advice(NOT_THIS_TIME, (FINE,))),
        "mode-unknown": ("Whether the NPU's vNPUs are for containers could not be told.", _UNTOLD),
        "vnpu-absent": ("The library does not list the vNPU any more.", Advice(NOT_THIS_TIME, (FINE,))),
        "vfid-differs": ("The vNPU has another function than it had: it is another one.", _OTHER),
        "template-differs": ("The vNPU has another template than it had: it is another one.", _OTHER),
        "node-missing": ("The vNPU's device node is not there.", _OTHER),
        "node-unreadable": ("The vNPU's device node could not be looked at.", _UNTOLD),
        "node-differs": ("The vNPU's device node is another one than before.", _OTHER),
        "in-use": ("The driver says that a container uses the vNPU.", _USED),
        "use-unknown": ("The driver does not say whether the vNPU is used.", _UNTOLD),
        "scan-in-use": ("A process or a container of this host has this very vNPU.", _USED),
        "scan-unknown": ("Whether a process or a container of this host has the vNPU could not be told.", _UNTOLD),
        "no-answer": (
            "The broker gave no answer: whether the vNPU is gone is not known, and the next look tells.",
            Advice("If it is still there, it is tried again after another look.", (HISTORY, BROKER)),
        ),
        "not-asked": ("The broker was not asked.", _PASSES),
        "try-not-saved": (
            "That it is tried could not be saved, and what is not saved would be forgotten by a restart.",
            Advice(NOT_THIS_TIME, (STATE,)),
        ),
    }
)
#: The reason of a record where the library was called, with what it returned.
CALLED: Final = re.compile(r"destroy-(?P<code>[0-9]{1,10}|unfinished)", re.ASCII)
CALLED_ADVICE: Final = Advice(
    "Whether the vNPU is gone is told by the next list, not by this code: a call that fails may have destroyed it. If it is still there,"
    " it is tried again after another look, and after its whole wait where the library says that it is in use.",
    (HISTORY, BROKER),
)
#: The same where the library permits it to nobody who asks as the broker does.
FORBIDDEN: Final = "destroy-8002"
FORBIDDEN_ADVICE: Final = Advice(
    "The surroundings of the broker's service are at fault. Nothing is destroyed any more, and this does not end by itself.",
    BLOCKED_ADVICE["destroying-not-permitted"].steps,
)
#: What an administrator is answered of a vNPU, what became of one that went, and how an act can end.
ANSWERS: Final[Mapping[str, tuple[str, Advice]]] = MappingProxyType(
    {
        "limits": (
            "It is due, and as many vNPUs as may be destroyed at a time come first.",
            Advice(f"{NOT_THIS_TIME} It goes on by itself.", (ITSELF,)),
        ),
        "vanished": ("It went by itself meanwhile, as vNPUs do when their container ends.", WHY_ADVICE["went-by-itself"]),
        "vanished-foreign": ("Somebody else destroyed it while its container lived.", WHY_ADVICE["gone-under-its-owner"]),
        "replaced": ("Another vNPU has its id by now.", WHY_ADVICE["another-has-its-id"]),
        "unfinished": (
            "What was begun ended without an outcome, by an error of devwardd's own or since it was stopped.",
            Advice("Whether it was done is not known. The next look tells, and what it finds is handled as ever.", (HISTORY, REPORT)),
        ),
    }
)
#: Of what an administrator asked for, and is in force.
CHANGE_ADVICE: Final[Mapping[str, Advice]] = MappingProxyType(
    {"not-saved": Advice("Pins, modes and pauses that cannot be saved protect nothing after a restart.", (STATE,))}
)
