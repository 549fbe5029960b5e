"""The keys of the configuration: where each stands, what it may be, and what it is for. Pure.

`KEYS` is the one schema: the loader (devward.config), `devwardd --print-config` and devward.toml(5) follow it.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from devward import names
from devward.model import CdiMode, ClusterRead, DeviceKind, Manage, NpuDevices, ReclaimMode, WithdrawPolicy
from devward.plugin import settings as plugin
from devward.plugin.settings import Injection
from devward.text import printable

UINT32_MAXIMUM = (1 << 32) - 1
#: The reference plugin's fallback for an owner that is not a number of 32 bits: "nobody".
FALLBACK_OWNER = 65534
#: What stands in a file for a value that devward finds out by itself.
AUTO = "auto"
#: What stands in a file for every card.
ALL = "all"


class WrongValue(ValueError):
    """A value that is refused; the text is the reason, without file and key."""


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key: where it stands, what it may be and what it is for."""

    section: str
    name: str
    default: object
    #: Turns a TOML value into the setting, or raises WrongValue.
    parse: Callable[[object], object]
    #: What the value may be, for people: type, bounds and unit.
    domain: str
    doc: str
    #: The key keeps the reference plugin's meaning: a wrong value is replaced by this one, with a warning.
    fallback: object = None

    @property
    def path(self) -> str:
        """The key as it is written in messages: `section.name`."""
        return f"{self.section}.{self.name}"


