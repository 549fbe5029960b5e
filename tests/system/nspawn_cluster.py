"""An API server, and a name server that knows one name, on 127.0.0.1 of the network that this is started in, until standard input ends.

    nspawn_cluster.py DIRECTORY NAME

Writes `kubelet.conf`, a kubeconfig that holds the credentials of the kubelet, to the directory. NAME is the name; its address is 127.0.0.1.
Prints a line when both listen; each line of input is answered by the requests since the one before, as JSON. A line may say something:

    host BOOT MACHINE     the Node is this host's from now on
    beat                  HAMi reports once more
    always KIND FAULT     requests of a kind are answered so; `good`: truly again
    pods NAME[=OTHER][@CARD]...
                          the node has these of its recorded Pods and no others, with the status of another one where that is said; those
                          with a number have that NPU instead of the first one
    set KIND PATH VALUE   an answer has a value, of JSON without a space, at a path with `|` between its keys; without a value: has it not
"""

import functools
import json
import socket
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sim.api_lists import of_host
from sim.api_pki import data, write_kubeconfig
from sim.api_server import ApiServer
from sim.recorded_cluster import DIES, pods_of

#: Of a client without a certificate.
TOKEN = "granted"
ADDRESS = 1
#: What was recorded, that the node is in.
STATE = "01"


def answer(question: bytes, known: bytes) -> bytes:
    """Return the answer to a message of DNS with one question (RFC 1035, 4.1)."""
    end = question.index(b"\0", 12) + 5
    name, kind = question[12 : end - 4].lower(), int.from_bytes(question[end - 4 : end - 2], "big")
    found = name == known and kind == ADDRESS
    # A response, by one who may recurse; 3: there is no such name.
    flags = 0x8180 if name == known else 0x8183
    head = question[:2] + flags.to_bytes(2, "big") + bytes((0, 1, 0, int(found), 0, 0, 0, 0))
    # The name is that of the question, at byte 12; class Internet, for 60 seconds, four bytes.
    record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + bytes((127, 0, 0, 1))
    return head + question[12:end] + (record if found else b"")


def know(name: str) -> None:
    """Answer for a name from now on."""
    known = b"".join(bytes((len(label),)) + label for label in name.encode().split(b".")) + b"\0"
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(("127.0.0.1", 53))

    def serve() -> None:
        while True:
            question, who = listener.recvfrom(512)
            listener.sendto(answer(question, known), who)

    threading.Thread(target=serve, daemon=True).start()


def chosen(wanted: list[str]) -> bytes:
    """Return a list of recorded Pods, by their names, each with the card that is said."""
    document = json.loads(pods_of(STATE))
    by_name = {pod["metadata"]["name"]: pod for pod in document["items"]}
    document["items"] = []
    for text in wanted:
        who, _, card = text.partition("@")
        name, _, other = who.partition("=")
        pod = by_name[name] | {"status": by_name[other or name]["status"]}
        document["items"].append(json.loads(json.dumps(pod).replace(DIES[0], DIES[int(card or 0)])))
    return json.dumps(document).encode()


def obey(server: ApiServer, words: list[str], beats: int) -> None:
    """Do what a line says."""
    match words:
        case ["host", boot_id, machine_id]:
            server.bodies["node"] = of_host(server.bodies["node"], boot_id, machine_id)
            server.renews_lease = True
        case ["beat"]:
            node = json.loads(server.bodies["node"])
            (name,) = (name for name in node["metadata"]["annotations"] if name.startswith("hami.io/node-handshake-"))
            node["metadata"]["annotations"][name] = f"Reported_{beats}"
            server.bodies["node"] = json.dumps(node).encode()
        case ["pods", *wanted]:
            server.bodies["pods"] = chosen(wanted)
        case ["set", kind, path, *value]:
            document = json.loads(server.bodies[kind])
            *parents, last = path.split("|")
            inner = functools.reduce(lambda one, key: one.setdefault(key, {}), parents, document)
            inner.pop(last, None)
            inner |= {last: json.loads(value[0])} if value else {}
            server.bodies[kind] = json.dumps(document).encode()
        case ["always", kind, fault]:
            server.always(kind, None if fault == "good" else fault)


def main() -> None:
    """Serve until standard input ends."""
    directory, name = Path(sys.argv[1]), sys.argv[2]
    know(name)
    with ApiServer() as server:
        server.state(STATE)
        server.tokens.add(TOKEN)
        pair = server.authority.client(f"system:node:{server.node}")
        user = {"client-certificate-data": data(pair.certificate), "client-key-data": data(pair.key)}
        write_kubeconfig(directory / "kubelet.conf", server.url, server.authority.certificate, user)
        print("ready", flush=True)
        told = 0
        for beats, line in enumerate(sys.stdin):
            obey(server, line.split(), beats)
            requests = server.requests[told:]
            told += len(requests)
            print(json.dumps([[request.method, request.kind, request.client] for request in requests]), flush=True)


if __name__ == "__main__":
    main()
