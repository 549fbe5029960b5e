"""The configuration: every key typed and bounded, every refusal with file, key and reason."""

import json
import os
import stat
from pathlib import Path

import pytest

from devward import config, config_keys
from devward.errors import ConfigError
from devward.model import CdiMode, ClusterRead, DeviceKind, Manage, ReclaimMode
from devward.reasons import Reason

DIE = "0A1B2C3D-00000001-00000002-00000003-FFFFFFFF"


def built(text: str) -> config.LoadedConfig:
    return config.build([("test.toml", text.encode())])


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        built(text)
    return str(caught.value)


def test_defaults_need_no_file(tmp_path: Path) -> None:
    loaded = config.load(str(tmp_path / "absent.toml"), str(tmp_path / "absent.d"))
    assert loaded.config.cdi.mode is CdiMode.REPAIR
    assert loaded.config.cdi.directory == "/etc/cdi"
    assert loaded.config.cdi.engine_dirs == ("/etc/cdi", "/var/run/cdi")
    assert loaded.config.hypervisor.devices is None
    assert loaded.config.metrics.enabled is False
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.warnings == ()


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: cannot be read"):
        config.load(str(tmp_path / "absent.toml"), None, required=True)


def test_dropins_win_in_the_order_of_their_names(tmp_path: Path) -> None:
    main, dropins = tmp_path / "devward.toml", tmp_path / "conf.d"
    dropins.mkdir()
    main.write_text('[cdi]\nmode = "off"\nsettle_time = 3\n')
    (dropins / "20-b.toml").write_text('[cdi]\nmode = "observe"\n')
    (dropins / "10-a.toml").write_text('[cdi]\nmode = "repair"\ncontested_after = 9\n')
    (dropins / "README").write_text("not TOML at all [")
    (dropins / ".hidden.toml").write_text("not TOML at all [")
    loaded = config.load(str(main), str(dropins))
    assert (loaded.config.cdi.mode, loaded.config.cdi.settle_time, loaded.config.cdi.contested_after) == (CdiMode.OBSERVE, 3, 9)
    assert loaded.sources["cdi.mode"] == str(dropins / "20-b.toml")
    assert loaded.sources["cdi.settle_time"] == str(main)
    assert loaded.sources["cdi.withdraw"] == "default"