def _integer(minimum: int, maximum: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongValue(f"must be a whole number, is {_shown(value)}")
        if not minimum <= value <= maximum:
            raise WrongValue(f"must be from {minimum} to {maximum}, is {value}")
        return value

    return parse


def _choice(choices: type[StrEnum]) -> Callable[[object], object]:
    def parse(value: object) -> object:
        if not isinstance(value, str) or value not in list(choices):
            raise WrongValue(f"must be one of {', '.join(choices)}, is {_shown(value)}")
        return choices(value)

    return parse


def _word(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise WrongValue(f"must be one of {', '.join(words)}, is {_shown(value)}")
        return value

    return parse


def _path(value: object) -> str:
    if not isinstance(value, str):
        raise WrongValue(f"must be a text, is {_shown(value)}")
    if not value.startswith("/") or "\0" in value or os.path.normpath(value) != value or value == "/" or value.startswith("//"):
        raise WrongValue(f"must be an absolute path without '.', '..' or a trailing slash, is {_shown(value)}")
    return value


def _path_or_auto(value: object) -> str:
    if value == AUTO:
        return ""
    if not isinstance(value, str) or not value.startswith("/"):
        raise WrongValue(f'must be "{AUTO}" or an absolute path, is {_shown(value)}')
    return _path(value)


def _node_or_auto(value: object) -> str:
    if value == AUTO:
        return ""
    if not isinstance(value, str) or not names.NODE_NAME.fullmatch(value):
        raise WrongValue(
            f'must be "{AUTO}" or the name of a Node: small letters, digits, "-" and ".", 253 characters at most, is {_shown(value)}'
        )
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise WrongValue(f"must be true or false, is {_shown(value)}")
    return value


def _paths(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= 16:
        raise WrongValue(f"must be a list of 1 to 16 paths, is {_shown(value)}")
    paths = tuple(_path(item) for item in value)
    if len(set(paths)) != len(paths):
        raise WrongValue("names a directory twice")
    return paths


def _devices(value: object) -> tuple[DeviceKind, ...] | None:
    if value == AUTO:
        return None
    if not isinstance(value, list):
        raise WrongValue(f'must be "{AUTO}" or a list of device nodes, is {_shown(value)}')
    known = {f"{names.DEVICE_DIRECTORY}/{kind}": kind for kind in DeviceKind}
    for item in value:
        if not isinstance(item, str) or item not in known:
            raise WrongValue(f"knows the device nodes {', '.join(known)}, not {_shown(item)}")
    if len(set(value)) != len(value):
        raise WrongValue("names a device twice")
    return tuple(known[item] for item in value)


def _cards(value: object) -> tuple[str, ...] | None:
    if value == ALL:
        return None
    if not isinstance(value, list):
        raise WrongValue(f'must be "{ALL}" or a list of names and die ids of cards, is {_shown(value)}')
    # Of NPUs nothing is loaded before it is needed.
    from devward.npu.numbering import CARD_NAME, DIE

    cards = []
    for item in value:
        die = item.upper() if isinstance(item, str) and item.isascii() else ""
        if isinstance(item, str) and CARD_NAME.fullmatch(item):
            cards.append(item)
        elif DIE.fullmatch(die):
            cards.append(die)
        else:
            raise WrongValue(f"must name cards as p007, or by die id as five groups of eight hexadecimal digits, not {_shown(item)}")
    if len(set(cards)) != len(cards):
        raise WrongValue("names a card twice")
    return tuple(cards)


def _resource(value: object) -> str:
    if not isinstance(value, str):
        raise WrongValue(f"must be a text, is {_shown(value)}")
    problem = plugin.resource_problem(value)
    if problem:
        raise WrongValue(f"must be the name of an extended resource, is {_shown(value)}: {problem}")
    return value


def _plugin_directory(value: object) -> str:
    path = _path(value)
    problem = plugin.directory_problem(path)
    if problem:
        raise WrongValue(f"{problem}; it is {_shown(value)}")
    return path


def _offered(value: object) -> tuple[DeviceKind, ...] | None:
    devices = _devices(value)
    if devices == ():
        raise WrongValue(f'must be "{AUTO}" or a list with a device in it; to offer none, set enabled = false')
    return devices


def _mode(value: object) -> int | None:
    if value == "any":
        return None
    if not isinstance(value, str) or len(value) not in (3, 4) or not all(digit in "01234567" for digit in value):
        raise WrongValue(f'must be "any" or an octal mode such as "0660", is {_shown(value)}')
    return int(value, 8)


def _owner(word: str) -> Callable[[object], int | None]:
    def parse(value: object) -> int | None:
        if value == word:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= UINT32_MAXIMUM:
            raise WrongValue(f'must be "{word}" or a number from 0 to {UINT32_MAXIMUM}, is {_shown(value)}')
        return value

    return parse


def _shown(value: object) -> str:
    return printable(repr(value), 80)


KEYS: tuple[Key, ...] = (
    Key(
        "hypervisor", "devices", "auto", _devices, '"auto" or a list of "/dev/kvm", "/dev/mshv"',
        "Which device nodes to watch. auto: each from the moment that it is first seen. A node that is named here is watched, and shown"
        " as missing, from the start. An empty list watches none.",
    ),
    Key(
        "hypervisor", "probe_interval", 300, _integer(10, 86400), "seconds, 10 to 86400",
        "How often a usable device is checked again though nothing happened to it. CheckAllocation checks at once, whatever this says.",
    ),
    Key(
        "hypervisor", "retry_interval", 30, _integer(1, 3600), "seconds, 1 to 3600",
        "How often a device that is present but not usable is checked again, at the longest; the first retries come sooner.",
    ),
    Key(
        "hypervisor", "expected_mode", "any", _mode, '"any" or an octal mode such as "0660"',
        "The permission bits that the device nodes should have. A difference is reported, never changed.",
    ),
    Key(
        "hypervisor", "expected_uid", "any", _owner("any"), '"any" or 0 to 4294967295',
        "The owner that the device nodes should have. A difference is reported, never changed.",
    ),
    Key(
        "hypervisor", "expected_gid", "any", _owner("any"), '"any" or 0 to 4294967295',
        "The group that the device nodes should have, as a number: names need not match it. A difference is reported, never changed.",
    ),
    Key(
        "cdi", "mode", "repair", _choice(CdiMode), "repair, observe or off",
        "repair: keep the owned CDI files true. observe: report differences and write nothing. off: do not look at them."
        " SetCdiMode overrides this until it is called again, over a restart too.",
    ),
    Key("cdi", "directory", names.CDI_DIRECTORY, _path, "an absolute path", "The directory of the owned CDI files."),
    Key(
        "cdi", "engine_dirs", list(names.CDI_ENGINE_DIRECTORIES), _paths, "a list of 1 to 16 absolute paths",
        "The directories that the container engines of this host read, from the lowest priority to the highest.",
    ),
    Key(
        "cdi", "device_uid", FALLBACK_OWNER, _integer(0, UINT32_MAXIMUM), "0 to 4294967295",
        "The owner of the device node inside a container. A value that is not such a number is replaced by 65534, with a warning.",
        fallback=FALLBACK_OWNER,
    ),
    Key(
        "cdi", "device_gid", FALLBACK_OWNER, _integer(0, UINT32_MAXIMUM), "0 to 4294967295",
        "The group of the device node inside a container. A value that is not such a number is replaced by 65534, with a warning.",
        fallback=FALLBACK_OWNER,
    ),
    Key(
        "cdi", "withdraw", "identity", _choice(WithdrawPolicy), "identity, usability or never",
        "When a device leaves its CDI file: when its node is gone or is not the device (identity), also when it cannot be used (usability),"
        " or never.",
    ),
    Key(
        "cdi", "settle_time", 10, _integer(0, 600), "seconds, 0 to 600",
        "How long a reason to withdraw a device must last before the device leaves its CDI file.",
    ),
    Key(
        "cdi", "contested_after", 5, _integer(1, 1_000_000), "repairs in 10 seconds, 1 to 1000000",
        "From how many repairs of one file in 10 seconds on it counts as contested and repairs are spaced out.",
    ),
    Key(
        "npu", "devices", "auto", _choice(NpuDevices), "auto or off",
        "auto: watch the Ascend NPUs of this host from the moment that the first node of one is seen. off: do not look at them, and never"
        " ask for the vendor's library.",
    ),
    Key(
        "npu", "device_uid", "user", _owner("user"), '"user" or 0 to 4294967295',
        "The owner of the device nodes of NPUs inside a container. user: the user that the container runs as.",
    ),
    Key(
        "npu", "device_gid", "user", _owner("user"), '"user" or 0 to 4294967295',
        "The group of the device nodes of NPUs inside a container. user: that of the user that the container runs as.",
    ),
    Key(
        "cluster", "read", "auto", _choice(ClusterRead), "auto or off",
        "auto: on a host with NPUs, read from the kubelet, its checkpoint and the API server who owns them. Nothing is ever written there."
        " off: ask nobody; who owns a vNPU is then never known.",
    ),
    Key(
        "cluster", "kubeconfig", AUTO, _path_or_auto, '"auto" or an absolute path',
        "Where the API server is and with which credentials it is asked. auto: the kubelet's own kubeconfig. The service sees nothing below"
        " /home, /root and /run/user, and a /tmp of its own.",
    ),
    Key(
        "cluster", "node_name", AUTO, _node_or_auto, '"auto" or the name of a Node',
        "The Node that this host is. auto: the one in the kubelet's client certificate. Needed where the kubeconfig has a token, or another"
        " certificate than the kubelet's.",
    ),
    Key(
        "cluster", "allow_exec", default=False, parse=_flag, domain="true or false",
        doc="Whether a program that the kubeconfig names for its credentials may be started, inside the service's sandbox. Such a"
        " kubeconfig is refused otherwise.",
    ),
    Key(
        "reclaim", "mode", "enforce", _choice(ReclaimMode), "enforce, observe or off",
        "enforce: destroy vNPUs that nobody owns. observe: judge them, wait and tell, and destroy nothing. off: only show the"
        " verdicts."
        " SetReclaimMode overrides this until it is called again, over a restart too.",
    ),
    Key(
        "reclaim", "grace", 600, _integer(1, 604_800), "seconds, 1 to 604800",
        "How long nobody must have had a vNPU before it may be destroyed.",
    ),
    Key(
        "reclaim", "confirmations", 3, _integer(1, 1000), "1 to 1000",
        "How many looks in a row must have shown that. Each rests on evidence of its own, taken anew.",
    ),
    Key(
        "reclaim", "interval", 60, _integer(1, 3600), "seconds, 1 to 3600",
        "How long after a look the next one can count at the earliest, and how often it is looked by itself.",
    ),
    Key(
        "reclaim", "cards", ALL, _cards, '"all" or a list of names such as "p007", or of die ids',
        "The NPUs whose vNPUs may be destroyed. An empty list means none. The others are only observed.",
    ),
    Key(
        "reclaim", "manage", "hami", _choice(Manage), "hami or all",
        "hami: only vNPUs with a template of HAMi's, on NPUs that HAMi hands out, are destroyed. all: others too. Every other evidence is"
        " wanted all the same.",
    ),
    Key(
        "reclaim", "per_card", 1, _integer(1, 16), "vNPUs of a cycle, 1 to 16",
        "How many vNPUs of one NPU a cycle may destroy. An attempt counts, whatever came of it.",
    ),
    Key("reclaim", "per_node", 4, _integer(1, 64), "vNPUs of a cycle, 1 to 64", "How many vNPUs a cycle may destroy in all."),
    Key("reclaim", "per_hour", 16, _integer(1, 1024), "vNPUs of an hour, 1 to 1024", "How many vNPUs may be destroyed in an hour."),
    Key(
        "reclaim", "kill_switch", names.KILL_SWITCH, _path, "an absolute path",
        "As long as anything is at this path, be it an empty file, nothing is destroyed; nor where that cannot be told. It is looked at"
        " right before each destruction.",
    ),
    Key(
        "device_plugin", "enabled", default=False, parse=_flag, domain="true or false",
        doc="Whether to offer hypervisor devices to the kubelet, as a device plugin. Needs python3-grpcio and python3-protobuf, and a"
        " kubelet on this host.",
    ),
    Key(
        "device_plugin", "resource", names.HYPERVISOR_CDI_KIND, _resource, "DOMAIN/NAME",
        "The name of the resource that Pods ask for.",
    ),
    Key(
        "device_plugin", "slots", plugin.DEFAULT_SLOTS, _integer(1, plugin.MAXIMUM_SLOTS), f"containers, 1 to {plugin.MAXIMUM_SLOTS}",
        "How many containers of this host may have the device at the same time. The device itself has no such limit, but the kubelet"
        f" counts, and writes every slot down whenever one changes: more than {plugin.MANY_SLOTS} are warned of.",
    ),
    Key(
        "device_plugin", "directory", plugin.DIRECTORY, _plugin_directory, "an absolute path of 80 bytes at most",
        "Where the kubelet meets its device plugins. It does not follow the kubelet's --root-dir. The service may write below"
        " /var/lib/kubelet only; another directory needs ReadWritePaths= in a drop-in.",
    ),
    Key(
        "device_plugin", "devices", AUTO, _offered, '"auto" or a list of "/dev/kvm", "/dev/mshv"',
        "Which devices to offer. auto: /dev/mshv if this host has it, else /dev/kvm.",
    ),
    Key(
        "device_plugin", "injection", "cdi", _choice(Injection), "cdi, annotations or device-spec",
        "How the device gets into the container. cdi: by its CDI name, for kubelets from 1.28 on; older ones drop it without a word."
        " annotations: by its CDI name in an annotation, which container engines read whatever the kubelet's age. device-spec: as a plain"
        " device node without CDI, with the node's own owner.",
    ),
    Key(
        "device_plugin", "take_over", default=False, parse=_flag, domain="true or false",
        doc="Whether to take the resource from another device plugin of this host that serves it. Otherwise that plugin is named, and left"
        " alone.",
    ),
    Key(
        "metrics", "enabled", default=False, parse=_flag, domain="true or false",
        doc="Whether to write a file of metrics for the textfile collector of Prometheus' node_exporter, devward.prom; devwardd(8) lists"
        " them. The service needs a drop-in to write there, metrics.conf among the examples. When this becomes false the file is removed.",
    ),
    Key(
        "metrics", "directory", names.METRICS_DIRECTORY, _path, "an absolute path",
        "The directory of the metrics file, node_exporter's --collector.textfile.directory. It must exist, and no part of the path may be a"
        " symbolic link.",
    ),
    Key(
        "metrics", "interval", 30, _integer(1, 120), "seconds, 1 to 120",
        "How often the metrics file is written. Its age tells that devward does not write any more; the example alert wants five minutes.",
    ),
    Key(
        "log", "level", "info", _word("debug", "info", "notice", "warning", "err"), "debug, info, notice, warning or err",
        "The least important messages that are logged. Audit records are always written.",
    ),
    Key("log", "journal_socket", names.JOURNAL_SOCKET, _path, "an absolute path", "The journal's socket. Takes effect at a restart."),
)  # fmt: skip
