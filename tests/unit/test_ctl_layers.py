"""devwardctl stands on what its contract allows, directly and indirectly: none of the daemon's rooms, present or to come."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "devward"
ALLOWED = {"names", "model", "errors", "text", "config", "bus.connection", "bus.messages", "npu.views"}
#: What bus.connection itself stands on.
BENEATH = {"bus.stream", "bus.transport", "bus.watches", "bus.wire"}


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
            if name in paths and name not in reached:
                assert name in ALLOWED | BENEATH or name.startswith("ctl."), f"{module} imports devward.{name}"
                reached.add(name)
                waiting.append(name)
    assert reached >= ALLOWED
