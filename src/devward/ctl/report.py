"""`devwardctl report`: one archive with what is needed to find a fault, made so that it can be passed on.

It holds no environment, no contents of foreign files, no command lines of other processes. It works without the daemon, too: that is when
it is needed. What could not be had is listed in problems.txt.
"""

import gzip
import io
import json
import os
import re
import subprocess
import tarfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from devward import config as configuration
from devward import names
from devward.ctl import host, journal, redact
from devward.ctl.client import Client
from devward.ctl.context import Context
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.layout import prose
from devward.ctl.status import document
from devward.ctl.terminal import Tone
from devward.ctl.when import USEC
from devward.errors import ConfigError
from devward.text import printable

#: Records of the audit trail and lines of the daemon's log that are taken, the last ones.
RECORDS: Final = 2000
LOG_LINES: Final = 1000
LOG_SECONDS: Final = 60.0

README: Final = """Support bundle of devward, made by devwardctl report.

status.json         what the daemon publishes on the bus
describe.json       what the daemon knows, with its configuration in force
config-check.json   the configuration on disk, checked
history.jsonl       the last audit records in the journal
log.txt             the last lines of devward.service in the journal
mounts.txt          mounts on, above and below /dev and the CDI directories
daemon-mounts.txt   the same as the daemon sees them
devices.txt         the device nodes
cdi.txt             listing of the CDI directories, without contents
versions.txt        versions of devward, the system and the container engines
problems.txt        what could not be had, where there is any

Texts that look like a token, a key or a password were replaced by [redacted]. The UIDs and names of Pods, and everything else that looks
like a UID, were replaced by numbers, [pod 1] and so on: one number is one Pod in all files. Host name, paths, user ids, the die ids of NPUs
and the reasons of pauses and pins are in it, and what other people wrote into annotations: look it through before you pass it on.
"""


@dataclass(slots=True)
class Bundle:
    """What was collected: files by name, and what could not be had."""

    files: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    node_name: str = ""
    directories: tuple[str, ...] = names.CDI_ENGINE_DIRECTORIES
    pods: redact.Pods = field(default_factory=redact.Pods)

    def add(self, name: str, text: str) -> None:
        """Add a file, redacted."""
        self.files[name] = redact.text(text)

    def add_json(self, name: str, value: object) -> None:
        """Add a file of JSON, redacted."""
        self.files[name] = _dumped(self.pods.value(redact.value(value)))

    def hide_pods(self) -> None:
        """Take the UIDs and names of Pods, which are all known by now, out of every file."""
        self.files = {name: self._without_pods(name, text) for name, text in self.files.items()}

    def _without_pods(self, name: str, text: str) -> str:
        # By its values: a UID may be no more than a number, or a word of JSON.
        match name.rpartition(".")[2]:
            case "json":
                return _dumped(self.pods.texts(json.loads(text)))
            case "jsonl":
                return "".join(json.dumps(self.pods.texts(json.loads(line))) + "\n" for line in text.splitlines())
        return self.pods.text(text)


def run(context: Context) -> int:
    """Write the bundle. Status 5 where a part of it could not be had."""
    bundle = Bundle(node_name=os.uname().nodename)
    _collect_config(bundle)
    _collect_daemon(context, bundle)
    _collect_journal(context, bundle)
    bundle.add("devices.txt", host.nodes())
    bundle.add("cdi.txt", "\n".join(map(host.listing, bundle.directories)))
    bundle.add("mounts.txt", _mounts("/proc/self/mountinfo", bundle))
    bundle.add("versions.txt", host.versions())
    if bundle.problems:
        bundle.add("problems.txt", "\n".join(bundle.problems) + "\n")
    bundle.hide_pods()
    bundle.files["README.txt"] = README
    now = context.realtime_usec()
    name = bundle_name(bundle.node_name, now)
    path = context.given.file or f"{name}.tar.gz"
    write(path, name, bundle.files, now)
    _tell(context, path, bundle)
    return ExitStatus.PARTLY if bundle.problems else ExitStatus.OK


def bundle_name(node: str, now_usec: int) -> str:
    """Return the name of a bundle: the host's, and the time in UTC."""
    safe = re.sub(r"[^A-Za-z0-9.-]+", "-", node).strip("-.") or "host"
    return f"devward-report-{safe}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_usec // USEC))}"


