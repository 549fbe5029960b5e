"""A node with Ascend NPUs for tests: the vendor's library with real symbols and layouts, over a state that the test holds.

    library = build_library(cache)                      # once a session; cache is a directory of the caller's
    with DcmiSimulator(directory, library) as simulator:
        chip = simulator.add_chip("910B3")
        vnpu = simulator.create(chip, "vir05_1c_16g")
        simulator.occupy(vnpu)                          # a container holds it
        simulator.fault("dcmi_set_destroy_vdevice", "code", value=-8014, effect=True)
        run(..., env=os.environ | simulator.environment)
        assert simulator.calls("dcmi_set_destroy_vdevice") == [...]

Any process that loads `simulator.library` with `simulator.environment` sees that node; every change here counts from its next call on.
`libdcmi.c` says what the faults do; a plain delay is `fault(function, delay=MS)`. On a booted system the library stands in the vendor's
place and finds its state at STATE_FILE: there the directory is given as the library sees it, with `seen_as`.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from sim.dcmi_build import all_symbols, build_client, build_library, first_symbols, second_symbols
from sim.dcmi_families import FAMILIES
from sim.dcmi_state import FIRST_VDEV, NOT_FILLED, WINDOW, Chip, Fault, Node, Process, State, Vnpu, decode_text, dump, load

__all__ = [
    "CONTAINERD",
    "FAMILIES",
    "NOT_FILLED",
    "STATE_FILE",
    "Call",
    "Chip",
    "DcmiSimulator",
    "Fault",
    "Node",
    "Process",
    "State",
    "Vnpu",
    "all_symbols",
    "build_client",
    "build_library",
    "first_symbols",
    "second_symbols",
]

STATE_FILE: Final = Path("/run/devward-sim/dcmi.state")
VARIABLE: Final = "DEVWARD_SIM_DCMI_STATE"
#: The container id of a vNPU that a container holds which is none of docker's.
CONTAINERD: Final = 0xFFFFFFFFFFFF
#: Longest wait in seconds for a call to arrive.
DEADLINE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the library."""

    function: str
    arguments: dict[str, int | str]
    #: None while it has not returned, or never will.
    code: int | None
    pid: int


def _die(*parts: object) -> str:
    digits = hashlib.sha256(repr(parts).encode()).hexdigest().upper()
    return "-".join(digits[8 * group : 8 * group + 8] for group in range(5))


