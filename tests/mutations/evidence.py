"""DESIGN 4.1 and 4.2: what the host, the driver and the age of evidence say, and by what one vNPU is told from another."""

from typing import Final

from mutations.rule import Rule

_SNAPSHOT: Final = "src/devward/cluster/snapshot.py"
_READINGS: Final = "src/devward/cluster/readings.py"
_LEDGER: Final = "src/devward/cluster/ledger.py"
_PARTS: Final = "src/devward/cluster/parts.py"
_BUNDLES: Final = "src/devward/cluster/bundles.py"
_BUNDLE: Final = "src/devward/cluster/bundle.py"
_CGROUPS: Final = "src/devward/cluster/cgroups.py"
_DESCRIPTORS: Final = "src/devward/cluster/descriptors.py"
_UDA: Final = "src/devward/cluster/uda.py"
_LOCAL: Final = "src/devward/cluster/local.py"
_LIFE: Final = "src/devward/cluster/life.py"
_EVIDENCE: Final = "src/devward/cluster/evidence.py"
_WITNESS: Final = "src/devward/cluster/witness.py"
_STATEMENT: Final = "src/devward/cluster/statement.py"
_HOST_WITNESS: Final = "src/devward/npu/host_witness.py"
_CLIENT: Final = "src/devward/npu/client.py"
_CHIPS: Final = "src/devward/npu/chips.py"
_MEMORY: Final = "src/devward/npu/memory.py"
_INVENTORY: Final = "src/devward/npu/inventory.py"
_SURVEY: Final = "src/devward/npu/survey.py"
_CHECKPOINT_FILE: Final = "src/devward/cluster/checkpoint_file.py"
_KEEPING: Final = "src/devward/cluster/keeping.py"

_SNAPSHOTS: Final = ("test_snapshot_gates.py", "test_snapshot_memory.py", "test_snapshot_properties.py")

ASKED: Final = {
    _SNAPSHOT: _SNAPSHOTS,
    _READINGS: ("test_snapshot_gates.py", "test_owners_snapshot.py"),
    _LEDGER: ("test_snapshot_gates.py", "test_snapshot_memory.py"),
    _PARTS: ("test_snapshot_gates.py",),
    _BUNDLES: ("test_local_bundles.py", "test_local.py"),
    _BUNDLE: ("test_local_bundle.py", "test_local_bundles.py"),
    _CGROUPS: ("test_local_cgroups.py", "test_local.py"),
    _DESCRIPTORS: ("test_local_descriptors.py", "test_local.py"),
    _UDA: ("test_local_uda.py", "test_local.py"),
    _LOCAL: ("test_local.py", "test_host_scan.py"),
    _LIFE: ("test_local_bundles.py", "test_local.py"),
    _EVIDENCE: ("test_local.py", "test_witness.py"),
    _WITNESS: ("test_witness.py", "test_owners_snapshot.py", "test_owners_gatherer.py"),
    _STATEMENT: ("test_witness.py", "test_host_witness.py", "test_witness_protocol.py"),
    _HOST_WITNESS: ("test_host_witness.py",),
    _CLIENT: ("test_npu_client.py",),
    _CHIPS: ("test_npu_inventory.py", "test_npu_through_broker.py"),
    _MEMORY: ("test_npu_inventory.py", "test_npu_through_broker.py"),
    _INVENTORY: ("test_npu_inventory.py", "test_npu_through_broker.py"),
    _SURVEY: ("test_dcmi_survey.py",),
    _CHECKPOINT_FILE: ("test_checkpoint_file.py",),
    _KEEPING: ("test_owners_keeping.py", "test_owners_memory.py"),
}


def _fault(name: str, condition: str, *, indent: str = "    ", subject: str = "chip") -> Rule:
    """Return a rule that is one `if` of chips.py."""
    return Rule(name, _CHIPS, f"{indent}if {condition}:\n", f"{indent}if {subject} is None:\n")


