"""The support bundle: what is taken out of it, how the file is made, what is told about the host."""

import io
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.ctl import arguments, host, journal, redact, report
from devward.ctl.context import Context
from devward.ctl.failure import Failure
from devward.ctl.terminal import Capabilities, Screen
from sim.patience import must_not_block

SECRETS = [
    "Authorization: Bearer abcdefghij0123456789",
    "token=abcdefghij0123456789",
    "K8S_TOKEN: abcdefghij0123456789",
    'password="abcdefghij 0123456789"',
    "user=x,passwd=abcdefghij0123456789,uid=0",
    "https://me:abcdefghij0123456789@host/path",
    "eyJhbGciOiJSUzI1NiJ9.abcdefghij0123456789.abcdefghij0123456789",
    "-----BEGIN RSA PRIVATE KEY-----\nabcdefghij0123456789\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN CERTIFICATE-----\nabcdefghij0123456789",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_taken_out_and_the_rest_stays(secret: str) -> None:
    shown = redact.text(f"before {secret} after")
    assert "0123456789" not in shown
    assert redact.REDACTED in shown
    assert shown.startswith("before ")


@pytest.mark.parametrize(
    "harmless", ["/dev/kvm: usable", "mode=0660 uid=0", "hyperlight.dev/hypervisor=kvm", "2026-01-01T00:00:00Z", "a: b"]
)
def test_what_is_no_secret_stays(harmless: str) -> None:
    assert redact.text(harmless) == harmless


def test_json_stays_json() -> None:
    shown = redact.value({"token": {"a": 1}, "text": ["password: hunter2hunter2", 5, None], "plain": True})
    assert shown == {"token": redact.REDACTED, "text": ["password: [redacted]", 5, None], "plain": True}


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text())))
def test_any_value_can_be_redacted(value: dict[str, object]) -> None:
    json.dumps(redact.value(value))


