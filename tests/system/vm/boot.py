"""How a machine came up, as systemd recorded it."""

from dataclasses import dataclass
from typing import Self

from system.vm.machine import Machine
from system.vm.warden import SPEC, Warden

ENGINES = ("containerd", "docker", "kubelet", "podman", "podman-restart")
STAND_INS = ("containerd", "docker", "kubelet")


@dataclass(frozen=True, slots=True)
class Boot:
    """Times are microseconds since the kernel started, 0 for never."""

    #: When devward was started first, and when it was ready.
    began: int
    ready: int
    restarts: int
    #: When each engine was started.
    engines: dict[str, int]
    #: The CDI file as each stand-in of an engine found it, and as it was after the boot.
    seen: dict[str, str]
    spec: str

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """Read it off a machine that has come to rest."""
        warden = Warden(machine)
        unit = warden.unit("InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic", "NRestarts")
        engines = {name: warden.unit("InactiveExitTimestampMonotonic", unit=f"{name}.service") for name in ENGINES}
        return cls(
            began=int(unit["InactiveExitTimestampMonotonic"]),
            ready=int(unit["ActiveEnterTimestampMonotonic"]),
            restarts=int(unit["NRestarts"]),
            engines={name: int(shown["InactiveExitTimestampMonotonic"]) for name, shown in engines.items()},
            seen={name: machine.run("cat", f"/run/seen-by-{name}") for name in STAND_INS},
            spec=machine.run("cat", SPEC, check=False),
        )
