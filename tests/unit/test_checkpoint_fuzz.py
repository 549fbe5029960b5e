"""Damaged checkpoints: every one is refused by name, or read as other code reads it. `tests/sim/checkpoint_fuzz.py` runs more of them."""

import random
import secrets

import pytest

from devward.cluster.checkpoint import Checkpoint, CheckpointError, Defect, Form, parse_checkpoint
from sim import checkpoint_fuzz
from sim.checkpoint_fuzz import ACCEPTED, Found, fuzz, judge, seeds


def test_damaged_checkpoints() -> None:
    seed = secrets.randbits(32)
    try:
        tally = fuzz(4000, seed)
    except Found as found:
        raise AssertionError(f"seed {seed}: {found}") from found
    # Damage of every kind was done, and some did no harm.
    assert min(tally[ACCEPTED], tally[Defect.CHECKSUM], tally[Defect.WRONG_TYPE], tally[Defect.NOT_JSON]) > 20


def test_what_it_begins_with_is_good() -> None:
    good = seeds(random.Random(1))
    assert len(good) > 20
    assert {judge(data) for data in good} == {ACCEPTED}


def without_reason(_data: bytes) -> Checkpoint:
    raise KeyError("Data")


def without_entries(data: bytes) -> Checkpoint:
    return Checkpoint(Form.NONE, parse_checkpoint(data).checksum, (), 0, ())


def trusting(data: bytes) -> Checkpoint:
    try:
        return parse_checkpoint(data)
    except CheckpointError as error:
        if error.defect is Defect.CHECKSUM:
            return Checkpoint(Form.NONE, 0, (), 0, ())
        raise


@pytest.mark.parametrize("reader", [without_reason, without_entries, trusting])
def test_a_reader_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch, reader: object) -> None:
    monkeypatch.setattr(checkpoint_fuzz, "parse_checkpoint", reader)
    with pytest.raises(Found):
        fuzz(4000, 1)
