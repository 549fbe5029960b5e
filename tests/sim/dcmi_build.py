"""Building the DCMI simulator and its second client with gcc, into a directory of the caller; what was built before is taken from there."""

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_SIM: Final = Path(__file__).parent
_FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread")
_SANITIZE: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


def _sources() -> list[Path]:
    return [_SIM / "libdcmi.c", *sorted((_SIM / "dcmi").glob("*.c"))]


def all_symbols() -> frozenset[str]:
    """Return the name of every function that the library can have, of both generations."""
    return frozenset(name for source in _sources() for name in re.findall(r"^EXPORT int (\w+)\(", source.read_text(), re.MULTILINE))


def first_symbols() -> frozenset[str]:
    """Return the functions that take a card and a device."""
    return frozenset(name for name in all_symbols() if name.startswith("dcmi_"))


def second_symbols() -> frozenset[str]:
    """Return the functions of the library for the 950."""
    return all_symbols() - first_symbols()


def _build(cache: Path, name: str, inputs: list[Path], flags: list[str], script: str = "") -> Path:
    """Compile or link into a place of the cache that is named by all that goes in."""
    digest = hashlib.sha256(repr((flags, script)).encode())
    for file in [*inputs, *sorted((_SIM / "dcmi").glob("*.h"))]:
        digest.update(file.read_bytes())
    place = cache / digest.hexdigest()[:16]
    if (place / name).exists():
        return place / name
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        if script:
            Path(scratch, "symbols.map").write_text(script)
            flags = [*flags, f"-Wl,--version-script={scratch}/symbols.map"]
        command = ["gcc", *_FLAGS, *flags, "-o", f"{scratch}/{name}", *map(str, inputs), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
        place.mkdir(exist_ok=True)
        os.rename(f"{scratch}/{name}", place / name)
    return place / name


def build_library(cache: Path, *, symbols: Iterable[str] | None = None, absent: Iterable[str] = (), sanitize: bool = False) -> Path:
    """Return the path of a libdcmi.so with these symbols, those of the first generation by default, less the absent ones."""
    absent = frozenset(absent)
    chosen = (first_symbols() if symbols is None else frozenset(symbols)) - absent
    if unknown := (chosen | absent) - all_symbols():
        raise ValueError(f"the library has no {', '.join(sorted(unknown))}")
    sanitizers = list(_SANITIZE if sanitize else ())
    # Compiled once; what the variants differ in is the linking.
    whole = _build(cache, "dcmi.o", _sources(), ["-fPIC", "-r", "-nostdlib", "-fvisibility=hidden", *sanitizers])
    script = f"{{ global: {' '.join(f'{name};' for name in sorted(chosen))} local: *; }};\n"
    return _build(cache, "libdcmi.so", [whole], ["-shared", "-Wl,-soname,libdcmi.so", *sanitizers], script)


def build_client(cache: Path, *, sanitize: bool = False) -> Path:
    """Return the path of the client in C: `dcmi_client LIBRARY COMMAND...`."""
    return _build(cache, "dcmi_client", [_SIM / "dcmi_client.c"], list(_SANITIZE if sanitize else ()))
