"""The way to the vendor's library: environment first, then the file, then loading, then the driver; each once, in this order."""

from collections.abc import Callable

from devward.npu import library
from devward.npu.dcmi import Dcmi
from devward.npu.environment import Environment, require_host
from devward.npu.facts import Refusal, Refused
from devward.npu.library import Library


class Access:
    """Opens the library when it is first needed, and again until that succeeds."""

    def __init__(self, path: str | None, environment: Callable[[], Environment], before_call: Callable[[str], None]) -> None:
        """Use the library at `path`, or find it; `before_call` is told of each call that may hang."""
        self._path = path
        self._environment = environment
        self._before_call = before_call
        self._library: Library | None = None
        self._dcmi: Dcmi | None = None
        self._ready = False

    @property
    def path(self) -> str:
        """Where the library is; nothing before it was found."""
        return self._library.path if self._library is not None else ""

    @property
    def outdated(self) -> bool:
        """Whether a library is loaded whose file was replaced or removed: only another process can load its successor."""
        return self._dcmi is not None and self._library is not None and not self._library.is_unchanged()

    def open(self) -> Dcmi:
        """Return the library, loaded and initialised. Refused; DcmiError: it cannot reach the driver now."""
        if self.outdated:
            raise Refused(Refusal.LIBRARY_CHANGED, f"{self.path} was replaced; the broker ends to load the new one")
        if self._dcmi is None:
            require_host(self._environment())
            self._before_call("the search for the library")
            self._library = library.check(self._path or library.find())
            self._dcmi = Dcmi(self._library.path, self._before_call)
        if not self._ready:
            self._dcmi.initialise()
            self._ready = True
        return self._dcmi
