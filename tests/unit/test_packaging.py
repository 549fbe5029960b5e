"""What the packages are made of: one version, the default configuration, the same files in both, the unit and its drop-ins."""

import configparser
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from devward import __version__, config, config_keys, names
from devward.cluster.api_result import FAULT_TEXT, ApiFault
from devward.plugin.status import PROBLEM_TEXT, PluginProblem

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGING = REPOSITORY / "packaging"
EXAMPLES = PACKAGING / "examples"
DROPINS = sorted(EXAMPLES.glob("*.conf"))
UNIT = REPOSITORY / "systemd" / "devward.service"
RPM_SPEC = (PACKAGING / "rpm" / "devward.spec").read_text()
CONTROL = (REPOSITORY / "debian" / "control").read_text()


# --- one version -----------------------------------------------------------------------------------------------------
def test_the_packages_have_the_version_of_the_code() -> None:
    assert re.findall(r"^devward \((.*?)\)", (REPOSITORY / "debian" / "changelog").read_text(), re.M)[0] == __version__
    assert re.findall(r"^Version: +(\S+)$", RPM_SPEC, re.M) == [__version__]
    assert re.findall(r"^\* .* - (\S+)-\d+$", RPM_SPEC, re.M)[0] == __version__
    assert re.findall(r"^## (\S+?),", (REPOSITORY / "CHANGELOG.md").read_text(), re.M)[0] == __version__


def project_metadata() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return project


def test_the_packages_require_what_the_code_does() -> None:
    project = project_metadata()
    for requirement in project["dependencies"]:
        name, version = requirement.lower().split(">=")
        assert f" python3-{name.removeprefix('py') if name == 'pyyaml' else name} (>= {version}),\n" in CONTROL
        assert re.search(rf"^Requires: +python3-{name} >= {re.escape(version)}$", RPM_SPEC, re.M), name
    lowest, limit = re.fullmatch(r">=([\d.]+),<([\d.]+)", project["requires-python"]).groups()  # type: ignore[union-attr]  # it must match
    assert f"X-Python3-Version: >= {lowest}\n" in CONTROL
    assert f" python3 (<< {limit}),\n" in CONTROL
    assert re.search(rf"^Requires: +\(python3 >= {lowest} with python3 < {limit}\)$", RPM_SPEC, re.M)


def test_the_packages_recommend_and_do_not_require_what_only_a_cluster_needs() -> None:
    (requirement,) = project_metadata()["optional-dependencies"]["cluster"]
    name, version = requirement.split(">=")
    # A host outside of a cluster does without it.
    required, recommended = re.sub(r"^#.*\n", "", CONTROL, flags=re.M).split("\nRecommends:\n")
    assert f" python3-{name} (>= {version}),\n" in recommended
    assert name not in required
    assert re.findall(rf"^(\w+): +python3-{name}\b.*$", RPM_SPEC, re.M) == ["Recommends"]
    assert re.search(rf"^Recommends: +python3-{name} >= {re.escape(version)}$", RPM_SPEC, re.M)
    # Both packages and the sentence that tells of its lack mean the same.
    assert f"python3-{name}" in FAULT_TEXT[ApiFault.LIBRARY_MISSING]


def test_the_packages_only_suggest_what_the_device_plugin_needs() -> None:
    before, suggested = re.sub(r"^#.*\n", "", CONTROL, flags=re.M).split("\nSuggests:\n")
    for requirement in project_metadata()["optional-dependencies"]["device-plugin"]:
        name, version = requirement.split(">=")
        assert f" python3-{name} (>= {version}),\n" in suggested
        assert name not in before
        assert re.findall(rf"^(\w+): +python3-{name} >= {re.escape(version)}$", RPM_SPEC, re.M) == ["Suggests"]
        assert f"python3-{name}" in PROBLEM_TEXT[PluginProblem.LIBRARY_MISSING]


# --- the default configuration -----------------------------------------------------------------------------------------
def default_configuration() -> str:
    return (PACKAGING / "devward.toml").read_text()


def test_the_default_configuration_changes_nothing() -> None:
    loaded = config.build([("devward.toml", default_configuration().encode())])
    assert set(loaded.sources.values()) == {config.DEFAULT}


def test_the_default_configuration_has_every_key_with_its_default() -> None:
    active = re.sub(r"^#(?=\w+ = )", "", default_configuration(), flags=re.M)
    assert tomllib.loads(active) == {
        section: {key.name: key.default for key in config_keys.KEYS if key.section == section}
        for section in {key.section for key in config_keys.KEYS}
    }
    loaded = config.build([("devward.toml", active.encode())])
    assert loaded.config == config.build([]).config
    assert set(loaded.sources.values()) == {"devward.toml"}


def test_the_default_configuration_explains_each_key_as_the_manual_does() -> None:
    text = " ".join(default_configuration().replace("\n# ", " ").split())
    for key in config_keys.KEYS:
        assert f"{key.doc} Values: {key.domain}. #{key.name} = " in text, key.path


