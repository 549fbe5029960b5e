"""What container engines see that read the file while somebody tampers with it and devward repairs it."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from bench.figure import Bar, Figure, Figures
from bench.setting import SPEC, UNCONTESTED, Broken, daemon, need_kvm

READERS = 4
#: Seconds between two tamperings, at most.
PAUSE = 0.006
NONE = Bar("worst", 0)


def measure(quick: bool) -> Figures:
    """Yield how many of the reads were of neither document, and how many met no file."""
    need_kvm()
    reads = 40_000 if quick else 1_000_000
    dice = random.Random()
    with daemon(UNCONTESTED) as process:
        right = process.directory / "right.json"
        right.write_bytes(process.spec.read_bytes())
        # Complete and valid, and another size: the two cannot be mistaken for one another, nor for a mixture.
        document = json.loads(right.read_bytes())
        document["devices"][0]["containerEdits"]["env"] += [f"TAMPERED_{number}=1" for number in range(200)]
        wrong = process.directory / "wrong.json"
        wrong.write_text(json.dumps(document))
        before = process.get(SPEC, "Spec", "RepairCount")
        program = [sys.executable, str(Path(__file__).with_name("reader.py")), str(process.spec), str(right), str(wrong)]
        readers = [
            subprocess.Popen([*program, str(reads // READERS)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) for _ in range(READERS)
        ]
        tampered = 0
        try:
            while any(reader.poll() is None for reader in readers):
                temporary = process.directory / "next.json"
                temporary.write_bytes(wrong.read_bytes())
                os.rename(temporary, process.spec)
                tampered += 1
                time.sleep(dice.random() * PAUSE)
        finally:
            for reader in readers:
                reader.kill()
            answers = [reader.communicate()[0] for reader in readers]
        repairs = int(str(process.get(SPEC, "Spec", "RepairCount"))) - int(str(before))
    counts = [json.loads(answer) for answer in answers]
    seen = {name: sum(count[name] for count in counts) for name in counts[0]}
    total = sum(seen.values())
    if not seen["one"] or not seen["other"] or not repairs:
        raise Broken(f"the readers did not meet both documents: {seen}, {repairs} repairs")
    note = f"{seen['other']} whole tampered, {seen['one']} whole right; {tampered} tamperings, {repairs} repairs, {READERS} readers"
    yield Figure("readers: torn", "reads", [seen["torn"]], NONE, note, total)
    yield Figure("readers: no file", "reads", [seen["absent"]], NONE, "", total)
