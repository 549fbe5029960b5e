#!/usr/bin/python3
"""A stand-in for the kubelet: it writes checkpoints of device allocations, good and bad ones, and listens where a kubelet does.

By hand: `/usr/bin/python3 tests/sim/kubelet.py --help`.
"""

import argparse
import contextlib
import ctypes
import os
import random
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sim.kubelet_checkpoint import (
    BY_NUMA_NODE,
    DEFECTS,
    LIST,
    PLACES,
    Allocated,
    document,
    encoded,
    hami_response,
    remove,
    write,
)

_PR_SET_NAME: Final = 15


@contextlib.contextmanager
def listening(plugins: Path, root: Path | None) -> Iterator[None]:
    """Listen as the kubelet does: for plugins under the socket's own name, for pod-resources under a temporary one that is then renamed."""
    with contextlib.ExitStack() as stack:
        places = [(plugins / "kubelet.sock", plugins / "kubelet.sock")]
        if root is not None:
            resources = root / "pod-resources"
            places.append((resources / str(random.randrange(10**9)), resources / "kubelet.sock"))
        for bound, final in places:
            final.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            final.unlink(missing_ok=True)
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(bound))
            server.listen()
            bound.rename(final)
            stack.callback(final.unlink, missing_ok=True)
        yield


def rename_process(name: str) -> None:
    """Take the name by which the kernel lists this process."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def allocated(text: str, registered: dict[str, Sequence[str]], dice: random.Random) -> Allocated:
    """Return the entry that `UID/CONTAINER/RESOURCE=CARDS[:TEMPLATE]` means; its device ids are any of the resource's."""
    who, _, what = text.partition("=")
    pod_uid, container, resource = who.split("/", 2)
    cards, _, template = what.partition(":")
    numbers = [int(card) for card in cards.split(",")]
    known = registered.get(resource) or [f"A1B2C3D4-{card}" for card in numbers]
    ids = dice.sample(list(known), min(len(numbers), len(known)))
    return Allocated(pod_uid, ids, hami_response(numbers, template, dice), container, resource)


def case_of(text: str) -> tuple[str, str]:
    """Return a defect and a case of it; the first where none is named."""
    code, _, case = text.partition(":")
    cases = {**DEFECTS, **PLACES}.get(code)
    if cases is None or (case and case not in cases):
        raise argparse.ArgumentTypeError(f"no such defect: {text}")
    return code, case or next(iter(cases))


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    defects = "".join(f"  {code}: {', '.join(cases)}\n" for code, cases in {**DEFECTS, **PLACES}.items())
    result = argparse.ArgumentParser(
        prog="tests/sim/kubelet.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Writes a checkpoint of device allocations as the kubelet's device manager does. With --listen it stays, and can be\n"
        "found as the kubelet can, until its standard input ends.",
        epilog=f"defects and their cases:\n{defects}",
    )
    result.add_argument("--directory", type=Path, required=True, help="the directory of device plugins; made if it is missing")
    result.add_argument("--form", choices=[BY_NUMA_NODE, LIST], default=BY_NUMA_NODE, help="since Kubernetes 1.20, or before")
    result.add_argument("--entry", action="append", default=[], metavar="UID/CONTAINER/RESOURCE=CARDS[:TEMPLATE]", help="as HAMi answers")
    result.add_argument("--register", action="append", default=[], metavar="RESOURCE=ID,…", help="healthy devices of a plugin")
    result.add_argument("--defect", type=case_of, metavar="DEFECT[:CASE]", help="write it with this defect")
    result.add_argument("--seed", type=int, help="of the random order of maps")
    result.add_argument("--listen", action="store_true", help="stay, and listen on kubelet.sock")
    result.add_argument("--listen-only", action="store_true", help="the same, without writing a checkpoint")
    result.add_argument("--root-dir", type=Path, help="listen in pod-resources there, too")
    result.add_argument("--name", default="kubelet", help="what the kernel calls the process (default: kubelet)")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    line = parser()
    given = line.parse_args(arguments)
    if given.defect and given.defect[0] in DEFECTS and len(given.entry) < 2:
        line.error("a defect needs two entries to show in")
    dice = random.Random(given.seed)
    registered = {resource: ids.split(",") if ids else [] for resource, _, ids in (text.partition("=") for text in given.register)}
    given.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    if not given.listen_only:
        entries = [allocated(text, registered, dice) for text in given.entry]
        data = encoded(document(entries, registered, form=given.form, dice=dice))
        code, case = given.defect or ("", "")
        if code in PLACES:
            remove(given.directory)
            PLACES[code][case](given.directory, data)
        else:
            write(given.directory, DEFECTS[code][case](data) if code else data, dice)
    if given.listen or given.listen_only:
        with listening(given.directory, given.root_dir):
            rename_process(given.name)
            print("ready", flush=True)
            while os.read(0, 4096):
                pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