def test_the_example_configuration_is_good() -> None:
    for file in EXAMPLES.glob("*.toml"):
        config.build([(file.name, file.read_bytes())])


# --- files ---------------------------------------------------------------------------------------------------------------
def of_debian() -> set[str]:
    """The sources that debhelper installs, as paths of the tree."""
    debian = REPOSITORY / "debian"
    patterns = [line.split()[0] for line in (debian / "devward.install").read_text().splitlines()]
    for name in ("manpages", "examples", "docs"):
        patterns += (debian / f"devward.{name}").read_text().split()
    found = {path for pattern in patterns for path in REPOSITORY.glob(pattern)}
    found |= {path.resolve() for path in (debian / "devward.service", debian / "devward.tmpfiles")}
    return {str(path.relative_to(REPOSITORY)) for path in found}


def of_rpm() -> set[str]:
    """The sources that the spec installs, as paths of the tree."""
    section = RPM_SPEC[RPM_SPEC.index("\n%install") : RPM_SPEC.index("\n%post\n")]
    patterns = re.findall(r"(?<= )(?:systemd|dbus|packaging)/\S+", section)
    patterns += re.findall(r"^%doc (.*)$", RPM_SPEC, re.M)[0].split()
    found: set[Path] = set()
    for pattern in patterns:
        for path in REPOSITORY.glob(pattern):
            found |= set(path.iterdir()) if path.is_dir() else {path}
    return {str(path.relative_to(REPOSITORY)) for path in found}


def test_both_packages_install_the_same_sources() -> None:
    # Debian's own changelog stands for the project's there.
    assert of_rpm() - of_debian() == {"CHANGELOG.md"}
    assert of_debian() - of_rpm() == set()


def test_nothing_that_is_to_be_installed_is_forgotten() -> None:
    installed = of_debian()
    for folder in ("dbus", "systemd", "packaging/examples", "packaging/polkit", "packaging/completions"):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.is_file():
                assert str(path.relative_to(REPOSITORY)) in installed
    pages = {str(path.relative_to(REPOSITORY)) for path in (PACKAGING / "man").glob("*.[1-8]")}
    assert pages <= installed


def test_names_that_other_programs_look_for() -> None:
    activation = configparser.ConfigParser()
    activation.read(REPOSITORY / "dbus" / f"{names.BUS_NAME}.service")
    assert activation["D-BUS Service"]["Name"] == names.BUS_NAME
    assert f"Alias={activation['D-BUS Service']['SystemdService']}\n" in UNIT.read_text()
    assert f"BusName={names.BUS_NAME}\n" in UNIT.read_text()
    assert f"d {names.CDI_DIRECTORY} " in (REPOSITORY / "systemd" / "devward.tmpfiles").read_text()


@pytest.mark.parametrize("script", ["debian/devward.prerm", "debian/devward.postrm", "debian/tests/command", "debian/tests/service"])
def test_scripts_are_shell_that_parses(script: str) -> None:
    subprocess.run(["sh", "-n", str(REPOSITORY / script)], check=True)


def test_only_a_removal_takes_files_back() -> None:
    prerm = (REPOSITORY / "debian" / "devward.prerm").read_text()
    before, after = prerm.split("devwardd --remove-own-files")
    assert 'if [ "$1" = remove ]; then' in before
    assert after.startswith(" || ")
    assert "#DEBHELPER#" in after
    preun = RPM_SPEC[RPM_SPEC.index("\n%preun") : RPM_SPEC.index("\n%postun\n")]
    before, after = preun.split("devwardd --remove-own-files")
    assert "if [ $1 -eq 0 ]; then" in before
    assert after.startswith(" || ")


# --- the unit --------------------------------------------------------------------------------------------------------
def unit_below(place: Path, *dropins: Path) -> Path:
    """Put the unit there with a program that exists, and the drop-ins beside it."""
    unit = place / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/bin/devwardd", "/bin/true"))
    (place / f"{UNIT.name}.d").mkdir()
    for dropin in dropins:
        shutil.copy(dropin, place / f"{UNIT.name}.d")
    return unit


