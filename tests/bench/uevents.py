"""Counts the kernel's uevents, so that a measurement knows what the daemon was told meanwhile (by whomever)."""

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator

_NETLINK_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
_SO_RCVBUFFORCE = 33
_KVM_CHANGE = b"change@/devices/virtual/misc/kvm"


@contextlib.contextmanager
def counted() -> Iterator["Counter[str]"]:
    """Count until the end of the block: KVM's own `create` and `destroy`, and `other`; complete once the block is left."""
    counts: Counter[str] = Counter()
    over = threading.Event()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_KOBJECT_UEVENT) as listener:
        listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
        listener.bind((0, _KERNEL_GROUP))
        listener.settimeout(0.2)

        def listen() -> None:
            while True:
                try:
                    data = listener.recv(65536)
                except TimeoutError:
                    if over.is_set():
                        return
                    continue
                header, *properties = data.split(b"\0")
                machine = next((one[6:].decode() for one in properties if one.startswith(b"EVENT=")), "")
                counts[machine if header == _KVM_CHANGE and machine else "other"] += 1

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield counts
        finally:
            over.set()
            thread.join()
