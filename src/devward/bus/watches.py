"""Who waits for which bus name to vanish.

One match rule for each watched name: a rule for all of them would wake the daemon whenever any client leaves the bus.
"""

from collections.abc import Callable


class Watches:
    """Callbacks by unique name. `begin` and `end` are called when the first of a name comes and the last goes."""

    def __init__(self, begin: Callable[[str], None], end: Callable[[str], None]) -> None:
        self._begin = begin
        self._end = end
        self._callbacks: dict[str, list[Callable[[], None]]] = {}

    def add(self, name: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once when the name vanishes. Returns what ends that; it may be called at any time, and again."""
        if name not in self._callbacks:
            self._callbacks[name] = []
            self._begin(name)
        self._callbacks[name].append(callback)

        def remove() -> None:
            callbacks = self._callbacks.get(name, [])
            if callback in callbacks:
                callbacks.remove(callback)
                if not callbacks:
                    del self._callbacks[name]
                    self._end(name)

        return remove

    def vanished(self, name: str) -> None:
        """Call back everybody who waits for this name."""
        callbacks = self._callbacks.pop(name, None)
        if callbacks is not None:
            self._end(name)
            for callback in callbacks:
                callback()
