"""The metrics file: what the official client reads out of it, and that names and alerts are as Prometheus wants them."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from devward.metrics import (
    FAMILIES,
    DeviceMeasures,
    Kind,
    Measures,
    PluginMeasures,
    ReclaimMeasures,
    render,
)
from devward.text import printable

RULES = Path(__file__).parents[2] / "packaging" / "examples" / "devward.rules.yml"
KVM = DeviceMeasures("/dev/kvm", healthy=True, last_check=1_767_225_600.5, checks=3, check_seconds=0.75)
PLUGIN = PluginMeasures("hyperlight.dev/hypervisor", True, 1, 1500, 2000, 2, 1, 12, 3)
FULL = Measures(
    version="1.2.3",
    ready=True,
    config_good=False,
    audit_dropped=4,
    devices=(KVM, DeviceMeasures("/dev/mshv", healthy=False)),
    repairs={("hyperlight.dev-hypervisor.json", "missing"): 2, ("hyperlight.dev-hypervisor.json", "stale"): 5},
    refusals={("/dev/kvm", "hypervisor-busy"): 3},
    plugin=PLUGIN,
    reclaim=ReclaimMeasures({"in-use": 3, "candidate": 1}, 2, {"destroyed": 7}, 12.5),
    certificate_expiry=1_800_000_000,
)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """Return what the official parser reads; no sample twice, none with a timestamp."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            assert sample.timestamp is None
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_everything_is_read_back_as_it_was_given() -> None:
    samples = parsed(render(FULL))
    file, resource = "hyperlight.dev-hypervisor.json", PLUGIN.resource
    assert value(samples, "devward_build_info", version="1.2.3") == 1
    assert value(samples, "devward_ready") == 1
    assert value(samples, "devward_config_good") == 0
    assert value(samples, "devward_audit_dropped_total") == 4
    assert value(samples, "devward_device_healthy", device="/dev/kvm") == 1
    assert value(samples, "devward_device_healthy", device="/dev/mshv") == 0
    assert value(samples, "devward_device_last_check_timestamp_seconds", device="/dev/kvm") == 1_767_225_600.5
    assert value(samples, "devward_probe_duration_seconds_count", device="/dev/kvm") == 3
    assert value(samples, "devward_probe_duration_seconds_sum", device="/dev/kvm") == 0.75
    assert value(samples, "devward_spec_repairs_total", file=file, cause="stale") == 5
    assert value(samples, "devward_allocation_refusals_total", device="/dev/kvm", reason="hypervisor-busy") == 3
    assert value(samples, "devward_plugin_registered", resource=resource) == 1
    assert value(samples, "devward_plugin_streams", resource=resource) == 1
    assert value(samples, "devward_plugin_slots", resource=resource, health="healthy") == 1500
    assert value(samples, "devward_plugin_slots", resource=resource, health="unhealthy") == 500
    assert value(samples, "devward_plugin_registrations_total", resource=resource, outcome="success") == 2
    assert value(samples, "devward_plugin_registrations_total", resource=resource, outcome="failure") == 1
    assert value(samples, "devward_plugin_allocations_total", resource=resource, outcome="given") == 12
    assert value(samples, "devward_plugin_allocations_total", resource=resource, outcome="refused") == 3
    assert value(samples, "devward_vnpus", verdict="in-use") == 3
    assert value(samples, "devward_leaked_cores") == 2
    assert value(samples, "devward_reclaims_total", outcome="destroyed") == 7
    assert value(samples, "devward_reclaim_blocked_seconds") == 12.5
    assert value(samples, "devward_cluster_certificate_expiry_timestamp_seconds") == 1_800_000_000


def test_every_metric_can_be_had_and_is_described() -> None:
    families = {family.name: family for family in text_string_to_metric_families(render(FULL))}
    assert {name if family.type != "counter" else f"{name}_total" for name, family in families.items()} == {
        family.name for family in FAMILIES
    }
    for family in FAMILIES:
        read = families[family.name.removesuffix("_total")]
        assert (read.documentation, read.type) == (family.help, family.kind)


def test_what_is_not_known_is_left_out_and_not_shown_as_nothing() -> None:
    empty = Measures(version="1", ready=False, config_good=True, devices=(DeviceMeasures("/dev/kvm"),), reclaim=ReclaimMeasures())
    names = {name for name, _ in parsed(render(empty))}
    assert names == {
        "devward_build_info",
        "devward_ready",
        "devward_config_good",
        "devward_audit_dropped_total",
        "devward_probe_duration_seconds_count",
        "devward_probe_duration_seconds_sum",
    }


def test_names_are_as_prometheus_wants_them() -> None:
    for family in FAMILIES:
        assert re.fullmatch(r"devward(_[a-z]+)+", family.name)
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
        assert ("duration" in family.name or "timestamp" in family.name or "blocked" in family.name) == family.name.endswith("_seconds")
        assert family.help.endswith(".")
        assert "\\" not in family.help
        assert all(re.fullmatch(r"[a-z]+", label) for label in family.labels)


def test_the_text_is_the_same_whatever_the_order() -> None:
    turned = replace(FULL, repairs=dict(reversed([*FULL.repairs.items()])))
    assert render(turned) == render(FULL)
    assert render(FULL).endswith("\n")


def test_a_pair_of_samples_would_cost_the_whole_file() -> None:
    assert value(parsed(render(replace(FULL, devices=(KVM, KVM)))), "devward_device_healthy", device="/dev/kvm") == 1


#: Any text, and such that has a meaning in the format.
TEXTS = st.text() | st.text('"\\\n{},= a')


@given(TEXTS, TEXTS, st.integers(0, 10**18))
def test_foreign_text_cannot_leave_its_label(subject: str, why: str, count: int) -> None:
    samples = parsed(render(replace(FULL, repairs={}, refusals={(subject, why): count})))
    (found,) = (dict(labels) for name, labels in samples if name == "devward_allocation_refusals_total")
    assert found == {"device": printable(subject, 120), "reason": printable(why, 120)}
    assert all(label.isprintable() and len(label) <= 120 for label in found.values())
    assert len(samples) == len(parsed(render(FULL))) - 2


@given(st.floats(min_value=0, max_value=1e12))
def test_numbers_are_read_back_exactly(seconds: float) -> None:
    samples = parsed(render(replace(FULL, reclaim=ReclaimMeasures(blocked_seconds=seconds))))
    assert math.isclose(value(samples, "devward_reclaim_blocked_seconds"), seconds, rel_tol=0, abs_tol=0)


def test_every_alert_is_about_metrics_and_labels_that_exist() -> None:
    known = {family.name: set(family.labels) for family in FAMILIES}
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    alerts = [rule["alert"] for rule in group["rules"]]
    assert len(set(alerts)) == len(alerts)
    for rule in group["rules"]:
        used = set(re.findall(r"\bdevward_\w+", rule["expr"]))
        assert used <= known.keys(), rule["alert"]
        assert used or "node_textfile_mtime_seconds" in rule["expr"]
        labels = set.union({"instance"}, *(known[name] for name in used))
        wanted = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) | set(re.findall(r"(\w+)=~?\"", rule["expr"]))
        assert wanted <= labels | {"file"}, rule["alert"]
        assert set(re.findall(r'(\w+="[^"]*")', rule["expr"])) <= set(re.findall(r'(\w+="[^"]*")', render(FULL))), rule["alert"]
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_known(number: float) -> None:
    assert "blocked" not in render(replace(FULL, reclaim=ReclaimMeasures(blocked_seconds=number)))