_WHOLE: Final = (
    Rule(
        "4.2 a part that is missing is unknown",
        _READINGS,
        "            self._ledger.take_look(Look.PART_MISSING, source)\n        self._take_age",
        "            pass\n        self._take_age",
    ),
    Rule(
        "4.2 a part that failed is unknown",
        _READINGS,
        "            self._ledger.take_failure(source, part.failure)\n",
        "            pass\n",
    ),
    Rule(
        "4.2 a part of a later moment is unknown",
        _READINGS,
        "            self._ledger.take_look(Look.PART_AHEAD, source)\n",
        "            pass\n",
    ),
    Rule(
        "4.2 a part that is old is unknown", _READINGS, "        elif not age <= self._bounds.part:\n", "        elif not self._bounds:\n"
    ),
    Rule("4.2 a part is old after 30 s", _PARTS, "    part: float = 30.0\n", "    part: float = 300.0\n"),
    Rule(
        "4.2 a checkpoint with a defect is unknown",
        _READINGS,
        "            self._ledger.take_doubt(Source.CHECKPOINT, doubt)\n",
        "            del doubt\n",
    ),
    Rule(
        "4.2 a checkpoint that says nothing, and not why, is unknown",
        _READINGS,
        "        if reading.checkpoint is None and not reading.doubts:\n",
        "        if reading is None:\n",
    ),
    Rule(
        "4.2 what is unknown begins waits anew",
        _LEDGER,
        "found = self._resets | {Reset(unknown.scope, unknown.reason, unknown.card) for unknown in self._unknowns.values()}",
        "found = self._resets",
    ),
    Rule(
        "4.2 where the node is unknown so is every card",
        _SNAPSHOT,
        "claims.standing if claims is not None else floor)) if is_node_known else Standing.UNKNOWN,",
        "claims.standing if claims is not None else floor)),",
    ),
    Rule(
        "4.2 where the node is unknown a clean scan clears no card",
        _SNAPSHOT,
        "claims.standing_if_clean if claims is not None else floor)) if is_node_known else Standing.UNKNOWN",
        "claims.standing_if_clean if claims is not None else floor))",
    ),
    Rule(
        "4.2 a clock that went back makes the node unknown",
        _SNAPSHOT,
        "            self._ledger.take_look(Look.CLOCK_BACK, Source.MEMORY)\n            return lasting(known)",
        "            return lasting(known)",
    ),
    Rule(
        "4.2 a clock that went back voids every time",
        _SNAPSHOT,
        "            self._ledger.take_look(Look.CLOCK_BACK, Source.MEMORY)\n            return lasting(known)",
        "            self._ledger.take_look(Look.CLOCK_BACK, Source.MEMORY)\n            return known",
    ),
    Rule(
        "4.2 where the host was not seen nothing is known of any Pod",
        _SNAPSHOT,
        "        return Finding.UNKNOWN\n",
        "        return Finding.CLEAN\n",
    ),
    Rule(
        "4.2 a checkpoint behind a link is refused",
        _CHECKPOINT_FILE,
        "facts = os.stat(FILE_NAME, dir_fd=descriptor, follow_symlinks=False)",
        "facts = os.stat(FILE_NAME, dir_fd=descriptor)\n                return CheckpointReading(None), False",
    ),
    Rule(
        "4.2 a checkpoint that may change within a tick is read again",
        _CHECKPOINT_FILE,
        "self._known = (version(facts), reading) if is_settled else None",
        "self._known = (version(facts), reading)",
    ),
    Rule(
        "4.2 a memory that cannot be read is a loss",
        _KEEPING,
        "        except (StateError, OSError) as error:\n            return Recollection(loss=Loss(printable(str(error))))",
        "        except (StateError, OSError):\n            return Recollection()",
    ),
    Rule(
        "4.2 a memory that is damaged is a loss",
        _KEEPING,
        '            return Recollection(loss=Loss(printable(f"{path}: {error}")))',
        "            return Recollection()",
    ),
)

