"""The configuration: /etc/devward/devward.toml and conf.d/*.toml, each key typed and bounded.

Later files win key by key, in the order of their names. A file that is wrong in any way is refused as a whole, with file, key and reason;
nothing of it is applied. What the keys may be stands in devward.config_keys.
"""

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from devward import names
from devward.config_keys import AUTO, KEYS, Key, WrongValue
from devward.errors import ConfigError
from devward.model import CdiMode, ClusterRead, DeviceKind, Finding, Manage, NpuDevices, ReclaimMode, WithdrawPolicy
from devward.plugin import settings as plugin
from devward.plugin.settings import PluginSettings
from devward.reasons import Reason
from devward.text import printable

MAXIMUM_FILE_SIZE = 1 << 20
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class HypervisorConfig:
    """Section `hypervisor`; intervals in seconds, `devices` None for auto, expectations None for any."""

    devices: tuple[DeviceKind, ...] | None
    probe_interval: int
    retry_interval: int
    expected_mode: int | None
    expected_uid: int | None
    expected_gid: int | None


@dataclass(frozen=True, slots=True)
class CdiConfig:
    """Section `cdi`; `settle_time` in seconds, `contested_after` in repairs per 10 seconds."""

    mode: CdiMode
    directory: str
    engine_dirs: tuple[str, ...]
    device_uid: int
    device_gid: int
    withdraw: WithdrawPolicy
    settle_time: int
    contested_after: int


@dataclass(frozen=True, slots=True)
class NpuConfig:
    """Section `npu`; owners None for the container's user."""

    devices: NpuDevices = NpuDevices.AUTO
    device_uid: int | None = None
    device_gid: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Section `cluster`; `kubeconfig` and `node_name` are empty for auto."""

    read: ClusterRead = ClusterRead.AUTO
    kubeconfig: str = ""
    node_name: str = ""
    allow_exec: bool = False


@dataclass(frozen=True, slots=True)
class ReclaimConfig:
    """Section `reclaim`; `grace` and `interval` in seconds, `cards` names and die ids in capitals, or None for all."""

    mode: ReclaimMode = ReclaimMode.ENFORCE
    grace: int = 600
    confirmations: int = 3
    interval: int = 60
    cards: tuple[str, ...] | None = None
    manage: Manage = Manage.HAMI
    per_card: int = 1
    per_node: int = 4
    per_hour: int = 16
    kill_switch: str = names.KILL_SWITCH


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Section `metrics`; `interval` in seconds."""

    enabled: bool = False
    directory: str = names.METRICS_DIRECTORY
    interval: int = 30


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Section `log`."""

    level: str
    journal_socket: str


@dataclass(frozen=True, slots=True)
class Config:
    """A complete, valid configuration."""

    hypervisor: HypervisorConfig
    cdi: CdiConfig
    npu: NpuConfig
    cluster: ClusterConfig
    reclaim: ReclaimConfig
    device_plugin: PluginSettings
    metrics: MetricsConfig
    log: LogConfig


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, where each value came from (a file, or `default`), and what to tell the administrator about it."""

    config: Config
    sources: Mapping[str, str]
    warnings: tuple[Finding, ...]


def load(
    main: str = names.CONFIG_FILE, dropin_directory: str | None = names.CONFIG_DROPIN_DIRECTORY, *, required: bool = False
) -> LoadedConfig:
    """Read and check the configuration.

    A missing main file means defaults, unless `required`. Raises ConfigError that lists every problem found, each with its file and key.
    """
    files = ([main] if required or os.path.lexists(main) else []) + _dropins(dropin_directory)
    return build([(path, _read(path)) for path in files])


