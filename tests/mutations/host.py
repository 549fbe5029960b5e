"""DESIGN 4.2: what bundles, control groups, descriptors and /proc/uda show of this host."""

from typing import Final

from mutations.files import BUNDLE, BUNDLES, CGROUPS, DESCRIPTORS, EVIDENCE, LIFE, LOCAL, UDA
from mutations.rule import Rule

_CONTAINERS: Final = (
    Rule("4.2 bundles name their Pod", BUNDLES, "            for uid in facts.pod_uids:\n", "            for uid in ():\n"),
    Rule("4.2 a bundle's device node owns its vNPU", BUNDLE, '        vdevs |= _vdev_of(_text(entry.get("path")))\n', ""),
    Rule(
        "4.2 a bundle's device number owns its vNPU",
        BUNDLES,
        "            for number in facts.devices:\n",
        "            for number in ():\n",
    ),
    Rule("4.2 a bundle's poststop hook owns its vNPU", BUNDLE, "    vdevs = {hook.vdev for hook in hooks}\n", "    vdevs = set[int]()\n"),
    Rule("4.2 a bundle's mount owns its vNPU", BUNDLE, "        vdevs |= _vdev_of(source)\n", ""),
    Rule(
        "4.2 a bundle's rule for one number owns its vNPU",
        BUNDLE,
        "            devices.add(DeviceNumber(major, minor))\n    for mount",
        "            pass\n    for mount",
    ),
    Rule(
        "4.2 a bundle's environment names cards",
        BUNDLE,
        "            cards = None if more is None else cards | more\n",
        "            pass\n",
    ),
    Rule("4.2 a bundle's environment asks for a vNPU", BUNDLE, "            template = text or template\n", "            pass\n"),
    Rule(
        "4.2 a bundle that is odd is refused whole",
        BUNDLES,
        "                doubt = Doubt(BundleDoubt.BUNDLE_MALFORMED, config)\n",
        "                pass\n",
    ),
    Rule(
        "4.2 a bundle that cannot be read is a doubt",
        BUNDLES,
        "            doubt = Doubt(BundleDoubt.BUNDLE_UNREADABLE, config, error.errno or 0)\n",
        "            del error\n",
    ),
    Rule(
        "4.2 a container without a configuration is a doubt",
        BUNDLES,
        "                doubt = Doubt(BundleDoubt.NO_CONFIG, config)\n",
        "                pass\n",
    ),
    Rule(
        "4.2 a root that cannot be read is a doubt",
        BUNDLES,
        "            self._doubt(BundleDoubt.ROOT_UNREADABLE, root.path, error)\n            return SeenRoot(root, SourceState.UNREADABLE)",
        "            return SeenRoot(root, SourceState.NOT_PRESENT)",
    ),
    Rule(
        "4.2 a doubt about bundles leaves a vNPU unknown",
        BUNDLES,
        "            return Finding.HELD\n        return Finding.UNKNOWN if self.doubts else Finding.CLEAN\n",
        "            return Finding.HELD\n        return Finding.CLEAN\n",
    ),
    Rule(
        "4.2 a doubt about bundles leaves a Pod unknown",
        BUNDLES,
        "return Finding.UNKNOWN if self.doubts or any(map(counts, self._without_uid)) else Finding.CLEAN",
        "return Finding.UNKNOWN if any(map(counts, self._without_uid)) else Finding.CLEAN",
    ),
    Rule(
        "4.2 a container of no known Pod leaves every Pod unknown",
        BUNDLES,
        "Finding.UNKNOWN if self.doubts or any(map(counts, self._without_uid)) else",
        "Finding.UNKNOWN if self.doubts else",
    ),
    Rule(
        "4.2 for candidates a sandbox is no container",
        BUNDLES,
        "            return not (containers_only and bundle.is_sandbox)\n",
        "            return True\n",
    ),
    Rule(
        "4.2 of which the type is not said is a container",
        BUNDLE,
        "    if not found:\n        return ContainerType.UNKNOWN\n",
        "    if not found:\n        return ContainerType.SANDBOX\n",
    ),
    Rule(
        "4.2 only a container that was seen to have ended does not live",
        BUNDLES,
        "if bundle.life is not Life.STOPPED and bundle.facts is not None)",
        "if bundle.life is Life.LIVE and bundle.facts is not None)",
    ),
    Rule(
        "4.2 from where processes are hidden nobody is seen to have ended",
        BUNDLES,
        "if first is not None and self._sees_all else Life.UNKNOWN",
        "if first is not None else Life.UNKNOWN",
    ),
    Rule("4.2 the id of a process that came later is not the container's", LIFE, " or (first.started and first.started != started):", ":"),
    Rule(
        "4.2 a process of which nothing can be told counts as living",
        LIFE,
        "    except OSError:\n        return Life.UNKNOWN\n",
        "    except OSError:\n        return Life.STOPPED\n",
    ),
    Rule(
        "4.2 bundles of an id file from before the configuration are of an earlier run",
        BUNDLES,
        "        if os.stat(path, follow_symlinks=False).st_mtime_ns < written_ns:\n            return None\n",
        "",
    ),
    Rule(
        "4.2 the root of the Node's own runtime must be there",
        LOCAL,
        "    state = bundles.state_of(runtime)\n",
        "    state = SourceState.READ\n",
    ),
    Rule(
        "4.2 a runtime that is not known is a doubt",
        LOCAL,
        "        return [Doubt(LocalDoubt.RUNTIME_UNKNOWN, version)]\n",
        "        return []\n",
    ),
    Rule(
        "4.2 a container without a bundle is a doubt",
        LOCAL,
        "*_runtime_doubts(bundles, container_runtime_version), *_without_bundle(cgroups, bundles)]",
        "*_runtime_doubts(bundles, container_runtime_version)]",
    ),
    Rule(
        "4.2 a doubt between the sources leaves a vNPU unknown",
        LOCAL,
        "        if bundles is Finding.CLEAN and self.doubts:\n",
        "        if bundles is None:\n",
    ),
    Rule(
        "4.2 a doubt between the sources leaves a Pod unknown",
        LOCAL,
        "            Finding.UNKNOWN if self.doubts else Finding.CLEAN,\n        )\n        return",
        "        )\n        return",
    ),
    Rule(
        "4.2 a Pod's control group shows that it lives",
        LOCAL,
        "            self.cgroups.pod_finding(uid, self.bundles.sandboxes(uid) if containers_only else None),\n",
        "",
    ),
    Rule(
        "4.2 for candidates a control group with only the sandbox does not count",
        LOCAL,
        "self.bundles.sandboxes(uid) if containers_only else None)",
        "None)",
    ),
    Rule(
        "4.2 control groups that are not mounted are a doubt",
        CGROUPS,
        "            return CgroupScan(SourceState.UNREADABLE, doubts=(doubt,))\n",
        "            return CgroupScan(SourceState.NOT_PRESENT)\n",
    ),
    Rule(
        "4.2 a control group that cannot be read is a doubt",
        CGROUPS,
        "            self._doubts.append(Doubt(CgroupDoubt.GROUP_UNREADABLE, path, error.errno or 0))\n",
        "            del error\n",
    ),
    Rule(
        "4.2 what a user makes in its own control groups is not seen",
        CGROUPS,
        "            return group.stat(follow_symlinks=False).st_uid in (0, self._owner)\n",
        "            return True\n",
    ),
    Rule(
        "4.2 a container may own its control group",
        CGROUPS,
        "        if _CONTAINER.fullmatch(group.name):\n            return True\n",
        "",
    ),
    Rule(
        "4.2 a doubt about control groups leaves a Pod unknown",
        CGROUPS,
        "        return Finding.UNKNOWN if self.doubts else Finding.CLEAN\n",
        "        return Finding.CLEAN\n",
    ),
    Rule(
        "4.2 held outweighs unknown, and unknown clean",
        EVIDENCE,
        "for finding in (Finding.HELD, Finding.UNKNOWN) if finding in found), Finding.CLEAN)",
        "for finding in (Finding.HELD,) if finding in found), Finding.CLEAN)",
    ),
)

