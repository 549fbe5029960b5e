"""DESIGN 4.5 in the broker: what is compared right before the one call of the library, and what may end the process meanwhile."""

from typing import Final

from mutations.files import ACCESS, BROKER, DCMI, DESTRUCTION, ENVIRONMENT, GATE, HOST_SCAN, NUMBERING, SERVICE, SURVEY
from mutations.rule import Rule


def _check(name: str, condition: str, file: str = DESTRUCTION, subject: str = "expected") -> Rule:
    """Return a rule that is one `if`, of which the subject is something that is never None."""
    return Rule(name, file, f"    if {condition}:\n", f"    if {subject} is None:\n")


_COMPARED: Final = (
    _check("4.5.3 65535 never reaches the library", "vdev == WILDCARD", subject="vdev"),
    _check("4.5.3 no id outside the chip's own 16-slot window", "vdev not in window(phy)", subject="vdev"),
    Rule(
        "4.5.3 the window is looked at before anything is asked",
        DESTRUCTION,
        "    require_own_id(expected.phy, expected.vdev)\n    with",
        "    with",
    ),
    Rule(
        "4.5.3 a chip that lists an id outside its window is not understood",
        DESTRUCTION,
        "        require_own_id(chip.phy, vdev)\n",
        "        pass\n",
    ),
    Rule("4.5.3 the window has 16 slots", NUMBERING, "SLOTS: Final = 16\n", "SLOTS: Final = 32\n"),
    Rule("4.5.3 the binding itself takes no such id", DCMI, "        if not FIRST_VDEV <= vdev < VDEV_LIMIT:\n", "        if vdev < 0:\n"),
    Rule("4.5.3 under a lock", DESTRUCTION, "    with around.lock():\n", "    if True:\n"),
    Rule(
        "4.5.3 everything is compared before the scan",
        DESTRUCTION,
        "        _require_same(vendor, expected, around)\n        _require_unused(request, around)\n",
        "        _require_unused(request, around)\n",
    ),
    Rule(
        "4.5.3 everything is compared again after the scan",
        DESTRUCTION,
        "        _require_same(vendor, expected, around)\n        around.require_wanted()\n",
        "        around.require_wanted()\n",
    ),
    Rule("4.5.3 the broker scans descriptors and bundles itself", DESTRUCTION, "        _require_unused(request, around)\n", ""),
    _check("4.5.3 what the scan finds held is in use", "result.finding is Finding.HELD"),
    _check("4.5.3 a scan in doubt is no clean one", "result.finding is not Finding.CLEAN"),
    _check("4.5.3 the boot is compared", "seen.boot_id != expected.boot_id"),
    Rule(
        "4.5.3 what is no NPU is refused",
        DESTRUCTION,
        "    if chip is None:\n        raise Refused(Refusal.NO_SUCH_CHIP",
        "    if chip is None:\n        return\n    if seen is None:\n        raise Refused(Refusal.NO_SUCH_CHIP",
    ),
    _check("4.5.3 the mode is docker", "seen.mode is Mode.VM"),
    _check("4.5.3 a mode that cannot be told is not docker", "seen.mode is not Mode.DOCKER"),
    Rule(
        "4.5.3 a mode query that is absent, or -8255, is docker",
        SURVEY,
        "        if error.code in _NOT_PRESENT:\n            return Mode.DOCKER\n",
        "",
    ),
    Rule(
        "4.5.3 a mode query that fails otherwise is not docker",
        SURVEY,
        "        return Mode.UNKNOWN\n    if mode not in _MODES:",
        "        return Mode.DOCKER\n    if mode not in _MODES:",
    ),
    Rule(
        "4.5.3 a mode that is not known is not docker",
        SURVEY,
        "return _MODES.get(-1 if mode is None else mode, Mode.UNKNOWN)",
        "return _MODES.get(-1 if mode is None else mode, Mode.DOCKER)",
    ),
    Rule(
        "4.5.3 a vNPU that is not listed is refused",
        DESTRUCTION,
        "    if vnpu is None:\n        raise Refused(Refusal.VNPU_ABSENT",
        "    if vnpu is None:\n        return\n    if seen is None:\n        raise Refused(Refusal.VNPU_ABSENT",
    ),
    _check("4.5.3 node inode, time and number are compared", "seen.node != expected.node"),
    _check("4.5.3 a chip of which not all is known is refused", "any(problem.vdev is None for problem in chip.problems)"),
    _check("4.5.3 the physical id is compared", "chip.phy != expected.phy"),
    _check("4.5.3 the die id is compared", "chip.die != expected.die"),
    _check("4.5.3 the chip is healthy", "chip.health != 0"),
    Rule(
        "4.5.3 a chip whose vNPUs cannot be listed is refused",
        DESTRUCTION,
        '        raise Refused(Refusal.CHIP_UNKNOWN, "the vNPUs of the chip cannot be listed")\n',
        "        return\n",
    ),
    _check("4.5.3 a chip that lists a vNPU twice is refused", "len(set(vdevs)) != len(vdevs)"),
    Rule("4.5.3 the function is compared", DESTRUCTION, "    if vnpu.vfid != expected.vfid or vnpu.vfid", "    if vnpu.vfid"),
    Rule("4.5.3 the function is the one of the id, whatever was expected", DESTRUCTION, " or vnpu.vfid != vfid_of(vnpu.vdev):", ":"),
    _check("4.5.3 the template is compared", "vnpu.template != expected.template"),
    _check("4.5.3 a use that is not told is no idleness", "vnpu.in_use is None"),
    _check("4.5.3 a vNPU in use is refused", "vnpu.in_use"),
    Rule(
        "4.5.3 what is no device node is refused", DESTRUCTION, "    if not stat.S_ISCHR(found.st_mode):\n", "    if not found.st_mode:\n"
    ),
    Rule("4.5.3 a node is looked at without following links", DESTRUCTION, "found = os.lstat(path)", "found = os.stat(path)"),
    Rule("4.5.3 nobody waits any more: not called", DESTRUCTION, "        around.require_wanted()\n", ""),
    Rule(
        "4.5.3 the scan of the broker remembers nothing",
        HOST_SCAN,
        "LocalScanner().look((number,), runtime)",
        "LocalScanner().look((), runtime)",
    ),
    Rule(
        "4.5.3 the Node's runtime must be found by the scan",
        HOST_SCAN,
        "LocalScanner().look((number,), runtime)",
        "LocalScanner().look((number,), None)",
    ),
)