_CONTAINERS: Final = (
    Rule("4.2 bundles name their Pod", _BUNDLES, "            for uid in facts.pod_uids:\n", "            for uid in ():\n"),
    Rule("4.2 a bundle's device node owns its vNPU", _BUNDLE, '        vdevs |= _vdev_of(_text(entry.get("path")))\n', ""),
    Rule(
        "4.2 a bundle's device number owns its vNPU",
        _BUNDLES,
        "            for number in facts.devices:\n",
        "            for number in ():\n",
    ),
    Rule("4.2 a bundle's poststop hook owns its vNPU", _BUNDLE, "    vdevs = {hook.vdev for hook in hooks}\n", "    vdevs = set[int]()\n"),
    Rule("4.2 a bundle's mount owns its vNPU", _BUNDLE, "        vdevs |= _vdev_of(source)\n", ""),
    Rule(
        "4.2 a bundle's rule for one number owns its vNPU",
        _BUNDLE,
        "            devices.add(DeviceNumber(major, minor))\n    for mount",
        "            pass\n    for mount",
    ),
    Rule(
        "4.2 a bundle's environment names cards",
        _BUNDLE,
        "            cards = None if more is None else cards | more\n",
        "            pass\n",
    ),
    Rule("4.2 a bundle's environment asks for a vNPU", _BUNDLE, "            template = text or template\n", "            pass\n"),
    Rule(
        "4.2 a bundle that is odd is refused whole",
        _BUNDLES,
        "                doubt = Doubt(BundleDoubt.BUNDLE_MALFORMED, config)\n",
        "                pass\n",
    ),
    Rule(
        "4.2 a bundle that cannot be read is a doubt",
        _BUNDLES,
        "            doubt = Doubt(BundleDoubt.BUNDLE_UNREADABLE, config, error.errno or 0)\n",
        "            del error\n",
    ),
    Rule(
        "4.2 a container without a configuration is a doubt",
        _BUNDLES,
        "                doubt = Doubt(BundleDoubt.NO_CONFIG, config)\n",
        "                pass\n",
    ),
    Rule(
        "4.2 a root that cannot be read is a doubt",
        _BUNDLES,
        "            self._doubt(BundleDoubt.ROOT_UNREADABLE, root.path, error)\n            return SeenRoot(root, SourceState.UNREADABLE)",
        "            return SeenRoot(root, SourceState.NOT_PRESENT)",
    ),
    Rule(
        "4.2 a doubt about bundles leaves a vNPU unknown",
        _BUNDLES,
        "            return Finding.HELD\n        return Finding.UNKNOWN if self.doubts else Finding.CLEAN\n",
        "            return Finding.HELD\n        return Finding.CLEAN\n",
    ),
    Rule(
        "4.2 a doubt about bundles leaves a Pod unknown",
        _BUNDLES,
        "return Finding.UNKNOWN if self.doubts or any(map(counts, self._without_uid)) else Finding.CLEAN",
        "return Finding.UNKNOWN if any(map(counts, self._without_uid)) else Finding.CLEAN",
    ),
    Rule(
        "4.2 a container of no known Pod leaves every Pod unknown",
        _BUNDLES,
        "Finding.UNKNOWN if self.doubts or any(map(counts, self._without_uid)) else",
        "Finding.UNKNOWN if self.doubts else",
    ),
    Rule(
        "4.2 for candidates a sandbox is no container",
        _BUNDLES,
        "            return not (containers_only and bundle.is_sandbox)\n",
        "            return True\n",
    ),
    Rule(
        "4.2 of which the type is not said is a container",
        _BUNDLE,
        "    if not found:\n        return ContainerType.UNKNOWN\n",
        "    if not found:\n        return ContainerType.SANDBOX\n",
    ),
    Rule(
        "4.2 only a container that was seen to have ended does not live",
        _BUNDLES,
        "if bundle.life is not Life.STOPPED and bundle.facts is not None)",
        "if bundle.life is Life.LIVE and bundle.facts is not None)",
    ),
    Rule(
        "4.2 from where processes are hidden nobody is seen to have ended",
        _BUNDLES,
        "if first is not None and self._sees_all else Life.UNKNOWN",
        "if first is not None else Life.UNKNOWN",
    ),
    Rule("4.2 the id of a process that came later is not the container's", _LIFE, " or (first.started and first.started != started):", ":"),
    Rule(
        "4.2 a process of which nothing can be told counts as living",
        _LIFE,
        "    except OSError:\n        return Life.UNKNOWN\n",
        "    except OSError:\n        return Life.STOPPED\n",
    ),
    Rule(
        "4.2 bundles of an id file from before the configuration are of an earlier run",
        _BUNDLES,
        "        if os.stat(path, follow_symlinks=False).st_mtime_ns < written_ns:\n            return None\n",
        "",
    ),
    Rule(
        "4.2 the root of the Node's own runtime must be there",
        _LOCAL,
        "    state = bundles.state_of(runtime)\n",
        "    state = SourceState.READ\n",
    ),
    Rule(
        "4.2 a runtime that is not known is a doubt",
        _LOCAL,
        "        return [Doubt(LocalDoubt.RUNTIME_UNKNOWN, version)]\n",
        "        return []\n",
    ),
    Rule(
        "4.2 a container without a bundle is a doubt",
        _LOCAL,
        "*_runtime_doubts(bundles, container_runtime_version), *_without_bundle(cgroups, bundles)]",
        "*_runtime_doubts(bundles, container_runtime_version)]",
    ),
    Rule(
        "4.2 a doubt between the sources leaves a vNPU unknown",
        _LOCAL,
        "        if bundles is Finding.CLEAN and self.doubts:\n",
        "        if bundles is None:\n",
    ),
    Rule(
        "4.2 a doubt between the sources leaves a Pod unknown",
        _LOCAL,
        "            Finding.UNKNOWN if self.doubts else Finding.CLEAN,\n        )\n        return",
        "        )\n        return",
    ),
    Rule(
        "4.2 a Pod's control group shows that it lives",
        _LOCAL,
        "            self.cgroups.pod_finding(uid, self.bundles.sandboxes(uid) if containers_only else None),\n",
        "",
    ),
    Rule(
        "4.2 for candidates a control group with only the sandbox does not count",
        _LOCAL,
        "self.bundles.sandboxes(uid) if containers_only else None)",
        "None)",
    ),
    Rule(
        "4.2 control groups that are not mounted are a doubt",
        _CGROUPS,
        "            return CgroupScan(SourceState.UNREADABLE, doubts=(doubt,))\n",
        "            return CgroupScan(SourceState.NOT_PRESENT)\n",
    ),
    Rule(
        "4.2 a control group that cannot be read is a doubt",
        _CGROUPS,
        "            self._doubts.append(Doubt(CgroupDoubt.GROUP_UNREADABLE, path, error.errno or 0))\n",
        "            del error\n",
    ),
    Rule(
        "4.2 a doubt about control groups leaves a Pod unknown",
        _CGROUPS,
        "        return Finding.UNKNOWN if self.doubts else Finding.CLEAN\n",
        "        return Finding.CLEAN\n",
    ),
    Rule(
        "4.2 held outweighs unknown, and unknown clean",
        _EVIDENCE,
        "for finding in (Finding.HELD, Finding.UNKNOWN) if finding in found), Finding.CLEAN)",
        "for finding in (Finding.HELD,) if finding in found), Finding.CLEAN)",
    ),
)