_PROCESSES: Final = (
    Rule(
        "4.2 an open descriptor holds a device",
        DESCRIPTORS,
        "                        self._hold(task, number, Trace.DESCRIPTOR)\n",
        "                        pass\n",
    ),
    Rule(
        "4.2 paths of mapped files are bounded in all",
        DESCRIPTORS,
        "                self._mapped_paths += len(file)\n",
        "",
    ),
    Rule(
        "4.2 mappings are not read beyond the time",
        DESCRIPTORS,
        "                self._require_time()\n                lines, newline",
        "                lines, newline",
    ),
    Rule(
        "4.2 a mapping holds a device", DESCRIPTORS, "                self._hold(task, number, Trace.MAPPING)\n", "                pass\n"
    ),
    Rule(
        "4.2 physical cards and manager nodes do not count",
        DESCRIPTORS,
        "                    if number in self._numbers:\n",
        "                    if number is not None:\n",
    ),
    Rule(
        "4.2 a table that cannot be read leaves doubt",
        DESCRIPTORS,
        "unread = {task.pid: self._failed[task][1] for task in reversed(alive) if task not in self._read}",
        "unread = dict[int, int]()",
    ),
    Rule(
        "4.2 who was born during the scan is looked at too",
        DESCRIPTORS,
        "        for turn in itertools.count():\n            alive = self._tasks()",
        "        for turn in itertools.count():\n            alive = [] if turn else self._tasks()",
    ),
    Rule(
        "4.2 threads with tables of their own are looked at",
        DESCRIPTORS,
        "                if threads > 1:\n",
        "                if threads < 0:\n",
    ),
    Rule(
        "4.2 a scan that never settles leaves doubt",
        DESCRIPTORS,
        "        return [Doubt(ScanDoubt.UNSETTLED, f\"new processes keep appearing{latest and ', such as '}{latest}\")]\n",
        "        return []\n",
    ),
    Rule(
        "4.2 a scan whose time is over leaves doubt",
        DESCRIPTORS,
        "            raise _LimitError(ScanDoubt.OUT_OF_TIME)\n",
        "            pass\n",
    ),
    Rule(
        "4.2 from where processes are hidden nothing is clean",
        DESCRIPTORS,
        "        doubts = [blind] if blind is not None else []\n",
        "        doubts = list[Doubt]()\n",
    ),
    Rule(
        "4.2 a device that was not asked about is unknown", DESCRIPTORS, "if self.doubts or number not in self.numbers:", "if self.doubts:"
    ),
    Rule(
        "4.2 a doubt leaves a device unknown",
        DESCRIPTORS,
        "if self.doubts or number not in self.numbers:",
        "if number not in self.numbers:",
    ),
    Rule(
        "4.2 /proc/uda shows who uses a vNPU",
        UDA,
        "        if any(device.spaces for device in devices) or any(vdev in space.devices for space in self.spaces):\n",
        "        if not vdev:\n",
    ),
    Rule(
        "4.2 a /proc/uda that does not exist is no doubt",
        UDA,
        "        return UdaScan(SourceState.NOT_PRESENT)\n",
        '        return UdaScan(SourceState.UNREADABLE, doubts=(Doubt(UdaDoubt.UDA_MALFORMED, ""),))\n',
    ),
    Rule(
        "4.2 a /proc/uda that cannot be read is a doubt",
        UDA,
        "            return UdaScan(SourceState.UNREADABLE, doubts=(Doubt(UdaDoubt.UDA_UNREADABLE, path, error.errno or 0),))\n",
        "            return UdaScan(SourceState.NOT_PRESENT)\n",
    ),
    Rule(
        "4.2 a /proc/uda that is not understood is a doubt",
        UDA,
        "    except UdaError:\n        return UdaScan(SourceState.UNREADABLE, doubts=(Doubt(UdaDoubt.UDA_MALFORMED, directory),))",
        "    except UdaError:\n        return UdaScan(SourceState.NOT_PRESENT)",
    ),
    Rule("4.2 a vNPU that the driver's list lacks is unknown", UDA, " or (self.state is SourceState.READ and not devices):", ":"),
    Rule(
        "4.2 a line of /proc/uda that is not understood leaves doubt",
        UDA,
        "if self.doubts or not all(device.is_whole for device in devices) or",
        "if self.doubts or",
    ),
)

RULES: Final = (*_CONTAINERS, *_PROCESSES)
