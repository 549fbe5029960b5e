"""Requests of all kinds to the broker, by root, at random: `npu_fuzz.py STATE SEED REQUESTS` prints as JSON how often what was answered.

Most are wrong in one thing: a field of the vNPU's identity, an id that stands for all or is another chip's, the version, the form. Some
are right in everything, and must destroy that vNPU unless it is in use. After each request the state of the simulator must be the one
before, less the vNPU whose whole identity was in the request. What it is not, is an AssertionError.
"""

import dataclasses
import json
import os
import random
import socket
import sys
import time
from collections import Counter
from typing import Any

from devward import names
from devward.boot import read_boot_id
from devward.npu.destruction import read_node
from devward.npu.facts import Expected
from devward.npu.numbering import WILDCARD
from devward.npu.protocol import REQUEST_LIMIT
from sim import dcmi_state

Identity = dict[str, Any]
#: Seconds for an answer: it must come, however slow the machine is.
LIMIT = 120.0
NUMBERS = (*range(-1, 18), 99, 100, 116, 1123, 1124, *(number for power in (16, 31, 32, 63, 64) for number in (2**power - 1, 2**power)))
OTHERS = (None, True, False, "", "100", 100.0, 1e400, -0.0, [], [100], {}, {"vdev": 100}, "\x00", "\ud800", "*", "x" * 300)


class Broker:
    """The broker, at the other end of its socket."""

    def __init__(self) -> None:
        """Connect when the first line is sent."""
        self._socket: socket.socket | None = None

    def ask(self, line: bytes) -> dict[str, Any] | None:
        """Send a line and return its answer; None where the broker closes the connection instead."""
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(LIMIT)
            self._socket.connect(names.BROKER_SOCKET)
        received = b""
        try:
            self._socket.sendall(line)
            while not received.endswith(b"\n"):
                data = self._socket.recv(1 << 16)
                if not data:
                    break
                received += data
        except (BrokenPipeError, ConnectionResetError):
            pass
        if not received.endswith(b"\n") or len(line) > REQUEST_LIMIT:
            self._socket.close()
            self._socket = None
        return json.loads(received) if received.endswith(b"\n") else None


class Fuzz:
    """Makes requests, and knows of each what it may do."""

    def __init__(self, state_file: str, chance: random.Random) -> None:
        """Begin with the vNPUs that there are."""
        self._file = state_file
        self._chance = chance
        self._boot = read_boot_id()
        self._last = 0
        self._text = ""
        self._state = dcmi_state.State()
        self.state = self.read()
        self.truths = {vnpu.id: self._truth(vnpu) for vnpu in self.state.vnpus}

    def read(self) -> dcmi_state.State:
        """Return the state as it is; the same object as long as nobody wrote it."""
        with open(self._file, encoding="ascii") as file:
            text = file.read()
        if text != self._text:
            self._text, self._state = text, dcmi_state.load(text)
        return self._state

    def _truth(self, vnpu: dcmi_state.Vnpu) -> Identity:
        chip = self.state.chip(vnpu.card, vnpu.dev)
        expected = Expected(self._boot, chip.card, chip.dev, chip.phy, chip.vdie, vnpu.id, vnpu.vfid or 0, vnpu.name, read_node(vnpu.id))
        return dataclasses.asdict(expected)

    def right(self, vdev: int) -> Identity:
        """Return a request that is right."""
        self._last += 1
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return {
            "version": 1, "id": self._last, "verb": "destroy", "request": f"fuzz-{self._last}", "expires_ns": now + 60 * 10**9,
            "runtime": "containerd://1.7.2", "expected": json.loads(json.dumps(self.truths[vdev])),
        }  # fmt: skip

    def wrong(self) -> bytes:
        """Return a line that is not quite right."""
        makers = (self._field, self._field, self._field, self._field, self._mixed, self._value, self._frame, self._form)
        while True:
            vdev = self._chance.choice(list(self.truths))
            make = self._chance.choice(makers)
            line = make(self.right(vdev))
            # Another value may be the same again, and two halves of one vNPU are that vNPU.
            if make in (self._frame, self._form) or not any(names_whole(line, truth) for truth in self.truths.values()):
                return line

    def _field(self, request: Identity) -> bytes:
        """One field of the identity is another valid value."""
        expected = request["expected"]
        other = self.truths[self._chance.choice(list(self.truths))]
        step = self._chance.choice((-1, 1))
        name = self._chance.choice([*expected, "vdev", "vdev", "inode", "ctime_ns", "major", "minor"])
        if name == "vdev":
            vdev = expected["vdev"]
            expected["vdev"] = self._chance.choice((WILDCARD, WILDCARD, vdev + step, vdev + 16 * step, *self.truths))
        elif name in expected["node"]:
            expected["node"][name] += step
        elif name in ("boot_id", "die"):
            at = self._chance.choice([at for at, letter in enumerate(expected[name]) if letter != "-"])
            digit = self._chance.choice("0123456789abcdef" if name == "boot_id" else "0123456789ABCDEF")
            expected[name] = expected[name][:at] + digit + expected[name][at + 1 :]
        elif name in ("node", "template"):
            expected[name] = self._chance.choice((other[name], "vir10_3c_32g")) if name == "template" else other[name]
        else:
            expected[name] = self._chance.choice((other[name], max(0, expected[name] + step)))
        return encode(request)

    def _mixed(self, request: Identity) -> bytes:
        """The identity is of two vNPUs."""
        other = self.truths[self._chance.choice(list(self.truths))]
        for name in request["expected"]:
            if self._chance.random() < 0.5:
                request["expected"][name] = other[name]
        return encode(request)

    def _value(self, request: Identity) -> bytes:
        """A value is of another kind, missing, or one too many."""
        place = self._chance.choice((request, request["expected"], request["expected"]["node"]))
        name = self._chance.choice(list(place))
        what = self._chance.randrange(4)
        if what == 0:
            del place[name]
        elif what == 1:
            place[f"{name}_"] = place[name]
        else:
            place[name] = self._chance.choice(NUMBERS + OTHERS)
        return encode(request)

    def _frame(self, request: Identity) -> bytes:
        """What is around the identity is wrong: version, verb, time, runtime, name."""
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        changes: tuple[Identity, ...] = (
            *({"version": version} for version in (0, 2, "1")),
            *({"verb": verb} for verb in ("create", "DESTROY", "list", "inspect")),
            *({"expires_ns": until} for until in (0, now - 1, now + 10**12)),
            *({"runtime": runtime} for runtime in ("containerd", "unheard-of://1")),
            *({"id": number} for number in (-1, 1 << 53)),
            {"request": "two words"},
        )
        return encode(request | self._chance.choice(changes))

    def _form(self, request: Identity) -> bytes:
        """It is no JSON object, or not the one that it seems to be."""
        line = encode(request)
        what = self._chance.randrange(8)
        if what == 0:
            return line[: self._chance.randrange(len(line))].rstrip(b"\n") + b"\n"
        if what == 1:
            at = self._chance.randrange(len(line) - 1)
            return line[:at] + bytes([self._chance.choice([byte for byte in range(256) if byte != 10])]) + line[at + 1 :]
        if what == 2:
            vdev = request["expected"]["vdev"]
            twice = f'"vdev":{self._chance.choice((WILDCARD, vdev + 1, vdev))},"vdev":{vdev}'
            return line.replace(f'"vdev":{vdev}'.encode(), twice.encode(), 1)
        if what == 3:
            return b"[" * self._chance.choice((10, 2000)) + line
        if what == 4:
            return self._chance.randbytes(self._chance.randrange(1, 2000)).replace(b"\n", b"\0") + b"\n"
        if what == 5:
            return line[:-1] + b" " * (REQUEST_LIMIT + 1000 - len(line)) + b"\n"
        if what == 6:
            return encode([request])
        return line[:-1] + line