_LISTED_AGAIN: Final = (
    Rule(
        "4.5.4 gone from the list is destroyed",
        DESTRUCTION,
        "            return Outcome.DESTROYED\n",
        "            return Outcome.UNKNOWN\n",
    ),
    Rule(
        "4.5.4 a list that cannot be is unknown",
        DESTRUCTION,
        "        if vdevs is None:\n            return Outcome.UNKNOWN\n",
        "        if vdevs is None:\n            return Outcome.DESTROYED\n",
    ),
    Rule(
        "4.5.4 a list that fails is unknown",
        DESTRUCTION,
        "    except (DcmiError, Refused):\n        return Outcome.UNKNOWN",
        "    except (DcmiError, Refused):\n        return Outcome.DESTROYED",
    ),
    Rule(
        "4.5.4 an id that another vNPU has by now is unknown",
        DESTRUCTION,
        "return Outcome.STILL_PRESENT if around.node(expected.vdev) == expected.node else Outcome.UNKNOWN",
        "return Outcome.STILL_PRESENT",
    ),
    Rule("4.5.4 a list that was not written whole is none", SURVEY, "    return None if _U32_NONE in vdevs else vdevs", "    return vdevs"),
    Rule(
        "4.5.4 a list that is longer than it can be is none",
        SURVEY,
        "if total.count is None or total.count > LISTED_VNPUS:",
        "if total.count is None:",
    ),
    Rule(
        "4.5.4 an error of our own after the call is unknown",
        SERVICE,
        "            if self._code is not None:\n                answer = self._unknown(request, self._code)\n        if isinstance",
        "        if isinstance",
        ("test_dcmi_broker.py::test_an_error_of_our_own_after_the_call_leaves_it_unknown",),
    ),
)

