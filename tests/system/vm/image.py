"""A Debian with devward installed, as what a virtual machine boots from: a kernel, an initial RAM disk and a disk.

The root comes from the cache of make_root; devward is installed into an overlay over it with apt, from a package built of this tree, and
the disk is made of that. The initial RAM disk is our own and loads nothing but the driver of the disk: Debian's takes longer to unpack,
where every instruction is emulated, than the rest of the boot.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from system.package_root import PACKAGES, SYSTEM, PackageRoot

GUEST = Path(__file__).resolve().parent / "guest"
#: Beyond what devward needs: what boots, the container engine, and a shell for the initial RAM disk.
BOOTED = ("linux-image-cloud-amd64", "systemd-sysv", "udev", "kmod", "busybox-static", "podman", "crun")
DISK_SIZE = "3G"
#: A later Debian with its container engine, which the machine sees as a second disk and does not boot.
LATER = ("13", "podman", "crun", "python3")
LATER_DISK = "/dev/vdb"

_INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs devtmpfs /dev
for module in {modules}; do /bin/busybox insmod /modules/$module; done
/bin/busybox mount -t ext4 /dev/vda /root
/bin/busybox umount /dev
exec /bin/busybox switch_root /root /sbin/init
"""


@dataclass(frozen=True, slots=True)
class Image:
    """What QEMU starts."""

    kernel: Path
    initrd: Path
    disk: Path
    later_disk: Path
    #: The package that is installed; in the machine it is /opt/vm/NAME too.
    package: Path


def build(scratch: Path) -> Image:
    """Build the package and make the image below `scratch`. CalledProcessError where a download, a build or the installation fails."""
    share, overlay = scratch / "share", scratch / "overlay"
    environment = {**os.environ, "DEB_BUILD_OPTIONS": "nocheck"}
    subprocess.run([str(SYSTEM / "build_packages"), "--only", "deb", str(share)], check=True, env=environment)
    (package,) = share.glob("devward_*_all.deb")
    shutil.copytree(GUEST, share / "guest", ignore=shutil.ignore_patterns("__pycache__"))
    lower, later = _make_root("12", *PACKAGES, *BOOTED), _make_root(*LATER)
    disk, later_disk = scratch / "disk", scratch / "later"
    overlay.mkdir()
    with PackageRoot(str(lower), overlay, share) as root:
        # Everything that it depends on is there: nothing is downloaded.
        root.run("apt-get", "--quiet", "--yes", "--no-install-recommends", "install", f"/mnt/{package.name}")
        root.run("sh", "/mnt/guest/prepare.sh")
        root.outside("umount", *(f"{root.path}/{name}" for name in ("mnt", "proc", "sys", "run", "dev")))
        root.outside(*_make_disk(root.path, disk))
    subprocess.run(_make_disk(later, later_disk), stdout=subprocess.DEVNULL, check=True)
    (kernel,) = (lower / "boot").glob("vmlinuz-*")
    initrd = scratch / "initrd"
    _make_initrd(lower, lower / "lib/modules" / kernel.name.removeprefix("vmlinuz-"), scratch / "initrd.d", initrd)
    return Image(kernel, initrd, disk, later_disk, package)


def _make_root(*arguments: str) -> Path:
    made = subprocess.run([str(SYSTEM / "make_root"), *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return Path(made.stdout.strip())


def _make_disk(root: Path, disk: Path) -> tuple[str, ...]:
    """Return the command that makes a file system of a directory; the file is sparse."""
    return ("mke2fs", "-q", "-t", "ext4", "-E", "root_owner=0:0", "-d", str(root), str(disk), DISK_SIZE)


def _make_initrd(root: Path, modules: Path, tree: Path, target: Path) -> None:
    """Pack what mounts the disk and starts its init."""
    wanted = _with_dependencies(modules, ("virtio_pci", "virtio_blk"))
    for name in ("bin", "dev", "modules", "root"):
        (tree / name).mkdir(parents=True)
    busybox = root / "usr/bin/busybox"
    shutil.copy(busybox if busybox.exists() else root / "bin/busybox", tree / "bin")
    for path in wanted:
        shutil.copy(modules / path, tree / "modules")
    init = tree / "init"
    init.write_text(_INIT.format(modules=" ".join(os.path.basename(path) for path in wanted)))
    init.chmod(0o755)
    files = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    with open(target, "wb") as archive:
        subprocess.run(
            [str(tree / "bin/busybox"), "cpio", "-o", "-H", "newc"],
            cwd=tree, input=files.encode(), stdout=archive, stderr=subprocess.DEVNULL, check=True,
        )  # fmt: skip


def _with_dependencies(modules: Path, names: tuple[str, ...]) -> list[str]:
    """Return the files of these modules, each after what it depends on (modules.dep(5))."""
    files: dict[str, list[str]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, needs = line.partition(":")
        files[path] = needs.split()
    ordered: list[str] = []
    for path, needs in files.items():
        if os.path.basename(path).split(".")[0] in names:
            ordered += [need for need in [*reversed(needs), path] if need not in ordered]
    return ordered
