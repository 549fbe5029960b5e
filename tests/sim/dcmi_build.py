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


def _build(cache: Path, name: str, sources: list[Path], flags: list[str], extra: str = "") -> Path:
    digest = hashlib.sha256(repr((flags, extra)).encode())
    for file in [*sources, *sorted((_SIM / "dcmi").glob("*.h"))]:
        digest.update(file.read_bytes())
    place = cache / digest.hexdigest()[:16]
    if (place / name).exists():
        return place / name
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        script = Path(scratch, "symbols.map")
        if extra:
            script.write_text(extra)
            flags = [*flags, f"-Wl,--version-script={script}"]
        command = ["gcc", *_FLAGS, *flags, "-o", f"{scratch}/{name}", *map(str, sources), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
        place.mkdir(exist_ok=True)
        os.rename(f"{scratch}/{name}", place / name)
    return place / name


def build_library(cache: Path, *, symbols: Iterable[str] | None = None, absent: Iterable[str] = (), sanitize: bool = False) -> Path:
    """Return the path of a libdcmi.so with these symbols, those of the first generation by default, less the absent ones."""
    chosen = (first_symbols() if symbols is None else frozenset(symbols)) - frozenset(absent)
    if unknown := (chosen | frozenset(absent)) - all_symbols():
        raise ValueError(f"the library has no {', '.join(sorted(unknown))}")
    script = f"{{ global: {' '.join(f'{name};' for name in sorted(chosen))} local: *; }};\n"
    flags = ["-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libdcmi.so", *(_SANITIZE if sanitize else ())]
    return _build(cache, "libdcmi.so", _sources(), flags, script)


def build_client(cache: Path, *, sanitize: bool = False) -> Path:
    """Return the path of the client in C: `dcmi_client LIBRARY COMMAND...`."""
    return _build(cache, "dcmi_client", [_SIM / "dcmi_client.c"], list(_SANITIZE if sanitize else ()))
