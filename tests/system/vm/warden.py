"""What a test asks the devward in a machine, and waits for there."""

import json
import time
from collections.abc import Callable
from typing import Any

from devward import names
from sim.daemon_process import SLOW, again_while
from system.vm.machine import CommandFailed, Machine

SPEC = f"{names.CDI_DIRECTORY}/{names.HYPERVISOR_CDI_FILE}"
KVM = f"{names.HYPERVISOR_CDI_KIND}=kvm"
#: Seconds after which something that is waited for is never to come. The machine is slow, may share its processors, and a check
#: that was not finished in two seconds is made again up to half a minute later.
LIMIT = 300.0

Described = dict[str, Any]


class Warden:
    """The daemon in a machine, by its bus, its journal and its unit."""

    def __init__(self, vm: Machine) -> None:
        """Of this machine."""
        self._vm = vm

    # --- the bus -----------------------------------------------------------------------------------------------------
    def call(self, member: str, signature: str = "", *arguments: str) -> list[Any]:
        """Call a method of the manager. CommandFailed where it answers with an error."""
        words = [signature, *arguments] if signature else []
        out = self._vm.run(
            "busctl", "--timeout=120", "--json=short", "call", names.BUS_NAME, names.ROOT_PATH, names.MANAGER_INTERFACE, member, *words
        )  # fmt: skip
        answer: list[Any] = json.loads(out)["data"] if out.strip() else []
        return answer

    def describe(self) -> Described:
        """Return everything that it knows."""
        described: Described = json.loads(self.call("Describe")[0])
        return described

    def allocation(self, device: str = "kvm") -> tuple[bool, str]:
        """Ask whether a container may be given the device; return the answer and the reason."""
        allowed, reason, *_ = self.call("CheckAllocation", "s", device)
        return allowed, reason

    def finished_allocation(self, device: str = "kvm") -> tuple[bool, str]:
        """The same, asked again where the answer is only that the slow machine did not finish in time."""
        return again_while(lambda answer: answer[1] in SLOW, lambda: self.allocation(device), LIMIT)

    # --- waiting -----------------------------------------------------------------------------------------------------
    def wait(self, what: str, condition: Callable[[Described], bool], limit: float = LIMIT) -> Described:
        """Return the first description that the condition holds for. A daemon that does not answer is asked again."""
        end = time.monotonic() + limit
        seen: object = None
        while time.monotonic() < end:
            try:
                described = self.describe()
            except CommandFailed as error:
                seen = error
            else:
                seen = described
                if condition(described):
                    return described
            time.sleep(0.2)
        log = self._vm.run("journalctl", "--unit=devward", "--lines=40", "--output=short-monotonic", check=False)
        raise AssertionError(f"never {what}: {seen}\n{log}")

    def wait_device(self, kind: str = "kvm", **expected: str) -> Described:
        """Wait until a device has these properties; return them all."""
        described = self.wait(f"{kind}: {expected}", lambda described: _has(device(described, kind), expected))
        return device(described, kind)

    def wait_spec(self, **expected: str) -> Described:
        """Wait until the owned file has these properties; return them all."""
        spec: Described = self.wait(f"the file: {expected}", lambda described: _has(described["specs"][0], expected))["specs"][0]
        return spec

    def wait_well(self) -> Described:
        """Wait until kvm is healthy, its file true and nothing under way.

        A check that the slow machine did not finish in its two seconds is made again now, not after the retry interval.
        """
        end = time.monotonic() + LIMIT
        while True:
            described = self.wait("at rest", lambda seen: not seen["manager"]["checking"] and (_well(seen) or _slow(seen)))
            if _well(described):
                return described
            assert time.monotonic() < end, f"kvm is never found usable: {described}"
            self.call("Rescan", "t", "0")

    def wait_allocation(self, expected: tuple[bool, str], device: str = "kvm") -> None:
        """Ask until the answer is this; a check that a slow machine does not finish in time is refused, and asked again."""
        end = time.monotonic() + LIMIT
        while (answer := self.allocation(device)) != expected:
            assert time.monotonic() < end, f"CheckAllocation never answered {expected}, but {answer}"

    # --- the journal -------------------------------------------------------------------------------------------------
    def now(self) -> str:
        """Return where the journal ends now."""
        self._vm.run("journalctl", "--sync")
        return self._vm.run("journalctl", "--lines=1", "--show-cursor", "--output=cat").rpartition("-- cursor: ")[2].strip()

    def events(self, since: str, kind: str | None = None) -> list[dict[str, str]]:
        """Return the audit records after a cursor, those of one kind if given."""
        self._vm.run("journalctl", "--sync")
        # Not with --unit: journalctl 252 then passes over the first record after a cursor that is not of that unit.
        out = self._vm.run("journalctl", "--output=json", f"--after-cursor={since}")
        records = [json.loads(line) for line in out.splitlines()]
        ours = [record for record in records if record.get("_SYSTEMD_UNIT") == "devward.service" and names.FIELD_EVENT in record]
        return [record for record in ours if kind in (None, record[names.FIELD_EVENT])]

    def wait_events(self, since: str, kind: str, count: int = 1) -> list[dict[str, str]]:
        """Wait until there are this many records of a kind after a cursor; return them all."""
        end = time.monotonic() + LIMIT
        while len(found := self.events(since, kind)) < count:
            assert time.monotonic() < end, f"never {count} of {kind}: {[record.get('MESSAGE') for record in self.events(since)]}"
            time.sleep(0.2)
        return found

    # --- the unit ----------------------------------------------------------------------------------------------------
    def unit(self, *properties: str, unit: str = "devward.service") -> dict[str, str]:
        """Return properties of a unit."""
        out = self._vm.run("systemctl", "show", unit, *(f"--property={name}" for name in properties))
        return dict(line.split("=", 1) for line in out.splitlines())

    def run_id(self) -> tuple[str, str]:
        """Return what is the same as long as the daemon runs on."""
        shown = self.unit("MainPID", "InvocationID")
        return shown["MainPID"], shown["InvocationID"]


def device(described: Described, kind: str = "kvm") -> Described:
    """Return one device of a description; empty where there is none of that kind."""
    return next((device for device in described["devices"] if device["kind"] == kind), {})


def _has(things: Described, expected: dict[str, str]) -> bool:
    return all(things.get(name) == value for name, value in expected.items())


def _well(described: Described) -> bool:
    spec = described["specs"][0]
    healthy = device(described).get("health") == "healthy"
    return healthy and bool(described["manager"]["ready"]) and spec["state"] == "true" and KVM in spec["devices"]


def _slow(described: Described) -> bool:
    return device(described).get("reason") in ("probe-timeout", "helper-stuck")
