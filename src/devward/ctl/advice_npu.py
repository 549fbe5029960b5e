"""The advice about NPUs and vNPUs. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from devward.ctl.step import Advice, Step
from devward.reasons import Reason


def _step(text: str, *commands: str) -> Step:
    return Step(text, commands)


_UNKNOWN: Final = (
    "devward knows nothing certain of the NPUs: it shows them as it saw them last and touches none of their vNPUs. Containers that run,"
    " and the hypervisor devices, are not affected."
)
_CARD: Final = (
    "devward does not vouch for the NPU and touches none of its vNPUs. Containers that run are not affected; what hands out the NPU does"
    " not ask devward."
)
_VNPU: Final = "devward does not vouch for the vNPU and never touches it. A container that uses it is not affected."
_NO_EFFECT: Final = "Containers are not affected."

_BROKER: Final = _step(
    "See what the broker says.", "systemctl status devward-dcmi.socket devward-dcmi.service", "journalctl -u devward-dcmi.service -n 50"
)
_SMI: Final = _step("Compare with the vendor's own tool.", "npu-smi info", "npu-smi info -l", "npu-smi info -m")
_SMI_VNPUS: Final = _step(
    "Compare with the vendor's own tool: CARD and CHIP as it lists them.", "npu-smi info -t info-vnpu -i CARD -c CHIP"
)
_DRIVER: Final = _step("See what the driver says.", "journalctl -k -g 'davinci|ascend|drv'", "npu-smi info")
_NODES: Final = _step(
    "See the nodes and what the kernel knows of their numbers.", "ls -l /dev", "grep devdrv /proc/devices", "ls -l /sys/dev/char"
)
_RECORDS: Final = _step("See the file.", "cat /etc/vnpu.cfg")
_REPORT: Final = _step("If it stays, collect what is needed to find it.", "devwardctl report")
_AGAIN: Final = _step("devward looks again by itself, once a minute. To have it look now:", "devwardctl rescan")
_ACCEPT: Final = _step(
    "If that was meant, as after an exchange of cards, let devward take what it sees now for the first sight.", "systemctl restart devward"
)

NPU_ADVICE: Final[Mapping[Reason, Advice]] = MappingProxyType(
    {
        Reason.NPU_BROKER_UNREACHABLE: Advice(
            _UNKNOWN, (_BROKER, _step("See that its socket is there.", "systemctl start devward-dcmi.socket"), _AGAIN)
        ),
        Reason.NPU_BROKER_SILENT: Advice(
            _UNKNOWN,
            (_BROKER, _DRIVER, _step("The broker ends by itself, or is ended, when a call hangs; one that cannot be is a hung driver.")),
        ),
        Reason.NPU_BROKER_GARBLED: Advice(
            _UNKNOWN, (_step("See that the broker and the daemon are of one version.", "systemctl restart devward"), _BROKER, _REPORT)
        ),
        Reason.NPU_BROKER_CONFINED: Advice(
            _UNKNOWN,
            (
                _step(
                    "See which drop-in confines it, and take it away: the unit says why it must not be.",
                    "systemctl cat devward-dcmi.service",
                ),
                _step(
                    "Then start the broker anew, as one that runs keeps its surroundings.",
                    "systemctl daemon-reload",
                    "systemctl restart devward-dcmi.service",
                ),
                _AGAIN,
            ),
        ),
        Reason.NPU_LIBRARY_UNUSABLE: Advice(
            _UNKNOWN,
            (
                _BROKER,
                _step("See the library: it must be root's, and no other user's to write.", "ls -lL /usr/local/dcmi", "ldconfig -p"),
                _step("Chips of the Ascend 950 and later have another library and no vNPUs: for them this is as it should be."),
            ),
        ),
        Reason.NPU_DRIVER_FAILED: Advice(_UNKNOWN, (_DRIVER, _BROKER, _AGAIN)),
        Reason.NPU_LIST_INCOMPLETE: Advice(_CARD, (_SMI, _DRIVER, _AGAIN)),
        Reason.NPU_MODE_UNKNOWN: Advice(
            _NO_EFFECT + " No vNPU is touched.", (_step("Ask the driver.", "npu-smi info -t vnpu-mode"), _DRIVER)
        ),
        Reason.NPU_ANSWER_ODD: Advice(_NO_EFFECT, (_SMI, _REPORT)),
        Reason.NPU_UNREADABLE: Advice(_CARD, (_SMI, _DRIVER)),
        Reason.NPU_NOT_READY: Advice(_CARD, (_step("Wait until the reset or the update is done."), _DRIVER)),
        Reason.NPU_ID_UNKNOWN: Advice(_CARD, (_SMI, _DRIVER)),
        Reason.NPU_ID_SHARED: Advice(_CARD, (_SMI, _DRIVER, _REPORT)),
        Reason.NPU_DIE_UNKNOWN: Advice(_CARD, (_SMI, _DRIVER)),
        Reason.NPU_DIE_SHARED: Advice(_CARD, (_SMI, _REPORT)),
        Reason.NPU_DIE_CHANGED: Advice(_CARD, (_SMI, _ACCEPT)),
        Reason.NPU_HEALTH_UNKNOWN: Advice(_CARD, (_SMI, _DRIVER)),
        Reason.NPU_UNHEALTHY: Advice(
            "The NPU may fail what runs on it. " + _CARD,
            (_step("See its faults.", "npu-smi info", "npu-smi info -t health -i CARD"), _DRIVER),
        ),
        Reason.NPU_VNPUS_UNKNOWN: Advice(_CARD, (_SMI_VNPUS, _DRIVER)),
        Reason.NPU_WINDOW: Advice(_CARD, (_SMI_VNPUS, _REPORT)),
        Reason.NPU_NODES_UNREADABLE: Advice(
            _CARD,
            (
                _step("See whether the directories can be read.", "ls -ld /dev /sys/dev/char"),
                _step("See whether a drop-in of the unit hides them: PrivateDevices= must be off.", "systemctl cat devward.service"),
            ),
        ),
        Reason.NPU_NODE_MISSING: Advice(
            "No container can be given what has no node. " + _CARD,
            (_NODES, _step("Let udev make the nodes again.", "udevadm trigger"), _DRIVER),
        ),
        Reason.NPU_NODE_MISMATCH: Advice(
            "A container that is given the node may get another device than its name says. " + _CARD,
            (
                _NODES,
                _step(
                    "Find out who put it there, as a container with the host's /dev can. An audit watch names the process.",
                    "auditctl -w DEVICE -p wa -k devward",
                    "ausearch -k devward -i",
                ),
            ),
        ),
        Reason.NPU_NODE_UNMATCHED: Advice(
            "A container that is given such a node cannot use it, or uses what devward knows nothing of.", (_NODES, _SMI_VNPUS, _AGAIN)
        ),
        Reason.NPU_SHARED_NODE_MISSING: Advice(
            "No container can use an NPU without it, and devward takes the NPUs out of their CDI file. Containers that run are not"
            " affected.",
            (_NODES, _DRIVER),
        ),
        Reason.NPU_MOUNTS_UNREADABLE: Advice(
            "Containers that are given an NPU by its CDI name may lack files of the driver.",
            (
                _step(
                    "See the lists: each must be a regular file that root alone can write, with one absolute path a line.",
                    "ls -l /etc/ascend-docker-runtime.d",
                ),
                _AGAIN,
            ),
        ),
        Reason.NPU_DIVIDED: Advice(
            "The vNPUs go on working; whoever wants the whole NPU has to wait until they are gone.", (_SMI_VNPUS, _AGAIN)
        ),
        Reason.VNPU_ID_SHARED: Advice(_VNPU, (_SMI_VNPUS, _REPORT)),
        Reason.VNPU_FUNCTION_MISMATCH: Advice(_VNPU, (_SMI_VNPUS, _REPORT)),
        Reason.VNPU_TEMPLATE_UNKNOWN: Advice(_VNPU, (_SMI_VNPUS, _REPORT)),
        Reason.VNPU_USE_UNKNOWN: Advice(_VNPU + " What is not known to be idle counts as in use.", (_SMI_VNPUS, _DRIVER)),
        Reason.VNPU_IN_USE: Advice(
            "The container that has it is not affected; another one has to wait, or be given another vNPU.", (_SMI_VNPUS, _AGAIN)
        ),
        Reason.VNPU_CLAIMS_UNKNOWN: Advice(
            "devward does not offer the vNPU to containers by a CDI name. It stays pinned, and Pods are not affected.",
            (
                _step("See what keeps devward from telling who owns what.", "devwardctl status", "devwardctl explain v0100"),
                _step("On a host with a kubelet, let the scheduler hand vNPUs out."),
            ),
        ),
        Reason.VNPU_NPU_CLAIMED: Advice(
            "devward does not offer the vNPU to containers by a CDI name while a Pod claims its NPU. It stays pinned, and the Pod is not"
            " affected.",
            (_step("See which Pod that is.", "devwardctl cards", "devwardctl explain v0100"),),
        ),
        Reason.OWNERS_UNKNOWN: Advice(
            "No vNPU is reclaimed while this lasts. Containers, and Pods that start, are not affected.",
            (
                _step("See every reason, and since when it holds.", "devwardctl status", "devwardctl findings"),
                _step("The manual page says what each reason means and what ends it.", "man devwardd"),
            ),
        ),
        Reason.OWNERS_NOT_KEPT: Advice(
            "Nothing is lost while devwardd runs. No vNPU is reclaimed until it could be saved.",
            (_step("Look at the state directory: its file system is full, read-only or hangs.", "df /var/lib/devward"),),
        ),
        Reason.MASS_RECLAIM: Advice(
            "Nothing is lost: the vNPUs stay. So many at a time rather mean that Pods or evidence vanished than that nobody owns them.",
            (
                _step("See which they are, and by what.", "devwardctl status", "devwardctl vnpus", "devwardctl explain v0100"),
                _step("If they really belong to nobody, agree to them.", "devwardctl reclaim release"),
            ),
        ),
        Reason.RECLAIM_BLOCKED: Advice(
            "No vNPU is reclaimed. Containers are not affected.",
            (
                _step("See what stops it.", "devwardctl status", "devwardctl findings"),
                _step("Where the state was damaged: look at the pins, set what is missing, and enforce again.", "devwardctl pins"),
            ),
        ),
        Reason.CLUSTER_CERTIFICATE: Advice(
            "When it has expired the API server refuses devward, who owns what is unknown, and nothing is reclaimed.",
            (
                _step("It is the kubelet's, which has to rotate it: look at its log.", "journalctl -u kubelet"),
                _step("On the cluster, look for requests that nobody approved.", "kubectl get csr"),
            ),
        ),
        Reason.VNPU_NOT_RECORDED: Advice(
            "Containers that use one are not affected until the reboot.",
            (
                _RECORDS,
                _step("Whoever made it left it out: a plugin in a container keeps a file of its own. One made with npu-smi has a line."),
            ),
        ),
        Reason.VNPU_RECORD_UNMATCHED: Advice(
            "At the next boot the vNPUs come back, and take cores that nobody asked for.",
            (
                _RECORDS,
                _step(
                    "With npu-smi, make one again and destroy it there, which takes its line away; or switch off that they are made again."
                ),
            ),
        ),
        Reason.VNPU_RECORDS_UNREADABLE: Advice(
            _NO_EFFECT + " Which vNPUs come back at boot is not known.", (_RECORDS, _step("See its mode.", "ls -l /etc/vnpu.cfg"))
        ),
        Reason.PIN_UNMATCHED: Advice(
            "Nothing is protected by the pin as long as nothing of that name is there. " + _NO_EFFECT,
            (
                _step("Compare the pins with what there is.", "devwardctl pins", "devwardctl vnpus"),
                _step("A vNPU that was made anew with another id or template must be pinned under its new name.", "devwardctl pin v0100"),
                _step("If it will not come back, take the pin away.", "devwardctl unpin DIE/VDEV/TEMPLATE"),
            ),
        ),
        Reason.PIN_OTHER_IDENTITY: Advice(
            "The vNPU is protected as before, but is not offered to containers in a CDI file: it may be in other hands than when it was"
            " pinned. Containers that use it already are not affected.",
            (
                _step("See which one it is, and what devward knows of it.", "devwardctl pins", "devwardctl explain v0100"),
                _step("If it is the one that you want offered, pin it again.", "devwardctl pin v0100"),
            ),
        ),
        Reason.VNPU_DESTROYED: Advice(
            "devward had judged that nobody owns it, by all the rules, and the broker had been told; nothing calls that back.",
            (_step("See by what it was judged, and the line that makes such a vNPU again.", "devwardctl history --event vnpu-reclaim"),),
        ),
        Reason.DESTRUCTION_BEGUN: Advice(
            "Nothing new is begun against it. What had begun may still be destroyed, as by a broker that hangs in the vendor's library.",
            (
                _step("See what was begun, and how it ended.", "devwardctl history --event vnpu-reclaim", "devwardctl reclaim status"),
                _step("See what the broker does.", "systemctl status devward-dcmi.service"),
                _step("Ask again, to learn whether it is over."),
            ),
        ),
    }
)
