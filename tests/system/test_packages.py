"""Both packages, built from a clean copy of the tree, and installed, upgraded, removed and purged for real, without a service manager.

Needs root, what build_packages and make_root say, and on a cold cache the mirrors.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_root import SYSTEM, PackageRoot, make_root

from devward import __version__, names

if os.geteuid() != 0:
    pytest.skip("needs root: packages are installed", allow_module_level=True)

#: The version of the upgrade.
NEXT = f"{__version__}.1"
SPEC = f"{names.CDI_DIRECTORY}/{names.HYPERVISOR_CDI_FILE}"
OURS = '{"cdiVersion": "0.3.0", "kind": "hyperlight.dev/hypervisor", "devices": []}'
DIGEST = hashlib.sha256(OURS.encode()).hexdigest()
STATE = f"{names.STATE_DIRECTORY}/{names.STATE_FILE}"
#: Puts a file there that devward remembers to have written.
WROTE = f"""
printf %s '{OURS}' >{SPEC}
mkdir -p -m 0700 {names.STATE_DIRECTORY}
echo '{{"major": 1, "minor": 0, "digests": {{"{SPEC}": ["{DIGEST}"]}}}}' >{STATE}
"""


@pytest.fixture(scope="session", name="packages")
def _packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("packages")
    subprocess.run([str(SYSTEM / "build_packages"), str(place)], check=True)
    environment = {**os.environ, "DEB_BUILD_OPTIONS": "nocheck"}
    subprocess.run([str(SYSTEM / "build_packages"), "--version", NEXT, str(place)], check=True, env=environment)
    return place


@pytest.fixture(name="root", params=["12", "13"])
def _root(request: pytest.FixtureRequest, tmp_path: Path, packages: Path) -> Iterator[PackageRoot]:
    with PackageRoot(make_root(request.param), tmp_path, packages) as root:
        yield root


def deb(version: str = __version__) -> str:
    return f"/mnt/devward_{version}_all.deb"


def rpm(packages: Path, version: str = __version__) -> str:
    return str(packages / f"devward-{version}-1.noarch.rpm")


def apt(root: PackageRoot, *arguments: str) -> str:
    return root.run("apt-get", "--quiet", "--yes", "--no-install-recommends", "-o", "APT::Sandbox::User=root", *arguments)


# --- the Debian package ----------------------------------------------------------------------------------------------
def test_the_debian_package_works_where_it_is_installed_and_leaves_nothing(root: PackageRoot) -> None:
    before = root.files()
    apt(root, "install", deb())
    assert root.run("devwardd", "--version") == f"devwardd {__version__}\n"
    assert root.run("devwardd", "--check-config") == "the configuration is good\n"
    assert root.run("stat", "--format=%a %u:%g", names.CDI_DIRECTORY) == "755 0:0\n"
    links = root.run("sh", "-c", "cd /etc/systemd/system && ls *.service multi-user.target.wants").split()
    assert {"dbus-org.devward.Devward1.service", "devward.service"} <= set(links)
    assert root.run("dpkg", "--verify", "devward") == ""
    apt(root, "remove", "devward")
    apt(root, "purge", "devward")
    after = root.files()
    assert before - after == set()
    assert {line.split()[-1] for line in after - before} <= {names.CDI_DIRECTORY}


def test_the_package_passes_its_own_test(root: PackageRoot) -> None:
    apt(root, "install", deb())
    script = (SYSTEM.parents[1] / "debian" / "tests" / "command").read_text()
    root.shell(f"cat >/tmp/command <<'THE_TEST'\n{script}\nTHE_TEST\nchmod 755 /tmp/command\n")
    print(root.run("/tmp/command"))


def test_an_upgrade_touches_neither_the_cdi_file_nor_the_configuration(root: PackageRoot) -> None:
    apt(root, "install", deb())
    root.shell(WROTE + "echo '# ours' >>/etc/devward/devward.toml; touch /etc/devward/conf.d/site.toml")
    look = ("sh", "-c", f"stat --format='%i %y %z' {SPEC} && cat {SPEC} /etc/devward/devward.toml && ls /etc/devward/conf.d")
    before = root.run(*look)
    out = apt(root, "install", deb(NEXT))
    assert root.run("devwardd", "--version") == f"devwardd {NEXT}\n"
    assert root.run(*look) == before
    assert "removed" not in out.replace("to remove", "")


def test_removal_takes_what_devward_wrote_and_nothing_else(root: PackageRoot) -> None:
    apt(root, "install", deb())
    root.shell(WROTE + f"echo '{{}}' >{names.CDI_DIRECTORY}/vendor.json")
    out = apt(root, "remove", "devward")
    assert f"removed {SPEC}\n" in out
    assert root.run("ls", "-A", names.CDI_DIRECTORY) == "vendor.json\n"
    assert root.run("ls", "/etc/devward", names.STATE_DIRECTORY) != ""
    apt(root, "purge", "devward")
    assert root.run("ls", "-A", names.CDI_DIRECTORY) == "vendor.json\n"
    for path in (names.STATE_DIRECTORY, "/etc/devward", names.RUNTIME_DIRECTORY):
        assert "No such file" in root.run("ls", path, check=False)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (f"echo >>{SPEC}", "left .*: its content is not what devward wrote"),
        (f"echo '{{' >{STATE}", "what devwardd wrote is not known"),
        ("echo '[nonsense]' >/etc/devward/conf.d/x.toml; echo >>" + SPEC, "unknown section"),
    ],
)
def test_removal_succeeds_whatever_is_damaged_and_leaves_what_it_does_not_know(root: PackageRoot, damage: str, told: str) -> None:
    apt(root, "install", deb())
    root.shell(WROTE + damage)
    before = root.run("cat", SPEC)
    out = apt(root, "remove", "devward")
    assert re.search(told, out), out
    assert root.run("cat", SPEC) == before
    assert root.run("dpkg-query", "-W", "-f", "${db:Status-Status}", "devward") == "config-files"


# --- the RPM ---------------------------------------------------------------------------------------------------------
# Where the byte code in the package is that of the Python there.
@pytest.mark.parametrize("root", ["12"], indirect=True)
def test_the_rpm_is_installed_upgraded_and_erased_with_its_scriptlets(root: PackageRoot, packages: Path) -> None:
    # What it requires is there under the names of Debian, which rpm does not know.
    root.outside("rpm", "--root", str(root.path), "--initdb")
    command = ("rpm", "--root", str(root.path), "--force-debian", "--nodeps")
    before = root.files()
    root.outside(*command, "-i", rpm(packages))
    assert root.run("devwardd", "--version") == f"devwardd {__version__}\n"
    assert root.run("devwardd", "--check-config") == "the configuration is good\n"
    assert root.run("stat", "--format=%a %u:%g", names.CDI_DIRECTORY) == "755 0:0\n", "the scriptlet made the directory"
    root.outside("rpm", "--root", str(root.path), "-V", "--nodeps", "devward")

    root.shell(WROTE + f"echo '# ours' >>/etc/devward/devward.toml; echo '{{}}' >{names.CDI_DIRECTORY}/vendor.json")
    look = ("sh", "-c", f"stat --format='%i %y %z' {SPEC} && cat {SPEC} /etc/devward/devward.toml")
    kept = root.run(*look)
    out = root.outside(*command, "-U", rpm(packages, NEXT))
    assert root.run("devwardd", "--version") == f"devwardd {NEXT}\n"
    assert root.run(*look) == kept
    assert out == ""

    out = root.outside(*command, "-e", "devward")
    assert f"removed {SPEC}\n" in out
    assert root.run("ls", "-A", names.CDI_DIRECTORY) == "vendor.json\n"
    after = root.files()
    assert before - after == set()
    # Directories that other packages of an RPM system own; here nobody does.
    left = {line.split()[-1] for line in after - before if not re.match(r"d 755 0:0 /usr/(?:share|lib)/(?!python3)", line)}
    # The state and a changed configuration stay: an RPM knows no purge.
    configuration = {"/etc/devward", "/etc/devward/devward.toml.rpmsave"}
    assert left == {names.CDI_DIRECTORY, f"{names.CDI_DIRECTORY}/vendor.json", names.STATE_DIRECTORY, STATE} | configuration


# --- both ------------------------------------------------------------------------------------------------------------
def contents_of_deb(path: Path) -> set[str]:
    listed = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(path)], check=True, capture_output=True)
    names_in = subprocess.run(["tar", "-tf", "-"], input=listed.stdout, check=True, capture_output=True).stdout.decode().splitlines()
    return {name.removeprefix(".") for name in names_in if not name.endswith("/")}


def comparable(files: set[str]) -> set[str]:
    """Leave out what each kind of package has its own way for, and byte code, which Debian makes at the installation."""
    result = set()
    for file in files:
        name = re.sub(r"^/lib/systemd/", "/usr/lib/systemd/", file)
        name = re.sub(r"^/usr/lib/python3[^/]*/(?:dist|site)-packages/", "PYTHON/", name)
        name = re.sub(r"^/usr/share/zsh/(?:vendor-completions|site-functions)/", "ZSH/", name)
        name = re.sub(r"(/man\d/.*)\.gz$", r"\1", name)
        if (
            re.match(r"/usr/share/(?:doc|licenses|lintian)/|PYTHON/devward-.*\.dist-info/", name)
            or "/__pycache__/" in name
            or name.endswith(".pyc")
        ):
            continue
        result.add(name)
    return result


def test_both_packages_have_the_same_files(packages: Path) -> None:
    listed = subprocess.run(
        ["rpm", "-qp", "--qf", "[%{FILEMODES:perms} %{FILENAMES}\n]", rpm(packages)], check=True, capture_output=True, text=True
    )
    of_rpm = {line.split(maxsplit=1)[1] for line in listed.stdout.splitlines() if not line.startswith("d")}
    of_deb = comparable(contents_of_deb(packages / f"devward_{__version__}_all.deb"))
    assert of_deb
    assert comparable(of_rpm) == of_deb


def test_both_packages_are_built_the_same_from_the_same_tree(packages: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "DEB_BUILD_OPTIONS": "nocheck"}
    subprocess.run([str(SYSTEM / "build_packages"), str(tmp_path)], check=True, env=environment)
    for name in (f"devward_{__version__}_all.deb", f"devward-{__version__}-1.noarch.rpm"):
        assert (tmp_path / name).read_bytes() == (packages / name).read_bytes(), name


def test_lintian_and_rpmlint_have_nothing_to_say(packages: Path) -> None:
    (changes,) = packages.glob(f"devward_{__version__}_*.changes")
    said = subprocess.run(["lintian", "--allow-root", "-EviI", "--pedantic", str(changes)], check=False, capture_output=True, text=True)
    assert [line for line in said.stdout.splitlines() if not line.startswith("N:")] == [], said.stderr
    config = SYSTEM.parents[1] / "packaging" / "rpm" / "rpmlint.toml"
    said = subprocess.run(["rpmlint", "-c", str(config), rpm(packages)], check=False, capture_output=True, text=True)
    assert "0 errors, 0 warnings" in said.stdout, said.stdout
