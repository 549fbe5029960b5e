"""A client that sends calls as fast as the bus takes them and reads no answer: `bus_flood.py SOCKET COUNT`."""

import os
import socket
import sys

from dbus_next import Message, MessageFlag


def message(serial: int, **fields: object) -> bytes:
    return bytes(Message(serial=serial, **fields)._marshall())


def main(path: str, count: int) -> None:
    bus = "org.freedesktop.DBus"
    hello = message(1, destination=bus, path="/org/freedesktop/DBus", interface=bus, member="Hello")
    flags = MessageFlag.NO_REPLY_EXPECTED
    ping = message(2, destination="org.devward.Devward1", path="/", interface="org.freedesktop.DBus.Peer", member="Ping", flags=flags)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
        connection.recv(200)
        connection.sendall(b"BEGIN\r\n" + hello)
        connection.recv(4096)
        for _ in range(count // 100):
            connection.sendall(ping * 100)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
