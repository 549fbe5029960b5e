"""The Python library `kubernetes`, loaded where a cluster is used and then only its transport. Nothing else here imports it.

Importing it the ordinary way loads a model of every object of the API, for 64 MB (22.6) or 45 MB (37.0) of memory; its configuration and
its REST client need 12 and 5 MB. It reads a kubeconfig too, but once for all: a token file is never read again, keys that stand in the
kubeconfig are left in files of /tmp, and programs named there are started unasked and without a limit of time. credentials.py does that.
"""

import importlib
import importlib.util
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, Final

from devward.cluster.api_result import ApiError, ApiFault

#: Packages whose own modules load every model; the modules that are wanted need nothing of them.
_PACKAGES: Final = ("kubernetes", "kubernetes.client", "kubernetes.utils")


class Library:
    """The library, loaded with the first call. May be shared by threads."""

    def __init__(self, on_loaded: Callable[[], None] | None = None) -> None:
        """Load nothing yet. `on_loaded` is called, by the thread that loads it, after the first load in this process."""
        self._on_loaded = on_loaded
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any, Any] | None = None

    def load(self) -> tuple[Any, Any, Any]:
        """Return the modules kubernetes.client.configuration, kubernetes.client.rest and urllib3. ApiError. Takes up to a second."""
        with self._lock:
            if self._loaded is None:
                let_openssl_in()
                is_first = "urllib3" not in sys.modules
                try:
                    self._loaded = _load()
                except ImportError as error:
                    raise ApiError(ApiFault.LIBRARY_MISSING, str(error)) from None
                if is_first and self._on_loaded is not None:
                    self._on_loaded()
            return self._loaded


def let_openssl_in() -> None:
    """Undo what keeps OpenSSL out of devwardd (`_leave_openssl_out`). asyncio and hashlib stay without it; they have no need of it."""
    # An entry of None fails every import, also those of this library.
    if sys.modules.get("ssl", sys) is None:
        del sys.modules["ssl"]


def _load() -> tuple[Any, Any, Any]:
    if "kubernetes" not in sys.modules:
        made: list[str] = []
        try:
            for name in _PACKAGES:
                made.append(name)
                _stand_in(name)
            return _modules()
        except (ImportError, AttributeError):
            # Another layout: then it is loaded as a whole.
            for name in [name for name in sys.modules if name.startswith("kubernetes.")]:
                del sys.modules[name]
        finally:
            # Whoever imports the packages later gets the real ones.
            for name in made:
                sys.modules.pop(name, None)
    return _modules()


def _modules() -> tuple[Any, Any, Any]:
    return tuple(importlib.import_module(name) for name in ("kubernetes.client.configuration", "kubernetes.client.rest", "urllib3"))  # type: ignore[return-value]


def _stand_in(name: str) -> None:
    """Put an empty package in a package's place, whose modules can be imported."""
    found = importlib.util.find_spec(name)
    if found is None or found.submodule_search_locations is None:
        raise ImportError(f"no package {name}", name=name)
    package = types.ModuleType(name)
    package.__path__ = list(found.submodule_search_locations)
    package.__spec__ = found
    sys.modules[name] = package