#: For each key: values that are good, and values that are refused, as TOML.
SAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "hypervisor.devices": (
        ['"auto"', "[]", '["/dev/kvm"]', '["/dev/mshv", "/dev/kvm"]'],
        ['"kvm"', "true", '["/dev/null"]', '["/dev/kvm", "/dev/kvm"]', "[1]", "{}"],
    ),
    "hypervisor.probe_interval": (["10", "86400"], ["9", "86401", "10.5", '"10"', "true", "-1"]),
    "hypervisor.retry_interval": (["1", "3600"], ["0", "3601", "1.0", "false"]),
    "hypervisor.expected_mode": (['"any"', '"0660"', '"666"'], ["660", '"0o660"', '"rw"', '"668"', '""']),
    "hypervisor.expected_uid": (['"any"', "0", "4294967295"], ["-1", "4294967296", '"root"', "true", "1.0"]),
    "hypervisor.expected_gid": (['"any"', "103"], ["-1", '"kvm"']),
    "npu.device_uid": (['"user"', "0", "4294967295"], ["-1", "4294967296", '"any"', "true", "1.0"]),
    "npu.device_gid": (['"user"', "1000"], ["-1", '"HwHiAiUser"']),
    "cdi.mode": (['"repair"', '"observe"', '"off"'], ['"Repair"', "true", '""', "1"]),
    "cdi.directory": (['"/etc/cdi"', '"/run/cdi"'], ['"cdi"', '"/etc/../cdi"', '"/etc/cdi/"', '"/"', '""', "1", '"//etc"']),
    "cdi.engine_dirs": (['["/etc/cdi"]'], ["[]", '"/etc/cdi"', '["/etc/cdi", "/etc/cdi"]', '["etc"]', "[1]"]),
    "cdi.device_uid": (["0", "65534", "4294967295"], []),
    "cdi.device_gid": (["0", "65534", "4294967295"], []),
    "cdi.withdraw": (['"identity"', '"usability"', '"never"'], ['"always"', "false"]),
    "cdi.settle_time": (["0", "600"], ["-1", "601", "1.5"]),
    "cdi.contested_after": (["1", "1000000"], ["0", "1000001"]),
    "npu.devices": (['"auto"', '"off"'], ['"on"', "[]", "true"]),
    "cluster.read": (['"auto"', '"off"'], ['"on"', "false", '""', "[]"]),
    "cluster.kubeconfig": (
        ['"auto"', '"/etc/kubernetes/kubelet.conf"'],
        ['""', '"off"', '"kubelet.conf"', '"~/.kube/config"', '"/etc/../kubelet.conf"', '"/"', "true", '["/etc/a"]', '"/a\\u0000b"'],
    ),
    "cluster.node_name": (
        ['"auto"', '"worker-1"', '"ip-10-0-0-1.eu-west-1.compute.internal"', '"1"', f'"{"a" * 253}"'],
        ['""', '"Worker"', '"a_b"', '"-a"', '"a-"', '"a..b"', '".a"', '"a."', f'"{"a" * 254}"', '"a\\n"', '"ä"', '"system:node:a"', "1"],
    ),
    "cluster.allow_exec": (["true", "false"], ['"true"', "0", "1", "[]"]),
    "reclaim.mode": (['"enforce"', '"observe"', '"off"'], ['"repair"', '"Off"', "false", '""']),
    "reclaim.grace": (["1", "604800"], ["0", "604801", "-1", "600.0", '"600"', "true"]),
    "reclaim.confirmations": (["1", "1000"], ["0", "1001", "true"]),
    "reclaim.interval": (["1", "3600"], ["0", "3601", "0.5"]),
    "reclaim.cards": (
        ['"all"', "[]", '["p000"]', f'["p999", "{DIE}"]', f'["{DIE.lower()}"]'],
        [
            *('"p000"', '"none"', "true", "[1]", '["all"]', '["p00"]', '["p0000"]', '["P000"]', '["p00\\u0660"]', '["p000\\n"]'),
            *('["p000", "p000"]', f'["{DIE}", "{DIE.lower()}"]', f'["{DIE[:-1]}"]', f'["{DIE}/100/vir05_1c_16g"]', '[["p000"]]'),
        ],
    ),
    "reclaim.manage": (['"hami"', '"all"'], ['"none"', "true", "[]"]),
    "reclaim.per_card": (["1", "16"], ["0", "17", "true"]),
    "reclaim.per_node": (["1", "64"], ["0", "65"]),
    "reclaim.per_hour": (["1", "1024"], ["0", "1025"]),
    "reclaim.kill_switch": (['"/etc/devward/reclaim.disabled"', '"/run/stop"'], ['""', '"stop"', '"/"', '"/etc/../stop"', "false"]),
    "device_plugin.enabled": (["true", "false"], ['"true"', "1", "[]"]),
    "device_plugin.resource": (
        ['"hyperlight.dev/hypervisor"', '"example.com/kvm"'],
        ['"hypervisor"', '"a/b/c"', '"kubernetes.io/kvm"', '"requests.a/b"', '"a/b\\n"', '"A.b/c"', '""', "1"],
    ),
    "device_plugin.slots": (["1", "2000", "10000"], ["0", "10001", "-1", "2000.0", '"2000"', "true"]),
    "device_plugin.directory": (
        ['"/var/lib/kubelet/device-plugins"', f'"/{"a" * 79}"'],
        ['"device-plugins"', '"/a/"', '"/a/../b"', '"/"', f'"/{"a" * 80}"', '"/a\\n"', "1"],
    ),
    "device_plugin.devices": (
        ['"auto"', '["/dev/kvm"]', '["/dev/kvm", "/dev/mshv"]'],
        ["[]", '"/dev/kvm"', '["kvm"]', '["/dev/kvm", "/dev/kvm"]', "true"],
    ),
    "device_plugin.injection": (['"cdi"', '"annotations"', '"device-spec"'], ['"CDI"', '""', "true"]),
    "device_plugin.take_over": (["true", "false"], ['"false"', "0"]),
    "metrics.enabled": (["true", "false"], ['"true"', "0", "1", '"off"']),
    "metrics.directory": (['"/var/lib/node_exporter"'], ['""', '"textfile"', '"/"', '"/var/lib/../x"', '"/a\\u0000b"', "false"]),
    "metrics.interval": (["1", "120"], ["0", "121", "30.0", '"30"', "true"]),
    "log.level": (['"debug"', '"err"'], ['"loud"', "3"]),
    "log.journal_socket": (['"/run/systemd/journal/socket"'], ['"socket"', "[]"]),
}


