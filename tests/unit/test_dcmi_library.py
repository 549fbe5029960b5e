"""Which library is loaded: found where the vendor puts it, and refused where anybody but root could have put or changed it."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devward.npu import library
from devward.npu.facts import Refusal, Refused


@pytest.fixture(name="root")
def _root() -> Iterator[Path]:
    """A directory that only root can write, all the way up: not below /tmp."""
    if os.geteuid() != 0:
        pytest.skip("needs root: to make files that belong to it")
    directory = Path(tempfile.mkdtemp(prefix="devward-test-", dir="/run"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(name="good")
def _good(root: Path) -> Path:
    place = root / "lib" / library.NAME
    place.parent.mkdir(0o755)
    place.write_bytes(b"\x7fELF")
    place.chmod(0o644)
    return place


def refusal(path: Path | str) -> Refusal:
    with pytest.raises(Refused) as refused:
        library.check(str(path))
    assert str(refused.value).isprintable()
    return refused.value.reason


def test_a_library_of_root_is_good(good: Path) -> None:
    found = library.check(str(good))
    assert found.path == str(good)
    assert found.is_unchanged()


def test_links_are_followed_to_the_file(root: Path, good: Path) -> None:
    (root / "lib" / "libdcmi.so.1").symlink_to(library.NAME)
    (root / "driver").symlink_to("lib")
    (root / "absolute").symlink_to(good.parent / "libdcmi.so.1")
    assert library.check(f"{root}/driver/../driver/./libdcmi.so.1").path == str(good)
    assert library.check(str(root / "absolute")).path == str(good)


def chown(path: Path) -> None:
    os.chown(path, 65534, 0)


def chmod(mode: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(mode)


@pytest.mark.parametrize("spoil", [chown, chmod(0o664), chmod(0o646)], ids=["owner", "group", "others"])
def test_a_file_that_others_could_change_is_refused(good: Path, spoil: Callable[[Path], None]) -> None:
    spoil(good)
    assert refusal(good) is Refusal.LIBRARY_UNSAFE


@pytest.mark.parametrize("spoil", [chown, chmod(0o775), chmod(0o757), chmod(0o1777)], ids=["owner", "group", "others", "sticky"])
def test_a_directory_that_others_could_change_is_refused(root: Path, good: Path, spoil: Callable[[Path], None]) -> None:
    spoil(good.parent)
    assert refusal(good) is Refusal.LIBRARY_UNSAFE
    (root / "link").symlink_to(good)
    assert refusal(root / "link") is Refusal.LIBRARY_UNSAFE


def test_a_link_in_a_directory_that_others_could_change_is_refused(root: Path, good: Path) -> None:
    (root / "open").mkdir()
    (root / "open").chmod(0o777)
    (root / "open" / library.NAME).symlink_to(good)
    assert refusal(root / "open" / library.NAME) is Refusal.LIBRARY_UNSAFE
    (root / "to").symlink_to(root / "open" / library.NAME)
    assert refusal(root / "to") is Refusal.LIBRARY_UNSAFE
    (root / "back").symlink_to("open/../lib")
    assert refusal(root / "back" / library.NAME) is Refusal.LIBRARY_UNSAFE


def test_what_is_not_a_file_of_some_size_is_refused(root: Path, good: Path) -> None:
    assert refusal(good.parent) is Refusal.LIBRARY_UNSAFE
    assert refusal("/") is Refusal.LIBRARY_UNSAFE
    assert refusal(good / "below") is Refusal.LIBRARY_UNSAFE
    assert refusal(f"{good}/../{library.NAME}") is Refusal.LIBRARY_UNSAFE
    os.mkfifo(root / "fifo", 0o600)
    assert refusal(root / "fifo") is Refusal.LIBRARY_UNSAFE
    good.write_bytes(b"")
    assert refusal(good) is Refusal.LIBRARY_UNSAFE
    os.truncate(good, library.SIZE_LIMIT + 1)
    assert refusal(good) is Refusal.LIBRARY_UNSAFE


def test_a_path_that_leads_nowhere_is_missing_and_a_circle_ends(root: Path) -> None:
    assert refusal(root / "nothing" / library.NAME) is Refusal.LIBRARY_MISSING
    (root / "dangling").symlink_to("nothing")
    assert refusal(root / "dangling") is Refusal.LIBRARY_MISSING
    (root / "circle").symlink_to("circle")
    assert refusal(root / "circle") is Refusal.LIBRARY_UNSAFE
    assert refusal("libdcmi.so") is Refusal.LIBRARY_UNSAFE


def test_a_successor_is_noticed(good: Path) -> None:
    found = library.check(str(good))
    other = good.with_suffix(".new")
    other.write_bytes(b"\x7fELF")
    other.chmod(0o644)
    other.rename(good)
    assert not found.is_unchanged()
    good.unlink()
    assert not found.is_unchanged()


def test_the_first_directory_that_has_it_is_taken(tmp_path: Path) -> None:
    places = [str(tmp_path / name) for name in ("none", "first", "second")]
    for place in places[1:]:
        Path(place).mkdir()
        Path(place, library.NAME).write_bytes(b"x")
    assert library.find(places, use_cache=False) == f"{places[1]}/{library.NAME}"
    with pytest.raises(Refused) as refused:
        library.find(places[:1], use_cache=False)
    assert refused.value.reason is Refusal.LIBRARY_MISSING


def test_a_link_that_leads_nowhere_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / library.NAME).symlink_to("nothing")
    assert library.find([str(tmp_path)], use_cache=False) == str(tmp_path / library.NAME)


def test_the_cache_of_the_loader_is_read() -> None:
    listing = """2 libs found in cache `/etc/ld.so.cache'
\tlibdcmi.so.1 (libc6,x86-64) => /opt/other/libdcmi.so.1
\tlibdcmi.so (libc6,x86-64) => /opt/driver/libdcmi.so
\tlibdcmi.so (libc6) => relative/libdcmi.so
\tmylibdcmi.so (libc6,x86-64) => /opt/mylibdcmi.so
\tlibdcmi.so
Cache generated by: ldconfig (Debian GLIBC 2.36-9+deb12u9) stable release version 2.36
"""
    assert library.parse_cache(listing) == ["/opt/driver/libdcmi.so"]


def test_a_host_without_it_says_so() -> None:
    if any(Path(directory, library.NAME).exists() for directory in library.DIRECTORIES):
        return
    with pytest.raises(Refused) as refused:
        library.find()
    assert refused.value.reason is Refusal.LIBRARY_MISSING