def encode(value: object) -> bytes:
    """Return a line, of whatever JSON in Python's wider sense."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def unique(pairs: list[tuple[str, Any]]) -> Identity:
    """Take an object for what it seems to be only if no name is in it twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def names_whole(line: bytes, truth: Identity) -> bool:
    """Tell whether a line asks for the destruction of exactly this one."""
    if len(line) > REQUEST_LIMIT:
        return False
    try:
        request = json.loads(line, object_pairs_hook=unique)
    except ValueError:
        return False
    # As text: 1, 1.0 and true are equal in Python.
    return (
        isinstance(request, dict)
        and (request.get("version"), request.get("verb")) == (1, "destroy")
        and json.dumps(request.get("expected"), sort_keys=True) == json.dumps(truth, sort_keys=True)
    )


def main(state_file: str, seed: str, count: str) -> None:
    """Send, and look what becomes of it."""
    chance = random.Random(int(seed))
    fuzz, broker = Fuzz(state_file, chance), Broker()
    answers: Counter[str] = Counter()
    destroyed = 0
    # Half of those that nobody uses go; in between the others are asked for in vain.
    idle = [vnpu.id for vnpu in fuzz.state.vnpus if not vnpu.used]
    used = [vnpu.id for vnpu in fuzz.state.vnpus if vnpu.used]
    turns = chance.sample(range(int(count)), len(idle) // 2 + len(used))
    doomed = dict(zip(turns, chance.sample(idle, len(idle) // 2) + used, strict=True))
    for turn in range(int(count)):
        vdev = doomed.get(turn)
        if vdev not in fuzz.truths:
            vdev = None  # a change to a request had left it what it was
        line = encode(fuzz.right(vdev)) if vdev is not None else fuzz.wrong()
        before = fuzz.state
        answer = broker.ask(line)
        while answer is not None and answer.get("reason") == "busy":
            answers["busy"] += 1
            time.sleep(0.05)
            answer = broker.ask(line)
        answers["closed" if answer is None else answer.get("reason") or answer.get("outcome") or answer["status"]] += 1
        fuzz.state = fuzz.read()
        gone = [vnpu for vnpu in before.vnpus if vnpu not in fuzz.state.vnpus]
        left = [vnpu for vnpu in before.vnpus if vnpu not in gone]
        assert dataclasses.replace(before, vnpus=left, generation=0) == dataclasses.replace(fuzz.state, generation=0), (line, answer)
        assert len(gone) <= 1, (line, answer, gone)
        for vnpu in gone:
            assert names_whole(line, fuzz.truths[vnpu.id]), (line, answer, vnpu)
            assert not vnpu.used, (line, answer, vnpu)
            assert answer is not None
            assert answer.get("outcome") == "destroyed", (line, answer)
            del fuzz.truths[vnpu.id]
            destroyed += 1
        if vdev is not None and vdev in fuzz.truths:
            assert vdev in used, (line, answer)
    print(json.dumps({"answers": answers, "destroyed": destroyed, "left": len(fuzz.state.vnpus), "pid": os.getpid()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
