"""Programs in a mount namespace of their own, so that a test can mount what it likes and the host sees nothing of it. They need root."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src"

_PRELUDE = """
import json, os, subprocess, sys

def mount(*words):
    subprocess.run(["mount", *words], check=True)

"""


def run_in_private_mounts(program: str, *arguments: object) -> Any:
    """Run a Python program, which has `mount(*words)` and may import devward, and return the JSON value of its last line of output."""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-B", "-c", _PRELUDE + program, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(SOURCE)})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
