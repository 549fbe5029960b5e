"""devwardctl stands on what its contract allows, directly and indirectly: none of the daemon's rooms, present or to come."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "devward"
#: Loads the daemon's table of observations, when it is asked about a code of it; what is said there and below is of the table alone.
TABLE = ("ctl.observed", "cluster.observations")
#: The same for the codes of reclaiming.
CODES = ("reasons", "controls", "limits", "contract")
TABLES = {TABLE, ("ctl.reclaim_codes", "npu.codes"), *(("ctl.reclaim_codes", f"reclaim.{name}") for name in CODES)}
ALLOWED = {"names", "model", "reasons", "errors", "text", "config", "bus.connection", "bus.messages", "npu.views", "plugin.status"}
#: What bus.connection and config themselves stand on.
BENEATH = {"bus.stream", "bus.transport", "bus.watches", "bus.wire", "config_keys", "npu.numbering", "plugin.settings"}


def imported(path: Path) -> set[str]:
    """The names that a file imports, without `devward.`; those of other packages as they are."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # `from devward.bus import connection` may mean a module.
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("devward.") for name in found}


def test_devwardctl_reaches_nothing_of_the_daemon() -> None:
    paths = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    waiting = [module for module in paths if module.startswith("ctl.")]
    reached: set[str] = set()
    while waiting:
        module = waiting.pop()
        for name in imported(paths[module]):
            assert not name.startswith("dbus_next") or module == "bus.transport", module
            if (module, name) in TABLES:
                continue
            if name in paths and name not in reached:
                assert name in ALLOWED | BENEATH or name.startswith("ctl."), f"{module} imports devward.{name}"
                reached.add(name)
                waiting.append(name)
    assert reached >= ALLOWED


def test_the_table_of_observations_stands_on_nothing_that_does_anything() -> None:
    """What it imports, directly and indirectly, is pure, or reads by functions that nobody calls for the table's sake."""
    contracts = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    pure = next(one for one in contracts if one["name"].startswith("Pure modules"))["source_modules"]
    assert f"devward.{TABLE[1]}" in pure
    loaded = loads(f"import devward.{TABLE[1]}")
    assert not loaded & {"asyncio", "subprocess", "socket", "dbus_next", "kubernetes", "yaml"}
    assert {name.split(".")[1] for name in loaded if name.startswith("devward.")} == {"cluster", "names", "text"}


def test_the_tables_of_reclaiming_stand_on_nothing_that_does_anything() -> None:
    contracts = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    pure = next(one for one in contracts if one["name"].startswith("Pure modules"))["source_modules"]
    assert {f"devward.reclaim.{name}" for name in CODES} <= set(pure)
    loaded = loads("\n".join(f"import devward.reclaim.{name}" for name in CODES))
    assert not loaded & {"asyncio", "subprocess", "socket", "dbus_next", "kubernetes", "yaml", "pyudev"}


@pytest.mark.parametrize(
    "given", ["--help", "status --help", "--nonsense", "explain cdi-stale", "explain kvm --bus unix:path=/nonexistent"]
)
def test_the_table_is_not_loaded_where_nobody_asks_about_it(given: str) -> None:
    run = "import sys; from devward.ctl.main import main\nsys.argv[1:] = {words}\ntry: main()\nexcept SystemExit: pass"
    assert not {name for name in loads(run.format(words=given.split())) if name.startswith(("devward.cluster", "devward.reclaim"))}
    assert "devward.cluster.observations" in loads(run.format(words=["explain", "still-unsaid"])), "where somebody does"
    loaded = loads(run.format(words=["explain", "waiting-for-grace"]))
    assert "devward.reclaim.reasons" in loaded
    assert not {name for name in loaded if name.startswith("devward.cluster")}, "which is not needed for it"


def loads(statements: str) -> set[str]:
    """The modules that are loaded once these statements have run."""
    show = "import sys; print('\\n'.join(sys.modules), file=sys.__stderr__)"
    command = [sys.executable, "-c", f"{statements}\n{show}"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(SOURCE.parent)})
    return set(run.stderr.split("\n"))
