"""Paths below another root: no link leads out of it."""

import errno
import os
from pathlib import Path

import pytest

from devward.cluster.rooted import resolve
from sim.mount_namespace import mount, run_in_mount_namespace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/"),
        ("", "/"),
        ("/a/b", "/a/b"),
        ("//a/./b/", "/a/b"),
        ("/a/b/../../c", "/c"),
        ("/../../../a", "/a"),
    ],
)
def test_plain_paths(root: Path, path: str, expected: str) -> None:
    assert resolve(str(root), path) == resolve(f"{root}/", path) == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [("b", "/a/b"), ("/c", "/c"), ("../c", "/c"), ("../../../../c", "/c"), ("/", "/"), (".", "/a"), ("/a/b/../b", "/a/b")],
)
def test_links_stay_below_the_root(root: Path, target: str, expected: str) -> None:
    (root / "a/link").symlink_to(target)
    assert resolve(str(root), "/a/link") == expected
    (root / "c/again").symlink_to("/a/link")
    assert resolve(str(root), "/c/again/.") == expected


@pytest.mark.parametrize(("path", "error"), [("/missing", errno.ENOENT), ("/a/missing/b", errno.ENOENT), ("/circle/x", errno.ELOOP)])
def test_what_leads_nowhere(root: Path, path: str, error: int) -> None:
    (root / "circle").symlink_to("circle")
    with pytest.raises(OSError, match=r"\[Errno") as raised:
        resolve(str(root), path)
    assert raised.value.errno == error


def test_a_file_on_the_way(root: Path) -> None:
    (root / "file").write_text("x")
    with pytest.raises(NotADirectoryError):
        resolve(str(root), "/file/x")


def as_the_kernel_does(directory: str) -> None:
    root = Path(directory)
    mount("-t", "tmpfs", "tmpfs", directory)
    (root / "a/b").mkdir(parents=True)
    for name, target in (("one", "/a"), ("a/two", "../../one/b"), ("three", "a/two/.././two")):
        (root / name).symlink_to(target)
    paths = ["/one/b", "/a/two", "/three", "/a/b/../two", "/one/two/.."]
    found = [resolve(directory, path) for path in paths]
    os.chroot(directory)
    assert found == [os.path.realpath(path) for path in paths]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a root directory of its own")
def test_it_is_what_a_process_with_that_root_finds(tmp_path: Path) -> None:
    run_in_mount_namespace(as_the_kernel_does, tmp_path)
