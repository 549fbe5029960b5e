"""The test's hand inside the virtual machine: runs commands that come over a virtio-serial port. Standard library only.

One JSON object a line in each direction. `{"id", "argv", "input", "timeout"}` is answered by `{"id", "code", "out"}`, where `out` is what
the command printed on both streams and a negative `code` the signal that ended it; -1000 means that it was killed after its time. Commands
run at the same time, each in a session of its own. The first line, `{"id": 0}`, says that the agent is there.
"""

import json
import os
import signal
import subprocess
import sys
import threading

TIMED_OUT = -1000

_writing = threading.Lock()


def answer(port: int, message: dict[str, object]) -> None:
    """Send one message whole."""
    data = json.dumps(message).encode() + b"\n"
    with _writing:
        while data:
            data = data[os.write(port, data) :]


def serve(port: int, request: dict[str, object]) -> None:
    """Run one command and send what became of it."""
    try:
        process = subprocess.Popen(
            request["argv"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, cwd="/"
        )
    except OSError as error:
        answer(port, {"id": request["id"], "code": 127, "out": str(error)})
        return
    try:
        out, _ = process.communicate(request["input"].encode(), timeout=request["timeout"])
        code = process.returncode
    except subprocess.TimeoutExpired as expired:
        os.killpg(process.pid, signal.SIGKILL)
        out, code = expired.stdout or b"", TIMED_OUT
    answer(port, {"id": request["id"], "code": code, "out": out.decode(errors="replace")})


def main(path: str) -> None:
    """Serve for ever."""
    port = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    answer(port, {"id": 0})
    with os.fdopen(os.dup(port), "rb") as lines:
        for line in lines:
            threading.Thread(target=serve, args=(port, json.loads(line)), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
