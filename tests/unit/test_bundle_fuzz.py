"""Damaged bundles: each is refused, or read with every owner that is in it. `tests/sim/bundle_fuzz.py` runs more of them."""

import pytest

from devward.cluster.bundle import BundleFacts
from sim import bundle_fuzz


def test_damage_loses_no_owner() -> None:
    tally = bundle_fuzz.fuzz(4000, 20261201)
    assert tally["accepted"] > 400
    assert tally["refused: BundleError"] > 400


@pytest.mark.parametrize("lost", ["vdevs", "cards", "template", "has_all_devices"])
def test_a_reader_that_loses_one_is_found(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    real = bundle_fuzz.parse_bundle

    def reader(data: bytes) -> BundleFacts:
        facts = real(data)
        values = {name: getattr(facts, name) for name in BundleFacts.__dataclass_fields__}
        return BundleFacts(**values | {lost: type(values[lost])() if values[lost] is not None else frozenset()})

    monkeypatch.setattr(bundle_fuzz, "parse_bundle", reader)
    with pytest.raises(AssertionError):
        bundle_fuzz.fuzz(4000, 1)