def test_every_key_has_samples() -> None:
    assert set(SAMPLES) == {key.path for key in config_keys.KEYS}


@pytest.mark.parametrize("key", sorted(SAMPLES))
def test_each_key_takes_what_it_should_and_refuses_the_rest(key: str) -> None:
    section, name = key.split(".")
    good, bad = SAMPLES[key]
    for value in good:
        loaded = built(f"[{section}]\n{name} = {value}\n")
        assert loaded.sources[key] == "test.toml"
        assert loaded.warnings == ()
    for value in bad:
        assert refusal(f"[{section}]\n{name} = {value}\n").startswith(f"test.toml: {key}: "), value


@pytest.mark.parametrize("value", ["-1", "4294967296", '"nobody"', '"0"', "true", "1.0", "[]", "99999999999999999999"])
@pytest.mark.parametrize("name", ["device_uid", "device_gid"])
def test_r5_owner_that_is_no_32_bit_number_falls_back_with_a_warning(name: str, value: str) -> None:
    loaded = built(f"[cdi]\n{name} = {value}\n")
    assert getattr(loaded.config.cdi, name) == 65534
    (warning,) = loaded.warnings
    assert warning.code is Reason.CONFIG_FALLBACK
    assert warning.subject == f"cdi.{name}"
    assert "test.toml" in warning.text
    assert "65534" in warning.text


def test_r5_a_later_good_value_ends_the_warning() -> None:
    loaded = config.build([("a.toml", b"[cdi]\ndevice_uid = -1\n"), ("b.toml", b"[cdi]\ndevice_uid = 7\n")])
    assert loaded.config.cdi.device_uid == 7
    assert loaded.warnings == ()