@pytest.mark.parametrize("piece", ["a", "token", "eyJ", "-----BEGIN A-----", "://a", "basic ", 'token="', "=", "A.-_"])
def test_a_long_text_takes_no_longer_than_its_length(piece: str) -> None:
    with must_not_block():
        redact.text(piece * (1_000_000 // len(piece)))


UID, OTHER, REQUEST = "11111111-2222-4333-8444-555555555555", "66666666-7777-4888-9999-000000000000", "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
STATIC = "0123456789abcdef0123456789abcdef"
DESCRIBED = {
    "ownership": {"blocked": [{"reason": "annotation-malformed", "who": UID, "text": f"Pod {UID}: odd."}, {"reason": "x", "who": "pods"}]},
    "cards": [{"name": "p007", "uid": 0, "claims": [{"uid": UID, "pod": "team-a/train-model-0"}, {"uid": STATIC, "pod": "kube-system/a"}]}],
}


def bundle_of(described: object, status: object = None, log: str = "", records: list[dict[str, object]] | None = None) -> report.Bundle:
    made = report.Bundle()
    made.add("log.txt", log)
    made.add_json("describe.json", described)
    made.add_json("status.json", status)
    made.add_json("history.json", records)
    made.pods.keep(REQUEST)
    made.hide_pods()
    return made


def test_the_name_of_what_makes_pods_is_hidden_with_its_namespace_and_is_a_word_without() -> None:
    leaks = {"by_owner": [{"uid": UID, "kind": "Job", "owner_name": "ml/candidate"}]}
    log = bundle_of({"leaks": leaks}, log="It is a candidate.\nPods of ml/candidate failed.\n").files["log.txt"]
    assert log.splitlines() == ["It is a candidate.", "Pods of [pod 1] failed."]


def test_pods_are_numbers_and_each_is_the_same_everywhere() -> None:
    log = (
        f"Pod {UID}: odd.\nin kubepods-besteffort-pod{UID.replace('-', '_')}.slice of /var/lib/kubelet/pods/{UID}/volumes\n"
        f"request {REQUEST}\nteam-a/train-model-0 and kube-system/a and train-model-0.\n/pod{STATIC}/x\nother {OTHER.upper()}\n"
    )
    status = {"manager": {"blocked_reasons": ["api-forbidden", f"annotation-malformed {UID}"]}, "cards": [{"claims": [UID, "short"]}]}
    files = bundle_of(DESCRIBED, status, log, [{"pod_uid": UID, "request_id": REQUEST}]).files
    everything = "".join(files.values())
    for hidden in (UID, UID.replace("-", "_"), OTHER, OTHER.upper(), STATIC, "train-model-0", "kube-system/a"):
        assert hidden not in everything
    assert files["log.txt"].splitlines() == [
        "Pod [pod 1]: odd.",
        "in kubepods-besteffort-pod[pod 1].slice of /var/lib/kubelet/pods/[pod 1]/volumes",
        f"request {REQUEST}",
        "[pod 1] and [pod 2] and [pod 1].",
        "/pod[pod 2]/x",
        "other [pod 4]",
    ]
    shown = json.loads(files["describe.json"])
    assert shown["ownership"]["blocked"] == [
        {"reason": "annotation-malformed", "who": "[pod 1]", "text": "Pod [pod 1]: odd."},
        {"reason": "x", "who": "pods"},
    ]
    assert shown["cards"][0] == {
        "name": "p007",
        "uid": 0,
        "claims": [{"uid": "[pod 1]", "pod": "[pod 1]"}, {"uid": "[pod 2]", "pod": "[pod 2]"}],
    }
    shown = json.loads(files["status.json"])
    assert shown["manager"]["blocked_reasons"] == ["api-forbidden", "annotation-malformed [pod 1]"]
    assert shown["cards"] == [{"claims": ["[pod 1]", "[pod 3]"]}]
    assert json.loads(files["history.json"]) == [{"pod_uid": "[pod 1]", "request_id": REQUEST}]


@pytest.mark.parametrize("uid", ["0", "null", "true", "e5", "n"])
def test_a_uid_that_is_a_word_of_json(uid: str) -> None:
    made = bundle_of([0, None, True, 1e5, {"uid": uid, "text": f"Pod {uid}."}])
    assert json.loads(made.files["describe.json"]) == [0, None, True, 1e5, {"uid": "[pod 1]", "text": "Pod [pod 1]."}]


def test_a_pod_that_one_member_alone_names() -> None:
    made = bundle_of({"pod_uid": "u-9", "pod": "b/c", "manager": {"blocked_reasons": [f"odd {STATIC}"]}})
    assert json.loads(made.files["describe.json"]) == {
        "pod_uid": "[pod 1]",
        "pod": "[pod 2]",
        "manager": {"blocked_reasons": ["odd [pod 3]"]},
    }


def test_pods_in_the_records_are_numbers_and_requests_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    record = journal.Record(5, f"of request {REQUEST}", 6, {"pod_uid": "u-9", "request_id": REQUEST})

    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(report.journal, "read", lambda *_: [record])
    monkeypatch.setattr(report.subprocess, "run", absent)
    screen = Screen(io.StringIO(), Capabilities())
    made = report.Bundle()
    report._collect_journal(
        Context(arguments.parse(["report"]), screen, screen, {}, stdin_is_terminal=False, realtime_usec=lambda: 1), made
    )
    made.hide_pods()
    (shown,) = map(json.loads, made.files["history.jsonl"].splitlines())
    assert (shown["pod_uid"], shown["request_id"], shown["message"]) == ("[pod 1]", REQUEST, f"of request {REQUEST}")
    assert made.problems == ["history.jsonl, log.txt: [Errno 2] No such file or directory"]


def test_what_is_no_pod_keeps_its_name() -> None:
    harmless = {
        "die_id": "01234567-89ABCDEF-01234567-89ABCDEF-00000007",
        "identity": "01234567-89ABCDEF-01234567-89ABCDEF-00000007/212/vir05_1c_16g#0123456789abcdef",
        "message_id": "fedcba9876543210fedcba9876543210",
        "path": "/var/lib/devward/backup/x.json",
        "claims": 5,
        "blocked_reasons": "none",
        "text": "team-a/other, a model of train-model-01",
    }
    made = bundle_of(DESCRIBED, harmless)
    assert json.loads(made.files["status.json"]) == harmless


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["uid", "pod", "who", "claims", "blocked_reasons", "x"]), inner),
        max_leaves=8,
    ),
    st.text(),
)
def test_any_bundle_can_be_numbered(value: object, log: str) -> None:
    made = bundle_of(value, log=log)
    json.loads(made.files["describe.json"])


