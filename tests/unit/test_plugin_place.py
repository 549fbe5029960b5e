"""The directory of device plugins: who may be in it, and what stands where a socket of ours is to be."""

import os
import socket
from pathlib import Path

import pytest

from devward.plugin import place
from devward.plugin.place import PlaceError
from devward.plugin.status import PluginProblem
from sim.entries import tick


def bind(path: Path, *, listen: bool = True) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    if listen:
        made.listen()
    return made


@pytest.fixture(name="directory")
def _directory(tmp_path: Path) -> Path:
    made = tmp_path / "dp"
    made.mkdir(mode=0o750)
    return made


def problem(directory: Path) -> PluginProblem:
    with pytest.raises(PlaceError) as caught:
        place.look(str(directory), "")
    assert caught.value.detail.isprintable()
    with pytest.raises(PlaceError) as again:
        place.prepare(str(directory))
    assert again.value.problem is caught.value.problem
    return caught.value.problem


def test_an_empty_directory_shows_no_kubelet(directory: Path) -> None:
    sight = place.look(str(directory), "")
    assert (sight.kubelet, sight.own, sight.neighbours) == (None, None, ())


def test_a_directory_that_is_not_there_or_is_none(directory: Path) -> None:
    assert problem(directory / "none") is PluginProblem.DIRECTORY_MISSING
    (directory / "file").write_text("")
    assert problem(directory / "file") is PluginProblem.DIRECTORY_MISSING
    assert problem(directory / "a\nb") is PluginProblem.DIRECTORY_MISSING


@pytest.mark.parametrize("mode", [0o770, 0o757, 0o1777])
def test_a_directory_in_which_others_may_write_is_refused(directory: Path, mode: int) -> None:
    directory.chmod(mode)
    assert problem(directory) is PluginProblem.DIRECTORY_UNSAFE