def test_all_problems_of_all_files_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        config.build([("a.toml", b'[cdi]\nmode = 1\nmood = "x"\n[cda]\n'), ("b.toml", b"cdi = 3\nx = 1\n"), ("c.toml", b"[cdi\n")])
    problems = sorted(str(caught.value).split("; "))
    assert len(problems) == 6
    assert problems[0] == "a.toml: cda: unknown section"
    assert problems[1].startswith("a.toml: cdi.mode: must be one of repair, observe, off")
    assert problems[2] == "a.toml: cdi.mood: unknown key"
    assert problems[3] == "b.toml: cdi: must be a section, [cdi]"
    assert problems[4] == "b.toml: x: unknown key"
    assert problems[5].startswith("c.toml: not TOML: ")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = \x00", b"[" * 5000, b"x = " + b"[" * 100000])
def test_hostile_content_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^x\.toml: not "):
        config.build([("x.toml", content)])


def test_text_from_a_file_is_escaped_in_messages() -> None:
    assert "\n" not in refusal('[cdi]\nmode = "a\\nb\\u001b[31m"\n')
    assert "\x1b" not in refusal('[cdi]\n"a\\u001b" = 1\n')


def test_a_file_that_others_may_change_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "devward.toml"
    file.write_text("")
    file.chmod(0o646)
    with pytest.raises(ConfigError, match="may be changed by users other than root"):
        config.load(str(file), None)
    file.chmod(0o644)
    config.load(str(file), None)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "devward.toml"
    file.write_text("")
    os.chown(file, 1000, 1000)
    with pytest.raises(ConfigError, match="may be changed by users other than root"):
        config.load(str(file), None)


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.toml"
    os.mkfifo(fifo)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    with pytest.raises(ConfigError, match="is not a regular file"):
        config.load(str(fifo), None)
    with pytest.raises(ConfigError, match="is not a regular file"):
        config.load(str(tmp_path), None)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "devward.toml"
    file.write_bytes(b"#" * (config.MAXIMUM_FILE_SIZE + 1))
    with pytest.raises(ConfigError, match="is larger than"):
        config.load(str(file), None)


def test_what_a_cluster_is_asked_by_itself_is_empty() -> None:
    cluster = built("").config.cluster
    assert (cluster.read, cluster.kubeconfig, cluster.node_name, cluster.allow_exec) == (ClusterRead.AUTO, "", "", False)
    assert cluster == config.ClusterConfig()
    given = built('[cluster]\nread = "off"\nkubeconfig = "/etc/devward/kubeconfig"\nnode_name = "worker-1"\nallow_exec = true\n').config
    assert given.cluster == config.ClusterConfig(ClusterRead.OFF, "/etc/devward/kubeconfig", "worker-1", allow_exec=True)


def test_reclaiming_is_on_and_careful_by_itself() -> None:
    loaded = built("").config.reclaim
    assert loaded == config.ReclaimConfig()
    assert (loaded.mode, loaded.grace, loaded.confirmations, loaded.interval) == (ReclaimMode.ENFORCE, 600, 3, 60)
    assert (loaded.cards, loaded.manage) == (None, Manage.HAMI)
    assert (loaded.per_card, loaded.per_node, loaded.per_hour) == (1, 4, 16)
    assert loaded.kill_switch == "/etc/devward/reclaim.disabled"


def test_die_ids_are_kept_in_capitals_and_names_as_they_are() -> None:
    assert built(f'[reclaim]\ncards = ["{DIE.lower()}", "p007"]\n').config.reclaim.cards == (DIE, "p007")
    assert built("[reclaim]\ncards = []\n").config.reclaim.cards == ()


def test_effective_values_can_be_read_back() -> None:
    text = '[hypervisor]\ndevices = ["/dev/kvm"]\nexpected_mode = "0660"\nexpected_uid = 0\n[cdi]\nmode = "off"\n'
    text += '[cluster]\nnode_name = "worker-1"\nallow_exec = true\n'
    text += '[reclaim]\ncards = ["p007"]\nmanage = "all"\n'
    loaded = built(text)
    values = {key: (value, source) for key, value, source in config.effective(loaded)}
    assert set(values) == {key.path for key in config_keys.KEYS}
    assert values["hypervisor.devices"] == (["/dev/kvm"], "test.toml")
    assert values["hypervisor.expected_mode"] == ("0660", "test.toml")
    assert values["hypervisor.expected_gid"] == ("any", "default")
    assert values["cdi.mode"] == ("off", "test.toml")
    assert values["npu.device_uid"] == ("user", "default")
    assert values["reclaim.cards"] == (["p007"], "test.toml")
    assert {key: value for key, value, _ in config.effective(built(""))}["reclaim.cards"] == "all"
    assert values["cluster.kubeconfig"] == ("auto", "default")
    assert values["cluster.node_name"] == ("worker-1", "test.toml")
    assert values["cluster.allow_exec"] == (True, "test.toml")
    assert loaded.config.hypervisor.devices == (DeviceKind.KVM,)
    # JSON's texts, numbers and lists are TOML's too.
    lines = [f"{key} = {json.dumps(value)}" for key, (value, _) in values.items()]
    assert built("\n".join(lines)).config == loaded.config


@pytest.mark.parametrize(("text", "warned"), [("slots = 2000", False), ("slots = 2001", True)])
def test_many_slots_are_warned_of_where_they_are_offered(text: str, warned: bool) -> None:
    on = built(f"[device_plugin]\nenabled = true\n{text}\n")
    assert [(finding.code, finding.subject) for finding in on.warnings] == [(Reason.PLUGIN_MANY_SLOTS, "device_plugin.slots")] * warned
    assert built(f"[device_plugin]\n{text}\n").warnings == ()


def test_the_device_plugin_is_off_by_default() -> None:
    assert not built("").config.device_plugin.enabled
    assert built("").config.device_plugin.slots == 2000