class DcmiSimulator:
    """The state of one simulated node; use it as a context manager, or call `reset` to begin."""

    def __init__(self, directory: Path, library: Path, *, seen_as: Path | None = None) -> None:
        self.directory = directory
        self.library = library
        self._seen_as = directory if seen_as is None else seen_as
        self.state_file = directory / STATE_FILE.name
        self.cfg = directory / "vnpu.cfg"
        self.log = directory / "dcmi.log"

    def __enter__(self) -> Self:
        self.reset()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        """Let go whoever hangs."""
        self.clear_faults()

    @property
    def environment(self) -> dict[str, str]:
        """What a process that loads the library is given."""
        return {VARIABLE: str(self._seen_as / self.state_file.name)}

    def install(self, place: Path) -> None:
        """Copy the library to where the vendor's is looked for, with the mode of an installed one."""
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.library, place)
        place.chmod(0o644)

    # --- the state as a whole ---

    def reset(self) -> None:
        """Begin with an empty node."""
        self.directory.mkdir(parents=True, exist_ok=True)
        seen = self._seen_as
        node = Node(cfg=str(seen / self.cfg.name), cfg_lock=str(seen / "vnpu_cfg_lock_flag"), log=str(seen / self.log.name))
        with self._locked():
            generation = load(self.state_file.read_text(encoding="ascii")).generation if self.state_file.exists() else 0
            self._write(State(generation, node))
        self.log.write_bytes(b"")

    def read(self) -> State:
        """Return the state as it is now."""
        return load(self.state_file.read_text(encoding="ascii"))

    @contextlib.contextmanager
    def edit(self) -> Iterator[State]:
        """Change the state under its lock; it is written at the end."""
        with self._locked():
            state = self.read()
            yield state
            self._write(state)

    @contextlib.contextmanager
    def swap_at(self, function: str, **which: Any) -> Iterator[State]:
        """Prepare a state that takes the place of the present one when such a call begins: what happens at the worst moment."""
        prepared = self.directory / f"prepared-{time.monotonic_ns()}.state"
        state = self.read()
        yield state
        state.generation += 1_000_000
        prepared.write_text(dump(state), encoding="ascii")
        self.fault(function, "swap", text=str(self._seen_as / prepared.name), **which)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(f"{self.state_file}.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, state: State) -> None:
        state.generation += 1
        new = f"{self.state_file}.new"
        Path(new).write_text(dump(state), encoding="ascii")
        os.rename(new, self.state_file)

    def set_node(self, **changes: Any) -> None:
        """Change fields of the node."""
        with self.edit() as state:
            state.node = replace(state.node, **changes)

    # --- chips ---

    def add_chip(
        self,
        family: str,
        *,
        card: int | None = None,
        dev: int | None = None,
        phy: int | None = None,
        logic: int | None = None,
        **fields: Any,
    ) -> Chip:
        """Add a chip: the next one of its card and node where nothing else is said."""
        kind = FAMILIES[family]
        with self.edit() as state:
            if phy is None:
                phy = 1 + max((chip.phy for chip in state.chips if chip.type == 0), default=-1)
            chip = Chip(
                card=phy // kind.chips_per_card if card is None else card,
                dev=phy % kind.chips_per_card if dev is None else dev,
                phy=phy,
                logic=phy if logic is None else logic,
                splittable=int(bool(kind.templates)),
                slots=kind.slots,
                vgroups=kind.vgroups,
                family=family,
                name=kind.chip_name,
                npu_name=kind.npu_name,
                product=kind.product,
                cores=kind.cores,
                memory=kind.memory,
                aicpu=kind.aicpu,
                **dict(zip(("jpegd", "jpege", "vpc", "vdec", "pngd", "venc"), kind.media, strict=True)),  # type: ignore[arg-type]
                vdie=_die(family, phy, "V"),
                ndie=_die(family, phy, "N"),
                slot=phy + 1,
            )
            chip = replace(chip, **fields)
            state.chips.append(chip)
            if all(template.family != family for template in state.templates):
                state.templates += kind.template_lines(family)
        return chip

    def set_chip(self, chip: Chip, **changes: Any) -> Chip:
        """Change fields of a chip."""
        with self.edit() as state:
            old = state.chip(chip.card, chip.dev)
            new = replace(old, **changes)
            state.chips[state.chips.index(old)] = new
        return new

    def remove_card(self, card: int) -> None:
        """Take a card out of the node; its vNPUs are gone with it."""
        with self.edit() as state:
            state.chips = [chip for chip in state.chips if chip.card != card]
            state.vnpus = [vnpu for vnpu in state.vnpus if vnpu.card != card]

    # --- vNPUs, as another process makes them ---

    def create(self, chip: Chip, template: str, *, vdev: int | None = None, recorded: bool = True, **fields: Any) -> Vnpu:
        """Make a vNPU in the lowest free slot, or with that id, however wrong; `recorded`: with its line in vnpu.cfg."""
        with self.edit() as state:
            if vdev is None:
                taken = {vnpu.id for vnpu in state.vnpus_of(chip)}
                vdev = next(number for number in range(chip.first_vdev, chip.first_vdev + 1024) if number not in taken)
            shape = next((each for each in state.templates if (each.family, each.name) == (chip.family, template)), None)
            vnpu = Vnpu(chip.card, chip.dev, vdev, template, vfid=(vdev - FIRST_VDEV) % WINDOW + 1)
            if shape is not None:
                vnpu = replace(vnpu, aic=shape.aic, memory=shape.memory, aicpu=shape.aicpu)
            vnpu = replace(vnpu, **fields)
            state.vnpus.append(vnpu)
            if recorded:
                self._record(chip, vnpu)
        return vnpu

    def _record(self, chip: Chip, vnpu: Vnpu) -> None:
        lines = self.cfg_lines()
        group = f" -g {vnpu.vfg}" if chip.vgroups else ""
        command = f"npu-smi set -t create-vnpu -i {chip.card} -c {chip.dev} -f {vnpu.name} -v {vnpu.id}{group}"
        self.write_cfg([*lines, f"{chip.phy}:{vnpu.id}:{command}"])

    def destroy(self, vnpu: Vnpu) -> None:
        """Take a vNPU away behind everybody's back; vnpu.cfg stays as it is."""
        with self.edit() as state:
            state.vnpus.remove(state.vnpu(state.chip(vnpu.card, vnpu.dev), vnpu.id))

    def set_vnpu(self, vnpu: Vnpu, **changes: Any) -> Vnpu:
        """Change fields of a vNPU."""
        with self.edit() as state:
            old = state.vnpu(state.chip(vnpu.card, vnpu.dev), vnpu.id)
            new = replace(old, **changes)
            state.vnpus[state.vnpus.index(old)] = new
        return new

    def occupy(self, vnpu: Vnpu, *, container: int = CONTAINERD, occupant: int = 0, privileged: bool = False) -> Vnpu:
        """Let a container open it. A privileged one leaves no trace; one whose process has ended is forgotten at a destroy."""
        return vnpu if privileged else self.set_vnpu(vnpu, used=1, container=container, occupant=occupant)

    def release(self, vnpu: Vnpu) -> Vnpu:
        """Let its container go; the container id stays to be seen."""
        return self.set_vnpu(vnpu, used=0, occupant=0)

    def vnpus(self, chip: Chip | None = None) -> list[Vnpu]:
        """Return the vNPUs that exist, of one chip or of all."""
        state = self.read()
        return state.vnpus if chip is None else state.vnpus_of(chip)

    # --- /etc/vnpu.cfg ---

    def cfg_lines(self) -> list[str]:
        """Return its command lines."""
        if not self.cfg.exists():
            return []
        return [line for line in self.cfg.read_text().splitlines() if line[:1].isdecimal()]

    def write_cfg(self, lines: list[str], *, recover: bool = True) -> None:
        """Write it with these command lines."""
        header = f"vnpu_config_recover:{'enable' if recover else 'disable'}"
        new = self.cfg.with_suffix(".fresh")
        new.write_text("\n".join([header, "[vnpu-config start]", *lines, "[vnpu-config end]", ""]))
        new.rename(self.cfg)

    # --- misbehaviour ---

    def fault(self, function: str, action: str = "", *, effect: bool | None = None, times: int = -1, **fields: Any) -> int:
        """Let calls misbehave, `times` of them or all; the number that `clear_faults` takes."""
        if function != "*" and function not in all_symbols():
            raise ValueError(f"the library has no {function}")
        with self.edit() as state:
            serial = state.generation + 1
            state.faults.append(Fault(serial, function, action=action, times=times, effect=-1 if effect is None else int(effect), **fields))
        return serial

    def clear_faults(self, serial: int | None = None) -> None:
        """Take one fault away, or all; calls that hang go on."""
        with self.edit() as state:
            state.faults = [] if serial is None else [fault for fault in state.faults if fault.serial != serial]

    # --- what was called ---

    def calls(self, *functions: str) -> list[Call]:
        """Return the calls since `reset` or `clear_calls`, in order; only of the named functions if any is named."""
        calls: dict[str, Call] = {}
        for line in self.log.read_text(encoding="ascii").split("\n")[:-1]:
            kind, number, rest = line.split(" ", 2)
            if kind == "return":
                if number in calls:
                    calls[number] = replace(calls[number], code=int(rest))
                continue
            function, *words = rest.split(" ")
            given = dict(word.split("=", 1) for word in words)
            arguments = {key: decode_text(value) if key == "detail" else int(value) for key, value in given.items()}
            calls[number] = Call(function, arguments, None, int(number.partition(".")[0]))
        return [call for call in calls.values() if not functions or call.function in functions]

    def clear_calls(self) -> None:
        """Forget the calls so far."""
        os.truncate(self.log, 0)

    def wait_for(self, function: str, count: int = 1) -> Call:
        """Wait until `count` such calls have begun and return the last of them; TimeoutError after DEADLINE seconds."""
        end = time.monotonic() + DEADLINE
        while len(calls := self.calls(function)) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(calls)} of {count} calls of {function} arrived")
            time.sleep(0.005)
        return calls[count - 1]