@pytest.mark.parametrize("piece", ["a", "a/", "0", "0-", "A.-_", "/", "01234567-", f"{UID} "])
def test_numbering_takes_no_longer_than_the_text_is_long(piece: str) -> None:
    with must_not_block():
        bundle_of(DESCRIBED, log=piece * (1_000_000 // len(piece)))


def members(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {one.name.partition("/")[2]: io.TextIOWrapper(archive.extractfile(one)).read() for one in archive.getmembers()}  # type: ignore[arg-type]


def test_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "r.tar.gz"
    before = os.umask(0)
    try:
        report.write(str(path), "name", {"a.txt": "x", "b.txt": "\udcff"}, 1_800_000_000_000_000)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert members(path) == {"a.txt": "x", "b.txt": "\\udcff"}
    with tarfile.open(path) as archive:
        assert {one.mode for one in archive.getmembers()} == {0o600}
        assert {one.mtime for one in archive.getmembers()} == {1_800_000_000}
        assert all(one.name.startswith("name/") for one in archive.getmembers())


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "directory"])
def test_nothing_is_overwritten(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "r.tar.gz", tmp_path / "other"
    if kind == "file":
        path.write_text("mine")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(other)
        if kind == "link":
            other.write_text("mine")
    with pytest.raises(Failure, match=r"exists already|cannot be written"):
        report.write(str(path), "name", {"a.txt": "x"}, 1)
    assert not other.exists() or other.read_text() == "mine"
    assert kind != "file" or path.read_text() == "mine"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "_pack", full)
    with pytest.raises(Failure, match="No space left"):
        report.write(str(tmp_path / "r.tar.gz"), "name", {"a.txt": "x"}, 1)
    assert list(tmp_path.iterdir()) == []


def test_no_such_directory(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="No such file"):
        report.write(str(tmp_path / "none" / "r.tar.gz"), "name", {}, 1)


@pytest.mark.parametrize(("node", "safe"), [("node-a.example", "node-a.example"), ("../x y", "x-y"), ("", "host"), ("\x1b", "host")])
def test_the_name(node: str, safe: str) -> None:
    assert report.bundle_name(node, 1_800_000_000_000_000) == f"devward-report-{safe}-20270115T080000Z"


def test_mounts_on_above_and_below() -> None:
    points = ["/", "/dev", "/dev/pts", "/devices", "/etc", "/etc/cdi", "/var"]
    lines = [f"{number} 1 0:1 / {point} rw - tmpfs tmpfs rw" for number, point in enumerate(points)]
    kept = host.mounts("\n".join([*lines, "odd"]), ["/dev", "/etc/cdi"]).split("\n")
    assert [line.split()[4] for line in kept if line] == ["/", "/dev", "/dev/pts", "/etc", "/etc/cdi"]


def test_a_listing_says_what_stands_there_without_following_or_reading(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("secret")
    (tmp_path / "l.json").symlink_to("/etc/passwd")
    (tmp_path / "x\x1b.json").write_text("")
    os.mkfifo(tmp_path / "f.json")
    shown = host.listing(str(tmp_path))
    assert "secret" not in shown
    assert f"{tmp_path}/l.json -> /etc/passwd" in shown
    assert "prw" in shown
    assert "\x1b" not in shown
    assert "10:232" not in shown
    assert "No such file" in host.listing(str(tmp_path / "none"))
    assert host.describe("/dev/null").split()[3] == "1:3"


def test_the_nodes_of_npus_are_listed_where_there_are_any(tmp_path: Path) -> None:
    for entry in ("davinci7", "davinci_manager", "vdavinci212", "sda", "x\x1b"):
        (tmp_path / entry).write_text("")
    shown = host.nodes(str(tmp_path))
    assert f"{tmp_path}/kvm: No such file or directory" in shown
    assert [line.rpartition("/")[2] for line in shown.splitlines()[2:]] == ["davinci7", "davinci_manager", "vdavinci212"]
    assert len(host.nodes(str(tmp_path / "none")).splitlines()) == 2


def test_versions() -> None:
    shown = host.versions([("true", "--version"), ("devward-no-such-program", "--version")])
    assert shown.startswith("devwardctl ")
    assert "kernel " in shown
    assert "devward-no-such-program" not in shown
