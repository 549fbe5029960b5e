"""Explain, a method of NPUs and vNPUs: the evidence about one of them, as JSON."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from devward.bus.auth import Gate
from devward.bus.messages import Body, MethodCall, Prepare, Run
from devward.bus.publisher import Named
from devward.bus.refusal import UNKNOWN_OBJECT, Refusal
from devward.model import Caller
from devward.text import quoted


class Explain(Protocol):
    """Returns what is known of the object with a name; without what names other people's workloads unless `full`."""

    def __call__(self, name: str, *, full: bool) -> str: ...


class ExplainInterface:
    """The method of the objects below one path."""

    def __init__(self, prefix: str, views: Callable[[], Iterable[Named]], explain: Explain, gate: Gate) -> None:
        self._prefix = prefix
        self._views = views
        self._explained = explain
        self._gate = gate

    def methods(self) -> Mapping[str, Prepare]:
        """Return the methods by name."""
        return {"Explain": self._explain}

    def _explain(self, call: MethodCall) -> Run:
        async def run(_: Caller | None) -> Body:
            full = await self._gate.may_inspect(call)
            name = call.path.removeprefix(self._prefix)
            # It may have gone meanwhile.
            if all(view.name != name for view in self._views()):
                raise Refusal(UNKNOWN_OBJECT, f"There is no object {quoted(call.path)}.")
            return (self._explained(name, full=full),)

        return run
