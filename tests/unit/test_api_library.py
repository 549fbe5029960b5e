"""The library for the API server: loaded only where a cluster is used, and only the part that is used; and OpenSSL with it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devward.cluster import api_library
from devward.cluster.api_library import Library
from devward.cluster.api_result import ApiError, ApiFault
from sim.api_pki import Authority, write_identity, write_kubeconfig
from sim.api_server import ApiServer

AUTHORITY = Authority()

#: devwardd as far as here: OpenSSL is left out before anything of the daemon is loaded.
_DAEMON = """
import json, sys, time
from devward.__main__ import _leave_openssl_out
_leave_openssl_out()
from devward import app
import asyncio
from devward.cluster.api import Api, ApiSettings
from devward.cluster.watch import PodWatch
def loaded():
    return sorted(name for name in ("_ssl", "_hashlib", "kubernetes", "urllib3", "yaml") if sys.modules.get(name) is not None)
before = loaded()
api = Api(ApiSettings(sys.argv[1]), monotonic=time.monotonic, realtime_usec=lambda: time.time_ns() // 1000)
look = asyncio.run(api.look())
import hashlib, hmac
digest = hmac.new(b"k", b"d", "sha256").hexdigest() and hashlib.sha256(b"x").hexdigest()
print(json.dumps([before, [getattr(result, "text", "") for result in (look.node, look.lease, look.pods)],
                  sorted(name for name in sys.modules if name.startswith("kubernetes")), digest]))
"""


def run(code: str, *arguments: str) -> Any:
    """Return what a new interpreter prints, as JSON."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        (sys.executable, "-c", code, *arguments),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_daemon_has_openssl_only_once_a_cluster_is_asked(tmp_path: Path) -> None:
    with ApiServer(authority=AUTHORITY) as server:
        link = str(write_identity(tmp_path, AUTHORITY.client()))
        path = write_kubeconfig(tmp_path / "k", server.url, AUTHORITY.certificate, {"client-certificate": link, "client-key": link})
        before, problems, modules, digest = run(_DAEMON, str(path))
    assert before == []
    assert problems == ["", "", ""]
    assert digest == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert {"kubernetes.client.configuration", "kubernetes.client.rest"} <= set(modules)


def test_no_model_of_an_object_is_loaded() -> None:
    code = """
import json, sys
from devward.cluster.api_library import Library
Library().load()
names = [name for name in sys.modules if name.startswith("kubernetes")]
# Whoever comes later gets the real package.
import kubernetes.client
print(json.dumps([names, hasattr(kubernetes.client, "CoreV1Api"), kubernetes.__version__]))
"""
    names, is_real, _ = run(code)
    assert len(names) < 10
    assert not any(name.startswith(("kubernetes.client.models", "kubernetes.client.api.", "kubernetes.config")) for name in names)
    assert is_real


def test_another_layout_is_loaded_as_a_whole() -> None:
    code = """
import json, sys
from devward.cluster import api_library
def fails(name):
    raise ImportError("another layout")
api_library._stand_in = fails
configuration, rest, _ = api_library.Library().load()
print(json.dumps([configuration.__name__, rest.__name__, "CoreV1Api" in dir(sys.modules["kubernetes.client"])]))
"""
    assert run(code) == ["kubernetes.client.configuration", "kubernetes.client.rest", True]


def test_it_is_told_once_when_the_first_of_the_process_is_loaded() -> None:
    code = """
import gc, json, sys
from devward.cluster.api_library import Library
from devward.collector import settle
told = []
libraries = [Library(lambda: told.append("urllib3" in sys.modules)) for _ in range(2)]
for library in libraries * 2:
    library.load()
loaded = gc.get_freeze_count()
settle()
print(json.dumps([told, loaded, gc.get_freeze_count() > 1000]))
"""
    assert run(code) == [[True], 0, True]


def test_a_library_that_was_loaded_before_is_taken() -> None:
    code = """
import json, kubernetes.client.rest
from devward.cluster.api_library import Library
print(json.dumps(Library().load()[1] is kubernetes.client.rest))
"""
    assert run(code) is True


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ModuleNotFoundError("No module named 'kubernetes'")

    monkeypatch.setattr(api_library, "_load", missing)
    with pytest.raises(ApiError) as raised:
        Library().load()
    assert raised.value.fault is ApiFault.LIBRARY_MISSING
    assert "python3-kubernetes" in str(raised.value)


def test_it_is_loaded_once() -> None:
    library = Library()
    assert library.load() is library.load()