_PROCESSES: Final = (
    Rule(
        "4.2 an open descriptor holds a device",
        _DESCRIPTORS,
        "                        self._hold(task, number, Trace.DESCRIPTOR)\n",
        "                        pass\n",
    ),
    Rule(
        "4.2 a mapping holds a device", _DESCRIPTORS, "                self._hold(task, number, Trace.MAPPING)\n", "                pass\n"
    ),
    Rule(
        "4.2 physical cards and manager nodes do not count",
        _DESCRIPTORS,
        "                    if number in self._numbers:\n",
        "                    if number is not None:\n",
    ),
    Rule(
        "4.2 a table that cannot be read leaves doubt",
        _DESCRIPTORS,
        "unread = {task.pid: self._failed[task][1] for task in reversed(alive) if task not in self._read}",
        "unread = dict[int, int]()",
    ),
    Rule(
        "4.2 who was born during the scan is looked at too",
        _DESCRIPTORS,
        "        for _ in range(self._limits.rounds):\n            alive = self._tasks()",
        "        for round in range(self._limits.rounds):\n            if round:\n                return []\n            alive = self._tasks()",
    ),
    Rule(
        "4.2 threads with tables of their own are looked at",
        _DESCRIPTORS,
        "                if threads > 1:\n",
        "                if threads < 0:\n",
    ),
    Rule(
        "4.2 a scan that never settles leaves doubt",
        _DESCRIPTORS,
        '        return [Doubt(ScanDoubt.UNSETTLED, "")]\n',
        "        return []\n",
    ),
    Rule(
        "4.2 a scan whose time is over leaves doubt",
        _DESCRIPTORS,
        "            raise _LimitError(ScanDoubt.OUT_OF_TIME)\n",
        "            pass\n",
    ),
    Rule(
        "4.2 from where processes are hidden nothing is clean",
        _DESCRIPTORS,
        "        doubts = [blind] if blind is not None else []\n",
        "        doubts = list[Doubt]()\n",
    ),
    Rule(
        "4.2 a device that was not asked about is unknown", _DESCRIPTORS, "if self.doubts or number not in self.numbers:", "if self.doubts:"
    ),
    Rule(
        "4.2 a doubt leaves a device unknown",
        _DESCRIPTORS,
        "if self.doubts or number not in self.numbers:",
        "if number not in self.numbers:",
    ),
    Rule(
        "4.2 /proc/uda shows who uses a vNPU",
        _UDA,
        "        if any(device.spaces for device in devices) or any(vdev in space.devices for space in self.spaces):\n",
        "        if not vdev:\n",
    ),
    Rule(
        "4.2 a /proc/uda that does not exist is no doubt",
        _UDA,
        "        return UdaScan(SourceState.NOT_PRESENT)\n",
        '        return UdaScan(SourceState.UNREADABLE, doubts=(Doubt(UdaDoubt.UDA_MALFORMED, ""),))\n',
    ),
    Rule(
        "4.2 a /proc/uda that cannot be read is a doubt",
        _UDA,
        "            return UdaScan(SourceState.UNREADABLE, doubts=(Doubt(UdaDoubt.UDA_UNREADABLE, path, error.errno or 0),))\n",
        "            return UdaScan(SourceState.NOT_PRESENT)\n",
    ),
    Rule(
        "4.2 a /proc/uda that is not understood is a doubt",
        _UDA,
        "    except UdaError:\n        return UdaScan(SourceState.UNREADABLE, doubts=(Doubt(UdaDoubt.UDA_MALFORMED, directory),))",
        "    except UdaError:\n        return UdaScan(SourceState.NOT_PRESENT)",
    ),
    Rule("4.2 a vNPU that the driver's list lacks is unknown", _UDA, " or (self.state is SourceState.READ and not devices):", ":"),
    Rule(
        "4.2 a line of /proc/uda that is not understood leaves doubt",
        _UDA,
        "if self.doubts or not all(device.is_whole for device in devices) or",
        "if self.doubts or",
    ),
)