def test_a_directory_of_somebody_else_is_refused(directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: to give a directory away")
    os.chown(directory, 65534, 65534)
    assert problem(directory) is PluginProblem.DIRECTORY_UNSAFE


def test_links_to_the_directory_are_followed(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(directory)
    with bind(directory / "kubelet.sock"):
        assert place.look(str(tmp_path / "link"), "").kubelet is not None


def test_only_sockets_are_the_kubelets_or_ours(directory: Path) -> None:
    (directory / "kubelet.sock").write_text("")
    (directory / "own.sock").symlink_to("kubelet.sock")
    sight = place.look(str(directory), "own.sock")
    assert (sight.kubelet, sight.own) == (None, None)


def test_a_socket_that_was_made_anew_is_another_one(directory: Path) -> None:
    seen = set()
    for _ in range(50):
        # Its inode may be the one of before.
        tick(directory)
        with bind(directory / "kubelet.sock"):
            seen.add(place.look(str(directory), "").kubelet)
        (directory / "kubelet.sock").unlink()
    assert len(seen) == 50


def test_neighbours_are_other_sockets(directory: Path) -> None:
    (directory / "kubelet_internal_checkpoint").write_text("{}")
    with (
        bind(directory / "kubelet.sock"),
        bind(directory / "a.sock"),
        bind(directory / "devward-01234567.sock"),
        bind(directory / "own.sock"),
    ):
        assert [found.name for found in place.look(str(directory), "own.sock").neighbours] == ["a.sock"]


def test_leftovers_of_ours_go_and_nothing_else_does(directory: Path) -> None:
    kept = [
        "a.sock",
        "devward-01234567.sock.old",
        "devward-0123456.sock",
        "devward-012345678.sock",
        "devward-0123456X.sock",
        "kubelet.sock",
    ]
    for name in [*kept, "devward-01234567.sock"]:
        bind(directory / name).close()
    (directory / "devward-11111111.sock").write_text("not ours")
    (directory / "devward-22222222.sock").symlink_to("a.sock")
    (directory / "devward-33333333.sock").mkdir()
    name = place.prepare(str(directory))
    expected = {*kept, "devward-11111111.sock", "devward-22222222.sock", "devward-33333333.sock"}
    assert {entry.name for entry in directory.iterdir()} == expected
    assert name not in expected


def test_each_socket_has_a_name_of_its_own(directory: Path) -> None:
    assert len({place.prepare(str(directory)) for _ in range(100)}) == 100


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "directory", "fifo"])
def test_where_something_stands_no_socket_is_made(directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(place.secrets, "token_hex", lambda _: "0badc0de")
    path = directory / "devward-0badc0de.sock"
    make = {
        "file": lambda: path.write_text("x"),
        "link": lambda: path.symlink_to(directory),
        "dangling": lambda: path.symlink_to("nowhere"),
        "directory": path.mkdir,
        "fifo": lambda: os.mkfifo(path),
    }
    make[kind]()
    before = path.lstat().st_ino, path.lstat().st_ctime_ns
    with pytest.raises(PlaceError) as caught:
        place.prepare(str(directory))
    assert caught.value.problem is PluginProblem.SOCKET_UNUSABLE
    assert (path.lstat().st_ino, path.lstat().st_ctime_ns) == before


def test_a_path_that_is_too_long_for_a_socket_is_refused(directory: Path) -> None:
    deep = directory / ("d" * 100)
    deep.mkdir(mode=0o750)
    with pytest.raises(PlaceError) as caught:
        place.prepare(str(deep))
    assert caught.value.problem is PluginProblem.SOCKET_UNUSABLE


def test_our_socket_is_roots_alone_and_known_from_then_on(directory: Path) -> None:
    name = place.prepare(str(directory))
    with bind(directory / name):
        made = place.protect(str(directory), name)
        assert (directory / name).stat().st_mode & 0o777 == 0o600
        assert place.look(str(directory), name).own == made


@pytest.mark.parametrize("kind", ["nothing", "file", "link"])
def test_what_is_not_our_socket_is_not_protected(directory: Path, kind: str) -> None:
    target = directory / "target"
    target.write_text("x")
    target.chmod(0o644)
    if kind == "file":
        (directory / "own.sock").write_text("x")
    elif kind == "link":
        (directory / "own.sock").symlink_to("target")
    with pytest.raises(PlaceError) as caught:
        place.protect(str(directory), "own.sock")
    assert caught.value.problem is PluginProblem.SOCKET_GONE
    assert target.stat().st_mode & 0o777 == 0o644


def test_a_link_to_somebodys_socket_is_not_followed(directory: Path) -> None:
    with bind(directory / "theirs.sock"):
        (directory / "theirs.sock").chmod(0o666)
        (directory / "own.sock").symlink_to("theirs.sock")
        with pytest.raises(PlaceError):
            place.protect(str(directory), "own.sock")
        assert (directory / "theirs.sock").stat().st_mode & 0o777 == 0o666


def test_a_link_that_takes_the_place_of_our_socket_meanwhile_is_not_followed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, change = directory / "target", os.chmod
    target.write_text("x")
    target.chmod(0o644)

    def swap_first(path: str, mode: int, **options: int) -> None:
        (directory / "own.sock").rename(directory / "moved.sock")
        (directory / "own.sock").symlink_to("target")
        change(path, mode, **options)

    with bind(directory / "own.sock"):
        monkeypatch.setattr(os, "chmod", swap_first)
        made = place.protect(str(directory), "own.sock")
    assert target.stat().st_mode & 0o777 == 0o644
    assert (made.inode, (directory / "moved.sock").stat().st_mode & 0o777) == ((directory / "moved.sock").stat().st_ino, 0o600)


def test_only_the_socket_that_we_made_is_removed(directory: Path) -> None:
    with bind(directory / "own.sock"):
        made = place.protect(str(directory), "own.sock")
    (directory / "own.sock").unlink()
    place.remove(str(directory), "own.sock", made)
    with bind(directory / "own.sock"):
        place.remove(str(directory), "own.sock", made)
        assert (directory / "own.sock").exists()
        place.remove(str(directory), "own.sock", place.protect(str(directory), "own.sock"))
        assert not (directory / "own.sock").exists()


def test_a_socket_that_was_made_and_not_looked_at_is_removed_by_its_name(directory: Path) -> None:
    place.remove(str(directory), "own.sock", None)
    (directory / "own.sock").write_text("x")
    place.remove(str(directory), "own.sock", None)
    assert (directory / "own.sock").exists()
    (directory / "own.sock").unlink()
    with bind(directory / "own.sock"):
        place.remove(str(directory), "own.sock", None)
    assert not (directory / "own.sock").exists()


def test_whether_somebody_listens(directory: Path) -> None:
    with bind(directory / "live"):
        assert place.is_live(str(directory), "live")
    assert not place.is_live(str(directory), "live")
    assert not place.is_live(str(directory), "none")
    (directory / "file").write_text("")
    assert not place.is_live(str(directory), "file")


def test_one_with_a_full_queue_listens_all_the_same(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as full:
        full.bind(str(directory / "full"))
        full.listen(0)
        waiting = []
        try:
            for _ in range(8):
                client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                waiting.append(client)
                client.connect_ex(str(directory / "full"))
            assert place.is_live(str(directory), "full")
        finally:
            for client in waiting:
                client.close()


def test_a_directory_that_cannot_be_written_is_said_before_a_server_is_made(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = os.statvfs(directory)

    class ReadOnly:
        f_flag = facts.f_flag | os.ST_RDONLY

    monkeypatch.setattr(os, "fstatvfs", lambda _: ReadOnly)
    assert place.look(str(directory), "").kubelet is None
    with pytest.raises(PlaceError) as caught:
        place.prepare(str(directory))
    assert caught.value.problem is PluginProblem.DIRECTORY_READ_ONLY