def build(documents: list[tuple[str, bytes]]) -> LoadedConfig:
    """Join documents, as (file name, content), lowest priority first. Raises ConfigError that lists every problem."""
    schema = {key.path: key for key in KEYS}
    values: dict[str, object] = {key.path: key.parse(key.default) for key in KEYS}
    sources = dict.fromkeys(values, DEFAULT)
    problems: list[str] = []
    warnings: dict[str, Finding] = {}
    for file, content in documents:
        for path, value in _flatten(file, content, problems):
            key = schema.get(path)
            if key is None:
                problems.append(f"{file}: {printable(path)}: unknown key")
                continue
            warnings.pop(path, None)
            try:
                values[path] = key.parse(value)
            except WrongValue as wrong:
                if key.fallback is None:
                    problems.append(f"{file}: {path}: {wrong}")
                    continue
                values[path] = key.fallback
                warnings[path] = Finding(Reason.CONFIG_FALLBACK, path, f"{file}: {path} {wrong}; {key.fallback} is used instead")
            sources[path] = file
    if problems:
        raise ConfigError("; ".join(problems))
    config = Config(
        HypervisorConfig(**_section("hypervisor", values)),
        CdiConfig(**_section("cdi", values)),
        NpuConfig(**_section("npu", values)),
        ClusterConfig(**_section("cluster", values)),
        ReclaimConfig(**_section("reclaim", values)),
        PluginSettings(**_section("device_plugin", values)),
        MetricsConfig(**_section("metrics", values)),
        LogConfig(**_section("log", values)),
    )
    told = list(warnings.values())
    many = plugin.slots_warning(config.device_plugin.slots)
    if many and config.device_plugin.enabled:
        told.append(Finding(Reason.PLUGIN_MANY_SLOTS, "device_plugin.slots", f"{config.device_plugin.slots} slots: {many}"))
    return LoadedConfig(config, MappingProxyType(sources), tuple(told))


def effective(loaded: LoadedConfig) -> list[tuple[str, object, str]]:
    """List (key, value as TOML would hold it, source) for every key, in the schema's order."""
    sections = {key.section: getattr(loaded.config, key.section) for key in KEYS}
    return [(key.path, _plain(key, getattr(sections[key.section], key.name)), loaded.sources[key.path]) for key in KEYS]


def is_named(loaded: LoadedConfig, section: str) -> bool:
    """Tell whether a file has anything of a section, be it the default."""
    return any(source != DEFAULT for path, source in loaded.sources.items() if path.startswith(f"{section}."))


def _plain(key: Key, value: object) -> object:
    if key.path in ("hypervisor.devices", "device_plugin.devices"):
        return AUTO if value is None else [f"{names.DEVICE_DIRECTORY}/{kind}" for kind in value]  # type: ignore[attr-defined] # a tuple here
    if key.name == "expected_mode" and isinstance(value, int):
        return f"{value:04o}"
    if key.default == AUTO and value == "":
        return AUTO
    if value is None:
        # The word that stands for it is the default of every such key.
        return key.default
    return list(value) if isinstance(value, tuple) else value


def _section(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {key.name: values[key.path] for key in KEYS if key.section == section}


def _flatten(file: str, content: bytes, problems: list[str]) -> list[tuple[str, object]]:
    try:
        document = tomllib.loads(content.decode())
    except UnicodeDecodeError:
        problems.append(f"{file}: not UTF-8 text")
        return []
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problems.append(f"{file}: not TOML: {printable(str(error))}")
        return []
    pairs: list[tuple[str, object]] = []
    sections = {key.section for key in KEYS}
    for section, table in document.items():
        if section not in sections:
            problems.append(f"{file}: {printable(section)}: unknown {'section' if isinstance(table, dict) else 'key'}")
        elif not isinstance(table, dict):
            problems.append(f"{file}: {section}: must be a section, [{section}]")
        else:
            pairs += [(f"{section}.{name}", value) for name, value in table.items()]
    return pairs


def _dropins(directory: str | None) -> list[str]:
    if directory is None:
        return []
    try:
        entries = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be read: {error.strerror}") from error
    return [os.path.join(directory, entry) for entry in entries if entry.endswith(".toml") and not entry.startswith(".")]


def _read(path: str) -> bytes:
    """Read a configuration file that only root, or who runs the daemon, can have written."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path}: is not a regular file")
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & stat.S_IWOTH:
                raise ConfigError(f"{path}: may be changed by users other than root; its owner must be root and its mode 0644")
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(MAXIMUM_FILE_SIZE + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > MAXIMUM_FILE_SIZE:
        raise ConfigError(f"{path}: is larger than {MAXIMUM_FILE_SIZE} bytes")
    return content