_TOLD: Final = (
    Rule(
        "4.2 a statement that contradicts itself: clean by doubtful descriptors",
        _STATEMENT,
        "    if sight.descriptors is Finding.CLEAN and (said.descriptors is None or not said.descriptors.is_sure):\n",
        "    if sight is None:\n",
    ),
    Rule(
        "4.2 a statement that contradicts itself: clean by doubtful bundles",
        _STATEMENT,
        "    if sight.bundles is Finding.CLEAN and not said.bundles.is_sure:\n",
        "    if sight is None:\n",
    ),
    Rule(
        "4.2 a statement that contradicts itself: a Pod clean by doubtful sources",
        _STATEMENT,
        "        if Finding.CLEAN in (pod.lives, pod.has_container) and not pods_are_sure(said):\n",
        "        if pod is None:\n",
    ),
    Rule(
        "4.2 no Pod is clean by sources in doubt",
        _WITNESS,
        "return Finding.UNKNOWN if finding is Finding.CLEAN and not self._is_sure else finding",
        "return finding",
    ),
    Rule(
        "4.2 without a statement nothing is known",
        _WITNESS,
        "_UNSAID: Final = (Finding.UNKNOWN, Finding.UNKNOWN)",
        "_UNSAID: Final = (Finding.CLEAN, Finding.CLEAN)",
    ),
    Rule(
        "4.2 of a kubelet in doubt nothing is told",
        _WITNESS,
        "    if source.state is not SourceState.READ or source.doubts or sight is None:\n",
        "    if sight is None:\n",
    ),
    Rule(
        "4.2 what cannot be told leaves doubt",
        _HOST_WITNESS,
        "    return Finding.UNKNOWN if untold and finding is Finding.CLEAN else finding\n",
        "    return finding\n",
    ),
    Rule(
        "4.2 more Pods or containers than are told leave doubt",
        _HOST_WITNESS,
        '        found.append(Doubt(WitnessDoubt.TOO_MANY, ""))\n',
        "        pass\n",
    ),
    Rule(
        "4.2 a statement about other vNPUs is none",
        _CLIENT,
        "        if {sight.vnpu for sight in answer.statement.vnpus} != set(vnpus) or (",
        "        if (",
    ),
)

