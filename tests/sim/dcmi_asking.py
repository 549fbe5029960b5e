"""The client in C of the simulated library for Ascend NPUs, run from Python: a process a question."""

import os
import subprocess
from pathlib import Path

from sim.dcmi_simulator import Chip, DcmiSimulator

#: One line of the client's, its first word under the empty key.
Line = dict[str, str]


class DcmiClient:
    """Asks the library of a simulator, as another process."""

    def __init__(self, simulator: DcmiSimulator, program: Path, *prefix: str) -> None:
        self.simulator = simulator
        self.program = program
        self.prefix = prefix

    def command(self, *words: object) -> list[str]:
        """Return the command line of a question."""
        return [*self.prefix, str(self.program), str(self.simulator.library), *map(str, words)]

    def start(self, *words: object) -> "subprocess.Popen[str]":
        """Begin to ask."""
        return subprocess.Popen(self.command(*words), env=os.environ | self.simulator.environment, stdout=subprocess.PIPE, text=True)

    def run(self, *words: object) -> "subprocess.CompletedProcess[str]":
        """Ask, whatever becomes of it."""
        environment = os.environ | self.simulator.environment
        return subprocess.run(self.command(*words), env=environment, capture_output=True, text=True, timeout=120, check=False)

    def ask(self, *words: object) -> list[Line]:
        """Ask and return the lines of the answer."""
        done = self.run(*words)
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return self.lines(done.stdout)

    @staticmethod
    def lines(output: str) -> list[Line]:
        """Take an answer apart."""
        return [
            {"": words[0]} | dict(word.split("=", 1) for word in words[1:] if "=" in word)
            for words in (line.split(" ") for line in output.splitlines())
        ]

    def listed(self, kind: str) -> list[Line]:
        """Return the lines of that kind of a whole list."""
        return [line for line in self.ask("list") if line[""] == kind]

    def create(self, chip: Chip, template: str, *more: int) -> tuple[int, int]:
        """Make a vNPU and return the code and its id."""
        (line,) = self.ask("create", chip.card, chip.dev, template, *more)
        return int(line["code"]), int(line["id"])

    def destroy(self, chip: Chip, vdev: int) -> int:
        """Destroy a vNPU and return the code."""
        (line,) = self.ask("destroy", chip.card, chip.dev, vdev)
        return int(line["code"])

    def call(self, *words: object) -> Line:
        """Make one call and return its code, size and bytes."""
        (line,) = self.ask("call", *words)
        return line
