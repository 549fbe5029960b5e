"""What the broker's own scan of the host tells who reads a refusal."""

import functools
from pathlib import Path

import pytest

from devward.cluster import local
from devward.cluster.evidence import DeviceNumber, Finding
from devward.cluster.local import LocalScanner, Source, VnpuEvidence
from devward.npu.host_scan import explained, scan_host
from devward.npu.protocol import TEXT_LIMIT, answer_text
from sim.bundle_host import BundleHost, everybody, made

NUMBER = DeviceNumber(236, 148)
CONTAINER = "1" * 64


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BundleHost:
    """A host without a process but one, and without containers, in place of this one."""
    host = BundleHost(tmp_path)
    groups = tmp_path / "cgroup"
    groups.mkdir()
    (groups / "cgroup.controllers").write_text("")

    def scanner() -> LocalScanner:
        return LocalScanner(proc=str(host.proc), cgroups=str(groups), bundles=host.scanner(), vantage=everybody)

    monkeypatch.setattr(local, "LocalScanner", scanner)
    return host


scan = functools.partial(scan_host, 148, NUMBER)


def test_a_holder_is_named(host: BundleHost) -> None:
    host.task(CONTAINER, made("containerd-vnpu.json"))
    result = scan("containerd://1.7.2")
    assert result.finding is Finding.HELD
    assert result.text == f"descriptors clean, bundles held, uda clean (container {CONTAINER} names it)"


def test_a_doubt_is_named(host: BundleHost) -> None:
    host.task(CONTAINER, b"{")
    result = scan("containerd://1.7.2")
    assert result.finding is Finding.UNKNOWN
    assert result.text.startswith("descriptors clean, bundles unknown, uda clean (bundles: bundle-malformed ")
    assert CONTAINER in result.text


def test_clean_needs_no_reason(host: BundleHost) -> None:
    host.task(CONTAINER, {})
    result = scan("containerd://1.7.2")
    assert (result.finding, result.text) == (Finding.CLEAN, "descriptors clean, bundles clean, uda clean")


@pytest.mark.parametrize(("runtime", "code"), [("cri-o://1.30.0", "runtime-not-found"), ("lxc://5", "runtime-unknown")])
def test_the_nodes_own_runtime_must_be_found(host: BundleHost, runtime: str, code: str) -> None:
    host.task(CONTAINER, {})
    result = scan(runtime)
    assert result.finding is Finding.UNKNOWN
    assert code in result.text


def test_of_many_reasons_a_few_are_named_and_what_is_foreign_in_them_stays_escaped() -> None:
    reasons = tuple(f"process {pid} 'a\\x1bname' has it open" for pid in range(20))
    evidence = VnpuEvidence(Finding.HELD, ((Source.DESCRIPTORS, Finding.HELD),), reasons)
    text = explained(evidence)
    assert text.startswith("descriptors held (process 0 'a\\x1bname' has it open; process 1 ")
    assert text.endswith("process 2 'a\\x1bname' has it open; and more)")
    assert len(text) < TEXT_LIMIT
    assert answer_text(text) == text