_INVENTORIES: Final = (
    _fault("4.1 a chip that may not be listed right is report-only", "host.is_doubtful((chip.card, chip.device))"),
    Rule("4.1 a chip that resets is report-only", _CHIPS, "    if resetting is not None:\n", "    if chip is None:\n"),
    Rule(
        "4.1 a chip that cannot be read is report-only",
        _CHIPS,
        "    if any(problem.aspect is Aspect.TYPE for problem in chip.problems):\n",
        "    if chip is None:\n",
    ),
    Rule(
        "4.1 a chip without a physical id of its own is report-only",
        _CHIPS,
        "    phy = host.own_phy(chip)\n    if phy is None:\n",
        "    phy = host.own_phy(chip)\n    if chip is None:\n",
    ),
    Rule("4.1 a physical id of two chips is nobody's", _CHIPS, " and self.phys[chip.phy] == 1 else None", " else None"),
    Rule(
        "4.1 a chip whose die id cannot be read is report-only",
        _CHIPS,
        "        yield Fault(Reason.NPU_DIE_UNKNOWN, _why(chip, Aspect.DIE))\n        return",
        "        return",
    ),
    Rule("4.1 a die id of two chips is nobody's", _CHIPS, "    if host.dies[chip.die] > 1:\n", "    if chip is None:\n"),
    Rule(
        "4.1 a physical id with another die is another chip",
        _CHIPS,
        "    if first != chip.die:\n        yield Fault(Reason.NPU_DIE_CHANGED",
        "    if chip is None:\n        yield Fault(Reason.NPU_DIE_CHANGED",
    ),
    Rule(
        "4.1 a chip whose health is not known is report-only",
        _CHIPS,
        "        yield Fault(Reason.NPU_HEALTH_UNKNOWN, _why(chip, Aspect.HEALTH))\n",
        "        pass\n",
    ),
    Rule(
        "4.1 an unhealthy chip is report-only",
        _CHIPS,
        '        yield Fault(Reason.NPU_UNHEALTHY, f"health {chip.health}")\n',
        "        pass\n",
    ),
    Rule(
        "4.1 a chip whose vNPUs cannot be listed is report-only",
        _CHIPS,
        "            yield Fault(Reason.NPU_VNPUS_UNKNOWN, _why(chip, Aspect.VNPUS))\n",
        "            pass\n",
    ),
    Rule("4.1 a chip that lists a vNPU twice is report-only", _CHIPS, "    if twice:\n", "    if chip is None:\n"),
    Rule("4.1 a chip that lists an id outside its window is report-only", _CHIPS, "    if foreign:\n", "    if chip is None:\n"),
    Rule(
        "4.1 a card that is not vouched for is unknown",
        _SNAPSHOT,
        "doubtful = {card.name for card in picture.cards if not _is_vouched_for(card)}",
        "doubtful = set[str]()",
    ),
    Rule(
        "4.1 cards that may be missing make the node unknown",
        _SNAPSHOT,
        "            self._ledger.take_look(Look.NPUS_IN_DOUBT, Source.NPUS)\n",
        "            pass\n",
    ),
    Rule(
        "4.1 a vNPU that two chips list is nobody's",
        _INVENTORY,
        "        if len(self._host.listed_by[vnpu.vdev]) > 1:\n",
        "        if vnpu is None:\n",
    ),
    Rule(
        "4.1 a function that does not fit the id is a fault",
        _INVENTORY,
        "        if vnpu.vfid is None or vnpu.vfid != vfid_of(vnpu.vdev):\n",
        "        if vnpu is None:\n",
    ),
    Rule(
        "4.1 a template that cannot be read is a fault",
        _INVENTORY,
        "        if vnpu.template is None or not TEMPLATE.fullmatch(vnpu.template):\n",
        "        if vnpu is None:\n",
    ),
    Rule(
        "4.1 a use that is not told is a fault",
        _INVENTORY,
        "return Fault(Reason.VNPU_USE_UNKNOWN if vnpu.in_use is None else Reason.OK)",
        "return Fault(Reason.OK)",
    ),
    Rule("4.1 a node that is not the vNPU's is a fault", _INVENTORY, "        if fault is not None:\n            return fault\n", ""),
    Rule("4.1 what may only not have been listed is kept", _INVENTORY, "        self._keep_the_unlisted()\n", ""),
    Rule(
        "4.1 while the broker says nothing what was seen is in doubt",
        _INVENTORY,
        "complaints.findings(), in_doubt=True), memory",
        "complaints.findings()), memory",
    ),
    Rule(
        "4.1 a function that is not given follows from the id",
        _SURVEY,
        "        vfid=derived if answer.vfid is None else answer.vfid,\n",
        "        vfid=answer.vfid,\n",
    ),
    Rule("4.1 a boot tells a vNPU from another", _MEMORY, "        rest = (self.boot_id, self.vfid,", "        rest = (self.vfid,"),
    Rule(
        "4.1 a function tells a vNPU from another",
        _MEMORY,
        "rest = (self.boot_id, self.vfid, self.inode",
        "rest = (self.boot_id, self.inode",
    ),
    Rule("4.1 a node's inode tells a vNPU from another", _MEMORY, "self.vfid, self.inode, self.sequence", "self.vfid, self.sequence"),
    Rule(
        "4.1 a remove and add in between make another vNPU",
        _MEMORY,
        "self.inode, self.sequence, self.losses, self.goings)",
        "self.inode, self.losses, self.goings)",
    ),
    Rule("4.1 lost events make another vNPU", _MEMORY, "self.sequence, self.losses, self.goings)", "self.sequence, self.goings)"),
    Rule("4.1 an id that was missing is another vNPU's", _MEMORY, "self.losses, self.goings)", "self.losses)"),
    Rule(
        "4.1 a template tells a vNPU from another",
        _MEMORY,
        "map(str, (self.die, self.vdev, self.template, *rest))",
        "map(str, (self.die, self.vdev, *rest))",
    ),
    Rule(
        "4.1 another vNPU of an id is seen first now",
        _INVENTORY,
        "        if before is not None and before.marks != known:\n            before = None  # another one of this id\n",
        "",
    ),
)

RULES: Final = (*_WHOLE, *_CONTAINERS, *_PROCESSES, *_TOLD, *_INVENTORIES)