def analyze(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Where units of this machine would speak too, only ours is to be judged.
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{place}:", "SYSTEMD_LOG_LEVEL": "info", "LC_ALL": "C.UTF-8"}
    return subprocess.run(["systemd-analyze", "--no-pager", *arguments], check=False, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("dropin", [None, *DROPINS], ids=lambda dropin: dropin.stem if dropin else "alone")
def test_the_unit_is_what_systemd_understands_and_exposes_little(dropin: Path | None, tmp_path: Path) -> None:
    unit = unit_below(tmp_path, *([dropin] if dropin else []))
    verified = analyze(tmp_path, "verify", "--man=no", "--recursive-errors=no", str(unit))
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
    exposed = analyze(tmp_path, "security", "--offline=true", "--threshold=35", str(unit))
    assert exposed.returncode == 0, exposed.stdout + exposed.stderr


def settings(*files: Path) -> dict[str, list[str]]:
    """Return the settings of a unit and its drop-ins; an empty value takes back what stood before, as systemd has it."""
    result: dict[str, list[str]] = {}
    for file in files:
        for line in file.read_text().splitlines():
            if line and line[0] not in "#[":
                name, value = line.split("=", 1)
                result[name] = [*result.get(name, []), value] if value else []
    return result


@pytest.mark.parametrize("dropin", [None, *DROPINS], ids=lambda dropin: dropin.stem if dropin else "alone")
def test_nothing_closes_the_devices(dropin: Path | None) -> None:
    unit = settings(UNIT, *([dropin] if dropin else []))
    # ProtectClock: before systemd 252 it brings a device policy of its own.
    assert not {"PrivateDevices", "ProtectClock", "PrivateUsers", "RootDirectory", "RootImage", "DynamicUser", "User"} & unit.keys()
    # A node that is named must exist when the unit starts; a group must be known by then, and "misc" always is.
    assert unit.get("DeviceAllow", []) == (["char-misc rw"] if "DevicePolicy" in unit else [])


def test_the_network_is_open_where_the_api_server_may_be_anywhere_and_a_dropin_takes_it() -> None:
    unit = settings(UNIT)
    assert unit["RestrictAddressFamilies"] == ["AF_UNIX AF_NETLINK AF_INET AF_INET6"]
    assert "IPAddressDeny" not in unit
    closed = settings(UNIT, EXAMPLES / "no-network.conf")
    assert (closed["RestrictAddressFamilies"], closed["IPAddressDeny"]) == (["AF_UNIX AF_NETLINK"], ["any"])
    narrow = settings(UNIT, EXAMPLES / "api-server-only.conf")
    assert (narrow["RestrictAddressFamilies"], narrow["IPAddressDeny"]) == (unit["RestrictAddressFamilies"], ["any"])
    assert narrow["IPAddressAllow"][0] == "localhost"


def test_a_hang_cannot_hold_up_what_waits_for_devward() -> None:
    unit = settings(UNIT)
    assert int(unit["TimeoutStartSec"][0]) <= 10
    assert unit["TimeoutStartFailureMode"] == ["kill"]
    assert not {"RequiredBy", "Requires", "OnFailure", "RequiresOverridable", "BindsTo"} & unit.keys()
    waiting = " ".join(unit["Before"]).split()
    assert {"containerd.service", "crio.service", "docker.service", "podman.service", "kubelet.service"} <= set(waiting)


def test_each_capability_has_its_reason() -> None:
    (bounding,) = settings(UNIT)["CapabilityBoundingSet"]
    reasons = re.findall(r"^# (CAP_\w+): ", UNIT.read_text(), re.M)
    assert reasons == bounding.split()


def test_the_narrow_dropins_make_their_directory_first_and_take_the_wide_path_back() -> None:
    for name, directory in (("narrow-etc.conf", "/etc/cdi"), ("other-directory.conf", "/run/cdi")):
        unit = settings(UNIT, EXAMPLES / name)
        # "-": systemd mounts the paths for the "+" command too, which would fail for want of what it is to make.
        assert unit["ReadWritePaths"] == [f"-{directory}", "-/var/lib/kubelet"]
        assert unit["ExecStartPre"] == [f"+/usr/bin/mkdir -p -m 0755 {directory}"]


def test_the_metrics_are_written_where_their_drop_in_opens_the_unit_and_nothing_else_is_closed() -> None:
    assert not any(names.METRICS_DIRECTORY.startswith(path) for path in settings(UNIT)["ReadWritePaths"]), "they are off by default"
    assert settings(UNIT, EXAMPLES / "metrics.conf")["ReadWritePaths"] == [*settings(UNIT)["ReadWritePaths"], f"-{names.METRICS_DIRECTORY}"]
    loaded = config.build([("metrics.toml", (EXAMPLES / "metrics.toml").read_bytes())])
    assert loaded.config.metrics == config.MetricsConfig(enabled=True)
    assert config.is_named(loaded, "metrics")
    assert not config.is_named(config.build([]), "metrics")
    # What goes with them is documentation of both packages.
    assert {f"packaging/examples/{name}" for name in ("metrics.conf", "metrics.toml", "devward.rules.yml")} <= of_debian() & of_rpm()


def test_each_example_says_where_it_goes() -> None:
    for path in (*EXAMPLES.iterdir(), *(PACKAGING / "polkit").iterdir()):
        first = path.read_text().splitlines()[0]
        assert re.fullmatch(rf"(#|//) /etc/\S+/{re.escape(path.name)}", first), path.name


def test_the_example_rule_lets_nobody_release_or_stop_anything() -> None:
    text = (PACKAGING / "polkit" / "50-devward-operators.rules").read_text()
    named = set(re.findall(r'"(org\.devward\.devward1\.[a-z-]+)"', text))
    assert named == {names.ACTION_CHECK, names.ACTION_INSPECT, names.ACTION_RESCAN, names.ACTION_REPAIR_CDI}
