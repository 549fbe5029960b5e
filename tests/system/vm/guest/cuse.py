"""A character device in user space: a real node with a real number, and a driver that does what a test wants. Standard library only.

    cuse.py NAME BEHAVIOUR LOG      make /dev/NAME until killed; LOG gets a word for each request

BEHAVIOUR is `answer` (open succeeds, ioctl says ENOTTY), `hold` (a request for open is taken and never answered) or `ignore` (it is not
even taken). The protocol is that of <linux/fuse.h>; this speaks version 7.31 of it.
"""

import errno
import os
import signal
import struct
import sys

CUSE_INIT, OPEN, RELEASE, INTERRUPT, IOCTL = 4096, 14, 18, 36, 39
WORDS = {OPEN: "open", RELEASE: "release", INTERRUPT: "interrupt", IOCTL: "ioctl"}
IN_HEADER = struct.Struct("<IIQQIIII")
OUT_HEADER = struct.Struct("<IiQ")


def answer(channel: int, unique: int, data: bytes = b"", error: int = 0) -> None:
    """Answer a request."""
    os.write(channel, OUT_HEADER.pack(OUT_HEADER.size + len(data), -error, unique) + data)


def main(name: str, behaviour: str, log: str) -> None:
    """Make the device and serve it."""
    channel = os.open("/dev/cuse", os.O_RDWR | os.O_CLOEXEC)
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    while True:
        request = os.read(channel, 1 << 17)
        _, opcode, unique, *_ = IN_HEADER.unpack_from(request)
        if opcode == CUSE_INIT:
            # major, minor, unused, flags, max_read, max_write; the kernel chooses the device number
            answer(channel, unique, struct.pack("<IIIIII", 7, 31, 0, 0, 4096, 4096) + bytes(48) + f"DEVNAME={name}\0".encode())
            if behaviour == "ignore":
                signal.pause()
            continue
        os.write(said, (WORDS.get(opcode, str(opcode)) + "\n").encode())
        if opcode == INTERRUPT or (opcode == OPEN and behaviour == "hold"):
            continue
        if opcode == OPEN:
            answer(channel, unique, bytes(16))
        elif opcode == RELEASE:
            answer(channel, unique)
        else:
            answer(channel, unique, error=errno.ENOTTY if opcode == IOCTL else errno.ENOSYS)


if __name__ == "__main__":
    main(*sys.argv[1:])