def write(path: str, name: str, files: Mapping[str, str], now_usec: int) -> None:
    """Write the archive, mode 0600. Failure where the file is there already or cannot be written; nothing is left then."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise Failure(ExitStatus.UNHEALTHY, f"{printable(path)} exists already; nothing is overwritten.", "Give another name.") from None
    except OSError as error:
        raise Failure(ExitStatus.UNHEALTHY, f"{printable(path)} cannot be written: {error.strerror}.") from error
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=now_usec // USEC) as packed:
                _pack(packed, name, files, now_usec)
    except BaseException as error:
        os.unlink(path)
        if isinstance(error, OSError):
            raise Failure(ExitStatus.UNHEALTHY, f"{printable(path)} cannot be written: {error.strerror}.") from error
        raise


def _pack(packed: gzip.GzipFile, name: str, files: Mapping[str, str], now_usec: int) -> None:
    with tarfile.open(fileobj=packed, mode="w|") as archive:
        for member in sorted(files):
            data = files[member].encode("utf-8", "backslashreplace")
            info = tarfile.TarInfo(f"{name}/{member}")
            info.size, info.mode, info.mtime = len(data), 0o600, now_usec // USEC
            archive.addfile(info, io.BytesIO(data))


def _collect_config(bundle: Bundle) -> None:
    try:
        loaded = configuration.load()
    except ConfigError as error:
        bundle.add_json("config-check.json", {"good": False, "problems": str(error).split("; ")})
        return
    settings = [{"key": key, "value": value, "source": source} for key, value, source in configuration.effective(loaded)]
    bundle.add_json("config-check.json", {"good": True, "warnings": [one.text for one in loaded.warnings], "settings": settings})
    bundle.directories = _unique((*loaded.config.cdi.engine_dirs, loaded.config.cdi.directory))


def _collect_daemon(context: Context, bundle: Bundle) -> None:
    async def work(client: Client) -> int:
        snapshot = await client.snapshot()
        bundle.add_json("status.json", document(snapshot, {}))
        bundle.node_name = snapshot.manager.node_name or bundle.node_name
        described = await client.describe()
        bundle.add_json("describe.json", described)
        settings = described.get("config")
        if isinstance(settings, list):
            bundle.directories = _directories(settings) or bundle.directories
        else:
            bundle.problems.append("describe.json: the configuration in force is shown to administrators only")
        pid = await client.process()
        if pid:
            bundle.add("daemon-mounts.txt", _mounts(f"/proc/{pid}/mountinfo", bundle))
        return ExitStatus.OK

    try:
        status = context.on_bus(work)
    except Failure as failure:
        bundle.problems.append(f"status.json, describe.json: {failure.text}")
    else:
        if status != ExitStatus.OK:
            raise SystemExit(status)  # a signal broke it off


def _directories(settings: Iterable[object]) -> tuple[str, ...]:
    values = {one.get("key"): one.get("value") for one in settings if isinstance(one, dict)}
    read, written = values.get("cdi.engine_dirs"), values.get("cdi.directory")
    return _unique([one for one in [*(read if isinstance(read, list) else []), written] if isinstance(one, str)])


def _dumped(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _unique(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))


def _collect_journal(context: Context, bundle: Bundle) -> None:
    query = journal.Query(lines=RECORDS)
    try:
        records = journal.read(query, context.environ)
        lines = [{"time_usec": one.time_usec, "message": one.message, "priority": one.priority, **one.fields} for one in records]
        for record in records:
            bundle.pods.keep(record.text("request_id"))
        bundle.files["history.jsonl"] = "".join(json.dumps(bundle.pods.value(redact.value(one))) + "\n" for one in lines)
        command = [journal.PROGRAM, "--quiet", "--no-pager", "--output=short-iso-precise", f"--lines={LOG_LINES}", "--unit=devward.service"]
        log = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOG_SECONDS, check=False)
        bundle.add("log.txt", "".join(printable(line, 4096) + "\n" for line in log.stdout.decode(errors="surrogateescape").splitlines()))
    except (Failure, OSError, subprocess.TimeoutExpired) as error:
        bundle.problems.append(f"history.jsonl, log.txt: {printable(str(error))}")
        return
    if not records and journal.unreadable_journal(query):
        bundle.problems.append("history.jsonl, log.txt: this user may not read the system's journal")


def _mounts(path: str, bundle: Bundle) -> str:
    try:
        with open(path, encoding="utf-8", errors="backslashreplace") as file:
            return host.mounts(file.read(), [names.DEVICE_DIRECTORY, *bundle.directories])
    except OSError as error:
        bundle.problems.append(f"{path}: {error.strerror}")
        return ""


def _tell(context: Context, path: str, bundle: Bundle) -> None:
    if context.json:
        context.print_json({"file": path, "members": sorted(bundle.files), "problems": bundle.problems})
        return
    prose(
        context.out,
        f"Wrote {printable(path, 4096)}. Nobody else can read it. Look it through before you pass it on: tar -tzf lists what it holds.",
    )
    for problem in bundle.problems:
        prose(context.out, f"{printable(problem, 400)}", "  - ", "    ", Tone.WARNING)