_PROCESS: Final = (
    Rule(
        "4.5.6 one process destroys at a time",
        DESTRUCTION,
        "        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        pass\n",
    ),
    Rule(
        "4.5.6 a lock that cannot be had is none",
        DESTRUCTION,
        '        raise Refused(Refusal.LOCK_UNUSABLE, f"{path} cannot be opened: {error.strerror}") from error',
        "        yield\n        return",
    ),
    Rule(
        "4.5.3 one request is at work at a time",
        GATE,
        "            if self._phase is not Phase.IDLE:\n",
        "            if self._phase is None:\n",
    ),
    Rule(
        "4.5.6 a process that is being ended begins no call",
        GATE,
        '            self._require_going_on()\n            self._move(Phase.DESTROYING, "dcmi_set_destroy_vdevice")',
        '            self._move(Phase.DESTROYING, "dcmi_set_destroy_vdevice")',
    ),
    Rule(
        "4.5.6 a process that is being ended begins no request",
        GATE,
        "            self._require_going_on()\n            if self._phase",
        "            if self._phase",
    ),
    Rule(
        "4.5.6 a call that destroys is never given up",
        GATE,
        "if self._phase not in {Phase.READING, Phase.VERIFYING} or self._monotonic() <",
        "if self._monotonic() <",
    ),
    Rule(
        "4.5.6 what hangs while reading ends the broker",
        GATE,
        "            self._ending = Refusal.HUNG\n            return True",
        "            return False",
    ),
    Rule(
        "4.5.6 stopping waits for a call that destroys",
        GATE,
        "return self._phase in {Phase.IDLE, Phase.READING} and not self._answers",
        "return not self._answers",
    ),
    Rule(
        "4.5.6 stopping waits for the answer",
        GATE,
        "return self._phase in {Phase.IDLE, Phase.READING} and not self._answers",
        "return self._phase in {Phase.IDLE, Phase.READING}",
    ),
    Rule(
        "4.5.6 the phase is destroying around the call",
        SERVICE,
        "        with self._gate.destroying():\n            self._notifier",
        "        if True:\n            self._notifier",
        ("test_dcmi_broker.py::test_a_hang_in_a_destroy_ends_nothing",),
    ),
    Rule(
        "4.5.6 the watchdog is held around the call",
        SERVICE,
        "            self._notifier.hold_watchdog()\n",
        "",
        ("test_dcmi_broker.py::test_the_watchdog_is_held_while_destroying_and_nowhere_else",),
    ),
    Rule(
        "4.5.3 a time that is over is no wish",
        SERVICE,
        "    if now > request.expires_ns:\n",
        "    if not request.expires_ns:\n",
        ("test_dcmi_broker.py::test_a_caller_is_wanted_while_it_waits",),
    ),
    Rule(
        "4.5.3 a time too far ahead is a mistake",
        SERVICE,
        "    if request.expires_ns > now + LONGEST_WAIT_NS:\n",
        "    if not request.expires_ns:\n",
        ("test_dcmi_broker.py::test_a_caller_is_wanted_while_it_waits",),
    ),
    Rule(
        "4.5.3 a caller that has gone wants nothing",
        SERVICE,
        "    if caller.is_gone:\n        raise",
        "    if caller is None:\n        raise",
        ("test_dcmi_broker.py::test_a_caller_is_wanted_while_it_waits",),
    ),
    Rule(
        "4.5.3 a request that is cut off is none",
        SERVICE,
        '            if not line.endswith(b"\\n"):\n',
        "            if not line:\n",
        ("test_dcmi_broker.py::test_a_request_whose_line_does_not_end_destroys_nothing",),
    ),
    Rule(
        "4.5.3 only root is answered",
        BROKER,
        "        if uid != 0:\n",
        "        if uid < 0:\n",
        ("test_dcmi_broker.py::test_another_user_is_refused",),
    ),
    _check("1 the broker is root", "found.uid != 0", ENVIRONMENT, "found"),
    Rule("1 the broker is in the host's user namespace", ENVIRONMENT, "found.user_namespace != INIT_USER_NAMESPACE or ", ""),
    Rule("1 the broker is in the host's process namespace", ENVIRONMENT, " or found.pid_namespace != INIT_PID_NAMESPACE:", ":"),
    _check("1 the broker is in the host's mount namespace", "found.mount_namespace != found.init_mount_namespace", ENVIRONMENT, "found"),
    _check("1 the broker has all capabilities", "missing", ENVIRONMENT, "found"),
    _check("1 the library does not take the broker for Docker's", "found.docker_marks", ENVIRONMENT, "found"),
    Rule(
        "1 in a sandbox nothing is loaded",
        ACCESS,
        "            require_host(self._environment())\n",
        "",
        ("test_dcmi_broker.py::test_in_a_sandbox_nothing_is_loaded",),
    ),
    Rule(
        "1 nothing is told of the host from a sandbox",
        SERVICE,
        "        require_host(self._settings.read_environment())\n",
        "",
        ("test_dcmi_broker.py::test_from_a_sandbox_nothing_is_told",),
    ),
)

RULES: Final = (*_COMPARED, *_LISTED_AGAIN, *_PROCESS)
