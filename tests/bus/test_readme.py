"""Every command that README and the man page of the bus give to an administrator is run, and answers."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.daemon_process import REPOSITORY, SLOW, DaemonProcess, wait_for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: uid 0 passes the authorization gate"),
    pytest.mark.skipif(not os.path.exists("/dev/kvm"), reason="needs /dev/kvm: the device in the recipes"),
]


def recipes() -> list[str]:
    """The commands: indented lines of README, and the examples of org.devward.Devward1(5)."""
    readme = re.findall(r"^    ((?:busctl|gdbus|journalctl|devwardctl)\b.*)$", (REPOSITORY / "README.md").read_text(), re.M)
    page = (REPOSITORY / "packaging" / "man" / "org.devward.Devward1.5").read_text().replace("\\-", "-")
    return [line.partition("#")[0].strip() for line in dict.fromkeys(readme + re.findall(r"^(busctl .*)$", page, re.M))]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("readme")) as process:
        process.start()
        # At once, but where a busy machine does not finish the first check of the device in time.
        process.wait_property("", "Manager", "Ready", value=True)
        yield process


def test_there_are_recipes() -> None:
    assert {line.split()[0] for line in recipes()} == {"busctl", "gdbus", "journalctl", "devwardctl"}


@pytest.mark.parametrize("recipe", recipes())
def test_the_recipe_works_as_it_stands(daemon: DaemonProcess, recipe: str, tmp_path: Path) -> None:
    command = shlex.split(recipe)
    environment = {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": daemon.bus.address, "LANG": "C.UTF-8"}
    if command[0] == "devwardctl":
        command[:1] = ["/usr/bin/python3", "-m", "devward.ctl"]
        environment["PYTHONPATH"] = str(REPOSITORY / "src")
    if "monitor" in command:
        listens(command, environment, tmp_path)
        return
    results: list[subprocess.CompletedProcess[str]] = []

    def is_in_time() -> bool:
        """Run it; false where it failed for no more than that a busy machine was too slow for a check."""
        results.append(
            subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        )
        return results[-1].returncode == 0 or not any(f"({reason})" in results[-1].stdout for reason in SLOW)

    wait_for(is_in_time, what=recipe)
    result = results[-1]
    if recipe.startswith("devwardctl history"):
        assert result.returncode in (0, 1), result.stderr  # there may be no journal on this machine
        return
    assert result.returncode == 0, result.stderr
    if command[0] != "journalctl":  # there may be no journal on this machine: the query is accepted, whatever it finds
        assert result.stdout.strip()


def listens(command: list[str], environment: dict[str, str], directory: Path) -> None:
    """A command that follows what happens says that it listens, and ends on Ctrl-C."""
    output = directory / "said"
    with open(output, "wb") as file:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        wait_for(lambda: output.stat().st_size > 0 or process.poll() is not None, what="the first words")
        assert process.poll() is None, output.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
