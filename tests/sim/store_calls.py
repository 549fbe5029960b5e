"""Calls of the CDI store under test: bounded, so that one that blocks fails, and with the reason of their refusal."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from devward.cdi import store
from devward.cdi.store import StoreError
from devward.reasons import Reason

T = TypeVar("T")

NAME = "hyperlight.dev-hypervisor.json"
OLD, NEW = b'{"old": "' + b"o" * 400 + b'"}\n', b'{"new": "' + b"n" * 900 + b'"}\n'
#: Seconds after which a call counts as blocked for ever.
PATIENCE = 30.0


def promptly(call: Callable[[], T]) -> T:
    """Run a call that might block for ever, were it wrong."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 # it is raised again below
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the call blocks"
    if errors:
        raise errors[0]
    return answers[0]


def refused(call: Callable[[], object], reason: Reason) -> StoreError:
    with pytest.raises(StoreError) as caught:
        promptly(call)
    assert caught.value.reason is reason, caught.value
    return caught.value


def entries(directory: Path) -> list[str]:
    """Return what is in a directory."""
    return sorted(entry.name for entry in directory.iterdir())


def write(path: Path, data: bytes = NEW) -> str | None:
    """Have the store write a file."""
    return store.write(str(path.parent), path.name, data)


def remove(path: Path) -> bool:
    """Have the store remove a file."""
    return store.remove(str(path.parent), path.name)


def look(path: Path) -> store.Found:
    """Have the store look at a path."""
    return promptly(lambda: store.look(str(path.parent), path.name))
